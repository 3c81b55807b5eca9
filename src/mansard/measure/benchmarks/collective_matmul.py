"""Matrix products whose operands are spread over devices: the exchange overlaps the products, or should.

A is (m, k) in rows, B is (k, n) in columns, one part of each per device; a device ends with its n / d columns of A B. The
published suite gives every device all of B, so that all of them do the same whole product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core import Demand
from mansard.core.collectives import sent_ratio
from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.measure.benchmarks.entry import missing_memory, missing_package
from mansard.measure.benchmarks.link_points import MOST_LOCAL, host_facts, link_of, local_devices
from mansard.measure.points.benchmark import Check, CompilerCount, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked, data_kind, random_input, spots
from mansard.operators.counting import matrix_work

LAYERS = 2  # of the multilayer form, as in the published suite
CHECKED = 8  # rows and columns of the result that are compared
_EXPECTED = {
    "gather": ("all-gather", "all-gather-start"), "reduce": ("all-reduce", "all-reduce-start"),
    "ring": ("collective-permute", "collective-permute-start"),
}  # fmt: skip

_PARAMETERS = (
    Parameter(name="m", kind="int", default=1024, minimum=1, text="rows of A, spread over the devices"),
    Parameter(name="k", kind="int", default=1024, minimum=1, text="columns of A and rows of B"),
    Parameter(name="n", kind="int", default=1024, minimum=1, text="columns of B, spread over the devices"),
    Parameter(name="dtype", kind="dtype", default="bf16", text="element type"),
    Parameter(
        name="devices", kind="int", default=0, minimum=0,
        text="devices; 0 for all, on a CPU one for each core and at least 2",
    ),
    Parameter(name="seed", kind="int", default=0, minimum=0, text="seed of the data"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One product over `devices`.

    Args:
        m, k, n: Dimensions of the whole product.
        devices: Devices that share it.
        dtype: Element type.
    """

    m: int
    k: int
    n: int
    devices: int
    dtype: str

    def bytes_of(self, rows: float, columns: float) -> float:
        """Size of a matrix [B]."""
        return rows * columns * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProduct:
    """One way to do it; see `points.benchmark.Benchmark` for the attributes.

    Args:
        how: `one` and `two` move A around a ring in one or both directions, `layers` gathers between two products,
            `reduce` splits k and sums with an all-reduce.
    """

    name: str
    how: str
    summary: str
    implementations: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    area: str = "collectives"
    parameters: tuple[Parameter, ...] = _PARAMETERS

    def spread(self, params: Params, there: int) -> Spread:
        """Return the product of a point."""
        return Spread(
            m=int(params["m"]), k=int(params["k"]), n=int(params["n"]), dtype=short_dtype(params["dtype"]),
            devices=int(params["devices"]) or there,
        )  # fmt: skip

    def _seen(self, params: Params, where: Where) -> Spread:
        return self.spread(params, local_devices() if where.platform == "cpu" else where.devices)

    def flags(self, params: Params, impl: str) -> Mapping[str, str]:
        """Return what makes several devices out of one CPU; on an accelerator it changes nothing."""
        if self.implementations[impl] != "jax":
            return {}
        return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={self.spread(params, local_devices()).devices}"}

    def device_flop(self, s: Spread) -> float:
        """FLOP of one device: its share of 2 m k n, and of 2 m k k for a layer in between."""
        layers = (LAYERS - 1) * 2.0 * s.m * s.k * s.k if self.how == "layers" else 0.0
        return (2.0 * s.m * s.k * s.n + layers) / s.devices

    def sent_bytes(self, s: Spread) -> float:
        """Bytes one device must send [B]."""
        if self.how == "reduce":
            return sent_ratio("all_reduce", s.devices) * s.bytes_of(s.m, s.n)
        return sent_ratio("all_gather", s.devices) * s.bytes_of(s.m, s.k)

    def work(self, params: Params, where: Where) -> Work:
        """Return the work: of one device of an accelerator, of all local devices together on a CPU that they share."""
        s = self._seen(params, where)
        together = float(s.devices) if where.platform == "cpu" else 1.0
        flop = self.device_flop(s) * together
        held = self._held_bytes(s) * together
        accumulate = next(iter(matrix_work(1.0, s.dtype)))[1]
        return Work(
            demand=Demand(
                flop=matrix_work(flop / 2.0, s.dtype), link_bytes={link_of(where, "jax"): self.sent_bytes(s)},
                working_set_bytes=held, uncounted=("memory traffic of the products",),
            ),
            compiler_flop=self.device_flop(s), headline="flop", peak=(s.dtype, accumulate, "matrix"),
            convention="2 m k n over the devices, each does its share"
            + ("; the local devices share this CPU, so their work is added up" if where.platform == "cpu" else ""),
        )  # fmt: skip

    def _held_bytes(self, s: Spread) -> float:
        layers = s.bytes_of(s.k, s.k) if self.how == "layers" else 0.0
        whole_a = s.bytes_of(s.m, s.k) if self.how == "layers" else s.bytes_of(s.m, s.k) / s.devices
        result = s.bytes_of(s.m, s.n) * (1.0 if self.how == "reduce" else 1.0 / s.devices)
        return whole_a + (s.bytes_of(s.k, s.n) + layers) / s.devices + result

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None."""
        lacking = missing_package(self.implementations[impl])
        if lacking is not None:
            return lacking
        s = self._seen(params, where)
        if s.devices < 2:
            return Waived(reason="at least 2 devices are needed; there is one", missing="device")
        there = MOST_LOCAL if where.platform == "cpu" else where.devices
        if s.devices > there:
            return Waived(reason=f"{s.devices} devices are needed; there are {there}", missing="device")
        parts = s.devices * (2 if self.how == "two" else 1)
        for name, size, by in (("m", s.m, parts), ("n", s.n, s.devices), ("k", s.k, s.devices)):
            used = name == {"one": "m", "two": "m", "layers": "k", "reduce": "k"}[self.how] or (
                name == "n" and self.how != "reduce"
            )
            if used and size % by:
                return Waived(reason=f"{name} = {size} cannot be divided into {by} equal parts", missing="device")
        together = s.devices if where.platform == "cpu" else 1
        whole = 4.0 * (s.m * s.k + s.k * s.n)  # the inputs are made on the host in f32
        return missing_memory(
            2.0 * self._held_bytes(s) * together + whole * (together > 1), f"{self.name} of this size", where
        )

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the inputs and compile."""
        s = self._seen(params, where)
        made = _on_devices(self.how, s, int(params["seed"]))
        facts = {
            "implementation": f"{self.implementations[impl]} shard_map", "data": data_kind(s.dtype), "devices": s.devices,
            **host_facts(where, "jax", s.devices),
        }  # fmt: skip
        return Prepared(
            run=made.run, verify=made.verify, count_by_compiler=made.counts, facts=facts, compile_s=made.compile_s
        )


