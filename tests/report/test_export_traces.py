from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mansard.cli.export import command
from mansard.core import Demand, Grade, Unknown
from mansard.core.document import dumps
from mansard.core.errors import InputError, UsageError
from mansard.report.document import to_document
from mansard.report.exports import chrome, perfetto
from mansard.report.exports.trace_files import writer_of
from mansard.report.exports.tracks import (
    CounterTrack,
    Drawing,
    Kind,
    Process,
    Scene,
    Thread,
    call_shares,
    draw,
    rows_that_nest,
)
from mansard.report.text import clean
from mansard.trace.run import Operator, Part, RunTrace, Steps

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

HOSTILE = 'x"}\n# EOF\n</testcase><script>\x00\u202e\uffff\\'
ODD = (HOSTILE, "", "\ud800", "\x1b[31m", "K" * 10_000, "\u5f20\u91cf" * 200, "{{ 7 * 7 }}", "Idle", "\U000e0041")


def invoke(*args: object):
    return CliRunner().invoke(command, [str(a) for a in args])


@pytest.fixture
def mixed():
    spec = importlib.util.spec_from_file_location("report_mixed_t", Path(__file__).with_name("mixed.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of(operators: tuple[Operator, ...], calls: list[tuple[int, int, int, int]]) -> RunTrace:
    """Calls are operator, start, end [ns] and lane."""
    columns = [np.array(c) for c in zip(*calls, strict=True)]
    return RunTrace(
        framework="torch", operators=operators, op=columns[0].astype(np.int32), start_ns=columns[1].astype(np.int64),
        end_ns=columns[2].astype(np.int64), lane=columns[3].astype(np.int32), window_ns=(0, 200_000),
        steps=Steps(start_ns=np.array([1_000, 101_000]), end_ns=np.array([101_000, 201_000]), source="marker"),
    )  # fmt: skip


def scene_of(sample, shares: list[tuple[str, object]], calls: list[tuple[int, int, int, int]], name: str = "dev"):
    operators, rows = [], []
    for title, share in shares:
        about = {"name": title, "category": "gemm", "shapes": "f32[2,2]", "formula": "f", "source": "s"}
        operators.append(Operator(part=Part.FORWARD, demand=Demand(), **about))
        rows.append(
            dataclasses.replace(sample.operators[0], part="forward", recompute=False, share_of_ceiling=share,
                                grade=Grade.MODELLED, **about)
        )  # fmt: skip
    diagnosis = dataclasses.replace(sample, operators=tuple(rows))
    return Scene(name=name, run=run_of(tuple(operators), calls), diagnosis=diagnosis)


CALLS = [(0, 1_000, 11_000, 0), (0, 101_000, 131_000, 0), (1, 140_000, 150_001, 1), (0, 0, 500, 0)]


@pytest.fixture
def scene(sample) -> Scene:
    return scene_of(sample, [("mm", 0.5), (HOSTILE, Unknown("no demand"))], CALLS)


def chrome_text(scenes, **options) -> str:
    return b"".join(chrome.to_chrome(draw(scenes, **options))).decode()


def native(drawing: Drawing) -> bytes:
    return b"".join(perfetto.writer()(drawing))


# --- what is drawn ---


def test_the_share_of_a_call_is_that_of_its_kind_over_its_own_time(scene) -> None:
    # Calls in the steps take 10 and 30 us, mean 20 us, share 0.5: a call needs 10 us at least. The call before the steps took 0.5 us.
    shares, reasons = call_shares(scene.run, scene.diagnosis)
    assert shares[[0, 1, 3]] == pytest.approx([1.0, 1 / 3, 20.0])
    assert np.isnan(shares[2])
    assert reasons == ["", "not known: no demand"]


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.25])
def test_a_share_that_cannot_be_true_is_no_number(sample, share) -> None:
    drawing = draw([scene_of(sample, [("mm", share)], [(0, 1_000, 11_000, 0)])])
    (process,) = drawing.processes
    assert [(c.name, c.at_ns.tolist(), c.value.tolist()) for c in process.counters] == [
        ("share not known, lane 0", [1_000, 11_000], [1.0, 0.0])
    ]
    assert process.kinds[-1].about["share_of_ceiling_note"] == f"implausible: a share of {share:g}"
    assert drawing.notes == ("dev: 1 of 1 operators have no share of a ceiling; each call says why",)


