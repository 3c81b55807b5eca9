"""Reductions, scans, softmax and losses.

Softmax works on `rows` rows of `columns` elements.
"""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, demand, number

#: Vector FLOP and special functions per element that is reduced.
REDUCTIONS: dict[str, tuple[float, float]] = {
    "sum": (1.0, 0.0), "nansum": (2.0, 0.0), "mean": (1.0, 0.0), "nanmean": (2.0, 0.0), "prod": (1.0, 0.0), "amax": (1.0, 0.0),
    "amin": (1.0, 0.0), "max": (1.0, 0.0), "min": (1.0, 0.0), "argmax": (1.0, 0.0), "argmin": (1.0, 0.0), "aminmax": (2.0, 0.0),
    "any": (0.0, 0.0), "all": (0.0, 0.0), "count_nonzero": (1.0, 0.0), "var": (4.0, 0.0), "std": (4.0, 0.0), "var_mean": (4.0, 0.0),
    "std_mean": (4.0, 0.0), "norm": (2.0, 0.0), "logsumexp": (3.0, 1.0), "median": (1.0, 0.0), "nanmedian": (2.0, 0.0),
    "mode": (1.0, 0.0), "kthvalue": (1.0, 0.0), "equal": (1.0, 0.0),
}  # fmt: skip


def reduction(
    *,
    elements: Count,
    outputs: Count,
    dtype: str,
    output: str | None = None,
    indices: bool = False,
    flop_per_element: float = 1.0,
    transcendental_per_element: float = 0.0,
    stored: Count | None = None,
) -> Demand:
    """Return the demand of reducing `elements` elements to `outputs` results.

    Args:
        elements: Elements that take part.
        outputs: Results.
        dtype: Element type of the input.
        output: Type of the results; None for `dtype`.
        indices: Whether an i64 position is written beside each result.
        flop_per_element: Vector FLOP per element, see `REDUCTIONS`.
        transcendental_per_element: Special functions per element.
        stored: Distinct elements that are read; None for `elements`.

    Source: one operation per element, as a tree or a loop; conventions at the top of `counting`.

    Column sums of a (4, 8) f32 matrix: 32 numbers read, 8 written, 32 additions.

    >>> d = reduction(elements=32, outputs=8, dtype="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (128.0, 32.0, {'f32': 32.0})
    """
    return demand(
        reads=[(elements if stored is None else stored, dtype)],
        writes=[(outputs, output or dtype), *([(outputs, "i64")] if indices else [])],
        vector=(number(elements) * flop_per_element, dtype),
        transcendental=(number(elements) * transcendental_per_element, dtype),
    )


def scan(
    *, elements: Count, dtype: str, output: str | None = None, indices: bool = False, transcendental: bool = False
) -> Demand:
    """Return the demand of a cumulative sum, product, maximum or minimum.

    Args:
        elements: Elements of the input and of the result.
        dtype: Element type of the input.
        output: Type of the result; None for `dtype`.
        indices: Whether positions (i64) are written too, as `cummax` does.
        transcendental: Whether each step evaluates an exponential, as `logcumsumexp` does.

    Source: Blelloch 1990, Prefix Sums and Their Applications; n - 1 operations in sequence, counted as n.

    >>> scan(elements=10, dtype="f32").bytes
    80.0
    """
    return demand(
        reads=[(elements, dtype)],
        writes=[(elements, output or dtype), *([(elements, "i64")] if indices else [])],
        vector=(elements, dtype),
        transcendental=(elements, dtype) if transcendental else None,
    )


def softmax(
    *,
    rows: Count,
    columns: Count,
    dtype: str,
    output: str | None = None,
    log: bool = False,
    stored: Count | None = None,
) -> Demand:
    """Return the demand of softmax or log-softmax over rows.

    Args:
        rows, columns: Dimensions.
        dtype: Element type of the input.
        output: Type of the result; None for `dtype`.
        log: Whether it is log-softmax.
        stored: Distinct elements that are read; None for all.

    Returns:
        Per element: maximum, subtraction, sum, scaling (4 vector FLOP) and one exponential; log-softmax subtracts the
        logarithm of the sum instead of scaling, one more special function per row.

    Assumes: one pass over memory per direction; a row that fits no cache is read again.
    Source: Milakov and Gimelshein, arXiv:1805.02867, algorithm 2.

    >>> d = softmax(rows=4, columns=8, dtype="f32")
    >>> d.bytes, d.vector_flop, d.transcendental
    (256.0, {'f32': 128.0}, {'f32': 32.0})
    """
    elements = number(rows) * number(columns)
    return demand(
        reads=[(elements if stored is None else stored, dtype)],
        writes=[(elements, output or dtype)],
        vector=(4.0 * elements, dtype),
        transcendental=(elements + (number(rows) if log else 0.0), dtype),
    )


def softmax_backward(
    *, rows: Count, columns: Count, dtype: str, output: str | None = None, log: bool = False
) -> Demand:
    """Return the demand of the gradient of softmax or log-softmax.

    Args:
        rows, columns, dtype, output, log: As in `softmax`.

    Returns:
        y (g - sum(g y)): product, sum, subtraction, product; g - exp(y) sum(g): sum, exponential, product, subtraction.

    Source: PyTorch documentation of softmax; the Jacobian diag(y) - y y^T.

    >>> softmax_backward(rows=4, columns=8, dtype="f32").bytes
    384.0
    """
    elements = number(rows) * number(columns)
    return demand(
        reads=[(elements, dtype), (elements, dtype)],
        writes=[(elements, output or dtype)],
        vector=((3.0 if log else 4.0) * elements, dtype),
        transcendental=(elements, dtype) if log else None,
    )


