"""Public bug reports about peaks, as tests; the ids are those of the shared case list, the numbers are copied here."""

from __future__ import annotations

from pathlib import Path

import pytest

from mansard.core.bound import share_of
from mansard.core.errors import UsageError
from mansard.core.unknown import Implausible, Unknown
from mansard.hardware import ceilings, load, match, mixed_peak_flop_per_s, ridge_flop_per_byte, tpu_slice
from mansard.hardware.describe import Question, peak_document, utilisation


def peak(name: str, dtype: str, accumulate: str = "f32") -> float:
    found = match(name)
    assert found.sku is not None, found
    value = ceilings(found.sku).peak(dtype, accumulate=accumulate, scope="device")
    assert not isinstance(value, Unknown)
    return value.value / 1e12


def test_d01_product_name_outranks_the_chip() -> None:
    # 989e12 / 4.8e12 = 206.04; the bandwidth of the chip's first product, 3350 GB/s, would give 295.
    found = match("NVIDIA H200")
    assert found.sku is not None
    paper = ceilings(found.sku)
    bandwidth = paper.bandwidth("hbm", scope="device").value  # type: ignore[union-attr]
    assert bandwidth == 4800e9
    assert peak("NVIDIA H200", "bf16") == pytest.approx(989, rel=1e-3)
    assert ridge_flop_per_byte(peak("NVIDIA H200", "bf16") * 1e12, bandwidth) == pytest.approx(206.04, rel=1e-3)
    chip = match("GH100")
    assert (chip.status, chip.sku) == ("ambiguous", None)
    assert {"h200", "h100-sxm", "h20"} <= set(chip.candidates)
    # A profile that states 4.8 TB/s beside the name of another card refuses that card.
    assert match("NVIDIA H100 80GB HBM3", memory_bytes_per_s=4800e9).sku is None
    assert match("NVIDIA H200", memory_bytes_per_s=4915e9).sku is not None  # clock x width as drivers print it


def test_d02_unknown_device_keeps_the_rate_and_gives_no_share() -> None:
    found = match("NVIDIA Z900 SXM6")
    assert (found.status, found.sku) == ("unknown", None)
    assert any("hardware file" in n for n in found.needs)
    assert any("--peak" in n for n in found.needs)
    without = utilisation(275.6e12, rows=None, peak_flop_per_s=None, dtype="bf16", missing=found.reason)
    assert (without["status"], without["achieved_flop_per_s"]) == ("unknown_peak", 275.6e12)
    assert isinstance(without["share"], Unknown)
    assert "NVIDIA Z900 SXM6" in without["share"].reason
    # 275.6 / 2250 = 0.12249, with the peak the user names.
    named = utilisation(275.6e12, rows=None, peak_flop_per_s=2250e12, dtype="bf16")
    assert named["share"] == pytest.approx(0.12249, rel=1e-3)
    assert named["peak_from"] == "named by the user"


def test_d02_a_peak_that_is_not_published_is_not_made_from_another() -> None:
    sku = load("TPU7x")
    assert isinstance(ceilings(sku).peak("f32", scope="device"), Unknown)
    assert isinstance(ceilings(sku).peak("f32", engine="vector", scope="device"), Unknown)
    rows = peak_document(sku, Question(dtype="f32"))["rows"]
    answer = utilisation(1441.9e12, rows=rows, peak_flop_per_s=None, dtype="f32")
    assert answer["status"] == "no_published_peak"
    assert isinstance(answer["share"], Unknown)


@pytest.mark.parametrize(
    ("name", "tflop", "rtol"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 2e-3),
        ("NVIDIA H100 NVL", 835.5, 2e-3),
        ("NVIDIA A100-SXM4-80GB", 312.0, 1e-3),
        ("NVIDIA RTX A6000", 154.8, 2e-3),
    ],
)
def test_d03_peaks_are_dense(name: str, tflop: float, rtol: float) -> None:
    assert peak(name, "bf16") == pytest.approx(tflop, rel=rtol)


def test_d03_share_of_the_dense_peak() -> None:
    # 400 / 989.4 = 0.4043; the 2:4-sparse figure would give 0.202.
    rows = peak_document(load("NVIDIA H100 80GB HBM3"), Question(dtype="bf16"))["rows"]
    answer = utilisation(400e12, rows=rows, peak_flop_per_s=None, dtype="bf16")
    assert answer["share"] == pytest.approx(0.4043, rel=2e-3)
    assert answer["peak_from"]["dense"] is True


def test_d04_each_type_of_a_mix_has_its_own_peak() -> None:
    """TF32 is neither f32 nor bf16, and a mix of bf16 and fp8 is divided by neither of the two."""
    name = "NVIDIA H100 80GB HBM3"
    tf32, bf16, fp8 = peak(name, "tf32"), peak(name, "bf16"), peak(name, "f8_e4m3")
    assert (tf32, bf16, fp8) == pytest.approx((494.7, 989.4, 1978.9), rel=1e-3)
    assert peak(name, "f32") == pytest.approx(66.9, rel=1e-3)
    # 25 % of the FLOP in bf16, 75 % in fp8: 1 / (0.25 / 989.4 + 0.75 / 1978.9) = 1583.
    mixed = mixed_peak_flop_per_s({"bf16": 0.25, "fp8": 0.75}, {"bf16": bf16, "fp8": fp8})
    assert mixed == pytest.approx(1583.1, rel=1e-3)