def test_calls_without_length_say_why_they_have_no_share(sample) -> None:
    calls = [(0, 1_000, 11_000, 0), (0, 20_000, 20_000, 0), (0, 40_000, 30_000, 0)]
    drawing = draw([scene_of(sample, [("mm", 0.5)], calls)])
    (process,) = drawing.processes
    lane = process.threads[1]
    assert lane.end_ns.tolist() == [11_000, 20_000, 40_000]
    notes = [process.kinds[k].about.get("share_of_ceiling_note") for k in lane.kind]
    assert notes == [None, *["not known: the call has no length by the clock of the profile"] * 2]
    assert "1 calls end before they start" in drawing.notes[0]


def test_slices_that_cross_get_a_row_of_their_own(sample) -> None:
    # 8 to 12 us leaves 0 to 10 us: a viewer that closes the innermost would give both wrong ends. Lane 1 keeps its number.
    calls = [(0, 0, 10_000, 0), (0, 2_000, 5_000, 0), (0, 8_000, 12_000, 0), (0, 9_000, 10_000, 0), (0, 0, 1, 1)]
    (process,) = draw([scene_of(sample, [("mm", 0.5)], calls)]).processes
    got = {(t.tid, t.name): list(zip(t.start_ns.tolist(), t.end_ns.tolist(), strict=True)) for t in process.threads[1:]}
    assert got == {
        (1, "lane 0"): [(0, 10_000), (2_000, 5_000), (9_000, 10_000)],
        (2, "lane 1"): [(0, 1)],
        (3, "lane 0, overlapping 1"): [(8_000, 12_000)],
    }


def test_rows_nest_and_the_first_holds_all_that_do() -> None:
    random = np.random.default_rng(0)
    start = random.integers(0, 100, 300)
    end = start + random.integers(0, 30, 300)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    rows = rows_that_nest(start, end)
    for row in range(rows.max() + 1):
        s, e = start[rows == row], end[rows == row]
        inside = (s[:, None] < s) & (s < e[:, None]) & (e[:, None] < e)  # begins in another and outlasts it
        assert not inside.any()
    assert rows_that_nest(np.array([0, 1, 5]), np.array([9, 5, 9])).tolist() == [0, 0, 0]


# --- Chrome JSON ---


def events_of(text: str):
    """Read a trace as the format has it: required fields by phase, times that are finite numbers, names that are text."""
    document = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert document["displayTimeUnit"] in ("ms", "ns")
    for e in document["traceEvents"]:
        assert e["ph"] in ("X", "C", "M")
        assert isinstance(e["name"], str)
        assert isinstance(e["pid"], int)
        assert e["ts"] >= 0
        if e["ph"] == "X":
            assert isinstance(e["tid"], int)
            assert e["dur"] >= 0
        if e["ph"] == "C":
            assert e["args"]
            assert all(isinstance(v, float | int) for v in e["args"].values())
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "process_sort_index", "thread_name")
    assert not crossing(document["traceEvents"])
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["ph"] == "X"} <= named
    counters: dict[tuple[int, str], float] = {}
    for e in document["traceEvents"]:
        if e["ph"] == "C":  # a track is a step function: its samples are in order
            assert e["ts"] >= counters.get((e["pid"], e["name"]), 0.0)
            counters[e["pid"], e["name"]] = e["ts"]
    return document


def crossing(events) -> list[tuple[dict, dict]]:
    """Return pairs of complete events of one thread that overlap without nesting: viewers drop or misplace such events."""
    found, open_ = [], {}
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        stack = open_.setdefault((e["pid"], e["tid"]), [])
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"] + 1e-4:  # times are to 1 ns = 0.001 us
            stack.pop()
        if stack and e["ts"] + e["dur"] > stack[-1]["ts"] + stack[-1]["dur"] + 1e-4:
            found.append((stack[-1], e))
        stack.append(e)
    return found


def test_the_check_of_nesting_sees_a_crossing() -> None:
    outer, inner, across = ({"ph": "X", "pid": 1, "tid": 1, "ts": t, "dur": d} for t, d in ((0, 10), (2, 3), (8, 4)))
    assert crossing([outer, inner]) == []
    assert crossing([outer, inner, across]) == [(outer, across)]  # 8 to 12 leaves 0 to 10


