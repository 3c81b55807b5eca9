"""One pass over memory through JAX, PyTorch and NumPy, into memory that exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import short_dtype
from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.gemm_calls import room_for_chain
from mansard.measure.benchmarks.memory_mixes import Mix, index_dtype, mix_of, work_of
from mansard.measure.points import inputs
from mansard.measure.points.benchmark import Check, Prepared, Where
from mansard.measure.points.inputs import LONG_NAMES

Array = npt.NDArray[Any]
FACTOR = 1.5  # exact in every floating type; `in_place` takes 1, so that values stay what they are
SPOTS = 64
CHUNK = 2**22  # elements that are widened to f64 at a time
PAGES = "as the allocator gives them"


def prepare(params: Mapping[str, Any], impl: str, where: Where) -> Prepared:
    """Return one pass ready to be timed."""
    if impl == "jax":
        return _jax(params, where)
    if impl == "torch":
        return _torch(params, where)
    if impl == "numpy":
        return _numpy(params)
    from mansard.measure.benchmarks.memory_native import prepare_native

    return prepare_native(params, where)


def host_arrays(mix: Mix, count: int, dtype: str) -> dict[str, Array]:
    """Return the inputs of a mix as numpy makes them: `a`, `b`, and `p` for random indices."""
    made = {name: inputs.random_input((count,), dtype, seed=seed) for seed, name in enumerate("ab"[: mix.reads])}
    if mix.indices:
        made["p"] = inputs.random_indices(count, count)
    return made


def facts_of(params: Mapping[str, Any], call: str, **more: Any) -> dict[str, Any]:
    """Return what a reader must know of a pass."""
    name, mix = mix_of(params)
    return {
        "call": call, "mix": name, "formula": mix.formula, "data": inputs.data_kind(params["dtype"]),
        "dtype": short_dtype(params["dtype"]), "page": PAGES, "store": "as the library or compiler chooses", **more,
    }  # fmt: skip


@dataclass(slots=True)
class Reference:
    """What a pass must give, in f64: sums as a whole, else at elements spread over the array. It is made once.

    Args:
        name: Mix.
        dtype: Element type.
        held: The inputs on their device, as they are before the first pass.
        count: Elements of each array.
        values: Turns a piece of a device's array into numpy.
    """

    name: str
    dtype: str
    held: Mapping[str, Any]
    count: int
    values: Callable[[Any], Array]
    at: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    want: Array = field(default_factory=lambda: np.zeros(0))
    unit: float = 1.0

    def __post_init__(self) -> None:
        self.at = inputs.spots(self.count, SPOTS)
        if self.name in ("read", "dot"):
            self._sum()
            return
        self.want = self._elements(self.at)
        if self.name == "scatter":
            self.at = self.values(self.held["p"][self.at]).astype(np.int64)

    def _sum(self) -> None:
        total = squares = 0.0
        for start in range(0, self.count, CHUNK):
            part = slice(start, min(self.count, start + CHUNK))
            terms = self.values(self.held["a"][part])
            if self.name == "dot":
                terms = terms * self.values(self.held["b"][part])
            total, squares = total + float(terms.sum()), squares + float((terms * terms).sum())
        self.want, self.unit = np.array([total]), max(squares**0.5, 1e-30)

    def _elements(self, at: Array) -> Array:
        if self.name == "write":
            return np.full(at.size, FACTOR)
        if self.name == "gather":
            return self.values(self.held["a"][self.values(self.held["p"][at]).astype(np.int64)])
        a = self.values(self.held["a"][at])
        if self.name in ("copy", "in_place", "scatter"):
            return a
        if self.name == "scale":
            return FACTOR * a
        return a + (FACTOR if self.name == "triad" else 1.0) * self.values(self.held["b"][at])

    def check(self, result: Any) -> Check:
        """Compare a result with what it must be."""
        if self.name in ("read", "dot"):
            # Sums are kept in f32 (f64 for f64); partial sums wander as the square root of their number.
            allowed = (1e-10 if self.dtype == "f64" else 1e-3) * self.unit
            wrong = abs(float(self.values(result)) - float(self.want[0])) / allowed
            return Check(
                error_ratio=wrong if np.isfinite(wrong) else float("inf"), against="the sum of all elements in f64"
            )
        against = f"the formula in f64 at {self.at.size} elements"
        return inputs.checked(self.values(result[self.at]), self.want, dtype=self.dtype, against=against)


def _jax(params: Mapping[str, Any], where: Where) -> Prepared:
    import jax

    from mansard.measure.points import with_jax

    name, mix = mix_of(params)
    dtype, count = short_dtype(params["dtype"]), int(params["size"])
    device = jax.devices()[int(params.get("device_id") or 0)]
    kind: Any = with_jax.jax_dtype(dtype)
    jnp: Any = jax.numpy
    held = {
        key: jax.block_until_ready(jax.device_put(x, device).astype(np.int32 if key == "p" else kind))
        for key, x in host_arrays(mix, count, dtype).items()
    }
    reference = Reference(name=name, dtype=dtype, held=held, count=count, values=with_jax.values)
    factor = jax.device_put(jnp.asarray(1.0 if name == "in_place" else FACTOR, kind), device)
    wide: Any = jnp.float64 if dtype == "f64" else jnp.float32
    zeros = with_jax.zeros((count,), dtype, device=device) if name == "scatter" else None
    calls: dict[str, tuple[Callable[..., Any], list[Any], tuple[str, ...]]] = {
        "copy": (lambda a: jnp.copy(a), ["a"], ("copy", "copy-start")),
        "scale": (lambda a, s: a * s, ["a", factor], ("multiply",)),
        "add": (lambda a, b: a + b, ["a", "b"], ("add",)),
        "triad": (lambda a, b, s: a + s * b, ["a", "b", factor], ("add",)),
        "read": (lambda a: jnp.sum(a, dtype=wide), ["a"], ("reduce",)),
        "write": (lambda s: jnp.broadcast_to(s, (count,)), [factor], ("broadcast",)),
        "in_place": (lambda a, s: a * s, ["a", factor], ("multiply",)),
        "dot": (lambda a, b: jnp.sum(a.astype(wide) * b.astype(wide)), ["a", "b"], ("reduce", "dot")),
        "gather": (lambda a, p: _at(a, p).get(**_INSIDE), ["a", "p"], ("gather", "dynamic-slice")),
        "scatter": (lambda c, a, p: _at(c, p).set(a, **_INSIDE), [zeros, "a", "p"], ("scatter", "dynamic-update-slice")),
    }  # fmt: skip
    function, order, operations = calls[name]
    donate = (0,) if name in ("in_place", "scatter") else ()
    arguments = [held[x] if isinstance(x, str) else x for x in order]
    call = with_jax.compiled(function, arguments, donate=donate, expected=operations)
    names = [x if isinstance(x, str) else "c" for x in order]
    return Prepared(
        run=call.run,
        verify=lambda: reference.check(call.result),
        count_by_compiler=call.counts,
        facts=facts_of(params, f"jitted {mix.formula}, result donated", device=str(device), platform=where.platform),
        compile_s=call.lower_s + call.compile_s,
        chain=call.chain if room_for_chain(float(work_of(params, "jax", where).demand.working_set), where) else None,
        operands=lambda: [o for o in call.operands(*names) if o.name != "p"],
    )


_INSIDE: dict[str, Any] = {"mode": "promise_in_bounds", "unique_indices": True, "wrap_negative_indices": False}


def _at(array: Any, indices: Any) -> Any:
    return array.at[indices]


def _torch(params: Mapping[str, Any], where: Where) -> Prepared:
    import torch

    from mansard.measure.points import with_torch

    name, mix = mix_of(params)
    dtype, count = short_dtype(params["dtype"]), int(params["size"])
    device = with_torch.device_of(where.platform, int(params.get("device_id") or 0))
    kind: Any = with_torch.torch_dtype(dtype)
    held = {
        key: torch.from_numpy(x)
        .to(device)
        .to(kind if key != "p" else getattr(torch, LONG_NAMES[index_dtype(name, "torch")]))
        for key, x in host_arrays(mix, count, dtype).items()
    }
    reference = Reference(name=name, dtype=dtype, held=held, count=count, values=with_torch.values)
    out = torch.zeros(1 if mix.reduces else count, dtype=kind, device=device)
    total = torch.zeros((), dtype=torch.float64 if dtype == "f64" else torch.float32, device=device)
    a, b, p = held.get("a"), held.get("b"), held.get("p")
    t: Any = torch
    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "copy": ("aten::copy_", lambda: out.copy_(a)),
        "scale": ("aten::mul", lambda: t.mul(a, FACTOR, out=out)),
        "add": ("aten::add", lambda: t.add(a, b, out=out)),
        "triad": ("aten::add", lambda: t.add(a, b, alpha=FACTOR, out=out)),
        "read": ("aten::sum", lambda: t.sum(a, dim=(0,), dtype=total.dtype, out=total)),
        "write": ("aten::fill_", lambda: out.fill_(FACTOR)),
        "in_place": ("aten::mul_", lambda: a.mul_(1.0)),  # type: ignore[union-attr]
        "dot": ("aten::dot", lambda: t.dot(a, b)),
        "gather": ("aten::index_select", lambda: t.index_select(a, 0, p, out=out)),
        "scatter": ("aten::index_copy_", lambda: out.index_copy_(0, p, a)),
    }
    operation, function = calls[name]
    call = with_torch.prepared(function, (), device=device, expected=(operation,))
    return Prepared(
        run=call.run,
        verify=lambda: reference.check(call.result),
        count_by_compiler=call.counts,
        facts=facts_of(params, f"{operation} into existing memory", device=str(device), platform=where.platform),
        operands=lambda: [
            *(with_torch.operand(x, key, "in_place" if name == "in_place" else "input") for key, x in held.items() if key != "p"),
            *([] if mix.reduces or name == "in_place" else [with_torch.operand(out, "c", "output")]),
        ],
    )  # fmt: skip


def _numpy(params: Mapping[str, Any]) -> Prepared:
    name, mix = mix_of(params)
    dtype, count = short_dtype(params["dtype"]), int(params["size"])
    kind: Any = inputs.numpy_dtype(dtype)
    held = {
        key: x.astype(LONG_NAMES[index_dtype(name, "numpy")] if key == "p" else kind, copy=False)
        for key, x in host_arrays(mix, count, dtype).items()
    }
    out = np.ones(count, kind)
    a, b, p = held.get("a", out), held.get("b", out), held.get("p", out)
    last: dict[str, Any] = {"result": a if name == "in_place" else out}
    factor = kind.type(FACTOR) if not inputs.is_integer(dtype) else kind.type(1)

    def total() -> None:
        last["result"] = a.sum()

    def product() -> None:
        last["result"] = np.dot(a, b)

    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "copy": ("numpy.copyto", lambda: np.copyto(out, a)),
        "scale": ("numpy.multiply(out=)", lambda: np.multiply(a, factor, out=out)),
        "add": ("numpy.add(out=)", lambda: np.add(a, b, out=out)),
        "read": ("numpy.sum", total),
        "write": ("ndarray.fill", lambda: out.fill(factor)),
        "in_place": ("numpy.multiply(out=)", lambda: np.multiply(a, kind.type(1.0), out=a)),
        "dot": ("numpy.dot", product),
        "gather": ("numpy.take(out=)", lambda: np.take(a, p, out=out, mode="clip")),
        "scatter": ("ndarray[indices] = ", lambda: out.__setitem__(p, a)),
    }
    text, function = calls[name]
    reference = Reference(name=name, dtype=dtype, held=held, count=count, values=inputs.widened)

    def run(times: int) -> None:
        for _ in range(times):
            function()

    run(1)
    written = [] if mix.reduces or name == "in_place" else [("c", "output", out)]
    read = [(k, "in_place" if name == "in_place" else "input", x) for k, x in held.items() if k != "p"]
    return Prepared(
        run=run,
        verify=lambda: reference.check(last["result"]),
        count_by_compiler=lambda: Unknown("NumPy calls a library; nothing is compiled here"),
        facts=facts_of(params, text),
        operands=lambda: [inputs.operand(x, key, role) for key, role, x in [*read, *written]],
    )
