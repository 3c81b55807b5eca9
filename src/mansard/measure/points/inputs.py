"""Inputs of a benchmark and the reference its results are compared with.

Inputs are random normal numbers (whole numbers for integer types): constants draw less power, can be folded by a
compiler, and hide wrong results. They are made by numpy in f32 or f64, so that every backend gets the same numbers,
and become the element type asked for in the backend (`with_jax.array`, `with_torch.tensor`, `rounded`).
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import short_dtype
from mansard.core.errors import UsageError
from mansard.measure.points.benchmark import Check, Operand

DATA_KIND = "random normal"
DATA_KIND_INTEGER = "random whole numbers from -64 to 63"

# Largest error of a sum of products accepted, in units of the root mean square of the result: unit round-off of the type
# that carries the least, with room for the order of the summation. TF32 or bf16 inside an "f32" product is 100 x larger.
PRODUCT_TOLERANCE: dict[str, float] = {
    "f64": 1e-12, "f32": 2e-5, "tf32": 3e-3, "f16": 3e-3, "bf16": 2e-2, "f8_e4m3": 1.5e-1, "f8_e5m2": 3e-1,
    "f4_e2m1": 6e-1,
}  # fmt: skip
# Largest relative error accepted of one rounding to a type, with room for a few operations on it.
ELEMENT_TOLERANCE: dict[str, float] = {
    "f64": 1e-12, "f32": 4e-6, "tf32": 2e-3, "f16": 4e-3, "bf16": 3e-2, "f8_e4m3": 1.5e-1, "f8_e5m2": 3e-1,
    "f4_e2m1": 6e-1,
}  # fmt: skip
INTEGERS = ("i64", "i32", "i16", "i8", "i4", "u64", "u32", "u16", "u8", "u4")
LEAST_CHECKED = 64  # elements of a result that are compared, at least

# Long names as numpy and ml_dtypes have them.
LONG_NAMES: dict[str, str] = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2", "f4_e2m1": "float4_e2m1fn", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "i4": "int4", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4", "bool": "bool",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip


def is_integer(dtype: str) -> bool:
    """Return whether a type holds whole numbers.

    >>> is_integer("int8"), is_integer("bf16")
    (True, False)
    """
    return short_dtype(dtype) in INTEGERS


def data_kind(dtype: str) -> str:
    """Return what `random_input` makes for a type, in words."""
    return DATA_KIND_INTEGER if is_integer(dtype) else DATA_KIND


def random_input(shape: tuple[int, ...], dtype: str = "f32", *, seed: int = 0, scale: float = 1.0) -> npt.NDArray[Any]:
    """Return random numbers in a type numpy has: f64 for f64, whole numbers for integers, else f32 [shape].

    Args:
        shape: Shape of the array.
        dtype: Element type that the backend will round it to.
        seed: Seed; different operands take different seeds.
        scale: Standard deviation of the numbers, for floating types.

    Assumes: values beyond +-6 standard deviations do not occur in practice, so no usual type overflows at scale 1.
    """
    short = short_dtype(dtype)
    rng = np.random.default_rng([7, seed])
    if short in INTEGERS:
        low, high = (
            (-8, 8) if short == "i4" else (0, 16) if short == "u4" else (0, 64) if short[0] == "u" else (-64, 64)
        )
        kind: Any = np.int8 if short == "i4" else np.uint8 if short == "u4" else LONG_NAMES[short]
        return rng.integers(low, high, shape, dtype=kind)
    wide: Any = np.float64 if short == "f64" else np.float32
    values: npt.NDArray[Any] = rng.standard_normal(shape, dtype=wide)
    if scale != 1.0:
        values *= wide(scale)
    return values


def random_indices(count: int, below: int, *, seed: int = 0, distinct: bool = True) -> npt.NDArray[np.int32]:
    """Return random indices [count]; distinct ones are a part of a random permutation of `range(below)`.

    Args:
        count: How many.
        below: Size of the table they point into.
        seed: Seed.
        distinct: Whether none may come twice; needs `count <= below`.
    """
    rng = np.random.default_rng([11, seed])
    if not distinct:
        return rng.integers(0, below, count, dtype=np.int32)
    if count > below:
        raise UsageError(f"{count} distinct indices do not exist below {below}")
    return rng.permutation(below)[:count].astype(np.int32)


def numpy_dtype(dtype: str) -> Any:
    """Return numpy's type, or that of ml_dtypes for the types numpy does not have.

    Raises:
        UsageError: neither has it here.
    """
    name = LONG_NAMES.get(short_dtype(dtype), "")
    if hasattr(np, name):
        return np.dtype(name)
    if importlib.util.find_spec("ml_dtypes") is None:
        raise UsageError(f"numpy has no {dtype}", hint="install ml_dtypes, which comes with JAX")
    import ml_dtypes

    if not hasattr(ml_dtypes, name):
        raise UsageError(f"neither numpy nor ml_dtypes {ml_dtypes.__version__} has {dtype}")
    return np.dtype(getattr(ml_dtypes, name))


def rounded(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return the values in the type asked for, as numpy holds it."""
    return values.astype(numpy_dtype(dtype))