def test_a_trace_has_calls_and_counters_by_lane_and_operator(scene) -> None:
    document = events_of(chrome_text([scene]))
    events = document["traceEvents"]
    calls = [e for e in events if e["ph"] == "X" and e["cat"] != "step"]
    assert [(e["ts"], e["dur"], e["tid"]) for e in calls] == [
        (0.0, 0.5, 1),
        (1.0, 10.0, 1),
        (101.0, 30.0, 1),
        (140.0, 10.001, 2),
    ]
    assert calls[1]["args"]["share_of_ceiling_ratio"] == 1.0
    assert "share_of_ceiling_ratio" not in calls[3]["args"]
    assert calls[3]["args"]["share_of_ceiling_note"] == "not known: no demand"
    lane = [(e["ts"], e["args"]["ratio"]) for e in events if e["ph"] == "C" and e["name"] == "share of ceiling, lane 0"]
    assert lane == [(0.0, 20.0), (0.5, 0.0), (1.0, 1.0), (11.0, 0.0), (101.0, 0.333333), (131.0, 0.0)]
    own = [e for e in events if e["ph"] == "C" and e["name"] == "share of ceiling: mm f32[2,2] forward"]
    assert len(own) == 6
    dark = [(e["ts"], e["args"]["ratio"]) for e in events if e["name"] == "share not known, lane 1"]
    assert dark == [(140.0, 1.0), (150.001, 0.0)]
    assert not any(e["name"] == "share of ceiling, lane 1" for e in events)  # never a zero for what is not known
    assert [e["name"] for e in events if e.get("cat") == "step"] == ["step 0", "step 1"]
    assert "1 of 2 operators" in document["otherData"]["notes"][0]


def test_a_bounded_trace_keeps_the_steps_and_says_what_it_left(scene) -> None:
    drawing = draw([scene], most_calls=2)
    calls = [e for e in events_of(chrome_text([scene], most_calls=2))["traceEvents"] if e["ph"] == "X"]
    assert [e["ts"] for e in calls if e["cat"] != "step"] == [1.0, 101.0]
    assert "2 of 4 calls" in drawing.notes[0]


# --- Perfetto's own format ---


class Read:
    """A trace read back packet by packet, with the laws of the format asserted on the way."""

    def __init__(self, raw: bytes) -> None:
        self.processes: dict[int, str] = {}
        self.threads: dict[int, tuple[str, str]] = {}
        self.counters: dict[int, tuple[str, str, str]] = {}
        self.slices: dict[tuple[str, str], list[tuple]] = {}
        self.samples: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
        self.facts: dict[str, str] = {}
        self.groups: dict[int, tuple[str, str]] = {}
        self.folded: dict[str, list[str]] = {}
        self.interned: dict[int, dict[tuple[str, int], str]] = {}
        self.open: dict[int, list[tuple]] = {}
        self.last: dict[int, int] = {}
        self.tids: set[int] = set()
        trace = pb.Trace.FromString(raw)
        assert trace.SerializeToString() == raw, "something that is no packet"
        for packet in trace.packet:
            self.take(packet)
        assert not any(self.open.values()), "a slice never ends"

    def take(self, packet) -> None:
        sequence = packet.trusted_packet_sequence_id
        assert sequence, "a packet of no sequence"
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            self.interned[sequence] = {}
        for table, entries in packet.interned_data.ListFields():
            for entry in entries:
                assert (table.name, entry.iid) not in self.interned[sequence]
                assert entry.iid
                text = entry.str.decode() if table.name == "debug_annotation_string_values" else entry.name
                self.interned[sequence][table.name, entry.iid] = text
        for one in packet.trace_attributes.attribute:
            self.facts[one.key] = one.string_value
        if packet.HasField("track_descriptor"):
            self.track(packet.track_descriptor)
        if packet.HasField("track_event"):
            self.event(packet, packet.track_event)

    def track(self, track) -> None:
        assert track.uuid not in (0, *self.processes, *self.threads, *self.counters, *self.groups)
        if track.HasField("process"):
            assert track.process.pid > 0
            self.processes[track.uuid] = track.process.process_name
        elif track.HasField("thread"):
            assert track.thread.tid > 0, "thread 0 is the idle thread"
            assert track.thread.tid not in self.tids
            self.tids.add(track.thread.tid)
            self.threads[track.uuid] = (self.processes[track.parent_uuid], track.thread.thread_name)
            self.slices[self.threads[track.uuid]] = []
        elif not track.HasField("counter"):
            self.groups[track.uuid] = (self.processes[track.parent_uuid], track.name)
        else:
            process, group = self.groups.get(track.parent_uuid) or (self.processes[track.parent_uuid], "")
            self.folded.setdefault(group, []).append(track.name)
            key = (process, track.name, track.counter.unit_name)
            assert key not in self.samples
            self.counters[track.uuid], self.samples[key] = key, []

    def event(self, packet, event) -> None:
        assert packet.timestamp >= self.last.get(event.track_uuid, 0)
        self.last[event.track_uuid] = packet.timestamp
        stack = self.open.setdefault(event.track_uuid, [])
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            self.samples[self.counters[event.track_uuid]].append((packet.timestamp, event.double_counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, *self.said(packet, event)))
        else:
            assert event.type == pb.TrackEvent.TYPE_SLICE_END
            start, *about = stack.pop()
            self.slices[self.threads[event.track_uuid]].append((start, packet.timestamp, *about))

    def said(self, packet, event) -> tuple:
        assert packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        texts = self.interned[packet.trusted_packet_sequence_id]
        args = {}
        for one in event.debug_annotations:
            name = texts["debug_annotation_names", one.name_iid]
            assert name not in args
            args[name] = (
                texts["debug_annotation_string_values", one.string_value_iid]
                if one.WhichOneof("value") == "string_value_iid"
                else one.double_value
            )
        (category,) = event.category_iids
        return texts["event_names", event.name_iid], texts["event_categories", category], args


