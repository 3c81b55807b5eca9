"""From samples to ceilings, the document, the cache and the command."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

import mansard.measure as measure_room
from mansard.cli.main import main
from mansard.cli.measure import command
from mansard.core.ceilings import Area, Ceiling, Ceilings, Kind, MemoryLevel, Resource, ceilings_from_json
from mansard.core.document import dumps, read_document
from mansard.core.errors import InputError, UsageError
from mansard.measure import store
from mansard.measure.backends.case import Case, gemm_error, special_error
from mansard.measure.envelope import envelope
from mansard.measure.frameworks import (
    Request,
    ask,
    environment_of,
    measure_frameworks,
    requests_for,
    slowed_findings,
    to_ceilings,
)
from mansard.measure.machine import choose_cpus, describe
from mansard.measure.probe import reference
from mansard.measure.suite import lift_to_node
from mansard.measure.worker import answer, predict, prepare_gemm


def some_ceilings(**machine):
    environment = {**describe(choose_cpus(None)), "findings": [], **machine}
    dram = Ceiling(
        resource=Resource(area=Area.MEMORY, level="dram", mix="triad", page="huge", store="streaming"),
        value=50e9, unit="B/s", kind=Kind.MEASURED, scope="node", ci95=(49e9, 51e9),
        conditions={"threads": 2, "median": 45e9, "working_set_bytes": 4e8, "regimes": [3e10, 5e10]}, source="test",
    )  # fmt: skip
    peak = Ceiling(
        resource=Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="vector"),
        value=2e11, unit="FLOP/s", kind=Kind.MEASURED, scope="node", conditions={"median": 1.9e11, "lanes": 16},
    )  # fmt: skip
    return Ceilings(
        ceilings=(dram, peak),
        levels=(MemoryLevel(level="dram", capacity_bytes=1e10),),
        machine=environment,
        fits=[],
        curves=[{"name": "working_set", "points": [{"working_set_bytes": 1.0, "bytes_per_s": 2.0}]}],
    )


def test_the_value_is_the_best_sample_and_typical_stands_beside_it():
    e = envelope([[10.0, 12.0, 11.0], [9.0, 11.5]])
    assert (e.value, e.median, e.samples, e.windows) == (12.0, 11.0, 5, 2)
    assert e.high == 12.5  # 12 + (12 - 11.5)
    assert 9.0 <= e.low <= 12.0
    assert e.regimes is None


def test_two_regimes_are_named():
    slow, fast = [34.0, 34.5, 33.8, 34.2, 34.1], [50.0, 52.0, 51.0, 50.5, 51.5]
    assert envelope([slow, fast]).regimes == (34.1, 51.0)
    # one stray sample of eleven is not a regime
    assert envelope([[50.0 + k / 10 for k in range(10)], [34.0]]).regimes is None


@pytest.mark.parametrize("bad", [[[]], [[1.0, math.nan]], [[0.0]]])
def test_an_envelope_refuses_what_is_no_rate(bad):
    with pytest.raises(ValueError, match="positive finite"):
        envelope(bad)


def test_the_document_gives_the_same_ceilings_back(tmp_path):
    made = some_ceilings()
    path = tmp_path / "ceilings.json"
    path.write_text(dumps(measure_room.document(made)))
    body = read_document(path, "ceilings/1")
    assert list(body)[:4] == ["schema", "tool_version", "created", "environment"]
    assert ceilings_from_json(body) == made


def test_the_cache_is_found_again_on_the_same_machine(tmp_path):
    made = some_ceilings()
    path = measure_room.save(made, directory=tmp_path)
    assert path.parent == tmp_path
    assert measure_room.load_cached(directory=tmp_path) == made
    assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


@pytest.mark.parametrize(
    "change", [{"cpu_model": "other"}, {"versions": {"numpy": "0"}}, {"tuning_variables": {"OMP_NUM_THREADS": "7"}}]
)
def test_another_machine_or_version_is_not_used(tmp_path, change):
    measure_room.save(some_ceilings(**change), directory=tmp_path)
    assert measure_room.load_cached(directory=tmp_path) is None


def test_why_kept_ceilings_are_not_used_is_told(tmp_path):
    assert store.nearest_kept(directory=tmp_path) is None
    here = describe(choose_cpus(None))["tuning_variables"]
    other = measure_room.save(some_ceilings(versions={"numpy": "0"}, kernel="0.1"), directory=tmp_path)
    near = measure_room.save(some_ceilings(tuning_variables={**here, "OMP_WAIT_POLICY": "active"}), directory=tmp_path)
    measure_room.save(some_ceilings(cpu_model="other"), directory=tmp_path)
    path, text = store.nearest_kept(directory=tmp_path)
    assert (path, text) == (near, "OMP_WAIT_POLICY is not set here and active there")
    near.unlink()
    path, text = store.nearest_kept(directory=tmp_path)
    assert path == other
    assert "kernel: " in text
    assert text.endswith(" here and 0.1 there")
    assert "numpy is " in text
    # What can be used differs in nothing and is not near but there.
    other.unlink()
    measure_room.save(some_ceilings(), directory=tmp_path)
    assert store.nearest_kept(directory=tmp_path) is None


def test_a_file_under_the_right_name_with_another_fingerprint_is_not_used(tmp_path):
    path = measure_room.save(some_ceilings(), directory=tmp_path)
    body = json.loads(path.read_text())
    body["environment"]["cpu_model"] = "other"
    path.write_text(json.dumps(body))
    assert measure_room.load_cached(directory=tmp_path) is None
    path.write_text("{")
    assert measure_room.load_cached(directory=tmp_path) is None


def test_threads_are_part_of_the_key(tmp_path):
    one = {**describe(choose_cpus(1))}
    more = {**one, "threads": 2, "cpus_used": [0, 1]}
    assert store.cache_path(one, tmp_path) != store.cache_path(more, tmp_path)


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "mine"))
    assert measure_room.cache_directory() == tmp_path / "mine"
    assert measure_room.save(some_ceilings()).parent == tmp_path / "mine"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="cannot write"):
        measure_room.save(some_ceilings())


def test_gemm_results_are_checked():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 64, 64)).astype(np.float32)
    assert gemm_error("f32", x, y, x @ y) < 1.0
    assert gemm_error("f32", x, y, np.zeros_like(x)) > 1.0
    # a product of operands cut to bf16 (8 bits of mantissa) must not pass as f32, but may pass as bf16
    cut = [(m.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for m in (x, y)]
    assert gemm_error("f32", x, y, cut[0] @ cut[1]) > 1.0
    whole = rng.integers(-64, 64, (2, 64, 64), dtype=np.int8)
    exact = whole[0].astype(np.int32) @ whole[1].astype(np.int32)
    assert gemm_error("i8", *whole, exact) == 0.0
    assert gemm_error("i8", *whole, exact + 1) > 1.0
    assert gemm_error("f32", x, y, np.full_like(x, np.nan)) > 1.0


def test_special_results_are_checked():
    x = np.linspace(-3, 3, 64, dtype=np.float64)
    assert special_error("tanh", "f64", x, np.tanh(x)) < 1.0
    assert special_error("exp", "f64", x, np.tanh(x)) > 1.0


class FakeBackend:
    """A backend whose products take a stated time, by a clock that it moves itself."""

    name = "numpy"

    def __init__(self, clock, seconds_of, wrong=()):
        self.clock, self.seconds_of, self.wrong, self.called = clock, seconds_of, wrong, []

    def gemm(self, dtype, size):
        if dtype == "bf16":
            return None

        def run(count):
            self.called.append((dtype, size))
            self.clock[0] += count * self.seconds_of(dtype, size)

        return Case(call="fake", run=run, error=lambda: 9.0 if dtype in self.wrong else 0.0)

    def special(self, function, dtype, count):
        return None

    def dispatch(self):
        return {}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("mansard.measure.worker.time.perf_counter", lambda: now[0])
    return now


def test_a_product_that_would_take_too_long_is_never_called(clock):
    # 1 GFLOP/s: n = 512 takes 0.268 s, more than the limit; 256 takes 0.034 s and predicts it
    backend = FakeBackend(clock, lambda _d, n: 2.0 * n**3 / 1e9)
    ready, skipped = prepare_gemm(backend, ("f16",))
    assert ready == []
    assert max(n for _, n in backend.called) == 256
    assert skipped[0]["size"] == 512
    assert "0.27 s" in skipped[0]["reason"]
    assert predict(0.0335544, 256, 512) == pytest.approx(0.268, rel=1e-2)


def test_missing_and_wrong_products_are_left_out_with_the_reason(clock):
    backend = FakeBackend(clock, lambda _d, n: 2.0 * n**3 / 1e12, wrong=("f64",))
    ready, skipped = prepare_gemm(backend, ("f32", "f64", "bf16"))
    assert [(p["dtype"], p["size"]) for p, _, _ in ready] == [("f32", 512), ("f32", 1024), ("f32", 2048)]
    assert {s["dtype"]: s.get("wrong", False) for s in skipped} == {"f64": True, "bf16": False}


def test_a_rate_is_flop_over_time(clock):
    backend = FakeBackend(clock, lambda _d, n: 2.0 * n**3 / 1e12)
    request = {"backend": "numpy", "threads": 1, "groups": ["matrix"], "dtypes": ["f32"], "rounds": 2}
    points = answer(request, lambda *_: backend)["points"]
    assert [len(p["windows"]) for p in points] == [2, 2, 2]
    assert all(rate == pytest.approx(1e12) for p in points for w in p["windows"] for rate in w)
    found = to_ceilings({"points": points}, Request(backend="numpy", scope="core", cpus=(0,), groups=("matrix",)), 0.02)
    assert len(found) == 1  # three sizes of one call: the best stands
    assert found[0].value == pytest.approx(1e12)
    assert found[0].conditions["foreign_load_ratio"] == 0.02
    assert found[0].resource == Resource(area=Area.COMPUTE, dtype="f32", accumulate="f32", engine="matrix")


def test_the_worker_answers_for_numpy():
    found = ask(Request(backend="numpy", scope="core", cpus=choose_cpus(1), groups=("latency",)))
    assert "failed" not in found
    request = Request(backend="numpy", scope="node", cpus=(0,), groups=("latency",))
    ceiling = to_ceilings(found, request, 0.0)[0]
    assert ceiling.unit == "s"
    assert ceiling.resource == Resource(area=Area.LATENCY, backend="numpy")
    assert ceiling.ci95[0] <= ceiling.value <= ceiling.ci95[1]


def test_a_backend_that_fails_says_why(monkeypatch):
    found = ask(Request(backend="no-such", scope="core", cpus=choose_cpus(1), groups=()))
    assert found == {"failed": "ValueError: unknown backend 'no-such'"}
    monkeypatch.setattr("mansard.measure.frameworks.ask", lambda _request: found)
    result = measure_frameworks(("torch",), (0,), ("latency",))
    assert result.ceilings == []
    assert [f["code"] for f in result.findings] == ["backend_failed"]
    assert "torch (node) was not measured: ValueError" in result.findings[0]["text"]


def test_slowing_variables_get_a_second_look_without_them():
    env = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "9"}
    wanted = requests_for(("numpy", "jax"), (0, 1), ("matrix", "latency"), env)
    assert [(r.backend, r.scope, r.without) for r in wanted[-2:]] == [
        ("numpy", "core", ("OPENBLAS_CORETYPE",)),
        ("numpy", "node", ("OPENBLAS_CORETYPE",)),
    ]
    assert [r.groups for r in wanted[:2]] == [("matrix",), ("matrix", "latency")]
    child = environment_of(wanted[-1], env)
    assert "OPENBLAS_CORETYPE" not in child
    assert (child["OPENBLAS_NUM_THREADS"], child["OMP_NUM_THREADS"]) == ("2", "2")
    assert len(requests_for(("numpy",), (0, 1), ("matrix",), {})) == 2

    def product(value, **more):
        return Ceiling(
            resource=Resource(area=Area.COMPUTE, dtype="f32", engine="matrix"), value=value, unit="FLOP/s",
            kind=Kind.MEASURED, conditions={"backend": "numpy", **more},
        )  # fmt: skip

    texts = slowed_findings([product(1e11), product(1.9e11, environment_without=["OPENBLAS_CORETYPE"])])
    assert "1.90 times" in texts[0]["text"]
    assert slowed_findings([product(1e11), product(1.01e11, environment_without=["X"])]) == []
    # two looks at a machine that others use differ for that reason: 31 times as fast was once said of such a pair
    busy = [product(1e10, foreign_load_ratio=0.6), product(3.1e11, environment_without=["X"], foreign_load_ratio=0.1)]
    assert slowed_findings(busy) == []


def test_the_reference_of_a_probe_is_the_typical_figure():
    assert reference(some_ceilings()) == {"dram_bytes_per_s": 45e9, "vector_f32_flop_per_s": 1.9e11}


def test_wrong_requests_are_refused():
    for bad in ({"suite": "huge"}, {"only": ("gpu",)}, {"backends": ("tf",)}, {"threads": 100_000}):
        with pytest.raises(UsageError):
            measure_room.measure(**bad)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The command with a measurement made up beforehand, and a cache of its own."""
    made = some_ceilings(findings=[{"code": "x", "text": "something to know"}], clock_hz_estimated=4e9)
    asked = []

    def fake(suite, **options):
        asked.append(options)
        return made

    monkeypatch.setattr(measure_room, "measure", fake)
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "cache"))
    return asked


