"""A page about one of several devices says which."""

from __future__ import annotations

import json

import mansard
from mansard.report.diagnose_text import answer_text


def profile(tmp_path, devices):
    """Return a file in which each device runs ten kernels of one step; device 1 the longer ones."""
    events = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 1, "ts": i * 1000, "dur": 1000}
              for i in range(3)]  # fmt: skip
    for device in devices:
        for i in range(30):
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": i * 100 + device, "dur": 2,
                    "args": {"correlation": device * 100 + i}}  # fmt: skip
            kernel = {"ph": "X", "cat": "kernel", "name": f"k{device}", "pid": device, "tid": 7, "ts": i * 100 + 10, "dur": 40 + 30 * device,
                      "args": {"correlation": device * 100 + i, "device": device, "stream": 7}}  # fmt: skip
            events += [call, kernel]
    facts = [{"id": i, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85e9, "numSms": 132} for i in range(2)]
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": facts, "traceEvents": events}))
    return path


def test_the_page_names_its_device_where_there_are_several(tmp_path):
    answer = mansard.diagnose(profile(tmp_path, (0, 1)))
    assert answer_text(answer).splitlines()[0] == "device 1, the busiest of 2:"
    whole = answer_text(answer, verbose=True).splitlines()
    assert "device 0:" in whole
    assert "device 1, the busiest of 2:" in whole


def test_the_page_of_one_device_needs_no_name(tmp_path):
    assert "busiest" not in answer_text(mansard.diagnose(profile(tmp_path, (0,))))
