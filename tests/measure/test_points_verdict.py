"""Verdicts on evidence written by hand: one GEMM of 10^9 FLOP on a machine of 10^11 FLOP/s must take 10 ms."""

from __future__ import annotations

import dataclasses

import pytest

from mansard.core import Demand
from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource
from mansard.core.unknown import Unknown
from mansard.measure.points.audit import audit, drift_ratio
from mansard.measure.points.benchmark import Transfer, Where, Work
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.metrics import metrics_of
from mansard.measure.points.result import Conditions, PointVerdict, Regime, Samples
from mansard.measure.points.verdict import at_clock, judge_point

GEMM = Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix")
DRAM = Resource(area=Area.MEMORY, level="dram", mix="triad")
LEVELS = (MemoryLevel(level="l3", capacity_bytes=1e6), MemoryLevel(level="dram", capacity_bytes=1e10))


def machine(kind=Kind.MEASURED, conditions=None, clock_hz=4e9):
    peak = Ceiling(resource=GEMM, value=1e11, unit="FLOP/s", kind=kind, scope="node")
    dram = Ceiling(resource=DRAM, value=1e10, unit="B/s", kind=kind, scope="node", conditions=conditions or {})
    return Ceilings(ceilings=(peak, dram), levels=LEVELS, machine={"clock_hz_estimated": clock_hz})


def samples(median_s, half_ratio=0.0, **more):
    return Samples(
        seconds=(median_s,) * 10, median_s=median_s, low_s=median_s * (1 - half_ratio),
        high_s=median_s * (1 + half_ratio), **more,
    )  # fmt: skip


def point(median_s, *, half_ratio=0.0, conditions=None, ceilings=None, work=None, prepared=None, **more):
    quiet = {"foreign_ratio": 0.0, "steal_ratio": 0.0, "clock_hz": 4e9, "cores_used": 2.0}
    return Evidence(
        work=work or Work(demand=Demand(flop={("f32", "f32"): 1e9}, read_bytes=1e5), peak=("f32", "f32", "matrix")),
        where=Where(backend="native", platform="cpu", threads=2, cpus=(0, 1)), params={},
        prepared=prepared or {}, samples=samples(median_s, half_ratio, **more),
        conditions=Conditions(**{**quiet, **(conditions or {})}), ceilings=ceilings or machine(),
    )  # fmt: skip


def judged(e):
    return judge_point(e, audit(e)[1])


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    ("median_s", "verdict"),
    [(0.0105, "normal"), (0.0140, "normal"), (0.0145, "low"), (0.1, "low")],  # 95, 71, 69 and 10 % of the ceiling
)
def test_seventy_percent_is_normal_whatever_the_ceiling(kind, median_s, verdict):
    assert judged(point(median_s, ceilings=machine(kind))).verdict == verdict


@pytest.mark.parametrize(
    ("median_s", "half_ratio", "verdict"),
    [
        (0.0139, 0.049, "normal"),  # 10 / 13.9 = 72 %; up to +-5 % the median decides
        (0.0139, 0.051, "noisy"),  # 68.5 to 75.8 %: either side of 70 %
        (0.0148, 0.049, "low"),  # 67.6 %
        (0.0148, 0.06, "noisy"),  # 63.7 to 71.9 %
        (0.0105, 0.10, "normal"),  # 86.6 to 105.8 %: both ends are normal
        (0.0105, 0.21, "noisy"),  # 78.7 to 120.6 %, and no figure any more
        (0.1, 0.19, "low"),  # 8.4 to 12.3 %: low, wherever in it
        (0.1, 0.21, "noisy"),
    ],
)
def test_a_wide_interval_is_noisy_unless_both_its_ends_say_the_same(median_s, half_ratio, verdict):
    found = judged(point(median_s, half_ratio=half_ratio))
    assert found.verdict == verdict
    assert ("the 95 % interval of the median is" in found.reason) == (half_ratio > 0.05)


