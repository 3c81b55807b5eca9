"""Convolutions: sizes, counts and results against loops that are written out."""

from __future__ import annotations

import numpy as np
import pytest

from mansard.core.errors import UsageError
from mansard.measure.benchmarks.convolution import BENCHMARKS, Window, check, reference, work_of
from mansard.measure.config import plan_from_command_line
from mansard.measure.points.benchmark import Where

CPU = Where(backend="jax", platform="cpu", threads=1, memory_bytes=8e9)
BY_NAME = {b.name: b for b in BENCHMARKS}


def test_full_same_and_valid_have_the_sizes_of_numpy() -> None:
    x, k = np.ones(9), np.ones(4)
    for mode in ("full", "same", "valid"):
        window = Window(sizes=(9,), kernel=(4,), mode=mode, dtype="f32")
        assert window.out == np.convolve(x, k, mode).shape
        # ones convolved with ones count the taps that are inside
        assert window.taps_inside == np.convolve(x, k, mode).sum()


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_the_reference_is_numpys_convolution(kernel: int, mode: str) -> None:
    rng = np.random.default_rng(0)
    x, k = rng.standard_normal(9), rng.standard_normal(kernel)
    window = Window(sizes=(9,), kernel=(kernel,), mode=mode, dtype="f32")
    flipped = np.flip(k)[..., None, None]
    got = [reference(window, x[None, :, None], flipped, (i,))[0, 0] for i in range(window.out[0])]
    np.testing.assert_allclose(got, np.convolve(x, k, mode), atol=1e-12)


def test_strided_dilated_images_count_their_taps() -> None:
    # 5 x 5, kernel 3 x 3 dilated by 2 reaches over 5; valid: one position, 9 taps; 2 images, 3 in, 4 out: 216.
    window = Window(
        sizes=(5, 5), kernel=(3, 3), mode="valid", dtype="f32", batch=2, channels=3, filters=4, dilation=2, signal=False
    )
    assert (window.out, window.taps_inside) == ((1, 1), 216)
    assert work_of(window).demand.total_flop == work_of(window).compiler_flop == 432
    # Same with stride 2: ceil(5 / 2) = 3 positions, window 3: (3 - 1) * 2 + 3 - 5 = 2 of padding, one on each side.
    strided = Window(sizes=(5,), kernel=(3,), mode="same", dtype="f32", stride=2, signal=False)
    assert (strided.out, strided.padding, strided.taps_inside) == ((3,), ((1, 1),), 2 + 3 + 2)


def test_the_count_is_the_suites() -> None:
    # 2 * elements of the result * elements of the kernel: 1024 - 63 + 1 = 962; 2 * 962**2 * 63**2.
    params = {"input_size": 1024, "kernel_size": 63, "padding_mode": "valid", "dtype": "bf16"}
    work = BY_NAME["scipy_signal_convolve2d"].work(params, CPU)
    assert work.demand.total_flop == 2 * 962**2 * 63**2
    assert float(work.demand.bytes) == 2 * (1024**2 + 63**2 + 962**2)


def test_a_kernel_beyond_its_input_is_refused() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        Window(sizes=(4,), kernel=(5,), mode="same", dtype="f32")


def test_a_wrong_result_is_found() -> None:
    window = Window(sizes=(16,), kernel=(3,), mode="same", dtype="f32")
    rng = np.random.default_rng(1)
    x, k = rng.standard_normal((1, 16, 1)), rng.standard_normal((3, 1, 1))
    right = np.stack([reference(window, x, k, (i,)) for i in range(16)], axis=1)
    assert check(window, x, k, right).error_ratio == 0.0
    assert check(window, x, np.flip(k, 0), right).error_ratio > 1.0


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("numpy_convolve", {"input_size": 64, "kernel_size": 4, "padding_mode": "same", "dtype": "bf16"}),
        ("numpy_convolve", {"input_size": 64, "kernel_size": 3, "padding_mode": "full", "dtype": "f32"}),
        ("scipy_signal_convolve", {"input_size": 8, "kernel_size": 3, "padding_mode": "valid", "dimension": 3, "dtype": "f32"}),
        ("scipy_signal_convolve2d", {"input_size": 32, "kernel_size": 4, "padding_mode": "same", "dtype": "f32"}),
        ("lax_conv_general_dilated", {"batch_size": 2, "input_h": 17, "input_w": 15, "in_channel": 3, "out_channel": 5,
                                      "kernel_h": 4, "kernel_w": 3, "stride": 2, "dilation": 2, "padding_mode": "same",
                                      "dtype": "bf16"}),
    ],
)  # fmt: skip
def test_jax_agrees_with_the_reference_and_the_compiler_with_the_count(name: str, params: dict) -> None:
    point = plan_from_command_line(name, params).points[0]
    benchmark = BY_NAME[name]
    prepared = benchmark.prepare(point.params, point.impl, CPU)
    prepared.run(1)
    assert prepared.verify().error_ratio < 1.0
    work = benchmark.work(point.params, CPU)
    counted = float(prepared.count_by_compiler().flop)
    # XLA counts the taps that are inside, and for bf16 on a CPU one conversion for each element.
    assert work.compiler_flop <= counted * (1 + 1e-6)
    assert counted <= work.compiler_flop + (float(work.demand.bytes) if params["dtype"] == "bf16" else 0.0)
