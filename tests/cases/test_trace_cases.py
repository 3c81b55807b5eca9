"""Questions about recorded Nsight Systems files, with the checked numbers of `cases/traces.yaml`."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from mansard.cli.main import main
from mansard.core.errors import InputError
from mansard.core.intervals import in_flight, merge, overlap_ns
from mansard.core.unknown import Unknown
from mansard.trace.kernels import kernel_table
from mansard.trace.launches import join_launches, match
from mansard.trace.occupancy import device_times, gap_figures
from mansard.trace.open import open_trace
from mansard.trace.regions import attribute, range_table
from mansard.trace.timeline import CopyKind, Kind, Timeline


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    document = YAML(typ="safe").load((shared / "cases" / "traces.yaml").read_text(encoding="utf-8"))
    return {c["id"].split("_")[0]: c for c in document["cases"]}


@functools.cache
def opened(path: Path) -> Timeline:
    return open_trace(path)


@pytest.fixture
def ask(shared: Path, cases: dict[str, Any]) -> Any:
    def of(case: str) -> tuple[Timeline, dict[str, Any]]:
        return opened(shared / "data" / "traces" / cases[case]["file"]), cases[case]["expected"]

    return of


def kernels_of(timeline: Timeline) -> dict[str, Any]:
    rows = kernel_table(timeline)
    return {
        "kernel_total_ns": sum(r.total_ns for r in rows),
        "kernel_count": sum(r.calls for r in rows),
        "distinct_kernel_names": len(rows),
        "top_kernel": rows[0].name[:60],
        "top_kernel_total_ns": rows[0].total_ns,
        "top_kernel_count": rows[0].calls,
        "top_kernel_median_ns": rows[0].median_ns,
    }


def subset(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {k: found[k] for k in expected if k in found}


@pytest.mark.parametrize("case", ["T01", "T09", "T14", "T18", "T20"])
def test_kernel_sums(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    found = kernels_of(timeline)
    wanted = {k: v for k, v in expected.items() if k in found}
    assert len(wanted) == 7
    assert found == wanted


@pytest.mark.parametrize("case", ["T02", "T12"])
def test_union_and_both_idles(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    found = {
        f"device_{d.facts.number}": {
            "kernel_count": d.kernel_count, "kernel_sum_ns": d.kernel_sum_ns, "kernel_union_ns": d.busy_ns,
            "kernel_span_ns": d.span_ns, "idle_kernels_only_ns": d.span_ns - d.busy_ns, "gpu_union_ns": d.gpu_busy_ns,
            "gpu_span_ns": d.gpu_span_ns, "idle_with_copies_ns": d.gpu_span_ns - d.gpu_busy_ns,
        }
        for d in device_times(timeline)
    }  # fmt: skip
    assert found == expected
    for d in device_times(timeline):
        assert sum(d.idle_ns.values()) == d.span_ns - d.busy_ns
        assert sum(d.buckets().values()) == d.gpu_span_ns


def test_t03_communication(ask: Any) -> None:
    timeline, expected = ask("T03")
    names = [i for i, n in enumerate(timeline.names) if "nccl" in n.lower()]
    table = timeline.of(Kind.KERNEL)
    found = {}
    for d in device_times(timeline):
        mask = (table.device == d.device) & np.isin(table.name, names)
        found[f"device_{d.facts.number}"] = {
            "comm_kernels": int(mask.sum()), "comm_union_ns": d.kinds["communication"].length_ns,
            "compute_union_ns": d.not_communication.length_ns, "overlap_ns": d.overlap_ns, "exposed_comm_ns": d.exposed_ns,
            "compute_only_ns": d.buckets()["compute_only"], "idle_ns": d.span_ns - d.busy_ns, "span_ns": d.span_ns,
        }  # fmt: skip
    assert found == expected


@pytest.mark.parametrize("case", ["T04", "T06", "T15", "T18", "T26", "T29"])
def test_projections(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    rows = {r.name: r for r in range_table(attribute(timeline), grouped=False)}
    checked = 0
    for name, wanted in expected.items():
        if not isinstance(wanted, dict) or "projected_total_ns" not in wanted:
            continue
        r = rows[name]
        assert {
            "projected_total_ns": r.projected_total_ns, "range_total_ns": r.projected_cpu_total_ns,
            "instances_with_gpu_work": r.with_work, "gpu_ops": r.ops, "kernel_and_copy_sum_ns": r.work_sum_ns,
        } == wanted  # fmt: skip
        checked += 1
    assert checked
    if "range_names_with_gpu_work" in expected:
        assert sum(r.with_work > 0 for r in rows.values()) == expected["range_names_with_gpu_work"]
    if "kernels" in expected:
        assert subset(kernels_of(timeline), expected["kernels"]) == expected["kernels"]


def test_t05_launch_join(ask: Any) -> None:
    timeline, expected = ask("T05")
    launches = join_launches(timeline)
    kernels = timeline.of(Kind.KERNEL)
    linked = int(launches.launched[: len(kernels)].sum())
    assert (len(kernels), linked, len(kernels) - linked) == (
        expected["kernels"],
        expected["kernels_with_launch"],
        expected["kernels_without_launch"],
    )
    # What a join on the correlation id alone gives: each kernel once per call of that id, in whichever process.
    ids, counts = np.unique(launches.calls.correlation, return_counts=True)
    place = np.minimum(np.searchsorted(ids, kernels.correlation), ids.size - 1)
    wrong = int(counts[place][ids[place] == kernels.correlation].sum())
    assert wrong == expected["rows_correlation_only_wrong"] != linked


@pytest.mark.parametrize("case", ["T07", "T11", "T22", "T24", "T28"])
def test_copies_by_direction(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    table = timeline.of(Kind.COPY)
    words = {
        "host_to_device": 1,
        "device_to_host": 2,
        "device_to_device": 8,
        "um_host_to_device": 11,
        "um_device_to_host": 12,
    }
    checked = 0
    for name, wanted in expected.items():
        if not isinstance(wanted, dict):
            continue
        word, _, number = name.rpartition("_device_")
        device = [i for i, d in enumerate(timeline.devices) if d.number == int(number)]
        mask = (table.copy_kind == words[word]) & np.isin(table.device, device)
        size, time = int(table.nbytes[mask].sum()), int(table.duration_ns[mask].sum())
        assert (int(mask.sum()), size, time) == (wanted["count"], wanted["bytes"], wanted["time_ns"])
        assert size / time == pytest.approx(wanted["mean_rate_gb_per_s"], rel=1e-3, abs=5e-5)  # four decimals
        checked += 1
    assert checked
    if case == "T07":
        assert len(timeline.of(Kind.MEMSET)) == expected["memset_count"]
    if case == "T28":
        kernels = timeline.of(Kind.KERNEL)
        assert (len(kernels), int(kernels.duration_ns.sum())) == (expected["kernels"], expected["kernel_time_ns"])
        assert len(timeline.devices) == expected["gpus_listed"]
    if case == "T24":
        (d,) = device_times(timeline)
        copies = merge(table.start_ns, table.end_ns)
        assert {
            "kernel_union_ns": d.busy_ns, "copy_union_ns": copies.length_ns, "overlap_ns": overlap_ns(copies, d.kernels),
            "gpu_union_ns": d.gpu_busy_ns,
        } == {k: expected[k] for k in ("kernel_union_ns", "copy_union_ns", "overlap_ns", "gpu_union_ns")}  # fmt: skip


def test_t08_one_range(ask: Any) -> None:
    timeline, expected = ask("T08")
    rows = [r for r in range_table(attribute(timeline), grouped=False) if r.name == expected["range"]]
    assert [(r.projected_cpu_total_ns, r.projected_total_ns, r.work_sum_ns, r.ops) for r in rows] == [
        (expected["cpu_range_ns"], expected["projected_ns"], expected["sum_ns"], expected["gpu_ops"])
    ]


def test_t10_attributed_share(ask: Any) -> None:
    timeline, expected = ask("T10")
    kernels = timeline.of(Kind.KERNEL)
    linked = join_launches(timeline).launched[: len(kernels)]
    assert (len(kernels), int(linked.sum())) == (expected["kernels"], expected["kernels_with_launch"])
    assert linked.mean() == pytest.approx(expected["share_of_kernels"], rel=1e-6)
    share = kernels.duration_ns[linked].sum() / kernels.duration_ns.sum()
    assert share == pytest.approx(expected["share_of_kernel_time"], rel=1e-6)


def test_t13_copies_and_kernels(ask: Any) -> None:
    timeline, expected = ask("T13")
    table = timeline.of(Kind.COPY)
    found = {}
    for d in device_times(timeline):
        mask = (table.device == d.device) & (table.copy_kind == CopyKind.HOST_TO_DEVICE)
        copies = merge(table.start_ns[mask], table.end_ns[mask])
        both = overlap_ns(copies, d.kernels)
        found[f"device_{d.facts.number}"] = {
            "h2d_union_ns": copies.length_ns, "kernel_union_ns": d.busy_ns, "overlap_ns": both,
            "exposed_h2d_ns": copies.length_ns - both,
        }  # fmt: skip
    assert found == expected


@pytest.mark.parametrize("case", ["T16", "T20"])
def test_launch_and_queue_time(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    launches = join_launches(timeline)
    kernels = timeline.of(Kind.KERNEL)
    call = launches.call[: len(kernels)]
    api = launches.calls.duration_ns[call]
    queue = kernels.start_ns - launches.calls.end_ns[call]
    assert (call.size, int(api.sum())) == (expected["launched_kernels"], expected["api_time_total_ns"])
    assert api.mean() == pytest.approx(expected["api_time_mean_ns"], rel=1e-4)
    waited = queue[queue >= 0]
    assert waited.size == expected["launches_with_positive_queue"]
    assert waited.mean() == pytest.approx(expected["queue_time_mean_ns"], rel=1e-4)


@pytest.mark.parametrize("case", ["T17", "T21"])
def test_gaps(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    (d,) = device_times(timeline)
    g = gap_figures(d)
    assert not isinstance(g, Unknown)
    assert {
        "gap_count": g.count, "gap_total_ns": g.total_ns, "gap_median_ns": g.median_ns, "gap_max_ns": g.max_ns,
        "gap_p95_ns": g.p95_ns, "gaps_over_10us": g.over_10us, "gaps_over_1ms": g.over_1ms,
        "busy_ratio": pytest.approx(d.busy_ns / d.span_ns, rel=1e-5),
    } == expected  # fmt: skip


@pytest.mark.parametrize("case", ["T19", "T23"])
def test_streams_and_concurrency(ask: Any, case: str) -> None:
    timeline, expected = ask(case)
    (d,) = device_times(timeline)
    table = timeline.of(Kind.KERNEL)
    found = {
        "kernels": d.kernel_count, "streams": d.streams, "max_kernels_in_flight": in_flight(table.start_ns, table.end_ns),
        "kernel_sum_ns": d.kernel_sum_ns, "kernel_union_ns": d.busy_ns, "span_ns": d.span_ns,
    }  # fmt: skip
    assert subset(found, expected) == expected


def test_t25_two_exports_of_one_capture(shared: Path, ask: Any) -> None:
    older, expected = ask("T25")
    newer = opened(shared / "data/traces/nsys/2023.4_reexport_of_2021_rtx3080_openacc.sqlite")
    for timeline, key in ((older, "export_2021"), (newer, "export_2023_4")):
        kernels, copies = timeline.of(Kind.KERNEL), timeline.of(Kind.COPY)
        mask = copies.copy_kind == CopyKind.HOST_TO_DEVICE
        assert {
            "kernel_total_ns": int(kernels.duration_ns.sum()), "kernel_count": len(kernels), "h2d_count": int(mask.sum()),
            "h2d_bytes": int(copies.nbytes[mask].sum()), "h2d_time_ns": int(copies.duration_ns[mask].sum()),
            "api_rows": len(timeline.of(Kind.RUNTIME)),
        } == expected[key]  # fmt: skip


def test_t27_ranges_without_any_device(ask: Any) -> None:
    timeline, expected = ask("T27")
    found = {
        r.name: {"style": r.style, "instances": r.instances, "total_ns": r.cpu_total_ns, "median_ns": r.cpu_median_ns}
        for r in range_table(attribute(timeline), grouped=False)
    }
    assert found == expected


def test_t30_facts_of_the_gpus(ask: Any) -> None:
    timeline, expected = ask("T30")
    d = timeline.devices[0]
    assert len(timeline.devices) == expected["gpus"]
    assert (d.name, d.chip, d.multiprocessors, d.clock_hz, d.memory_bytes_per_s, d.compute_capability, d.memory_bytes) == (
        expected["name"], expected["chip"], expected["sm_count"], expected["clock_hz"],
        expected["memory_bandwidth_bytes_per_s"], expected["compute_capability"], expected["memory_bytes"],
    )  # fmt: skip
    assert timeline.has(Kind.KERNEL) is expected["kernel_table_present"]
    assert len(timeline.of(Kind.RUNTIME)) == expected["api_rows"]
    # 132 SM x 4096 FLOP per cycle x 1.98 GHz = 1070.5 TFLOP/s at the highest boost
    assert d.multiprocessors * 4096 * d.clock_hz == pytest.approx(1070.5e12, rel=1e-4)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("nsys/bad_lfs_pointer.sqlite", "git_lfs_pointer"),
        ("nsys/bad_dlprof_database.sqlite", "dlprof_database"),
        ("kineto/bad_memory_timeline.raw.gz", "not_a_profile"),
        ("kineto/bad_execution_trace.json.gz", "not_a_profile"),
        ("kineto/bad_cpu_op_map.json", "not_a_profile"),
        ("other/graph_capture_execution_details.json", "not_a_profile"),
        ("other/cutracer_hist.csv", "not_a_profile"),
    ],
)
def test_t31_what_is_no_profile(shared: Path, file: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        open_trace(shared / "data" / "traces" / file)
    assert caught.value.code == code


def test_t32_absent_is_not_zero(shared: Path, ask: Any) -> None:
    _, expected = ask("T32")
    for name, tables in expected.items():
        timeline = opened(shared / "data/traces/nsys" / f"{name}.sqlite")
        kinds = {"KERNEL": Kind.KERNEL, "MEMCPY": Kind.COPY, "MEMSET": Kind.MEMSET, "RUNTIME": Kind.RUNTIME}
        for word, kind in kinds.items():
            if tables[word] == "absent":
                assert not timeline.has(kind)
                assert "no " in timeline.why_absent(kind).reason
            else:
                assert len(timeline.of(kind)) == tables[word]
        assert timeline.has(Kind.ANNOTATION) is (tables["NVTX_EVENTS"] != "absent")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *words, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_verbs_on_every_file(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared / "data/traces/nsys"
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    for path in sorted(folder.iterdir()):
        code, document = run(capsys, "summary", str(path))
        if path.name.startswith("bad_"):
            assert code == 4
            assert document["error"]["code"] in ("git_lfs_pointer", "dlprof_database")
            continue
        kernels = opened(path).of(Kind.KERNEL)
        assert code == (0 if len(kernels) else 3)
        if not len(kernels):
            text = " ".join(f["text"] for f in document["findings"])
            assert "no GPU kernels were recorded" in text
            assert "nsys profile" in text
        for d in document["devices"]:
            if isinstance(d["idle_s"], float):
                assert d["busy_s"] + d["idle_s"] == pytest.approx(d["span_s"], abs=1e-12)
                assert sum(d["idle"].values()) == pytest.approx(d["idle_s"], abs=1e-12)
            else:
                assert "unknown" in d["idle_s"]
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()} == before, (
        "nothing is written"
    )


def test_mfu_of_a_range_that_returns_early(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 1e12 FLOP over the device span of 7,867,915 ns at 989 TFLOP/s: 1e12 / (7.867915e-3 x 989e12) = 12.85 %;
    # over the 186,182 ns on the host it would be 543 %, a share of nothing.
    file = str(shared / "data/traces/nsys/2026.2_h100x2_video_train_before.sqlite")
    words = [
        "mfu",
        file,
        "--region",
        "FlashAttnFunc, seq = 47575, op_id = 999172",
        "--theoretical-flops",
        "1e12",
        "--peak-tflops",
        "989",
    ]
    code, document = run(capsys, *words)
    assert code == 0
    assert document["mfu_ratio"] == pytest.approx(1e12 / (7.867915e-3 * 989e12))
    assert round(100 * document["kernel_union_ratio"], 2) == 12.85
    assert (document["cpu_span_s"], document["device_span_s"], document["devices"]) == (0.000186182, 0.007867915, 1)
    assert document["missing_before_quoting"]
    assert run(capsys, *words, "--num-gpus", "2")[0] == 2
    assert run(capsys, *words, "--occurrence-index", "2")[0] == 2
    code, document = run(capsys, *words[:-3], "1e14", "--peak-tflops", "989")
    assert code == 3
    assert document["mfu_ratio"]["suspects"]


def test_intensity_of_one_device(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(shared / "data/traces/nsys/2026.2_h100x2_video_train_before.sqlite")
    words = ["intensity", file, "--flops", "1e14", "--peak-tflops", "989", "--hbm-bw-gbps", "3350"]
    assert run(capsys, *words)[0] == 2, "devices are never merged"
    code, document = run(capsys, *words, "--device", "0", "--bytes-moved", "5e11")
    # 1e14 / 0.270863484 s = 369.2 TFLOP/s; 989e12 / 3350e9 = 295.2; 1e14 / 5e11 = 200 < 295.2: memory;
    # least time 5e11 / 3350e9 = 149.25 ms of 270.86 ms.
    assert code == 0
    assert document["achieved_flop_per_s"] == pytest.approx(369.19e12, rel=1e-4)
    assert document["ridge_flop_per_byte"] == pytest.approx(295.22, rel=1e-4)
    assert (document["flop_per_byte"], document["bound"], document["kernel_count"]) == (200.0, "memory", 1993)
    assert document["share_of_ceiling"] == pytest.approx(0.14925373 / 0.270863484)
    code, document = run(capsys, *words, "--device", "0")
    assert (code, document["bound"]) == (3, "undetermined"), "no bytes, no class"


def test_window(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(shared / "data/traces/nsys/2026.2_h100x2_video_train_before.sqlite")
    words = ["intensity", file, "--device", "0", "--flops", "1e13", "--peak-tflops", "989", "--trim", "60.2", "60.3"]
    assert run(capsys, *words)[0] == 2, "FLOP of which scope?"
    _, document = run(capsys, *words, "--flops-of", "window")
    assert document["flop"] == 1e13
    assert document["gpu_kernel_union_s"] < 0.1
    assert run(capsys, *words[:-2], "0", "99")[0] == 2, "out of range"
    _, document = run(capsys, "summary", file, "--trim", "60.2", "60.3", "--device", "0")
    (d,) = document["devices"]
    assert d["span_s"] <= 0.1
    assert d["busy_s"] + d["idle_s"] == pytest.approx(d["span_s"], abs=1e-12)


def test_match_is_by_process_too() -> None:
    # Both processes number their calls from 1: kernel (process 1, id 5) belongs to call 1, never to call 0.
    process = np.array([0, 1], dtype=np.int32)
    call, _ = match(process, np.array([5, 5]), np.array([1, 0, 1], dtype=np.int32), np.array([5, 5, 6]))
    assert call.tolist() == [1, 0, -1]
