"""The recorded profiles of shared/ and the questions of cases/traces.yaml that readers, operators and ranks answer."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from ruamel.yaml import YAML

from mansard.core.errors import InputError
from mansard.core.intervals import merge, overlap_ns, union_ns
from mansard.core.unknown import Unknown
from mansard.trace.categories import COLLECTIVE, shipped_rules
from mansard.trace.collectives_of import collectives_of, recorded_calls
from mansard.trace.operators_of import operators_of, work_by_operator
from mansard.trace.ranks import compare_ranks
from mansard.trace.readers import chrome, ncu, rocprof_compute, rocprofv3, xplane_timeline
from mansard.trace.readers.chrome_checks import stream_overlap
from mansard.trace.timeline import Kind

EXACT_UNIONS = (
    "comm_union_ns",
    "compute_union_ns",
    "overlap_ns",
    "exposed_comm_ns",
    "compute_only_ns",
    "idle_ns",
    "span_ns",
)


@pytest.fixture(scope="module")
def case(shared):
    path = shared / "cases" / "traces.yaml"
    found = {c["id"].split("_")[0]: c for c in YAML(typ="safe").load(path.read_text())["cases"]}

    def expected(number):
        return found[number]["expected"]

    return expected


@lru_cache(maxsize=8)
def opened(path):
    return chrome.read(Path(path))


@pytest.fixture
def kineto(shared):
    return lambda name: opened(str(shared / "data" / "traces" / "kineto" / name))


def kernels(timeline):
    return timeline.of(Kind.KERNEL)


def kernel_totals(timeline):
    k = kernels(timeline)
    return {
        "kernels": len(k),
        "kernel_sum_ns": int(k.duration_ns.sum()),
        "kernel_union_ns": union_ns(k.start_ns, k.end_ns),
        "kernel_span_ns": int(k.end_ns.max() - k.start_ns.min()),
        "kernel_streams": len(np.unique(k.stream)),
    }


def communication(timeline):
    rules, k = shipped_rules(), kernels(timeline)
    wanted = [c for c in np.unique(k.name).tolist() if rules.category(timeline.names[c]) == COLLECTIVE]
    chosen = np.isin(k.name, wanted)
    comm, compute = (merge(k.start_ns[m], k.end_ns[m]) for m in (chosen, ~chosen))
    both = overlap_ns(comm, compute)
    span = int(k.end_ns.max() - k.start_ns.min())
    return {
        "comm_kernels": int(chosen.sum()),
        "comm_union_ns": comm.length_ns,
        "compute_union_ns": compute.length_ns,
        "overlap_ns": both,
        "exposed_comm_ns": comm.length_ns - both,
        "compute_only_ns": compute.length_ns - both,
        "idle_ns": span - union_ns(k.start_ns, k.end_ns),
        "span_ns": span,
    }


def matmul_flop(timeline):
    out = Counter()
    for work in work_by_operator(operators_of(timeline)):
        short = work.name.removeprefix("aten::")
        if short in ("mm", "addmm", "bmm"):
            assert not isinstance(work.flop, Unknown)
            out[f"{short}_calls"] += work.calls
            out[f"{short}_flop"] += int(work.flop)
            out["total_matmul_flop"] += int(work.flop)
    return dict(out)


def attention(timeline):
    found = [w for w in work_by_operator(operators_of(timeline)) if w.category == "attention"]
    full = sum((w.full_square_flop or w.demand.total_flop) * w.calls for w in found)
    calls = sum(w.calls for w in found)
    return {
        "calls": calls,
        "flop_full_attention": int(full),
        "flop_per_call_full": int(full / calls),
        "flop_causal_half": int(full / 2),
    }


def steps(timeline):
    table = timeline.of(Kind.ANNOTATION).sorted()
    rows = [r for r in range(len(table)) if timeline.names[table.name[r]].startswith("ProfilerStep")]
    return {timeline.names[table.name[r]]: int(table.duration_ns[r]) for r in rows}


def categories(timeline, *names):
    counts = timeline.extras["category_counts"]
    return {f"{n}_events": counts.get(n, 0) for n in names}


def agree(got, expected):
    shared_keys = {k: v for k, v in expected.items() if k in got}
    assert shared_keys, "nothing was compared"
    assert {k: got[k] for k in shared_keys} == shared_keys


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("K01", "h100_qwen1.5-0.5b.json.gz"),
        ("K05", "mi300x_qwen1.5-0.5b.json.gz"),
        ("K14", "v100_ns_resolution.json.gz"),
    ],
)
def test_counts_and_exact_totals(case, kineto, number, name):
    t = kineto(name)
    got = kernel_totals(t) | {"events": t.extras["events"]}
    got |= categories(t, "gpu_memcpy", "gpu_memset", "cpu_op", "cuda_runtime")
    agree(got, {k: v for k, v in case(number).items() if not isinstance(v, (dict, list))})


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("K02", "h100_qwen1.5-0.5b.json.gz"), ("K05", "mi300x_qwen1.5-0.5b.json.gz"), ("K06", "h100_bert-small.json.gz"),
        ("K12", "a100_ddp_rank3of8.json.gz"), ("K20", "mi300x_torch_compile_triton.json.gz"),
    ],
)  # fmt: skip
def test_matmul_flop_from_recorded_shapes(case, kineto, number, name):
    expected = case(number)
    agree(matmul_flop(kineto(name)), {k: v for k, v in expected.items() if k.endswith(("_calls", "_flop"))})
    assert matmul_flop(kineto(name))["total_matmul_flop"] == expected["total_matmul_flop"]


def test_k03_k06_k20_attention_counted_once(case, kineto):
    assert attention(kineto("h100_qwen1.5-0.5b.json.gz")) == case("K03")
    assert attention(kineto("h100_bert-small.json.gz")) == case("K06")["attention"]
    triton = kineto("mi300x_torch_compile_triton.json.gz")
    assert attention(triton) == case("K20")["attention"]
    k = kernels(triton)
    row = [i for i in range(len(k)) if triton.names[k.name[i]] == "attn_fwd"]
    assert [int(k.duration_ns[i]) for i in row] == [case("K20")["attn_fwd_ns"]]


@pytest.mark.parametrize(
    ("number", "name"), [("K04", "h100_qwen1.5-0.5b.json.gz"), ("K05", "mi300x_qwen1.5-0.5b.json.gz")]
)
def test_rate_of_one_gemm(case, kineto, number, name):
    expected = case(number).get("gemm_rate", case(number))
    (work,) = [w for w in work_by_operator(operators_of(kineto(name))) if w.shapes == "bf16[8944,1024] bf16[1024,2816]"]
    assert (work.calls, work.kernels, work.kernel_sum_ns) == (
        expected["calls"], expected["kernels"], expected["kernel_time_ns"],
    )  # fmt: skip
    assert (work.demand.total_flop, work.flop) == (expected["flop_per_call"], expected["flop_total"])
    assert work.flop_per_s / 1e12 == pytest.approx(expected["achieved_tflop_per_s"], rel=1e-3)


def test_k07_overlap_on_one_stream(case, kineto):
    expected, t = case("K07"), kineto("b200x8_tp8_eager.json.gz")
    assert stream_overlap(kernels(t)) == (expected["overlapping_kernels"], expected["overlap_ns"])
    agree(kernel_totals(t) | {"streams": len(np.unique(kernels(t).stream))}, expected)
    assert [f.code for f in t.findings] == ["stream_overlap"]  # said, not called damage: dependent launch is legitimate
    assert not t.damage


def test_k08_collectives_by_name_and_rate(case, kineto):
    expected, t = case("K08"), kineto("b200x8_tp8_eager.json.gz")
    calls = collectives_of(t)
    assert len(calls) == expected["comm_kernels"]
    assert sum("nccl" in c.name for c in calls) == expected["named_nccl"]
    assert sum("multimem_all_reduce" in c.name for c in calls) == expected["multimem_all_reduce"]
    assert communication(t)["comm_union_ns"] == expected["comm_union_ns"]
    (gather,) = [c for c in calls if c.operation == "all_gather"]
    assert gather.message_bytes == expected["allgather_bytes"]
    assert gather.end_ns - gather.start_ns == expected["allgather_ns"]
    assert gather.algbw_bytes_per_s / 1e9 == pytest.approx(expected["algbw_gb_per_s"], rel=1e-3)
    assert gather.busbw_bytes_per_s / 1e9 == pytest.approx(expected["busbw_gb_per_s"], rel=1e-3)
    # The size of a multimem kernel is recorded nowhere: unknown, not that of another collective.
    assert all(isinstance(c.busbw_bytes_per_s, Unknown) for c in calls if c is not gather)


def test_k09_graph_launch(case, kineto):
    expected, t = case("K09"), kineto("mi300x_vllm_decode_full_graph.json.gz")
    operators = operators_of(t)
    work, launches = operators.launches.work, operators.launches
    of_kernels = launches.kind == int(Kind.KERNEL)
    graph = operators.in_graph & of_kernels
    assert int(of_kernels.sum()) == expected["kernels"]
    assert int(graph.sum()) == expected["kernels_in_graph"]
    assert int(work.duration_ns[graph].sum()) == expected["graph_kernel_sum_ns"]
    assert int(work.end_ns[graph].max() - work.start_ns[graph].min()) == expected["graph_span_ns"]
    assert len(np.unique(t.of(Kind.KERNEL).correlation)) == expected["distinct_launch_correlations"]
    (call,) = np.unique(launches.call[graph])
    assert t.names[launches.calls.name[call]] == expected["launch_call"]
    assert isinstance(t.devices[0].name, Unknown)  # the file leaves the name empty: never another device's


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("K10", "a100_ddp_rank3of8.json.gz"), ("K13", "mi300x_resnet_ddp8_checkpointing.json.gz"),
        ("K19", "a100_nccl_2.17_rank0of2.json.gz"), ("K21", "a100_rank0of16_graphs.json.gz"),
    ],
)  # fmt: skip
def test_communication_and_overlap(case, kineto, number, name):
    expected = case(number)
    got = communication(kineto(name))
    assert {k: got[k] for k in ("comm_kernels", *EXACT_UNIONS)} == {
        k: expected[k] for k in ("comm_kernels", *EXACT_UNIONS)
    }


def test_k11_k13_k21_steps(case, kineto):
    expected = case("K11")
    got = steps(kineto("a100_ddp_rank3of8.json.gz"))
    assert (len(got), next(iter(got)), list(got.values())) == (
        expected["steps"],
        expected["first"],
        expected["lengths_ns"],
    )
    assert median(got.values()) == expected["median_ns"]
    resnet = kineto("mi300x_resnet_ddp8_checkpointing.json.gz")
    assert list(steps(resnet).values()) == case("K13")["host_steps_ns"]
    on_device = resnet.of(Kind.DEVICE_ANNOTATION).sorted()
    marked = [r for r in range(len(on_device)) if resnet.names[on_device.name[r]].startswith("ProfilerStep")]
    assert [int(on_device.duration_ns[r]) for r in marked] == case("K13")["gpu_annotation_ns"]
    assert median(steps(kineto("a100_rank0of16_graphs.json.gz")).values()) == case("K21")["median_step_ns"]
    assert list(steps(kineto("v100_ns_resolution.json.gz")).values()) == case("K14")["steps_ns"]


def test_k15_rank_pair(case, kineto):
    expected = case("K15")
    files = [kineto("sampled_rank1of128.json.gz"), kineto("sampled_rank0of128.json.gz")]
    job = compare_ranks(files)
    for rank, timeline in zip(job.ranks, (files[1], files[0]), strict=True):
        wanted = expected[f"rank_{rank.identity.rank}"]
        assert rank.identity.world_size == wanted["world_size"]
        assert {f"ProfilerStep#{n}": v for n, v in rank.steps_ns.items()} == wanted["steps"]
        got = communication(timeline)
        assert {k: got[k] for k in EXACT_UNIONS} == {k: wanted[k] for k in EXACT_UNIONS}
        assert (rank.communication_ns, rank.compute_ns, rank.overlap_ns, rank.exposed_ns, rank.span_ns) == (
            wanted["comm_union_ns"], wanted["compute_union_ns"], wanted["overlap_ns"], wanted["exposed_comm_ns"], wanted["span_ns"],
        )  # fmt: skip
    skew = {f"ProfilerStep#{s.number}": s.start_skew_ns[1] - s.start_skew_ns[0] for s in job.steps}
    assert skew == expected["start_skew_rank1_minus_rank0_ns"]
    assert job.clock.trust == "assumed one clock"
    assert "ranks_missing" in [f.code for f in job.findings]


def test_k16_no_device_events(case, kineto):
    expected, t = case("K16"), kineto("cpu_gloo_rank34of300.json.gz")
    assert {k: t.distributed[k] for k in ("rank", "world_size", "backend")} == {
        k: expected[k] for k in ("rank", "world_size", "backend")
    }
    assert list(steps(t).values()) == [expected["step_ns"]]
    assert not t.has(Kind.KERNEL)  # unknown, not zero
    assert "records no kernel events" in t.why_absent(Kind.KERNEL).reason


def test_k17_mtia(case, kineto):
    expected, t = case("K17"), kineto("mtia_inference_rank0.json.gz")
    k = kernels(t)
    assert len(k) == expected["mtia_ccp_events"]
    assert len(t.of(Kind.RUNTIME)) == expected["mtia_runtime"]
    assert int(k.duration_ns.sum()) == expected["sum_ns"]
    assert union_ns(k.start_ns, k.end_ns) == expected["union_ns"]
    assert int(k.end_ns.max() - k.start_ns.min()) == expected["span_ns"]
    assert [t.devices[d].name for d in t.used_devices] == ["ARTEMIS"]


def test_k18_old_capital_categories(case, kineto):
    t = kineto("old_capital_categories_rank1.json.gz")
    agree(kernel_totals(t) | {"events": t.extras["events"]}, case("K18"))
    assert t.processes[0].rank == 1


def test_k19_recorded_sizes(case, kineto):
    expected = case("K19")
    calls = recorded_calls(kineto("a100_nccl_2.17_rank0of2.json.gz"))
    assert len(calls) == expected["record_param_comms"]
    assert Counter(c.collective for c in calls) == expected["calls"]
    total = Counter()
    for c in calls:
        total[c.collective] += c.in_bytes
    assert dict(total) == expected["input_bytes"]
    assert {c.group_size for c in calls if c.collective != "wait"} == {expected["group_size"]}


def test_k21_graphs(case, kineto):
    expected, t = case("K21"), kineto("a100_rank0of16_graphs.json.gz")
    operators = operators_of(t)
    launches = operators.launches
    graph = operators.in_graph & (launches.kind == int(Kind.KERNEL))
    assert int((launches.kind == int(Kind.KERNEL)).sum()) == expected["kernels"]
    assert int(graph.sum()) == expected["kernels_from_graphs"]
    assert len(np.unique(launches.call[graph])) == expected["graph_launches_with_kernels"]


EXPECTED_DAMAGE = {"bad_memory_timeline.raw.gz": "not_a_trace", "bad_execution_trace.json.gz": "not_a_trace", "bad_cpu_op_map.json": "not_a_trace"}  # fmt: skip


def test_every_file_opens_or_is_refused_by_name(shared):
    files = sorted((shared / "data" / "traces" / "kineto").iterdir())
    assert len(files) >= 28
    for path in files:
        if path.name in EXPECTED_DAMAGE:
            with pytest.raises(InputError, match="not a Kineto or Chrome trace") as refused:
                chrome.read(path)
            assert refused.value.code == EXPECTED_DAMAGE[path.name]
            continue
        t = opened(str(path))
        assert t.extras["events"] > 0
        assert not t.incomplete, (path.name, t.damage)


def test_n01_flop_bytes_and_peaks(case, shared):
    expected = case("N01")
    (k,) = ncu.read_report(shared / "data" / "traces" / "ncu" / "t4_mlp_full_set.raw.csv").kernels
    m = k.measured
    assert k.name.startswith(expected["kernel"])
    rel = 1e-4
    assert m.duration_s * 1e9 == pytest.approx(expected["duration_ns"], rel=rel)
    assert m.flop["f32"] == pytest.approx(expected["flop"], rel=rel)
    assert m.flop["f32"] / m.duration_s == pytest.approx(expected["flop_per_s"], rel=rel)
    assert (m.dram_read_bytes, m.dram_write_bytes) == (expected["dram_read_bytes"], expected["dram_write_bytes"])
    assert m.dram_bytes == expected["dram_bytes"]
    assert m.dram_bytes / m.duration_s == pytest.approx(expected["dram_bytes_per_s"], rel=rel)
    assert m.flop_per_dram_byte == pytest.approx(expected["intensity_flop_per_byte"], rel=rel)
    assert m.peak_flop_per_s["f32"] == pytest.approx(expected["fp32_peak_flop_per_s_at_this_clock"], rel=rel)
    assert m.peak_dram_bytes_per_s == pytest.approx(expected["dram_peak_bytes_per_s_at_this_clock"], rel=rel)
    assert m.ridge_flop_per_byte == pytest.approx(expected["ridge_flop_per_byte"], rel=rel)
    assert m.flop_per_dram_byte < m.ridge_flop_per_byte  # memory
    assert (
        k.values["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed"] == expected["flop_per_cycle"]
    )


def test_n02_both_pages_agree(case, shared):
    folder = shared / "data" / "traces" / "ncu"
    for stem, wanted in case("N02").items():
        for page, unit in ((".raw.csv", wanted["unit"]), (".raw_base.csv", wanted["unit_base_page"])):
            report = ncu.read_report(folder / (stem + page))
            assert report.units["gpu__time_duration.sum"] == unit
            assert [k.measured.duration_s * 1e9 for k in report.kernels] == pytest.approx(
                wanted["durations_ns"], rel=1e-5
            )
            table = ncu.read(folder / (stem + page)).of(Kind.KERNEL)
            assert table.duration_ns.tolist() == [round(d) for d in wanted["durations_ns"]]


def test_n03_traffic_of_transposes(case, shared):
    report = ncu.read_report(shared / "data" / "traces" / "ncu" / "rtx4090_smem_transpose.raw.csv")
    expected = case("N03")
    assert [k.name.partition("(")[0] for k in report.kernels] == list(expected)
    for k, wanted in zip(report.kernels, expected.values(), strict=True):
        m = k.measured
        got = (m.duration_s * 1e9, m.dram_read_bytes, m.dram_write_bytes, m.l1_load_bytes, m.l1_store_bytes)
        assert got == pytest.approx(tuple(wanted.values()), rel=1e-4)


def test_n04_details_page(case, shared):
    expected = case("N04")
    path = shared / "data" / "traces" / "ncu" / "t4_copy_blocked.details.csv"
    report = ncu.read_report(path)
    assert (report.page, len(report.kernels)) == ("details", expected["kernels"])
    assert report.kernels[0].measured.duration_s * 1e9 == pytest.approx(expected["first_duration_ns"], rel=1e-6)
    assert report.kernels[0].values["GPU Speed Of Light Throughput: Duration"] == pytest.approx(0.021058944)
    assert expected["first_duration"].replace(",", "") == str(int(ncu.read(path).of(Kind.KERNEL).duration_ns[0]))


def test_every_ncu_file_opens(shared):
    for path in sorted((shared / "data" / "traces" / "ncu").iterdir()):
        t = ncu.read(path)
        if path.stat().st_size == 175:  # a details page without metrics
            assert not t.has(Kind.KERNEL)
            assert "chosen metrics only" in t.why_absent(Kind.KERNEL).reason
        else:
            assert t.extras["report"].kernels


def test_xp01_devices(case, shared):
    t = xplane_timeline.read(shared / "data" / "traces" / "xplane" / "mi300x_conv_jax0.8.xplane.pb")
    for number, (plane, wanted) in enumerate(case("XP01").items()):
        assert t.extras["planes"][plane] == (wanted["lines"], wanted["events"])
        assert t.extras["plane_stats"][plane]["memory_bandwidth"] == wanted["memory_bandwidth"]
        work = t.device_work
        work = work.take(work.device == number)
        assert len(work) == wanted["events"]
        assert int(work.duration_ns.sum()) * 1000 == wanted["sum_ps"]
        assert union_ns(work.start_ns, work.end_ns) * 1000 == wanted["union_ps"]
        assert isinstance(t.devices[number].memory_bytes_per_s, Unknown)  # half the data sheet: not a peak


def test_xp02_cpu(case, shared):
    folder = shared / "data" / "traces" / "xplane"
    t = xplane_timeline.read(folder / "cpu_jax0.10.2.xplane.pb")
    assert t.extras["planes"] == {p: (v["lines"], v["events"]) for p, v in case("XP02").items()}
    assert "no device plane" in t.why_absent(Kind.KERNEL).reason
    beside = chrome.read(folder / "cpu_jax0.10.2.trace.json.gz")
    assert beside.format == "xla_trace"
    assert beside.extras["phase_counts"]["X"] == case("XP02")["/host:CPU"]["events"]


def test_corrupt_xplane_is_refused(shared):
    with pytest.raises(InputError, match="not an intact XPlane profile") as refused:
        xplane_timeline.read(shared / "data" / "traces" / "xplane" / "bad_tpu_corrupt.xplane.pb")
    assert refused.value.code == "damaged_xplane"


def test_r01_rocprofv3(case, shared):
    expected = case("R01")
    t = rocprofv3.read(shared / "data" / "traces" / "other" / "rocprofv3_mi350_train.json.gz")
    k = kernels(t)
    assert len(k) == expected["dispatches"]
    assert len(t.used_devices) == expected["agents"]
    assert int(k.duration_ns.sum()) == expected["sum_ns"]
    by_device = [k.take(k.device == d) for d in t.used_devices]
    assert [union_ns(d.start_ns, d.end_ns) for d in by_device] == expected["union_ns_by_agent"]
    assert int(k.end_ns.max() - k.start_ns.min()) == expected["span_ns"]
    assert not [d for d in t.damage if d.code in ("negative_duration", "zero_duration")]
    assert t.devices[0].name == "AMD Instinct MI350X"


def test_r02_rocprof_compute(case, shared):
    for name, wanted in case("R02").items():
        t = rocprof_compute.read(shared / "data" / "traces" / "other" / "rocprof_compute" / f"device_filter_{name}")
        w = t.extras["workload"]
        assert (w.gpu_arch, w.compute_units) == (wanted["arch"], wanted["cu_per_gpu"])
        assert w.max_clock_hz == wanted["max_sclk_mhz"] * 1e6
        assert w.memory_bytes_per_s == pytest.approx(wanted["hbm_bw_gb_per_s"] * 1e9)
        assert kernels(t).duration_ns.tolist() == wanted["kernel_ns"]
        assert isinstance(t.devices[0].memory_bytes_per_s, Unknown)
    assert w.roofs == ()  # only the MI200 folder holds roofline.csv
