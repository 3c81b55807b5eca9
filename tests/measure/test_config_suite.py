"""Every configuration file of the published suite is read and planned, and says nothing that is not understood."""

from __future__ import annotations

import csv
import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mansard
from mansard.measure.config import json_schema, load_plan
from mansard.measure.config import plan as plan_module
from mansard.measure.config.common import COMMON_NAMES
from mansard.measure.config.names import all_names, find_benchmark, meaning_of
from mansard.measure.config.plan import Plan
from mansard.measure.config.presets import PRESETS
from mansard.measure.config.published import ALSO_CALLED, PUBLISHED, SPELLED, WITHOUT_EFFECT, canonical
from mansard.measure.config.yamlfile import Place, read_yaml
from mansard.measure.points.benchmark import Where
from mansard.measure.points.registry import all_benchmarks, benchmark_named

#: What a waived point can lack.
MISSING = ("device", "memory", "time", "backend", "dtype", "implementation")

#: The suite's own files in short, for where the copies are absent: one entry of every shape they have.
SHAPES = {
    "v2_ranges.yaml": """
global: {system: "ironwood", warmup_tries: 2, num_runs: 5, dtype: "bfloat16", xprof_timing: true}
benchmarks:
  - name: gemm_generalized
    sweep:
      m: {start: 1024, end: 4096, multiplier: 2}
      k: 2048
      n: 2048
  - name: all_reduce
    reduce_op: "sum"
    mesh_shape: "16x4x2"
    sweep:
      matrix_dim: [512, 1024, 2048]
  - name: hbm_bandwidth
    sweep:
      size: {start: 1024, end: 8192, multiplier: 2}
""",
    "v2_model.yaml": """
global: {min_duration_s: 5.0, warmup_tries: 10, num_runs: 5, dtype: "bfloat16"}
hardware: {peak_tflops: 459.0, hbm_bw: {1048576: 1200.0, 1073741824: 1600.0}}
benchmarks:
  - name: gemm_generalized
    model: "LLM-200B"
    in_dtype: "float8_e4m3fn"
    use_scaling_factors: true
    sweep: {m: [1024, 2048, 4096], k: 16384, n: 16384}
  - {name: attention_flashed, model: "LLM-200B", causal: true}
  - {name: transformer_layer_moe, model: "LLM-200B", tp: 4, etp: 1, cp: 2, ep: 16, mslen: 8192}
  - name: sigmoid
    sweep: {mode: ["fwd", "bwd"], batch: [1024, 2048], dim: [4096, 8192]}
""",
    "v1.yaml": """
benchmarks:
- benchmark_name: ppermute
  benchmark_sweep_params:
  - {matrix_dim_range: {start: 1024, end: 3072, increase_by: 1024}, dtype: "bfloat16", dcn_size_range: 1, ici_size_range: 4}
  warmup_tries: 10
  trace_dir: "out"
- benchmark_name: send_recv
  benchmark_sweep_params:
  - {source_id: 0, target_id_list: [2,3], num_elements_range: {start: 1024, end: 4096, multiplier: 2}, n_repeats: 10, dtype: "float32"}
- benchmark_name: "naive_outputs"
  benchmark_sweep_params:
  - {m_range: {start: 1024, end: 2048, increase_by: 1024}, k: "SAME_AS_m", n: "SAME_AS_m"}
- benchmark_name: "gemm_simple_with_dtype"
  num_runs: 100
  benchmark_sweep_params:
  - {m: {start: 1, end: 4, multiplier: 2}, k: 128, n: 128, in_dtype_str: "fp8", out_dtype_str: "bf16"}
- benchmark_name: "tokamax_splash_attention"
  benchmark_sweep_params:
  - {batch_size: 1, q_seq_len: 4096, kv_seq_len: 4096, q_heads: 128, kv_heads: 8, qk_head_dim: 256, v_head_dim: 256, mode: ["fwd", "bwd"], causal: [true, false], num_samples: 3500, tune_pallas_only: true}
""",
}  # fmt: skip


def suite_files(shared: Path) -> list[Path]:
    found = sorted((shared / "data" / "suite_configs").rglob("*.yaml"))
    assert len(found) == 122
    return found


read_once = functools.cache(read_yaml)


@functools.cache
def document(path: Path) -> Any:
    """Return what a file says; each is read once for all tests."""
    return read_once(path).plain()


HERE = {
    backend: Where(backend=backend, platform="cpu", threads=2, cpus=(0, 1), memory_bytes=8e9)
    for backend in ("jax", "torch", "numpy", "native")
}


@pytest.fixture(scope="module")
def plans(shared: Path) -> dict[Path, Plan]:
    """Return the plan of every file of the suite on a small machine."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_module, "read_yaml", read_once)
        return {path: load_plan(path, where=HERE) for path in suite_files(shared)}


def expected_size(path: Path) -> int:
    """Return how many points a file has, counted from its text alone and without the code under test's sweeps."""
    return sum(_entry_size(entry, path) for entry in document(path)["benchmarks"])


