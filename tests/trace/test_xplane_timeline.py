"""XPlane profiles and the JSON the XLA profiler writes beside them."""

from __future__ import annotations

import json
import random

import pytest

from mansard.core.errors import InputError
from mansard.trace.open import recognise
from mansard.trace.prepare import device_index
from mansard.trace.readers import chrome, xplane_timeline
from mansard.trace.timeline import CopyKind, Kind


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    data = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


def plane(name, lines, names):
    metadata = b"".join(text(4, number(1, i) + text(2, number(1, i) + text(2, n))) for i, n in enumerate(names, 1))
    built = b""
    for line, events in lines.items():
        body = text(2, line) + number(3, 100)
        for code, offset, length in events:
            body += text(4, number(1, code) + number(2, offset) + number(3, length))
        built += text(3, body)
    return text(1, text(2, name) + built + metadata)


GPU = plane("/device:GPU:1", {"Stream #3(Compute)": [(1, 5_000_500, 2_000_000), (2, 9_000_000, 1_000_000)], "XLA Ops": [(1, 5_000_500, 2_000_000)],
                              "XLA Modules": [(3, 5_000_500, 9_000_000)]}, ["fusion.1", "MemcpyH2D", "jit_f"])  # fmt: skip
TPU = plane(
    "/device:TPU:0",
    {"XLA Ops": [(1, 0, 4_000_000)], "Steps": [(2, 0, 5_000_000)], "XLA Modules": [(2, 0, 5_000_000)]},
    ["fusion.2", "1"],
)


def read(tmp_path, data):
    path = tmp_path / "p.xplane.pb"
    path.write_bytes(data)
    return xplane_timeline.read(path)


def test_streams_are_work_and_derived_lines_are_not(tmp_path):
    t = read(tmp_path, GPU + TPU)
    k = t.of(Kind.KERNEL).sorted()
    # 100 ns + 5,000,500 ps, rounded down; the operation on the TPU starts at 100 ns.
    assert list(zip(k.start_ns.tolist(), k.end_ns.tolist(), strict=True)) == [(100, 4100), (5100, 7100)]
    assert [(t.devices[d].number, t.names[n]) for d, n in zip(k.device, k.name, strict=True)] == [
        (0, "fusion.2"),
        (1, "fusion.1"),
    ]
    assert k.stream.tolist()[1] == 3
    assert t.of(Kind.COPY).copy_kind.tolist() == [CopyKind.HOST_TO_DEVICE]
    assert len(t.of(Kind.DEVICE_ANNOTATION)) == 4  # the same time once more, by operation, module and step


def test_cut_anywhere_is_an_error_or_less(tmp_path):
    data = GPU + TPU
    for at in range(len(data)):
        try:
            t = read(tmp_path, data[:at])
        except InputError:
            continue
        assert len(t.of(Kind.KERNEL)) <= 2


def test_flipped_bytes_never_raise_anything_else(tmp_path):
    rng = random.Random(5)
    for _ in range(400):
        data = bytearray(GPU + TPU)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(tmp_path, bytes(data))
        except InputError:
            continue


def test_xla_json_is_sorted_out_by_plane_and_line(tmp_path):
    def named(kind, pid, tid, name):
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}

    def event(pid, tid, name, ts, dur):
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur}

    events = [
        named("process_name", 1, 0, "/device:GPU:2"), named("process_name", 9, 0, "/host:CPU"), named("thread_name", 1, 4, "Stream #4(Compute)"),
        named("thread_name", 1, 5, "XLA Ops"), event(1, 4, "fusion", 1.5, 2), event(1, 4, "MemcpyD2H", 4, 1), event(1, 5, "fusion", 1.5, 2),
        event(9, 8, "$file.py:1 f", 0, 9), event(9, 8, "PjitFunction(f)", 0, 9), {},
    ]  # fmt: skip
    path = tmp_path / "t.trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "metadata": {}, "traceEvents": events}))
    t = chrome.read(path)
    assert t.format == "xla_trace"
    k = t.of(Kind.KERNEL)
    assert (k.start_ns.tolist(), k.end_ns.tolist(), k.stream.tolist()) == ([1500], [3500], [4])
    assert [t.devices[d].number for d in k.device] == [2]
    assert t.of(Kind.COPY).copy_kind.tolist() == [CopyKind.DEVICE_TO_HOST]
    assert {x.name: len(v) for x, v in t.tables.items()} == {"KERNEL": 1, "COPY": 1, "DEVICE_ANNOTATION": 1, "OTHER": 1}
    assert "left out" in t.absent[Kind.PYTHON]
    path.write_text("{}")
    with pytest.raises(InputError):
        chrome.read(path)


def test_a_sparse_core_is_a_device_of_its_own(tmp_path):
    lines = {
        "Sparse Core Ops": [(1, 0, 3_000_000)],
        "Sparse Core Modules": [(2, 0, 3_500_000)],
        "Sparse Core Steps": [(2, 0, 3_500_000)],
    }
    t = read(tmp_path, TPU + plane("/device:TPU:0 SparseCore 1", lines, ["gather", "1"]))
    # modules and steps repeat the time of the operations
    assert t.of(Kind.KERNEL).duration_ns.tolist() == [4000, 3000]
    assert [t.devices[d].shown for d in t.of(Kind.KERNEL).device] == ["0", "0 SparseCore 1"]
    assert device_index(t, 0) == 0


def test_a_stream_of_copies_holds_no_kernels(tmp_path):
    t = read(tmp_path, plane("/device:GPU:0", {"Stream #8(MemcpyOther)": [(1, 0, 3_000_000), (2, 4_000_000, 1_000_000)]},
                             ["CopyDeviceToDevice", "odd name"]))  # fmt: skip
    assert not t.has(Kind.KERNEL)
    assert t.of(Kind.COPY).duration_ns.tolist() == [3000, 1000]
    assert int(t.of(Kind.COPY).copy_kind[0]) == CopyKind.DEVICE_TO_DEVICE


def test_the_folder_of_a_jax_profile_names_the_file_in_it(tmp_path):
    inside = tmp_path / "plugins" / "profile" / "2026_11_30" / "host.xplane.pb"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"")
    with pytest.raises(InputError, match="without a known profile") as caught:
        recognise(tmp_path)
    assert str(inside) in caught.value.hint
