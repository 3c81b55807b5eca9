"""`mansard diagnose` over the profiles of many ranks: the same answer however they are read, and failed files named."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from mansard.core.errors import InputError, UndecidedError
from mansard.diagnose.job import JobDiagnosis, arrival_of, diagnose_files, diagnose_job
from mansard.diagnose.profile import Question
from mansard.report.diagnose_document import diagnose_document
from mansard.trace.open import open_trace

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "many_profiles" / "run.py"
spec = importlib.util.spec_from_file_location("many_profiles_for_diagnose", SOURCE)
assert spec is not None
assert spec.loader is not None
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)

QUESTION = Question(network_bytes_per_s=25e9, node_devices=8)
opened = partial(open_trace, memory_limit=None)


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "profiles"
    made.mkdir()
    generator.make(made, 9, 0.06, small=2)  # (470 + 2 x 130 + 4 x 770) B each: 15 all-reduces
    return made


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def said(job: JobDiagnosis) -> dict:
    """Return the document of a job without when it was made."""
    return {k: v for k, v in diagnose_document(job.devices, job=job).items() if k not in ("created", "environment")}


def test_files_that_are_held_and_files_that_are_not_give_what_opened_profiles_give(folder):
    paths = files(folder)[:4]
    whole = diagnose_job([open_trace(p) for p in paths], QUESTION)
    held = diagnose_files(paths, QUESTION, opened)
    one_by_one = diagnose_files(paths, QUESTION, opened, jobs=1)
    for other in (held, one_by_one):
        assert said(other) == said(whole)
        assert other.compared == whole.compared
        assert other.shown_rank == whole.shown_rank == "3"
        assert other.failed == ()
    assert whole.devices is whole.ranks[3][1]


def test_processes_give_the_same(folder):
    one = diagnose_files(files(folder), QUESTION, opened, jobs=1)
    two = diagnose_files(files(folder), QUESTION, opened, jobs=2)
    assert said(one) == said(two)
    assert one.straggler == "3"
    arrival = arrival_of(one.compared)
    # rank 3 is 20 us late at each of the 15; its all-reduce takes the other 40 of 60 us
    assert (arrival.collectives, arrival.skew_s, arrival.longest_skew_s, arrival.transfer_s) == (
        15,
        20e-6,
        20e-6,
        40e-6,
    )


def test_a_file_that_fails_is_named_and_the_others_go_on(folder):
    (folder / "rank00001.json").write_text("not a profile")
    # a profile without kernels can be read, but says nothing of a device
    (folder / "rank00002.json").write_text(
        json.dumps({"distributedInfo": {"rank": 2, "world_size": 9}, "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]})
    )  # fmt: skip
    found = diagnose_files(files(folder), QUESTION, opened, jobs=1)
    assert [Path(f.source).name for f in found.failed] == ["rank00001.json", "rank00002.json"]
    assert [v is not None and v.rank for v in found.verdicts] == ["0", "3", "4", "5", "6", "7", "8"]
    assert found.straggler == "3"


def test_too_few_are_refused(folder):
    for path in files(folder)[1:]:
        path.write_text("")
    with pytest.raises(InputError, match=r"1 of 9 files could be read; first .*rank00001.json"):
        diagnose_files(files(folder), QUESTION, opened, jobs=1)


def test_where_none_has_a_device_nothing_is_said(folder):
    for path in files(folder):
        document = json.loads(path.read_text())
        document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") != "kernel"]
        path.write_text(json.dumps(document))
    with pytest.raises(UndecidedError, match="no kernel"):
        diagnose_files(files(folder), QUESTION, opened, jobs=1)


def test_progress_is_told_of_both_rounds(folder):
    seen: list[tuple[str, int, int]] = []
    diagnose_files(
        files(folder), QUESTION, opened, jobs=1,
        progress=lambda what: lambda done, whole, _name: seen.append((what, done, whole)),
    )  # fmt: skip
    assert seen == [(what, n, 9) for what in ("reading", "diagnosing") for n in range(1, 10)]


@pytest.mark.parametrize("how", ["folder", "pattern", "files"])
def test_the_verb_takes_a_folder_a_pattern_and_files(folder, how):
    from mansard.cli.diagnose import command

    (folder / "rank00005.json").write_text("not a profile")
    words = {"folder": [folder], "pattern": [folder / "rank*.json"], "files": files(folder)}[how]
    options = ["--json", "--jobs", "1", "--node-devices", "8", "--network-rate", "25 GB/s"]
    done = CliRunner().invoke(command, [*map(str, words), *options], standalone_mode=False)
    assert done.exception is None, done.output
    document = json.loads(done.stdout)
    assert document["straggler_rank"] == document["shown_rank"] == "3"
    assert [r["rank"] for r in document["ranks"]] == ["0", "1", "2", "3", "4", "6", "7", "8"]
    assert document["arrival"]["collectives"] == 15
    assert [Path(f["source"]).name for f in document["failed"]] == ["rank00005.json"]
    assert done.return_value == 3


def test_the_text_names_the_straggler_and_what_was_left_out(folder):
    from mansard.cli.diagnose import command

    (folder / "rank00005.json").write_text("not a profile")
    done = CliRunner().invoke(command, [str(folder), "--jobs", "1", "--node-devices", "8"], standalone_mode=False)
    assert "straggler: rank 3 makes the others wait most; it is the one shown" in done.stdout
    assert "first to last arrival 20.0 us (median)" in done.stdout
    assert "left out: " in done.stdout
