from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mansard.core import InputError
from mansard.core.ceilings import Area, Ceiling, Ceilings, Resource
from mansard.core.ceilings import Kind as Figure
from mansard.core.document import dumps
from mansard.report.document import to_document
from mansard.report.html import MIXED_BYTES, render_page
from mansard.report.material import read
from mansard.report.sections import history, machine, others, points, points_words
from mansard.report.sections import timeline as pictures
from mansard.report.sections.blocks import POINT_CAP, Cell, Chart, Section, Series, Table
from mansard.trace.open import open_trace
from mansard.trace.profile_steps import ProfileSteps, find_steps
from mansard.trace.timeline import Device, Kind, Timeline, events


@pytest.fixture(scope="module")
def mixed():
    spec = importlib.util.spec_from_file_location("report_mixed", Path(__file__).with_name("mixed.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def write(tmp_path):
    def made(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return made


def of(sections, key):
    return next(s for s in sections if s.key.endswith(key))


def pieces_of(picture, lane, kind):
    """Return start and length [us] of the pieces of one kind in one lane."""
    return [
        (round(p[1] * 1e6, 3), round(p[2] * 1e6, 3))
        for p in picture.pieces
        if picture.lanes[p[0]] == lane and pictures.KINDS[p[3]] == kind
    ]


def test_timeline_shows_what_is_exposed_and_idle(mixed, tmp_path) -> None:
    timeline = open_trace(mixed.trace(tmp_path / "trace.json"))
    picture = pictures.of_profile(timeline, find_steps(timeline))
    assert picture.window_s == pytest.approx(1e-3)
    # compute 0 to 400, all-reduce 300 to 550, compute again from 600 us: 400 to 550 is exposed, 550 to 600 is idle
    assert pieces_of(picture, "device 0, exposed", "exposed") == [(400.0, 150.0)]
    assert pieces_of(picture, "device 0, idle", "idle") == [(550.0, 50.0)]
    assert pieces_of(picture, "device 0, stream 20", "communication") == [(300.0, 250.0), (700.0, 60.0), (800.0, 90.0)]
    assert pieces_of(picture, "device 1, stream 7", "compute") == [(0.0, 1000.0)]
    assert not any(lane.startswith("device 1, ") and "exposed" in lane for lane in picture.lanes)


def many(count: int, streams: int = 1) -> Timeline:
    """Return kernels of 1 us every 2 us on each stream."""
    start = np.arange(count, dtype=np.int64) * 2000
    tables = [
        events(start_ns=start, end_ns=start + 1000, name=np.zeros(count, np.int32), device=0, stream=s)
        for s in range(streams)
    ]
    from mansard.trace.timeline import joined

    return Timeline(
        source="made", format="nsys", version="1", tables={Kind.KERNEL: joined(tables)}, names=("gemm",),
        devices=(Device(number=0, name="x"),),
    )  # fmt: skip


def test_a_long_profile_is_joined_and_loses_no_time() -> None:
    timeline = many(100_000)
    picture = pictures.of_profile(timeline, ProfileSteps(source="none", note="none"))
    assert len(picture.pieces) <= pictures.PIECES
    # 100 000 kernels of 1 us: joined pieces are as long as their kernels together, 0.1 s
    assert sum(p[2] for p in picture.pieces if pictures.KINDS[p[3]] != "idle") == pytest.approx(0.1, rel=1e-6)
    assert sum(p[5] for p in picture.pieces if pictures.KINDS[p[3]] != "idle") == 100_000
    assert "shorter events are joined" in " ".join(picture.notes)


def test_many_streams_are_capped_and_said() -> None:
    picture = pictures.of_profile(many(2000, streams=60), ProfileSteps(source="none", note="none"))
    assert len(picture.lanes) <= pictures.LANES
    assert len(picture.pieces) <= pictures.PIECES
    # 60 streams, room for 24 lanes less exposed and idle: 38 are left out
    assert "38 more lanes with less work are not drawn" in " ".join(picture.notes)


def test_the_step_nearest_to_the_median_is_shown() -> None:
    ends = np.array([100, 130, 161, 192]) * 1000  # lengths 100, 30, 31, 31 us; the first is warm-up
    steps = ProfileSteps(
        source="marker", start_ns=np.array([0, 100, 130, 161]) * 1000, end_ns=ends,
        host_ns=np.array([100, 30, 31, 31]) * 1000,
    )  # fmt: skip
    picture = pictures.of_profile(many(100), steps)
    assert picture.title.startswith("step 3 of 4, 31.0 us")
    assert picture.window_s == pytest.approx(31e-6)


def test_a_timeline_survives_its_document(mixed, tmp_path) -> None:
    timeline = open_trace(mixed.trace(tmp_path / "trace.json"))
    picture = pictures.of_profile(timeline, find_steps(timeline))
    back = pictures.from_document(json.loads(json.dumps(picture.document())))
    assert back.lanes == picture.lanes
    assert [p[:4] for p in back.pieces] == [p[:4] for p in picture.pieces]
    assert [back.names[p[4]] for p in back.pieces] == [picture.names[p[4]] for p in picture.pieces]
    broken = picture.document()
    broken["pieces"][0]["lane"] = 99
    with pytest.raises(ValueError, match="no place"):
        pictures.from_document(broken)


def test_bandwidth_over_the_working_set(mixed) -> None:
    from mansard.core.ceilings import ceilings_from_json

    found = points.sections(mixed.sweep_of_memory(), ceilings_from_json(mixed.ceilings()), key="p", name="d.json")
    chart = of(found, "bandwidth").blocks[0].to_json()
    (series,) = chart["series"]
    assert series["x"] == [16_000, 16_000_000]
    assert series["y"] == [1e12, 1e11]
    # the median's interval is 0.9 to 1.25 of it, so the rate's is 0.8 to 1.111: 1e12 less 2e11, and 1.11111e11 more
    assert series["minus"][0] == pytest.approx(2e11)
    assert series["plus"][0] == pytest.approx(1.11111e11, rel=1e-5)
    assert chart["uprights"] == [[32768, "L1 32 KiB"]]
    assert [level[0] for level in chart["levels"]] == [2e12, 2e11]
    assert "2 of L1" in " ".join(chart["notes"])


def test_the_fixed_cost_curve_runs_through_the_points(mixed) -> None:
    chart = of(points.sections(mixed.sweep_of_gemm(), None, key="p", name="d.json"), "sizes").blocks[0].to_json()
    measured, law = chart["series"]
    assert measured["x"] == [64, 128, 256, 512]
    # 2 x 64^3 = 524288 FLOP in 10 us + 5.24288 us: 34.40 GFLOP/s
    assert measured["y"][0] == pytest.approx(524288 / 15.24288e-6, rel=1e-4)
    assert law["quiet"] is True
    assert law["y"][0] == pytest.approx(measured["y"][0], rel=1e-2)
    assert law["y"][-1] == pytest.approx(measured["y"][-1], rel=1e-2)
    assert "10.0 us" in chart["notes"][0]
    noisy = mixed.sweep_of_gemm()
    noisy[1]["raw_times_ms"] = [9.0] * 3  # far off any law: no curve is drawn, and why is said
    noisy[1]["metrics"]["median_s"] = 9e-3
    chart = of(points.sections(noisy, None, key="p", name="d.json"), "sizes").blocks[0].to_json()
    assert len(chart["series"]) == 1
    assert "do not follow" in chart["notes"][0]


def test_transfers_have_their_fit_and_their_ceiling(mixed) -> None:
    from mansard.core.ceilings import ceilings_from_json

    found = points.sections(mixed.all_reduces(), ceilings_from_json(mixed.ceilings()), key="p", name="d.json")
    times, rates = (b.to_json() for b in of(found, "transfers").blocks)
    # made from t = 20 us + 1.5 S / 50 GB/s
    assert "t = 20.0 us" in times["notes"][0]
    assert "50.0 GB/s" in times["notes"][0]
    fit = times["series"][1]
    assert fit["x"][0] == pytest.approx(1 << 16, rel=1e-4)
    assert fit["y"][0] == pytest.approx(20e-6 + 1.5 * 65536 / 5e10, rel=1e-3)
    assert rates["levels"] == [[6e10, "ring link 60.0 GB/s (measured)"]]
    alone = of(points.sections(mixed.all_reduces(), None, key="p", name="d.json"), "transfers").blocks[0].to_json()
    assert "No ceiling is known for ring" in alone["notes"][-1]


def test_measured_stands_beside_derived_and_declared(mixed) -> None:
    from mansard.core.ceilings import ceilings_from_json

    document = mixed.ceilings()
    found = machine.sections(ceilings_from_json(document), document, key="c", name="c.json")
    table = of(found, "kinds").blocks[0].to_json()
    row = next(r for r in table["rows"] if r[0] == "f32 matrix")
    assert row[2:] == ["200 GFLOP/s", "250 GFLOP/s", "300 GFLOP/s", "80 % of derived"]  # 200 / 250
    assert next(r for r in table["rows"] if r[0] == "DRAM bandwidth")[-1] == "?"
    chart = of(found, "roofline-node").blocks[0].to_json()
    assert [(s["name"], s["dash"]) for s in chart["series"]] == [
        ("L1 read bandwidth", "solid"), ("DRAM read bandwidth", "solid"),
        ("f32 matrix", "dot"), ("f32 matrix", "dash"), ("f32 matrix", "solid"),
    ]  # fmt: skip
    # the highest roof, 300 GFLOP/s, over 50 GB/s: 6 FLOP/byte
    assert "DRAM 6.0" in chart["notes"][0]


def test_what_is_not_known_is_no_number(mixed) -> None:
    elements = [*mixed.all_reduces(), mixed.point("gemm", {"m": 2}, {}, seconds=1.0, state="waived", verdict=None)]
    table = of(points.sections(elements, None, key="p", name="d.json"), "theory").blocks[0].to_json()
    assert {r[5] for r in table["rows"]} == {"?"}
    assert {v[5] for v in table["values"]} == {None}
    assert "waived, needs a device" in table["notes"][0]
    assert (
        points_words.headline(elements) == "3 of 4 points were measured: 3 not judged; 1 failed or could not run here."
    )


def test_caps_are_said() -> None:
    long = Table(label="t", columns=("a",), rows=[(f"row {i}",) for i in range(5000)]).to_json()
    assert len(long["rows"]) == 1000
    assert "first 1000 of 5000 rows" in long["notes"][0]
    line = Series(name="s", x=[1.0] * (POINT_CAP + 1), y=[1.0] * (POINT_CAP + 1))
    chart = Chart(label="c", x_title="x", y_title="y", series=[line]).to_json()
    assert chart["series"] == []
    assert f"{POINT_CAP + 1} points" in chart["notes"][0]
    assert Table(label="t", columns=("a", "b"), rows=[("x", Cell("?"))]).to_json()["values"] == [[None, None]]


def test_any_mix_makes_one_page(mixed, sample, write, tmp_path) -> None:
    files = [
        write("run.json", dumps(to_document(sample))),
        write("detailed.json", mixed.sweep_of_memory() + mixed.sweep_of_gemm() + mixed.all_reduces()),
        write("ceilings.json", mixed.ceilings()),
        mixed.trace(tmp_path / "trace.json"),
    ]
    page = read(files)
    assert [n for n, _ in page.diagnoses] == ["run.json", "trace.json"]
    titles = [s.title for s in page.sections]
    for title in ("Results side by side", "Timeline", "Kernels", "Collectives against size", "Devices and ranks", "Bandwidth against working set",
                  "Achieved FLOP/s against N", "Collectives and transfers against size", "Environment", "Files of this page"):  # fmt: skip
        assert title in titles, title
    text = render_page(page)
    assert sample.verdict.sentence.removeprefix("Compute-bound: ").split(";")[0] in text
    assert len(text) < 2_000_000
    assert len({s.key for s in page.sections}) == len(page.sections)


def test_the_first_run_heads_the_page(mixed, sample, write) -> None:
    other = dataclasses.replace(sample, program="second")
    files = [write("b.json", dumps(to_document(other))), write("a.json", dumps(to_document(sample)))]
    page = read(files)
    assert page.title == "second"
    assert "run2" in {s.key for s in page.sections}
    points_alone = read([write("detailed.json", mixed.sweep_of_gemm())])
    assert points_alone.diagnoses == ()
    assert "4 of 4 points were measured: 4 normal." in render_page(points_alone)


def test_devices_of_a_document_stand_beside_each_other(sample, write) -> None:
    document = to_document(sample, schema="diagnose/1")
    document["device"] = "0"
    document["other_devices"] = [{"device": "1", **to_document(sample, schema="diagnose/1")}]
    section = of(read([write("d.json", document)]).sections, "devices")
    assert [r[0] for r in section.blocks[1].to_json()["rows"]] == ["device 0", "device 1"]


def test_ranks_name_the_straggler() -> None:
    document = {
        "ranks": [{"rank": 0, "compute_s": 1.0, "exposed_communication_s": 0.5, "waiting_s": {"unknown": "x", "needs": []},
                   "late_s": 0.0, "communication_s": 0.5, "arrived_last": 3, "source": "a"}],
        "straggler_rank": 0, "imbalance_ratio": {"unknown": "one rank", "needs": []}, "clock": {"method": "m", "trust": "t", "note": "n"},
    }  # fmt: skip
    picture, table, prose = (b.to_json() for b in others.ranks(document, key="r", name="r.json").blocks)
    assert [s["name"] for s in picture["series"]] == ["compute", "exposed communication"]
    assert table["rows"][0][4] == "?"
    assert prose["lines"][:2] == [
        "Straggler: rank 0.",
        "Imbalance of compute, longest over mean minus 1: not known: one rank.",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema": "doctor/1"}, "holds nothing to show"),
        ({"schema": "doctor/9"}, "reads up to 'doctor/1'"),
        ({"schema": "other/1"}, "not a run document or any other that a page shows"),
        ({"schema": "compare/1"}, "lacks the key 'results'"),
        ({"schema": "run/7"}, "reads up to 'run/1'"),
        ({"schema": "estimate/1"}, "lacks the key 'phase'"),
        ("[]", "holds no points"),
        ([{"schema": "detailed/1", "metadata": {}, "metrics": {}, "state": "done"}], "damaged point"),
        ({"schema": "ceilings/1", "ceilings": [{"resource": 3}]}, "damaged ceilings/1"),
    ],
)
def test_damaged_files_are_named(write, content, message) -> None:
    with pytest.raises(InputError, match=message.replace("/", "/")) as caught:
        read([write("x.json", content)])
    assert "x.json" in caught.value.message


def test_sections_that_do_not_fit_are_named(sample) -> None:
    from mansard.report.material import page_of_run

    page = page_of_run(sample)
    # 3 tables of 400 rows of 12 texts of 160 characters of 3 bytes: 2.3 MB each, and 3.6 MB are free
    row = tuple(f"{i}" + "\u5f20" * 200 for i in range(12))
    large = [
        Section(key=f"x{k}", title=f"Large {k}", blocks=(Table(label="t", columns=row, rows=[row] * 400),))
        for k in range(3)
    ]
    text = render_page(dataclasses.replace(page, sections=(*page.sections, *large), mixed=True))
    assert len(text.encode()) < MIXED_BYTES
    assert "Left out, since the page would be too large" in text
    assert "Large 2" in text


def test_areas_are_told_one_by_one_and_needs_are_asked_for(sample) -> None:
    from mansard.core import Unknown
    from mansard.diagnose.records import AreaShare
    from mansard.report.html import render

    area = AreaShare(
        area="memory", time_s=0.2, time_share=0.25, is_bound=True, share_of_ceiling=0.4, headroom_s=Unknown("no link"),
        limiting_ceiling="DRAM read bandwidth",
    )  # fmt: skip
    verdict = dataclasses.replace(sample.verdict, areas=(area,), needs=("--hardware NAME",))
    d = dataclasses.replace(sample, verdict=verdict)
    rows = others.areas(d).blocks[0].to_json()["rows"]
    assert rows == [["memory", "yes", "200 ms", "25 %", "40 %", "?", "DRAM read bandwidth"]]
    assert others.areas(sample) is None
    text = render(d)
    assert '<b>To decide it</b>, supply: <span class="flag">--hardware</span> NAME' in text
    assert "<b>Against it</b>: the two cores were shared" in text


def test_a_joined_piece_is_named_after_its_longest_event() -> None:
    start = np.array([0, 10, 20, 1_000_000], dtype=np.int64)
    table = events(
        start_ns=start,
        end_ns=start + np.array([3, 9, 4, 2000]),
        name=np.array([0, 1, 2, 3], np.int32),
        device=0,
        stream=7,
    )
    timeline = Timeline(
        source="made", format="nsys", version="1", tables={Kind.KERNEL: table}, names=("a_gemm", "b_gemm", "c_gemm", "d_gemm"),
        devices=(Device(number=0, name="x"),),
    )  # fmt: skip
    picture = pictures.of_profile(timeline, ProfileSteps(source="none", note="none"))
    first, second = (p for p in picture.pieces if pictures.KINDS[p[3]] not in ("idle",))
    assert picture.names[second[4]] == "b_gemm"  # 9 ns of 3, 9 and 4
    assert second[2] == pytest.approx(16e-9)  # 3 + 9 + 4 ns
    assert (picture.names[first[4]], first[5]) == ("d_gemm", 1)


def test_a_comparison_keeps_its_intervals_and_reasons() -> None:
    missing = {"unknown": "no baseline", "needs": []}
    document = {
        "verdict": "slower",
        "results": [
            {"name": "gemm", "verdict": "slower", "ratio": 1.25, "ci95": [1.2, 1.3], "reason": "beyond the noise"},
            {"name": "copy", "verdict": "inconclusive", "ratio": missing, "ci95": missing, "reason": "one sample"},
        ],
    }
    section = history.comparison(document, key="c", name="c.json")
    assert section.blocks[1].to_json()["rows"] == [
        ["gemm", "slower", "\u2013", "\u2013", "1.25", "1.2 to 1.3", "beyond the noise"],
        ["copy", "inconclusive", "\u2013", "\u2013", "?", "?", "one sample"],
    ]
    drawn = section.blocks[0].to_json()["series"]  # the one of known ratio, its interval 1.2 to 1.3 around 1.25
    assert [(s["name"], s["x"], s["y"], s["minus"], s["plus"]) for s in drawn] == [
        ("slower", ["gemm"], [1.25], [0.05], [0.05])
    ]
    assert section.small == "c.json: slower; 1 slower, 1 inconclusive"


def test_profiles_of_one_job_are_compared_by_rank(mixed, tmp_path) -> None:
    paths = []
    for rank in range(2):
        events_ = [
            mixed.kernel("gemm_kernel", 0, 100 * (rank + 1)),
            mixed.reduce(100 * (rank + 1), 400 - 100 * rank, 1000),
        ]
        document = {"traceEvents": events_, "deviceProperties": [], "baseTimeNanoseconds": 10**18, "host_name": "one",
                    "distributedInfo": {"rank": rank, "world_size": 2}}  # fmt: skip
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    section = of(read(paths).sections, "ranks")
    rows = section.blocks[1].to_json()["rows"]
    # rank 1 computes 200 us and arrives last; rank 0 computes 100 us, and waits 400 - 300 = 100 us for it
    assert [r[1] for r in rows] == ["100 us", "200 us"]
    assert rows[0][4] == "100 us"
    assert [r[6] for r in rows] == ["0", "1"]


def test_a_share_names_its_ceiling_its_least_time_and_what_was_measured_since(mixed) -> None:
    """450 GFLOP/s was "100 %" of a ceiling of 345 that nobody named, and a page beside it had 475."""
    (low, loaded, wrong, *_) = mixed.sweep_of_gemm()
    for e, verdict in ((low, "low"), (loaded, "noisy"), (wrong, "implausible")):
        e["verdict"] = verdict
        e["metrics"] |= {
            "median_s": 1e-3,
            "ceiling_scope": "node",
            "least_s": 1.3e-3,
            "share_of_ceiling": 1.0,
            "flop_per_s": 130e9,
        }
    low["metrics"] |= {"share_of_ceiling": 0.5, "least_s": 0.5e-3}
    loaded["conditions"] = {"foreign_ratio": 0.4}
    loaded["audit"]["findings"] = [{"code": "foreign_load", "text": "others"}]
    loaded["metrics"] |= {"half_interval_ratio": 16.5, "ci95_low_s": 2e-4, "ci95_high_s": 33e-3}
    wrong["metrics"]["share_of_ceiling"] = {"implausible": 1.3, "suspects": []}
    wrong["audit"]["findings"] = [{"code": "above_ceiling", "text": "1.3 times", "fatal": True}]
    matrix = Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix")
    name = low["metadata"]["test_name"]
    kept = [
        Ceiling(resource=matrix, value=v, unit="FLOP/s", kind=Figure.MEASURED, scope="node", conditions=c)
        for v, c in ((100e9, {"foreign_load_ratio": 0.57}), (150e9, {"size": name}))
    ]
    given = Ceilings(ceilings=tuple(kept))
    table = of(points.sections([low, loaded, wrong], given, key="p", name="d.json"), "theory").blocks[1].to_json()
    cells = [[c.replace("\u00a0", " ") for c in row] for row in table["rows"]]
    assert [r[4:6] for r in cells] == [
        ["500 us", "50 % of 100 GFLOP/s f32 matrix"],
        ["1.30 ms", "130 % of 100 GFLOP/s f32 matrix"],  # a file from before has 1: 1.3 ms over 1 ms
        ["1.30 ms", "130 %! of 100 GFLOP/s f32 matrix"],
    ]
    assert cells[1][2] == "200 us to 33.0 ms"
    # 1.3 ms over 1 ms of 100 GFLOP/s is 130 / 150 of the other ceiling
    assert cells[1][7] == "others used 40 % of the processors: a lower bound; 87 % of the 150 GFLOP/s given here"
    notes = [n.replace("\u00a0", " ") for n in table["notes"]]
    assert notes[0] == (
        "f32 matrix, node: judged by 100 GFLOP/s, measured while other programs used 57 % of the processors; the ceilings given "
        f"here have 150 GFLOP/s, set by a point {name}."
    )
    said = [line.replace("\u00a0", " ") for line in points_words.first([low, loaded, wrong])]
    assert said[1].endswith(" with 130 GFLOP/s, 130 % of 100 GFLOP/s f32 matrix.")
    assert said[1].startswith("Above its ceiling, so the point or the ceiling is wrong: ")
    assert points_words.first([loaded])[0].replace("\u00a0", " ") == (
        "Try first: measure again on an idle machine. 1 of 1 points are noisy (a 95 % interval wider than \u00b15.0 % that leaves the verdict open); "
        "other programs used 40 % of the processors."
    )


def test_points_of_long_names_have_a_bar_each_and_what_is_low_is_named(mixed, tmp_path) -> None:
    """Names that look the same when they are cut shared a bar, whose length was the sum of both."""

    elements = mixed.sweep_of_gemm()[:2]
    for e, n in zip(elements, ("2048", "2040"), strict=True):
        e["metadata"]["test_name"] = (
            f"gemm_generalized[jax] m={n} k=2048 first_operand_dtype=f32 second_operand_dtype=f32"
        )
        e["metrics"]["share_of_ceiling"] = 0.5
        e["verdict"] = "low"
    path = tmp_path / "detailed.json"
    path.write_text(json.dumps(elements))
    made = read([path])
    (bars,) = [b for s in made.sections for b in s.blocks if isinstance(b, Chart) and b.percent]
    assert len({x for s in bars.to_json()["series"] for x in s["x"]}) == 2
    assert made.first[0].startswith("Try first: look at what is low: ")
    cut = Chart(
        label="",
        x_title="",
        y_title="",
        series=[Series(name="s", x=["a" * 99 + "1" + "b" * 99, "a" * 99 + "2" + "b" * 99], y=[1, 1])],
    )
    assert len(set(cut.to_json()["series"][0]["x"])) == 2