def test_json_is_alone_on_stdout(quick, tmp_path):
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["schema"] == "ceilings/1"
    assert "something to know" in result.stderr
    assert list((tmp_path / "cache").iterdir())


def test_the_table_fits_80_columns(quick):
    result = CliRunner().invoke(command, [])
    assert "200 GFLOP/s" in result.stdout
    assert "50.0 GB/s" in result.stdout
    assert "45.0 GB/s" in result.stdout  # the typical figure
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_nothing_is_overwritten_without_force(quick, tmp_path, capsys):
    target = tmp_path / "out" / "ceilings.json"
    assert CliRunner().invoke(command, ["-o", str(target.parent), "-q"]).exit_code == 0
    target.write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["measure", "-o", str(target.parent)])
    assert stop.value.code == 2
    assert target.read_text() == "mine"
    assert len(quick) == 1  # refused before anything was measured
    assert CliRunner().invoke(command, ["-o", str(target.parent), "--force"]).exit_code == 0
    assert read_document(target, "ceilings/1")["ceilings"]


def test_a_partial_measurement_is_not_kept(quick, tmp_path):
    result = CliRunner().invoke(command, ["--only", "memory", "--only", "vector", "--threads", "1"])
    assert quick[0]["only"] == ("memory", "vector")
    assert quick[0]["threads"] == 1
    assert "not kept" in result.stderr
    assert not (tmp_path / "cache").exists()