def spots(length: int, count: int = 8) -> npt.NDArray[np.int64]:
    """Return up to `count` positions spread over an axis, both ends among them.

    >>> spots(100, 3).tolist(), spots(2, 8).tolist()
    ([0, 50, 99], [0, 1])
    """
    return np.unique(np.round(np.linspace(0, length - 1, min(count, length))).astype(np.int64))


def widened(values: Any) -> npt.NDArray[np.float64]:
    """Return anything array-like as f64 in numpy."""
    return np.asarray(values).astype(np.float64)


def checked(got: Any, want: Any, *, dtype: str, against: str, products: int | None = None) -> Check:
    """Compare a result with its reference, in f64.

    Args:
        got, want: The same elements of the result and of the reference.
        dtype: The type that carries the least of inputs, accumulator and output.
        against: What `want` is, in words.
        products: Terms of each sum, for a sum of products: the error is taken in units of the root mean square of
            `want`. None takes it relative to each element, at least to 1.

    Returns: error over tolerance; infinity where the result is not finite or has another shape.

    >>> checked([1.0, 2.0], [1.0, 2.0], dtype="f32", against="itself").error_ratio
    0.0
    """
    g, w = widened(got), widened(want)
    if g.shape != w.shape or not bool(np.isfinite(g).all()):
        return Check(error_ratio=math.inf, against=against)
    short = short_dtype(dtype)
    wrong = np.abs(g - w)
    if short in INTEGERS:
        return Check(error_ratio=10.0 * float(wrong.max(initial=0.0)), against=against)
    if products is None:
        ratio = wrong / np.maximum(1.0, np.abs(w)) / ELEMENT_TOLERANCE[short]
    else:
        unit = float(np.sqrt(np.mean(w * w))) if w.size else 0.0
        ratio = wrong / (PRODUCT_TOLERANCE[short] * max(unit, np.finfo(np.float64).tiny))
    return Check(error_ratio=float(ratio.max(initial=0.0)), against=against)


def operand(x: npt.NDArray[Any], name: str, role: str) -> Operand:
    """Return an array of numpy for the audit: about a thousand of its elements, and its address."""
    part = x.reshape(-1)[:: max(1, x.size // 1009)]
    return Operand(name=name, role=role, bytes=float(x.nbytes), values=part, address=int(x.ctypes.data))


def least_precise(*dtypes: str) -> str:
    """Return the type that carries the fewest digits; integers only where all are integers.

    >>> least_precise("f32", "bf16"), least_precise("i8", "i32"), least_precise("f8_e4m3", "f32")
    ('bf16', 'i8', 'f8_e4m3')
    """
    short = [short_dtype(d) for d in dtypes]
    floating = [d for d in short if d in PRODUCT_TOLERANCE]
    return max(floating, key=lambda d: PRODUCT_TOLERANCE[d]) if floating else short[0]
