from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mansard.core import (
    Area,
    Bound,
    Ceiling,
    Ceilings,
    Demand,
    Implausible,
    Kind,
    MemoryLevel,
    Resource,
    Unknown,
    is_known,
    judge,
    least_time,
    least_time_s,
    share_of,
)


def peak(
    value: float, *, dtype: str = "f32", engine: str = "matrix", kind: Kind = Kind.MEASURED, scope: str = "node"
) -> Ceiling:
    accumulate = "f32" if engine == "matrix" else None
    resource = Resource(area=Area.COMPUTE, dtype=dtype, accumulate=accumulate, engine=engine)
    return Ceiling(resource=resource, value=value, unit="FLOP/s", kind=kind, scope=scope)


def bandwidth(value: float, level: str, mix: str, *, scope: str = "node", page: str = "huge") -> Ceiling:
    resource = Resource(area=Area.MEMORY, level=level, mix=mix, page=page)
    return Ceiling(resource=resource, value=value, unit="B/s", kind=Kind.MEASURED, scope=scope)


def machine(*extra: Ceiling) -> Ceilings:
    cost = Ceiling(
        resource=Resource(area=Area.LATENCY, backend="torch"), value=1e-6, unit="s", kind=Kind.MEASURED, scope="node"
    )
    return Ceilings(
        ceilings=(
            peak(200e9),
            bandwidth(400e9, "l2", "read"),
            bandwidth(50e9, "dram", "triad"),
            bandwidth(60e9, "dram", "read"),
            bandwidth(40e9, "dram", "copy"),
            cost,
            *extra,
        ),
        levels=(
            MemoryLevel(level="l2", capacity_bytes=2**20, instances=2),
            MemoryLevel(level="dram", capacity_bytes=2**34),
        ),
    )


def test_h200_decode_step_by_hand() -> None:
    # 61 GB of weights at 4.8 TB/s = 12.708 ms; 2 x 3.3e9 x 16 FLOP at 989 TFLOP/s = 0.1068 ms.
    parts = [2 * 3.3e9 * 16 / 989e12, 61e9 / 4.8e12]
    assert least_time_s(parts) == pytest.approx(12.7083e-3, rel=1e-4)
    assert least_time_s(parts, overlap="none") == pytest.approx(12.8151e-3, rel=1e-4)


def test_matmul_is_compute_bound_and_its_share_is_right() -> None:
    # 1024^3 in f32: 2.147e9 FLOP at 200 GFLOP/s = 10.737 ms; 12.58 MB at 50 GB/s (read ratio 2/3) = 0.252 ms.
    demand = Demand(flop={("f32", "f32"): 2.0 * 1024**3}, read_bytes=2 * 4 * 1024**2, write_bytes=4 * 1024**2)
    least = least_time(demand, machine())
    assert least.time_s == pytest.approx(10.737e-3, rel=1e-3)
    verdict = judge(least, 12e-3)
    assert verdict.bound is Bound.COMPUTE
    assert verdict.share_of_ceiling == pytest.approx(10.737 / 12, rel=1e-3)
    assert verdict.headroom_s == pytest.approx(1.263e-3, rel=1e-2)


def test_elementwise_is_memory_bound_at_the_level_that_holds_it() -> None:
    # 3 x 64 MB at 50 GB/s = 3.84 ms from DRAM.
    big = Demand(read_bytes=128e6, write_bytes=64e6)
    least = least_time(big, machine())
    assert least.level == "dram"
    assert least.time_s == pytest.approx(3.84e-3, rel=1e-6)
    # 1.2 MB fits the two instances of a 1 MiB L2 together, but not the one of a single core.
    small = Demand(read_bytes=0.8e6, write_bytes=0.4e6)
    assert least_time(small, machine()).level == "l2"
    assert least_time(small, machine(), scope="core").level == "dram"


def test_launches_add_to_the_longest_part() -> None:
    demand = Demand(read_bytes=0.8e6, write_bytes=0.4e6, launches=10.0)
    # 1.2 MB / 400 GB/s = 3 us, plus 10 launches of 1 us.
    least = least_time(demand, machine(), backend="torch")
    assert least.time_s == pytest.approx(13e-6, rel=1e-9)
    assert least.limiting is not None
    assert least.limiting.area is Area.LATENCY


