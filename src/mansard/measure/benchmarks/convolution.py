"""Convolutions under the published suite's names: signals of one to three dimensions, and images with channels.

A tap that falls on padding is counted, as the suite and `operators.convolution` do; XLA leaves it out, which is what
`compiler_flop` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.benchmarks.entry import Entry, missing_memory, prepared_jax
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked, spots
from mansard.operators.convolution import ConvolutionShape, convolution

IMPLEMENTATIONS: Mapping[str, str] = {"xla": "jax"}
MODES = ("same", "valid", "full")
CHECKED = 4  # positions along each axis that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One convolution with the same window rules along every axis.

    Args:
        sizes, kernel: Of the input and of the kernel, one number per spatial axis.
        mode: `valid`, `same` or `full`.
        batch, channels, filters: Images, input and output channels; a signal has one of each.
        stride, dilation: Of the window.
        signal: Whether the kernel is flipped, as in signal processing, and the arrays have no channels.
        dtype: Element type.

    Raises:
        UsageError: the kernel does not fit into the input.

    >>> w = Window(sizes=(8,), kernel=(3,), mode="full", dtype="f32")
    >>> w.out, w.padding, w.taps_inside
    ((10,), ((2, 2),), 24)
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    mode: str
    dtype: str
    batch: int = 1
    channels: int = 1
    filters: int = 1
    stride: int = 1
    dilation: int = 1
    signal: bool = True

    def __post_init__(self) -> None:
        if any(reach > size for reach, size in zip(self.reach, self.sizes, strict=True)):
            raise UsageError(f"a kernel that reaches over {self.reach} does not fit into an input of {self.sizes}")

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements of the input from the first tap to the last, on each axis."""
        return tuple(self.dilation * (k - 1) + 1 for k in self.kernel)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """Elements added before and after each axis."""
        if self.mode == "valid":
            return tuple((0, 0) for _ in self.sizes)
        if self.mode == "full":
            return tuple((r - 1, r - 1) for r in self.reach)
        pairs = []
        for size, reach in zip(self.sizes, self.reach, strict=True):
            total = max(0, (math.ceil(size / self.stride) - 1) * self.stride + reach - size)
            # A signal is cut around the middle of `full`, an image is padded more at its end; even kernels tell them apart.
            before = total - total // 2 if self.signal else total // 2
            pairs.append((before, total - before))
        return tuple(pairs)

    @property
    def out(self) -> tuple[int, ...]:
        """Spatial size of the result."""
        axes = zip(self.sizes, self.reach, self.padding, strict=True)
        return tuple((size + before + after - reach) // self.stride + 1 for size, reach, (before, after) in axes)

    @property
    def shape(self) -> ConvolutionShape:
        """The dimensions for the cost function; its padding is the mean of both sides."""
        return ConvolutionShape(
            batch=self.batch, in_channels=self.channels, out_channels=self.filters, in_size=self.sizes,
            kernel=self.kernel, stride=(self.stride,) * len(self.sizes), dilation=(self.dilation,) * len(self.sizes),
            padding=tuple((before + after) / 2 for before, after in self.padding),
        )  # fmt: skip

    @property
    def taps_inside(self) -> int:
        """Multiply-accumulates that do not fall on padding."""
        inside = self.batch * self.channels * self.filters
        for size, kernel, (before, _), out in zip(self.sizes, self.kernel, self.padding, self.out, strict=True):
            first = np.arange(out)[:, None] * self.stride - before
            at = first + np.arange(kernel)[None, :] * self.dilation
            inside *= int(((at >= 0) & (at < size)).sum())
        return inside

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of input, kernel and result."""
        weights = math.prod(self.kernel) * self.channels * self.filters
        return (
            self.batch * self.channels * math.prod(self.sizes), weights, self.batch * self.filters * math.prod(self.out),
        )  # fmt: skip


def work_of(window: Window) -> Work:
    """Return the work of one convolution.

    1 kernel of 3 on 8 elements, full: 10 results of 3 taps each, 2 * 10 * 3 FLOP, of which 24 taps are inside.

    >>> w = work_of(Window(sizes=(8,), kernel=(3,), mode="full", dtype="f32"))
    >>> w.demand.total_flop, w.compiler_flop, float(w.demand.bytes)
    (60.0, 48.0, 84.0)
    """
    demand = convolution(window.shape, dtype=window.dtype)
    accumulate = next(iter(demand.flop))[1]
    return Work(
        demand=demand, compiler_flop=2.0 * window.taps_inside, headline="flop",
        peak=(window.dtype, accumulate, "matrix"),
        convention="2 FLOP per tap of the direct algorithm, taps on padding counted; each array moved once",
    )  # fmt: skip


def reference(window: Window, x: npt.NDArray[Any], kernel: npt.NDArray[Any], at: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the result at one position in f64 [batch, filters].

    Args:
        window: The convolution.
        x: Input [batch, *sizes, channels].
        kernel: Kernel [*kernel, channels, filters], flipped already if it is a signal's.
        at: Position in the result.
    """
    source: list[Any] = [slice(None)]
    taps: list[Any] = []
    for size, length, (before, _), place in zip(window.sizes, window.kernel, window.padding, at, strict=True):
        first = place * window.stride - before
        kept = [k for k in range(length) if 0 <= first + k * window.dilation < size]
        if not kept:
            return np.zeros((window.batch, window.filters))
        begin, end = first + kept[0] * window.dilation, first + kept[-1] * window.dilation + 1
        source.append(slice(begin, end, window.dilation))
        taps.append(slice(kept[0], kept[-1] + 1))
    part, weights = x[tuple(source)], kernel[tuple(taps)]
    return np.tensordot(part, weights, axes=(list(range(1, part.ndim)), list(range(weights.ndim - 1))))


def check(window: Window, x: Any, kernel: Any, result: Any) -> Check:
    """Compare some positions of a result [batch, *out, filters] with the direct sum in f64."""
    places = [spots(n, CHECKED) for n in window.out]
    got, want = [], []
    for at in np.stack(np.meshgrid(*places, indexing="ij"), axis=-1).reshape(-1, len(places)):
        position = tuple(int(i) for i in at)
        got.append(result[(slice(None), *position)])
        want.append(reference(window, x, kernel, position))
    terms = math.prod(window.kernel) * window.channels
    return checked(
        np.stack(got), np.stack(want), dtype=window.dtype, against="the direct sum in f64, sampled positions",
        products=terms,
    )  # fmt: skip


def _prepare(window: Window, call_of: Callable[[], Callable[..., Any]], params: Params) -> Prepared:
    from mansard.measure.points import with_jax

    if window.signal:
        shapes: tuple[tuple[int, ...], tuple[int, ...]] = (window.sizes, window.kernel)
    else:
        shapes = (
            (window.batch, *window.sizes, window.channels), (*window.kernel, window.channels, window.filters),
        )  # fmt: skip
    x = with_jax.array(shapes[0], window.dtype, seed=0)
    kernel = with_jax.array(shapes[1], window.dtype, seed=1)
    call = with_jax.compiled(call_of(), [x, kernel], expected=("convolution", "dot", "custom-call", "fusion"))

    def verify() -> Check:
        image, taps, result = with_jax.values(x), with_jax.values(kernel), with_jax.values(call.result)
        if window.signal:
            image, result = image[None, ..., None], result[None, ..., None]
            taps = np.flip(taps)[..., None, None]
        return check(window, image, taps, result)

    facts = {
        "input": f"{window.dtype}{list(shapes[0])}", "kernel": f"{window.dtype}{list(shapes[1])}",
        "result": f"{window.dtype}{list(window.out)}", "padding": str(window.padding), "implementation": "one XLA program",
    }  # fmt: skip
    return prepared_jax(call, verify, {**params, "dtype": window.dtype}, names=("input", "kernel"), facts=facts)


def _entry(
    name: str,
    summary: str,
    parameters: tuple[Parameter, ...],
    window: Callable[[Params], Window],
    call: Callable[[Params], Callable[..., Any]],
) -> Entry:
    def count(params: Params, _where: Where) -> Work:
        return work_of(window(params))

    def excuse(params: Params, _impl: str, where: Where) -> Waived | None:
        made = window(params)
        needed = 3.0 * sum(made.elements) * max(dtype_bytes(made.dtype), 4.0)  # copies for the loop, and wider sums
        return missing_memory(needed, f"{name} of this size", where)

    def make(params: Params, _impl: str, _where: Where) -> Prepared:
        return _prepare(window(params), lambda: call(params), params)

    return Entry(
        name=name, area="compute", parameters=parameters, implementations=IMPLEMENTATIONS, summary=summary, count=count,
        make=make, excuse=excuse,
    )  # fmt: skip


def _numpy(params: Params) -> Callable[..., Any]:
    import jax

    mode = str(params["padding_mode"])
    return lambda x, kernel: jax.numpy.convolve(x, kernel, mode=mode)


def _scipy(params: Params) -> Callable[..., Any]:
    import jax

    mode = str(params["padding_mode"])
    return lambda x, kernel: jax.scipy.signal.convolve(x, kernel, mode=mode, method="direct")


def _scipy_2d(params: Params) -> Callable[..., Any]:
    import jax

    mode = str(params["padding_mode"])
    return lambda x, kernel: jax.scipy.signal.convolve2d(x, kernel, mode=mode)


def _lax(params: Params) -> Callable[..., Any]:
    import jax

    stride, dilation = int(params["stride"]), int(params["dilation"])
    return lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, window_strides=(stride, stride), padding=str(params["padding_mode"]).upper(),
        rhs_dilation=(dilation, dilation), dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def _size(name: str, default: int, text: str, *, aliases: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name=name, kind="int", default=default, minimum=1, text=text, aliases=aliases)


def _mode(*choices: str) -> Parameter:
    return Parameter(
        name="padding_mode",
        kind="str",
        default="same",
        choices=choices,
        text="which positions of the kernel give a result",
    )


_DTYPE = Parameter(name="dtype", kind="dtype", default="bf16", text="element type; bf16 as in the published suite")
_SIGNAL = (
    _size("input_size", 256, "elements of the input along each axis"),
    _size("kernel_size", 3, "elements of the kernel along each axis"),
    _mode(*MODES),
    _DTYPE,
)
_DIMENSION = Parameter(name="dimension", kind="int", default=2, choices=(1, 2, 3), text="axes of input and kernel")
_IMAGE = (
    _size("batch_size", 1, "images", aliases=("batch",)),
    _size("input_h", 64, "rows of an image"),
    _size("input_w", 64, "columns of an image"),
    _size("in_channel", 16, "channels of an image"),
    _size("out_channel", 16, "channels of the result"),
    _size("kernel_h", 3, "rows of the kernel"),
    _size("kernel_w", 3, "columns of the kernel"),
    _size("stride", 1, "step of the window"),
    _size("dilation", 1, "step between taps"),
    _mode("same", "valid"),
    _DTYPE,
)


def _signal(axes: Callable[[Params], int]) -> Callable[[Params], Window]:
    return lambda p: Window(
        sizes=(int(p["input_size"]),) * axes(p), kernel=(int(p["kernel_size"]),) * axes(p),
        mode=str(p["padding_mode"]), dtype=short_dtype(p["dtype"]),
    )  # fmt: skip


def _image(p: Params) -> Window:
    return Window(
        sizes=(int(p["input_h"]), int(p["input_w"])), kernel=(int(p["kernel_h"]), int(p["kernel_w"])),
        mode=str(p["padding_mode"]), dtype=short_dtype(p["dtype"]), batch=int(p["batch_size"]),
        channels=int(p["in_channel"]), filters=int(p["out_channel"]), stride=int(p["stride"]),
        dilation=int(p["dilation"]), signal=False,
    )  # fmt: skip


BENCHMARKS = (
    _entry("numpy_convolve", "jax.numpy.convolve of one signal", _SIGNAL, _signal(lambda _p: 1), _numpy),
    _entry("scipy_signal_convolve", "jax.scipy.signal.convolve of one to three dimensions, directly",
           (*_SIGNAL, _DIMENSION), _signal(lambda p: int(p["dimension"])), _scipy),
    _entry("scipy_signal_convolve2d", "jax.scipy.signal.convolve2d", _SIGNAL, _signal(lambda _p: 2), _scipy_2d),
    _entry("lax_conv_general_dilated", "jax.lax.conv_general_dilated of images, channels last", _IMAGE, _image, _lax),
)  # fmt: skip
