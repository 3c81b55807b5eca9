"""Convolutions as the benchmarks name them, their work, and a few of their results in f64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import short_dtype
from mansard.core.errors import UsageError
from mansard.measure.points.benchmark import Params, Where, Work
from mansard.operators.convolution import ConvolutionShape, convolution
from mansard.operators.counting import matrix_work

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution.

    Args:
        batch, channels_in, channels_out: Dimensions; 1 each for signals.
        size, kernel: Spatial sizes.
        stride, dilation: The same in all dimensions.
        padding: What is added to the input before and after, for each dimension.
        flipped: Whether the kernel is turned around, as in signal processing.
        dtype: Element type.
    """

    batch: int
    channels_in: int
    channels_out: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int
    dilation: int
    padding: tuple[tuple[int, int], ...]
    flipped: bool
    dtype: str

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial size of the result."""
        return tuple(
            (n + a + b - self.dilation * (k - 1) - 1) // self.stride + 1
            for n, k, (a, b) in zip(self.size, self.kernel, self.padding, strict=True)
        )

    def operator(self) -> ConvolutionShape:
        """Return the shape that the cost function takes, with the mean of the padding before and after."""
        dims = len(self.size)
        return ConvolutionShape(
            batch=self.batch,
            in_channels=self.channels_in,
            out_channels=self.channels_out,
            in_size=self.size,
            kernel=self.kernel,
            stride=(self.stride,) * dims,
            padding=tuple((a + b) / 2.0 for a, b in self.padding),
            dilation=(self.dilation,) * dims,
        )

    def real_taps(self) -> float:
        """Return the (output, kernel tap) pairs that meet the input and not its padding, over all dimensions.

        >>> signal = Convolution(batch=1, channels_in=1, channels_out=1, size=(4,), kernel=(3,), stride=1, dilation=1,
        ...                      padding=((1, 1),), flipped=True, dtype="f32")
        >>> signal.real_taps()  # 2 + 3 + 3 + 2 of 4 * 3
        10.0
        """
        total = 1.0
        for n, k, (before, _), out in zip(self.size, self.kernel, self.padding, self.out_size, strict=True):
            start = np.arange(out)[:, None] * self.stride - before + np.arange(k)[None, :] * self.dilation
            total *= float(np.count_nonzero((start >= 0) & (start < n)))
        return total

    def at(self, x: Array, w: Array, place: tuple[int, ...]) -> float:
        """Return one result in f64: `place` is (sample, output channel, *position) of channel-first operands."""
        sample, channel, *position = place
        turned = w[channel][(slice(None), *(slice(None, None, -1),) * len(self.size))] if self.flipped else w[channel]
        total = 0.0
        for tap in np.ndindex(*self.kernel):
            where = [
                p * self.stride - before + t * self.dilation
                for p, t, (before, _) in zip(position, tap, self.padding, strict=True)
            ]
            if all(0 <= i < n for i, n in zip(where, self.size, strict=True)):
                total += float(np.dot(x[(sample, slice(None), *where)], turned[(slice(None), *tap)]))
        return total


def padded(
    mode: str, size: tuple[int, ...], kernel: tuple[int, ...], dilation: int = 1, stride: int = 1
) -> tuple[tuple[int, int], ...]:
    """Return the padding of a mode for each dimension: `valid` none, `full` every overlap, `same` output = input / stride.

    >>> padded("same", (5,), (4,)), padded("full", (5,), (4,)), padded("valid", (5,), (4,))
    (((1, 2),), ((3, 3),), ((0, 0),))
    """
    out = []
    for n, k in zip(size, kernel, strict=True):
        reach = dilation * (k - 1)
        if mode == "valid":
            if n < reach + 1:
                raise UsageError(f"a kernel of {k} does not fit into {n} without padding")
            out.append((0, 0))
        elif mode == "full":
            out.append((reach, reach))
        else:
            total = max(0, (math.ceil(n / stride) - 1) * stride + reach + 1 - n)
            out.append((total // 2, total - total // 2))
    return tuple(out)


def signal_of(params: Params, dims: int) -> Convolution:
    """Return a convolution of one signal with one kernel, as numpy and scipy define it.

    `same` is the middle of `full`; of an even kernel numpy and scipy leave the odd element at the end.
    """
    n, k, mode = int(params["input_size"]), int(params["kernel_size"]), str(params["padding_mode"]).lower()
    if k > n:
        raise UsageError(f"kernel_size {k} is larger than input_size {n}")
    padding = ((k // 2, k - 1 - k // 2),) * dims if mode == "same" else padded(mode, (n,) * dims, (k,) * dims)
    return Convolution(
        batch=1, channels_in=1, channels_out=1, size=(n,) * dims, kernel=(k,) * dims, stride=1, dilation=1, padding=padding,
        flipped=True, dtype=short_dtype(params["dtype"]),
    )  # fmt: skip


def image_of(params: Params) -> Convolution:
    """Return a convolution of images over channels, as in a network: the kernel is not turned."""
    size, kernel = (int(params["input_h"]), int(params["input_w"])), (int(params["kernel_h"]), int(params["kernel_w"]))
    stride, dilation = int(params["stride"]), int(params["dilation"])
    return Convolution(
        batch=int(params["batch_size"]), channels_in=int(params["in_channel"]), channels_out=int(params["out_channel"]),
        size=size, kernel=kernel, stride=stride, dilation=dilation,
        padding=padded(str(params["padding_mode"]).lower(), size, kernel, dilation, stride), flipped=False,
        dtype=short_dtype(params["dtype"]),
    )  # fmt: skip


def work_of(c: Convolution, impl: str, _where: Where) -> Work:
    """Return the work: 2 FLOP for each kernel tap of each result, padding included; XLA leaves the padding out."""
    kind, wide = next(iter(matrix_work(1.0, c.dtype)))
    demand = convolution(c.operator(), dtype=c.dtype)
    real = 2.0 * c.batch * c.channels_in * c.channels_out * c.real_taps()
    return Work(
        demand=demand,
        compiler_flop=real if impl == "xla" else None,
        headline="flop",
        peak=(kind, wide, "matrix"),
        convention="2 FLOP per result and kernel tap of the direct algorithm, taps on padding included; FFT does fewer",
    )