def figures_of(args: dict) -> tuple:
    return tuple(sorted((k, v if isinstance(v, str) else f"{v:.6g}") for k, v in args.items()))


def like_chrome(text: str) -> tuple[dict, dict]:
    """Return slices by process and thread, and samples by process and counter, of a Chrome trace, in ns."""
    events = events_of(text)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and e["ph"] == "M"}
    threads = {(e["pid"], e["tid"]): (processes[e["pid"]], e["args"]["name"]) for e in events
               if e["ph"] == "M" and e["name"] == "thread_name"}  # fmt: skip
    slices = {key: Counter() for key in threads.values()}
    samples: dict[tuple[str, str, str], list] = {}
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * 1000)
            about = (start, start + round(e["dur"] * 1000), e["name"], e["cat"], figures_of(e["args"]))
            slices[threads[e["pid"], e["tid"]]][about] += 1
        elif e["ph"] == "C":
            ((unit, value),) = e["args"].items()
            samples.setdefault((processes[e["pid"]], e["name"], unit), []).append((round(e["ts"] * 1000), value))
    return slices, samples


def compared(scenes, **options) -> Read:
    """Return the trace read back, after it was found to say what the Chrome trace says."""
    drawing = draw(scenes, **options)
    read = Read(native(drawing))
    slices, samples = like_chrome(chrome_text(scenes, **options))
    got = {key: Counter((*s[:4], figures_of(s[4])) for s in found) for key, found in read.slices.items()}
    assert got == slices
    assert {k: [(ns, float(f"{v:.6g}")) for ns, v in found] for k, found in read.samples.items()} == samples
    assert [read.facts[f"note {i}"] for i, _ in enumerate(drawing.notes, 1)] == list(drawing.notes)
    return read


def busy(sample, seed: int, name: str, count: int = 1_500) -> Scene:
    """Return a device with three lanes: calls back to back, nested ones, some without length, some that cross."""
    random = np.random.default_rng(seed)
    shares = [(f"op{i}", Unknown("no demand") if i % 7 == 0 else 0.1 + i / 100) for i in range(50)]
    shares += [(odd, 0.5) for odd in ODD]
    calls, at = [], [1_000_000_007] * 3
    for _ in range(count):
        op, lane = int(random.integers(len(shares))), int(random.integers(3))
        start = at[lane] + int(random.integers(0, 3))
        end = start + int(random.choice([0, 1, 7, 150]))
        calls.append((op, start, end, lane))
        if end - start == 150:
            calls += [(0, start + 20, start + 60, lane), (1, start + 60, end, lane), (2, start + 60, end, lane)]
            if random.random() < 0.05:
                calls.append((3, start + 100, end + 40, lane))
                end += 40
        at[lane] = end
    scene = scene_of(sample, shares, calls, name)
    first, last = 1_000_000_000, max(at)
    edges = np.linspace(first, last, 6).astype(np.int64)
    steps = Steps(start_ns=edges[1:-1], end_ns=edges[2:], source="marker", skipped=1)
    return dataclasses.replace(scene, run=dataclasses.replace(scene.run, steps=steps, window_ns=(first, last)))


