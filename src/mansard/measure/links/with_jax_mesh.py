"""Collectives by JAX `shard_map` on a mesh: compiled apart, results in donated memory, groups read back from the HLO."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core.dtypes import short_dtype
from mansard.core.errors import UndecidedError, UsageError
from mansard.measure.links.mesh import Groups, Mesh, replica_groups, same_groups
from mansard.measure.links.shapes import Shapes, error_ratio, expected, local_inputs, most_checked, positions, worst
from mansard.measure.points.benchmark import Check, CompilerCount, Operand, Prepared
from mansard.measure.points.inputs import data_kind, numpy_dtype

#: What the compiled program must contain, by operation.
EXPECTED: dict[str, tuple[str, ...]] = {
    "all_reduce": ("all-reduce", "all-reduce-start"), "all_gather": ("all-gather", "all-gather-start"),
    "reduce_scatter": ("reduce-scatter", "async-start"), "all_to_all": ("all-to-all", "async-start", "ragged-all-to-all"),
    "ppermute": ("collective-permute", "collective-permute-start"),
    "broadcast": ("collective-broadcast", "async-start"),
    "send_recv": ("collective-permute", "collective-permute-start"),
}  # fmt: skip
SAME_FOR_ALL = ("all_reduce", "all_gather", "broadcast")  # the result is that of every device of a group
LOOKS = 5  # dispatches in which the devices are watched
LOOKS_MOST_S = 2.0  # no further one after this


@dataclass(slots=True)
class OnMesh:
    """One collective, compiled for a mesh.

    Args:
        mesh: The mesh.
        shapes: Its arrays.
        reduce_op: Reduction, where there is one.
        x: Inputs, one block per device.
        state: Memory for the results; the last results after a call.
        compiled: The executable `(x, state) -> results`.
        compile_s: Time of lowering and compiling [s].
        groups: Replica groups of the compiled program.
    """

    mesh: Mesh
    shapes: Shapes
    reduce_op: str
    x: Any
    state: Any
    compiled: Any
    compile_s: float
    groups: Groups
    looped: Any
    devices: Sequence[Any]
    permutation: Sequence[tuple[int, int]] | None = None
    _chain: Any = None
    _chain_input: Any = None

    def run(self, count: int) -> None:
        """Do `count` collectives back to back; each writes where the one before wrote, and so comes after it."""
        import jax

        call, x, out = self.compiled, self.x, self.state
        for _ in range(count):
            out = call(x, out)
        self.state = jax.block_until_ready(out)

    def chain(self, count: int) -> None:
        """Do `count` collectives inside one dispatch; one element of the input depends on the result before.

        Without that element XLA moves the collective out of the loop, an optimization barrier notwithstanding.
        """
        import jax

        replicated = jax.sharding.NamedSharding(self.x.sharding.mesh, jax.sharding.PartitionSpec())
        turns, zero = (jax.device_put(v, replicated) for v in (np.int32(count), np.float32(0.0)))
        if self._chain is None:
            self._chain_input = self.x + jax.numpy.zeros((), self.x.dtype)  # the loop is given it and works in it
            self._chain = self.looped.lower(turns, zero, self._chain_input, self.state).compile()
        done = self._chain(turns, zero, self._chain_input, self.state)
        self._chain_input, self.state = jax.block_until_ready(done)

    def blocks(self, array: Any) -> list[Any]:
        """Return the block of each device of the mesh, by its number."""
        found = {shard.device: shard.data for shard in array.addressable_shards}
        return [found[d] for d in self.devices]

    def verify(self) -> Check:
        """Compare the last result of every device with numpy."""
        if self.state is None or bool(self.state.is_deleted()):
            self.run(1)
        inputs, results = self.blocks(self.x), self.blocks(self.state)
        at = positions(self.shapes.result_elements, most=most_checked(self.mesh.participants))
        ratios: dict[int, float] = {}
        for group in self.mesh.groups:
            fetch = _from_blocks([np.asarray(inputs[d]).reshape(-1) for d in group])
            want: Any = None
            for index, device in enumerate(group):
                if want is None or self.shapes.operation not in SAME_FOR_ALL:
                    want = expected(self.shapes, index, at, fetch, reduce_op=self.reduce_op)
                got = np.asarray(results[device]).reshape(-1)[at]
                ratios[device] = error_ratio(got, want, self.shapes, reduce_op=self.reduce_op)
        return worst(ratios)

    def counts(self) -> CompilerCount:
        """Return what XLA says of one call."""
        from mansard.measure.points.with_jax import count

        return count(self.compiled, EXPECTED[self.shapes.operation])

    def operands(self) -> list[Operand]:
        """Return the arrays of the first device."""
        n = self.mesh.devices
        return [
            Operand(name="input", role="input", bytes=float(self.x.nbytes) / n, values=_some(self.blocks(self.x)[0])),
            Operand(
                name="result",
                role="output",
                bytes=float(self.state.nbytes) / n,
                values=_some(self.blocks(self.state)[0]),
            ),
        ]

    def watched(self) -> dict[str, Any]:
        """Return when each device was ready, apart from the samples, since looking costs time, and the slowest one."""
        times: dict[int, list[float]] = {d: [] for d in range(self.mesh.devices)}
        first = time.perf_counter()
        for look in range(LOOKS):
            begin = time.perf_counter()
            if look and begin - first > LOOKS_MOST_S:
                break
            out = self.compiled(self.x, self.state)
            left = dict(enumerate(self.blocks(out)))
            while left:
                for device in [d for d, block in left.items() if block.is_ready()]:
                    times[device].append(time.perf_counter() - begin)
                    del left[device]
            self.state = out
        return slowest(times, "polled after the samples, from the dispatch")


def slowest(times: Mapping[int, Sequence[float]], how: str, what: str = "device") -> dict[str, Any]:
    """Return the median time of each device, and the device with the longest.

    >>> slowest({0: [1.0, 1.2], 1: [3.0]}, "by hand")["slowest_device"]
    1
    """
    medians = {d: float(np.median(t)) for d, t in times.items() if len(t)}
    last = max(medians, key=lambda d: medians[d])
    ordered = sorted(medians.values())
    return {
        f"slowest_{what}": last, f"slowest_{what}_s": medians[last], f"median_{what}_s": float(np.median(ordered)),
        f"fastest_{what}_s": ordered[0], f"{what}_times": how,
        f"{what}_s": [medians[d] for d in sorted(medians)],
    }  # fmt: skip


def _from_blocks(flat: Sequence[Any]) -> Callable[[int, Any], Any]:
    return lambda index, at: flat[index][at]


def _some(block: Any) -> Any:
    flat = np.asarray(block).reshape(-1)
    return flat[positions(flat.size)[:4096]]


def collective_function(
    operation: str, names: Sequence[str], ranks: int, reduce_op: str, pairs: Sequence[tuple[int, int]] | None = None
) -> Callable[[Any], Any]:
    """Return the collective as a function of the block of one device, with a leading axis of 1."""
    import jax

    lax: Any = jax.lax
    axes = tuple(names)
    if operation == "all_reduce":
        how = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}[reduce_op]
        return lambda x: how(x, axes)
    if operation == "all_gather":
        return lambda x: lax.all_gather(x[0], axes)[None]
    if operation == "reduce_scatter":
        if reduce_op not in ("sum", "mean"):
            raise UsageError(f"XLA has no reduce-scatter of {reduce_op} in JAX", hint="sum or mean")
        scale = 1.0 / ranks if reduce_op == "mean" else None

        def scattered(x: Any) -> Any:
            out = lax.psum_scatter(x[0].reshape(ranks, -1), axes, tiled=False)[None]
            return out if scale is None else (out * scale).astype(x.dtype)

        return scattered
    if operation == "all_to_all":
        return lambda x: lax.all_to_all(x[0].reshape(ranks, -1), axes, 0, 0)[None]
    if operation in ("ppermute", "send_recv"):
        moves = list(pairs) if pairs is not None else [(i, (i + 1) % ranks) for i in range(ranks)]
        return lambda x: lax.ppermute(x, axes, moves)
    if operation == "broadcast":
        return lambda x: lax.pbroadcast(x, axes[0] if len(axes) == 1 else axes, 0)
    raise UsageError(f"no JAX collective is called {operation}")


def on_mesh(
    mesh: Mesh, shapes: Shapes, *, reduce_op: str = "sum", seed: int = 0, devices: Sequence[int] | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> OnMesh:  # fmt: skip
    """Compile a collective for a mesh and make its inputs.

    Args:
        mesh: The mesh and the axes that take part.
        shapes: The arrays.
        reduce_op: Reduction, where there is one.
        seed: Seed of the inputs.
        devices: Numbers of the devices to take; None for as many as the mesh has, placed by JAX.
        pairs: Moves of a permutation; None for one step around.

    Raises:
        UsageError: there are fewer devices than the mesh has.
        UndecidedError: the compiled program has other groups than the mesh says.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from mansard.measure.points.with_jax import jax_dtype

    jax_dtype(shapes.dtype)  # switches 64-bit types on
    kind = numpy_dtype(shapes.dtype)
    chosen = _chosen(mesh, devices)
    grid = jax.sharding.Mesh(chosen, mesh.names)
    flat = list(chosen.reshape(-1))
    everywhere = PartitionSpec(mesh.names)
    placed = NamedSharding(grid, everywhere)
    one_axis = [mesh.names[i] for i in mesh.taking_part] or list(mesh.names[:1])
    function = collective_function(shapes.operation, one_axis, mesh.participants, reduce_op, pairs)

    def made(make: Callable[[int], Any], local: tuple[int, ...]) -> Any:
        parts = [jax.device_put(make(i)[None], d) for i, d in enumerate(flat)]  # a cast would be compiled for each
        return jax.make_array_from_single_device_arrays((len(flat), *local), placed, parts)

    x = made(local_inputs(shapes, seed), shapes.local)
    per_device = jax.shard_map(function, mesh=grid, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    result = jax.eval_shape(per_device, x)
    out = made(lambda _i: np.zeros(result.shape[1:], kind), result.shape[1:])

    begin = time.perf_counter()
    traced = jax.jit(lambda a, _out: per_device(a), donate_argnums=(1,), keep_unused=True)
    compiled = traced.lower(x, out).compile()
    compile_s = time.perf_counter() - begin
    groups = _groups(compiled, mesh)
    return OnMesh(
        mesh=mesh, shapes=shapes, reduce_op=reduce_op, x=x, state=out, compiled=compiled, compile_s=compile_s,
        groups=groups, looped=_looped(function, grid, everywhere), devices=flat, permutation=pairs,
    )  # fmt: skip


def _chosen(mesh: Mesh, devices: Sequence[int] | None) -> Any:
    import jax
    from jax.experimental import mesh_utils

    there = jax.devices()
    if devices is not None:
        return np.asarray([there[i] for i in devices], dtype=object).reshape(mesh.shape)
    if len(there) < mesh.devices:
        raise UsageError(f"the mesh has {mesh.devices} devices, JAX sees {len(there)}")
    if there[0].platform == "cpu" or len(there) > mesh.devices:
        return np.asarray(there[: mesh.devices], dtype=object).reshape(mesh.shape)
    return mesh_utils.create_device_mesh(mesh.shape, devices=there)


def _groups(compiled: Any, mesh: Mesh) -> Groups:
    """Return the replica groups of a compiled program, which must be those of the mesh."""
    if mesh.participants == 1:
        return mesh.groups
    found = replica_groups(compiled.as_text())
    whole = tuple(g for g in mesh.groups if len(g) > 1)
    if not same_groups(found, whole):
        raise UndecidedError(
            f"the compiled program has the replica groups {found}, the mesh says {whole}",
            hint="n would be wrong, so nothing is measured", code="replica_groups",
        )  # fmt: skip
    return found


def _looped(function: Callable[[Any], Any], grid: Any, everywhere: Any) -> Any:
    """Return a jitted loop over the collective whose turns depend on one another."""
    import jax
    from jax.sharding import PartitionSpec

    lax: Any = jax.lax

    def body(zero: Any, carried: Any) -> Any:
        x, last = carried
        first = lax.slice(last, (0,) * last.ndim, (1,) * last.ndim).reshape((1,) * x.ndim).astype(np.float32)
        own = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim)
        tied = (own.astype(np.float32) + first * zero).astype(x.dtype)
        x = lax.dynamic_update_slice(x, tied, (0,) * x.ndim)
        return x, function(x)

    def looped(turns: Any, zero: Any, x: Any, out: Any) -> Any:
        return lax.fori_loop(0, turns, lambda _turn, carried: body(zero, carried), (x, out))

    specs = (PartitionSpec(), PartitionSpec(), everywhere, everywhere)
    mapped = jax.shard_map(looped, mesh=grid, in_specs=specs, out_specs=(everywhere, everywhere), check_vma=False)
    return jax.jit(mapped, donate_argnums=(2, 3))