def test_measured_wins_over_declared_and_scopes_do_not_mix() -> None:
    ceilings = machine(peak(900e9, kind=Kind.DECLARED), peak(100e9, scope="core"))
    chosen = ceilings.peak("f32")
    assert isinstance(chosen, Ceiling)
    assert chosen.value == 200e9
    one_core = ceilings.peak("f32", scope="core")
    assert isinstance(one_core, Ceiling)
    assert one_core.value == 100e9


def test_a_missing_peak_is_unknown_never_another_type() -> None:
    missing = machine().peak("bf16")
    assert isinstance(missing, Unknown)
    assert "bf16" in missing.reason
    least = least_time(Demand(flop={("bf16", "f32"): 1e9}), machine())
    assert isinstance(least.time_s, Unknown)
    verdict = judge(least, 1.0)
    assert verdict.bound is Bound.UNDETERMINED
    assert isinstance(verdict.share_of_ceiling, Unknown)


def test_bytes_alone_bound_no_matrix_work_whose_peak_is_missing() -> None:
    # 3 GB read at 60 GB/s take 50 ms, f32 work of 2 GFLOP at 200 GFLOP/s 10 ms; nothing tells what the f8 work takes.
    work = Demand(flop={("f8_e4m3", "f32"): 2e12, ("f32", "f32"): 2e9}, read_bytes=3e9)
    least = least_time(work, machine())
    assert isinstance(least.time_s, Unknown)
    assert "f8_e4m3 matrix" in least.time_s.reason
    assert "f8_e4m3 matrix" in " ".join(least.time_s.needs)
    assert least.no_peak == least.time_s
    assert least.needed == (least.no_peak,)
    assert least.partial_s == pytest.approx(0.05)
    assert least.floor_s == pytest.approx(0.05)
    for observed_s in (0.051, 100.0):  # near the time of its bytes or far from it: neither is a share of the work
        verdict = judge(least, observed_s)
        assert verdict.bound is Bound.UNDETERMINED
        assert isinstance(verdict.share_of_ceiling, Unknown)
        assert isinstance(verdict.headroom_s, Unknown)
        assert "DRAM read bandwidth alone takes 50.0 ms" in verdict.reason


def test_a_missing_peak_of_vector_work_leaves_bytes_the_bound() -> None:
    least = least_time(Demand(vector_flop={"bf16": 1e6}, read_bytes=3e9), machine())
    assert least.time_s == pytest.approx(0.05)
    assert (least.no_peak, least.needed, len(least.unknown)) == (None, (), 1)


def test_what_could_decide_is_named_where_nothing_of_it_is_bounded() -> None:
    # Matrix work of 20 ms with a peak; no level of memory is on record, so bytes could take longer.
    bare = Ceilings(ceilings=(peak(200e9),))
    least = least_time(Demand(flop={("f32", "f32"): 4e9}, read_bytes=3e9), bare)
    assert least.time_s == pytest.approx(0.02)
    assert [u.reason for u in least.needed] == ["the machine has no memory levels on record"]


def test_far_below_its_ceiling_is_undetermined_unless_evidence_says_more() -> None:
    least = least_time(Demand(read_bytes=128e6, write_bytes=64e6), machine())
    assert judge(least, 0.1).bound is Bound.UNDETERMINED
    assert judge(least, 0.1, evidence="page faults").bound is Bound.MEMORY
    assert judge(least, 0.1).limiting is not None


def test_a_share_above_one_is_a_finding() -> None:
    # 989e12 FLOP in 0.270862 s against 989 TFLOP/s is 3.69 times the peak.
    share = share_of(1.0, 0.270862)
    assert isinstance(share, Implausible)
    assert share.value == pytest.approx(3.692, rel=1e-3)
    least = least_time(Demand(flop={("f32", "f32"): 200e9}), machine())
    verdict = judge(least, 0.270862)
    assert verdict.bound is Bound.UNDETERMINED
    assert isinstance(verdict.share_of_ceiling, Implausible)


