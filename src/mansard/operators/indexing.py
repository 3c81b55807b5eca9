"""Operations driven by indices or order: gather, scatter, embeddings, selection, sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.core import Demand
from mansard.core.demand import Number
from mansard.operators.counting import Count, Elements, at_most, demand, number


def _log2(x: Count) -> Number:
    n = number(x)
    return np.log2(np.maximum(n, 2.0)) if isinstance(n, np.ndarray) else float(np.log2(max(n, 2.0)))


def gather(*, elements: Count, dtype: str, indices: Sequence[Elements], table: Count | None = None) -> Demand:
    """Return the demand of collecting elements or rows by index, such as an embedding.

    Args:
        elements: Elements of the result.
        dtype: Element type.
        indices: Elements and type of each index tensor.
        table: Elements of the tensor that is read from; it is not read more than once, however often a row is asked for.

    Returns:
        min(elements, table) elements and the indices read, the result written; no FLOP.

    Assumes: rows are distinct where there are enough of them; repeated rows come from a cache.
    Source: PyTorch documentation of Embedding and index_select.

    3 rows of 8 f32 from a table of 50: 96 B + 24 B of indices read, 96 B written.

    >>> gather(elements=24, dtype="f32", indices=[(3, "i64")], table=400).bytes
    216.0
    """
    touched = number(elements) if table is None else at_most(elements, table)
    return demand(reads=[(touched, dtype), *indices], writes=[(elements, dtype)])


def scatter(
    *,
    elements: Count,
    dtype: str,
    indices: Sequence[Elements],
    accumulate: bool,
    source: Elements | None = None,
    copied: Count = 0.0,
) -> Demand:
    """Return the demand of writing or adding elements at indices.

    Args:
        elements: Elements that are written.
        dtype: Element type of the target.
        indices: Elements and type of each index tensor.
        accumulate: Whether the target is read and added to.
        source: Elements and type of what is written; None for a constant.
        copied: Elements of the target that are first copied, as out-of-place variants do.

    Source: PyTorch documentation of index_put_, scatter_ and index_add_.

    >>> scatter(elements=24, dtype="f32", indices=[(3, "i64")], accumulate=True, source=(24, "f32")).bytes
    312.0
    """
    reads: list[Elements] = list(indices)
    if source is not None:
        reads.append(source)
    if accumulate:
        reads.append((elements, dtype))
    return demand(
        reads=[*reads, (copied, dtype)],
        writes=[(elements, dtype), (copied, dtype)],
        vector=(elements, dtype) if accumulate else None,
    )


def embedding_backward(*, tokens: Count, width: Count, rows: Count, dtype: str, indices: str = "i64") -> Demand:
    """Return the demand of the dense gradient of an embedding: zeros, and a row added per token.

    Args:
        tokens: Indices.
        width: Length of a row.
        rows: Rows of the table.
        dtype: Element type.
        indices: Type of the indices.

    Returns:
        The whole table is written; the gradient of every token is read, and its row read and added to.

    Source: PyTorch documentation of Embedding (`sparse=False`).

    3 tokens of 8 into 50 rows: 24 * 4 B + 3 * 8 B + 24 * 4 B read, 400 * 4 B + 24 * 4 B written.

    >>> d = embedding_backward(tokens=3, width=8, rows=50, dtype="f32")
    >>> d.read_bytes, d.write_bytes
    (216.0, 1696.0)
    """
    moved = number(tokens) * number(width)
    return demand(
        reads=[(moved, dtype), (tokens, indices), (moved, dtype)],
        writes=[(number(rows) * number(width), dtype), (moved, dtype)],
        vector=(moved, dtype),
    )


def sort(*, rows: Count, columns: Count, dtype: str, indices: bool = True) -> Demand:
    """Return the demand of sorting each row.

    Args:
        rows, columns: Dimensions.
        dtype: Element type.
        indices: Whether the i64 permutation is written too.

    Returns:
        n log2 n comparisons per row; input read and results written once.

    Assumes: comparisons of integers are not counted, as all integer work.
    Source: Knuth, The Art of Computer Programming 3, section 5.3.1.

    >>> sort(rows=2, columns=8, dtype="f32").vector_flop
    {'f32': 48.0}
    """
    elements = number(rows) * number(columns)
    return demand(
        reads=[(elements, dtype)],
        writes=[(elements, dtype), *([(elements, "i64")] if indices else [])],
        vector=(elements * _log2(columns), dtype),
    )


def topk(*, rows: Count, columns: Count, k: Count, dtype: str) -> Demand:
    """Return the demand of the k largest of each row, with their positions.

    Args:
        rows, columns: Dimensions.
        k: Results per row.
        dtype: Element type.

    Returns:
        One comparison per element, the least any selection needs.

    Source: Blum et al. 1973, selection in linear time.

    >>> topk(rows=4, columns=8, k=2, dtype="f32").bytes
    224.0
    """
    elements = number(rows) * number(columns)
    results = number(rows) * number(k)
    return demand(reads=[(elements, dtype)], writes=[(results, dtype), (results, "i64")], vector=(elements, dtype))


def search_sorted(*, queries: Count, boundaries: Count, dtype: str, output: str = "i64") -> Demand:
    """Return the demand of finding each query's place among sorted boundaries.

    Args:
        queries: Numbers to place.
        boundaries: Sorted numbers.
        dtype: Element type.
        output: Type of the positions.

    Source: binary search, Knuth, The Art of Computer Programming 3, section 6.2.1.

    >>> search_sorted(queries=10, boundaries=8, dtype="f32").vector_flop
    {'f32': 30.0}
    """
    return demand(
        reads=[(queries, dtype), (boundaries, dtype)],
        writes=[(queries, output)],
        vector=(number(queries) * _log2(boundaries), dtype),
    )
