"""Executed operations from a profile: completions on other threads, and kernels of one operation on a device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mansard.trace.jax_events import executions_of
from mansard.trace.readers.xplane import parse_xspace, read_xspace

NAMES = {1: "op", 2: "end: op", 3: "ThunkExecutor::Execute", 4: "ThreadpoolListener::StartRegion", 5: "next"}
STATS = {1: "hlo_op", 2: "hlo_module", 3: "program_id", 4: "run_id", 5: "_p", 6: "_c"}


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def entry(key: int, name: str) -> bytes:
    return number(1, key) + block(2, number(1, key) + block(2, name))


def event(metadata: int, start_ns: int, end_ns: int, op: str = "", **ids: int) -> bytes:
    stats = [number(1, 1) + block(5, op), number(1, 2) + block(5, "jit_f"), number(1, 3) + number(4, 9)] if op else []
    stats += [number(1, {"p": 5, "c": 6, "run": 4}[k]) + number(4, v) for k, v in ids.items()]
    body = number(1, metadata) + number(2, start_ns * 1000) + number(3, (end_ns - start_ns) * 1000)
    return block(4, body + b"".join(block(4, s) for s in stats))


def plane(name: str, lines: dict[str, list[bytes]]) -> bytes:
    body = block(2, name) + b"".join(block(3, block(2, n) + b"".join(e)) for n, e in lines.items())
    body += b"".join(block(4, entry(k, n)) for k, n in NAMES.items())
    return block(1, body + b"".join(block(5, entry(k, n)) for k, n in STATS.items()))


def intervals(data: bytes) -> list[tuple[str, int, int]]:
    found = executions_of(parse_xspace(data), origin_ns=1000)
    return [
        (found.kinds[k][2], s, e)
        for k, s, e in zip(found.kind.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    ]


def test_an_operation_ends_when_the_last_thread_is_done() -> None:
    lines = {
        "tf_XLAPjRtCpuClient/1": [event(1, 100, 200, "a", p=7, run=1)],
        "tf_XLAEigen/2": [event(2, 30_000, 30_001, c=7)],
    }
    assert intervals(plane("/host:CPU", lines)) == [("a", 1100, 31_000)]


def test_a_note_inside_the_event_changes_nothing() -> None:
    lines = {"t": [event(1, 100, 200, "a", p=7, run=1), event(2, 190, 191, c=7)]}
    assert intervals(plane("/host:CPU", lines)) == [("a", 1100, 1200)]


def test_the_continuation_is_not_part_of_the_operation() -> None:
    # the completion on the second thread started a continuation from 5000 to 90000, and the note came right after that
    lines = {
        "t1": [event(1, 100, 200, "a", p=7, run=1)],
        "t2": [event(3, 5_000, 90_000), event(1, 5_100, 89_000, "b", p=8, run=1), event(2, 88_900, 88_901, c=8),
               event(2, 90_200, 90_201, c=7)],
    }  # fmt: skip
    assert intervals(plane("/host:CPU", lines)) == [("a", 1100, 6_000), ("b", 6_100, 90_000)]


def test_another_task_before_the_note_is_no_continuation() -> None:
    # a new task of the pool began between: what ended before it does not tell when this operation was complete
    lines = {
        "t1": [event(1, 100, 200, "a", p=7, run=1)],
        "t2": [event(3, 5_000, 90_000), event(4, 90_050, 90_050), event(2, 90_200, 90_201, c=7)],
    }
    assert intervals(plane("/host:CPU", lines)) == [("a", 1100, 91_200)]


def test_kernels_of_one_operation_are_one_execution_and_a_repeated_kernel_is_the_next() -> None:
    stream = [
        event(1, 10, 20, "conv", run=1),
        event(5, 20, 50, "conv", run=1),
        event(1, 60, 70, "conv", run=1),
        event(5, 70, 95, "conv", run=1),
        event(1, 95, 99, "other", run=1),
    ]
    host = plane("/host:CPU", {"launcher": [event(1, 1, 5, "conv", run=1)]})
    data = host + plane("/device:GPU:0", {"Stream #1(Kernel)": stream})
    assert intervals(data) == [("conv", 1010, 1050), ("conv", 1060, 1095), ("other", 1095, 1099)]


def test_a_real_profile_of_eight_devices() -> None:
    root = Path(os.environ.get("MANSARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    path = root / "data" / "traces" / "xplane" / "mi300x_conv_jax0.8.xplane.pb"
    if not path.is_file():
        pytest.skip("no sample profiles: the shared folder is not here (set MANSARD_SHARED)")
    found = executions_of(read_xspace(path), origin_ns=0)
    assert sorted({int(d) for d in found.device}) == list(range(8))
    # 5 calls on each of 8 devices; a call is two transposes, a convolution of two kernels, and a transpose: 4 operations
    linked = [k for k in found.kind.tolist() if found.kinds[k][0]]
    # on device 0 one transpose and one kernel of a convolution carry no operation, and 35 copies belong to none
    assert len(linked) == 8 * 5 * 4 - 1
    assert found.count - len(linked) == 37