def test_a_measured_ceiling_that_is_beaten_a_little_is_too_low():
    found = judged(point(0.01 / 1.2))  # 1.2 times the ceiling
    assert found.verdict is PointVerdict.NORMAL
    assert [f.code for f in found.findings] == ["ceiling_too_low"]


def test_a_share_above_one_within_the_uncertainty_is_said_and_not_cut():
    # 10 ms of least time in 10 / 1.3 ms, +-40 %: 130 % is within it, and two points of other rates must not both read 100 %
    found = judged(point(0.01 / 1.3, half_ratio=0.4))
    assert found.share == pytest.approx(1.3)
    assert found.verdict is PointVerdict.NOISY
    assert "130 % of the f32 matrix ceiling (measured), above it by less than the uncertainty" in found.reason


def test_a_ceiling_that_is_beaten_by_much_makes_the_point_implausible():
    found = judged(point(0.01 / 1.3))
    assert found.verdict is PointVerdict.IMPLAUSIBLE
    assert [f.code for f in found.findings] == ["above_ceiling"]


def test_a_ceiling_that_was_taken_on_a_busy_machine_is_too_low_and_not_the_point():
    # others used 43 % while it was measured, so up to 1.25 / (1 - 0.43) = 2.19 of it can be its own fault
    (ceiling, *rest) = machine().ceilings
    busy = dataclasses.replace(
        machine(), ceilings=(dataclasses.replace(ceiling, conditions={"foreign_load_ratio": 0.43}), *rest)
    )
    found = judged(point(0.01 / 1.3, ceilings=busy))
    assert found.verdict is PointVerdict.NORMAL
    assert [f.code for f in found.findings] == ["ceiling_too_low"]
    assert "others used 43 % of the processors while it was measured" in found.reason
    assert judged(point(0.01 / 2.3, ceilings=busy)).verdict is PointVerdict.IMPLAUSIBLE


def test_a_declared_ceiling_cannot_be_beaten_at_all():
    assert judged(point(0.01 / 1.1, ceilings=machine(Kind.DECLARED))).verdict is PointVerdict.IMPLAUSIBLE


def test_without_a_ceiling_nothing_is_judged():
    found = judged(dataclasses.replace(point(0.01), ceilings=None, levels=LEVELS))
    assert found.verdict is None
    assert isinstance(found.share, Unknown)
    assert found.reason.startswith("not judged")


def test_a_noisy_point_without_a_ceiling_says_both():
    found = judged(dataclasses.replace(point(0.01, half_ratio=0.1), ceilings=None, levels=LEVELS))
    assert found.verdict is PointVerdict.NOISY
    assert "+-10 % wide; not judged: the ceilings of this machine are not known" in found.reason


def test_the_peak_of_another_type_never_stands_in():
    work = Work(demand=Demand(flop={("bf16", "f32"): 1e9}), peak=("bf16", "f32", "matrix"))
    found = judged(point(0.01, work=work))
    assert found.verdict is None
    assert isinstance(found.share, Unknown)


def test_compute_ceilings_follow_the_clock_that_was_seen():
    # at 3 GHz of 4 the ceiling is 0.75e11: 10^9 FLOP must take 13.3 ms, and 14 ms are 95 % of it
    slow = judged(point(0.014, conditions={"clock_hz": 3e9}))
    assert slow.share == pytest.approx(1e9 / 0.75e11 / 0.014)
    assert slow.verdict is PointVerdict.NORMAL
    low = judged(point(0.025, conditions={"clock_hz": 3e9}))
    assert "clock was 3.00 GHz, 75 %" in low.reason
    # on a busy machine the clock looks lower than it is and is not used
    busy = judged(point(0.014, conditions={"clock_hz": 3e9, "foreign_ratio": 0.3}))
    assert busy.share == pytest.approx(0.01 / 0.014)


def test_only_what_follows_the_clock_is_moved():
    moved = at_clock(machine(), 0.5)
    values = {c.resource.area: c.value for c in moved.ceilings}
    assert values == {Area.COMPUTE: 5e10, Area.MEMORY: 1e10}  # main memory has a clock of its own
    declared = at_clock(machine(Kind.DECLARED), 0.5)
    assert declared.ceilings[0].value == 1e11  # a datasheet says at which clock it speaks


