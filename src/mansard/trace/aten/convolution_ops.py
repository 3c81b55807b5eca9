"""Costs of recorded convolutions and recurrent layers."""

from __future__ import annotations

import math

from mansard.operators.convolution import ConvolutionShape, convolution, convolution_backward
from mansard.operators.counting import demand, matrix_work
from mansard.operators.recurrent import Cell, recurrent_layer, recurrent_layer_backward
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, not_known, work

#: Positions of bias, stride, padding, dilation, transposed, output padding and groups; None where an operator has none.
_POSITIONS: dict[str, tuple[int | None, int, int, int | None, int | bool | None, int | None, int | None]] = {
    "convolution": (2, 3, 4, 5, 6, 7, 8),
    "_convolution": (2, 3, 4, 5, 6, 7, 8),
    "convolution_overrideable": (2, 3, 4, 5, 6, 7, 8),
    "mkldnn_convolution": (2, 4, 3, 5, False, None, 6),
    "_convolution_pointwise": (2, 4, 3, 5, False, None, 6),
    "cudnn_convolution": (None, 3, 2, 4, False, None, 5),
    "cudnn_convolution_relu": (2, 3, 4, 5, False, None, 6),
    "cudnn_convolution_transpose": (None, 4, 2, 5, True, 3, 6),
    "miopen_convolution": (2, 4, 3, 5, False, None, 6),
    "_slow_conv2d_forward": (3, 4, 5, None, False, None, None),
    "thnn_conv2d": (3, 4, 5, None, False, None, None),
    "slow_conv3d": (3, 4, 5, None, False, None, None),
    "slow_conv3d_forward": (3, 4, 5, None, False, None, None),
    "_conv_depthwise2d": (3, 4, 5, 6, False, None, None),
    "conv_depthwise3d": (3, 4, 5, 6, False, None, None),
    "slow_conv_dilated2d": (3, 4, 5, 6, False, None, None),
    "slow_conv_dilated3d": (3, 4, 5, 6, False, None, None),
    "slow_conv_transpose2d": (3, 4, 5, 7, True, 6, None),
    "slow_conv_transpose3d": (3, 4, 5, 7, True, 6, None),
}


def _spread(args: Arguments, i: int | None, dims: int, default: int) -> tuple[int, ...]:
    """Value `i` as one number per spatial dimension."""
    if i is None:
        return (default,) * dims
    values = args.integers(i)
    return values * dims if len(values) == 1 else values


def _shape(args: Arguments, x: Tensor, w: Tensor, positions: tuple[int | bool | None, ...]) -> ConvolutionShape:
    """The dimensions of a convolution from its recorded arguments."""
    dims = len(w.shape) - 2
    if dims < 1 or len(x.shape) != len(w.shape):
        raise NotRecordedError(f"{args.call.name}: input {list(x.shape)} and weight {list(w.shape)} do not fit")
    _, stride, padding, dilation, transposed, output_padding, groups = positions
    flipped = transposed if isinstance(transposed, bool) else transposed is not None and args.flag(transposed)
    if groups is None:
        count = x.shape[1] // (w.shape[0] if flipped else w.shape[1]) if not flipped else 1
    else:
        count = args.integer(groups)
    return ConvolutionShape(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[1] * count if flipped else w.shape[0],
        in_size=x.shape[2:],
        kernel=w.shape[2:],
        stride=_spread(args, stride, dims, 1),
        padding=_spread(args, padding, dims, 0),
        dilation=_spread(args, dilation, dims, 1),
        groups=count,
        transposed=flipped,
        output_padding=_spread(args, output_padding, dims, 0) if flipped else (),
    )


def _words(shape: ConvolutionShape) -> str:
    size = "x".join(f"{int(float(s))}" for s in shape.out_size)
    kernel = "x".join(str(k) for k in shape.kernel)
    kind = "transposed " if shape.transposed else ""
    return f"{kind}{shape.in_channels} -> {shape.out_channels} channels, kernel {kernel}, output {size}, groups {shape.groups}"


def conv(args: Arguments) -> AtenCost:
    """A convolution, forward."""
    positions = _POSITIONS[args.base]
    x, w = args.tensor(0), args.tensor(1)
    shape = _shape(args, x, w, positions)
    bias = positions[0] is not None and args.is_tensor(positions[0])
    return work(
        "convolution",
        convolution(shape, dtype=x.dtype, bias=bias),
        fresh=((float(shape.outputs), x.dtype),),
        formula=f"2 FLOP per tap, channel pair and position of the direct algorithm, {_words(shape)}",
    )


