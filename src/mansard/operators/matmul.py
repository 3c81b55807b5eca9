"""Matrix products: plain, batched, matrix-vector, grouped, and their gradients.

Shapes: A is (m, k), B is (k, n), C is (m, n); `batch` such products.
"""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, bytes_of, demand, matrix_work, number


def matmul_flop(*, m: Count, n: Count, k: Count, batch: Count = 1.0) -> Count:
    """Return the FLOP of `batch` products of an (m, k) by a (k, n) matrix.

    Args:
        m, n, k, batch: Dimensions.

    Returns:
        2 m n k batch [FLOP].

    Source: Golub and Van Loan, Matrix Computations, 4th ed., section 1.1.15: 2mnk for C = C + AB.

    >>> matmul_flop(m=4, n=5, k=6)
    240.0
    """
    return 2.0 * number(m) * number(n) * number(k) * number(batch)


def matmul(
    *,
    m: Count,
    n: Count,
    k: Count,
    dtype: str,
    batch: Count = 1.0,
    dtype_b: str | None = None,
    dtype_out: str | None = None,
    accumulate: str | None = None,
    a_elements: Count | None = None,
    b_elements: Count | None = None,
    addend: Elements | None = None,
    scale_elements: Elements | None = None,
) -> Demand:
    """Return the demand of C = A B (+ addend) for `batch` independent products.

    Args:
        m, n, k: Dimensions of C (m, n) and the common dimension k.
        dtype: Element type of A, which is also the type of the matrix work.
        batch: Number of products.
        dtype_b: Element type of B; None for that of A.
        dtype_out: Element type of C; None for that of A.
        accumulate: Type of the accumulator; None for the usual one of `dtype`.
        a_elements, b_elements: Distinct elements of an operand that is shared by the batch or broadcast; None for all.
        addend: Distinct elements and type of a bias or a C that is added; it costs one vector FLOP per result.
        scale_elements: Elements and type of quantisation scales that are read; one vector FLOP per result.

    Returns:
        2mnk FLOP; A, B and the addend read once; C written once.

    Assumes: the work is dense; no operand is read twice, so no real product moves less.
    Source: Golub and Van Loan, Matrix Computations, 4th ed., section 1.1; Williams et al., CACM 52(4), 2009 (compulsory traffic).

    2*4*5*6 = 240 FLOP; (24 + 30) * 4 B read, 20 * 4 B written:

    >>> d = matmul(m=4, n=5, k=6, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (240.0, 216.0, 80.0)
    """
    results = number(m) * number(n) * number(batch)
    reads: list[Elements] = [
        (number(m) * number(k) * number(batch) if a_elements is None else a_elements, dtype),
        (number(k) * number(n) * number(batch) if b_elements is None else b_elements, dtype_b or dtype),
    ]
    epilogue = 0.0
    for extra in (addend, scale_elements):
        if extra is not None:
            reads.append(extra)
            epilogue += 1.0
    out = dtype_out or dtype
    return demand(
        reads=reads,
        writes=[(results, out)],
        flop=matrix_work(results * number(k), dtype, accumulate),
        vector=(results * epilogue, dtype) if epilogue else None,
    )


def matmul_backward(
    *,
    m: Count,
    n: Count,
    k: Count,
    dtype: str,
    batch: Count = 1.0,
    input_gradient: bool = True,
    weight_gradient: bool = True,
) -> Demand:
    """Return the demand of the gradients of C = A B: dA = dC B^T and dB = A^T dC.

    Args:
        m, n, k, batch: Dimensions of the forward product.
        dtype: Element type.
        input_gradient, weight_gradient: Which of dA and dB is needed; the first layer of a model needs no dA.

    Assumes: two separate products, each reading its operands once.
    Source: Kaplan et al., arXiv:2001.08361, section 2.1 (backward is twice the forward).

    >>> matmul_backward(m=4, n=5, k=6, dtype="f32").total_flop
    480.0
    """
    parts = []
    if input_gradient:
        parts.append(matmul(m=m, n=k, k=n, batch=batch, dtype=dtype))
    if weight_gradient:
        parts.append(matmul(m=k, n=n, k=m, batch=batch, dtype=dtype))
    total = Demand(launches=0.0)
    for part in parts:
        total = total + part
    return total


def grouped_matmul(
    *, rows: Count, n: Count, k: Count, groups_touched: Count, dtype: str, groups: Elements | None = None
) -> Demand:
    """Return the demand of products of row blocks with one (k, n) matrix per block, as in a mixture of experts.

    Args:
        rows: Rows of all blocks together.
        n, k: Dimensions of each group's matrix.
        groups_touched: Groups that have at least one row; only their matrices are read.
        dtype: Element type.
        groups: Elements and type of the block boundaries; None where they are not read.

    Returns:
        2 rows n k FLOP, however the rows are spread over the groups.

    Source: as `matmul`; the sum over groups of 2 m_g n k with sum of m_g = rows.

    3 + 1 rows of length 2 against two (2, 5) matrices: 2*4*5*2 = 80 FLOP; (8 + 20) * 4 B read, 20 * 4 B written.

    >>> d = grouped_matmul(rows=4, n=5, k=2, groups_touched=2, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (80.0, 112.0, 80.0)
    """
    reads: list[Elements] = [
        (number(rows) * number(k), dtype),
        (number(groups_touched) * number(k) * number(n), dtype),
    ]
    if groups is not None:
        reads.append(groups)
    return demand(
        reads=reads,
        writes=[(number(rows) * number(n), dtype)],
        flop=matrix_work(number(rows) * number(n) * number(k), dtype),
    )


def grouped_matmul_weight_gradient(
    *, rows: Count, n: Count, k: Count, groups: Count, dtype: str, offsets: Elements | None = None
) -> Demand:
    """Return the demand of A_g^T dC_g for each of `groups` blocks of rows.

    Args:
        rows: Rows of all blocks together.
        n, k: Each result is (k, n).
        groups: Number of results, all of which are written.
        dtype: Element type.
        offsets: Elements and type of the block boundaries; None where they are not read.

    Source: as `matmul`; the sum over groups of 2 k n m_g.

    >>> d = grouped_matmul_weight_gradient(rows=4, n=5, k=2, groups=2, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (80.0, 112.0, 80.0)
    """
    reads: list[Elements] = [(number(rows) * number(k), dtype), (number(rows) * number(n), dtype)]
    if offsets is not None:
        reads.append(offsets)
    return demand(
        reads=reads,
        writes=[(number(groups) * number(k) * number(n), dtype)],
        flop=matrix_work(number(rows) * number(n) * number(k), dtype),
    )


def matmul_bytes(*, m: Count, n: Count, k: Count, dtype: str, batch: Count = 1.0) -> Count:
    """Return the compulsory bytes of `batch` products, operands and result once.

    Args:
        m, n, k, batch: Dimensions.
        dtype: Element type of all three matrices.

    Source: Williams et al., CACM 52(4), 2009 (compulsory traffic).

    (24 + 30 + 20) * 4 B:

    >>> matmul_bytes(m=4, n=5, k=6, dtype="f32")
    296.0
    """
    a, b, c = number(m) * number(k), number(k) * number(n), number(m) * number(n)
    return bytes_of(((a + b + c) * number(batch), dtype))
