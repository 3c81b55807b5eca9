"""The Nsight Systems reader on small exports with known truth: schema variants, damage, graphs, communication, idle causes."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mansard.cli.main import main
from mansard.core.errors import InputError
from mansard.trace.kernels import graph_findings, graphs, kernel_table
from mansard.trace.launches import join_launches
from mansard.trace.occupancy import device_times
from mansard.trace.open import open_trace
from mansard.trace.profile_steps import find_steps
from mansard.trace.readers import sqlite_leaves
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.regions import attribute, innermost, range_table, region
from mansard.trace.timeline import Kind, Timeline

PID = 281474976710656 + (77 << 24)  # globalPid of process 77; a thread adds its id
KERNEL = "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER"
RUNTIME = "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER"
NVTX = "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
SYNC = "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER"
COPY = "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER"


class Export:
    """Builds an export; each method adds one row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        self.strings: dict[str, int] = {}
        self.tables: set[str] = set()

    def table(self, name: str, columns: str) -> str:
        if name not in self.tables:
            self.db.execute(f"CREATE TABLE {name} ({columns})")
            self.tables.add(name)
        return name

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = 10 + len(self.strings)
            self.db.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[text], text))
        return self.strings[text]

    def add(self, name: str, columns: str, row: Iterable[Any]) -> None:
        values = tuple(row)
        self.db.execute(f"INSERT INTO {self.table(name, columns)} VALUES ({','.join('?' * len(values))})", values)

    def kernel(
        self,
        start: int,
        end: int,
        name: str = "gemm",
        *,
        corr: int = 0,
        device: int = 0,
        stream: int = 7,
        pid: int = PID,
    ) -> None:
        code = self.string(name)
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, (start, end, device, 1, stream, corr, pid, code, code))

    def call(
        self, start: int, end: int, corr: int, name: str = "cudaLaunchKernel_v7000", *, tid: int = 1, pid: int = PID
    ) -> None:
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, (start, end, 0, pid + tid, corr, self.string(name), 0))

    def mark(self, start: int, end: int | None, text: str | None, *, kind: int = 59, tid: int = 1, end_tid: int | None = None,
             text_id: int | None = None, table: str = "NVTX_EVENTS", pid: int = PID) -> None:  # fmt: skip
        self.add(table, NVTX, (start, end, kind, text, pid + tid, end_tid, text_id, 0))

    def done(self) -> Path:
        self.db.commit()
        self.db.close()
        return self.path


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "profile.sqlite")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *words, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def table_of(timeline: Timeline) -> dict[str, tuple[int, int]]:
    return {r.name: (r.instances, r.ops) for r in range_table(attribute(timeline), grouped=False)}


# -- D35: schema variants ----------------------------------------------------------------------------------------------


