"""Ranks of one job: whose file it is, one clock or none, arrival against transfer, and the straggler by name."""

from __future__ import annotations

import json

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.trace.collectives_of import bus_factor, collectives_of
from mansard.trace.open import recognise
from mansard.trace.ranks import compare_ranks, identity_of
from mansard.trace.readers import chrome

US = 1000


def kernel(name, ts, dur, **args):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": 7, **args},
    }


def all_reduce(ts, dur, *, elements=1000, size=2):
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, dtype="Float",
        **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": size,
           "Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
    )  # fmt: skip


def step(number, ts, dur):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "dur": dur,
        "args": {},
    }


@pytest.fixture
def rank_file(tmp_path):
    def make(rank, events, *, base=1_700_000_000_000_000_000, host="", name="", world=2):
        head = {"baseTimeNanoseconds": base} if base is not None else {}
        if rank is not None:
            head["distributedInfo"] = {"rank": rank, "world_size": world}
        if host:
            head["host_name"] = host
        path = tmp_path / (name or f"file{rank}.json")
        path.write_text(json.dumps({**head, "traceEvents": events}))
        return chrome.read(path)

    return make


def pair(rank_file, *, drift_us=0, **options):
    """Rank 1 computes 40 us longer before the first all-reduce and 10 us longer before the second.

    Rank 0 starts its all-reduces at 100 and 300 us and waits; both end together at 150 and 320 us.
    """
    one = [step(1, 0, 400), kernel("gemm", 0, 100), all_reduce(100, 50), kernel("gemm", 150, 150), all_reduce(300, 20)]
    two = [step(1, 5, 410), kernel("gemm", 0, 140), all_reduce(140, 10), kernel("gemm", 150, 160), all_reduce(310, 10)]
    moved = [{**e, "ts": e["ts"] + drift_us} for e in two]
    first, second = options.pop("hosts", ("node1", "node1"))
    return rank_file(0, one, host=first, **options), rank_file(1, moved, host=second, **options)


def test_arrival_is_told_from_transfer(rank_file):
    job = compare_ranks(list(pair(rank_file)))
    assert job.clock.trust == "one host"
    assert job.clock.residual_ns == (0, 0)
    assert [c.arrival_skew_ns for c in job.collectives] == [40 * US, 10 * US]
    assert [c.transfer_ns for c in job.collectives] == [10 * US, 10 * US]  # the rank that came last waited least
    assert [c.last for c in job.collectives] == [1, 1]
    zero, one = job.ranks
    assert (zero.waiting_ns, one.waiting_ns) == (40 * US + 10 * US, 0)
    assert (zero.late_ns, one.late_ns, one.last_count) == (0, 50 * US, 2)
    assert job.straggler == 1
    # Compute 100 + 150 = 250 us against 140 + 160 = 300 us: 300 / 275 - 1.
    assert (zero.compute_ns, one.compute_ns) == (250 * US, 300 * US)
    assert job.imbalance_ratio() == pytest.approx(300 / 275 - 1)
    (shared,) = job.steps
    assert (shared.length_ns, shared.start_skew_ns, shared.spread_ns) == ((400 * US, 410 * US), (0, 5 * US), 10 * US)


def test_the_order_of_the_files_does_not_matter(rank_file):
    files = pair(rank_file)
    assert compare_ranks(list(files)) == compare_ranks(list(reversed(files)))


def test_clocks_of_two_hosts_are_fitted_on_collective_ends(rank_file):
    job = compare_ranks(list(pair(rank_file, drift_us=30_000_000, hosts=("node1", "node2"))))  # 30 s apart
    assert (job.clock.method, job.clock.trust) == ("collectives", "fitted")
    assert job.clock.shift_ns == (0, -30_000_000 * US)
    assert [c.arrival_skew_ns for c in job.collectives] == [40 * US, 10 * US]
    assert job.steps[0].start_skew_ns == (0, 5 * US)
    assert job.straggler == 1


def test_unnamed_hosts_with_far_clocks_are_not_taken_for_one_clock(rank_file):
    job = compare_ranks(list(pair(rank_file, drift_us=30_000_000, hosts=("", ""))))
    assert job.clock.trust == "fitted"


