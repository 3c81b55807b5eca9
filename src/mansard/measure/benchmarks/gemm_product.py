"""One general matrix product: what is asked for, what it must consume, and when it cannot run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Demand, short_dtype
from mansard.core.units import format_flop_per_s
from mansard.measure.benchmarks.entry import missing_memory
from mansard.measure.points.benchmark import Parameter, Waived, Where, Work
from mansard.measure.points.inputs import is_integer
from mansard.operators.counting import matrix_work
from mansard.operators.matmul import matmul

#: Implementations and their backends, the default first.
IMPLEMENTATIONS: Mapping[str, str] = {
    "jax": "jax", "torch": "torch", "numpy": "numpy", "native": "native", "naive": "native",
}  # fmt: skip
SLOW_FLOP_PER_S = {
    # Rates of paths that no one would choose, so that a single call cannot take minutes unasked.
    "naive": 1.0e9,  # one dot product after the other, one thread, no vectors
    "torch f16": 3.0e8,  # PyTorch 2.13 on a CPU without f16 instructions: 45 s for one product of 2048
    "numpy other": 1.0e9,  # types for which NumPy has no BLAS
}
LONGEST_CALL_S = 30.0
NARROW = ("f8_e4m3", "f8_e5m2", "f4_e2m1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """C' = alpha (A B) [* sa sb] + beta C, `batch` times.

    Args:
        m, k, n, batch: A is (m, k), B is (k, n), C is (m, n).
        dtype, out, accumulate: Types of A and B, of the result (and of C), and of the sums.
        transpose_a, transpose_b: Whether the operand lies in memory the other way round.
        alpha, beta: Factors; numbers at run time, so that 1 and 0 cannot be simplified away once they are asked for.
        scales: Whether the result is multiplied by one f32 for each row and one for each column.
    """

    m: int
    k: int
    n: int
    batch: int = 1
    dtype: str = "f32"
    out: str = "f32"
    accumulate: str = "f32"
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    scales: bool = False

    @property
    def shape_a(self) -> tuple[int, ...]:
        """Shape of A as it lies in memory."""
        return self._shape(self.k, self.m) if self.transpose_a else self._shape(self.m, self.k)

    @property
    def shape_b(self) -> tuple[int, ...]:
        """Shape of B as it lies in memory."""
        return self._shape(self.n, self.k) if self.transpose_b else self._shape(self.k, self.n)

    @property
    def shape_c(self) -> tuple[int, ...]:
        """Shape of C and of the result."""
        return self._shape(self.m, self.n)

    def _shape(self, rows: int, columns: int) -> tuple[int, ...]:
        return (rows, columns) if self.batch == 1 else (self.batch, rows, columns)

    @property
    def plain(self) -> bool:
        """Whether it is a product and nothing else."""
        return self.alpha == 1.0 and self.beta == 0.0 and not self.scales

    @property
    def flop(self) -> float:
        """Matrix work, 2 m n k batch [FLOP]."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def epilogue_flop(self) -> float:
        """Other arithmetic: 2 mn for scales, mn for alpha, mn for beta = 1 and 2 mn for any other beta [FLOP].

        >>> Product(m=2, k=1, n=3, alpha=2.0, beta=0.5, scales=True).epilogue_flop
        30.0
        """
        results = float(self.m) * self.n * self.batch
        times = (
            2.0 * self.scales + (self.alpha != 1.0) + (0.0 if self.beta == 0.0 else 1.0 if self.beta == 1.0 else 2.0)
        )
        return results * times

    @property
    def needed_bytes(self) -> float:
        """All arrays together [B]."""
        return float(demand_of(self).bytes)

    def describe(self) -> dict[str, Any]:
        """Return what a reader must know of the layout and the types."""
        return {
            "a": f"{self.dtype}{list(self.shape_a)}", "b": f"{self.dtype}{list(self.shape_b)}",
            "result": f"{self.out}{list(self.shape_c)}", "accumulate": self.accumulate, "layout": "row-major",
        }  # fmt: skip


def default_accumulate(dtype: str) -> str:
    """Return the type sums of products of `dtype` are kept in.

    >>> default_accumulate("bf16"), default_accumulate("i8"), default_accumulate("f64")
    ('f32', 'i32', 'f64')
    """
    return next(iter(matrix_work(1.0, dtype)))[1]