def test_no_nvtx_table(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.kernel(0, 10)
    path = export.done()
    timeline = open_trace(path)
    assert not timeline.has(Kind.ANNOTATION)
    assert "NVTX" in timeline.why_absent(Kind.ANNOTATION).reason
    code, document = run(capsys, "summary", str(path))
    assert (code, document["steps"]["count"], document["devices"][0]["busy_s"]) == (0, 0, 1e-8)


def test_nvtx_table_with_a_version_in_its_name(export: Export) -> None:
    export.kernel(20, 30, corr=5)
    export.call(2, 4, 5)
    export.mark(0, 9, "step", table="NVTX_EVENTS_V3")
    assert table_of(open_trace(export.done())) == {"step": (1, 1)}


def test_names_by_id_by_text_and_missing(export: Export) -> None:
    export.kernel(20, 30, corr=5)
    export.call(2, 4, 5)
    export.mark(0, 9, None, text_id=export.string("registered"))
    export.mark(1, 8, "plain")
    export.mark(1, 7, None)
    timeline = open_trace(export.done())
    assert table_of(timeline) == {"registered": (1, 1), "plain": (1, 1), "(unnamed)": (1, 1)}
    assert any(f.code == "unnamed_ranges" and f.text.startswith("1 ") for f in timeline.findings)


def test_start_end_ranges_are_attributed_and_cross_thread_ones_are_not(export: Export) -> None:
    export.kernel(20, 30, corr=5)
    export.call(2, 4, 5)
    export.mark(0, 9, "same thread", kind=60, end_tid=PID + 1)
    export.mark(0, 9, "crosses", kind=60, end_tid=PID + 2)
    timeline = open_trace(export.done())
    assert table_of(timeline) == {"same thread": (1, 1), "crosses": (1, 0)}
    assert any(f.code == "cross_thread_ranges" for f in timeline.findings)


def test_library_ranges_are_no_steps(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(325):
        export.mark(1000 * index, 1000 * index + 900, "cub::DeviceReduce::Sum")
        export.call(1000 * index + 10, 1000 * index + 20, index + 1)
        export.kernel(1000 * index + 30, 1000 * index + 500, "reduce", corr=index + 1)
    path = export.done()
    code, document = run(capsys, "steps", str(path))
    assert (code, document["steps_detected"]) == (0, 0)


@pytest.mark.parametrize("empty", [False, True])
def test_no_kernels_is_unknown_and_says_how_to_record(
    export: Export, capsys: pytest.CaptureFixture[str], empty: bool
) -> None:
    export.call(0, 5, 1)
    if empty:
        export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL)
    code, document = run(capsys, "summary", str(export.done()))
    assert code == 3
    assert document["status"] == "no_kernels"
    text = document["findings"][0]["text"]
    assert text.startswith("no GPU kernels were recorded")
    assert "nsys profile" in text
    assert document["devices"] == []


# -- D36: union, zero length, share of idle ---------------------------------------------------------------------------------


def test_d36_union_of_streams_and_zero_length(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    for start, end, stream in ((0, 100, 1), (0, 100, 2), (50, 150, 3), (150, 150, 1)):
        export.kernel(start * 1000, end * 1000, stream=stream)
    code, document = run(capsys, "summary", str(export.done()))
    (device,) = document["devices"]
    # 100 + 100 + 100 us of kernels, 150 us of union: 150 us run at once with another
    assert (device["busy_s"], device["kernel_sum_s"], device["concurrent_excess_s"]) == (150e-6, 300e-6, 150e-6)
    assert code == 0
    assert [(d["code"], d["count"]) for d in document["damage"]] == [("zero_duration", 1)]


def test_d36_sync_is_a_share_of_device_idle(export: Export) -> None:
    # 310 ms span, 40 ms busy, 270 ms idle; the host waits in a synchronise for 200 of them: 200 / 270 = 74.07 %.
    ms = 1_000_000
    export.kernel(0, 20 * ms, stream=1)
    export.kernel(290 * ms, 310 * ms, stream=2)
    export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", SYNC, (10 * ms, 220 * ms, 0, 1, 1, 9, PID, 3))
    # a wait of a stream on an event keeps no host thread waiting
    export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", SYNC, (220 * ms, 290 * ms, 0, 1, 1, 10, PID, 2))
    (device,) = device_times(open_trace(export.done()))
    idle = device.span_ns - device.busy_ns
    assert (idle, device.idle_ns["host_sync"]) == (270 * ms, 200 * ms)
    assert device.idle_ns["host_sync"] / idle == pytest.approx(0.7407, rel=1e-3)
    assert device.idle_ns["unexplained"] == 70 * ms, "no call is known"


def test_idle_causes_by_hand(export: Export) -> None:
    # kernels [0,100) [200,300) [400,500) [50500,50600) [110600,110700); copy [120,150)
    # gap 1: 30 copy, 20+50 launched at 160 > 150 and at 110 for the copy; both launched late
    export.kernel(0, 100, corr=1)
    export.call(0, 0 + 1, 1)
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, (120, 150, 0, 1, 7, 2, PID, 64, 1))
    export.call(110, 115, 2)
    export.kernel(200, 300, corr=3)
    export.call(160, 170, 3)
    export.kernel(400, 500, corr=4)  # queued at 180, before the gap: starting it took 100 ns
    export.call(180, 190, 4)
    export.kernel(50_500, 50_600, corr=5)  # queued at 195, and yet 50 us of gap: not explained
    export.call(195, 198, 5)
    export.kernel(110_600, 110_700, corr=6)  # the loader was waited for until 100,600, then the call came
    export.call(100_700, 100_800, 6)
    export.mark(50_600, 100_600, "dataloader.__next__")
    (device,) = device_times(open_trace(export.done()))
    assert device.idle_ns == {
        "copy_only": 30, "host_sync": 0, "input_wait": 50_000, "launch_gap": 20 + 50 + 100 + 10_000, "unexplained": 50_000,
    }  # fmt: skip
    assert device.late_ns == 20 + 50 + 10_000
    assert sum(device.idle_ns.values()) == device.span_ns - device.busy_ns


# -- D37: communication --------------------------------------------------------------------------------------------------------


def test_d37_communication_and_sync(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    ms = 1_000_000
    for name, stream, start, end in (
        ("ampere_bf16_s16816gemm_128x128", 7, 0, 60), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 9, 40, 80),
        ("ncclKernel_SendRecv", 9, 80, 90), ("fused_moe_kernel", 7, 90, 120),
    ):  # fmt: skip
        export.kernel(start * ms, end * ms, name, stream=stream)
    export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", SYNC, (0, 120 * ms, 0, 1, 7, 99, PID, 3))
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, (120 * ms, 130 * ms, 0, 1, 7, 98, PID, 64, 1))
    code, document = run(capsys, "overlap", str(export.done()))
    (device,) = document["devices"]
    kinds = device["kinds"]
    assert code == 0
    assert (kinds["compute_s"], kinds["communication_s"], kinds["copy_s"], kinds["unclassified_s"]) == (
        0.09,
        0.05,
        0.01,
        0.0,
    )
    assert (device["overlap"]["communication_and_compute_s"], device["exposed_communication_s"]) == (0.02, 0.03)
    assert device["overlap"]["overlap_ratio_of_communication"] == pytest.approx(0.4)
    assert (device["idle_s"], device["gpu_idle_s"]) == (0.0, 0.0)
    assert document["exposed_communication_s"] == 0.03


