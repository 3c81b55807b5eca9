"""Kinds of communication, and one call of each: what `collectives_of` lists call by call."""

from __future__ import annotations

import numpy as np

from mansard.trace.collectives_of import collective_kinds, collectives_of
from mansard.trace.timeline import Detail, Device, Kind, Timeline, events


def test_calls_with_the_same_record_are_one_kind() -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "Float",
        "Group size": 4,
    }
    kernels = events(
        start_ns=np.array([40, 0, 20, 60]), end_ns=np.array([50, 10, 35, 62]), device=np.zeros(4, dtype=np.int32), stream=7,
        name=np.array([0, 0, 0, 1], dtype=np.int32), detail=np.array([0, 0, 1, -1], dtype=np.int32),
    )  # fmt: skip
    timeline = Timeline(
        source="made", format="kineto", version="1", tables={Kind.KERNEL: kernels},
        names=("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "gemm"), devices=(Device(number=0, name="NVIDIA H100"),),
        details=(Detail(args=args), Detail(args={**args, "In msg nelems": 500})),
    )  # fmt: skip
    kinds = collective_kinds(timeline)
    # By start: row 1 (4000 B), row 2 (500 elements, 2000 B), row 0 (4000 B); the product is none of them.
    assert kinds.rows.tolist() == [1, 2, 0]
    assert [kinds.examples[k].message_bytes for k in kinds.kind.tolist()] == [4000.0, 2000.0, 4000.0]
    assert len(kinds.examples) == 2
    calls = collectives_of(timeline)
    assert [(c.row, c.start_ns, c.end_ns, c.message_bytes) for c in calls] == [
        (1, 0, 10, 4000.0), (2, 20, 35, 2000.0), (0, 40, 50, 4000.0),
    ]  # fmt: skip
