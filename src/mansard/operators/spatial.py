"""Pooling, interpolation and sampling on images and volumes."""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import Count, at_most, demand, number


def pooling(*, inputs: Count, outputs: Count, taps: Count, dtype: str, indices: bool = False) -> Demand:
    """Return the demand of maximum or average pooling, forward.

    Args:
        inputs, outputs: Elements.
        taps: Elements of one window; for adaptive pooling inputs / outputs.
        dtype: Element type.
        indices: Whether the i64 position of each maximum is written.

    Returns:
        One vector FLOP per tap; each input read once.

    Source: PyTorch documentation of MaxPool2d and AvgPool2d.

    2*3*16*16 in, 2 by 2 windows: 384 * 4 taps.

    >>> d = pooling(inputs=1536, outputs=384, taps=4, dtype="f32", indices=True)
    >>> d.vector_flop, d.bytes
    ({'f32': 1536.0}, 10752.0)
    """
    return demand(
        reads=[(inputs, dtype)],
        writes=[(outputs, dtype), *([(outputs, "i64")] if indices else [])],
        vector=(number(outputs) * number(taps), dtype),
    )


def pooling_backward(*, inputs: Count, outputs: Count, taps: Count, dtype: str, indices: bool = False) -> Demand:
    """Return the demand of its gradient.

    Args:
        inputs, outputs, taps, dtype: As in `pooling`.
        indices: True for maximum pooling, which reads positions and adds once per output; average pooling adds once per tap.

    Source: PyTorch documentation of MaxPool2d and AvgPool2d.

    >>> pooling_backward(inputs=1536, outputs=384, taps=4, dtype="f32", indices=True).bytes
    10752.0
    """
    return demand(
        reads=[(outputs, dtype), *([(outputs, "i64")] if indices else [])],
        writes=[(inputs, dtype)],
        vector=(number(outputs) * (1.0 if indices else number(taps)), dtype),
    )


#: Neighbours, and vector FLOP per result, of each way to interpolate.
INTERPOLATIONS: dict[str, tuple[float, float]] = {
    "nearest1d": (1.0, 0.0), "nearest2d": (1.0, 0.0), "nearest3d": (1.0, 0.0), "linear1d": (2.0, 3.0), "bilinear2d": (4.0, 9.0),
    "trilinear3d": (8.0, 21.0), "bicubic2d": (16.0, 35.0),
}  # fmt: skip


def interpolation(*, inputs: Count, outputs: Count, dtype: str, mode: str, backward: bool = False) -> Demand:
    """Return the demand of resizing, or of its gradient.

    Args:
        inputs, outputs: Elements before and after (of the forward operation).
        dtype: Element type.
        mode: `nearest1d` ... `nearest3d`, `linear1d`, `bilinear2d`, `trilinear3d`, `bicubic2d`.
        backward: Whether it is the gradient, which adds each output's share to its neighbours.

    Returns:
        Nearest: a copy. Linear: three FLOP (subtract, multiply, add) per interpolation of two, so 3, 9 and 21; bicubic:
        five interpolations of four taps, 35.

    Source: PyTorch documentation of interpolate; Keys 1981, IEEE TASSP 29(6) for bicubic.

    >>> interpolation(inputs=100, outputs=400, dtype="f32", mode="bilinear2d").vector_flop
    {'f32': 3600.0}
    """
    neighbours, flop = INTERPOLATIONS[mode]
    if not backward:
        read = at_most(inputs, number(outputs) * neighbours)
        return demand(reads=[(read, dtype)], writes=[(outputs, dtype)], vector=(number(outputs) * flop, dtype))
    return demand(
        reads=[(outputs, dtype)],
        writes=[(inputs, dtype)],
        vector=(number(outputs) * (2.0 * neighbours if flop else 1.0), dtype),
    )


def grid_sample(
    *, inputs: Count, outputs: Count, points: Count, dimensions: int, dtype: str, bilinear: bool = True
) -> Demand:
    """Return the demand of sampling an image at given points, forward.

    Args:
        inputs, outputs: Elements of the image and of the result.
        points: Sampling points, over all samples.
        dimensions: 2 or 3, numbers per point.
        dtype: Element type.
        bilinear: Linear interpolation, else the nearest element.

    Returns:
        8 vector FLOP per coordinate (scaling, floor, weights), then 2 per neighbour and result.

    Source: Jaderberg et al., Spatial Transformer Networks, arXiv:1506.02025, equation 5.

    >>> grid_sample(inputs=1536, outputs=150, points=50, dimensions=2, dtype="f32").vector_flop
    {'f32': 2000.0}
    """
    neighbours = 2.0**dimensions if bilinear else 0.0
    coordinates = number(points) * dimensions
    touched = at_most(inputs, number(outputs) * max(neighbours, 1.0))
    return demand(
        reads=[(touched, dtype), (coordinates, dtype)],
        writes=[(outputs, dtype)],
        vector=(8.0 * coordinates + 2.0 * neighbours * number(outputs), dtype),
    )
