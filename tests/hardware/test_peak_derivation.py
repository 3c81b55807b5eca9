"""Peaks from units x width x clock, with the arithmetic of each number beside it."""

from __future__ import annotations

import math

import pytest

from mansard.core.ceilings import Kind
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown, is_known
from mansard.hardware import (
    ceilings,
    derive_peak,
    load,
    partial_ceilings,
    peak_rows,
    shortfall,
    unit_rows,
    what_ratios_say,
)
from mansard.hardware.derive import what_rows_say


def peak(slug: str, dtype: str, engine: str = "matrix", accumulate: str | None = None, **options: object) -> float:
    rows = [
        r for r in peak_rows(load(slug), **options)  # type: ignore[arg-type]
        if (r.peak.dtype, r.peak.engine) == (dtype, engine) and accumulate in (None, r.peak.accumulate)
    ]  # fmt: skip
    value = rows[0].derived
    assert is_known(value)
    return value / 1e12


def test_grace() -> None:
    # 72 cores x 4 pipes x (128 bits / 32) x 2 x 3.1e9 = 7.1424e12; at 3.0 GHz 6.912e12; one core 4 x 4 x 2 x 3.1e9 = 99.2e9.
    assert peak("grace", "f32", "vector") == pytest.approx(7.1424)
    assert peak("grace", "f32", "vector", clock_hz=3.0e9) == pytest.approx(6.912)
    assert peak("grace", "f32", "vector", groups=1) * 1e3 == pytest.approx(99.2)
    # f64 has half the lanes: 72 x 4 x 2 x 2 x 3.1e9 = 3.5712e12, at 3.0 GHz 3.456e12.
    assert peak("grace", "f64", "vector") == pytest.approx(3.5712)
    assert peak("grace", "f64", "vector", clock_hz=3.0e9) == pytest.approx(3.456)


def test_h100_at_its_highest_clock() -> None:
    # CUDA cores: 132 SM x 128 x 2 x 1.98e9 = 66.9e12 (256 FLOP per cycle and SM).
    assert peak("h100-sxm", "f32", "vector", clock_hz=1.98e9) == pytest.approx(66.9, abs=0.05)
    # Tensor cores: 132 SM x 4 x {256, 512, 1024} x 2 x 1.98e9.
    assert peak("h100-sxm", "tf32", clock_hz=1.98e9) == pytest.approx(535.3, abs=0.05)
    assert peak("h100-sxm", "bf16", clock_hz=1.98e9) == pytest.approx(1070.5, abs=0.05)
    assert peak("h100-sxm", "f8_e4m3", clock_hz=1.98e9) == pytest.approx(2141.1, abs=0.05)


def test_flop_per_cycle_and_sm_of_h100() -> None:
    # 66.9e12 / 132 / 1.98e9 = 256; TF32 535.3e12 / 132 / 1.98e9 = 2048.
    assert peak("h100-sxm", "f32", "vector", clock_hz=1e9, groups=1) * 1e3 == pytest.approx(256)
    assert peak("h100-sxm", "tf32", clock_hz=1e9, groups=1) * 1e3 == pytest.approx(2048)


def test_h100_with_a_fallen_clock() -> None:
    # 132 x 4 x 256 x 2 x 1.6e9 = 432.5e12; 399 is 81 % of the declared 494.7 and 92 % of 432.5.
    at_clock = peak("h100-sxm", "tf32", clock_hz=1.6e9)
    assert at_clock == pytest.approx(432.5, abs=0.05)
    assert round(399 / 494.7, 2) == 0.81
    assert round(399 / at_clock, 2) == 0.92


def test_clock_is_told_apart_from_code() -> None:
    # 399 / 494.7 = 0.8065 = 0.8743 (1.60 / 1.83) x 0.9225: ln 0.8743 / ln 0.8065 = 0.62 of the shortfall is the clock.
    fell = shortfall(achieved_flop_per_s=399e12, declared_flop_per_s=494.7e12, rated_hz=1.83e9, clock_hz=1.6e9)
    assert fell.clock_part == pytest.approx(0.625, abs=0.01)
    assert "mostly the clock" in fell.sentence
    # The same rate at the full clock is the program's: 399 / 494.7 at 1.83 GHz.
    bad = shortfall(achieved_flop_per_s=399e12, declared_flop_per_s=494.7e12, rated_hz=1.83e9, clock_hz=1.83e9)
    assert (bad.clock_part, bad.program_ratio) == (0.0, pytest.approx(0.8065, abs=1e-4))
    assert "the program, not the clock" in bad.sentence


