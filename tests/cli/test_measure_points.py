"""`mansard measure` with points: options, plan, files, exit codes. NumPy alone is measured, on tiny shapes."""

from __future__ import annotations

import csv
import io
import json

import pytest

from mansard.cli.main import main
from mansard.cli.measure_points import parameters_from
from mansard.core.errors import UsageError

GEMM = ["--run", "gemm_simple", "--m", "64", "--k", "64", "--in_dtype", "f32", "--out_dtype", "f32", "--impl", "numpy"]


@pytest.fixture(autouse=True)
def no_ceilings_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path / "cache"))


def exit_code_of(verdicts):
    """What a run of measured points must end with: a fatal finding of this minute is said by the exit code."""
    return 3 if "implausible" in verdicts else 0


def called(capfd, *args):
    with pytest.raises(SystemExit) as stopped:
        main(["measure", *args])
    out, err = capfd.readouterr()
    return stopped.value.code or 0, out, err


def test_parameters_of_the_command_line():
    assert parameters_from(["--m", "64", "--in-dtype=f32"]) == {"m": "64", "in_dtype": "f32"}
    assert parameters_from(["--alpha", "-1.5"]) == {"alpha": "-1.5"}  # a negative number is a value
    for words in (["m", "64"], ["--m"], ["--m", "--n", "4"], ["--"]):
        with pytest.raises(UsageError):
            parameters_from(words)


def test_a_sweep_is_measured_and_written(capfd, tmp_path):
    folder = tmp_path / "out"
    code, out, err = called(capfd, *GEMM, "--n", "64,128", "--suite", "quick", "-o", str(folder))
    assert "2 points" in err
    assert "no ceilings of this machine are kept" in err
    assert "FLOP/s" in out
    assert {f.name for f in folder.iterdir()} == {
        "detailed.json",
        "summary.csv",
        "ceilings.json",
    }  # and no unfinished.json
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))
    assert code == exit_code_of({r["verdict"] for r in rows})
    assert [(r["n"], r["state"]) for r in rows] == [("64", "done"), ("128", "done")]
    assert [r["total_flops"] for r in rows] == ["524288.0", "1048576.0"]  # 2 x 64^3, and twice that
    ceilings = json.loads((folder / "ceilings.json").read_text())
    assert ceilings["schema"] == "ceilings/1"
    assert {c["resource"]["dtype"] for c in ceilings["ceilings"]} <= {"f32"}  # implausible points make none

    # nothing is overwritten without being asked to
    code, _, err = called(capfd, *GEMM, "--n", "64,128", "--suite", "quick", "-o", str(folder))
    assert code == 2
    assert "--resume" in err
    # the same plan is resumed: there is nothing left to measure
    before = (folder / "detailed.json").read_text()
    again, _, _ = called(capfd, *GEMM, "--n", "64,128", "--suite", "quick", "-o", str(folder), "--resume")
    assert again == exit_code_of({r["verdict"] for r in rows})
    assert json.loads((folder / "detailed.json").read_text()) == json.loads(before)
    # another plan is not
    code, _, err = called(capfd, *GEMM, "--n", "64", "--suite", "quick", "-o", str(folder), "--resume")
    assert code == 2
    assert "another plan" in err


def test_json_is_alone_on_standard_output(capfd):
    code, out, _ = called(capfd, *GEMM, "--n", "64", "--suite", "quick", "--json")
    (element,) = json.loads(out)
    assert code == exit_code_of({element["verdict"]})
    assert element["metrics"]["flop"] == 524288.0
    assert element["verdict"] in (None, "noisy", "implausible")  # nothing to be normal or low against
    assert "mansard measure" in json.dumps(element["metrics"]["share_of_ceiling"]["needs"])


def test_a_dry_run_measures_nothing(capfd, tmp_path):
    code, out, _ = called(capfd, *GEMM, "--n", "64..256x2", "--dry-run", "-o", str(tmp_path / "none"))
    assert code == 0
    assert "n 3 = 3 points" in out
    assert "3 of 3 points would run" in out
    assert not (tmp_path / "none").exists()
    code, out, _ = called(capfd, *GEMM, "--n", "64", "--dry-run", "--json")
    assert json.loads(out)["points"][0]["params"]["m"] == 64