def nll_loss(*, rows: Count, dtype: str, reduced: bool = True, weighted: bool = False) -> Demand:
    """Return the demand of the negative log likelihood of `rows` targets, forward.

    Args:
        rows: Targets; one log-probability is read for each.
        dtype: Element type of the log-probabilities.
        reduced: Whether one number comes out, or one per row.
        weighted: Whether each class has a weight.

    Source: PyTorch documentation of NLLLoss.

    4 targets: 4 * 4 B + 4 * 8 B read, the loss and the total weight written.

    >>> nll_loss(rows=4, dtype="f32").bytes
    56.0
    """
    return demand(
        reads=[(number(rows) * (2.0 if weighted else 1.0), dtype), (rows, "i64")],
        writes=[(1.0 if reduced else rows, dtype), (1.0, dtype)],
        vector=(number(rows) * (3.0 if weighted else 2.0), dtype),
    )


def nll_loss_backward(*, rows: Count, classes: Count, dtype: str) -> Demand:
    """Return the demand of its gradient: zeros everywhere but at the targets.

    Args:
        rows, classes: Dimensions of the gradient.
        dtype: Element type.

    Source: PyTorch documentation of NLLLoss.

    >>> nll_loss_backward(rows=4, classes=10, dtype="f32").write_bytes
    160.0
    """
    return demand(
        reads=[(rows, "i64"), (2.0, dtype)], writes=[(number(rows) * number(classes), dtype)], vector=(rows, dtype)
    )


def cross_entropy(*, rows: Count, classes: Count, dtype: str) -> Demand:
    """Return the demand of a fused cross entropy from logits, forward.

    Args:
        rows, classes: Dimensions of the logits.
        dtype: Element type.

    Returns:
        Logits and targets read once; per logit: maximum, subtraction, sum and one exponential.

    Assumes: fused; PyTorch runs log-softmax and the loss apart, as its separate operations show.
    Source: Milakov and Gimelshein, arXiv:1805.02867; PyTorch documentation of CrossEntropyLoss.

    >>> d = cross_entropy(rows=4, classes=10, dtype="f32")
    >>> d.read_bytes, d.vector_flop, d.transcendental
    (192.0, {'f32': 128.0}, {'f32': 44.0})
    """
    logits = number(rows) * number(classes)
    return demand(
        reads=[(logits, dtype), (rows, "i64")],
        writes=[(1.0, dtype)],
        vector=(3.0 * logits + 2.0 * number(rows), dtype),
        transcendental=(logits + number(rows), dtype),
    )


#: Vector FLOP and special functions per element of losses between two tensors: forward, backward.
PAIRWISE_LOSSES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "mse_loss": ((3.0, 0.0), (3.0, 0.0)), "l1_loss": ((3.0, 0.0), (3.0, 0.0)), "smooth_l1_loss": ((6.0, 0.0), (5.0, 0.0)),
    "huber_loss": ((6.0, 0.0), (5.0, 0.0)), "binary_cross_entropy": ((6.0, 2.0), (6.0, 0.0)), "soft_margin_loss": ((3.0, 2.0), (5.0, 1.0)),
}  # fmt: skip


def pairwise_loss(
    *, elements: Count, dtype: str, name: str = "mse_loss", reduced: bool = True, weighted: bool = False
) -> Demand:
    """Return the demand of a loss between predictions and targets, forward.

    Args:
        elements: Elements of each of the two.
        dtype: Element type.
        name: A name of `PAIRWISE_LOSSES`.
        reduced: Whether one number comes out, or one per element.
        weighted: Whether a weight per element is read.

    Source: PyTorch documentation of each loss; subtraction, square and sum for the mean squared error.

    >>> d = pairwise_loss(elements=10, dtype="f32")
    >>> d.bytes, d.vector_flop
    (84.0, {'f32': 30.0})
    """
    flop, special = PAIRWISE_LOSSES[name][0]
    return demand(
        reads=[(number(elements) * (3.0 if weighted else 2.0), dtype)],
        writes=[(1.0 if reduced else elements, dtype)],
        vector=(number(elements) * flop, dtype),
        transcendental=(number(elements) * special, dtype),
    )


def pairwise_loss_backward(*, elements: Count, dtype: str, name: str = "mse_loss", gradients: Count = 1.0) -> Demand:
    """Return the demand of the gradient of such a loss with respect to the predictions.

    Args:
        elements, dtype, name: As in `pairwise_loss`.
        gradients: Elements of the incoming gradient: 1 when the loss was reduced.

    Source: PyTorch documentation of each loss.

    >>> pairwise_loss_backward(elements=10, dtype="f32").bytes
    124.0
    """
    flop, special = PAIRWISE_LOSSES[name][1]
    return demand(
        reads=[(2.0 * number(elements), dtype), (gradients, dtype)],
        writes=[(elements, dtype)],
        vector=(number(elements) * flop, dtype),
        transcendental=(number(elements) * special, dtype),
    )