def test_every_call_and_sample_is_read_back(sample) -> None:
    scenes = [busy(sample, 1, "a.json: device 0"), busy(sample, 2, "a.json: device 1")]
    read = compared(scenes)
    for scene in scenes:
        run = scene.run
        expected = Counter(
            (clean(run.operators[op].name)[:60], start - 1_000_000_000, end - 1_000_000_000, f"lane {lane}")
            for op, start, end, lane in zip(run.op.tolist(), run.start_ns.tolist(), run.end_ns.tolist(), run.lane.tolist(), strict=True)
        )  # fmt: skip
        got = Counter(
            (s[2][:60], s[0], s[1], thread.partition(",")[0])
            for (process, thread), found in read.slices.items() if process == scene.name and thread != "steps" for s in found
        )  # fmt: skip
        assert got == expected
        steps = [(s[2], s[0] + 1_000_000_000, s[1] + 1_000_000_000) for s in read.slices[scene.name, "steps"]]
        times = zip(run.steps.start_ns.tolist(), run.steps.end_ns.tolist(), strict=True)
        assert steps == [(f"step {i}", *both) for i, both in enumerate(times, 1)]
    assert any("overlapping" in thread for _, thread in read.slices)
    assert {unit for *_, unit in read.samples} == {"ratio"}
    assert sum("share of ceiling: " in name for _, name, _ in read.samples) == 2 * 40
    # Tracks of operators are folded under one row of each device; those of lanes are seen at once.
    assert len(read.groups) == 2
    assert all(name.startswith("share of ceiling: ") for name in read.folded["share of ceiling by operator"])
    assert len(read.folded["share of ceiling by operator"]) == 2 * 40
    assert {name.partition(",")[0] for name in read.folded[""]} == {"share of ceiling", "share not known"}
    assert read.facts["origin_ns"] == "1000000000"
    assert read.facts["verdict: a.json: device 1"] == clean(sample.verdict.sentence)


def test_samples_hold_the_whole_number(scene) -> None:
    # 10 us of at least 10 us, 30 us of at least 10 us, and 0.5 us of at least 10 us; JSON has six digits, this has all.
    read = compared([scene])
    lane = read.samples["dev", "share of ceiling, lane 0", "ratio"]
    assert [ns for ns, _ in lane] == [0, 500, 1_000, 11_000, 101_000, 131_000]
    assert [value for _, value in lane] == pytest.approx([20, 0, 1, 0, 1 / 3, 0], rel=1e-12)
    (call,) = read.slices["dev", "lane 1"]
    assert call[:4] == (140_000, 150_001, clean(HOSTILE), "gemm")
    assert call[4]["share_of_ceiling_note"] == "not known: no demand"
    assert call[4]["shapes"] == "f32[2,2]"


def test_a_bounded_trace_says_the_same_in_both_formats(sample) -> None:
    read = compared([busy(sample, 3, "dev", 300)], most_calls=100)
    assert sum(len(found) for (_, thread), found in read.slices.items() if thread != "steps") == 100


def test_values_below_zero_stay_what_they_are() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    process = Process(
        pid=1, name="p", verdict="v", kinds=(), threads=(),
        counters=(CounterTrack(name="c", unit="u", at_ns=np.array([5, 6]), value=np.array([-2.5, 0.0])),
                  CounterTrack(name="none", unit="u", at_ns=nothing, value=np.zeros(0))),
    )  # fmt: skip
    drawing = Drawing(origin_ns=-3, processes=(process,), notes=())
    read = Read(native(drawing))
    assert read.samples == {("p", "c", "u"): [(5, -2.5), (6, 0.0)], ("p", "none", "u"): []}
    assert like_chrome(b"".join(chrome.to_chrome(drawing)).decode())[1] == {("p", "c", "u"): [(5, -2.5), (6, 0.0)]}


