"""Products of operands that are quantised to f8 on the way: one scale per row, per block of 128, or MX blocks of 32.

Inputs are bf16. The quantisation is inside the timed program and not in the FLOP. Where the published suite takes
blocks of the second operand along its columns, which no product can undo, these lie along k for both.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.measure.benchmarks.entry import Entry
from mansard.measure.benchmarks.gemm_calls import SPOTS, facts_of, room_for_chain
from mansard.measure.benchmarks.gemm_product import SEED, SHAPE, Product, excuse_of, executed_dtype, work_of
from mansard.measure.points import inputs
from mansard.measure.points.benchmark import Check, Params, Prepared, Waived, Where, Work

F8 = "f8_e4m3"
F8_MAX = 448.0  # the largest number of f8_e4m3
F8_EXPONENT = 8  # of the largest power of two in it
EXPONENT_BITS = 0x7F800000  # of an f32
STATIC_ABSMAX = 224.0  # what the suite assumes of its inputs where the scale is fixed
IMPLEMENTATIONS = {"jax": "jax"}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the operands are quantised.

    Args:
        block: Elements along k that share a scale; 0 for a whole row of A or column of B.
        power_of_two: Whether scales are powers of two in one byte (MX), else f32.
        static: Whether the scale is fixed instead of found from the data.
        dequantise: Whether the result is multiplied by the scales.
    """

    block: int = 0
    power_of_two: bool = False
    static: bool = False
    dequantise: bool = False

    def scale_bytes(self, m: int, k: int, n: int) -> float:
        """Return the bytes of the scales of both operands [B]; fixed ones are not stored.

        >>> Scheme().scale_bytes(2, 256, 3), Scheme(block=128).scale_bytes(2, 256, 3)
        (20.0, 40.0)
        >>> Scheme(block=32, power_of_two=True).scale_bytes(2, 256, 3)
        40.0
        """
        if self.static:
            return 0.0
        blocks = k // self.block if self.block else 1
        return float((m + n) * blocks * (1 if self.power_of_two else 4))


SCHEMES: dict[str, tuple[Scheme, str]] = {
    "gemm_fp8_rowwise": (Scheme(), "one f32 scale per row of A and column of B"),
    "gemm_fp8_b128_fp32": (Scheme(block=128), "one f32 scale per 128 elements along k"),
    "gemm_mxfp8_b32": (Scheme(block=32, power_of_two=True), "one power of two per 32 elements along k (MX)"),
}
SCHEMES |= {
    f"{name}_static_scaling": (dataclasses.replace(scheme, static=True), f"{text}, fixed")
    for name, (scheme, text) in SCHEMES.items()
}
SCHEMES["gemm_fp8_rowwise_w_dequantize"] = (
    Scheme(dequantise=True),
    "one f32 scale per row of A and column of B, applied to the result",
)


def factors_of(xp: Any, x: Any, scheme: Scheme) -> Any:
    """Return what every block along the last axis is multiplied by, 1 / scale, [..., blocks, 1].

    A factor and not a divisor: XLA divides by multiplying with the reciprocal, which breaks ties the other way.

    Args:
        xp: numpy or jax.numpy.
        x: Values in f32, in blocks [..., blocks, block].
        scheme: How.
    """
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    if scheme.power_of_two:
        below = (largest.view(xp.int32) & xp.int32(EXPONENT_BITS)).view(xp.float32)  # the power of two below, exactly
        return xp.float32(2.0**F8_EXPONENT) / below
    return xp.float32(F8_MAX) / largest


def clipped(xp: Any, x: Any) -> Any:
    """Return values within the range of f8: what is beyond becomes its largest number, not NaN."""
    return xp.clip(x, xp.float32(-F8_MAX), xp.float32(F8_MAX))


def in_blocks(x: Any, block: int) -> Any:
    """Return the last axis in blocks; all of it is one block for 0."""
    return x.reshape(*x.shape[:-1], -1, block or x.shape[-1])


def _product(params: Params) -> Product:
    return Product(m=int(params["m"]), k=int(params["k"]), n=int(params["n"]), dtype=F8, out="bf16", accumulate="f32")


def _work(scheme: Scheme, params: Params, where: Where) -> Work:
    p = _product(params)
    base = work_of(p, "jax", where)
    more = (p.m * p.k + p.k * p.n) * 1.0 + scheme.scale_bytes(p.m, p.k, p.n)  # bf16 comes in, one byte more than f8
    demand = dataclasses.replace(base.demand, read_bytes=base.demand.read_bytes + more)
    text = "2mkn; bf16 operands and the scales are read once, the quantisation is not in the FLOP"
    return dataclasses.replace(base, demand=demand, convention=text, compiler_flop=None)