@dataclass(slots=True)
class _OnDevices:
    """A compiled product with its operands."""

    how: str
    spread: Spread
    inputs: list[Any]
    host: list[Any]
    state: Any
    compiled: Any
    compile_s: float

    def run(self, count: int) -> None:
        """Do `count` products back to back; each writes where the one before wrote."""
        import jax

        out = self.state
        for _ in range(count):
            out = self.compiled(*self.inputs, out)
        self.state = jax.block_until_ready(out)

    def verify(self) -> Check:
        """Compare some rows and columns of the whole result with numpy in f64."""
        rows, columns = spots(self.spread.m, CHECKED), spots(self.spread.n, CHECKED)
        want = self.host[0].astype(np.float64)[rows]
        for weight in self.host[1:-1]:
            want = want @ weight.astype(np.float64)
        want = want @ self.host[-1].astype(np.float64)[:, columns]
        got = np.asarray(self.state).astype(np.float64)[np.ix_(rows, columns)]
        against = "numpy in f64, sampled rows and columns"
        return checked(got, want, dtype=self.spread.dtype, against=against, products=self.spread.k)

    def counts(self) -> CompilerCount:
        """Return what XLA says of the program of one device."""
        from mansard.measure.points.with_jax import count

        return count(self.compiled, _EXPECTED[{"layers": "gather", "reduce": "reduce"}.get(self.how, "ring")])


