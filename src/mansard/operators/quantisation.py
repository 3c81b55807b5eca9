"""Quantisation of a matrix: values in a narrow type and one f32 scale per row, or one for all."""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, number


def quantise(*, rows: Count, columns: Count, dtype: str, output: str, static: bool = False) -> Demand:
    """Return the demand of scaling a matrix into the range of a narrow type and rounding it.

    Args:
        rows, columns: Dimensions.
        dtype: Type that is read.
        output: Type that is written.
        static: Whether one scale is given; else each row is scaled by its largest magnitude.

    Returns:
        The matrix read and written once, an f32 scale per row written (static: one scale read). Per element: magnitude
        and maximum (not where static), one product, two comparisons to stay in range; one quotient per row.

    Assumes: a row stays on the chip between its maximum and its scaling; a transposed result moves as much.
    Source: Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433, section 3.

    4 rows of 8 bf16 to f8: 64 B read, 32 B and 4 scales of 4 B written, 5 * 32 + 4 FLOP.

    >>> d = quantise(rows=4, columns=8, dtype="bf16", output="f8_e4m3")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (64.0, 48.0, {'f32': 164.0})
    """
    elements = number(rows) * number(columns)
    reads: list[Elements] = [(elements, dtype)]
    writes: list[Elements] = [(elements, output)]
    if static:
        reads.append((1.0, "f32"))
        return demand(reads=reads, writes=writes, vector=(3.0 * elements, dtype))
    writes.append((rows, "f32"))
    return demand(reads=reads, writes=writes, vector=(5.0 * elements + number(rows), dtype))
