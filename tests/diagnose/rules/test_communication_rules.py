"""Rules about collectives, ranks, pipelines and links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rule_cases import Ran, case_of, device, device_case, gemm, on_device, operator, run_of, said, talk

from mansard.diagnose.facts import Facts, MemoryUse, OffloadFacts, PipelineFacts, RankFacts
from mansard.trace.run import Part, WaitCause

MS = 1e-3
WORK = gemm(4096, 4096, 4096)  # 1.374 ms at 100 TFLOP/s
REDUCE = talk("all_reduce", 40e6, 8, "nvlink")  # 0.1 ms at 400 GB/s


def test_overlap_promises_no_more_than_computation_can_hide() -> None:
    # 1 ms of exposed communication beside 2 ms of work: all of it; beside 0.5 ms of work: half of it.
    long = said("overlap_communication", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)]))
    assert long is not None
    assert long.gain_s == pytest.approx(1.0 * MS, rel=1e-6)
    small = gemm(2048, 2048, 2048)  # 0.172 ms at 100 TFLOP/s
    short = said("overlap_communication", device_case([Ran(small, 0.5), Ran(REDUCE, 1.0)]))
    assert short is not None
    assert short.gain_s == pytest.approx(0.5 * MS, rel=1e-6)
    assert "500 us of it cannot be hidden" in short.evidence


def test_idle_time_hides_no_communication() -> None:
    small = gemm(2048, 2048, 2048)
    found = said(
        "overlap_communication", device_case([Ran(small, 0.5), Ran(REDUCE, 1.0), Ran(WaitCause.UNEXPLAINED, 5.0)])
    )
    assert found is not None
    assert found.gain_s == pytest.approx(0.5 * MS, rel=1e-6)


def test_overlap_leaves_waiting_for_peers_out() -> None:
    ranks = RankFacts(rank=0, waiting_s=0.7 * MS, straggler=3, straggler_share=0.9, ranks=8)
    found = said("overlap_communication", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)], Facts(ranks=ranks)))
    assert found is not None
    assert found.gain_s == pytest.approx(0.3 * MS, rel=1e-6)


def test_overlap_is_silent_where_communication_is_hidden() -> None:
    assert said("overlap_communication", device_case([Ran(WORK, 2.0)])) is None
    run = on_device(run_of([Ran(WORK, 2.0), Ran(REDUCE, 1.0)]))
    # The collective of each step is moved beside its product, on a lane of its own.
    talks = run.op == 1
    moved = replace(
        run, start_ns=np.where(talks, run.start_ns - 1_500_000, run.start_ns), end_ns=np.where(talks, run.end_ns - 1_500_000, run.end_ns),
        lane=np.where(talks, 1, 0).astype(np.int32),
    )  # fmt: skip
    assert said("overlap_communication", case_of(moved, device())) is None


def test_reshard_needs_the_same_gather_twice_and_room_for_it() -> None:
    first = talk("all_gather", 2e9, 8, "nvlink")
    again = talk("all_gather", 2e9, 8, "nvlink", Part.BACKWARD)
    room = Facts(memory=MemoryUse(peak_bytes=70e9, capacity_bytes=80e9))
    step = [Ran(WORK, 20.0), Ran(first, 6.0), Ran(again, 6.0)]
    found = said("reshard", device_case(step, room))
    assert found is not None
    assert found.gain_s == pytest.approx(6.0 * MS, rel=1e-6)
    full = Facts(memory=MemoryUse(peak_bytes=79e9, capacity_bytes=80e9))
    assert said("reshard", device_case(step, full)) is None
    assert said("reshard", device_case(step)) is None
    other = talk("all_gather", 1e9, 8, "nvlink", Part.BACKWARD)
    assert said("reshard", device_case([Ran(WORK, 20.0), Ran(first, 6.0), Ran(other, 6.0)], room)) is None


def test_topology_needs_a_small_group_on_the_slow_link() -> None:
    far = talk("all_reduce", 40e6, 8, "network")
    # 50 against 400 GB/s: seven eighths of 1 ms.
    found = said("topology", device_case([Ran(WORK, 2.0), Ran(far, 1.0)], Facts(node_devices=8)))
    assert found is not None
    assert found.gain_s == pytest.approx(0.875 * MS, rel=1e-6)
    assert said("topology", device_case([Ran(WORK, 2.0), Ran(far, 1.0)])) is None
    assert said("topology", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)], Facts(node_devices=8))) is None
    large = talk("all_reduce", 40e6, 16, "network")
    assert said("topology", device_case([Ran(WORK, 2.0), Ran(large, 1.0)], Facts(node_devices=8))) is None


FIT = {"operation": "all_reduce", "participants": 8, "link": "nvlink", "alpha_s": 20e-6, "beta_bytes_per_s": 200e9}


def test_small_messages_save_latency_alone() -> None:
    # n_half = 20 us * 200 GB/s = 4 MB. 100 messages of 0.1 MB: 10 MB, one message of up to 16 MB would do.
    small = talk("all_reduce", 0.1e6, 8, "nvlink")
    found = said("small_messages", device_case([Ran(WORK, 2.0), *[Ran(small, 0.025)] * 100], fits=[FIT]))
    # 99 * 20 us = 1.98 ms of 2.5 ms; the bytes need 50 us.
    assert found is not None
    assert found.gain_s == pytest.approx(1.98 * MS, rel=1e-6)
    assert "100 x all_reduce" in found.evidence


def test_small_messages_are_silent_without_a_fit_or_with_large_ones() -> None:
    small, large = talk("all_reduce", 0.1e6, 8, "nvlink"), talk("all_reduce", 8e6, 8, "nvlink")
    assert said("small_messages", device_case([*[Ran(small, 0.025)] * 100])) is None
    assert said("small_messages", device_case([*[Ran(large, 0.06)] * 100], fits=[FIT])) is None
    other = {**FIT, "participants": 16}
    assert said("small_messages", device_case([*[Ran(small, 0.025)] * 100], fits=[other])) is None


def test_stragglers_name_the_rank_that_is_waited_for() -> None:
    ranks = RankFacts(rank=0, waiting_s=0.7 * MS, straggler=3, straggler_share=0.9, ranks=8)
    found = said("stragglers", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)], Facts(ranks=ranks)))
    assert found is not None
    assert found.gain_s == pytest.approx(0.7 * MS, rel=1e-6)
    assert "rank 3" in found.text
    skewed = replace(ranks, straggler=None, straggler_share=0.0)
    spread = said("stragglers", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)], Facts(ranks=skewed)))
    assert spread is not None
    assert "no rank of 8 stands out" in spread.evidence
    assert said("stragglers", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)])) is None


def test_pipeline_bubbles_by_the_ideal_schedule() -> None:
    # p = 4, m = 8: 3/11 idle; m = 16: 3/19. Idle per work 3/8 becomes 3/16: half of the bubble goes.
    facts = Facts(pipeline=PipelineFacts(stages=4, microbatches=8, bubble_s=1.0 * MS))
    receive = talk("recv", 1e6, 2, "nvlink")
    found = said("pipeline_bubbles", device_case([Ran(WORK, 2.0), Ran(receive, 1.0)], facts))
    assert found is not None
    assert found.gain_s == pytest.approx(0.5 * MS, rel=1e-6)
    assert said("pipeline_bubbles", device_case([Ran(WORK, 2.0)], facts)) is None
    alone = Facts(pipeline=PipelineFacts(stages=1, microbatches=8, bubble_s=1.0 * MS))
    assert said("pipeline_bubbles", device_case([Ran(WORK, 2.0), Ran(receive, 1.0)], alone)) is None


def test_expert_offload_names_what_fills_the_link() -> None:
    # 220 of 418 GB/s: 1 - 220 / 418 = 0.473684 of the 1 ms that the step waits; 9.4 MB in 42.7 us, 17.86 MB fill the link: 2.
    offload = OffloadFacts(
        bytes_each=9.4e6,
        pieces=24,
        rate_bytes_per_s=220e9,
        ceiling_bytes_per_s=418e9,
        declared_bytes_per_s=450e9,
        exposed_s=1.0 * MS,
    )
    fetch = operator("copy host to device", "copy", link_bytes={"pcie": 9.4e6})
    found = said("expert_offload", device_case([Ran(WORK, 2.0), Ran(fetch, 1.0)], Facts(offload=offload)))
    assert found is not None
    assert found.gain_s == pytest.approx(1.0 * MS * (1 - 220 / 418), rel=1e-6)
    assert "Fetch 2 experts at once" in found.text
    assert "450 GB/s declared" in found.evidence
    full = replace(offload, rate_bytes_per_s=418e9)
    assert said("expert_offload", device_case([Ran(WORK, 2.0), Ran(fetch, 1.0)], Facts(offload=full))) is None


def beside(slow_ms: float) -> object:
    """Each step: the product alone (2 ms), then again beside a collective on another lane."""
    run = on_device(run_of([Ran(WORK, 2.0), Ran(WORK, slow_ms), Ran(REDUCE, slow_ms)]))
    talks = run.op == 1
    shift = round(slow_ms * 1e6)
    return replace(
        run, start_ns=np.where(talks, run.start_ns - shift, run.start_ns), end_ns=np.where(talks, run.end_ns - shift, run.end_ns),
        lane=np.where(talks, 1, 0).astype(np.int32),
    )  # fmt: skip


def test_collective_offload_needs_the_same_kernel_to_be_slower_beside_a_collective() -> None:
    # 2.6 ms beside, 2 ms alone: 0.6 ms in each step.
    found = said("collective_offload", case_of(beside(2.6), device()))
    assert found is not None
    assert found.gain_s == pytest.approx(0.6 * MS, rel=1e-6)
    assert said("collective_offload", case_of(beside(2.05), device())) is None
    assert said("collective_offload", device_case([Ran(WORK, 2.0), Ran(REDUCE, 1.0)])) is None


def test_a_link_below_its_ceiling_is_said_without_a_cause() -> None:
    # 40 MB at 400 GB/s need 0.1 ms of 1 ms.
    found = said("below_ceiling", device_case([Ran(gemm(4096, 4096, 4096), 1.4), Ran(REDUCE, 1.0)]))
    assert found is not None
    assert found.gain_s == pytest.approx(0.9 * MS, rel=1e-6)
    assert "filling the link" in found.text
    assert "0.10 of its nvlink link ceiling" in found.evidence