def test_no_common_clock_is_said(rank_file):
    one = rank_file(0, [step(1, 0, 10), kernel("gemm", 0, 5)], base=None, host="a")
    two = rank_file(1, [step(1, 3, 10), kernel("gemm", 0, 5)], base=None, host="b")
    job = compare_ranks([one, two])
    assert job.clock.method == "none"
    assert isinstance(job.straggler, Unknown)
    assert isinstance(job.steps[0].start_skew_ns, Unknown)
    assert job.steps[0].length_ns == (10 * US, 10 * US)  # lengths need no common clock
    assert isinstance(job.ranks[0].late_ns, Unknown)


def test_collectives_that_cannot_be_one_are_not_matched(rank_file):
    # Rank 0 leaves the second all-reduce at 210 us; "the same" one of rank 1 starts at 900 us.
    one = rank_file(0, [all_reduce(100, 50), all_reduce(200, 10)], host="n")
    two = rank_file(1, [all_reduce(140, 10), all_reduce(900, 10)], host="n")
    job = compare_ranks([one, two])
    assert [c.number for c in job.collectives] == [0]
    assert job.unmatched == (1, 1)
    assert "torn_collectives" in [f.code for f in job.findings]


def test_counts_that_differ_are_not_matched(rank_file):
    one = rank_file(0, [all_reduce(100, 50), all_reduce(200, 10)], host="n")
    two = rank_file(1, [all_reduce(140, 10)], host="n")
    job = compare_ranks([one, two])
    assert (job.collectives, job.unmatched) == ((), (2, 1))
    assert "unmatched_collectives" in [f.code for f in job.findings]


def test_rank_from_file_then_name_then_nothing(rank_file):
    stated = identity_of(rank_file(3, [kernel("k", 0, 1)], name="rank9.json"))
    assert (stated.rank, stated.stated_by) == (3, "file")
    weak = identity_of(rank_file(None, [kernel("k", 0, 1)], name="trace_rank12.json"))
    assert (weak.rank, weak.stated_by) == (12, "name")
    none = identity_of(rank_file(None, [kernel("k", 0, 1)], name="a.json"))
    assert isinstance(none.rank, Unknown)
    assert none.stated_by == "nothing"


def test_one_file_and_twice_the_same_rank_are_refused(rank_file):
    one = rank_file(0, [kernel("k", 0, 1)])
    with pytest.raises(UsageError, match="at least two"):
        compare_ranks([one])
    with pytest.raises(UsageError, match="both rank 0"):
        compare_ranks([one, rank_file(0, [kernel("k", 0, 1)], name="b.json")])


def test_rates_of_a_collective(rank_file):
    (call,) = collectives_of(rank_file(0, [all_reduce(0, 2, elements=1000, size=4)]))
    # 1000 floats in 2 us: 4000 B / 2e-6 s = 2e9 B/s; all-reduce of 4 ranks: 2 x 3/4 = 1.5.
    assert call.algbw_bytes_per_s == pytest.approx(2e9)
    assert call.busbw_bytes_per_s == pytest.approx(3e9)
    assert isinstance(bus_factor("send_recv", 4), Unknown)
    assert isinstance(bus_factor("all_reduce", Unknown("?")), Unknown)


def test_the_residual_of_clocks_is_written_with_its_prefix(rank_file):
    # Rank 1 ends its all-reduces 4 us and 8 us after rank 0: shifted by their median, 6 us, both are 2 us apart.
    one = [step(1, 0, 400), all_reduce(100, 50), all_reduce(300, 20)]
    two = [step(1, 0, 400), all_reduce(100, 54), all_reduce(300, 28)]
    job = compare_ranks([rank_file(0, one, host="node1"), rank_file(1, two, host="node2")])
    assert "2.00 us apart at the median" in job.clock.note


def test_results_of_mansard_are_no_profiles_and_what_reads_them_is_said(tmp_path):
    path = tmp_path / "run-0.json"
    path.write_text(json.dumps({"schema": "run/1", "tool_version": "0.1.0", "timeline": {"traceEvents": []}}))
    with pytest.raises(InputError, match=r"a result of Mansard \(run/1\), not a profile") as caught:
        recognise(path)
    assert "mansard report run-0.json" in caught.value.hint
    assert "mansard trace ranks compares the documents" in caught.value.hint
    path.write_text(json.dumps({"schema": "ceilings/1", "tool_version": "0.1.0"}))
    with pytest.raises(InputError, match="ceilings/1") as caught:
        recognise(path)
    assert "trace ranks" not in caught.value.hint