def test_all_waived_is_nothing_measured(capfd):
    args = [*GEMM, "--n", "64", "--suite", "quick"]
    args[args.index("f32")] = "bf16"
    code, out, _ = called(capfd, *args)
    assert code == 3
    assert "Not run here" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--run", "gem_simple", "--m", "4"], "gemm_simple"),
        ([*GEMM, "--nn", "64"], "nn"),
        (["--dry-run"], "needs a configuration"),
        (["x.yaml", "--run", "gemm_simple"], "not both"),
        (["--m", "4"], "no such option"),
        ([*GEMM, "--n", "64", "--resume"], "needs the folder"),
    ],
)
def test_wrong_usage_is_said(capfd, args, says):
    code, _, err = called(capfd, *args)
    assert code == 2
    assert says in err


def test_a_missing_file_is_an_input_error(capfd, tmp_path):
    code, _, _ = called(capfd, str(tmp_path / "none.yaml"))
    assert code == 4


def test_the_list_has_every_benchmark(capfd):
    code, out, _ = called(capfd, "--list", "--json")
    assert code == 0
    names = {b["name"] for b in json.loads(out)["benchmarks"]}
    assert {"gemm_generalized", "hbm_bandwidth", "attention_flashed", "all_reduce", "host_to_device"} <= names


# --- the short sample of the published suite, as it is written ------------------------------------------------------------

SHORT_SAMPLE = """\
global:
  system: "ironwood"
  warmup_tries: 2
  num_runs: 5
  dtype: "bfloat16"
  xprof_timing: true

benchmarks:
  - name: hbm_bandwidth
    sweep:
      size:
        start: 1024
        end: 8192
        multiplier: 2
"""


def test_the_short_sample_of_the_published_suite_runs_as_it_is_written(capfd, tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(SHORT_SAMPLE)
    code, out, err = called(capfd, str(path), "--suite", "quick", "-o", str(tmp_path / "out"))
    assert "4 points" in err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "summary.csv").read_text())))
    assert code == exit_code_of({r["verdict"] for r in rows})
    assert [(r["size"], r["state"]) for r in rows] == [(str(n), "done") for n in (1024, 2048, 4096, 8192)]
    for row in rows:
        # a copy reads and writes two bytes for each element
        assert float(row["total_bytes_mb"]) * 1e6 == pytest.approx(4 * int(row["size"]))
        assert row["level"] in ("l1", "l2", "l3")
        assert "cache_resident" in row["findings"].split()
        assert float(row["bandwidth_gb_s"]) > 0.0
    assert "this is a cache bandwidth" in out


# --- search and schema --------------------------------------------------------------------------------------------------


def test_the_schema_is_printed(capfd):
    code, out, _ = called(capfd, "--schema")
    assert code == 0
    assert json.loads(out)["title"] == "Mansard microbenchmarks"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--search needs"),
        (("--run", "gemm_simple", "--m", "8,16", "--n", "8", "--k", "8", "--impl", "numpy,torch"), "one benchmark and"),
        (("--run", "hbm_bandwidth", "--size", "1024,2048", "--impl", "numpy"), "no FLOP/s to search by"),
        ((*GEMM, "--n", "8,16", "--budget", "3"), "neither be resumed"),
    ],
)
def test_a_search_needs_points_of_one_kind_that_have_a_rate(capfd, args, says):
    code, _, err = called(capfd, *args, "--search")
    assert code == 2
    assert says in err


def test_a_search_names_the_finalists_and_writes_them(capfd, tmp_path):
    words = [*GEMM, "--n", "8,64", "--search", "--suite", "quick", "-o", str(tmp_path)]
    code, out, _ = called(capfd, *words)
    assert code == 0
    kept = json.loads((tmp_path / "search.json").read_text())
    assert kept["schema"] == "search/1"
    assert sorted(f["params"]["n"] for f in kept["finalists"]) == [8, 64]
    assert kept["rounds"] == [2]
    first = kept["finalists"][0]
    assert first["ci95_flop_per_s"][0] <= first["flop_per_s"] <= first["ci95_flop_per_s"][1]
    assert f"n={first['params']['n']}" in out
    code, _, err = called(capfd, *words)
    assert code == 2
    assert "--force replaces it" in err