def _entry_size(entry: dict[str, Any], path: Path) -> int:
    if "benchmark_name" in entry:
        blocks = entry.get("benchmark_sweep_params", [])
        return len(entry.get("benchmark_params", [])) + sum(math.prod(map(_count, b.values())) for b in blocks)
    rows = 1
    if "csv_shapes" in entry:
        with (path.parents[1] / "shapes" / Path(entry["csv_shapes"]).name).open() as file:
            rows = len(list(csv.DictReader(file)))
    return rows * math.prod(map(_count, entry.get("sweep", {}).values()))


def _count(form: Any) -> int:
    if isinstance(form, list):
        return len(form)
    if not isinstance(form, dict):
        return 1
    count, value = 0, form["start"]
    while value < form["end"]:
        count += 1
        value = value * form["multiplier"] if "multiplier" in form else value + form["increase_by"]
    return count + 1  # the end itself, once


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_the_suites_files_is_planned(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SHAPES[name])
    plan = load_plan(path)
    # v2: 3 + 3 + 4; with a model: 3 + 1 + 1 + 2*2*2; v1: 3 + 2*3 + 2 + 3 + 2*2.
    assert plan.size == {"v2_ranges.yaml": 10, "v2_model.yaml": 13, "v1.yaml": 18}[name] == expected_size(path)


def test_every_file_of_the_suite_is_planned_whole(plans: dict[Path, Plan]) -> None:
    total = 0
    for path, plan in plans.items():
        assert plan.size == expected_size(path), path
        assert len({p.name for p in plan.points} | {w.point.name for w in plan.waived}) == plan.size, path
        assert all(w.waived.reason for w in plan.waived)
        total += plan.size
    # The sum over the 122 files, so that a file that lost its points would show.
    assert total == 15266


def test_no_parameter_of_the_suites_files_is_unknown(shared: Path) -> None:
    unknown = set()
    for path in suite_files(shared):
        for name, word in _words(path):
            benchmark = find_benchmark(name, Place(file=path.name))
            if (benchmark is not None and meaning_of(word, benchmark, name) is None) or (
                benchmark is None and word not in (*PUBLISHED[canonical(name)], *COMMON_NAMES)
            ):
                unknown.add((name, word))
    assert unknown == set()


def _words(path: Path) -> list[tuple[str, str]]:
    """Return every parameter that a file gives, with the name of its benchmark."""
    out = []
    for entry in document(path)["benchmarks"]:
        if "benchmark_name" in entry:
            blocks = [*entry.get("benchmark_params", []), *entry.get("benchmark_sweep_params", [])]
            words = {w.removesuffix("_range").removesuffix("_list") for b in blocks for w in b}
            out += [(entry["benchmark_name"], word) for word in words]
        else:
            words = {*entry, *entry.get("sweep", {})} - {"name", "sweep", "model", "csv_shapes"}
            out += [(entry["name"], word) for word in words]
    return out


def test_every_published_parameter_is_understood_by_the_benchmark_that_is_here() -> None:
    """What the suite documents for a name is a parameter here, another word for one, or without effect for a reason."""
    lacking = {
        (name, word)
        for name, words in PUBLISHED.items()
        for word in words
        if (benchmark := find_benchmark(name, None)) is not None
        and meaning_of(word, benchmark, name) is None
        and word != "dtype"
    }
    assert lacking == set()


def test_other_words_and_effectless_ones_are_words_of_the_suite() -> None:
    published = set(itertools.chain.from_iterable(PUBLISHED.values()))
    assert set(ALSO_CALLED) <= published
    assert set(WITHOUT_EFFECT) <= published
    assert set(SPELLED.values()) <= set(PUBLISHED)


def test_defaults_of_registered_parameters_are_of_their_kind() -> None:
    from mansard.measure.config.common import default_of

    for benchmark in all_benchmarks().values():
        words = [w for p in benchmark.parameters for w in (p.name, *p.aliases)]
        assert len(words) == len(set(words)), benchmark.name
        assert benchmark.implementations
        for parameter in benchmark.parameters:
            default_of(parameter)  # raises if it is not
            assert parameter.text, (benchmark.name, parameter.name)


def test_presets_hold_together() -> None:
    # LLM-36B: 56 heads of 128 are its width of 7168; all four presets are built so.
    for fields in PRESETS.values():
        assert fields["num_q_heads"] * fields["head_dim"] == fields["model_dim"]
        assert fields["num_q_heads"] % fields["num_kv_heads"] == 0
        assert (fields["attn_type"] == "MHA") == (fields["num_q_heads"] == fields["num_kv_heads"])
    assert PRESETS["LLM-400B"]["num_experts"] == 512