_TYPED = re.compile(r"= \(?([a-z]+\d*\w*)\[[^=]*? ([a-z-]+)\(")


def moved_dtypes(hlo: str, operations: Sequence[str]) -> tuple[str, ...]:
    """Return the element types that the collectives of a compiled program move.

    >>> moved_dtypes("%g = f32[4,8]{1,0} all-gather(%c), channel_id=1", ("all-gather",))
    ('f32',)
    """
    plain = re.sub(r"/\*.*?\*/", "", hlo)  # a tuple of more than five says /*index=5*/ in its type
    seen = (m.groups() for m in map(_TYPED.search, plain.splitlines()) if m)
    return tuple(dict.fromkeys(short_dtype(kind) for kind, name in seen if name in operations))


def prepared(point: OnMesh, facts: Mapping[str, Any]) -> Prepared:
    """Return a compiled collective as a point."""
    moved = moved_dtypes(point.compiled.as_text(), EXPECTED[point.shapes.operation])
    if moved and moved != (point.shapes.dtype,):
        text = f"the compiled program converts {point.shapes.dtype} and moves {', '.join(moved)}; S counts {point.shapes.dtype}"
        facts = {**facts, "moved_dtype": ", ".join(moved), "note": text}
    return Prepared(
        run=point.run, verify=point.verify, count_by_compiler=point.counts, compile_s=point.compile_s, chain=point.chain,
        operands=point.operands, facts_after=point.watched, empty=_empty(point),
        facts={"data": data_kind(point.shapes.dtype), "replica_groups": [list(g) for g in point.groups],
               "participants": point.mesh.participants, "placement": "out_of_place", **facts},
    )  # fmt: skip


def _empty(point: OnMesh) -> Callable[[], None]:
    """Return a dispatch to all devices of the mesh that moves nothing."""
    import jax

    one = jax.device_put(np.zeros((point.mesh.devices, 1), np.float32), point.x.sharding)
    add = jax.jit(lambda a: a + np.float32(1.0))

    def call() -> None:
        jax.block_until_ready(add(one))

    return call


def in_network(platform: str, operation: str, environ: Mapping[str, str] | None = None) -> str:
    """Return whether the network may reduce on the way: `no`, `active or unknown`.

    NCCL uses NVLS on NVSwitch systems, and SHARP on InfiniBand, unless it is told not to.
    """
    env = os.environ if environ is None else environ
    if platform != "gpu" or operation not in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        return "no"
    off = env.get("NCCL_NVLS_ENABLE") == "0" and env.get("NCCL_COLLNET_ENABLE", "0") == "0"
    return "no" if off else "active or unknown"