def test_a_low_point_says_why():
    assert "other programs used 40 %" in judged(point(0.05, conditions={"foreign_ratio": 0.4})).reason
    assert "hypervisor took 10 %" in judged(point(0.05, conditions={"steal_ratio": 0.1})).reason
    assert "throttled for 1.00 s" in judged(point(0.05, conditions={"throttled_s": 1.0})).reason
    assert "kept 1.0 of 2 cores busy" in judged(point(0.05, conditions={"cores_used": 1.0})).reason
    assert "dispatch: an empty call takes 20.0 ms" in judged(point(0.05, floor_s=0.02)).reason
    # 10^9 FLOP in 50 ms on 2 cores at 4 GHz are 2.5 FLOP per cycle and core, the ceiling has 12.5
    assert "2.5 FLOP per cycle and core, the ceiling has 12.5" in judged(point(0.05)).reason


def test_the_shortfall_is_factored():
    found = judged(point(0.04, conditions={"cores_used": 1.0}))  # a quarter of the ceiling with half of the cores
    assert found.factors["cores_ratio"] == 0.5
    assert found.factors["units_ratio"] == pytest.approx(0.5)
    assert found.factors["cores_ratio"] * found.factors["units_ratio"] == pytest.approx(found.share)


def test_the_slow_regime_of_memory_is_a_reason():
    # 2 x 10^8 bytes at 10^10 B/s must take 20 ms; 40 ms are the slower of the two regimes
    work = Work(demand=Demand(read_bytes=1e8, write_bytes=1e8), headline="bytes")
    found = judged(point(0.04, work=work, ceilings=machine(conditions={"regimes": [5e9, 1e10]})))
    assert found.verdict is PointVerdict.LOW
    assert "two regimes" in found.reason


def test_executed_work_is_what_the_ceiling_sees():
    # a flash backward executes 2.5 units for 2 of model work: 1.25 x 10^9 FLOP must take 12.5 ms
    work = Work(
        demand=Demand(flop={("f32", "f32"): 1e9}, read_bytes=1e5), executed_flop=1.25e9, peak=("f32", "f32", "matrix")
    )
    e = point(0.0125, work=work)
    found = judged(e)
    assert found.share == pytest.approx(1.0)
    assert metrics_of(e, found)["mfu_ratio"] == pytest.approx(0.8)  # model work over the peak


def test_load_is_said_beside_a_normal_point():
    codes = {f.code for f in audit(point(0.0105, conditions={"foreign_ratio": 0.2, "steal_ratio": 0.05}))[1]}
    assert {"foreign_load", "steal"} <= codes


def test_a_rate_that_does_not_last_is_said():
    # two processes; the second window of each is 10 % slower than the first
    e = point(0.0105)
    seconds = (1.0, 1.0, 1.1, 1.1) * 2
    e = dataclasses.replace(
        e,
        samples=Samples(
            seconds=seconds, windows=((0, 2), (0, 2), (1, 2), (1, 2)), median_s=1.05, low_s=1.04, high_s=1.06
        ),
    )
    assert drift_ratio(e) == pytest.approx(0.1)
    assert "drift" in {f.code for f in audit(e)[1]}


def test_percentiles_of_few_samples_are_not_shown():
    e = point(0.0105)
    assert "p99_ms" not in metrics_of(e, judged(e))
    assert "p95_ms" not in metrics_of(e, judged(e))
    many = dataclasses.replace(e, samples=dataclasses.replace(e.samples, seconds=(0.0105,) * 100))
    assert metrics_of(many, judged(many))["p99_ms"] == pytest.approx(10.5)