def test_names_and_receipts_are_in_the_file_once(monkeypatch) -> None:
    count, name = 3_000, "volta_sgemm_128x64_tn"
    at = np.arange(count, dtype=np.int64) * 10
    kinds = tuple(Kind(name=name, category="gemm", about={"reason": f"because {i}" * 20}) for i in range(2))
    share = np.where(at % 20, 0.5, np.nan)
    thread = Thread(tid=1, name="lane 0", kind=at // 10 % 2, start_ns=at, end_ns=at + 9, share_ratio=share)
    process = Process(pid=1, name="p", verdict="v", kinds=kinds, threads=(thread,), counters=())
    drawing = Drawing(origin_ns=0, processes=(process,), notes=())
    raw = native(drawing)
    assert raw.count(name.encode()) == 1
    assert len(raw) < 100 * count  # a begin and an end
    assert native(drawing) == raw
    monkeypatch.setattr(perfetto, "_PIECE_BYTES", 1_000)
    pieces = list(perfetto.writer()(drawing))
    assert b"".join(pieces) == raw
    assert max(len(p) for p in pieces) < 2_000


# --- files ---


def test_a_profile_becomes_a_trace_of_each_device(tmp_path, mixed) -> None:
    path = mixed.trace(tmp_path / "t.json", names=("gemm_kernel", HOSTILE.replace("\x00", "")))
    for ending in ("json", "pftrace", "perfetto-trace", "json.gz", "pftrace.gz"):
        result = invoke("perfetto", path, "--hardware", "h100-sxm", "-o", tmp_path / f"out.{ending}", "--json")
        assert result.exit_code == 0, result.exception
        assert json.loads(result.stdout)["size_bytes"] == (tmp_path / f"out.{ending}").stat().st_size
    text = (tmp_path / "out.json").read_text()
    events = events_of(text)["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"t.json: device 0", "t.json: device 1"}
    kernels = [e for e in events if e["ph"] == "X" and e["name"] == "gemm_kernel"]
    assert [(e["ts"], e["dur"]) for e in kernels] == [(0.0, 400.0), (601.0, 5.0)]
    raw = (tmp_path / "out.pftrace").read_bytes()
    got = {key: Counter((*s[:4], figures_of(s[4])) for s in found) for key, found in Read(raw).slices.items()}
    assert got == like_chrome(text)[0]
    assert (tmp_path / "out.perfetto-trace").read_bytes() == raw
    assert gzip.decompress((tmp_path / "out.pftrace.gz").read_bytes()) == raw
    assert gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode() == text


class NoPerfetto:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "perfetto":
            raise ModuleNotFoundError("No module named 'perfetto'", name=name)


def loaded() -> list[str]:
    return [m for m in sys.modules if m.partition(".")[0] == "perfetto"]


def without_perfetto(monkeypatch) -> None:
    for name in loaded():
        monkeypatch.delitem(sys.modules, name)


def test_a_missing_package_is_one_error_that_names_the_extra(tmp_path, mixed, monkeypatch) -> None:
    without_perfetto(monkeypatch)
    monkeypatch.setattr(sys, "meta_path", [NoPerfetto(), *sys.meta_path])
    path, out = mixed.trace(tmp_path / "t.json"), tmp_path / "x.pftrace"
    error = invoke("perfetto", path, "--hardware", "h100-sxm", "-o", out).exception
    assert isinstance(error, InputError)
    assert "perfetto is not installed" in str(error)
    assert "mansard[perfetto]" in error.hint
    assert not out.exists()
    assert writer_of("x.json") is chrome.to_chrome  # which needs no package


def test_a_package_that_cannot_be_loaded_says_why(tmp_path, monkeypatch) -> None:
    """Stand-in: a package whose classes are newer than the protobuf that is installed."""
    folder = tmp_path / "perfetto" / "protos" / "perfetto" / "trace"
    folder.mkdir(parents=True)
    (folder / "perfetto_trace_pb2.py").write_text("raise RuntimeError('gencode 9.0 runtime 5.0')")
    for place in (folder, *folder.parents[:3]):
        (place / "__init__.py").touch()
    without_perfetto(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"cannot be loaded: gencode 9\.0 runtime 5\.0"):
        writer_of("x.pftrace.gz")
    for name in loaded():
        del sys.modules[name]


def test_documents_alone_have_no_time_axis(tmp_path, sample) -> None:
    path = tmp_path / "r.json"
    path.write_text(dumps(to_document(sample)), encoding="utf-8")
    error = invoke("perfetto", path).exception
    assert isinstance(error, UsageError)
    assert "--keep" in error.hint