def test_d05_accumulate_type_is_part_of_the_key() -> None:
    # RTX 4090, fp32 accumulate 165.2: 120 / 165.2 = 0.7264; fp16 accumulate 330.3; the vector rate is 82.6.
    assert peak("NVIDIA GeForce RTX 4090", "bf16") == pytest.approx(165.2, rel=2e-3)
    assert 120 / peak("NVIDIA GeForce RTX 4090", "bf16") == pytest.approx(0.7264, rel=2e-3)
    assert peak("NVIDIA GeForce RTX 4090", "f16", "f32") == pytest.approx(165.2, rel=2e-3)
    assert peak("NVIDIA GeForce RTX 4090", "f16", "f16") == pytest.approx(330.3, rel=2e-3)
    assert peak("NVIDIA GeForce RTX 3070 Ti", "bf16") == pytest.approx(43.5, rel=1e-2)
    assert peak("NVIDIA GeForce RTX 5090", "bf16") == pytest.approx(209.5, rel=2e-3)
    assert peak("NVIDIA GeForce RTX 3090", "bf16") == pytest.approx(71.0, rel=3e-3)
    # Where the two differ, a share asks which.
    rows = peak_document(load("rtx-4090"), Question(dtype="f16"))["rows"]
    with pytest.raises(UsageError, match="accumulate"):
        utilisation(120e12, rows=rows, peak_flop_per_s=None, dtype="f16")


def test_d06_a_device_is_what_the_runtime_shows() -> None:
    # 383 / 2 = 191.5: 147 / 191.5 = 0.7676. 2307 / 2 = 1153.5: 800 / 1153.5 = 0.6935.
    assert peak("AMD Instinct MI250X", "bf16") == pytest.approx(191.5, rel=1e-3)
    assert 147 / peak("AMD Instinct MI250X", "bf16") == pytest.approx(0.7676, rel=1e-3)
    assert peak("TPU7x", "bf16") == pytest.approx(1153.5, rel=1e-3)
    assert 800 / peak("TPU7x", "bf16") == pytest.approx(0.6935, rel=1e-3)
    # Memory goes with the device: 3277 / 2 and 7380 / 2 GB/s, 64 GiB and 96 GiB.
    for name, rate, size in (("AMD Instinct MI250X", 1638.5e9, 64), ("TPU7x", 3690e9, 96)):
        paper = ceilings(load(name))
        assert paper.bandwidth("hbm", scope="device").value == pytest.approx(rate)  # type: ignore[union-attr]
        assert paper.levels[-1].capacity_bytes == size * 2**30
    # Both dies together are a node of two devices.
    whole = ceilings(load("mi250x"), scope="node", devices=2).peak("bf16", scope="node")
    assert whole.value == pytest.approx(383e12, rel=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "slug", "chips", "devices"),
    [
        ("tpu7x-8", "tpu-v7x", 4, 8),
        ("v5p-1024", "tpu-v5p", 512, 512),  # the number counts TensorCores; a device is a chip (megacore)
        ("v4-32", "tpu-v4", 16, 16),
        ("v3-8", "tpu-v3", 4, 8),  # a device is a TensorCore
        ("v2-8", "tpu-v2", 4, 8),
        ("v6e-256", "tpu-v6e", 256, 256),  # the number counts chips
        ("v5litepod-16", "tpu-v5e", 16, 16),
    ],
)
def test_d06_slices(name: str, slug: str, chips: int, devices: int) -> None:
    found = tpu_slice(name)
    assert found is not None
    assert (found.sku.slug, found.chips, found.devices) == (slug, chips, devices)


def test_d06_slices_that_are_none() -> None:
    assert tpu_slice("h100-8") is None
    assert tpu_slice("v9-8") is None
    with pytest.raises(UsageError, match="whole"):
        tpu_slice("v5p-7")


def test_d08_a_rate_given_as_an_amount() -> None:
    # 989e12 FLOP in 0.270862 s are 3651 TFLOP/s, 3.69 times the peak of 989: never a share.
    achieved = 989e12 / 0.270862
    assert achieved / 1e12 == pytest.approx(3651.3, rel=1e-3)
    assert isinstance(share_of(achieved, 989e12), Implausible)
    answer = utilisation(achieved, rows=None, peak_flop_per_s=989e12, dtype="bf16")
    assert answer["status"] == "implausible"
    assert answer["share"].value == pytest.approx(3.69, rel=2e-3)
    assert answer["share"].suspects


def test_these_cases_are_those_of_the_shared_list(shared: Path) -> None:
    text = (shared / "cases" / "user_reports.yaml").read_text(encoding="utf-8")
    for case in ("D01_", "D02_", "D03_", "D05_", "D06_", "D08_"):
        assert f"- id: {case}" in text