def test_a_result_that_went_wrong_while_it_was_timed_is_caught():
    def check(ratio):
        return {"check": {"error_ratio": ratio, "against": "f64"}}

    e = point(0.0105, prepared=check(0.1))
    assert judged(dataclasses.replace(e, finished=check(0.2))).verdict is PointVerdict.NORMAL
    wrong = dataclasses.replace(e, finished=check(3.0))
    assert [f.code for f in audit(wrong)[1]] == ["wrong_result"]
    assert "after the samples" in audit(wrong)[1][0].text
    assert judged(wrong).verdict is PointVerdict.IMPLAUSIBLE
    assert judged(dataclasses.replace(e, finished=check(None))).verdict is PointVerdict.IMPLAUSIBLE


def test_a_program_without_arguments_is_refused_though_its_constants_are_small():
    count = {"flop": 1e9, "parameters": 0, "constant_bytes": 0.0}
    assert [f.code for f in audit(point(0.0105, prepared={"count": count}))[1]] == ["constant_inputs"]
    assert audit(point(0.0105, prepared={"count": {**count, "parameters": 2}}))[1] == ()


def test_every_sample_counts():
    # ten samples of which one is ten times as long: the mean holds it, the median does not, none is left out
    seconds = (0.01,) * 9 + (0.1,)
    e = dataclasses.replace(point(0.01), samples=dataclasses.replace(samples(0.01), seconds=seconds, outliers=(9,)))
    found = metrics_of(e, judged(e))
    assert found["avg_ms"] == pytest.approx(19.0)  # (9 x 10 + 100) / 10
    assert found["p50_ms"] == pytest.approx(10.0)
    assert found["actual_runs"] == 10
    assert found["outliers"] == 1


def test_write_allocate_is_a_second_column():
    # copy of 10^8 bytes: 2 x 10^8 counted, 3 x 10^8 moved where lines are read before they are written
    work = Work(demand=Demand(read_bytes=1e8, write_bytes=1e8), headline="bytes", write_allocate_bytes=3e8)
    found = metrics_of(point(0.1, work=work), judged(point(0.1, work=work)))
    assert found["bandwidth_gb_s"] == pytest.approx(2.0)
    assert found["write_allocate_gb_s"] == pytest.approx(3.0)


def test_both_bandwidths_of_a_transfer_stand_with_their_size():
    moved = Transfer(
        operation="all_reduce", size_bytes=1e8, size_means="the buffer", bus_factor=1.5, participants=4, link="ring"
    )
    work = Work(demand=Demand(link_bytes={"ring": 1.5e8}), transfer=moved, headline="transfer")
    found = metrics_of(point(0.1, work=work), judged(point(0.1, work=work)))
    assert (found["algbw_gb_s"], found["busbw_gb_s"]) == (pytest.approx(1.0), pytest.approx(1.5))
    assert (found["size_bytes"], found["participants"]) == (1e8, 4)
    one = dataclasses.replace(moved, bus_factor=Unknown("one participant"), participants=1)
    alone = metrics_of(point(0.1, work=dataclasses.replace(work, transfer=one)), judged(point(0.1, work=work)))
    assert isinstance(alone["busbw_bytes_per_s"], Unknown)
    assert "busbw_gb_s" not in alone


def test_a_working_set_just_beyond_a_cache_may_be_faster_than_memory():
    # 2 x 10^6 bytes, twice the cache of 10^6: at 10^10 B/s they must take 0.2 ms, and take 0.1 ms; the cache has 5 x 10^10
    l3 = Ceiling(
        resource=Resource(area=Area.MEMORY, level="l3", mix="triad"), value=5e10, unit="B/s", kind=Kind.MEASURED,
        scope="node",
    )  # fmt: skip
    ceilings = machine().merged([l3])
    near = Work(demand=Demand(read_bytes=1e6, write_bytes=1e6), headline="bytes")
    found = judged(point(1e-4, work=near, ceilings=ceilings))
    assert found.verdict is PointVerdict.NORMAL
    assert [f.code for f in found.findings] == ["partly_cached"]
    assert "only 2 times L3" in found.reason
    # twelve times the cache is memory, and what is beyond the cache's own rate is beyond everything
    far = Work(demand=Demand(read_bytes=6e6, write_bytes=6e6), headline="bytes")
    assert judged(point(6e-4, work=far, ceilings=ceilings)).verdict is PointVerdict.IMPLAUSIBLE
    assert judged(point(1e-5, work=near, ceilings=ceilings)).verdict is PointVerdict.IMPLAUSIBLE


