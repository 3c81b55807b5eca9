"""Operations that move or make data: copies, casts, transposes, concatenation, filling, random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, number


def copy(*, elements: Count, dtype: str, output: str | None = None, stored: Count | None = None) -> Demand:
    """Return the demand of a copy, cast or transpose.

    Args:
        elements: Elements of the result.
        dtype: Type that is read.
        output: Type that is written; None for `dtype`.
        stored: Distinct elements that are read; None for `elements`. A transposed tensor has as many as before, one
            that was expanded has fewer.

    Source: McCalpin, STREAM, kernel Copy: one read and one write per element.

    f32 to bf16:

    >>> copy(elements=100, dtype="f32", output="bf16").bytes
    600.0
    """
    return demand(reads=[(elements if stored is None else stored, dtype)], writes=[(elements, output or dtype)])


def fill(*, elements: Count, dtype: str) -> Demand:
    """Return the demand of writing a constant or a range.

    Args:
        elements: Elements that are written.
        dtype: Element type.

    Source: McCalpin, STREAM: writes alone; the read for ownership of a cache is not compulsory.

    >>> fill(elements=100, dtype="f64").write_bytes
    800.0
    """
    return demand(writes=[(elements, dtype)])


def concatenate(*, inputs: Sequence[Elements], output: str) -> Demand:
    """Return the demand of joining or stacking tensors.

    Args:
        inputs: Distinct elements and type of each tensor.
        output: Type of the result.

    Source: as `copy`.

    >>> concatenate(inputs=[(10, "f32"), (20, "f32")], output="f32").bytes
    240.0
    """
    total = number(0.0)
    for elements, _ in inputs:
        total = total + number(elements)
    return demand(reads=inputs, writes=[(total, output)])


def random(
    *, elements: Count, dtype: str, transcendental_per_element: float = 0.0, inputs: Sequence[Elements] = ()
) -> Demand:
    """Return the demand of drawing random numbers into a tensor.

    Args:
        elements: Numbers drawn.
        dtype: Their type.
        transcendental_per_element: 2 for normal numbers by Box and Muller (log, cos or sin), 1 for exponential ones.
        inputs: Tensors of parameters that are read.

    Returns:
        One scaling per number; the integer work of the generator is not counted, and usually decides the time.

    Source: Box and Muller 1958, Ann. Math. Stat. 29(2).

    >>> random(elements=100, dtype="f32").write_bytes
    400.0
    """
    return demand(
        reads=inputs,
        writes=[(elements, dtype)],
        vector=(elements, dtype),
        transcendental=(number(elements) * transcendental_per_element, dtype),
        uncounted=("random numbers",),
    )


def triangle(
    *, rows: Count, columns: Count, kept: Count, dtype: str, in_place: bool = False, batch: Count = 1.0
) -> Demand:
    """Return the demand of keeping one triangle of a matrix and writing zeros elsewhere.

    Args:
        rows, columns, batch: Dimensions.
        kept: Elements of one matrix that are kept.
        dtype: Element type.
        in_place: Whether what is kept stays where it is.

    Source: as `copy`; zeros are written and not read.

    The lower triangle of a (4, 4) matrix keeps 10: 10 read, 16 written.

    >>> triangle(rows=4, columns=4, kept=10, dtype="f32").bytes
    104.0
    """
    whole = number(rows) * number(columns) * number(batch)
    kept_all = number(kept) * number(batch)
    if in_place:
        return demand(writes=[(whole - kept_all, dtype)])
    return demand(reads=[(kept_all, dtype)], writes=[(whole, dtype)])


def fft(
    *, transforms: Count, length: Count, dtype: str, real: bool, reads: Sequence[Elements], writes: Sequence[Elements]
) -> Demand:
    """Return the demand of fast Fourier transforms.

    Args:
        transforms: How many.
        length: Points of each (the product over the dimensions that are transformed).
        dtype: Real element type, f32 or f64.
        real: Whether input or output is real, which halves the work.
        reads, writes: Elements and types that are read and written.

    Returns:
        5 n log2 n vector FLOP per complex transform, half for a real one.

    Assumes: the customary figure of a radix-2 transform; real libraries execute somewhat fewer.
    Source: Frigo and Johnson, FFTW benchFFT methodology, fftw.org/speed.

    One complex transform of 8 points: 5 * 8 * 3 = 120.

    >>> fft(transforms=1, length=8, dtype="f32", real=False, reads=[(8, "c64")], writes=[(8, "c64")]).vector_flop
    {'f32': 120.0}
    """
    n = number(length)
    logarithm = np.log2(np.maximum(n, 1.0)) if isinstance(n, np.ndarray) else float(np.log2(max(n, 1.0)))
    return demand(
        reads=reads,
        writes=writes,
        vector=(number(transforms) * (2.5 if real else 5.0) * n * logarithm, dtype),
    )
