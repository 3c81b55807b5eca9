"""Metrics: the identities that tie them hold for every run, and the numbers are those of a bitmap and of hand counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.core import (
    Area,
    Ceiling,
    Ceilings,
    Demand,
    Implausible,
    Kind,
    MemoryLevel,
    Resource,
    UndecidedError,
    Unknown,
    UsageError,
    is_known,
)
from mansard.core.document import dumps
from mansard.core.intervals import EMPTY, merge
from mansard.core.unknown import Implausible as ImplausibleValue
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.metrics import DEFINITIONS, by_name, kernel_union_ratio, occupied_metrics, run_metrics
from mansard.diagnose.occupied import IDLE_CAUSES, Occupied, of_device, of_run
from mansard.diagnose.serving_metrics import decode_metrics, rank_value, served, serving_metrics
from mansard.trace.occupancy import DeviceTime
from mansard.trace.run import Operator, Part, RunTrace, Steps, WaitCause
from mansard.trace.timeline import Device

MS = 1_000_000
PEAK = 1e12

GEMM = Operator(
    name="gemm", category="gemm", part=Part.FORWARD, shapes="", scope="device",
    demand=Demand(flop={("bf16", "f32"): 27e9}, read_bytes=1e6, write_bytes=1e6),
)  # fmt: skip
REDUCE = Operator(
    name="ncclDevKernel_AllReduce", category="collective", part=Part.OTHER, shapes="", scope="device",
    demand=Unknown("the size is not recorded"), link=Unknown("not known"),
)  # fmt: skip
COPY = Operator(
    name="copy host to device", category="copy", part=Part.INPUT, shapes="", demand=Unknown("no size"), scope="device"
)
KINDS = (GEMM, REDUCE, COPY)


def machine() -> Ceilings:
    """A device of 1 TFLOP/s in bf16 and 100 GB/s."""
    peak = Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix")
    memory = Resource(area=Area.MEMORY, level="hbm")
    return Ceilings(
        ceilings=(
            Ceiling(resource=peak, value=PEAK, unit="FLOP/s", kind=Kind.DECLARED, scope="device"),
            Ceiling(resource=memory, value=100e9, unit="B/s", kind=Kind.DECLARED, scope="device"),
        ),
        levels=(MemoryLevel(level="hbm", capacity_bytes=80e9),),
    )


def run(work, waits=(), dispatch=(), edges=(0, 100 * MS), framework="profile") -> RunTrace:
    """A run of (kind, start, end) on lanes of their own, (cause, start, end) of waits, and (start, end) of dispatch [ns]."""
    kinds = np.array([KINDS.index(k) for k, _, _ in work], dtype=np.int32)

    def column(values) -> np.ndarray:
        return np.array(list(values), dtype=np.int64)

    return RunTrace(
        framework=framework, operators=KINDS, op=kinds, start_ns=column(s for _, s, _ in work), end_ns=column(e for _, _, e in work),
        lane=np.arange(len(work), dtype=np.int32), dispatch_start_ns=column(s for s, _ in dispatch),
        dispatch_end_ns=column(e for _, e in dispatch), wait_start_ns=column(s for _, s, _ in waits),
        wait_end_ns=column(e for _, _, e in waits), wait_cause=tuple(c for c, _, _ in waits),
        steps=Steps(start_ns=column(edges[:-1]), end_ns=column(edges[1:]), source="marker"), window_ns=(edges[0], edges[-1]),
        threads=2, scope="device",
    )  # fmt: skip


# One step of 100 ms, by hand: product 0-40, all-reduce 30-60, input wait 60-80, copy 70-75, sync 80-85, dispatch 85-88.
BY_HAND = run(
    [(GEMM, 0, 40 * MS), (REDUCE, 30 * MS, 60 * MS), (COPY, 70 * MS, 75 * MS)],
    [(WaitCause.INPUT, 60 * MS, 80 * MS), (WaitCause.SYNC, 80 * MS, 85 * MS)],
    [(85 * MS, 88 * MS)],
)


def test_a_step_by_hand() -> None:
    o = of_run(BY_HAND)
    assert o.wall_s == pytest.approx(0.100)
    assert o.union_s == pytest.approx(0.060)  # 0-60
    assert o.kernel_sum_s == pytest.approx(0.070)  # 40 + 30
    assert (o.communication_s, o.overlapped_s, o.exposed_s) == pytest.approx((0.030, 0.010, 0.020))
    assert o.idle["copy_only"] == pytest.approx(0.005)
    assert o.idle["input_wait"] == pytest.approx(0.015)  # 20 less the 5 in which a copy runs
    assert o.idle["host_sync"] == pytest.approx(0.005)
    assert o.idle["launch_gap"] == pytest.approx(0.003)
    assert o.idle["unexplained_idle"] == pytest.approx(0.012)  # 88-100
    assert o.host_blocked_s == pytest.approx(0.020)


def test_the_metrics_of_that_step() -> None:
    m = by_name(
        run_metrics(diagnose_run(BY_HAND, machine(), program="p"), of_run(BY_HAND), devices=8, tokens_per_step=1000.0)
    )
    # 27 GFLOP in 100 ms on 1 TFLOP/s: 27 %. Over the 60 ms in which kernels run: 45 %.
    assert m["mfu_ratio"].value == pytest.approx(0.27)
    assert m["kernel_union_ratio"].value == pytest.approx(0.45)
    assert m["busy_ratio"].value == pytest.approx(0.60)
    assert m["achieved_flop_per_s"].value == pytest.approx(270e9)
    # the bytes of the all-reduce are not known, so 2 MB in 100 ms are a lower bound
    assert m["achieved_bytes_per_s"].value.reason.startswith("at least 20.0 MB/s")
    assert m["overlap_ratio"].value == pytest.approx(1 / 3)
    assert m["tokens_per_s"].value == pytest.approx(10_000)
    assert m["tokens_per_s_per_device"].value == pytest.approx(1250)
    assert m["mfu_ratio"].inputs["peak_flop_per_s"] == PEAK


def test_a_sum_that_leaves_work_out_is_no_rate() -> None:
    # 20 ms of counted products and 20 ms of a product whose shapes nobody recorded
    unknown = replace(GEMM, name="another", demand=Unknown("its shapes are not recorded"))
    both = run([(GEMM, 0, 20 * MS), (REDUCE, 20 * MS, 40 * MS)])
    both = replace(both, operators=(GEMM, unknown, COPY))
    m = by_name(run_metrics(diagnose_run(both, machine(), program="p")))
    assert isinstance(m["mfu_ratio"].value, Unknown)
    assert m["achieved_flop_per_s"].value.reason.startswith("at least 270 GFLOP/s: the FLOP of 50 %")
    whole = run([(GEMM, 0, 40 * MS)])
    n = by_name(run_metrics(diagnose_run(whole, machine(), program="p")))
    assert n["achieved_flop_per_s"].value == pytest.approx(270e9)
    assert n["achieved_bytes_per_s"].value == pytest.approx(20e6)


def test_speed_of_light_is_over_the_time_charged() -> None:
    # the product must take 27 ms and ran for 40, 10 of them beside an all-reduce; the all-reduce itself has no bound
    found = diagnose_run(BY_HAND, machine(), program="p")
    (row,) = [r for r in found.operators if r.name == "gemm"]
    sol = by_name(run_metrics(found))["sol_ratio"]
    assert sol.value == pytest.approx(0.027 / row.time_s)
    assert sol.inputs["least_s"] == pytest.approx(0.027)
    assert sol.inputs["coverage_ratio"] < 1.0
    alone = run([(GEMM, 0, 40 * MS)])
    assert by_name(run_metrics(diagnose_run(alone, machine(), program="p")))["sol_ratio"].value == pytest.approx(
        27 / 40
    )


def test_the_list_is_stable_and_defined() -> None:
    metrics = run_metrics(diagnose_run(BY_HAND, machine(), program="p"), of_run(BY_HAND))
    names = [m.name for m in metrics]
    assert names == [n for n in DEFINITIONS if n in names]  # in the order of the definitions
    bare = run_metrics(diagnose_run(BY_HAND, machine(), program="p"))
    assert [m.name for m in bare] == names  # what is not known keeps its place
    assert isinstance(by_name(bare)["union_s"].value, Unknown)
    assert isinstance(by_name(bare)["tokens_per_s"].value, Unknown)
    assert isinstance(by_name(bare)["kernel_union_ratio"].value, Unknown)
    assert all(m.definition and m.unit for m in metrics)
    assert "kernel_union_ratio" in dumps({"metrics": metrics})


def test_steps_of_a_host_have_python_between_operations() -> None:
    host = replace(BY_HAND, framework="torch", scope="node")
    o = of_run(host)
    assert o.idle["unexplained_idle"] == 0.0
    # its copy is an operation like any other there, so the input wait has 15 ms beside it, and the last 12 ms are Python
    assert o.idle["copy_only"] == 0.0
    assert o.union_s == pytest.approx(0.065)
    assert (o.idle["input_wait"], o.idle["host_python"]) == pytest.approx((0.015, 0.012))


intervals = st.tuples(st.integers(-5, 60), st.integers(0, 25)).map(lambda t: (t[0], t[0] + t[1]))
worked = st.lists(st.tuples(st.sampled_from(KINDS), intervals).map(lambda t: (t[0], *t[1])), max_size=12)
waited = st.lists(st.tuples(st.sampled_from(list(WaitCause)), intervals).map(lambda t: (t[0], *t[1])), max_size=6)


@given(
    work=worked,
    waits=waited,
    dispatch=st.lists(intervals, max_size=4),
    cuts=st.lists(st.integers(1, 49), max_size=3),
    framework=st.sampled_from(["profile", "torch"]),
)
@settings(max_examples=150, deadline=None)
def test_identities_hold_for_every_run(work, waits, dispatch, cuts, framework) -> None:
    edges = (0, *sorted(set(cuts)), 50)
    o = of_run(run(work, waits, dispatch, edges, framework))
    steps = len(edges) - 1
    # the same figures from a bitmap of the 50 ns
    kernels = [
        {t for k, s, e in work for t in range(max(s, 0), min(e, 50)) if keep(k, framework)}
        for keep in (is_kernel, is_talk)
    ]
    assert o.union_s * 1e9 * steps == pytest.approx(len(kernels[0] | kernels[1]))
    assert o.communication_s * 1e9 * steps == pytest.approx(len(kernels[1]))
    assert o.overlapped_s * 1e9 * steps == pytest.approx(len(kernels[0] & kernels[1]))
    # wall = union + idle, idle = its causes, communication = exposed + overlapped, union = the rest + exposed
    assert o.wall_s * 1e9 * steps == pytest.approx(50)
    assert sum(o.idle.values()) == pytest.approx(o.idle_s)
    assert set(o.idle) == set(IDLE_CAUSES)
    assert all(t >= 0 for t in o.idle.values())
    assert o.exposed_s + o.overlapped_s == pytest.approx(o.communication_s)
    assert o.union_s * 1e9 * steps == pytest.approx(len(kernels[0]) + o.exposed_s * 1e9 * steps)
    assert o.kernel_sum_s >= o.union_s - 1e-18
    # proportions survive another wall time
    scaled = o.scaled_to(3.0)
    assert scaled.busy_ratio == pytest.approx(o.busy_ratio)
    assert sum(scaled.idle.values()) + scaled.union_s == pytest.approx(3.0)


def is_kernel(kind: Operator, framework: str) -> bool:
    return kind is GEMM or (kind is COPY and framework != "profile")


def is_talk(kind: Operator, framework: str) -> bool:
    return kind is REDUCE


@given(
    flop=st.floats(1e6, 1e18), peak=st.floats(1e9, 1e16), wall=st.floats(1e-6, 1e4), busy=st.floats(0.01, 1.0),
    devices=st.integers(1, 4096), recomputed=st.floats(0.0, 1.0),
)  # fmt: skip
def test_mfu_is_union_ratio_times_busy_and_hfu_is_mfu_times_executed(
    flop, peak, wall, busy, devices, recomputed
) -> None:
    mfu = flop / (wall * devices * peak)
    if mfu > busy:  # above the peak while it works: refused, never quoted
        found = kernel_union_ratio(min(mfu, 1.0), busy)
        assert isinstance(found, ImplausibleValue) or found == pytest.approx(1.0, rel=0.04)
        return
    union = kernel_union_ratio(mfu, busy)
    assert union * busy == pytest.approx(mfu)
    assert union == pytest.approx(flop / (busy * wall * devices * peak))
    executed = flop * (1 + recomputed)
    assert executed / (wall * devices * peak) == pytest.approx(mfu * executed / flop)


def test_a_region_that_does_nothing_has_no_union_ratio() -> None:
    assert isinstance(kernel_union_ratio(0.1, 0.0), Unknown)
    assert isinstance(kernel_union_ratio(0.9, 0.5), Implausible)
    assert isinstance(kernel_union_ratio(Unknown("no peak"), 0.5), Unknown)


def test_bad_questions_are_refused() -> None:
    d = diagnose_run(BY_HAND, machine(), program="p")
    with pytest.raises(UsageError):
        run_metrics(d, devices=0)
    with pytest.raises(UsageError):
        run_metrics(d, tokens_per_step=-1.0)
    with pytest.raises(UsageError):
        of_run(BY_HAND).scaled_to(0.0)


def device(**kinds) -> DeviceTime:
    """D37 by hand: compute 0-60 and 90-120, communication 40-90, copy 120-130 [ms]."""
    compute = merge(np.array([0, 90 * MS]), np.array([60 * MS, 120 * MS]))
    talk = merge(np.array([40 * MS]), np.array([90 * MS]))
    return DeviceTime(
        device=0, facts=Device(number=0, name="made by hand"), kernel_count=4, kernel_sum_ns=140 * MS,
        kernels=merge(np.array([0]), np.array([120 * MS])), gpu_busy_ns=130 * MS, gpu_span_ns=130 * MS,
        kinds={"compute": compute, "communication": talk, "unclassified": EMPTY, "graph": EMPTY, "memset": EMPTY,
               "copy": merge(np.array([120 * MS]), np.array([130 * MS])), **kinds},
        idle_ns=dict.fromkeys(("copy_only", "host_sync", "input_wait", "launch_gap", "unexplained"), 0), late_ns=0, streams=2,
    )  # fmt: skip


def test_a_device_of_the_communication_case() -> None:
    m = by_name(occupied_metrics(of_device(device())))
    assert m["communication_s"].value == pytest.approx(0.050)
    assert m["overlapped_communication_s"].value == pytest.approx(0.020)
    assert m["exposed_communication_s"].value == pytest.approx(0.030)
    assert m["overlap_ratio"].value == pytest.approx(0.4)
    assert m["idle_s"].value == 0.0
    assert m["concurrency_ratio"].value == pytest.approx(140 / 120)


def test_late_launches_are_the_hosts_and_add_up() -> None:
    found = of_device(
        replace(
            device(), kernels=merge(np.array([0, 90 * MS]), np.array([60 * MS, 120 * MS])), late_ns=20 * MS,
            idle_ns={"copy_only": 0, "host_sync": 5 * MS, "input_wait": 0, "launch_gap": 25 * MS, "unexplained": 0},
        )
    )  # fmt: skip
    assert (found.idle["host_python"], found.idle["launch_gap"], found.idle["host_sync"]) == pytest.approx(
        (0.020, 0.005, 0.005)
    )
    assert sum(found.idle.values()) == pytest.approx(found.idle_s)
    with pytest.raises(UndecidedError):
        of_device(replace(device(), kernels=EMPTY))


def test_no_communication_is_no_overlap_ratio() -> None:
    quiet = Occupied(
        wall_s=1.0, union_s=1.0, kernel_sum_s=1.0, communication_s=0.0, overlapped_s=0.0, idle=dict.fromkeys(IDLE_CAUSES, 0.0), basis=""
    )  # fmt: skip
    assert isinstance(by_name(occupied_metrics(quiet))["overlap_ratio"].value, Unknown)


# -- inference ------------------------------------------------------------------------------------------------------------


def test_two_requests_by_hand() -> None:
    # first: sent at 0, tokens at 1.0, 1.1, 1.2; second: sent at 1, tokens at 1.5 and 1.9
    a = served(0.0, [(1.0, 1), (1.1, 1), (1.2, 1)])
    b = served(1.0, [(1.5, 1), (1.9, 1)])
    m = by_name(serving_metrics([a, b], devices=2))
    # 5 tokens from 0 to 1.9
    assert m["output_tokens_per_s"].value == pytest.approx(5 / 1.9)
    assert m["tokens_per_s_per_device"].value == pytest.approx(5 / 1.9 / 2)
    assert m["requests_per_s"].value == pytest.approx(2 / 1.9)
    assert m["ttft_s"].value == pytest.approx(0.5)  # rank 1 of 0.5, 1.0
    assert m["tpot_s"].value == pytest.approx(0.1)  # rank 1 of 0.1, 0.4
    assert m["itl_s"].value == pytest.approx(0.1)  # rank 2 of 0.1, 0.1, 0.4
    assert m["latency_s"].value == pytest.approx(0.9)
    # Little: (1.2 + 0.9) / 1.9 under way on the mean
    assert m["concurrent_requests"].value == pytest.approx(2.1 / 1.9)
    assert isinstance(m["ttft_p99_s"].value, Unknown)  # two requests have no 99th percentile


def test_the_tail_is_a_value_that_was_seen() -> None:
    assert rank_value([float(i) for i in range(1, 101)], 0.99) == 99.0
    assert rank_value([5.0], 0.99) == 5.0
    many = [served(float(i), [(i + 0.01 * (i + 1), 1)]) for i in range(100)]
    m = by_name(serving_metrics(many))
    assert m["ttft_p99_s"].value == pytest.approx(0.99)
    assert isinstance(m["tpot_s"].value, Unknown)  # no request has a second token
    with pytest.raises(UndecidedError):
        serving_metrics([])


answers = st.lists(
    st.tuples(st.floats(0, 100), st.lists(st.tuples(st.floats(1e-3, 1.0), st.integers(1, 4)), min_size=1, max_size=6)),
    min_size=1,
    max_size=8,
)


@given(answers)
@settings(deadline=None)
def test_throughput_and_latency_are_tied(items) -> None:
    requests = []
    for arrival, chunks in items:
        now, times = arrival, []
        for gap, tokens in chunks:
            now += gap
            times.append((now, tokens))
        requests.append(served(arrival, times))
    m = {x.name: x.value for x in serving_metrics(requests)}
    for r in requests:
        assert r.latency.ttft_s + sum(r.latency.itl_s) == pytest.approx(r.latency.latency_s, abs=1e-9)
        if is_known(r.latency.tpot_s):
            assert r.latency.tpot_s * (r.latency.tokens - 1) == pytest.approx(sum(r.latency.itl_s), abs=1e-9)
    # Little's law: under way = rate x mean latency
    mean = math.fsum(r.latency.latency_s for r in requests) / len(requests)
    assert m["concurrent_requests"] == pytest.approx(m["requests_per_s"] * mean)
    tokens = sum(r.latency.tokens for r in requests)
    assert m["output_tokens_per_s"] / m["requests_per_s"] == pytest.approx(tokens / len(requests))


def test_steps_of_a_decoding_profile() -> None:
    m = by_name(decode_metrics(step_s=0.02, sequences=64.0, tokens_per_sequence=2.0, devices=4))
    assert m["itl_s"].value == m["tpot_s"].value == pytest.approx(0.01)
    assert m["output_tokens_per_s"].value == pytest.approx(6400)
    assert m["tokens_per_s_per_device"].value == pytest.approx(1600)
    assert isinstance(m["ttft_s"].value, Unknown)
    unknown = by_name(decode_metrics(step_s=0.02, sequences=Unknown("not recorded"), prefill_s=0.3))
    assert isinstance(unknown["output_tokens_per_s"].value, Unknown)
    assert unknown["ttft_s"].value == 0.3
    assert "queueing" in str(unknown["ttft_s"].inputs["basis"])
