"""Convolutions of one to three dimensions, plain and transposed, grouped and dilated, with their gradients.

Shapes: input (batch, in_channels, *in_size), weight (out_channels, in_channels / groups, *kernel), or
(in_channels, out_channels / groups, *kernel) when transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.core import Demand
from mansard.core.demand import Number
from mansard.operators.counting import Count, Elements, demand, matrix_work, number, product

Sizes = Sequence[Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionShape:
    """The dimensions of one convolution.

    Args:
        batch, in_channels, out_channels: Dimensions.
        in_size: Spatial size of the input, one to three numbers.
        kernel: Spatial size of the kernel.
        stride, padding, dilation: One number per spatial dimension.
        groups: Groups of channels that do not mix; equal to `in_channels` when depthwise.
        transposed: Whether this is the gradient-shaped (fractionally strided) convolution.
        output_padding: With `transposed`, what is added at the end of each dimension; empty for none.

    >>> shape = ConvolutionShape(batch=2, in_channels=3, out_channels=8, in_size=(16, 16), kernel=(3, 3),
    ...                          stride=(2, 2), padding=(1, 1), dilation=(1, 1))
    >>> shape.out_size, shape.macs
    ((8.0, 8.0), 27648.0)
    """

    batch: Count
    in_channels: Count
    out_channels: Count
    in_size: Sizes
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: Count = 1.0
    transposed: bool = False
    output_padding: Sizes = ()

    def __post_init__(self) -> None:
        lengths = {len(x) for x in (self.in_size, self.kernel, self.stride, self.padding, self.dilation)}
        if lengths - {len(self.in_size)} or (self.output_padding and len(self.output_padding) != len(self.in_size)):
            raise ValueError(
                f"a convolution needs one number per spatial dimension everywhere, got in_size {self.in_size}, kernel "
                f"{self.kernel}, stride {self.stride}, padding {self.padding}, dilation {self.dilation}"
            )

    @property
    def out_size(self) -> tuple[Number, ...]:
        """Spatial size of the output."""
        out: list[Number] = []
        extra = self.output_padding or (0,) * len(self.in_size)
        dims = zip(self.in_size, self.kernel, self.stride, self.padding, self.dilation, extra, strict=True)
        for size, kernel, stride, padding, dilation, added in dims:
            reach = number(dilation) * (number(kernel) - 1.0)
            if self.transposed:
                out.append((number(size) - 1.0) * number(stride) - 2.0 * number(padding) + reach + number(added) + 1.0)
            else:
                steps = (number(size) + 2.0 * number(padding) - reach - 1.0) / number(stride)
                out.append((np.floor(steps) if isinstance(steps, np.ndarray) else float(np.floor(steps))) + 1.0)
        return tuple(out)

    @property
    def macs(self) -> Number:
        """Multiply-accumulates, those on padding included: one per kernel tap, channel pair and position."""
        positions = product(self.in_size) if self.transposed else product(self.out_size)
        channels = number(self.in_channels) * number(self.out_channels) / number(self.groups)
        return number(self.batch) * positions * channels * product(self.kernel)

    @property
    def inputs(self) -> Number:
        """Elements of the input."""
        return number(self.batch) * number(self.in_channels) * product(self.in_size)

    @property
    def weights(self) -> Number:
        """Elements of the weight."""
        return number(self.in_channels) * number(self.out_channels) / number(self.groups) * product(self.kernel)

    @property
    def outputs(self) -> Number:
        """Elements of the output."""
        return number(self.batch) * number(self.out_channels) * product(self.out_size)


def convolution(shape: ConvolutionShape, *, dtype: str, bias: bool = False, accumulate: str | None = None) -> Demand:
    """Return the demand of a convolution, forward.

    Args:
        shape: Its dimensions.
        dtype: Element type.
        bias: Whether one number per output channel is added.
        accumulate: Type of the accumulator; None for the usual one.

    Returns:
        2 FLOP per multiply-accumulate of the direct algorithm; input, weight and bias read once, output written once.

    Assumes: direct or implicit-GEMM convolution; Winograd and FFT execute fewer FLOP, so a share above 1 can be real.
    Source: Dumoulin and Visin, arXiv:1603.07285; the count is that of torch.utils.flop_counter.

    2*3*16*16 f32 in, 8*3*3*3 weights, 2*8*8*8 out: 2 * 27648 FLOP.

    >>> shape = ConvolutionShape(batch=2, in_channels=3, out_channels=8, in_size=(16, 16), kernel=(3, 3),
    ...                          stride=(2, 2), padding=(1, 1), dilation=(1, 1))
    >>> d = convolution(shape, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (55296.0, 7008.0, 4096.0)
    """
    reads: list[Elements] = [(shape.inputs, dtype), (shape.weights, dtype)]
    if bias:
        reads.append((shape.out_channels, dtype))
    return demand(
        reads=reads,
        writes=[(shape.outputs, dtype)],
        flop=matrix_work(shape.macs, dtype, accumulate),
        vector=(shape.outputs, dtype) if bias else None,
    )


def convolution_backward(
    shape: ConvolutionShape,
    *,
    dtype: str,
    input_gradient: bool = True,
    weight_gradient: bool = True,
    bias_gradient: bool = False,
) -> Demand:
    """Return the demand of the gradients of a convolution.

    Args:
        shape: Dimensions of the forward convolution.
        dtype: Element type.
        input_gradient, weight_gradient, bias_gradient: Which of the three are needed.

    Returns:
        The forward FLOP once for each of the input and the weight gradient; what both read is read once.

    Source: Dumoulin and Visin, arXiv:1603.07285, chapter 4; the count is that of torch.utils.flop_counter.

    >>> shape = ConvolutionShape(batch=2, in_channels=3, out_channels=8, in_size=(16, 16), kernel=(3, 3),
    ...                          stride=(2, 2), padding=(1, 1), dilation=(1, 1))
    >>> d = convolution_backward(shape, dtype="f32")
    >>> d.total_flop, d.read_bytes, d.write_bytes
    (110592.0, 11104.0, 7008.0)
    """
    reads: list[Elements] = [(shape.outputs, dtype)]
    writes: list[Elements] = []
    times = 0.0
    if input_gradient:
        reads.append((shape.weights, dtype))
        writes.append((shape.inputs, dtype))
        times += 1.0
    if weight_gradient:
        reads.append((shape.inputs, dtype))
        writes.append((shape.weights, dtype))
        times += 1.0
    if bias_gradient:
        writes.append((shape.out_channels, dtype))
    return demand(
        reads=reads,
        writes=writes,
        flop=matrix_work(times * shape.macs, dtype) if times else {},
        vector=(shape.outputs, dtype) if bias_gradient else None,
    )
