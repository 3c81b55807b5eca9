"""rocprofv3 JSON and CSV, and rocprof-compute folders."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.trace.readers import rocprof_compute, rocprofv3
from mansard.trace.timeline import CopyKind, Kind


def record(start, end, **more):
    return {
        "start_timestamp": start,
        "end_timestamp": end,
        "thread_id": 5,
        "correlation_id": {"internal": more.pop("correlation", 1)},
        **more,
    }


def dispatch(start, end, kernel_id=1, agent=70, queue=3, **more):
    info = {"agent_id": {"handle": agent}, "queue_id": {"handle": queue}, "kernel_id": kernel_id, "dispatch_id": 1}
    return record(start, end, dispatch_info=info, stream_id={"handle": 0}, **more)


def document(**buffers):
    tool = {
        "metadata": {"pid": 42, "command": ["python"]},
        "agents": [
            {"type": 1, "id": {"handle": 60}, "product_name": "CPU"},
            {"type": 2, "id": {"handle": 70}, "product_name": "AMD Instinct MI300X", "name": "gfx942", "cu_count": 304},
            {"type": 2, "id": {"handle": 71}, "product_name": "", "name": "gfx942"},
        ],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "gemm"}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
            ]
        },
        "buffer_records": buffers,
    }
    return {"rocprofiler-sdk-tool": [tool]}


def read(tmp_path, content, name="r.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return rocprofv3.read(path)


def test_dispatches_copies_and_calls(tmp_path):
    copy = record(5, 9, kind=1, operation=1, src_agent_id={"handle": 60}, dst_agent_id={"handle": 70}, bytes=64)
    t = read(
        tmp_path,
        document(
            kernel_dispatch=[dispatch(10, 30), dispatch(25, 40, agent=71)], memory_copy=[copy], hip_api=[record(1, 2)]
        ),
    )
    k = t.of(Kind.KERNEL)
    assert k.duration_ns.tolist() == [20, 15]
    assert [t.devices[d].chip for d in k.device] == ["gfx942", "gfx942"]
    assert t.devices[0].name == "AMD Instinct MI300X"
    assert isinstance(t.devices[1].name, Unknown)  # an empty name is no name
    assert t.names[k.name[0]] == "gemm"
    c = t.of(Kind.COPY)
    assert (c.copy_kind[0], c.nbytes[0], c.device[0]) == (CopyKind.HOST_TO_DEVICE, 64, 0)
    assert (len(t.of(Kind.RUNTIME)), t.processes[0].pid) == (1, 42)
    assert not t.damage  # different devices may overlap


def test_damage_is_named(tmp_path):
    t = read(
        tmp_path,
        document(
            kernel_dispatch=[
                dispatch(10, 30),
                dispatch(25, 40),
                dispatch(50, 40),
                dispatch(0, 9),
                dispatch(60, 70, kernel_id=8),
            ]
        ),
    )
    assert {d.code: d.count for d in t.damage} == {
        "unnamed_kernels": 1, "time_zero": 1, "negative_duration": 1, "overlapping_slices": 1,
    }  # fmt: skip
    assert t.of(Kind.KERNEL).duration_ns.sum() == 20 + 15 + 10


def test_absent_kinds_say_how_to_record_them(tmp_path):
    t = read(tmp_path, document())
    assert "--kernel-trace" in t.why_absent(Kind.KERNEL).reason


def test_cut_json_gives_the_records_before_the_cut(tmp_path):
    text = json.dumps(document(kernel_dispatch=[dispatch(10, 30), dispatch(40, 45)]))
    second = text.index('"start_timestamp": 40')
    t = read(tmp_path, text[: second + 40])  # in the middle of the second dispatch
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [20]
    assert t.incomplete
    assert [d.code for d in t.damage] == ["truncated"]
    for at in random.Random(1).sample(range(len(text)), 60):
        try:
            t = read(tmp_path, text[:at])
        except InputError:
            continue
        assert t.incomplete
        assert len(t.of(Kind.KERNEL)) <= 2


def test_damage_inside_json_keeps_what_stands_before(tmp_path):
    text = json.dumps(document(kernel_dispatch=[dispatch(10, 30), dispatch(40, 45)]))
    t = read(tmp_path, text.replace('"start_timestamp": 40', '"start_timestamp": \x00\x01'))
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [20]
    assert "damaged at byte" in t.damage[0].text


def test_cut_gzip(tmp_path):
    text = json.dumps(document(kernel_dispatch=[dispatch(10 * i, 10 * i + 5) for i in range(1, 3000)]))
    packed = gzip.compress(text.encode())
    path = tmp_path / "r.json.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    t = rocprofv3.read(path)
    assert t.incomplete
    assert 0 < len(t.of(Kind.KERNEL)) < 2999


def test_foreign_json_is_an_error_by_name(tmp_path):
    with pytest.raises(InputError, match="no process"):
        read(tmp_path, {"rocprofiler-sdk-tool": []})
    with pytest.raises(InputError, match="no intact"):
        read(tmp_path, {"rocprofiler-sdk-tool": 5})


def test_csv(tmp_path):
    text = (
        '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"KERNEL_DISPATCH","Agent 4",1,16,"void f(int, int)",1,100,250\n"KERNEL_DISPATCH","Agent 5",1,16,"g",2,300,301\n'
    )
    t = read(tmp_path, text, "k.csv")
    k = t.of(Kind.KERNEL)
    assert (k.duration_ns.tolist(), [t.names[n] for n in k.name]) == ([150, 1], ["void f(int, int)", "g"])
    assert len(t.used_devices) == 2
    cut = read(tmp_path, text[:-8], "k.csv")
    assert cut.incomplete


def test_rocprof_compute_spellings(tmp_path):
    (tmp_path / "timestamps.csv").write_text("KernelName,gpu-id,BeginNs,EndNs\nf,3,10,25\n")
    (tmp_path / "sysinfo.csv").write_text(
        "gpu_model,gpu_arch,cu_per_gpu,max_sclk,hbm_bw\nMI200,gfx90a,104,1700,1638.4\n"
    )
    t = rocprof_compute.read(tmp_path)
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [15]
    assert [d.number for d in t.devices] == [3]
    assert isinstance(t.devices[0].name, Unknown)  # a family is no product
    (tmp_path / "timestamps.csv").unlink()
    assert "unknown" in rocprof_compute.read(tmp_path).why_absent(Kind.KERNEL).reason
    (tmp_path / "sysinfo.csv").unlink()
    with pytest.raises(InputError, match="no workload folder"):
        rocprof_compute.read(tmp_path)