def test_unknown_names_are_shown_and_are_not_compute(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.kernel(0, 300, "ampere_sgemm_128x64_nn")
    export.kernel(300, 400, "frobnicate")
    path = export.done()
    code, document = run(capsys, "kernels", str(path))
    assert (code, document["unclassified_share"]) == (0, 0.25)
    assert {k["name"]: k["category"] for k in document["kernels"]}["frobnicate"] == "unclassified"
    kinds = run(capsys, "summary", str(path))[1]["devices"][0]["kinds"]
    assert (kinds["compute_s"], kinds["unclassified_s"], kinds["not_communication_s"]) == (300e-9, 100e-9, 400e-9)


# -- D38: graphs -------------------------------------------------------------------------------------------------------------------


def test_d38_kernels_of_a_graph_share_its_launch(export: Export) -> None:
    for launch in range(4):
        export.call(1000 * launch, 1000 * launch + 5, launch + 1, "cudaGraphLaunch_v10000")
        for index in range(10):
            export.kernel(
                1000 * launch + 10 + 20 * index, 1000 * launch + 25 + 20 * index, f"k{index}", corr=launch + 1
            )
    timeline = open_trace(export.done())
    found = graphs(timeline, join_launches(timeline))
    assert (found.launches, found.kernels, found.kernels / found.launches, found.kernels_missing) == (4, 40, 10, False)
    assert len(kernel_table(timeline)) == 10, "listed one by one"
    assert [f.code for f in graph_findings(found)] == ["graph_replay"]


def test_d38_graphs_without_their_kernels_are_unreliable(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    for launch in range(200):
        export.call(36_210_000 * launch, 36_210_000 * launch + 5, launch + 1, "cudaGraphLaunch_v10000")
    for index in range(12):
        export.kernel(658_363_636 * index, 658_363_636 * index + 5_250_000, "k", corr=index + 1)
    code, document = run(capsys, "summary", str(export.done()))
    assert (code, document["status"]) == (3, "unreliable")
    (device,) = document["devices"]
    assert 1 - device["busy_ratio"] == pytest.approx(0.9913, abs=1e-3)
    (finding,) = [f for f in document["findings"] if f["code"] == "graph_kernels_missing"]
    assert "cuda-graph-trace=node" in finding["text"]


def test_opaque_graphs_count_as_busy_and_are_named(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.kernel(0, 10, corr=1)
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, graphId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, (20, 100, 0, 5, 1, 7, 2, PID))
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, (0, 0, 0, 5, 1, 7, 3, PID))
    code, document = run(capsys, "summary", str(export.done()))
    (device,) = document["devices"]
    assert (code, device["busy_s"], device["span_s"], device["kernel_sum_s"]) == (0, 90e-9, 100e-9, 10e-9)
    codes = {f["code"] for f in document["findings"]}
    assert {"opaque_graphs", "graph_time_unknown"} <= codes


# -- processes, devices, regions ----------------------------------------------------------------------------------------------------


def test_ordinals_of_two_processes_on_one_gpu(export: Export) -> None:
    other = PID + (1 << 24)
    export.kernel(0, 100)
    export.kernel(50, 150, pid=other)
    export.add("TARGET_INFO_GPU", "vmId INTEGER, id INTEGER, name TEXT", (0, 0, "Tesla T4"))
    export.add("TARGET_INFO_GPU", "vmId INTEGER, id INTEGER, name TEXT", (0, 3, "Tesla T4"))
    for pid in (77, 78):  # both see GPU 3 alone, as their device 0
        export.add("TARGET_INFO_CUDA_DEVICE", "gpuId INTEGER, cudaId INTEGER, pid INTEGER", (3, 0, pid))
    (device,) = device_times(open_trace(export.done()))
    assert (device.busy_ns, device.kernel_sum_ns, device.facts.name) == (150, 200, "Tesla T4")


def test_region_is_one_occurrence_and_says_what_other_threads_did(export: Export) -> None:
    export.mark(0, 100, "step")
    export.mark(200, 300, "step")
    for corr, start, tid in ((1, 10, 1), (2, 20, 2), (3, 210, 1)):
        export.call(start, start + 5, corr, tid=tid)
        export.kernel(1000 * corr, 1000 * corr + 100, corr=corr)
    ranges = attribute(open_trace(export.done()))
    first = region(ranges, "step")
    assert (first.occurrence, first.occurrences, first.work.size) == (1, 2, 1)
    assert (first.device_start_ns, first.device_end_ns, first.other_threads, first.other_threads_ns) == (
        1000,
        1100,
        1,
        100,
    )
    assert region(ranges, "step", all_threads=True).work.size == 2
    assert region(ranges, "st*", occurrence=2, match="glob").device_start_ns == 3000


def test_a_call_that_outlasts_its_range_is_not_inside(export: Export) -> None:
    export.mark(0, 100, "outer")
    export.mark(10, 50, "inner")
    export.call(20, 30, 1)
    export.call(40, 60, 2)
    export.kernel(200, 210, corr=1)
    export.kernel(300, 310, corr=2)
    ranges = attribute(open_trace(export.done()))
    names = [ranges.timeline.names[i] for i in ranges.table.name]
    assert dict(zip(names, ranges.ops.tolist(), strict=True)) == {"outer": 2, "inner": 1}
    first, last = ranges.projected
    assert (first.tolist(), last.tolist(), ranges.sum_ns.tolist()) == ([200, 200], [310, 210], [20, 10])
    assert [names[i] for i in innermost(ranges)] == ["inner", "outer"]


def test_open_ranges_run_to_the_last_time(export: Export) -> None:
    export.mark(0, None, "open")
    export.mark(10, 50, "closed")
    export.mark(70, None, "a mark", kind=34)
    timeline = open_trace(export.done())
    assert {r.name: r.cpu_total_ns for r in range_table(attribute(timeline))} == {"open": 70, "closed": 40}
    assert any(f.code == "open_ranges" for f in timeline.findings)


def test_steps_from_a_repeating_range(export: Export) -> None:
    for index in range(6):
        export.mark(1000 * index, 1000 * index + (990 if index else 995), f"iteration {index}")
        for layer in range(3):
            export.mark(1000 * index + 300 * layer, 1000 * index + 300 * layer + 250, "layer")
    steps = find_steps(open_trace(export.done()))
    assert (steps.source, steps.name, steps.count, steps.labels[0]) == ("marker", "iteration #", 6, "iteration 0")
    assert steps.median_s() == pytest.approx(990e-9)


# -- damage -----------------------------------------------------------------------------------------------------------------------------


def test_damaged_rows_are_named(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.kernel(0, 100)
    export.kernel(300, 200)  # ends before it starts
    export.kernel(400, 400 + 8 * 24 * 3600 * 10**9)  # eight days
    export.db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 999 WHERE start = 0")
    code, document = run(capsys, "summary", str(export.done()))
    assert {d["code"]: d["count"] for d in document["damage"]} == {
        "negative_duration": 1, "impossible_duration": 1, "missing_strings": 1,
    }  # fmt: skip
    assert (code, document["kernel_count"], document["devices"][0]["busy_s"]) == (0, 1, 1e-7)


def big(export: Export, count: int = 30_000) -> Path:
    for index in range(count):
        export.kernel(100 * index, 100 * index + 60, f"kernel {index % 7}", corr=index + 1)
    return export.done()


def test_truncated_file_gives_what_it_holds(export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = big(export).read_bytes()
    for share in (0.9, 0.5):
        cut = tmp_path / f"cut{share}.sqlite"
        cut.write_bytes(whole[: int(len(whole) * share)])
        code, document = run(capsys, "summary", str(cut))
        assert code in (3, 4)
        if code == 3:
            assert document["status"] == "incomplete"
            assert any(d["incomplete"] for d in document["damage"])
            assert 0 < document["kernel_count"] < 30_000
        else:
            assert document["error"]["message"]


def test_overwritten_pages_end_in_words(export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(big(export).read_bytes())
    rng = np.random.default_rng(1)
    for trial in range(20):
        broken = bytearray(data)
        for place in rng.integers(4096, len(broken) - 4096, size=6):
            broken[place : place + 64] = rng.integers(0, 256, size=64, dtype=np.uint8).tobytes()
        path = tmp_path / f"broken{trial}.sqlite"
        path.write_bytes(bytes(broken))
        code, document = run(capsys, "summary", str(path))
        assert code in (0, 3, 4)
        assert "schema" in document or document["error"]["message"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"), (b"SQLite format 3\x00", "damaged_database"), (b"hello world, no profile", "not_a_profile"),
        (b"\x1f\x8b\x00junk", "damaged_gzip"), (b"version https://git-lfs.github.com/spec/v1\noid", "git_lfs_pointer"),
    ],
)  # fmt: skip
def test_what_is_no_export(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_trace(path)
    assert caught.value.code == code


def test_report_of_nsys_is_not_read_but_explained(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"\x00\x01\x02 some report")
    with pytest.raises(InputError) as caught:
        open_trace(path)
    assert "nsys export --type sqlite" in caught.value.hint


def test_gzip_and_unfinished_writes_leave_the_folder_alone(export: Export, tmp_path: Path) -> None:
    path = big(export, 100)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start = 0")
    db.commit()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")}
    assert len(open_trace(packed).of(Kind.KERNEL)) == 100
    timeline = open_trace(path)
    assert len(timeline.of(Kind.KERNEL)) == 99, "what the journal holds counts"
    assert timeline.damage[0].code == "unfinished_writes"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")} == before
    db.close()


def test_memory_limit_leaves_out_the_host_before_it_refuses(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(5000):
        export.kernel(20 * i, 20 * i + 10, corr=i + 1)
        export.call(20 * i, 20 * i + 1, i + 1)
    file = str(export.done())

    def summary(limit: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main(["trace", "summary", file, "--memory-limit", limit, "--json"])
        out = capsys.readouterr().out
        return int(ended.value.code or 0), json.loads(out) if out else {}

    # Calls: 5000 x 40 B; kernels: 5000 x 52 B (44 B without what joins them to calls); 48 B a row to work on them: 700 kB, and
    # 460 kB without calls. Of a limit this small, half is for the program.
    code, whole = summary("1.5 MB")
    assert (code, whole["launched"]["kernels"]) == (0, 5000)
    code, spared = summary("1.2 MB")
    assert code == 0
    assert [f["code"] for f in spared["findings"]].count("host_left_out") == 1
    assert spared["launched"]["kernels"] == 0
    for key in ("kernel_count", "busy_s", "span_s", "kernel_sum_s"):
        assert spared["devices"][0][key] == whole["devices"][0][key]
    assert summary("800 kB")[0] == 4


def test_memory_limit(export: Export) -> None:
    path = big(export, 5000)
    with pytest.raises(InputError) as caught:
        open_trace(path, memory_limit=100_000)
    assert caught.value.code == "memory_limit"
    assert len(open_trace(path, memory_limit=100_000_000).of(Kind.KERNEL)) == 5000


def test_pages_and_cursor_agree_on_every_kind_of_integer(tmp_path: Path) -> None:
    """The b-tree leaves decoded by hand against SQLite, with all widths, NULL, added columns and deleted rows."""
    path = tmp_path / "numbers.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, a INTEGER, b INTEGER, word TEXT, c INTEGER)")
    rng = np.random.default_rng(7)
    widths = rng.integers(0, 63, size=(9000, 3))
    values = [[None if w == 0 else int(s * (1 << (w - 1)) - (s < 0)) for w, s in zip(row, rng.choice([-1, 1], 3), strict=True)]
              for row in widths]  # fmt: skip
    words = [None if i % 11 == 0 else "x" * int(n) for i, n in enumerate(rng.integers(0, 150, size=9000))]
    rows = [(i * 3 + 1, v[0], v[1], w, v[2]) for i, (v, w) in enumerate(zip(values, words, strict=True))]
    db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows[:6000])
    db.execute("ALTER TABLE t ADD COLUMN d INTEGER")
    db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", [(*r, 5) for r in rows[6000:]])
    db.execute("DELETE FROM t WHERE key % 7 = 0")
    db.commit()
    expected = db.execute("SELECT key, a, b, word, c, d FROM t ORDER BY rowid").fetchall()
    db.close()
    with NsysFile(path) as file:
        columns = [(c, np.int64) for c in ("key", "a", "b", "c", "d")]
        found = file._from_leaves("t", columns, "word")
        assert found is not None, "the table is plain"
        arrays, place = found
        assert place is not None
        texts = [
            None if n < 0 else bytes(file.bytes_map()[o : o + n]).decode()
            for o, n in zip(place.offset.tolist(), place.length.tolist(), strict=True)
        ]
    got = list(zip(*(arrays[c].tolist() for c, _ in columns), texts, strict=True))
    # NULL and -1 are both -1 in a column of ids
    assert got == [(*(-1 if v is None else v for v in (k, a, b, c, d)), w) for k, a, b, w, c, d in expected]


def test_tables_that_are_not_plain_go_to_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "odd.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE real_inside (a INTEGER)")
    db.executemany("INSERT INTO real_inside VALUES (?)", [(float(i) + 0.5,) for i in range(3000)])
    db.execute("CREATE TABLE long_rows (a INTEGER, t TEXT)")
    db.executemany("INSERT INTO long_rows VALUES (?, ?)", [(i, "y" * 9000) for i in range(2500)])
    db.execute("CREATE TABLE no_rowid (a INTEGER PRIMARY KEY, b INTEGER) WITHOUT ROWID")
    db.executemany("INSERT INTO no_rowid VALUES (?, ?)", [(i, i) for i in range(3000)])
    db.commit()
    db.close()
    with NsysFile(path) as file:
        assert file._from_leaves("real_inside", [("a", np.int64)], None) is None
        assert file._from_leaves("long_rows", [("a", np.int64)], "t") is None
        arrays, words = file.column_arrays("long_rows", [("a", np.int64)], text="t")
        assert arrays["a"].tolist() == list(range(2500))
        assert isinstance(words, list)
        assert len(words[7] or "") == 9000
        assert file.column_arrays("real_inside", [("a", np.int64)])[0]["a"][:3].tolist() == [0, 1, 2]
        assert file.column_arrays("no_rowid", [("b", np.int64)])[0]["b"].tolist() == list(range(3000))
    with pytest.raises(sqlite_leaves.NotPlainError):
        sqlite_leaves.open_file(np.zeros(4096, dtype=np.uint8))


def test_rows_of_one_byte_types_are_read_as_sqlite_reads_them(tmp_path: Path) -> None:
    """The quick way over record headers, against SQLite itself: all widths of integers, NULL, and a late column that changes."""
    rng = np.random.default_rng(5)
    path = tmp_path / "widths.sqlite"
    columns = ["start", "end", "a", "b", "c", "late"]
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE t ({', '.join(c + ' INTEGER' for c in columns)})")
        rows = []
        for i in range(30_000):
            size = int(rng.integers(0, 62))
            wide = int(rng.integers(-(2**size), 2**size))
            rows.append((i * 1000, i * 1000 + 7, wide, None if i % 3 else 1, 0, None if i < 20_000 else wide))
        db.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(columns))})", rows)
    db.close()
    with NsysFile(path) as file:
        asked = [(c, np.int64) for c in ("late", "a", "end", "b", "c")]
        quick = file._from_leaves("t", asked, None)
        slow = file._from_cursor("t", asked, None)[0]
    assert quick is not None
    for name, _ in asked:
        expected = [-1 if r[columns.index(name)] is None else r[columns.index(name)] for r in rows]
        assert quick[0][name].tolist() == expected
        assert slow[name].tolist() == expected


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE ThreadNames (priority INT, globalTid INT)",
        "CREATE TABLE ThreadNames (nameId, priority, globalTid); INSERT INTO ThreadNames VALUES ('x', 'y', 16777217)",
        "CREATE TABLE PROCESSES (pid INT, name TEXT); INSERT INTO PROCESSES VALUES (1, 'a')",
        "DROP TABLE IF EXISTS TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_GPU (id, name, smCount, totalMemory, cuDevice);"
        "INSERT INTO TARGET_INFO_GPU VALUES (x'fffe', x'ff', 'many', 'much', 1.5), (0, 7, -1, x'00', NULL)",
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid); INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ('a', NULL, 2.5)",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT)",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text); INSERT INTO DIAGNOSTIC_EVENT VALUES ('high', 'lost')",
    ],
)
def test_small_tables_of_odd_content_never_stop_the_reading(export: Export, change: str) -> None:
    export.kernel(0, 10)
    path = export.done()
    with sqlite3.connect(path) as db:
        db.executescript(change)
    db.close()
    timeline = open_trace(path)
    assert timeline.of(Kind.KERNEL).duration_ns.tolist() == [10]
