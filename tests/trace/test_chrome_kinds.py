"""Chrome JSON of other writers: PyTorch before Kineto, and files whose events have no duration of their own."""

from __future__ import annotations

import json

import pytest

from mansard.core.errors import InputError
from mansard.trace.open import open_trace
from mansard.trace.timeline import Kind


def test_pytorch_before_kineto_has_its_kernels_by_device(tmp_path):
    path = tmp_path / "t.json"
    cpu = {"name": "aten::mm", "ph": "X", "ts": 1, "dur": 5, "tid": 0, "pid": "CPU functions", "args": {}}
    gpu = [
        {"name": n, "ph": "X", "ts": 3 + i, "dur": 9, "tid": i, "pid": "CUDA functions", "args": {}}
        for i, n in enumerate("ab")
    ]
    path.write_text(json.dumps([cpu, *gpu]))
    t = open_trace(path)
    assert t.format == "chrome"
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [9000, 9000]
    assert [t.devices[d].number for d in t.of(Kind.KERNEL).device] == [0, 1]
    assert t.names[t.of(Kind.CPU_OP).name[0]] == "aten::mm"


def test_asynchronous_events_alone_are_named(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(
            {"traceEvents": [{"ph": p, "name": "x", "id": 1, "pid": 0, "tid": 0, "ts": i} for i, p in enumerate("be")]}
        )
    )
    with pytest.raises(InputError, match="phases b, e alone"):
        open_trace(path)
