"""Configuration files: what they mean, in what order, and what every mistake says."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.measure.config import load_plan, plan_from_command_line
from mansard.measure.config import names as names_module
from mansard.measure.config.declared import Declared, bandwidth_at
from mansard.measure.config.yamlfile import parse_yaml
from mansard.measure.points.benchmark import REQUIRED, Parameter, Waived, Where

HERE = Where(backend="numpy", platform="cpu", memory_bytes=8e9)


class Scaled:
    """A benchmark of known parameters, so that these tests depend on no other room."""

    name = "scaled"
    aliases = ("scaled_v1",)
    area = "compute"
    summary = "x"
    implementations: ClassVar = {"plain": "numpy", "fused": "numpy", "far": "jax"}
    parameters = (
        Parameter(name="m", kind="int", default=1024, minimum=1),
        Parameter(name="n", kind="int", default=REQUIRED, minimum=1, aliases=("width",)),
        Parameter(name="in_dtype", kind="dtype", default="f8_e4m3"),
        Parameter(name="dtype", kind="dtype", default="bf16"),
        Parameter(name="mode", kind="str", default="fwd", choices=("fwd", "bwd")),
        Parameter(name="alpha", kind="float", default=1.0),
        Parameter(name="causal", kind="bool", default=False),
        Parameter(name="seq_len", kind="int", default=64),
        Parameter(name="kv_seq_len", kind="int", default=0),
        Parameter(name="mesh_shape", kind="str", default=None),
    )

    def work(self, params, where):
        raise AssertionError("a plan counts nothing")

    def waived(self, params, impl, where):
        return Waived(reason="too wide for 8 GB", missing="memory") if params["n"] > 10_000 else None

    def prepare(self, params, impl, where):
        raise AssertionError("a plan runs nothing")


@pytest.fixture(autouse=True)
def only_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"scaled": Scaled(), "scaled_v1": Scaled()}
    monkeypatch.setattr(names_module, "all_benchmarks", lambda: table)


def planned(tmp_path: Path, text: str, **options):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load_plan(path, **options)


def wrong(tmp_path: Path, text: str, **options) -> tuple[str, str]:
    """Return the message without the folder, and the hint, of a file that is refused."""
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, text, **options)
    assert caught.value.exit_code == 2
    return caught.value.message.replace(f"{tmp_path}/", ""), caught.value.hint


# What comes of a file


def test_values_are_merged_in_order(tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("m,n,alpha\n7,8,\n9,10,2.5\n")
    plan = planned(
        tmp_path,
        """
global: {num_runs: 3, dtype: float32, seq_len: 5, alpha: 9.0}
benchmarks:
  - name: scaled
    model: LLM-36B
    m: 2
    alpha: 1.5
    csv_shapes: shapes.csv
    sweep: {n: [20, 21], causal: [true, false]}
""",
    )
    rows = [(p.params["m"], p.params["n"], p.params["alpha"], p.params["causal"]) for p in plan.points]
    # The CSV row gives m over the entry's 2, its empty cell leaves alpha to the entry, the sweep wins over its n.
    assert rows == [
        (7, 20, 1.5, True), (7, 20, 1.5, False), (7, 21, 1.5, True), (7, 21, 1.5, False),
        (9, 20, 2.5, True), (9, 20, 2.5, False), (9, 21, 2.5, True), (9, 21, 2.5, False),
    ]  # fmt: skip
    first = plan.points[0].params
    # global < preset: seq_len 8192 is the preset's; num_runs and dtype are global; mode is the default.
    assert (first["seq_len"], first["num_runs"], first["dtype"], first["mode"]) == (8192, 3, "f32", "fwd")
    assert [p.size for p in plan.products] == [4, 4]
    assert dict(plan.products[0].axes) == {"n": 2, "causal": 2}
    assert plan.points[0].origin.endswith("shapes.csv:2")


def test_the_entry_is_above_the_preset_and_the_preset_says_what_it_gives(tmp_path: Path) -> None:
    plan = planned(tmp_path, "benchmarks:\n- {name: scaled, n: 1, seq_len: 3, model: LLM-200B}\n")
    assert plan.points[0].params["seq_len"] == 3
    assert "model LLM-200B of scaled gives seq_len=16384" in plan.notes[0]


def test_a_field_under_another_name_gives_way_to_the_field_itself(tmp_path: Path) -> None:
    # The preset's seq_len must not come back as kv_seq_len where the entry has another seq_len.
    plan = planned(tmp_path, "benchmarks:\n- {name: scaled, n: 1, seq_len: 3, model: LLM-200B}\n")
    assert plan.points[0].params["kv_seq_len"] == 0
    assert "not its parameters: layers, " in plan.notes[0]


def test_a_config_json_gives_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 4096, "num_attention_heads": 32}')
    plan = planned(tmp_path, "benchmarks:\n- {name: scaled, n: 1, model: config.json}\n")
    # A config.json has no sequence length: the default stays, and the note says that nothing was taken.
    assert plan.points[0].params["seq_len"] == 64
    assert "names none of its parameters" in plan.notes[0]


def test_sweep_forms(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        """
benchmarks:
  - name: scaled
    sweep:
      m: {start: 1, end: 100, multiplier: 3}
      n: 5
      alpha: {start: 0, end: 1, increase_by: 0.5}