def product_of(params: Mapping[str, Any], **fixed: Any) -> Product:
    """Return the product that parameters describe.

    Args:
        params: m, k, n, and where the benchmark has them in_dtype, out_dtype, accumulate, transpose_a, transpose_b,
            alpha, beta, use_scaling_factors, batch.
        fixed: Fields of `Product` that the benchmark itself decides.
    """
    dtype = short_dtype(fixed.pop("dtype", None) or params["in_dtype"])
    out = fixed.pop("out", None) or params.get("out_dtype")
    known: dict[str, Any] = {
        "m": int(params["m"]), "k": int(params["k"]), "n": int(params["n"]), "batch": int(params.get("batch") or 1),
        "dtype": dtype, "accumulate": short_dtype(params.get("accumulate") or default_accumulate(dtype)),
        "transpose_a": bool(params.get("transpose_a", False)), "transpose_b": bool(params.get("transpose_b", False)),
        "alpha": float(params.get("alpha", 1.0)), "beta": float(params.get("beta", 0.0)),
        "scales": bool(params.get("use_scaling_factors", False)),
    }  # fmt: skip
    known["out"] = short_dtype(out) if out else (known["accumulate"] if is_integer(dtype) else dtype)
    return Product(**{**known, **fixed})


def demand_of(p: Product) -> Demand:
    """Return what a product must consume.

    Source: `operators.matmul`; the epilogue by the conventions of Product.epilogue_flop.

    2*4*5*6 = 240 FLOP; (24 + 30) * 2 B and 20 * 4 B of C read, 20 * 4 B written:

    >>> d = demand_of(Product(m=4, k=6, n=5, dtype="bf16", out="f32", beta=1.0))
    >>> d.total_flop, d.read_bytes, d.write_bytes, d.vector_flop
    (240.0, 188.0, 80.0, {'f32': 20.0})
    """
    results = float(p.m) * p.n * p.batch
    base = matmul(
        m=p.m, n=p.n, k=p.k, batch=p.batch, dtype=p.dtype, dtype_out=p.out, accumulate=p.accumulate,
        addend=(results, p.out) if p.beta != 0.0 else None,
        scale_elements=((p.m + p.n) * p.batch, "f32") if p.scales else None,
    )  # fmt: skip
    epilogue = p.epilogue_flop
    kind = "f64" if p.accumulate == "f64" else "f32"
    return dataclasses.replace(base, vector_flop={kind: epilogue} if epilogue and not is_integer(p.accumulate) else {})


def executed_dtype(p: Product, impl: str, where: Where) -> str:
    """Return the type the matrix work is really done in: XLA on a CPU converts f8 and f16 to f32 before the dot.

    Source: the optimised HLO of JAX 0.10.2, read by `with_jax.matrix_dtypes`; every point is checked against its own.
    """
    widened = impl == "jax" and where.platform == "cpu" and p.dtype in (*NARROW, "f16")
    return "f32" if widened else p.dtype


def work_of(p: Product, impl: str, where: Where) -> Work:
    """Return the work of a product for the judgement of a point."""
    executed = executed_dtype(p, impl, where)
    convention = "2mnk; the epilogue (alpha, beta, scales) is vector work and apart; each operand moved once"
    if executed != p.dtype:
        convention += f"; {p.dtype} is computed in {executed} here, which is not what its name says"
    if p.dtype in ("f32", "f64") and p.out not in (p.dtype, "f64"):
        convention += f"; operands are {p.dtype}, the result is rounded to {p.out} (out_dtype)"
    return Work(
        demand=demand_of(p), headline="flop", peak=(p.dtype, p.accumulate, "matrix"), convention=convention,
        compiler_flop=compiler_flop(p, impl, executed),
    )  # fmt: skip


def compiler_flop(p: Product, impl: str, executed: str) -> float:
    """Return what a compiler should count for a product [FLOP].

    PyTorch counts the product alone. XLA adds the epilogue, and one FLOP for each element it converts: operands that are
    computed in another type, a result and a C that differ from the sums.

    >>> compiler_flop(Product(m=2, k=4, n=3, dtype="bf16", out="bf16"), "jax", "bf16")
    54.0
    """
    if impl != "jax":
        return p.flop
    converted = float(p.m * p.k + p.k * p.n) * p.batch * (executed != p.dtype)
    converted += float(p.m * p.n) * p.batch * (p.out != p.accumulate) * (1 + (p.beta != 0.0))
    return p.flop + p.epilogue_flop + converted


