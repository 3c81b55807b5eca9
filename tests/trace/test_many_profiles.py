"""Many profiles at once: the same answer in any number of processes, in a stated order, with failed files named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mansard.core.errors import InputError, UsageError
from mansard.trace.many import FailedFile, files_of, read_many
from mansard.trace.ranks import compare_facts

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "many_profiles" / "run.py"
spec = importlib.util.spec_from_file_location("many_profiles_run", SOURCE)
assert spec is not None
assert spec.loader is not None
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)


@pytest.fixture
def folder(tmp_path) -> Path:
    generator.make(tmp_path, 10, 0.005, small=0, host=False)  # 10 pairs of a product and an all-reduce each
    return tmp_path


def test_the_answer_does_not_depend_on_the_number_of_processes(folder):
    paths = files_of([folder])
    one, none = read_many(paths, jobs=1)
    two, _ = read_many(paths, jobs=2)
    assert one == two
    assert [f.identity.rank for f in two] == list(range(10))
    assert none == []
    found = compare_facts(two)
    # rank 3 is 20 us late at each of the 10 all-reduces
    assert found.straggler == 3
    assert found.ranks[3].late_ns == 10 * 20_000
    assert found.ranks[3].waiting_ns == 0
    # every other one waits these 20 us: its all-reduce takes 60 us, that of rank 3 takes 40
    assert {r.waiting_ns for r in found.ranks if r.identity.rank != 3} == {200_000}


def test_a_failed_file_is_named_and_the_others_go_on(folder):
    (folder / "rank00004.json").write_text("not a profile")
    (folder / "rank00011.json").write_bytes(b"")
    facts, failed = read_many(files_of([folder]), jobs=2)
    assert [f.identity.rank for f in facts] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [Path(f.source).name for f in failed] == ["rank00004.json", "rank00011.json"]
    assert all(isinstance(f, FailedFile) and f.error for f in failed)


def test_a_limit_of_memory_holds_for_each_file(folder):
    facts, failed = read_many(files_of([folder]), jobs=1, memory_limit=1)
    assert not facts
    assert len(failed) == 10


def test_progress_counts_to_the_end(folder):
    seen: list[tuple[int, int]] = []
    read_many(files_of([folder]), jobs=1, progress=lambda done, whole, _name: seen.append((done, whole)))
    assert seen == [(n, 10) for n in range(1, 11)]


def test_folders_patterns_and_files_name_each_file_once(folder):
    (folder / ".hidden").write_text("")
    all_of = files_of([folder])
    assert [p.name for p in all_of] == [f"rank{r:05}.json" for r in range(10)]
    assert files_of([str(folder / "rank0000[0-3].json"), folder / "rank00002.json"]) == all_of[:4]
    with pytest.raises(InputError, match="names no files"):
        files_of([str(folder / "*.sqlite")])


def test_the_verb_reads_a_folder_and_says_what_it_left_out(folder):
    from mansard.cli.trace.ranks import command

    (folder / "rank00004.json").write_text("not a profile")
    done = CliRunner().invoke(command, [str(folder), "--json"], standalone_mode=False)
    document = json.loads(done.output)
    assert document["straggler_rank"] == 3
    assert [Path(f["source"]).name for f in document["failed"]] == ["rank00004.json"]
    assert document["status"] == "incomplete"
    assert done.return_value == 3


def test_another_engine_is_refused_and_ray_gives_the_same(folder):
    with pytest.raises(UsageError):
        read_many(files_of([folder]), engine="spark")
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    assert read_many(files_of([folder]), engine="ray") == read_many(files_of([folder]), jobs=1)