def _on_devices(how: str, s: Spread, seed: int) -> _OnDevices:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from mansard.measure.points.with_jax import jax_dtype

    grid = Mesh(np.array(jax.devices()[: s.devices]), ("i",))
    rows, columns, everywhere = PartitionSpec("i", None), PartitionSpec(None, "i"), PartitionSpec()
    specs = {
        "one": ((rows, columns), columns), "two": ((rows, columns), columns),
        "layers": ((everywhere, columns, columns), columns), "reduce": ((columns, rows), everywhere),
    }[how]  # fmt: skip
    shapes = [(s.m, s.k), *([(s.k, s.k)] if how == "layers" else []), (s.k, s.n)]
    kind = jax_dtype(s.dtype)

    def placed(index: int, shape: tuple[int, ...], spec: Any) -> Any:
        # Weights in between keep the size of what passes through them.
        values = random_input(shape, s.dtype, seed=10 * seed + index, scale=1.0 if index != 1 else s.k**-0.5)
        return jax.device_put(values.astype(kind), NamedSharding(grid, spec))

    inputs = [placed(i, shape, spec) for i, (shape, spec) in enumerate(zip(shapes, specs[0], strict=True))]
    host = [np.asarray(x) for x in inputs]
    state = jax.device_put(np.zeros((s.m, s.n), kind), NamedSharding(grid, specs[1]))
    mapped = jax.shard_map(_function(how, s.devices), mesh=grid, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    begin = time.perf_counter()
    jitted: Any = jax.jit(lambda *a: mapped(*a[:-1]), donate_argnums=(len(inputs),), keep_unused=True)
    compiled = jitted.lower(*inputs, state).compile()
    spent = time.perf_counter() - begin
    jax.block_until_ready([*inputs, state])
    return _OnDevices(how=how, spread=s, inputs=inputs, host=host, state=state, compiled=compiled, compile_s=spent)


def _function(how: str, devices: int) -> Callable[..., Any]:
    """Return what one device does with its parts."""
    import jax

    lax: Any = jax.lax
    down = [(j, (j - 1) % devices) for j in range(devices)]
    up = [(j, (j + 1) % devices) for j in range(devices)]

    def one(a: Any, b: Any) -> Any:
        chunk, own = a.shape[0], lax.axis_index("i")
        out = jax.numpy.zeros((chunk * devices, b.shape[1]), a.dtype)
        for turn in range(devices):
            coming = lax.ppermute(a, "i", down) if turn < devices - 1 else a
            out = lax.dynamic_update_slice(out, a @ b, ((own + turn) % devices * chunk, 0))
            a = coming
        return out

    def two(a: Any, b: Any) -> Any:
        chunk, own = a.shape[0], lax.axis_index("i")
        half = chunk // 2
        out = jax.numpy.zeros((chunk * devices, b.shape[1]), a.dtype)
        upper, lower = a[:half], a[half:]
        for turn in range(devices):
            last = turn == devices - 1
            next_upper = upper if last else lax.ppermute(upper, "i", up)
            next_lower = lower if last else lax.ppermute(lower, "i", down)
            out = lax.dynamic_update_slice(out, upper @ b, ((own - turn) % devices * chunk, 0))
            out = lax.dynamic_update_slice(out, lower @ b, ((own + turn) % devices * chunk + half, 0))
            upper, lower = next_upper, next_lower
        return out

    def layers(a: Any, *weights: Any) -> Any:
        for weight in weights[:-1]:
            a = lax.all_gather(a @ weight, "i", axis=1, tiled=True)
        return a @ weights[-1]

    def reduce(a: Any, b: Any) -> Any:
        return lax.psum(a @ b, "i")

    return {"one": one, "two": two, "layers": layers, "reduce": reduce}[how]


_ONLY_JAX: Mapping[str, str] = {"jax": "jax"}
BENCHMARKS = (
    CollectiveProduct(
        name="collective_matmul_one_direction", how="one", implementations=_ONLY_JAX,
        summary="A B while the rows of A go around a ring",
    ),
    CollectiveProduct(
        name="collective_matmul_two_directions", how="two", implementations=_ONLY_JAX,
        summary="A B while halves of A go around a ring in both directions",
    ),
    CollectiveProduct(
        name="multilayer_collective_matmul", how="layers", implementations=_ONLY_JAX,
        summary="two layers one after the other, gathered in between",
    ),
    CollectiveProduct(
        name="gemm_all_reduce", how="reduce", implementations=_ONLY_JAX,
        summary="A B with k spread over the devices, summed by an all-reduce",
    ),
)  # fmt: skip