def conv_backward(args: Arguments) -> AtenCost:
    """convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask)."""
    x, w = args.tensor(1), args.tensor(2)
    shape = _shape(args, x, w, (None, 4, 5, 6, 7, 8, 9))
    mask = args.flags(10)
    wanted = convolution_backward(
        shape, dtype=x.dtype, input_gradient=mask[0], weight_gradient=mask[1], bias_gradient=mask[2]
    )
    sizes = (float(shape.inputs), float(shape.weights), float(shape.out_channels))
    fresh = tuple((size, x.dtype) for size, wants in zip(sizes, mask, strict=True) if wants)
    return work(
        "convolution", wanted, fresh=fresh, formula=f"the forward once per gradient ({sum(mask[:2])}), {_words(shape)}"
    )


def conv_tbc(args: Arguments) -> AtenCost:
    """Convolution over time of (time, batch, channels) with a (kernel, in, out) weight."""
    x, w = args.tensor(0), args.tensor(1)
    shape = ConvolutionShape(
        batch=x.shape[1], in_channels=x.shape[2], out_channels=w.shape[2], in_size=(x.shape[0],), kernel=(w.shape[0],),
        stride=(1,), padding=(args.integer(3),), dilation=(1,),
    )  # fmt: skip
    return work(
        "convolution",
        convolution(shape, dtype=x.dtype, bias=True),
        fresh=((float(shape.outputs), x.dtype),),
        formula=f"2 FLOP per tap, channel pair and position, {_words(shape)}",
    )


def double_backward(args: Arguments) -> AtenCost:
    """Second derivatives."""
    return not_known("convolution", f"{args.call.name}: no cost function for second derivatives of a convolution")


#: Cells by the `mode` number. Source: aten/src/ATen/native/RNN.h.
_MODES: dict[int, Cell] = {0: "relu", 1: "tanh", 2: "lstm", 3: "gru"}


def mkldnn_rnn_layer(args: Arguments) -> AtenCost:
    """One direction of one layer: input, four weights, two states, reverse, sizes, mode, hidden size, ..."""
    x = args.tensor(0)
    cell, hidden = _MODES[args.integer(9)], args.integer(10)
    steps, batch, width = x.shape
    biases = 2 if args.flag(12) else 0
    wanted = recurrent_layer(
        cell=cell, steps=steps, batch=batch, input_size=width, hidden_size=hidden, dtype=x.dtype, biases=biases
    )
    states = 2 if cell == "lstm" else 1
    return work(
        "gemm",
        wanted,
        fresh=((float(steps * batch * hidden + states * batch * hidden), x.dtype),),
        formula=f"{cell}: 2 gates h (i + h) per step, steps={steps} batch={batch} i={width} h={hidden}",
    )


def mkldnn_rnn_layer_backward(args: Arguments) -> AtenCost:
    """Its gradients; mode and hidden size stand at 14 and 15."""
    x, w1, w2 = args.tensor(0), args.tensor(1), args.tensor(2)
    cell, hidden = _MODES[args.integer(14)], args.integer(15)
    steps, batch, width = x.shape
    wanted = recurrent_layer_backward(
        cell=cell, steps=steps, batch=batch, input_size=width, hidden_size=hidden, dtype=x.dtype
    )
    return work(
        "gemm",
        wanted,
        fresh=((x.elements + w1.elements + w2.elements, x.dtype),),
        formula=f"{cell}: twice the forward, steps={steps} batch={batch} i={width} h={hidden}",
    )


def library_rnn(args: Arguments) -> AtenCost:
    """A whole stack of layers in one library call: each weight matrix works once per step and sequence."""
    x = args.tensor(0)
    shapes = args.list_shapes(1)
    positions = x.elements / x.shape[-1]
    matrices = sum(math.prod(s) for s in shapes if len(s) == 2)
    everything = sum(math.prod(s) for s in shapes)
    times = 2.0 if args.base.endswith("_backward") else 1.0
    wanted = demand(
        reads=[x.operand, (float(everything), x.dtype)],
        flop=matrix_work(times * positions * matrices, x.dtype),
        uncounted=("the results, whose width is that of the last layer", "gate arithmetic"),
    )
    return work(
        "gemm", wanted, formula=f"2 FLOP per weight, step and sequence: {matrices} weights, {positions:.0f} positions"
    )


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_POSITIONS, conv),
    "convolution_backward": conv_backward,
    "convolution_backward_overrideable": double_backward,
    "_convolution_double_backward": double_backward,
    "conv_tbc": conv_tbc,
    "mkldnn_rnn_layer": mkldnn_rnn_layer,
    "mkldnn_rnn_layer_backward": mkldnn_rnn_layer_backward,
    "_cudnn_rnn": library_rnn,
    "_cudnn_rnn_backward": library_rnn,
    "miopen_rnn": library_rnn,
}