@pytest.mark.parametrize(
    ("slug", "dtype", "tflop"),
    [
        ("v100-sxm2-16gb", "f16", 125.3),  # 80 x 8 x 64 x 2 x 1.53
        ("a100-sxm-80gb", "bf16", 311.9),  # 108 x 4 x 256 x 2 x 1.41
        ("h100-sxm", "bf16", 989.4),  # 132 x 4 x 512 x 2 x 1.83
        ("b200", "bf16", 2250.2),  # 148 x 4 x 1024 x 2 x 1.856
        ("gb200", "bf16", 2500.0),  # 152 x 4 x 1024 x 2 x 2.0077
        ("l20", "bf16", 118.7),  # 92 x 4 x 64 x 2 x 2.52; sellers print 119.5
        ("rtx-2080-ti", "i8", 227.7),  # 68 x 8 x 128 x 2 x 1.635
        ("l40s", "bf16", 362.1),  # 142 x 4 x 128 x 2 x 2.49
        ("rtx-4090", "bf16", 165.2),  # 128 x 4 x 64 x 2 x 2.52
        ("rtx-3090", "bf16", 71.2),  # 82 x 4 x 64 x 2 x 1.695
        ("rtx-3070", "bf16", 40.6),  # 46 x 4 x 64 x 2 x 1.725
        ("rtx-5080", "bf16", 112.6),  # 84 x 4 x 64 x 2 x 2.617
        ("rtx-5080", "f4_e2m1", 900.4),  # 84 x 4 x 512 x 2 x 2.617; 1801 TOPS sparse
        ("rtx-4070-super", "i8", 283.9),  # 56 x 4 x 256 x 2 x 2.475; 568 TOPS sparse
        ("rtx-pro-6000-ws", "bf16", 503.8),  # 188 x 4 x 128 x 2 x 2.617
        ("rtx-pro-6000-max-q", "bf16", 438.9),  # 188 x 4 x 128 x 2 x 2.28
        ("rtx-a5000", "bf16", 111.1),  # 64 x 4 x 128 x 2 x 1.695
        ("mi100", "bf16", 92.3),  # 120 x 4 x 64 x 2 x 1.502
        ("max-1550", "bf16", 838.9),  # 128 x 8 x 256 x 2 x 1.6, both stacks
        ("mi250x", "bf16", 383.0),  # 220 x 4 x 128 x 2 x 1.7, both dies
        ("mi300x", "bf16", 1307.4),  # 304 x 4 x 256 x 2 x 2.1
        ("mi355x", "bf16", 2516.6),  # 256 x 4 x 512 x 2 x 2.4
        ("tpu-v2", "bf16", 45.9),  # 2 x 1 x 128^2 x 2 x 0.7
        ("tpu-v4", "bf16", 275.3),  # 2 x 4 x 128^2 x 2 x 1.05
        ("tpu-v5e", "bf16", 196.6),  # 1 x 4 x 128^2 x 2 x 1.5
        ("tpu-v5p", "bf16", 458.8),  # 2 x 4 x 128^2 x 2 x 1.75
        ("gaudi2", "bf16", 432.5),  # 2 x 256^2 x 2 x 1.65
        ("xeon-8480-plus", "bf16", 114.7),  # 56 x 512 x 2 x 2.0 (AMX)
        ("xeon-6980p", "bf16", 262.1),  # 128 x 512 x 2 x 2.0 (AMX)
    ],
)
def test_matrix_peaks_of_packages(slug: str, dtype: str, tflop: float) -> None:
    assert peak(slug, dtype) == pytest.approx(tflop, abs=0.06)


@pytest.mark.parametrize(
    ("slug", "tflop"),
    [
        ("epyc-9654", 3.686),  # 96 x 2 pipes x 4 x 2 x 2.4: two 256-bit pipes, not two of 512
        ("epyc-9755", 11.06),  # 128 x 2 x 8 x 2 x 2.7: two 512-bit pipes
        ("epyc-7742", 2.304),  # 64 x 2 x 4 x 2 x 2.25
        ("xeon-8480-plus", 3.584),  # 56 x 2 x 8 x 2 x 2.0
        ("xeon-6980p", 8.192),  # 128 x 2 x 8 x 2 x 2.0
        ("xeon-gold-6148", 1.408),  # 20 x 2 x 8 x 2 x 2.2
    ],
)
def test_f64_peaks_of_processors(slug: str, tflop: float) -> None:
    assert peak(slug, "f64", "vector") == pytest.approx(tflop, abs=0.006)