def excuse_of(p: Product, impl: str, where: Where) -> Waived | None:
    """Return why a product cannot run here, or None."""
    # The result of the check, a copy of C and what a runtime keeps: a quarter more than the operands.
    short = missing_memory(1.25 * p.needed_bytes, f"a product of {p.m} x {p.k} x {p.n} in {p.dtype}", where)
    return short or _missing_dtype(p, impl, where) or _too_slow(p, impl, where)


def _missing_dtype(p: Product, impl: str, where: Where) -> Waived | None:
    def waive(reason: str) -> Waived:
        return Waived(reason=reason, missing="dtype")

    mixed = p.out != p.dtype and not (p.dtype == "i8" and p.out == "i32")
    if impl == "jax" and where.platform != "tpu" and p.dtype in ("f4_e2m1", "i4", "u4"):
        return waive(f"XLA has no {p.dtype} product on a {where.platform.upper()}; a TPU or newer GPU path is needed")
    if p.dtype == "tf32" and where.platform != "gpu":
        return waive("tf32 is a mode of GPU matrix units; there is none here")
    if impl == "torch":
        if where.platform == "cpu" and p.dtype in NARROW:
            return waive(f"PyTorch has no matrix product of {p.dtype} on a CPU")
        if where.platform == "cpu" and (mixed or (is_integer(p.dtype) and p.dtype != "i8")):
            return waive(f"PyTorch on a CPU has no product of {p.dtype} with a result in {p.out}")
        if p.dtype == "i8" and (not p.plain or p.batch > 1 or p.transpose_a):
            return waive("torch._int_mm is a plain product")
        if p.dtype in NARROW and (p.batch > 1 or p.alpha != 1.0 or p.beta != 0.0 or p.transpose_a):
            return waive("torch._scaled_mm has neither batch nor alpha nor beta, and wants A by rows")
    if impl in ("numpy", "native", "naive") and (p.dtype not in ("f32", "f64") or p.out != p.dtype):
        return waive(f"{impl} multiplies f32 and f64, with the result in the same type; not {p.dtype} to {p.out}")
    if impl in ("native", "naive") and (not p.plain or p.batch > 1 or p.transpose_a or p.transpose_b):
        return waive(f"{impl} is a plain product of two row-major matrices")
    return None


def _too_slow(p: Product, impl: str, where: Where) -> Waived | None:
    path = "naive" if impl == "naive" else "torch f16" if impl == "torch" and p.dtype == "f16" else ""
    if not path or where.platform != "cpu":
        return None
    expected_s = p.flop / SLOW_FLOP_PER_S[path]
    if expected_s <= LONGEST_CALL_S:
        return None
    return Waived(
        reason=f"one call would take about {expected_s:.0f} s at the {format_flop_per_s(SLOW_FLOP_PER_S[path])} of this "
        f"path ({path})",
        missing="time",
    )  # fmt: skip


SHAPE = (
    Parameter(name="m", kind="int", default=1024, minimum=1, text="rows of A and of the result"),
    Parameter(name="k", kind="int", default=1024, minimum=1, text="columns of A, rows of B"),
    Parameter(name="n", kind="int", default=1024, minimum=1, text="columns of B and of the result"),
)


def types(in_dtype: str, out_dtype: str | None) -> tuple[Parameter, ...]:
    """Return the parameters of the element types with their defaults."""
    return (
        Parameter(name="in_dtype", kind="dtype", default=in_dtype, aliases=("in_dtype_str",), text="type of A and B"),
        Parameter(
            name="out_dtype", kind="dtype", default=out_dtype, aliases=("out_dtype_str",),
            text="type of the result and of C; empty: as in_dtype",
        ),
        Parameter(
            name="accumulate", kind="dtype", default=None, text="type of the sums; empty: f32, i32 or f64 as is usual"
        ),
    )  # fmt: skip


SEED = Parameter(name="seed", kind="int", default=0, minimum=0, text="seed of the random inputs")