def _excuse(scheme: Scheme, params: Params, where: Where) -> Waived | None:
    if scheme.block and int(params["k"]) % scheme.block:
        reason = f"k = {params['k']} is no multiple of the {scheme.block} elements that share a scale"
        return Waived(reason=reason, missing="implementation")
    p = _product(params)
    return excuse_of(dataclasses.replace(p, dtype="f32"), "jax", where)  # quantised and widened copies exist meanwhile


def _prepare(name: str, scheme: Scheme, params: Params, where: Where) -> Prepared:
    import jax

    from mansard.measure.points import with_jax

    jnp: Any = jax.numpy
    p = _product(params)
    seed = int(params.get("seed") or 0)
    a = with_jax.array((p.m, p.k), "bf16", seed=seed)
    b = with_jax.array((p.k, p.n), "bf16", seed=seed + 1)
    kind: Any = with_jax.jax_dtype(F8)
    fixed = jnp.float32(F8_MAX / STATIC_ABSMAX)

    def quantised(x: Any, factor: Any) -> tuple[Any, Any]:
        parts = in_blocks(x.astype(jnp.float32), scheme.block)
        used = factor if scheme.static else factors_of(jnp, parts, scheme)
        # The barrier keeps XLA from dropping the rounding to f8 between two conversions.
        return jax.lax.optimization_barrier(clipped(jnp, parts * used).reshape(x.shape).astype(kind)), used

    def product(x: Any, y: Any, factor: Any) -> Any:
        left, fa = quantised(x, factor)
        right, fb = quantised(y.T, factor)
        c: Any = jax.lax.dot_general(left, right, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        if scheme.dequantise:
            c = c / (fa.reshape(-1, 1) * fb.reshape(1, -1))
        return c.astype(jnp.bfloat16)

    call = with_jax.compiled(
        product, [a, b, fixed], expected=("dot", "dot-general", "__cublas$lt$matmul$f8", "convolution")
    )
    facts = facts_of(
        p, name, computed_in=executed_dtype(p, "jax", where), scheme=SCHEMES[name][1],
        result="rescaled" if scheme.dequantise else "in units of the scales, as the published suite leaves it",
    )  # fmt: skip
    return Prepared(
        run=call.run,
        verify=lambda: _verified(p, scheme, a, b, call.result),
        count_by_compiler=call.counts,
        facts=facts,
        compile_s=call.lower_s + call.compile_s,
        chain=call.chain if room_for_chain(8.0 * p.needed_bytes, where) else None,  # f32 copies exist meanwhile
        operands=lambda: call.operands("a", "b"),
    )


def _verified(p: Product, scheme: Scheme, a: Any, b: Any, result: Any) -> Check:
    from mansard.measure.points import with_jax

    rows, columns = inputs.spots(p.m, SPOTS), inputs.spots(p.n, SPOTS)
    left, fa = reference_quantised(with_jax.values(a[rows, :]), scheme)
    right, fb = reference_quantised(with_jax.values(b[:, columns]).T, scheme)
    want = left @ right.T
    if scheme.dequantise:
        want = want / (fa.reshape(-1, 1) * fb.reshape(1, -1))
    got = with_jax.values(result[rows, :])[:, columns]
    return inputs.checked(
        got,
        want,
        dtype="bf16",
        products=p.k,
        against=f"operands quantised by numpy, product in f64, at {got.size} elements",
    )


def reference_quantised(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """Return rows as f8 holds them, in f64, and the factors they were multiplied by.

    Args:
        x: Rows along k [rows, k].
        scheme: How they are quantised.
    """
    parts = in_blocks(x.astype(np.float32), scheme.block)
    factor = np.float32(F8_MAX / STATIC_ABSMAX) if scheme.static else factors_of(np, parts, scheme)
    return inputs.rounded(clipped(np, parts * factor).reshape(x.shape), F8).astype(np.float64), np.asarray(
        factor, np.float64
    )


def _entry(name: str, scheme: Scheme, text: str) -> Entry:
    return Entry(
        name=name,
        area="compute",
        parameters=(*SHAPE, SEED),
        implementations=IMPLEMENTATIONS,
        summary=f"product of bf16 quantised to f8 on the way: {text}",
        count=lambda params, where: _work(scheme, params, where),
        make=lambda params, _impl, where: _prepare(name, scheme, params, where),
        excuse=lambda params, _impl, where: _excuse(scheme, params, where),
    )


BENCHMARKS = tuple(_entry(name, scheme, text) for name, (scheme, text) in SCHEMES.items())