def test_zen4_pumps_avx512_twice_and_zen5_does_not() -> None:
    def core(slug: str, clock_hz: float) -> dict[tuple[str, str], float]:
        return {(u.unit.name, u.dtype): u.flop_per_s / 1e9 for u in unit_rows(load(slug), clock_hz=clock_hz, groups=1)}

    # Zen 4 at 3.67 GHz: 2 pipes x 8 lanes x 2 x 3.67e9 = 117.4e9 with AVX2 and with AVX-512 (measured: 117.7 and 117.4).
    zen4 = core("zen4", 3.67e9)
    assert zen4["avx512", "f32"] == zen4["avx2", "f32"] == pytest.approx(117.44)
    # bf16 dot products 2 x 16 x 2 x 3.67e9 = 234.9e9 (measured 235.0); int8 2 x 32 x 2 x 3.67e9 = 469.8e9 (measured 469.9).
    assert zen4["avx512", "bf16"] == pytest.approx(234.88)
    assert zen4["avx512", "i8"] == pytest.approx(469.76)
    # Zen 5 server at 4.28 GHz: 2 x 16 x 2 x 4.28e9 = 273.9e9 (measured 273).
    zen5 = core("zen5", 4.28e9)
    assert zen5["avx512", "f32"] == pytest.approx(273.92)
    assert zen5["avx2", "f32"] == pytest.approx(136.96)
    # The mobile part has 256-bit pipes.
    assert core("zen5-mobile", 4.28e9)["avx512", "f32"] == pytest.approx(136.96)


def test_partial_ceilings() -> None:
    found = {(p.dtype, p.engine, p.what): p.ratio for p in partial_ceilings(load("grace"))}
    # Four f32 lanes in 128 bits: scalar code 1/4, in f64 1/2; no multiply-add 1/2; one of 72 cores.
    assert found["f32", "vector", "scalar code"] == 0.25
    assert found["f64", "vector", "scalar code"] == 0.5
    assert found["f32", "vector", "no multiply-add"] == 0.5
    assert found["f32", "vector", "one core"] == pytest.approx(1 / 72)
    gpu = {(p.dtype, p.engine, p.what): p.flop_per_s for p in partial_ceilings(load("h100-sxm"), clock_hz=1.98e9)}
    assert gpu["bf16", "matrix", "one SM"] == pytest.approx(1070.5e12 / 132, rel=1e-4)
    assert ("bf16", "matrix", "no multiply-add") not in gpu
    assert ("f32", "vector", "scalar code") not in gpu


def test_a_derivation_that_contradicts_the_declared_peak_makes_no_ceiling() -> None:
    # TPU v6e: 2 MXUs x 256^2 x 2 x 1.75e9 = 458.8e12 against 918e12 declared.
    row = next(r for r in peak_rows(load("tpu-v6e")) if r.peak.dtype == "bf16")
    assert row.ratio == pytest.approx(0.4998, abs=1e-3)
    assert not row.holds
    paper = ceilings(load("tpu-v6e"))
    found = paper.peak("bf16", scope="device")
    assert not isinstance(found, Unknown)
    assert (found.value, found.kind) == (918e12, Kind.DECLARED)
    assert [f["code"] for f in paper.machine["findings"]].count("derivation_fails") == 1


def test_a_peak_that_cannot_follow_the_clock_is_not_passed_off_as_one_that_does() -> None:
    paper = ceilings(load("h20"), clock_hz=1.5e9)
    assert isinstance(paper.peak("bf16", scope="device"), Unknown)
    assert any(f["code"] == "not_at_clock" for f in paper.machine["findings"])
    still = ceilings(load("h20")).peak("bf16", scope="device")
    assert not isinstance(still, Unknown)
    assert still.value == 148e12


def test_ceilings_follow_the_observed_clock() -> None:
    paper = ceilings(load("h100-sxm"), clock_hz=1.6e9)
    found = paper.peak("tf32", scope="device")
    assert not isinstance(found, Unknown)
    assert found.value == pytest.approx(432.5e12, rel=1e-3)
    assert found.conditions["clock_hz"] == 1.6e9
    # Memory has its own clock.
    assert paper.bandwidth("hbm", scope="device").value == 3350e9  # type: ignore[union-attr]


def test_scopes() -> None:
    h100 = load("h100-sxm")
    device = ceilings(h100).peak("bf16", scope="device").value  # type: ignore[union-attr]
    assert ceilings(h100, scope="core").peak("bf16", scope="core").value == pytest.approx(device / 132)  # type: ignore[union-attr]
    assert ceilings(h100, scope="node").peak("bf16", scope="node").value == pytest.approx(device * 8)  # type: ignore[union-attr]
    assert ceilings(h100, scope="node", devices=4).bandwidth("hbm", scope="node").value == pytest.approx(4 * 3350e9)  # type: ignore[union-attr]
    # A B200 is one device of two dies: a die has half the units, and no bandwidth of its own is published.
    die = ceilings(load("b200"), scope="die")
    assert die.peak("bf16", scope="die").value == pytest.approx(1125e12, rel=1e-3)  # type: ignore[union-attr]
    assert isinstance(die.bandwidth("hbm", scope="die"), Unknown)
    # Asking one scope's ceilings for another never answers.
    assert isinstance(die.peak("bf16", scope="device"), Unknown)