def test_quiet_says_nothing_on_stderr(quick):
    assert CliRunner().invoke(command, ["--quiet"]).stderr == ""


def test_an_unknown_group_is_a_usage_error():
    assert CliRunner().invoke(command, ["--only", "gpu"]).exit_code == 2


def test_a_disturbed_measurement_does_not_replace_a_quiet_one(quick, tmp_path):
    quiet, busy = (
        some_ceilings(foreign_load={"memory": 0.01}),
        some_ceilings(foreign_load={"memory": 0.6, "vector": 0.1}),
    )
    assert store.foreign_load(busy) == 0.6
    assert not store.worth_keeping(busy, quiet)
    assert store.worth_keeping(quiet, busy)
    assert store.worth_keeping(busy, None)
    assert store.worth_keeping(some_ceilings(foreign_load={"memory": 0.07}), quiet)


def test_a_kept_file_survives_a_busy_run(quick, monkeypatch, tmp_path):
    path = measure_room.save(some_ceilings(foreign_load={"memory": 0.0}))
    before = path.read_text()
    monkeypatch.setattr(measure_room, "measure", lambda *_a, **_k: some_ceilings(foreign_load={"memory": 0.9}))
    assert "not kept" in CliRunner().invoke(command, []).stderr
    assert path.read_text() == before
    assert "kept as" in CliRunner().invoke(command, ["--force"]).stderr
    assert path.read_text() != before


