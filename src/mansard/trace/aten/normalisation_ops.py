"""Costs of recorded normalisations."""

from __future__ import annotations

import math

from mansard.operators.normalisation import (
    batch_norm,
    batch_norm_backward,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from mansard.trace.aten.arguments import Arguments, Tensor
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, by_grain, work, wrapper


def _rows(args: Arguments, x: Tensor, i: int) -> tuple[float, float]:
    """Rows and columns of a norm over the trailing shape that argument `i` names."""
    columns = float(math.prod(args.integers(i)))
    return (x.elements / columns if columns else 0.0), columns


def _affine(x: Tensor, *parameters: Tensor | None) -> str:
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def layer(args: Arguments) -> AtenCost:
    """native_layer_norm(input, normalized_shape, weight, bias, eps)."""
    x, weight, bias = args.tensor(0), args.maybe(2), args.maybe(3)
    rows, columns = _rows(args, x, 1)
    affine = _affine(x, weight, bias)
    wanted = layer_norm(
        rows=rows, columns=columns, dtype=x.dtype, affine_dtype=affine, weight=weight is not None, bias=bias is not None,
        statistics=affine,
    )  # fmt: skip
    return work(
        "norm",
        wanted,
        fresh=((x.elements, x.dtype), (2.0 * rows, affine)),
        scope=by_grain(rows, 1),
        formula=f"{rows:.0f} rows of {columns:.0f}",
    )


def layer_gradient(args: Arguments) -> AtenCost:
    """native_layer_norm_backward(grad, input, shape, mean, rstd, weight, bias, mask)."""
    x, weight = args.tensor(1), args.maybe(5)
    rows, columns = _rows(args, x, 2)
    mask = args.flags(7)
    affine = _affine(x, weight, args.maybe(6))
    wanted = layer_norm_backward(
        rows=rows, columns=columns, dtype=x.dtype, affine_dtype=affine, statistics=args.tensor(3).dtype, input_gradient=mask[0],
        weight_gradient=mask[1], bias_gradient=mask[2], weight=weight is not None,
    )  # fmt: skip
    fresh = ((x.elements * mask[0], x.dtype), (columns * (mask[1] + mask[2]), affine))
    return work(
        "norm",
        wanted,
        fresh=fresh,
        scope=by_grain(rows, 1),
        formula=f"{rows:.0f} rows of {columns:.0f}, gradients {mask}",
    )


def rms(args: Arguments) -> AtenCost:
    """_fused_rms_norm(input, shape, weight, eps); where it is made of other operators, these are counted instead."""
    if args.inner and any(c.name in ("aten::pow", "aten::mean") for c in args.inner):
        return wrapper("norm")
    x, weight = args.tensor(0), args.maybe(2)
    rows, columns = _rows(args, x, 1)
    affine = _affine(x, weight)
    wanted = rms_norm(
        rows=rows,
        columns=columns,
        dtype=x.dtype,
        affine_dtype=affine,
        weight=weight is not None,
        statistics="f32" if x.dtype != "f64" else "f64",
    )
    fresh = ((x.elements, x.dtype), (rows, "f32" if x.dtype != "f64" else "f64"))
    return work(
        "norm", wanted, fresh=fresh, scope=by_grain(rows, 1), formula=f"{rows:.0f} rows of {columns:.0f}, in one pass"
    )


def rms_gradient(args: Arguments) -> AtenCost:
    """_fused_rms_norm_backward(grad, input, shape, rstd, weight, mask)."""
    if args.inner and any(c.name in ("aten::pow", "aten::mul") for c in args.inner):
        return wrapper("norm")
    x, weight = args.tensor(1), args.maybe(4)
    rows, columns = _rows(args, x, 2)
    affine = _affine(x, weight)
    wanted = rms_norm_backward(
        rows=rows, columns=columns, dtype=x.dtype, affine_dtype=affine, weight=weight is not None
    )
    fresh = ((x.elements, x.dtype), (columns if weight is not None else 0.0, affine))
    return work("norm", wanted, fresh=fresh, scope=by_grain(rows, 1), formula=f"{rows:.0f} rows of {columns:.0f}")


#: Batch norms whose name tells what the others have a flag for.
_TRAINING = {"_batch_norm_with_update": True, "_native_batch_norm_legit_no_training": False}


def batch(args: Arguments) -> AtenCost:
    """native_batch_norm and its kind (input, weight, bias, running mean, running variance, training, ...)."""
    x = args.tensor(0)
    parameters = [args.maybe(1), args.maybe(2)]
    running = args.maybe(3)
    training = _TRAINING[args.base] if args.base in _TRAINING else args.flag(5 if args.count > 6 else 3)
    channels = float(x.shape[1])
    affine = _affine(x, *parameters, running)
    wanted = batch_norm(
        elements=x.elements, channels=channels, dtype=x.dtype, affine_dtype=affine, parameters=sum(p is not None for p in parameters),
        training=training, running=running is not None,
    )  # fmt: skip
    fresh = ((x.elements, x.dtype), (2.0 * channels if training else 0.0, affine))
    return work(
        "norm",
        wanted,
        fresh=fresh,
        scope=by_grain(x.elements),
        formula=f"{x.elements:.0f} elements of {channels:.0f} channels, training={training}",
    )


def batch_gradient(args: Arguments) -> AtenCost:
    """native_batch_norm_backward(grad, input, weight, ...), or (input, grad, weight, ...) of cuDNN."""
    x, weight = args.tensor(1), args.maybe(2)
    channels = float(x.shape[1])
    affine = _affine(x, weight)
    mask = args.flags(9) if args.base == "native_batch_norm_backward" else (True, True, True)
    wanted = batch_norm_backward(
        elements=x.elements,
        channels=channels,
        dtype=x.dtype,
        affine_dtype=affine,
        weight=weight is not None,
        input_gradient=mask[0],
    )
    fresh = ((x.elements * mask[0], x.dtype), (channels * (mask[1] + mask[2]), affine))
    return work(
        "norm",
        wanted,
        fresh=fresh,
        scope=by_grain(x.elements),
        formula=f"{x.elements:.0f} elements of {channels:.0f} channels",
    )


def group(args: Arguments) -> AtenCost:
    """native_group_norm(input, weight, bias, N, C, HxW, group, eps)."""
    x = args.tensor(0)
    parameters = [args.maybe(1), args.maybe(2)]
    groups, channels = float(args.integer(3) * args.integer(6)), float(args.integer(4))
    affine = _affine(x, *parameters)
    wanted = group_norm(
        elements=x.elements,
        channels=channels,
        groups=groups,
        dtype=x.dtype,
        affine_dtype=affine,
        parameters=sum(p is not None for p in parameters),
    )
    fresh = ((x.elements, x.dtype), (2.0 * groups, affine))
    return work(
        "norm",
        wanted,
        fresh=fresh,
        scope=by_grain(groups, 1),
        formula=f"{x.elements:.0f} elements in {groups:.0f} groups",
    )


def group_gradient(args: Arguments) -> AtenCost:
    """native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, mask)."""
    x, weight = args.tensor(1), args.maybe(4)
    groups, channels = float(args.integer(5) * args.integer(8)), float(args.integer(6))
    affine = _affine(x, weight)
    mask = args.flags(9)
    wanted = group_norm_backward(
        elements=x.elements, channels=channels, groups=groups, dtype=x.dtype, affine_dtype=affine, weight=weight is not None,
        gradients=(mask[0], mask[1], mask[2]),
    )  # fmt: skip
    fresh = ((x.elements * mask[0], x.dtype), (channels * (mask[1] + mask[2]), affine))
    return work(
        "norm",
        wanted,
        fresh=fresh,
        scope=by_grain(groups, 1),
        formula=f"{x.elements:.0f} elements in {groups:.0f} groups",
    )


HANDLERS: dict[str, Handler] = {
    "native_layer_norm": layer,
    "native_layer_norm_backward": layer_gradient,
    "_fused_rms_norm": rms,
    "_fused_rms_norm_backward": rms_gradient,
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "cudnn_batch_norm", "miopen_batch_norm",
         "_batch_norm_with_update", "_native_batch_norm_legit_no_training"), batch),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"), batch_gradient),
    "native_group_norm": group,
    "native_group_norm_backward": group_gradient,
}  # fmt: skip