# The schema for editors


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_accepts_every_file_of_the_suite(shared: Path, validator: Any) -> None:
    for path in suite_files(shared):
        errors = list(itertools.islice(validator.iter_errors(document(path)), 3))
        assert not errors, (path.name, [e.message for e in errors])


@pytest.mark.parametrize("name", SHAPES)
def test_the_schema_accepts_every_shape(tmp_path: Path, name: str, validator: Any) -> None:
    path = tmp_path / name
    path.write_text(SHAPES[name])
    assert not list(validator.iter_errors(read_yaml(path).plain()))


@pytest.mark.parametrize(
    "document",
    [
        {"benchmark": []},
        {"benchmarks": []},
        {"benchmarks": [{"name": "hbm_bandwith"}]},
        {"benchmarks": [{"name": "gemm_generalized", "mm": 4}]},
        {"benchmarks": [{"name": "gemm_generalized", "m": "four"}]},
        {"benchmarks": [{"name": "gemm_generalized", "m": 1.5}]},
        {"benchmarks": [{"name": "gemm_generalized", "num_runs": 0}]},
        {"benchmarks": [{"name": "gemm_generalized", "sweep": {"mm": [1]}}]},
        {"benchmarks": [{"name": "gemm_generalized", "sweep": {"m": {"start": 1, "end": 4}}}]},
        {"benchmarks": [{"name": "gemm_generalized", "sweep": {"m": {"start": 1, "end": 4, "multiplier": 1}}}]},
        {"benchmarks": [{"name": "gemm_generalized", "model": "LLM-7B"}]},
        {"benchmarks": [{"benchmark_name": "gemm", "benchmark_sweep_params": [{"q_range": 1}]}]},
        {"benchmarks": [{"benchmark_name": "gemm", "sweep": {"m": 1}}]},
        {"global": {"num_run": 3}, "benchmarks": [{"name": "gemm_generalized"}]},
        {"hardware": {"peak": 3}, "benchmarks": [{"name": "gemm_generalized"}]},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(document: dict[str, Any], validator: Any) -> None:
    assert list(validator.iter_errors(document))


def test_the_schema_names_every_benchmark(validator: Any) -> None:
    entry = validator.schema["properties"]["benchmarks"]["items"]["else"]["allOf"][0]
    assert set(all_names()) <= set(entry["properties"]["name"]["enum"])


# What this project has no benchmark for is waived by name; the rest runs, or a device, memory or type is missing.


def test_every_point_of_the_suites_files_runs_or_is_waived_with_what_is_missing(plans: dict[Path, Plan]) -> None:
    for path, plan in plans.items():
        for item in plan.waived:
            assert item.waived.missing in MISSING, (path.name, item.point.name)
            assert item.waived.reason, (path.name, item.point.name)
        for point in plan.points:
            work = benchmark_named(point.benchmark).work(point.params, HERE[point.backend])
            assert 0 < float(work.demand.working_set) <= 8e9, (path.name, point.name)


def test_the_short_sample_has_four_points_in_cache(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(
        "global: {system: ironwood, warmup_tries: 2, num_runs: 5, dtype: bfloat16, xprof_timing: true}\n"
        "benchmarks:\n  - name: hbm_bandwidth\n    sweep:\n"
        "      size: {start: 1024, end: 8192, multiplier: 2}\n"
    )
    where = Where(backend="native", platform="cpu", threads=2, memory_bytes=8e9)
    plan = load_plan(path, where=lambda backend: replace(where, backend=backend))
    assert [p.params["size"] for p in plan.points] == [1024, 2048, 4096, 8192]
    for point in plan.points:
        work = benchmark_named(point.benchmark).work(point.params, replace(where, backend=point.backend))
        # A copy reads and writes 2-byte elements: 4 bytes for each, 32 KiB at most.
        assert float(work.demand.bytes) == 4 * point.params["size"]
        assert point.params["dtype"] == "bf16"
        assert (point.params["num_runs"], point.params["warmup_tries"]) == (5, 2)
    assert any("xprof_timing is accepted" in note for note in plan.notes)


# The suites that are shipped

SUITES = Path(mansard.__file__).resolve().parent / "data" / "suites"


@pytest.mark.parametrize("name", ["standard", "full"])
def test_a_shipped_suite_is_planned_without_a_note_and_covers_its_areas(name: str, validator: Any) -> None:
    path = SUITES / f"{name}.yaml"
    plan = load_plan(path)
    assert plan.notes == ()
    assert plan.waived == ()
    assert {benchmark_named(p.benchmark).area for p in plan.points} == {
        "compute", "memory", "host_transfer", "collectives", "attention", "operators", "rematerialisation",
    }  # fmt: skip
    assert not any("#" in p.name for p in plan.points)
    assert not list(validator.iter_errors(read_yaml(path).plain()))


def test_the_standard_suite_is_small() -> None:
    # About five seconds a point: 60 points are five minutes.
    assert load_plan(SUITES / "standard.yaml").size <= 60
