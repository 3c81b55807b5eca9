"""Streams, gaps, calls, copies, single ranges and choices of kernels: one profile whose answers are worked out by hand."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mansard.cli.main import main
from mansard.trace.launch_times import call_rows, launch_times
from mansard.trace.launches import join_launches
from mansard.trace.open import open_trace

US = 1e-6


def event(category: str, name: str, start: int, length: int, **args: Any) -> dict[str, Any]:
    where = (
        {"pid": 0, "tid": 7}
        if category in ("kernel", "gpu_memcpy", "gpu_memset")
        else {"pid": 50, "tid": args.pop("tid", 51)}
    )
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": args, **where}


def kernel(name: str, start: int, length: int, correlation: int, stream: int = 7, device: int = 0) -> dict[str, Any]:
    return event("kernel", name, start, length, correlation=correlation, stream=stream, device=device)


def copy(kind: str, start: int, length: int, size: int, correlation: int) -> dict[str, Any]:
    return event(
        "gpu_memcpy", f"Memcpy {kind}", start, length, bytes=size, correlation=correlation, stream=20, device=0
    )


#: Device 0: stream 7 runs gemm_a [100,200) and [250,300), stream 9 runs gemm_b [150,260); pinned copy in [290,350), paged copy in
#: [400,410); fill [420,425); late kernel [1000,1100). Device 1: gemm_a [100,130).
EVENTS = [
    event("user_annotation", "step", 10, 300),
    event("user_annotation", "step", 400, 560),
    event("user_annotation", "other", 20, 5, tid=99),
    event("cuda_runtime", "cudaLaunchKernel", 50, 10, correlation=1),
    event("cuda_runtime", "cudaLaunchKernel", 70, 6, correlation=2),
    event("cuda_runtime", "cudaLaunchKernel", 80, 8, correlation=3),
    event("cuda_runtime", "cudaMemcpyAsync", 90, 4, correlation=4),
    event("cuda_runtime", "cudaLaunchKernel", 95, 6, correlation=5),
    event("cuda_runtime", "cudaLaunchKernel", 900, 20, correlation=6),
    event("cuda_runtime", "cudaDeviceSynchronize", 120, 500),
    kernel("gemm_a", 100, 100, 1),
    kernel("gemm_b", 150, 110, 2, stream=9),
    kernel("gemm_a", 250, 50, 3),
    kernel("gemm_a", 100, 30, 5, device=1),
    kernel("late", 1000, 100, 6),
    copy("HtoD (Pinned -> Device)", 290, 60, 6_000_000, 4),
    copy("HtoD (Pageable -> Device)", 400, 10, 50_000, 0),
    event("gpu_memset", "Memset (Device)", 420, 5, bytes=4096, stream=7, device=0),
]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


@pytest.fixture
def ask(profile: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def of(verb: str, *words: str, code: int = 0) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main(["trace", verb, str(profile), *words, "--json"])
        assert (ended.value.code or 0) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return of


def test_streams(ask: Any) -> None:
    document = ask("streams")
    rows = {(r["device"], r["stream"]): r for r in document["streams"]}
    seven = rows["0", 7]
    assert (seven["kernel_count"], seven["fills"]) == (3, 1)
    assert seven["kernel_sum_s"] == pytest.approx((100 + 50 + 100) * US)
    assert seven["busy_s"] == pytest.approx((100 + 50 + 5 + 100) * US)
    assert seven["span_s"] == pytest.approx((1100 - 100) * US)
    assert rows["0", 20]["copies"] == 2
    first = document["devices"][0]
    assert (first["streams_with_work"], first["streams_with_kernels"], first["most_kernels_at_once"]) == (3, 2, 2)
    # two kernels: [150,200) and [250,260); one: [100,150), [200,250), [260,300), [1000,1100)
    assert first["kernels_at_once_s"] == {"1": pytest.approx(240 * US), "2": pytest.approx(60 * US)}
    # streams 7 and 9 as above, streams 7 and 20 in [290,300)
    assert first["several_streams_s"] == pytest.approx(70 * US)
    assert {r["device"] for r in ask("streams", "--device", "1")["streams"]} == {"1"}


def test_gaps(ask: Any) -> None:
    document = ask("gaps")
    first, second = document["devices"]
    (gap,) = first["gaps"]
    # kernels are busy in [100,300) and [1000,1100); the trace begins at 10
    assert (gap["start_s"], gap["length_s"]) == (pytest.approx(290 * US), pytest.approx(700 * US))
    assert (gap["before"], gap["after"], gap["launched_from"]) == ("gemm_a", "late", "step")
    causes = gap["causes_s"]
    assert sum(causes.values()) == pytest.approx(gap["length_s"])
    assert causes["copy_only"] == pytest.approx((50 + 10 + 5) * US)  # [300,350), [400,410), [420,425)
    # the synchronisation ends at 620: [350,400), [410,420), [425,620)
    assert causes["host_sync"] == pytest.approx(255 * US)
    assert causes["launch_gap"] == pytest.approx(380 * US)  # the call came at 900
    assert second["gaps"] == []
    assert ask("gaps", "--over", "1 ms")["devices"][0]["count_over"] == 0
    with_copies = ask("gaps", "--with-copies", "--device", "0")["devices"][0]
    assert [g["length_s"] for g in with_copies["gaps"]] == [pytest.approx(v * US) for v in (575, 50, 10)]
    summary = ask("summary")["devices"][0]
    assert summary["idle"] == {k: pytest.approx(v) for k, v in causes.items()}, (
        "the gaps are the idle time of the summary"
    )


def test_calls(ask: Any) -> None:
    document = ask("calls")
    names = {c["name"]: c for c in document["calls"]}
    launch = names["cudaLaunchKernel"]
    assert (launch["count"], launch["launching"]) == (5, 5)
    assert launch["total_s"] == pytest.approx((10 + 6 + 8 + 6 + 20) * US)
    assert (launch["median_s"], launch["max_s"]) == (pytest.approx(8 * US), pytest.approx(20 * US))
    first = document["launches"][0]
    assert (first["launches"], first["kernels"], first["kernels_without_call"]) == (4, 4, 0)
    # start to start: 100-50, 150-70, 250-80, 1000-900; return to start: 100-60, 150-76, 250-88, 1000-920
    assert first["latency"]["total_s"] == pytest.approx((50 + 80 + 170 + 100) * US)
    assert (first["queue"]["total_s"], first["queue"]["p95_s"]) == (
        pytest.approx((40 + 74 + 162 + 80) * US),
        pytest.approx(162 * US),
    )
    second = document["launches"][1]  # its kernel starts at 100, while its call lasts until 101
    assert (second["kernels_before_return"], "unknown" in second["queue"]) == (1, True)


def test_copies_and_fills(ask: Any) -> None:
    document = ask("summary", "--device", "0")
    (copies,) = document["copies"]
    assert (copies["count"], copies["bytes"], copies["union_s"]) == (2, 6_050_000, pytest.approx(70 * US))
    assert (copies["with_kernels_s"], copies["exposed_s"]) == (pytest.approx(10 * US), pytest.approx(60 * US))
    held = {r["host_memory"]: r for r in document["copies_by_memory"]}
    assert (held["pinned"]["count"], held["pageable"]["bytes"]) == (1, 50_000)
    assert held["pinned"]["bytes_per_s"] == pytest.approx(6_000_000 / 60e-6)
    (fill,) = document["fills"]
    assert (fill["count"], fill["bytes"]) == (1, 4096)
    assert fill["bytes_per_s"] == pytest.approx(4096 / 5e-6)


def test_a_device_is_the_only_one_in_every_figure(ask: Any) -> None:
    document = ask("summary", "--device", "1")
    assert ([k["calls"] for k in document["top_kernels"]], document["copies"], document["fills"]) == ([1], [], [])
    rows = {r["region"]: r for r in ask("regions", "--device", "1")["regions"]}
    assert (rows["step"]["with_device_work"], rows["step"]["gpu_sum_s"]) == (1, pytest.approx(30 * US))


def test_ranges_one_by_one(ask: Any) -> None:
    document = ask("regions", "--region", "step", "--each")
    first, second = document["occurrences"]
    assert (first["thread"], first["cpu_s"], first["kernel_count"], first["gpu_ops"]) == (
        51,
        pytest.approx(300 * US),
        4,
        5,
    )
    # kernels of device 0 in it: [100,200), [150,260), [250,300); its work ends with the copy at 350
    assert first["kernel_union_s"] == {"0": pytest.approx(200 * US), "1": pytest.approx(30 * US)}
    assert first["projected_s"] == pytest.approx(250 * US)
    assert (second["occurrence"], second["kernel_count"], second["projected_s"]) == (2, 1, pytest.approx(100 * US))
    selected = document["selected"]
    assert (selected["ranges"], selected["kernel_count"]) == (2, 5)
    assert selected["kernel_union_s"]["0"] == pytest.approx(300 * US)
    assert [r["region"] for r in ask("regions", "--thread", "99")["regions"]] == ["other"]
    assert ask("regions", "--thread", "1", code=2)["error"]["code"] == "no_such_thread"
    assert ask("regions", "--each", code=2)["error"]["code"]


def test_kernels_of_a_name(ask: Any) -> None:
    document = ask("kernels", "--name", "gemm_*", "--device", "0")
    assert [(k["name"], k["calls"]) for k in document["kernels"]] == [("gemm_a", 2), ("gemm_b", 1)]
    together = document["selected"]["devices"]["0"]
    assert (together["kernel_sum_s"], together["kernel_union_s"]) == (pytest.approx(260 * US), pytest.approx(200 * US))
    assert document["selected"]["times"]["median_s"] == pytest.approx(100 * US)
    assert [k["calls"] for k in ask("kernels", "--name", "emm_b")["kernels"]] == [1], "a part of a name will do"
    assert ask("kernels", "--name", "nothing", code=2)["error"]["code"] == "kernel_not_found"


def test_without_recorded_work_a_range_has_no_device_time(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trace", "regions", str(shared / "data/traces/nsys/2023.4_cpu_nvtx_only.sqlite"), "--json"])
    (row,) = [r for r in json.loads(capsys.readouterr().out)["regions"] if r["region"] == "layer"]
    assert (row["instances"], "unknown" in row["projected_total_s"], "unknown" in row["gpu_sum_s"]) == (15, True, True)


@pytest.mark.parametrize(
    "name", ["2023.3_t4_trisolve_18streams", "2022.4_rtx3090x7_gaussian", "2026.2_h100x2_video_train_before"]
)
def test_calls_and_queues_are_those_of_nvidia(shared: Path, name: str) -> None:
    timeline = open_trace(shared / f"data/traces/nsys/{name}.sqlite")
    launches = join_launches(timeline)
    reference = shared / "data/traces/reference" / name
    rows = {r.name: r.times for r in call_rows(timeline, launches)}
    with (reference / "cuda_api_sum.csv").open() as file:
        wanted = list(csv.DictReader(file))
    assert {r["Name"] for r in wanted} == set(rows)
    for row in wanted:
        found = rows[row["Name"]]
        assert (found.total_ns, found.count, found.min_ns, found.max_ns) == tuple(
            int(row[k]) for k in ("Total Time (ns)", "Num Calls", "Min (ns)", "Max (ns)")
        )
        assert found.median_ns == float(row["Med (ns)"])
        assert found.deviation_ns == pytest.approx(float(row["StdDev (ns)"]), abs=0.06)
    with (reference / "cuda_kern_exec_sum.csv").open() as file:
        kernels = list(csv.DictReader(file))
    times = launch_times(launches)
    assert times.launches == sum(int(r["Count"]) for r in kernels)
    assert times.queue.count == sum(int(r["QCount"]) for r in kernels)


def test_a_range_whose_device_work_ends_later_states_all_its_times(
    ask: Any, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first step lasts [10,310) on the host; its work runs [100,350): neither 300 us nor 250 us is the 340 us from start to end.
    words = ("--region", "step", "--flops", "1e9", "--peak", "100 TFLOP/s")
    document = ask("mfu", *words)
    assert (document["cpu_span_s"], document["device_span_s"]) == (pytest.approx(300 * US), pytest.approx(250 * US))
    assert (document["until_last_end_s"], document["device_ends_after_range_s"]) == (
        pytest.approx(340 * US),
        pytest.approx(40 * US),
    )
    assert document["wall_time_s"] == pytest.approx(300 * US)
    with pytest.raises(SystemExit):
        main(["trace", "mfu", str(profile), *words])
    text = capsys.readouterr().out
    assert "start to last end  340 us (device work ends 40.0 us after" in " ".join(text.split("\n"))
    # The second: [400,960) on the host, its kernel runs [1000,1100).
    later = ask("mfu", *words, "--occurrence", "2")
    assert (later["until_last_end_s"], later["wall_time_s"]) == (pytest.approx(700 * US), pytest.approx(560 * US))


def test_when_the_times_of_an_export_begin(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared / "data/traces/nsys/2022.4_t4_4streams.sqlite"
    with pytest.raises(SystemExit):
        main(["trace", "streams", str(path), "--json"])
    clock = json.loads(capsys.readouterr().out)["clock"]
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        (began,) = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    assert (clock["domain"], clock["zero_epoch_ns"]) == ("capture", began)


def test_a_window_of_a_profile_counts_from_its_first_event(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Kineto counts from a round moment 16 days before this capture (baseTimeNanoseconds); nobody counts a window from there.
    path = shared / "data/traces/kineto/h100_qwen1.5-0.5b.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    spans = [e for e in document["traceEvents"] if e.get("ph") == "X" and e["cat"] != "python_function"]
    first = min(int(Decimal(e["ts"]) * 1000) for e in spans)
    begin, end = first + 20_000_000, first + 30_000_000
    kernels = [
        (int(Decimal(e["ts"]) * 1000), int((Decimal(e["ts"]) + Decimal(e["dur"])) * 1000))
        for e in spans
        if e["cat"] == "kernel"
    ]
    clipped = [
        min(b, end) - max(a, begin) for a, b in kernels if b > begin and a < end
    ]  # one stream, none overlap (K01)
    for verb in ("summary", "overlap"):
        with pytest.raises(SystemExit):
            main(["trace", verb, str(path), "--trim", "20 ms", "0.03", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["devices"][0]["kernel_count"], found["devices"][0]["busy_s"]) == (
            len(clipped),
            pytest.approx(sum(clipped) / 1e9),
        )
    with pytest.raises(SystemExit):
        main(["trace", "streams", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["clock"]["zero_epoch_ns"] == first + document["baseTimeNanoseconds"]
    assert found["streams"][0]["start_s"] == pytest.approx((min(a for a, _ in kernels) - first) / 1e9)


def test_ranges_over_the_edge_of_a_window_are_said_to_be_whole(ask: Any) -> None:
    # From 30 us to 200 us after the first event (10): the window is [40,210), inside the first step alone.
    document = ask("regions", "--trim", "30 us", "200 us")
    (row,) = document["regions"]
    assert row["cpu_total_s"] == pytest.approx(300 * US)
    # of device 0 gemm_a [100,200), gemm_b [150,210), of device 1 gemm_a [100,130)
    assert row["gpu_sum_s"] == pytest.approx((100 + 60 + 30) * US)
    assert {f["code"] for f in document["findings"]} >= {"whole_ranges", "clipped"}
    # [110,210): the three kernels in it were launched before it
    later = ask("regions", "--trim", "100 us", "200 us")
    said = {f["code"]: f["text"] for f in later["findings"]}
    assert said["launched_before"].startswith("3 of 3 kernels")
    assert not {"whole_ranges", "launched_before"} & {f["code"] for f in ask("regions")["findings"]}


def test_chosen_ranges_are_grouped_without_their_numbers_as_all_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # PyTorch numbers each call: two of aten::mm, of 40 and 60 us, whose kernels take 100 and 50 us; the third range is of another name
    events = [
        event("user_annotation", "aten::mm, op_id = 1", 40, 40),
        event("user_annotation", "aten::mm, op_id = 2", 100, 60),
        event("user_annotation", "aten::mmx, op_id = 3", 200, 10),
        event("cuda_runtime", "cudaLaunchKernel", 50, 10, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 120, 10, correlation=2),
        kernel("gemm", 300, 100, 1),
        kernel("gemm", 500, 50, 2),
    ]
    path = tmp_path / "numbered.json"
    path.write_text(json.dumps({"traceEvents": events}))
    ask = ["trace", "regions", str(path), "--region", "aten::mm", "--json"]
    with pytest.raises(SystemExit):
        main(ask)
    (row,) = json.loads(capsys.readouterr().out)["regions"]
    assert row["region"] == "aten::mm"
    assert row["instances"] == 2
    assert row["cpu_total_s"] == pytest.approx(100 * US)
    assert row["gpu_sum_s"] == pytest.approx(150 * US)
    with pytest.raises(SystemExit):
        main([*ask, "--exact-names"])
    rows = json.loads(capsys.readouterr().out)["regions"]
    assert [r["region"] for r in rows] == ["aten::mm, op_id = 1", "aten::mm, op_id = 2"]


def test_the_work_of_an_operator_is_that_of_all_its_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # aten::mm f32[40,50] f32[50,60]: 2 * 40 * 50 * 60 = 240,000 FLOP, by a kernel of 90 us and a reduction of 10 us, 2.4 GFLOP/s; the
    # reduction alone would have 24 GFLOP/s. aten::relu launches neither.
    shapes = {"Input Dims": [[40, 50], [50, 60]], "Input type": ["float", "float"], "Input Strides": [[50, 1], [60, 1]]}
    events = [
        event("cpu_op", "aten::mm", 0, 9, **shapes),
        event("cpu_op", "aten::relu", 20, 9, **{"Input Dims": [[40, 60]], "Input type": ["float"]}),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 21, 1, correlation=3),
        kernel("gemm", 100, 90, 1),
        kernel("splitKreduce", 190, 10, 2),
        kernel("relu", 200, 5, 3),
    ]
    path = tmp_path / "mm.json"
    path.write_text(json.dumps({"traceEvents": events}))
    words = ["trace", "kernels", str(path), "--name", "splitK*"]
    with pytest.raises(SystemExit):
        main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [(k["name"], k["calls"]) for k in document["kernels"]] == [("splitKreduce", 1)]
    (row,) = document["operators"]
    assert (row["operator"], row["kernels"], row["flop"]) == ("aten::mm", 2, 240_000.0)
    assert (row["kernel_sum_s"], row["flop_per_s"]) == (pytest.approx(100 * US), pytest.approx(2.4e9))
    with pytest.raises(SystemExit):
        main(words)
    text = " ".join(capsys.readouterr().out.split())
    assert "with all kernels that they launched" in text
    assert "100.00 % of the time of these kernels" in text


@pytest.mark.parametrize("verb", ["streams", "gaps", "calls", "summary"])
def test_devices_come_by_their_number(verb: str, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The first kernel of this file ran on device 1.
    path = shared / "data/traces/nsys/2026.2_h100x2_video_train_before.sqlite"
    with pytest.raises(SystemExit):
        main(["trace", verb, str(path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [d["device"] for d in document["launches" if verb == "calls" else "devices"]] == [0, 1]


def test_a_window_counts_the_part_of_an_operator_s_kernels_that_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 2 x 512 x 64 x 1024 = 67.1 MFLOP by a kernel of 100 us: 0.671 TFLOP/s. The window has its first 40 us, so 26.8 MFLOP, at the same rate;
    # the second call is in the window too, and its kernel is not
    shapes = {"Input Dims": [[512, 1024], [1024, 64]], "Input type": ["float", "float"]}
    events = [
        event("cpu_op", "aten::mm", 40, 20, **shapes),
        event("cpu_op", "aten::mm", 70, 20, **shapes),
        event("cuda_runtime", "cudaLaunchKernel", 45, 10, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 75, 10, correlation=2),
        kernel("gemm", 100, 100, 1),
        kernel("gemm", 300, 100, 2),
    ]
    path = tmp_path / "cut.json"
    path.write_text(json.dumps({"traceEvents": events}))
    for window, flop, seconds in (
        ([], 2 * 67_108_864, 200 * US),
        (["--trim", "0", "100us"], 0.4 * 67_108_864, 40 * US),
    ):
        with pytest.raises(SystemExit):
            main(["trace", "kernels", str(path), *window, "--json"])
        (row,) = json.loads(capsys.readouterr().out)["operators"]
        assert row["flop"] == pytest.approx(flop)
        assert row["kernel_sum_s"] == pytest.approx(seconds)
        assert row["flop_per_s"] == pytest.approx(0.67108864e12)
