"""Convolutions: signals as numpy and scipy define them, and images over channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mansard.measure.benchmarks.convolution_shape import Convolution, image_of, signal_of, work_of
from mansard.measure.benchmarks.entry import (
    MATRIX_OPERATIONS,
    Entry,
    chosen,
    missing_memory,
    precision,
    prepared_jax,
    prepared_torch,
)
from mansard.measure.points.benchmark import Check, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import checked

IMPLEMENTATIONS: Mapping[str, str] = {"xla": "jax", "torch": "torch"}
_SAMPLES = 24


def _integer(name: str, default: int, text: str) -> Parameter:
    return Parameter(name=name, kind="int", default=default, minimum=1, text=text)


def _padding(*choices: str) -> Parameter:
    both = choices + tuple(c.upper() for c in choices)
    return Parameter(
        name="padding_mode", kind="str", default=choices[-1], choices=both, text="what lies beyond the edge"
    )


_DTYPE = Parameter(name="dtype", kind="dtype", default="bf16", text="element type")
_SIGNAL = (
    _integer("input_size", 1024, "length of the signal in each dimension"),
    _integer("kernel_size", 3, "length of the kernel in each dimension"),
    _padding("full", "valid", "same"),
    _DTYPE,
)
_DIMENSION = Parameter(name="dimension", kind="int", default=2, choices=(1, 2, 3), text="dimensions")
_IMAGE = (
    _integer("batch_size", 1, "images"),
    _integer("input_h", 64, "height"),
    _integer("input_w", 64, "width"),
    _integer("in_channel", 64, "channels of the input"),
    _integer("out_channel", 64, "channels of the result"),
    _integer("kernel_h", 3, "height of the kernel"),
    _integer("kernel_w", 3, "width of the kernel"),
    _integer("stride", 1, "step of the kernel"),
    _integer("dilation", 1, "distance of kernel taps"),
    _padding("valid", "same"),
    _DTYPE,
)


def _entry(name: str, parameters: tuple[Parameter, ...], of: Callable[[Params], Convolution], summary: str) -> Entry:
    def count(params: Params, where: Where) -> Work:
        return work_of(of(params), chosen(params, IMPLEMENTATIONS), where)

    def excuse(params: Params, _impl: str, where: Where) -> Waived | None:
        shape = of(params)
        return missing_memory(4.0 * float(work_of(shape, "xla", where).demand.bytes), f"{name} of this size", where)

    def prepare(params: Params, impl: str, where: Where) -> Prepared:
        shape = of(params)
        return _in_torch(shape, params, where) if impl == "torch" else _in_jax(shape, params, name)

    return Entry(
        name=name, area="compute", parameters=parameters, implementations=IMPLEMENTATIONS, summary=summary, count=count,
        make=prepare, excuse=excuse,
    )  # fmt: skip


def _scale(c: Convolution) -> float:
    return float(1.0 / np.sqrt(c.channels_in * np.prod(c.kernel)))


def _in_jax(c: Convolution, params: Params, name: str) -> Prepared:
    """The library function that the name says; operands of signals have no sample and channel dimensions."""
    from mansard.measure.points import with_jax

    plain = c.flipped
    x_shape = c.size if plain else (c.batch, c.channels_in, *c.size)
    w_shape = c.kernel if plain else (c.channels_out, c.channels_in, *c.kernel)
    x = with_jax.array(x_shape, c.dtype, seed=1)
    w = with_jax.array(w_shape, c.dtype, seed=2, scale=_scale(c))
    with precision(c.dtype):
        call = with_jax.compiled(_jax_function(c, params, name), [x, w], expected=MATRIX_OPERATIONS)
    return prepared_jax(
        call,
        lambda: check(c, with_jax.values(x), with_jax.values(w), with_jax.values(call.result)),
        params,
        names=("input", "kernel"),
        facts={"implementation": "jax.lax.conv_general_dilated" if not plain else f"JAX, {name}"},
    )


def _jax_function(c: Convolution, params: Params, name: str) -> Callable[..., Any]:
    import jax

    mode = str(params["padding_mode"]).lower()
    if name == "numpy_convolve":
        return lambda x, w: jax.numpy.convolve(x, w, mode=mode)
    if name == "scipy_signal_convolve2d":
        return lambda x, w: jax.scipy.signal.convolve2d(x, w, mode=mode)
    if name == "scipy_signal_convolve":
        return lambda x, w: jax.scipy.signal.convolve(x, w, mode=mode, method="direct")
    steps, gaps = (c.stride,) * len(c.size), (c.dilation,) * len(c.size)
    return lambda x, w: jax.lax.conv_general_dilated(x, w, steps, c.padding, rhs_dilation=gaps)


def _in_torch(c: Convolution, params: Params, where: Where) -> Prepared:
    """The network operator; a signal gets a sample and a channel, its kernel is turned beforehand."""
    import torch

    from mansard.measure.points import with_torch

    device = with_torch.device_of(where.platform)
    x = with_torch.tensor((c.batch, c.channels_in, *c.size), c.dtype, seed=1, device=device)
    w = with_torch.tensor((c.channels_out, c.channels_in, *c.kernel), c.dtype, seed=2, scale=_scale(c), device=device)
    functional: Any = torch.nn.functional
    dims = len(c.size)
    operator = (functional.conv1d, functional.conv2d, functional.conv3d)[dims - 1]
    even = all(a == b for a, b in c.padding)
    around = [side for pair in reversed(c.padding) for side in pair]
    turned = torch.flip(w, tuple(range(2, 2 + dims))) if c.flipped else w
    padding = tuple(a for a, _ in c.padding) if even else 0

    def run(x: Any, w: Any) -> Any:
        return operator(
            x if even else functional.pad(x, around), w, stride=c.stride, padding=padding, dilation=c.dilation
        )

    call = with_torch.prepared(run, (x, turned), device=device, expected=("aten::convolution",))
    return prepared_torch(
        call,
        lambda: check(c, with_torch.values(x), with_torch.values(w), with_torch.values(call.result)),
        params,
        shown={"input": x, "kernel": turned},
        facts={"implementation": f"torch.nn.functional.conv{dims}d"},
    )


def check(c: Convolution, x: Any, w: Any, got: Any) -> Check:
    """Compare corners, edges and random results with the sum by its definition in f64."""
    full = (c.batch, c.channels_out, *c.out_size)
    if int(np.prod(full)) != got.size:
        return Check(error_ratio=float("inf"), against=f"{full} results; there are {got.shape}")
    x = x.reshape(c.batch, c.channels_in, *c.size)
    w = w.reshape(c.channels_out, c.channels_in, *c.kernel)
    got = got.reshape(full)
    rng = np.random.default_rng(31)
    places = [tuple(0 for _ in full), tuple(n - 1 for n in full)]
    places += [tuple(int(i) for i in rng.integers(0, full)) for _ in range(_SAMPLES)]
    want = np.asarray([c.at(x, w, p) for p in places])
    taps = c.channels_in * int(np.prod(c.kernel))
    return checked(
        [got[p] for p in places], want, dtype=c.dtype, against="the sum by its definition in f64", products=taps
    )


BENCHMARKS = (
    _entry("numpy_convolve", _SIGNAL, lambda p: signal_of(p, 1), "one-dimensional convolution, jax.numpy.convolve"),
    _entry("scipy_signal_convolve", (*_SIGNAL, _DIMENSION), lambda p: signal_of(p, int(p["dimension"])),
           "convolution of one to three dimensions, jax.scipy.signal.convolve"),
    _entry("scipy_signal_convolve2d", _SIGNAL, lambda p: signal_of(p, 2), "two-dimensional convolution, convolve2d"),
    _entry("lax_conv_general_dilated", _IMAGE, image_of, "convolution of images over channels"),
)  # fmt: skip