""",
    )
    assert [p.params["m"] for p in plan.points[::3]] == [1, 3, 9, 27, 81, 100]
    assert [p.params["alpha"] for p in plan.points[:3]] == [0.0, 0.5, 1.0]
    assert plan.size == plan.products[0].size == 18
    assert any("m ends at 100, which its steps do not meet; the published suite stops at 81" in n for n in plan.notes)


def test_a_product_above_a_thousand_is_whole(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "benchmarks:\n- name: scaled\n  sweep:\n    m: {start: 1, end: 40, increase_by: 1}\n"
        "    n: {start: 1, end: 40, increase_by: 1}\n",
    )
    assert len(plan.points) == plan.products[0].size == 1600


def test_the_first_version_of_files(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        """
benchmarks:
- benchmark_name: scaled
  csv_path: "out"
  trace_dir: "out"
  xlml_metrics_dir: "out"
  xla_dump_dir: "out"
  num_runs: 7
  warmup_tries: 1
  benchmark_params:
  - {m: 4, n: SAME_AS_m}
  benchmark_sweep_params:
  - {m_range: {start: 1, end: 4, multiplier: 2}, n: SAME_AS_m, mode_list: [fwd, bwd], dtype: float8, num_runs: 9}
""",
    )
    rows = [(p.params["m"], p.params["n"], p.params["mode"]) for p in plan.points]
    assert rows == [
        (4, 4, "fwd"),
        (1, 1, "fwd"),
        (1, 1, "bwd"),
        (2, 2, "fwd"),
        (2, 2, "bwd"),
        (4, 4, "fwd"),
        (4, 4, "bwd"),
    ]
    assert [p.params["num_runs"] for p in plan.points] == [7, 9, 9, 9, 9, 9, 9]
    assert {p.params["warmup_tries"] for p in plan.points} == {1}
    assert [p.params["dtype"] for p in plan.points][:2] == ["bf16", "f8_e4m3"]
    assert sum("is accepted" in note for note in plan.notes) == 4


def test_implementations_stand_side_by_side(tmp_path: Path) -> None:
    plan = planned(tmp_path, 'benchmarks:\n- {name: scaled, impl: "plain, far", sweep: {n: [1, 2]}}\n')
    assert [(p.params["n"], p.impl, p.backend) for p in plan.points] == [
        (1, "plain", "numpy"), (1, "far", "jax"), (2, "plain", "numpy"), (2, "far", "jax"),
    ]  # fmt: skip


def test_names_are_stable_and_unique(tmp_path: Path) -> None:
    text = "benchmarks:\n- {name: scaled, n: 2, num_runs: 3}\n- {name: scaled, sweep: {n: [2, 4]}}\n"
    plan = planned(tmp_path, text)
    names = [p.name for p in plan.points]
    # Sizes and types always, others where they differ from the default; how long it runs is not part of it.
    base = "scaled[plain] m=1024 n=2 in_dtype=f8_e4m3 dtype=bf16 seq_len=64"
    assert names == [base, f"{base} #2", base.replace("n=2", "n=4")]
    other = planned(tmp_path, "benchmarks:\n- {name: scaled, n: 2, mode: bwd, alpha: 0.1, causal: true}\n")
    assert other.points[0].name == (
        "scaled[plain] m=1024 n=2 in_dtype=f8_e4m3 dtype=bf16 mode=bwd alpha=0.1 causal=true seq_len=64"
    )


def test_the_command_line_comes_before_everything(tmp_path: Path) -> None:
    text = "benchmarks:\n- {name: scaled, sweep: {n: [1, 2, 3], m: [5, 6]}}\n"
    plan = planned(tmp_path, text, overrides={"n": "9", "num-runs": "4"})
    assert [(p.params["n"], p.params["m"]) for p in plan.points] == [(9, 5), (9, 6)]
    assert plan.points[0].params["num_runs"] == 4
    swept = planned(tmp_path, text, overrides={"m": "1..4x2"})
    assert [(p.params["n"], p.params["m"]) for p in swept.points][:4] == [(1, 1), (1, 2), (1, 4), (2, 1)]


def test_an_implementation_that_only_some_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(Doubling):
        name = "simple"
        implementations: ClassVar = {"other": "numpy"}

        def expand(self, params):
            return [params]

    monkeypatch.setattr(names_module, "all_benchmarks", lambda: {"scaled": Scaled(), "simple": Plain()})
    text = "benchmarks:\n- {name: scaled, n: 1}\n- {name: simple, n: 1}\n"
    plan = planned(tmp_path, text, overrides={"impl": "fused,other"})
    assert [(p.benchmark, p.impl) for p in plan.points] == [("scaled", "fused"), ("simple", "other")]
    assert list(plan.notes) == [
        "scaled has no implementation other", "simple has no implementation fused",
    ]  # fmt: skip
    alone = planned(tmp_path, text, overrides={"impl": "fused"})
    assert [(p.benchmark, p.impl) for p in alone.points] == [("scaled", "fused"), ("simple", "other")]
    assert "stays as it is written" in alone.notes[0]
    message, _ = wrong(tmp_path, text, overrides={"impl": "fusd"})
    assert message == "command line: unknown implementation 'fusd' of any benchmark of the file; the nearest is 'fused'"


def test_one_benchmark_on_the_command_line() -> None:
    plan = plan_from_command_line("scaled", {"n": "64..256x2", "mode": "fwd,bwd", "in-dtype": "fp16"})
    assert [(p.params["n"], p.params["mode"]) for p in plan.points] == [
        (64, "fwd"), (64, "bwd"), (128, "fwd"), (128, "bwd"), (256, "fwd"), (256, "bwd"),
    ]  # fmt: skip
    assert plan.points[0].params["in_dtype"] == "f16"
    assert plan.points[0].origin == "command line"
    with pytest.raises(
        UsageError, match="command line: unknown parameter 'seq_length' of scaled; the nearest is 'seq_len'"
    ):
        plan_from_command_line("scaled", {"n": 1, "seq_length": 2})
    with pytest.raises(UsageError, match="as a range"):
        plan_from_command_line("scaled", {"n": "1..8"})


def test_points_that_cannot_run_are_waived_with_the_reason(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "benchmarks:\n- {name: scaled, impl: [plain, far], sweep: {n: [1, 20000]}}\n- {name: keras_attention, batch: 2}\n",
        where={"numpy": HERE},
    )
    assert [(p.params["n"], p.impl) for p in plan.points] == [(1, "plain")]
    reasons = [(w.waived.missing, w.waived.reason) for w in plan.waived]
    assert [m for m, _ in reasons] == ["backend", "memory", "backend", "implementation"]
    assert "backend jax" in reasons[0][1]
    assert reasons[1][1] == "too wide for 8 GB"
    assert "no benchmark keras_attention" in reasons[3][1]
    assert plan.size == 5


class Doubling(Scaled):
    """A benchmark of which one entry stands for a sweep."""

    name = "doubling"
    aliases = ()

    def expand(self, params):
        if params["n"] > 8:
            raise UsageError("n is more than 8")
        return [{**params, "m": size} for size in (1, 2, 4)]


def test_an_entry_that_stands_for_several_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "all_benchmarks", lambda: {"doubling": Doubling()})
    plan = planned(tmp_path, "benchmarks:\n- {name: doubling, sweep: {n: [5, 6]}}\n- {name: doubling, n: 7}\n")
    assert [(p.params["n"], p.params["m"]) for p in plan.points] == [
        (5, 1), (5, 2), (5, 4), (6, 1), (6, 2), (6, 4), (7, 1), (7, 2), (7, 4),
    ]  # fmt: skip
    assert [p.size for p in plan.products] == [6, 3]
    assert dict(plan.products[0].axes) == {"n": 2, "sizes of its own": 3}
    message, _ = wrong(tmp_path, "benchmarks:\n- {name: doubling, n: 9}\n")
    assert message == "c.yaml:2: doubling: n is more than 8"


def test_a_backend_is_asked_for_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def where(backend: str) -> Where:
        asked.append(backend)
        return HERE

    planned(tmp_path, "benchmarks:\n- {name: scaled, sweep: {n: [1, 2, 3]}}\n", where=where)
    assert asked == ["numpy"]


def test_environment_of_entries_and_of_op_flags(tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text(
        "a: &a\n  flags: [--x=1, --y=2]\n  env: {TPU_PREMAPPED_BUFFER_SIZE: 68719476736}\nscaled_v1: *a\n"
    )
    plan = planned(
        tmp_path,
        "op_flags: flags.yaml\nbenchmarks:\n- {name: scaled, n: 1, env: {LIBTPU_INIT_ARGS: --z=3, DEBUG: true}}\n",
    )
    assert plan.points[0].flags == {
        "LIBTPU_INIT_ARGS": "--x=1 --y=2 --z=3", "TPU_PREMAPPED_BUFFER_SIZE": "68719476736", "DEBUG": "true",
    }  # fmt: skip
    message, _ = wrong(tmp_path, "op_flags: none.yaml\nbenchmarks:\n- {name: scaled, n: 1}\n")
    assert message == "c.yaml:1: op_flags: no file 'none.yaml'"


def test_the_system_is_matched_exactly_or_said_to_be_unknown(tmp_path: Path) -> None:
    known = planned(
        tmp_path, "global: {system: ironwood}\nbenchmarks:\n- {name: scaled, n: 1}\n", where={"numpy": HERE}
    )
    assert known.hardware == "tpu-v7x"
    assert any("runs on a CPU, so none of its peaks is used" in note for note in known.notes)
    unknown = planned(tmp_path, "global: {system: ghostlite}\nbenchmarks:\n- {name: scaled, n: 1}\n")
    assert unknown.hardware is None
    assert any("'ghostlite' is not in the hardware catalogue" in note for note in unknown.notes)


# Declared ceilings


def test_declared_ceilings_have_units_lines_and_notes(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        """global: {dtype: bfloat16}
hardware:
  peak_tflops: 459.0
  hbm_bw:
    1048576: 1200.0
    1073741824: 1600.0
  ici: {peak_bw_gbps: 1200.0, bidirectional: true}