def test_a_node_is_never_below_its_core():
    def read(value, scope):
        return Ceiling(
            resource=Resource(area=Area.MEMORY, level="dram", mix="read"), value=value, unit="B/s", kind=Kind.MEASURED,
            scope=scope, conditions={"threads": 1 if scope == "core" else 2},
        )  # fmt: skip

    lifted = lift_to_node([read(40e9, "core"), read(30e9, "node")])
    assert [(c.scope, c.value, c.conditions["from_scope"]) for c in lifted] == [("node", 40e9, "core")]
    assert lift_to_node([read(40e9, "core"), read(50e9, "node")]) == []


def test_one_process_of_a_cache_measures_at_a_time(tmp_path):
    """The kernel refuses a second lock of the file while the first is held, and gives it afterwards."""
    import fcntl

    folder = tmp_path / "cache"
    with store.one_at_a_time(folder), (folder / "measuring.lock").open("a") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (folder / "measuring.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_cache_that_cannot_be_made_keeps_nobody_waiting(tmp_path):
    (tmp_path / "file").write_text("")
    with store.one_at_a_time(tmp_path / "file"):
        pass


def test_the_second_process_of_a_job_takes_what_the_first_measured(tmp_path, monkeypatch):
    from mansard.cli import run

    monkeypatch.setenv(store.DIRECTORY_VARIABLE, str(tmp_path))
    kept, said = some_ceilings(), []
    store.save(kept)
    monkeypatch.setattr(measure_room, "measure", lambda *_a, **_k: pytest.fail("measured again"))
    assert run._measure_now(None, said.append) == kept
    assert said == []
