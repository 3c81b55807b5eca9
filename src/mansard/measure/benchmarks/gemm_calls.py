"""A general matrix product through JAX, PyTorch, NumPy, our own blocked kernel, and the loop nobody should write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.measure.benchmarks.entry import MEMORY_SHARE
from mansard.measure.benchmarks.gemm_product import NARROW, Product, executed_dtype
from mansard.measure.points import inputs
from mansard.measure.points.benchmark import Check, Operand, Prepared, Where

Array = npt.NDArray[Any]
Pick = Callable[[Array, Array], Array]

SPOTS = 8  # rows and columns of the result that are checked, of which every crossing
REFERENCE = "the product in f64 of the same rounded inputs, at {count} elements"


def verified(p: Product, operands: Mapping[str, Any], result: Any, values: Callable[[Any], Array]) -> Check:
    """Compare the crossings of some rows and columns of a result with the product in f64.

    Args:
        p: The product.
        operands: `a`, `b` as they lie in memory, and where there are `c`, `sa`, `sb`, on their device.
        result: The result, on its device.
        values: Turns a piece of a device's array into numpy.
    """
    rows, columns = inputs.spots(p.m, SPOTS), inputs.spots(p.n, SPOTS)
    lanes = [()] if p.batch == 1 else [(int(i),) for i in inputs.spots(p.batch, 3)]
    worst, count = 0.0, 0
    for lane in lanes:
        a, b = operands["a"][lane], operands["b"][lane]
        left = values(a[:, rows]).T if p.transpose_a else values(a[rows, :])
        right = values(b[columns, :]).T if p.transpose_b else values(b[:, columns])
        want = p.alpha * (left @ right)
        if p.scales:
            want = want * values(operands["sa"][lane])[rows].reshape(-1, 1) * values(operands["sb"][lane])[columns]
        if p.beta != 0.0:
            want = want + p.beta * values(operands["c"][lane][rows, :])[:, columns]
        got = values(result[lane][rows, :])[:, columns]
        found = inputs.checked(got, want, dtype=inputs.least_precise(p.accumulate, p.out), against="", products=p.k)
        worst, count = max(worst, found.error_ratio), count + want.size
    return Check(error_ratio=worst, against=REFERENCE.format(count=count))


def host_inputs(p: Product, seed: int) -> dict[str, Array]:
    """Return the operands as numpy holds them before they are rounded to their type: random, scales around 1."""
    lead = () if p.batch == 1 else (p.batch,)
    made: dict[str, Array] = {
        "a": inputs.random_input(p.shape_a, p.dtype, seed=seed), "b": inputs.random_input(p.shape_b, p.dtype, seed=seed + 1),
    }  # fmt: skip
    if p.beta != 0.0:
        made["c"] = inputs.random_input(p.shape_c, p.out, seed=seed + 2)
    if p.scales:
        made["sa"] = 1.0 + 0.1 * inputs.random_input((*lead, p.m), "f32", seed=seed + 3)
        made["sb"] = 1.0 + 0.1 * inputs.random_input((*lead, p.n), "f32", seed=seed + 4)
    return made


def prepare(p: Product, impl: str, where: Where, seed: int = 0) -> Prepared:
    """Return a product ready to be timed.

    Args:
        p: The product.
        impl: One of `gemm_product.IMPLEMENTATIONS`.
        where: Device it runs on.
        seed: Seed of the inputs.
    """
    if impl in _BY_LIBRARY:
        return _BY_LIBRARY[impl](p, where, seed)[0]
    from mansard.measure.benchmarks.gemm_native import prepare_native

    return prepare_native(p, impl, where, seed)


def prepare_renewed(p: Product, impl: str, where: Where, seed: int = 0) -> tuple[Prepared, Callable[[], None]]:
    """Return a product of a library, and what gives it new random operands, on the device, before the next call."""
    return _BY_LIBRARY[impl](p, where, seed)


def room_for_chain(needed_bytes: float, where: Where) -> bool:
    """Return whether a device holds the arrays twice: a chain works on copies of its operands.

    >>> room_for_chain(6e9, Where(backend="jax", platform="cpu", memory_bytes=16e9))
    False
    """
    return where.memory_bytes is None or 2.0 * needed_bytes <= MEMORY_SHARE * 0.8 * where.memory_bytes


def facts_of(p: Product, call: str, **more: Any) -> dict[str, Any]:
    """Return what a reader must know of a product."""
    return {"call": call, "data": inputs.data_kind(p.dtype), **p.describe(), **more}


def _jax(p: Product, where: Where, seed: int) -> tuple[Prepared, Callable[[], None]]:
    import jax

    from mansard.measure.points import with_jax

    names = {"a": p.dtype, "b": p.dtype, "c": p.out, "sa": "f32", "sb": "f32"}
    held = {
        key: jax.block_until_ready(jax.device_put(x).astype(with_jax.jax_dtype(names[key])))
        for key, x in host_inputs(p, seed).items()
    }
    wide: Any = with_jax.jax_dtype(p.accumulate)
    out: Any = with_jax.jax_dtype(p.out)
    factors = {}
    if p.alpha != 1.0:
        factors["alpha"] = jax.numpy.asarray(p.alpha, wide)
    if p.beta != 0.0:
        factors["beta"] = jax.numpy.asarray(p.beta, wide)
    arguments = {**held, **factors}
    precision = "default" if p.dtype == "tf32" else "highest"
    lead = tuple(range(p.batch > 1))
    contract = ((len(lead) + (0 if p.transpose_a else 1),), (len(lead) + (1 if p.transpose_b else 0),))

    def product(*given: Any) -> Any:
        x = dict(zip(arguments, given, strict=True))
        c: Any = jax.lax.dot_general(
            x["a"], x["b"], (contract, (lead, lead)), precision=precision, preferred_element_type=wide
        )
        if "sa" in x:
            c = c * (x["sa"][..., :, None].astype(wide) * x["sb"][..., None, :].astype(wide))
        if "alpha" in x:
            c = c * x["alpha"]
        if "c" in x:
            c = c + (x["c"].astype(wide) if p.beta == 1.0 else x["beta"] * x["c"].astype(wide))
        return c.astype(out)

    call = with_jax.compiled(
        product, list(arguments.values()), expected=("dot", "dot-general", "__cublas$gemm", "__cublas$lt$matmul",
                                                     "__cublas$lt$matmul$f8", "__onednn$matmul", "convolution"),
    )  # fmt: skip
    key = [jax.random.key(seed)]
    jit: Any = jax.jit
    draw = jit(lambda k, like: jax.random.normal(k, like.shape, jax.numpy.float32).astype(like.dtype))

    def renew() -> None:
        for position, name in enumerate("ab"):
            key[0], one = jax.random.split(key[0])
            held[name] = call.inputs[position] = jax.block_until_ready(draw(one, held[name]))

    executed = executed_dtype(p, "jax", where)
    text = f"jax.lax.dot_general(preferred_element_type={p.accumulate}, precision={precision}), result donated"
    prepared = Prepared(
        run=call.run,
        verify=lambda: verified(p, held, call.result, with_jax.values),
        count_by_compiler=call.counts,
        facts=facts_of(p, text, precision=precision, computed_in=executed),
        compile_s=call.lower_s + call.compile_s,
        chain=call.chain if room_for_chain(p.needed_bytes, where) else None,
        operands=lambda: call.operands(*arguments),
    )
    return prepared, renew


def _torch(p: Product, where: Where, seed: int) -> tuple[Prepared, Callable[[], None]]:
    import torch

    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)
    exact = p.dtype != "tf32"
    torch.backends.cuda.matmul.allow_tf32 = not exact
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    names = {"a": p.dtype, "b": p.dtype, "c": p.out, "sa": "f32", "sb": "f32"}
    kinds = {key: torch.float32 if name == "tf32" else with_torch.torch_dtype(name) for key, name in names.items()}
    held = {
        key: torch.from_numpy(np.ascontiguousarray(x)).to(device).to(kinds[key])
        for key, x in host_inputs(p, seed).items()
    }
    if p.dtype in NARROW and not p.transpose_b:  # torch._scaled_mm wants B by columns, as the matrix units do
        held["b"] = held["b"].t().contiguous().t()
    out = torch.empty(p.shape_c, dtype=kinds["c"], device=device)
    text, function = _torch_call(p, held, out)
    call = with_torch.prepared(function, (), device=device, expected=_TORCH_OPERATIONS)
    prepared = Prepared(
        run=call.run,
        verify=lambda: verified(p, held, call.result, with_torch.values),
        count_by_compiler=call.counts,
        facts=facts_of(p, text, precision="tf32" if not exact else "highest", computed_in=p.dtype),
        operands=lambda: [
            *(with_torch.operand(x, key, "input") for key, x in held.items()),
            with_torch.operand(out, "result", "output"),
        ],
    )

    def renew() -> None:
        for name in "ab":
            held[name].copy_(torch.randn(held[name].shape, device=device))

    return prepared, renew


_TORCH_OPERATIONS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_int_mm", "aten::_scaled_mm", "aten::matmul",
)  # fmt: skip


def _torch_call(p: Product, held: Mapping[str, Any], out: Any) -> tuple[str, Callable[[], Any]]:
    """Return the call in words and as a function that writes into `out`."""
    import torch

    a = held["a"].mT if p.transpose_a else held["a"]
    b = held["b"].mT if p.transpose_b else held["b"]
    if p.dtype == "i8":
        return "torch._int_mm(out=)", lambda: torch._int_mm(a, b, out=out)
    if p.dtype in NARROW:
        one = torch.ones((), device=out.device)
        sa = held["sa"].reshape(-1, 1) if p.scales else one
        sb = held["sb"].reshape(1, -1) if p.scales else one
        scaled: Any = torch._scaled_mm
        return "torch._scaled_mm(out=)", lambda: scaled(a, b, scale_a=sa, scale_b=sb, out_dtype=out.dtype, out=out)
    add = torch.addmm if p.batch == 1 else torch.baddbmm
    plain = torch.mm if p.batch == 1 else torch.bmm
    if p.beta != 0.0 and not p.scales:
        c = held["c"]
        return f"torch.{add.__name__}(out=)", lambda: add(c, a, b, beta=p.beta, alpha=p.alpha, out=out)
    if p.alpha != 1.0 and not p.scales:
        return f"torch.{add.__name__}(beta=0, out=)", lambda: add(out, a, b, beta=0.0, alpha=p.alpha, out=out)
    if not p.scales:
        return f"torch.{plain.__name__}(out=)", lambda: plain(a, b, out=out)
    sa, sb = held["sa"].unsqueeze(-1).to(out.dtype), held["sb"].unsqueeze(-2).to(out.dtype)

    def scaled_by_hand() -> Any:
        plain(a, b, out=out)
        out.mul_(sa).mul_(sb)
        if p.alpha != 1.0:
            out.mul_(p.alpha)
        return out.add_(held["c"], alpha=p.beta) if p.beta != 0.0 else out

    return f"torch.{plain.__name__}(out=), scaled in place", scaled_by_hand


def _numpy(p: Product, _where: Where, seed: int) -> tuple[Prepared, Callable[[], None]]:
    held = host_inputs(p, seed)
    kind: Any = inputs.numpy_dtype(p.out)
    a = held["a"].swapaxes(-1, -2) if p.transpose_a else held["a"]
    b = held["b"].swapaxes(-1, -2) if p.transpose_b else held["b"]
    out = np.zeros(p.shape_c, kind)
    spare = np.zeros_like(out) if p.beta not in (0.0, 1.0) else out
    alpha, beta = kind.type(p.alpha), kind.type(p.beta)
    rows = held["sa"][..., :, None].astype(kind) if p.scales else None
    columns = held["sb"][..., None, :].astype(kind) if p.scales else None

    def once() -> None:
        np.matmul(a, b, out=out)
        if rows is not None and columns is not None:
            np.multiply(out, rows, out=out)
            np.multiply(out, columns, out=out)
        if p.alpha != 1.0:
            np.multiply(out, alpha, out=out)
        if p.beta == 1.0:
            np.add(out, held["c"], out=out)
        elif p.beta != 0.0:
            np.multiply(held["c"], beta, out=spare)
            np.add(out, spare, out=out)

    def run(count: int) -> None:
        for _ in range(count):
            once()

    prepared = Prepared(
        run=run,
        verify=lambda: verified(p, held, out, inputs.widened),
        count_by_compiler=lambda: Unknown("NumPy calls a library; nothing is compiled here"),
        facts=facts_of(p, "numpy.matmul(out=)", computed_in=p.dtype),
        operands=lambda: numpy_operands(held, out),
    )
    rng = np.random.default_rng(seed)

    def renew() -> None:
        for name in "ab":
            held[name][...] = rng.standard_normal(held[name].shape, dtype=held[name].dtype)

    return prepared, renew


_BY_LIBRARY: dict[str, Callable[[Product, Where, int], tuple[Prepared, Callable[[], None]]]] = {
    "jax": _jax, "torch": _torch, "numpy": _numpy,
}  # fmt: skip


def numpy_operands(held: Mapping[str, Array], out: Array) -> Sequence[Operand]:
    """Return arrays of numpy for the audit."""
    return [*(inputs.operand(x, key, "input") for key, x in held.items()), inputs.operand(out, "result", "output")]