FIT = {
    "name": "all_reduce/jax", "operation": "all_reduce", "link": "ring", "participants": 4, "alpha_s": 2e-5,
    "alpha_ci95_s": [1e-5, 3e-5], "beta_bytes_per_s": 9.5e9, "beta_ci95_bytes_per_s": [9e9, 1e10], "error_ratio": 0.1,
    "bus_bytes_range": [1e4, 1e8],
}  # fmt: skip


def transferred(time_s, fits=(FIT,), **changed):
    fields = {"operation": "all_reduce", "size_bytes": 1e6, "size_means": "the buffer", "bus_factor": 1.5,
              "participants": 4, "link": "ring", **changed}  # fmt: skip
    demand = Demand(link_bytes={"ring": 1.5e6}) if fields["link"] == "ring" else Demand(read_bytes=4e6, write_bytes=4e6)
    work = Work(demand=demand, transfer=Transfer(**fields), headline="transfer")
    return judged(point(time_s, work=work, ceilings=dataclasses.replace(machine(), fits=fits)))


def test_a_transfer_is_judged_by_what_its_link_was_measured_to_do():
    # the best within the intervals: 10 us + 1.5 MB / 10 GB/s = 160 us
    found = transferred(2e-4)
    assert found.least_s == pytest.approx(1.6e-4)
    assert found.share == pytest.approx(0.8)
    assert found.verdict is PointVerdict.NORMAL
    assert found.ceiling.resource.link == "ring"
    # another operation, number of devices, or a size far outside of the fit has none, and says what it lacks
    for changed in ({"operation": "all_gather"}, {"participants": 8}, {"size_bytes": 1e9}):
        other = transferred(2e-4, **changed)
        assert isinstance(other.share, Unknown)
        assert "no ceiling for the link 'ring'" in other.reason
    assert isinstance(transferred(2e-4, fits=()).share, Unknown)


def test_the_cost_of_a_call_bounds_no_transfer_over_a_link_without_a_ceiling():
    # A call of 4 us is 0.0 % of 118 ms over a link that nobody knows, which says nothing of the link.
    cost = Ceiling(resource=Resource(area=Area.LATENCY, backend="native"), value=4e-6, unit="s", kind=Kind.MEASURED,
                   scope="node")  # fmt: skip
    known = dataclasses.replace(machine(), ceilings=(*machine().ceilings, cost))
    moved = Transfer(
        operation="all_reduce", size_bytes=1e6, size_means="the buffer", bus_factor=1.5, participants=4, link="ring"
    )
    work = Work(demand=Demand(link_bytes={"ring": 1.5e6}, launches=1.0), transfer=moved, headline="transfer")
    found = judged(point(0.118, work=work, ceilings=known))
    assert found.verdict is None
    assert isinstance(found.share, Unknown)
    assert "no ceiling for the link 'ring'" in found.reason
    # Without any ceiling it is the link that is missing too, and a fit of it is enough.
    bare = dataclasses.replace(machine(), ceilings=())
    assert "no ceiling for the link 'ring'" in judged(point(0.118, work=work, ceilings=bare)).reason
    fitted = judged(point(2e-4, work=work, ceilings=dataclasses.replace(bare, fits=(FIT,))))
    assert fitted.share == pytest.approx(0.8)
    # Work that is no transfer keeps its floor.
    alone = Work(demand=Demand(launches=1.0), headline="bytes")
    assert judged(point(8e-6, work=alone, ceilings=known)).least_s == pytest.approx(4e-6)


def test_of_two_bounds_of_a_transfer_the_longer_one_counts():
    # 8 MB through memory of 10 GB/s take 800 us; the fit alone would allow 160 us
    fit = {**FIT, "link": "local_devices"}
    found = transferred(1e-3, fits=(fit,), link="local_devices")
    assert found.least_s == pytest.approx(8e-4)
    assert found.ceiling.resource.level == "dram"
    slow = {**fit, "alpha_ci95_s": [8.5e-4, 9e-4]}
    assert transferred(1e-3, fits=(slow,), link="local_devices").least_s == pytest.approx(1e-3)


