"""What a run's exchanges say of its network: bytes, rate, latency against bandwidth, hidden time, another rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mansard.core import Area, Bound, Ceiling, Ceilings, Demand, Kind, MemoryLevel, Resource, Unknown
from mansard.core.errors import UsageError
from mansard.diagnose.analyse import diagnose_run
from mansard.diagnose.network import NetworkUse
from mansard.diagnose.records import Diagnosis
from mansard.trace.aten import AtenCall
from mansard.trace.aten.collective_ops import ProcessGroup, exchange, group_of
from mansard.trace.run import Operator, Part, RunTrace, Steps

MS = 1_000_000
LARGE, SMALL = 1_000_000.0, 100_000.0


def operator(name: str, sent: float | None) -> Operator:
    demand = Unknown("not recorded") if sent is None else Demand(link_bytes={"network": sent})
    return Operator(name=name, category="collective", part=Part.OTHER, shapes="", demand=demand, link="network")


GEMM = Operator(
    name="aten::mm", category="gemm", part=Part.BACKWARD, shapes="f32[1024,1024] f32[1024,1024]",
    demand=Demand(flop={("f32", "f32"): 2.0 * 1024**3}, read_bytes=8.0 * 1024**2, write_bytes=4.0 * 1024**2),
)  # fmt: skip
KINDS = (
    operator("gloo:all_reduce large", LARGE),
    operator("gloo:all_reduce small", SMALL),
    GEMM,
    operator("odd", None),
)
MACHINE = Ceilings(
    ceilings=(
        Ceiling(resource=Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix"), value=200e9,
                unit="FLOP/s", kind=Kind.MEASURED, source="made by hand"),
    )
)  # fmt: skip


def run(step: list[tuple[int, float, float, int]], *, length_ms: float, steps: int = 10) -> RunTrace:
    """Return a run of equal steps; each row is (kind, begin [ms], end [ms], lane)."""
    rows = [(k, n * length_ms + b, n * length_ms + e, lane) for n in range(steps) for k, b, e, lane in step]
    kinds, begins, ends, lanes = zip(*rows, strict=True)
    edges = np.arange(steps + 1) * int(length_ms * MS)
    return RunTrace(
        framework="torch", operators=KINDS, op=np.array(kinds, dtype=np.int32),
        start_ns=(np.array(begins) * MS).astype(np.int64), end_ns=(np.array(ends) * MS).astype(np.int64),
        lane=np.array(lanes, dtype=np.int32), op_events=np.ones(len(rows), dtype=np.int32),
        steps=Steps(start_ns=edges[:-1].astype(np.int64), end_ns=edges[1:].astype(np.int64), source="optimizer"),
        window_ns=(0, int(edges[-1])), threads=2,
    )  # fmt: skip


# 2 ms + bytes / 12.5 MB/s: 1 MB takes 2 + 80 ms, 100 kB takes 2 + 8 ms. A product of 10.74 ms comes before them.
APART = [(2, 0.0, 10.737, 0), (0, 11.0, 93.0, 1), (1, 93.0, 103.0, 1)]


def diagnosed(trace: RunTrace, ceilings: Ceilings = MACHINE) -> Diagnosis:
    return diagnose_run(trace, ceilings, program="made by hand")


def network_of(trace: RunTrace, ceilings: Ceilings = MACHINE) -> dict:
    return diagnosed(trace, ceilings).receipt["network"]


def test_the_rate_the_latency_and_the_bytes():
    found = diagnosed(run(APART, length_ms=104.0))
    assert found.verdict.bound is Bound.NETWORK
    use = found.receipt["network"]
    assert (use["link"], use["calls_per_step"], use["bus_bytes_per_step"]) == ("network", 2.0, 1_100_000.0)
    # 82 + 10 = 92 ms of exchanges, nothing else runs in them
    assert use["busy_s"] == pytest.approx(0.092)
    assert use["exposed_s"] == pytest.approx(0.092, rel=1e-3)
    assert use["busbw_bytes_per_s"] == pytest.approx(1.1e6 / 0.092)
    assert use["fit"]["alpha_s"] == pytest.approx(2e-3)
    assert use["fit"]["beta_bytes_per_s"] == pytest.approx(12.5e6)
    assert use["link_bytes_per_s"] == pytest.approx(12.5e6)
    # 1.1 MB at 12.5 MB/s is 88 of the 92 ms
    assert use["bandwidth_share_ratio"] == pytest.approx(88 / 92)
    assert use["dominated_by"] == "bandwidth"
    (note,) = [n for n in found.findings if n.code == "network"]
    assert "bandwidth-dominated" in note.text


def test_the_step_at_twice_the_rate():
    use = network_of(run(APART, length_ms=104.0))
    double = next(r for r in use["step_at_rates"] if r["link_ratio"] == 2.0)
    # 88 ms of bytes become 44, everything else stays: 104 - 44 = 60
    assert double["step_s"] == pytest.approx(60e-3, rel=0.01)


def test_what_computation_hides_is_no_network_time_and_operations_keep_their_own():
    # the product runs inside of the large exchange: 82 ms of exchanges, 10.74 of them hidden
    found = diagnosed(run([(0, 0.0, 82.0, 1), (2, 1.0, 11.737, 0)], length_ms=83.0))
    use = found.receipt["network"]
    assert use["busy_s"] == pytest.approx(82e-3)
    assert use["exposed_s"] == pytest.approx(82e-3 - 10.737e-3, rel=0.01)
    # 2 x 1024^3 / 200 GFLOP/s = 10.737 ms: the product is at its ceiling, though an exchange ran beside it
    (product,) = [r for r in found.operators if r.name == "aten::mm"]
    assert product.time_s == pytest.approx(10.737e-3, rel=0.01)
    assert product.share_of_ceiling == pytest.approx(1.0, abs=0.02)


def test_exchanges_that_share_the_network_make_no_fit_but_a_rate():
    # both at once in 90 ms: 1.1 MB / 90 ms
    use = network_of(run([(0, 0.0, 90.0, 1), (1, 0.0, 90.0, 2)], length_ms=100.0))
    assert "unknown" in use["fit"]
    assert use["busbw_bytes_per_s"] == pytest.approx(1.1e6 / 0.09)
    assert "lower bound" in use["link_rate_from"]


def test_a_declared_rate_comes_first():
    stated = Ceiling(
        resource=Resource(area=Area.NETWORK, link="network"), value=25e6, unit="B/s", kind=Kind.DECLARED, scope="device",
        source="--network-rate",
    )  # fmt: skip
    use = network_of(run(APART, length_ms=104.0), replace(MACHINE, ceilings=(*MACHINE.ceilings, stated)))
    assert use["link_bytes_per_s"] == 25e6
    assert use["link_rate_from"] == "declared ceiling of the link"
    # 1.1 MB at 25 MB/s: 44 of 92 ms
    assert use["dominated_by"] == "latency"


def test_unknown_traffic_is_said_and_no_rate_is_made_up():
    found = diagnosed(run([(3, 0.0, 50.0, 1)], length_ms=60.0))
    assert found.receipt["network"] == {"unknown": "not recorded", "needs": []}
    assert [n.code for n in found.findings if n.code.startswith("network")] == ["network_unknown"]
    assert found.verdict.bound is Bound.NETWORK


def test_a_run_without_exchanges_says_nothing_of_a_network():
    found = diagnosed(run([(2, 0.0, 10.737, 0)], length_ms=11.0))
    assert "network" not in found.receipt
    assert not [n for n in found.findings if n.code.startswith("network")]


def test_hidden_exchanges_stay_hidden_until_they_are_longer_than_what_hides_them():
    use = NetworkUse(
        link="network", calls=1.0, bus_bytes=1e6, busy_s=0.080, exposed_s=0.030, step_s=0.100, fit=Unknown("none"),
        link_bytes_per_s=12.5e6, rate_from="by hand",
    )  # fmt: skip
    # 80 ms of bytes, 50 ms of them hidden, 70 ms of a step in which more than the network runs.
    assert use.step_at_s(12.5e6) == pytest.approx(0.100)
    assert use.step_at_s(25e6) == pytest.approx(0.070)  # 40 ms, all hidden
    assert use.step_at_s(6.25e6) == pytest.approx(0.070 + 0.110)  # 160 - 50 exposed
    with pytest.raises(UsageError):
        use.step_at_s(0.0)


def test_what_gloo_records_by_operation():
    four = ProcessGroup(ranks=4, link="network")
    shapes, kinds = ((1024,),), ("float",)
    sent = {n: exchange(AtenCall(f"gloo:{n}", shapes, kinds), four).demand for n in
            ("all_reduce", "all_gather", "broadcast", "all_to_all", "send")}  # fmt: skip
    # 4096 B: 2 x 3/4 of it; 3 shards of it (S = 4 x 4096, 3/4 of that); once; 3/4; once
    assert {n: d.link_bytes["network"] for n, d in sent.items()} == {
        "all_reduce": 6144.0, "all_gather": 12288.0, "broadcast": 4096.0, "all_to_all": 3072.0, "send": 4096.0,
    }  # fmt: skip


def test_what_is_not_recorded_stays_unknown():
    four = ProcessGroup(ranks=4, link="network")
    for call, group in (
        (AtenCall("gloo:reduce_scatter", ((8,),), ("float",)), four),
        (AtenCall("gloo:all_reduce", (), ()), four),
        (AtenCall("gloo:all_reduce", ((8,),), ("mystery",)), four),
        (AtenCall("gloo:all_reduce", ((8,),), ("float",)), group_of({})),
        (AtenCall("gloo:all_reduce", ((8,),), ("float",)), group_of({"world_size": 4, "group_sizes": [2, 4]})),
    ):
        assert isinstance(exchange(call, group).demand, Unknown)


def test_ranks_of_one_host_use_the_loopback():
    assert group_of({"world_size": 2, "local_world_size": 2}).link == "loopback"
    assert group_of({"world_size": 2, "local_world_size": 1}).link == "network"
    assert group_of({"world_size": 2}).link == "network"


PSUM = Operator(
    name="psum", category="collective", part=Part.OTHER, shapes="f32[256,256] -> f32[256,256]",
    demand=Demand(vector_flop={"f32": 65536.0}, read_bytes=262144.0, write_bytes=262144.0, link_bytes={"collective": 262144.0}),
)  # fmt: skip
CACHED = replace(
    MACHINE,
    ceilings=(
        *MACHINE.ceilings,
        Ceiling(
            resource=Resource(area=Area.MEMORY, level="l2", mix="copy"), value=994e9, unit="B/s", kind=Kind.MEASURED
        ),
    ),
    levels=(MemoryLevel(level="l2", capacity_bytes=2e6, instances=2),),
)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"platform": "cpu", "process_count": 1, "num_devices": 2}, "made of the processors of one process"),
        ({"platform": "cpu", "process_count": 2, "num_devices": 2}, "no ceiling for the link 'collective'"),
        ({"platform": "gpu", "process_count": 1, "num_devices": 2}, "no ceiling for the link 'collective'"),
    ],
)
def test_an_exchange_is_never_judged_against_a_cache(environment: dict, why: str):
    # 1 ms of product, 3 ms of exchange a step: the exchange has most of it, whatever its bytes would take in a cache
    trace = run([(2, 0.0, 1.0, 0), (0, 1.0, 4.0, 1)], length_ms=4.0)
    trace = replace(trace, framework="jax", operators=(PSUM, *KINDS[1:]), environment=environment)
    found = diagnosed(trace, CACHED)
    (row,) = [r for r in found.operators if r.name == "psum"]
    assert isinstance(row.share_of_ceiling, Unknown)
    assert row.limiting_ceiling == ""
    assert found.verdict.bound is Bound.NETWORK
    assert why in found.verdict.sentence
    assert "of that link" not in found.verdict.sentence
    assert not any("Look at psum" in a.text for a in found.advice)
    # made-up devices have no link that could be twice as fast
    notes = " ".join(n.text for n in found.findings)
    assert ("twice as fast" in notes) is (environment["process_count"] == 2 or environment["platform"] == "gpu")