benchmarks: [{name: scaled, n: 1}]
""",
    )
    compute, memory, link = plan.ceilings
    assert (compute.value, compute.resource.dtype, compute.kind, compute.scope) == (
        459e12,
        "bf16",
        "declared",
        "device",
    )
    assert compute.source.endswith("c.yaml:3")
    assert (memory.value, memory.resource.level) == (1600e9, "hbm")
    # 1200 GB/s in both directions together are 600 GB/s one way.
    assert link.value == 600e9
    assert any("the published suite ignores this key" in n for n in plan.notes)
    assert plan.curve is not None
    # Halfway in bytes between 2^20 and 2^30, halfway in rate: 1400 GB/s.
    assert plan.curve.at((2**20 + 2**30) / 2) == pytest.approx(1400e9)
    assert (plan.curve.at(1), plan.curve.at(2**40)) == (1200e9, 1600e9)
    assert isinstance(bandwidth_at(Declared(), 1.0), Unknown)


def test_peaks_by_type_and_with_units(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "hardware: {tflops: {float32: 0.5, int8: 2 TFLOP/s}, hbm_bw: 60 GB/s}\nbenchmarks: [{name: scaled, n: 1}]\n",
        where={"numpy": HERE},
    )
    assert [(c.resource.dtype, c.value, c.scope) for c in plan.ceilings] == [
        ("f32", 0.5e12, "node"), ("i8", 2e12, "node"), (None, 60e9, "node"),
    ]  # fmt: skip
    # On a CPU the memory is DRAM, and the scope is the node.
    assert plan.ceilings[2].resource.level == "dram"


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("{peak_tflops: 459.0}", "no global dtype says which element type it belongs to"),
        ("{tflops: 1, peak_tflops: 1}", "both tflops and peak_tflops"),
        ("{tflops: {bf17: 1}}", "unknown element type 'bf17'"),
        ("{hbm_bw: -1}", "positive and finite"),
        ("{hbm_bw: fast}", "no number"),
        ("{hbm_bw: 400 Gbps}", "ambiguous"),
        ("{hbm_bw: [[1, 2], [1, 3]]}", "two rates at 1 bytes"),
        ("{hbm_bw: {big: 2}}", "'big' is not a number of bytes"),
        ("{hbm_bw: []}", "has no points"),
        ("{hbm_bandwith: 1}", "unknown key 'hbm_bandwith' of hardware; the nearest is 'hbm_bw'"),
        ("{ici: {bidirectional: true}}", "has no peak_bw_gbps"),
        ("{ici: {peak_bw_gbps: 1, bidirectional: 2}}", "true or false"),
        ("7", "must be a table"),
    ],
)
def test_a_wrong_hardware_block_is_refused(tmp_path: Path, block: str, says: str) -> None:
    message, _ = wrong(tmp_path, f"hardware: {block}\nbenchmarks: [{{name: scaled, n: 1}}]\n")
    assert message.startswith("c.yaml:1: ")
    assert says in message


# Mistakes: the file, the line, what is wrong, and the nearest name


@pytest.mark.parametrize(
    ("entry", "line", "says"),
    [
        ("name: scaled\n  n: 1\n  mod: bwd", 4, "unknown parameter 'mod' of scaled; the nearest is 'mode'"),
        ("name: scaled\n  n: 1\n  sweep: {alfa: [1]}", 4, "unknown parameter 'alfa' of scaled; the nearest is 'alpha'"),
        ("name: scald\n  n: 1", 2, "unknown benchmark 'scald'; the nearest is 'scaled'"),
        ("name: gemm_generalised\n  m: 1", 2, "unknown benchmark 'gemm_generalised'; the nearest is 'gemm_generalized'"),
        ("name: keras_attention\n  batsh: 1", 3, "unknown parameter 'batsh' of keras_attention; the nearest is 'batch'"),
        ("name: scaled", 2, "scaled needs n"),
        ("n: 1", 2, "an entry has no name"),
        ("name: scaled\n  benchmark_name: scaled", 2, "has both name and benchmark_name"),
        ("name: scaled\n  n: [1, 2]", 3, "n is a list of 2, outside of a sweep"),
        ("name: scaled\n  n: {start: 1, end: 2}", 3, "n is a table, outside of a sweep"),
        ("name: scaled\n  n: 1.5", 3, "n of scaled is 1.5; expected a whole number"),
        ("name: scaled\n  n: '8'", 3, "n of scaled is '8'; expected a whole number"),
        ("name: scaled\n  n: true", 3, "n of scaled is True; expected a whole number"),
        ("name: scaled\n  n: ~", 3, "n of scaled is empty"),
        ("name: scaled\n  n: 0", 3, "n of scaled is 0; the least is 1"),
        ("name: scaled\n  n: 1\n  causal: no", 4, "causal of scaled is 'no'; expected true or false"),
        ("name: scaled\n  n: 1\n  mode: bwdd", 4, "mode of scaled is 'bwdd'; the nearest choice is 'bwd'"),
        ("name: scaled\n  n: 1\n  dtype: bfloat", 4, "dtype of scaled: unknown element type 'bfloat'; the nearest is"),
        ("name: scaled\n  n: 1\n  impl: plane", 4, "unknown implementation 'plane' of scaled; the nearest is 'plain'"),
        ("name: scaled\n  n: 1\n  width: 2", 4, "n and width are the same parameter of scaled; keep one"),
        ("name: scaled\n  n: 1\n  num_runs: 0", 4, "num_runs of scaled is 0; the least is 1"),
        ("name: scaled\n  n: 1\n  xprof_timing: 3", 4, "xprof_timing of scaled is 3; expected true or false"),
        ("name: scaled\n  n: 1\n  sweep: {system: [a, b]}", 4, "system changes nothing of a point, so it cannot be swept"),
        ("name: scaled\n  n: 1\n  model: LLM-37B", 4, "unknown model 'LLM-37B'"),
        ("name: scaled\n  n: 1\n  model: a/config.json", 4, "no file"),
        ("name: scaled\n  n: SAME_AS_k", 2, "unknown parameter 'k' of n: SAME_AS_k"),
        ("name: scaled\n  n: SAME_AS_m\n  m: SAME_AS_n", 2, "refers to itself"),
        ("name: scaled\n  n: 1\n  env: {1X: 2}", 4, "'1X' is no name of an environment variable"),
        ("name: scaled\n  sweep: {n: []}", 3, "the sweep of n has no values"),
        ("name: scaled\n  sweep: {n: [[1]]}", 3, "expected single values"),
        ("name: scaled\n  sweep: {}", 3, "sweep names no parameter"),
        ("name: scaled\n  sweep:\n    n: {start: 1, end: 8}", 4, "needs exactly one of multiplier and increase_by"),
        ("name: scaled\n  sweep:\n    n: {start: 1, end: 8, multiplier: 1}", 4, "never ends"),
        ("name: scaled\n  sweep:\n    n: {start: 0, end: 8, multiplier: 2}", 4, "never ends"),
        ("name: scaled\n  sweep:\n    n: {start: 1, end: 8, increase: 2}", 4, "the nearest is 'increase_by'"),
        ("name: scaled\n  sweep:\n    n: {start: 1, multiplier: 2}", 4, "the range of n has no end"),
        ("benchmark_name: scaled\n  sweep: {n: 1}", 3, "unknown key 'sweep' of scaled, an entry of the suite's first"),
        ("benchmark_name: scaled\n  benchmark_sweep_params: [{n: 1, n_range: 2}]", 3, "n is given twice"),
        ("benchmark_name: scaled\n  benchmark_params: 5", 3, "must be a list of tables"),
        ("name: scaled\n  n: 1\n  csv_shapes: none.csv", 4, "csv_shapes: no file 'none.csv'"),
    ],
)  # fmt: skip
def test_a_mistake_names_file_line_and_the_nearest_name(tmp_path: Path, entry: str, line: int, says: str) -> None:
    message, _ = wrong(tmp_path, f"benchmarks:\n- {entry}\n")
    assert message.startswith(f"c.yaml:{line}: "), message
    assert says in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("benchmark: []\n", "c.yaml:1: unknown key 'benchmark' of the file; the nearest is 'benchmarks'"),
        ("global: {num_runs: 1}\n", "c.yaml: has no `benchmarks`"),
        ("benchmarks: []\n", "c.yaml:1: benchmarks must be a list of entries"),
        ("benchmarks:\n- name: scaled\n  n: 1\n  n: 2\n", "c.yaml:4: 'n' is written twice; the first is on line 3"),
        ("benchmarks:\n- [1\n", "is not YAML"),
        ("\tbenchmarks: 1\n", "c.yaml:1: is not YAML"),
        ("", "c.yaml: is empty"),
        ("- 1\n", "must be a table"),
        ("global: {num_run: 1}\nbenchmarks:\n- {name: scaled, n: 1}\n",
         "c.yaml:1: unknown key 'num_run' of global; the nearest is 'num_runs'"),
        ("global: {num_runs: [1]}\nbenchmarks:\n- {name: scaled, n: 1}\n", "global.num_runs is a list of 1"),
        ("benchmarks: &b\n- *b\n", "an alias refers to the value that holds it"),
        ("a: 1\n---\nb: 2\n", "holds a second document"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    message, _ = wrong(tmp_path, text)
    assert says in message


def test_an_override_that_means_nothing_is_refused(tmp_path: Path) -> None:
    message, _ = wrong(tmp_path, "benchmarks:\n- {name: scaled, n: 1}\n", overrides={"wdth": 3})
    assert "unknown parameter '--wdth'" in message
    assert "'--width'" in message


@pytest.mark.parametrize(
    ("table", "line", "says"),
    [
        ("", 1, "is empty"),
        ("n,n\n1,2\n", 1, "the column 'n' is there twice"),
        ("n,\n1,2\n", 1, "column 2 has no name"),
        ("n,m\n1\n", 2, "1 cells under a header of 2"),
        ("n\n\n", 0, "has no rows"),
        ("n,q\n1,2\n", 2, "unknown parameter 'q' of scaled"),
        ("n\nwide\n", 2, "n of scaled is 'wide'; expected a whole number"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, table: str, line: int, says: str) -> None:
    (tmp_path / "s.csv").write_text(table)
    message, _ = wrong(tmp_path, "benchmarks:\n- {name: scaled, csv_shapes: s.csv}\n")
    assert message.startswith(f"s.csv:{line}: " if line else "s.csv: "), message
    assert says in message


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_plan(tmp_path / "none.yaml")


def test_numbers_are_read_as_yaml_1_2() -> None:
    read = parse_yaml("a: 1e15\nb: no\nc: 12:30\nd: 0x10\ne: 2020-01-01\nf: ~\n", "x").plain()
    assert read == {"a": 1e15, "b": "no", "c": "12:30", "d": 16, "e": "2020-01-01", "f": None}


def test_merge_keys_and_anchors(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "benchmarks:\n- &first {name: scaled, n: 1, m: 5}\n- {<<: *first, n: 2}\n",
    )
    assert [(p.params["n"], p.params["m"]) for p in plan.points] == [(1, 5), (2, 5)]