def test_a_low_collective_of_made_devices_says_why():
    low = transferred(5e-3, fits=(), link="local_devices")  # 0.8 of 5 ms
    assert low.share == pytest.approx(0.16)
    assert low.verdict is PointVerdict.LOW
    assert "4 devices made out of one processor" in low.reason


def test_a_point_of_two_regimes_names_both_with_their_intervals():
    # 10 ms is the least: 12.5 ms is 80 % of it and 20 ms are 50 %
    regimes = tuple(
        Regime(median_s=m, low_s=0.98 * m, high_s=1.02 * m, share_ratio=share, processes=3, interval="")
        for m, share in ((0.0125, 0.6), (0.02, 0.4))
    )
    blurred = point(0.0125, half_ratio=0.3)
    blurred = dataclasses.replace(blurred, samples=dataclasses.replace(blurred.samples, regimes=regimes))
    found = judged(blurred)
    assert found.verdict is PointVerdict.NOISY
    assert "12.5 ms +-2.0 % in 60 % of the samples (80 % of the f32 matrix ceiling)" in found.reason
    assert "20.0 ms +-2.0 % in 40 % of the samples (50 % of the f32 matrix ceiling)" in found.reason
    metrics = metrics_of(blurred, found)
    assert [r["median_s"] for r in metrics["regimes"]] == [0.0125, 0.02]
    alone = dataclasses.replace(blurred, ceilings=None, levels=LEVELS)
    assert "two regimes" in judged(alone).reason
    assert "not judged" in judged(alone).reason


def test_a_noisy_point_says_who_else_was_there():
    found = judged(point(0.0125, half_ratio=0.3, conditions={"foreign_ratio": 0.5}))
    assert "other programs used 50 % of the processors" in found.reason


def test_a_stated_access_mix_is_compared_with_its_own_kind():
    # 2 x 10^8 bytes of a copy in 40 ms are 5 GB/s: 83 % of what copies reach, and 62.5 % of updates in place
    def one(mix, value):
        resource = Resource(area=Area.MEMORY, level="dram", mix=mix)
        return Ceiling(resource=resource, value=value, unit="B/s", kind=Kind.MEASURED, scope="node")

    known = machine().merged([one("copy", 6e9), one("in_place", 8e9)])
    work = Work(demand=Demand(read_bytes=1e8, write_bytes=1e8), headline="bytes", write_allocate_bytes=3e8)

    def of(time_s, mix):
        return judged(point(time_s, work=work, ceilings=known, prepared={"facts": {"mix": mix, "store": "regular"}}))

    assert of(0.04, "copy").share == pytest.approx(5 / 6)
    assert "DRAM copy bandwidth" in of(0.04, "copy").reason
    assert "3.75 GB/s move with that counted" in of(0.08, "copy").reason  # 3 x 10^8 bytes in 80 ms
    assert of(0.04, "gather").share == pytest.approx(5 / 8)  # nobody measured that: the best of as many reads counts


def test_bytes_never_stand_in_for_a_peak_that_is_not_known():
    # f8 on a machine without an f8 ceiling: its 10^5 bytes are no bound of 10^9 FLOP, so there is no share at all
    work = Work(demand=Demand(flop={("f8_e4m3", "f32"): 1e9}, read_bytes=1e5), peak=("f8_e4m3", "f32", "matrix"))
    found = judged(point(0.5, work=work))
    assert isinstance(found.share, Unknown)
    assert found.verdict is None
    assert "no f8_e4m3 matrix" in found.reason
    # work that is quoted in bytes is still judged by them
    bytes_ = dataclasses.replace(work, demand=Demand(vector_flop={"f8_e4m3": 1e3}, read_bytes=1e8), headline="bytes")
    assert judged(point(0.0125, work=bytes_)).share == pytest.approx(0.8)
