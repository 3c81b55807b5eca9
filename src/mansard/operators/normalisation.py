"""Normalisations: layer, RMS, batch and group norm, forward and backward.

Layer and RMS norm work on `rows` rows of `columns` elements; batch and group norm on `elements` elements of `channels`.
"""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, Elements, demand, number


def layer_norm(
    *, rows: Count, columns: Count, dtype: str, affine_dtype: str | None = None, weight: bool = True, bias: bool = True,
    statistics: str | None = None,
) -> Demand:  # fmt: skip
    """Return the demand of a layer norm, forward.

    Args:
        rows, columns: Dimensions.
        dtype: Element type.
        affine_dtype: Type of weight and bias; None for `dtype`.
        weight, bias: Whether each is there.
        statistics: Type in which mean and inverse deviation of each row are written for the backward pass; None if not.

    Returns:
        Per element: mean 1, variance 3, scaling 1, weight 1, bias 1 (7 vector FLOP in all); one square root per row.

    Source: Ba, Kiros, Hinton, arXiv:1607.06450, equation 3.

    4 rows of 8: 32 + 16 numbers read, 32 written, 7 * 32 + 4 * 2 FLOP.

    >>> d = layer_norm(rows=4, columns=8, dtype="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (192.0, 128.0, {'f32': 232.0})
    """
    elements = number(rows) * number(columns)
    parameters = number(columns) * (float(weight) + float(bias))
    writes: list[Elements] = [(elements, dtype)]
    if statistics is not None:
        writes.append((2.0 * number(rows), statistics))
    return demand(
        reads=[(elements, dtype), (parameters, affine_dtype or dtype)],
        writes=writes,
        vector=(elements * (5.0 + weight + bias) + 2.0 * number(rows), dtype),
    )


def layer_norm_backward(
    *, rows: Count, columns: Count, dtype: str, affine_dtype: str | None = None, statistics: str | None = None,
    input_gradient: bool = True, weight_gradient: bool = True, bias_gradient: bool = True, weight: bool = True,
) -> Demand:  # fmt: skip
    """Return the demand of the gradients of a layer norm.

    Args:
        rows, columns, dtype, affine_dtype, weight: As in `layer_norm`.
        statistics: Type of the row statistics that are read; None for `dtype`.
        input_gradient, weight_gradient, bias_gradient: Which gradients are needed.

    Returns:
        Per element: normalised input 2; bias gradient 1; weight gradient 2; input gradient 8 (product with the weight,
        two sums over the row of 1 and 2, and 4 to combine).

    Source: Ba, Kiros, Hinton, arXiv:1607.06450; the chain rule through mean and variance.

    >>> d = layer_norm_backward(rows=4, columns=8, dtype="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (320.0, 192.0, {'f32': 416.0})
    """
    elements = number(rows) * number(columns)
    affine = affine_dtype or dtype
    writes: list[Elements] = []
    if input_gradient:
        writes.append((elements, dtype))
    writes.append((number(columns) * (float(weight_gradient) + float(bias_gradient)), affine))
    per_element = 2.0 + 8.0 * input_gradient + 2.0 * weight_gradient + 1.0 * bias_gradient
    return demand(
        reads=[
            (2.0 * elements, dtype),
            (2.0 * number(rows), statistics or dtype),
            (number(columns) * float(weight), affine),
        ],
        writes=writes,
        vector=(elements * per_element, dtype),
    )


def rms_norm(
    *,
    rows: Count,
    columns: Count,
    dtype: str,
    affine_dtype: str | None = None,
    weight: bool = True,
    statistics: str | None = None,
) -> Demand:
    """Return the demand of an RMS norm, forward.

    Args:
        rows, columns, dtype, affine_dtype, weight: As in `layer_norm`.
        statistics: Type in which the inverse root mean square of each row is written; None if not.

    Returns:
        Per element: square, sum, scaling, weight (4 vector FLOP); three per row (mean, epsilon, inverse root).

    Source: Zhang and Sennrich, arXiv:1910.07467, equation 4.

    >>> d = rms_norm(rows=4, columns=8, dtype="f32")
    >>> d.read_bytes, d.write_bytes, d.vector_flop
    (160.0, 128.0, {'f32': 140.0})
    """
    elements = number(rows) * number(columns)
    writes: list[Elements] = [(elements, dtype)]
    if statistics is not None:
        writes.append((rows, statistics))
    return demand(
        reads=[(elements, dtype), (number(columns) * float(weight), affine_dtype or dtype)],
        writes=writes,
        vector=(elements * (3.0 + weight) + 3.0 * number(rows), dtype),
    )


def rms_norm_backward(
    *, rows: Count, columns: Count, dtype: str, affine_dtype: str | None = None, weight: bool = True
) -> Demand:
    """Return the demand of the gradients of an RMS norm.

    Args:
        rows, columns, dtype, affine_dtype, weight: As in `rms_norm`.

    Returns:
        Per element: normalised input 1, product with the weight 1, its sum with the input 2, combination 3; the weight
        gradient 2 more.

    Source: Zhang and Sennrich, arXiv:1910.07467; the chain rule through the root mean square.

    >>> rms_norm_backward(rows=4, columns=8, dtype="f32").vector_flop
    {'f32': 288.0}
    """
    elements = number(rows) * number(columns)
    parameters = (number(columns) * float(weight), affine_dtype or dtype)
    return demand(
        reads=[(2.0 * elements, dtype), (rows, "f32" if dtype != "f64" else "f64"), parameters],
        writes=[(elements, dtype), parameters],
        vector=(elements * (6.0 + 3.0 * weight), dtype),
    )


