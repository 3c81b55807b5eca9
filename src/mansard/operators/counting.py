"""Conventions that all cost functions share: how FLOP, special functions and bytes are counted.

- A multiply-accumulate is 2 FLOP. `flop` is matrix work alone: matrix products, convolutions, the attention core.
- Every other addition, product, quotient, square root, comparison, minimum or maximum of real numbers is one
  `vector_flop`; exp, log, tanh, erf, sin, cos and general powers are one `transcendental` each. Integer and Boolean
  element arithmetic is not counted, nor is complex element arithmetic.
- 16-bit and 8-bit floats are computed in f32, so that is the type of their vector work; matrix work carries the type of
  the operands and of the accumulator.
- Bytes are compulsory: each distinct element of an operand is read once and each element of a result is written once,
  however it is laid out.

Dimensions may be numbers or numpy arrays that broadcast together, so one call can cost a million candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Demand, dtype_bytes, short_dtype
from mansard.core.demand import Number

#: A dimension or a number of elements.
Count = float | npt.NDArray[Any]
#: How many elements of which type.
Elements = tuple[Count, str]

_COMPUTED_IN = {
    "f64": "f64", "f32": "f32", "tf32": "f32", "bf16": "f32", "f16": "f32",
    "f8_e4m3": "f32", "f8_e5m2": "f32", "f4_e2m1": "f32",
}  # fmt: skip
_ACCUMULATED_IN = {
    **_COMPUTED_IN,
    "i8": "i32", "u8": "i32", "i4": "i32", "u4": "i32", "i16": "i32", "u16": "i32", "i32": "i32", "u32": "i32",
    "i64": "i64", "u64": "i64",
}  # fmt: skip
_REAL_PART = {"c64": "f32", "c128": "f64"}


def number(x: Count) -> Number:
    """Return `x` as a float, or as an array of float64 where it is an array.

    >>> number(3), number(np.array([1, 2]))
    (3.0, array([1., 2.]))
    """
    return np.asarray(x, dtype=np.float64) if isinstance(x, np.ndarray) else float(x)


def at_most(x: Count, y: Count) -> Number:
    """Return the smaller of the two, element by element for arrays."""
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        smaller: npt.NDArray[np.float64] = np.minimum(number(x), number(y))
        return smaller
    return float(min(x, y))


def at_least(x: Count, y: Count) -> Number:
    """Return the larger of the two, element by element for arrays."""
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        larger: npt.NDArray[np.float64] = np.maximum(number(x), number(y))
        return larger
    return float(max(x, y))


def product(dims: Sequence[Count]) -> Number:
    """Return the product of `dims`; 1 for none.

    >>> product((2, 3, 4))
    24.0
    """
    total: Number = 1.0
    for dim in dims:
        total = total * number(dim)
    return total


def bytes_of(*operands: Elements) -> Number:
    """Return the bytes of `operands`, each a number of elements and their type.

    >>> bytes_of((10, "f32"), (4, "i64"))
    72.0
    """
    total: Number = 0.0
    for elements, dtype in operands:
        total = total + number(elements) * dtype_bytes(dtype)
    return total


def compute_dtype(dtype: str) -> str | None:
    """Return the type in which element arithmetic on `dtype` happens; None for integers, Booleans and complex numbers.

    >>> compute_dtype("bf16"), compute_dtype("f64"), compute_dtype("i64")
    ('f32', 'f64', None)
    """
    return _COMPUTED_IN.get(short_dtype(dtype))


def vector_work(count: Count, dtype: str) -> dict[str, Number]:
    """Return `count` operations on elements of `dtype` as a field of a `Demand`; nothing for integers.

    >>> vector_work(8, "bf16"), vector_work(8, "i32")
    ({'f32': 8.0}, {})
    """
    kind = compute_dtype(dtype)
    if kind is None or (not isinstance(count, np.ndarray) and count == 0):
        return {}
    return {kind: number(count)}


def matrix_work(macs: Count, dtype: str, accumulate: str | None = None) -> dict[tuple[str, str], Number]:
    """Return the FLOP of `macs` multiply-accumulates as a field of a `Demand`.

    Args:
        macs: Multiply-accumulates [count]; one of complex numbers is four real ones.
        dtype: Type of the operands.
        accumulate: Type of the accumulator; None for the usual one of `dtype`.

    >>> matrix_work(10, "bf16"), matrix_work(10, "i8"), matrix_work(10, "c64")
    ({('bf16', 'f32'): 20.0}, {('i8', 'i32'): 20.0}, {('f32', 'f32'): 80.0})
    """
    short = short_dtype(dtype)
    if short in _REAL_PART:
        real = _REAL_PART[short]
        return {(real, real): 8.0 * number(macs)}
    return {(short, accumulate or _ACCUMULATED_IN.get(short, short)): 2.0 * number(macs)}


def demand(
    *,
    reads: Sequence[Elements] = (),
    writes: Sequence[Elements] = (),
    flop: Mapping[tuple[str, str], Number] | None = None,
    vector: Elements | None = None,
    transcendental: Elements | None = None,
    uncounted: tuple[str, ...] = (),
) -> Demand:
    """Return the demand of one launch from what it reads, writes and computes.

    Args:
        reads, writes: Operands and results as `(elements, dtype)`.
        flop: Matrix work, see `matrix_work`.
        vector, transcendental: How many operations on elements of which type.
        uncounted: What is left out.

    >>> d = demand(reads=[(4, "f32")], writes=[(4, "f32")], vector=(4, "f32"))
    >>> d.bytes, d.vector_flop
    (32.0, {'f32': 4.0})
    """
    return Demand(
        flop=dict(flop or {}),
        vector_flop=vector_work(*vector) if vector is not None else {},
        transcendental=vector_work(*transcendental) if transcendental is not None else {},
        read_bytes=bytes_of(*reads),
        write_bytes=bytes_of(*writes),
        uncounted=uncounted,
    )
