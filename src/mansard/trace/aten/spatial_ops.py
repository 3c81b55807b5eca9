"""Costs of recorded pooling, interpolation and sampling."""

from __future__ import annotations

import math

from mansard.operators.counting import demand as make_demand
from mansard.operators.spatial import INTERPOLATIONS, grid_sample, interpolation, pooling, pooling_backward
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, by_grain, not_known, work, wrapper

#: Spatial dimensions, and positions of kernel, stride, padding, dilation and ceil mode of pooling operators.
_POOLS: dict[str, tuple[int, int, int, int, int | None, int]] = {
    "max_pool1d": (1, 1, 2, 3, 4, 5),
    "max_pool2d_with_indices": (2, 1, 2, 3, 4, 5),
    "max_pool3d_with_indices": (3, 1, 2, 3, 4, 5),
    "mkldnn_max_pool2d": (2, 1, 2, 3, 4, 5),
    "avg_pool2d": (2, 1, 2, 3, None, 4),
    "avg_pool3d": (3, 1, 2, 3, None, 4),
}


def _spread(values: tuple[int, ...], dims: int) -> tuple[int, ...]:
    return values * dims if len(values) == 1 else values


def _pooled(args: Arguments, x: Tensor) -> tuple[float, float]:
    """Elements of the result, and of one window.

    Source: PyTorch documentation of MaxPool2d; with ceil mode the last window must begin inside the input or its left padding.
    """
    dims, at_kernel, at_stride, at_padding, at_dilation, at_ceil = _POOLS[args.base]
    kernel = _spread(args.integers(at_kernel), dims)
    stride = kernel if args.text(at_stride) in ("", "[]") else _spread(args.integers(at_stride), dims)
    padding = _spread(args.integers(at_padding), dims) if args.text(at_padding) else (0,) * dims
    dilation = (
        (1,) * dims if at_dilation is None or not args.text(at_dilation) else _spread(args.integers(at_dilation), dims)
    )
    ceil = args.text(at_ceil) == "True"
    outputs = float(math.prod(x.shape[:-dims]))
    for size, k, s, p, d in zip(x.shape[-dims:], kernel, stride, padding, dilation, strict=True):
        room = size + 2 * p - d * (k - 1) - 1
        places = (-(-room // s) if ceil else room // s) + 1
        if ceil and (places - 1) * s >= size + p:
            places -= 1
        outputs *= places
    return outputs, float(math.prod(kernel))


def pool(args: Arguments) -> AtenCost:
    """Maximum pooling with positions, and average pooling."""
    if args.base == "max_pool1d" and any("indices" in c.name for c in args.inner or ()):
        return wrapper("reduction")
    x = args.tensor(0)
    outputs, taps = _pooled(args, x)
    positions = args.base.endswith("_with_indices")
    wanted = pooling(inputs=x.stored, outputs=outputs, taps=taps, dtype=x.dtype, indices=positions)
    fresh = ((outputs, x.dtype), *(((outputs, "i64"),) if positions else ()))
    return work(
        "reduction", wanted, fresh=fresh, scope=by_grain(outputs), formula=f"{outputs:.0f} windows of {taps:.0f}"
    )


def adaptive_pool(args: Arguments) -> AtenCost:
    """_adaptive_avg_pool2d, 3d and adaptive_max_pool2d, 3d (self, output size)."""
    x, size = args.tensor(0), args.integers(1)
    outputs = float(math.prod(x.shape[: -len(size)]) * math.prod(size))
    positions = "max" in args.base
    taps = x.elements / outputs if outputs else 0.0
    wanted = pooling(inputs=x.stored, outputs=outputs, taps=taps, dtype=x.dtype, indices=positions)
    fresh = ((outputs, x.dtype), *(((outputs, "i64"),) if positions else ()))
    return work(
        "reduction", wanted, fresh=fresh, scope=by_grain(outputs), formula=f"{x.elements:.0f} elements to {outputs:.0f}"
    )


def pool_gradient(args: Arguments) -> AtenCost:
    """Gradients of pooling (grad, self, ...)."""
    grad, x = args.tensor(0), args.tensor(1)
    positions = "max" in args.base
    if "adaptive" in args.base:
        taps = x.elements / grad.elements if grad.elements else 0.0
    else:
        dims = 3 if "3d" in args.base else 2
        taps = float(math.prod(_spread(args.integers(2), dims)))
    wanted = pooling_backward(inputs=x.elements, outputs=grad.elements, taps=taps, dtype=x.dtype, indices=positions)
    return work(
        "elementwise",
        wanted,
        fresh=((x.elements, x.dtype),),
        scope=by_grain(grad.elements),
        formula=f"{grad.elements:.0f} gradients spread",
    )


def _mode(base: str) -> str:
    name = base.lstrip("_").removeprefix("upsample_").removesuffix("_backward").replace("nearest_exact", "nearest")
    if name not in INTERPOLATIONS:
        raise NotRecordedError(f"aten::{base}: no cost function for this interpolation")
    return name


def upsample(args: Arguments) -> AtenCost:
    """upsample_*(self, output size or none, ..., scales)."""
    x = args.tensor(0)
    mode = _mode(args.base)
    dims = int(mode[-2])
    if args.text(1) not in ("", "[]"):
        size = args.integers(1)
    else:
        factors = args.numbers(args.count - 1)
        size = tuple(math.floor(s * f) for s, f in zip(x.shape[-dims:], factors, strict=True))
    outputs = float(math.prod(x.shape[:-dims]) * math.prod(size))
    wanted = interpolation(inputs=x.stored, outputs=outputs, dtype=x.dtype, mode=mode)
    return work(
        "gather",
        wanted,
        fresh=((outputs, x.dtype),),
        scope=by_grain(outputs),
        formula=f"{mode}: {x.elements:.0f} to {outputs:.0f} elements",
    )


def upsample_gradient(args: Arguments) -> AtenCost:
    """upsample_*_backward(grad, output size, input size, ...)."""
    grad = args.tensor(0)
    mode = _mode(args.base)
    inputs = float(math.prod(args.integers(2)))
    wanted = interpolation(inputs=inputs, outputs=grad.stored, dtype=grad.dtype, mode=mode, backward=True)
    return work(
        "scatter",
        wanted,
        fresh=((inputs, grad.dtype),),
        scope=by_grain(grad.elements),
        formula=f"{mode}: gradient of {inputs:.0f} elements",
    )


def sample(args: Arguments) -> AtenCost:
    """grid_sampler_2d and 3d (input, grid, mode, ...): mode 0 linear, 1 nearest."""
    x, grid = args.tensor(0), args.tensor(1)
    dims = 3 if args.base.startswith("grid_sampler_3d") else 2
    if args.integer(2) > 1:
        raise NotRecordedError(f"{args.call.name}: no cost function for bicubic sampling")
    points = grid.elements / dims
    outputs = x.shape[1] * points
    wanted = grid_sample(
        inputs=x.stored, outputs=outputs, points=points, dimensions=dims, dtype=x.dtype, bilinear=args.integer(2) == 0
    )
    return work("gather", wanted, fresh=((outputs, x.dtype),), formula=f"{points:.0f} points of {x.shape[1]} channels")


def sample_gradient(args: Arguments) -> AtenCost:
    """grid_sampler_2d_backward(grad, input, grid, ...): gradients of the image and of the grid."""
    grad, x, grid = (args.tensor(i) for i in range(3))
    neighbours = 8.0 if "3d" in args.base else 4.0
    wanted = make_demand(
        reads=[grad.operand, x.operand, grid.operand], writes=[(x.elements, x.dtype), (grid.elements, grid.dtype)],
        vector=(4.0 * neighbours * grad.elements, x.dtype),
    )  # fmt: skip
    return work(
        "scatter",
        wanted,
        fresh=((x.elements, x.dtype), (grid.elements, grid.dtype)),
        formula="4 vector FLOP per neighbour",
    )


def antialiased(args: Arguments) -> AtenCost:
    """Interpolation with a filter as wide as the scale."""
    return not_known("gather", f"{args.call.name}: no cost function for antialiased interpolation")


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_POOLS, pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"), adaptive_pool),
    **dict.fromkeys(
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward",
         "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        pool_gradient),
    **{f"upsample_{mode}": upsample for mode in INTERPOLATIONS},
    **{f"_upsample_nearest_exact{d}d": upsample for d in (1, 2, 3)},
    **{f"_upsample_nearest_exact{d}d_backward": upsample_gradient for d in (1, 2, 3)},
    **{f"upsample_{mode}_backward": upsample_gradient for mode in INTERPOLATIONS},
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback"), sample),
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), sample_gradient),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa_backward"), antialiased),
}  # fmt: skip