def batch_norm(
    *, elements: Count, channels: Count, dtype: str, affine_dtype: str | None = None, parameters: Count = 2.0, training: bool = True,
    running: bool = True,
) -> Demand:  # fmt: skip
    """Return the demand of a batch norm, forward.

    Args:
        elements: Elements of the input.
        channels: Channels, each normalised over everything else.
        dtype: Element type.
        affine_dtype: Type of weight, bias and statistics; None for `dtype`.
        parameters: Affine vectors: 2 for weight and bias, 0 for none.
        training: Whether statistics come from the batch (and are kept) or are read.
        running: In training, whether running statistics are updated.

    Returns:
        Training: mean 1, variance 3, then one scaling and one shift per element; inference: scaling and shift alone.

    Source: Ioffe and Szegedy, arXiv:1502.03167, algorithm 1.

    >>> batch_norm(elements=100, channels=4, dtype="f32").vector_flop
    {'f32': 600.0}
    """
    per_channel = number(channels)
    affine = affine_dtype or dtype
    vectors_read = number(parameters) + (2.0 if (running or not training) else 0.0)
    writes: list[Elements] = [(elements, dtype)]
    if training:
        writes.append((per_channel * (4.0 if running else 2.0), affine))
    return demand(
        reads=[(elements, dtype), (per_channel * vectors_read, affine)],
        writes=writes,
        vector=(number(elements) * (6.0 if training else 2.0), dtype),
    )


def batch_norm_backward(
    *,
    elements: Count,
    channels: Count,
    dtype: str,
    affine_dtype: str | None = None,
    weight: bool = True,
    input_gradient: bool = True,
) -> Demand:
    """Return the demand of the gradients of a batch norm in training.

    Args:
        elements, channels, dtype, affine_dtype: As in `batch_norm`.
        weight: Whether there is an affine weight.
        input_gradient: Whether the gradient of the input is needed.

    Returns:
        Per element: sum of gradients 1, normalised input and its product with the gradient 3; the input gradient 5 more.

    Source: Ioffe and Szegedy, arXiv:1502.03167, section 3.

    >>> batch_norm_backward(elements=100, channels=4, dtype="f32").vector_flop
    {'f32': 900.0}
    """
    affine = affine_dtype or dtype
    writes: list[Elements] = [(2.0 * number(channels), affine)]
    if input_gradient:
        writes.append((elements, dtype))
    return demand(
        reads=[(2.0 * number(elements), dtype), (number(channels) * (2.0 + float(weight)), affine)],
        writes=writes,
        vector=(number(elements) * (4.0 + 5.0 * input_gradient), dtype),
    )


def group_norm(
    *,
    elements: Count,
    channels: Count,
    groups: Count,
    dtype: str,
    affine_dtype: str | None = None,
    parameters: Count = 2.0,
) -> Demand:
    """Return the demand of a group norm, forward.

    Args:
        elements: Elements of the input.
        channels: Channels.
        groups: Statistics that are taken: samples times groups per sample.
        dtype: Element type.
        affine_dtype: Type of weight and bias; None for `dtype`.
        parameters: Affine vectors, 0 to 2.

    Returns:
        Mean 1, variance 3, scaling and shift 2 per element; mean and inverse deviation of each group are written.

    Source: Wu and He, arXiv:1803.08494, equations 1 to 3.

    >>> d = group_norm(elements=100, channels=4, groups=2, dtype="f32")
    >>> d.vector_flop, d.write_bytes
    ({'f32': 600.0}, 416.0)
    """
    affine = affine_dtype or dtype
    return demand(
        reads=[(elements, dtype), (number(channels) * number(parameters), affine)],
        writes=[(elements, dtype), (2.0 * number(groups), affine)],
        vector=(6.0 * number(elements), dtype),
    )


def group_norm_backward(
    *, elements: Count, channels: Count, groups: Count, dtype: str, affine_dtype: str | None = None, weight: bool = True,
    gradients: tuple[bool, bool, bool] = (True, True, True),
) -> Demand:  # fmt: skip
    """Return the demand of the gradients of a group norm.

    Args:
        elements, channels, groups, dtype, affine_dtype: As in `group_norm`.
        weight: Whether there is an affine weight.
        gradients: Whether the gradients of input, weight and bias are needed.

    Returns:
        Per element: sums of the gradient and of gradient times input 3; the input gradient 4 more.

    Source: Wu and He, arXiv:1803.08494; the chain rule through mean and variance.

    >>> group_norm_backward(elements=100, channels=4, groups=2, dtype="f32").vector_flop
    {'f32': 700.0}
    """
    affine = affine_dtype or dtype
    writes: list[Elements] = [(number(channels) * (float(gradients[1]) + float(gradients[2])), affine)]
    if gradients[0]:
        writes.append((elements, dtype))
    return demand(
        reads=[
            (2.0 * number(elements), dtype),
            (2.0 * number(groups) + number(channels) * float(weight), affine),
        ],
        writes=writes,
        vector=(number(elements) * (3.0 + 4.0 * gradients[0]), dtype),
    )