def test_a_processor_without_matrix_units_multiplies_on_its_vector_pipes() -> None:
    paper = ceilings(load("epyc-9654"))
    matrix, vector = paper.peak("f32", scope="device"), paper.peak("f32", engine="vector", scope="device")
    assert matrix.value == vector.value  # type: ignore[union-attr]
    assert "vector units" in matrix.conditions["note"]  # type: ignore[union-attr]
    # bf16 on Sapphire Rapids has AMX: 114.7 TFLOP/s, not the rate of the vector pipes.
    assert ceilings(load("xeon-8480-plus")).peak("bf16", scope="device").value == pytest.approx(114.7e12, rel=1e-3)  # type: ignore[union-attr]


def test_caches_of_a_processor_follow_its_clock() -> None:
    # Zen 4: 64 B per cycle and core from L1: 96 x 64 x 2.4e9 = 14.75e12 B/s; one core at 3.67 GHz 234.9e9 (measured about 220).
    paper = ceilings(load("epyc-9654"))
    assert paper.bandwidth("l1", scope="device").value == pytest.approx(14.7456e12)  # type: ignore[union-attr]
    core = ceilings(load("zen4"), scope="core", clock_hz=3.67e9)
    assert core.bandwidth("l1", scope="core").value == pytest.approx(234.88e9)  # type: ignore[union-attr]
    assert [level.level for level in core.levels] == ["l1", "l2"]
    # L3 has no published bandwidth: it is named, not guessed.
    assert isinstance(paper.bandwidth("l3", scope="device"), Unknown)
    assert any("l3" in f["text"] for f in paper.machine["findings"])


def test_families_ask_for_what_they_do_not_know() -> None:
    with pytest.raises(UsageError, match="family"):
        ceilings(load("zen4"))
    with pytest.raises(UsageError, match="clock"):
        ceilings(load("zen4"), scope="core")
    with pytest.raises(UsageError, match="family"):
        unit_rows(load("zen4"), clock_hz=3e9)


def test_a_node_of_unknown_size_is_asked_for() -> None:
    with pytest.raises(UsageError, match="number of devices"):
        ceilings(load("rtx-4090"), scope="node")
    with pytest.raises(UsageError, match="at least one"):
        ceilings(load("rtx-4090"), scope="node", devices=0)
    with pytest.raises(UsageError, match="unknown scope"):
        ceilings(load("rtx-4090"), scope="cluster")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(UsageError):
        derive_peak(units=1, width=1, clock_hz=value)
    with pytest.raises(UsageError):
        derive_peak(units=value, width=1, clock_hz=1e9)
    with pytest.raises(UsageError):
        ceilings(load("h100-sxm"), clock_hz=value)


def test_half_rate_instructions() -> None:
    # A 512-bit operation every second cycle on each of 2 pipes: 2 x 16 x 0.5 x 2 x 1e9 = 32e9, the same as 256 bits each cycle.
    assert derive_peak(units=2, width=16, fma_per_cycle=0.5, clock_hz=1e9) == derive_peak(
        units=2, width=8, clock_hz=1e9
    )


def test_what_ratios_say() -> None:
    assert "clock" in what_ratios_say({"tf32": 0.92, "bf16": 0.921, "f8": 0.919})
    assert "differ" in what_ratios_say({"tf32": 0.5, "bf16": 1.0})
    assert "agree" in what_ratios_say({"bf16": 1.001})
    assert "alone cannot tell" in what_ratios_say({"bf16": 0.5})
    assert "nothing" in what_ratios_say({})


def test_what_rows_say_keeps_the_clocks_of_the_vendor_apart() -> None:
    said = what_rows_say(peak_rows(load("h100-sxm"), clock_hz=1.98e9))
    # Vector peaks are given at 1.98 GHz and agree; tensor peaks at 1.83: 1.98 / 1.83 = 1.082.
    assert any("1.98 GHz: derived and declared agree" in s for s in said)
    assert any("1.83 GHz: the ratio is 1.08: that of the clocks" in s for s in said)
    assert any("no check" in s for s in what_rows_say(peak_rows(load("h100-pcie"))))