def test_a_measured_ceiling_beaten_by_a_little_is_too_low_and_still_the_limit() -> None:
    least = least_time(Demand(flop={("f32", "f32"): 200e9}), machine())  # 1 s at 200 GFLOP/s
    verdict = judge(least, 0.9)
    assert verdict.bound is Bound.COMPUTE
    assert isinstance(verdict.share_of_ceiling, Implausible)
    assert judge(least, 0.7).bound is Bound.UNDETERMINED


def test_bandwidth_is_the_envelope_of_the_neighbouring_mixes() -> None:
    ceilings = machine()
    read = ceilings.bandwidth("dram", read_ratio=1.0)
    triad = ceilings.bandwidth("dram", read_ratio=2 / 3)
    between = ceilings.bandwidth("dram", read_ratio=0.6)
    assert isinstance(read, Ceiling)
    assert isinstance(triad, Ceiling)
    assert isinstance(between, Ceiling)
    assert read.value == 60e9
    assert triad.value == 50e9
    assert between.value == 50e9  # between copy (0.5, 40 GB/s) and triad (2/3, 50 GB/s): the better


def test_types_that_share_an_engine_follow_each_other() -> None:
    # 2 GFLOP in f32 at 200 GFLOP/s = 10 ms, then 4 GFLOP in bf16 at 400 GFLOP/s = 10 ms on the same units: 20 ms.
    bf16 = Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix"),
        value=400e9, unit="FLOP/s", kind=Kind.MEASURED,
    )  # fmt: skip
    least = least_time(Demand(flop={("f32", "f32"): 2e9, ("bf16", "f32"): 4e9}), machine(bf16))
    assert least.time_s == pytest.approx(20e-3)


def test_without_an_accumulator_the_usual_one_is_meant() -> None:
    # RTX 4090: f16 accumulating in f16 330.3 TFLOP/s, in f32 165.2.
    def f16(accumulate: str, value: float) -> Ceiling:
        resource = Resource(area=Area.COMPUTE, dtype="f16", accumulate=accumulate, engine="matrix")
        return Ceiling(resource=resource, value=value, unit="FLOP/s", kind=Kind.DECLARED)

    card = Ceilings(ceilings=(f16("f16", 330.3e12), f16("f32", 165.2e12)))
    usual, narrow = card.peak("f16"), card.peak("f16", accumulate="f16")
    assert isinstance(usual, Ceiling)
    assert isinstance(narrow, Ceiling)
    assert (usual.value, narrow.value) == (165.2e12, 330.3e12)


rates = st.floats(min_value=1e6, max_value=1e15)
amounts = st.floats(min_value=0.0, max_value=1e18)


@given(amounts, amounts, rates, rates, st.floats(min_value=1.0, max_value=100.0))
def test_more_bandwidth_is_never_slower(
    flop: float, size: float, flop_rate: float, byte_rate: float, factor: float
) -> None:
    slow = least_time_s([flop / flop_rate, size / byte_rate])
    fast = least_time_s([flop / flop_rate, size / (byte_rate * factor)])
    assert fast <= slow
    assert least_time_s([flop / flop_rate, size / byte_rate]) <= least_time_s(
        [flop / flop_rate, size / byte_rate], overlap="none"
    )


@given(amounts, amounts, st.integers(min_value=2, max_value=64))
def test_splitting_work_conserves_it(flop: float, size: float, pieces: int) -> None:
    whole = Demand(flop={("f32", "f32"): flop}, read_bytes=size, write_bytes=size / 2)
    part = Demand(flop={("f32", "f32"): flop / pieces}, read_bytes=size / pieces, write_bytes=size / 2 / pieces)
    total = part
    for _ in range(pieces - 1):
        total = total + part
    assert total.total_flop == pytest.approx(whole.total_flop, rel=1e-9)
    assert total.bytes == pytest.approx(whole.bytes, rel=1e-9)
    assert total.launches == pieces
    assert part.scaled(pieces).total_flop == pytest.approx(whole.total_flop, rel=1e-9)


def test_unknown_spreads_and_has_no_truth_value() -> None:
    unknown = Unknown("no bytes", ("--bytes",))
    assert (unknown / 2.0 + 1.0) == unknown
    assert 3.0 / unknown == unknown
    assert not is_known(unknown)
    with pytest.raises(TypeError, match="no truth value"):
        bool(unknown)
