"""The documents of `mansard run` of the ranks of one job: who makes the others wait, and what cannot be said."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mansard.cli.main import cli
from mansard.core.errors import UsageError
from mansard.report.run_ranks import run_ranks_document, run_ranks_lines


def run(rank, step_s, exposed_s, *, world=2, findings=()):
    network = None if exposed_s is None else {"exposed_s": exposed_s}
    return {
        "schema": "run/1", "tool_version": "0.1.0", "created": "2026-11-30T00:00:00+00:00", "environment": {},
        "step": {"median_s": step_s}, "verdict": {"bound": "network"}, "findings": [{"code": code} for code in findings],
        "receipt": {"job": {"rank": rank, "world": world, "host": f"h{rank}"}, "network": network},
    }  # fmt: skip


def compared(*documents):
    return run_ranks_document(documents, [Path(f"{i}.json") for i in range(len(documents))])


def test_the_rank_with_the_most_work_of_its_own_is_waited_for():
    found = compared(run(1, 0.100, 0.010), run(0, 0.100, 0.070), run(2, 0.101, 0.051, world=2))
    # Own work: 30, 90 and 50 ms. With 50 ms, as the next has, rank 1 would shorten the step by up to 40 ms.
    assert [r["rank"] for r in found["ranks"]] == [0, 1, 2]
    assert [r["own_work_s"] for r in found["ranks"]] == pytest.approx([0.030, 0.090, 0.050])
    assert [r["waits_at_most_s"] for r in found["ranks"]] == pytest.approx([0.060, 0.0, 0.041])
    assert found["straggler"] == 1
    assert found["step_less_at_most_s"] == pytest.approx(0.040)
    text = "\n".join(run_ranks_lines(found))
    assert "rank 1 makes the others wait: 90.0 ms of work of its own, the next 50.0 ms" in text
    assert "up to 40.0 ms less (40 %)" in text


def test_even_ranks_have_no_straggler_and_a_missing_one_is_said():
    found = compared(run(0, 0.100, 0.050, world=4), run(2, 0.100, 0.054, world=4, findings=["foreign_load"]))
    assert found["straggler"] is None
    assert found["missing_ranks"] == [1, 3]
    text = "\n".join(run_ranks_lines(found))
    assert "straggler: none" in text
    assert "no document of rank 1, 3" in text
    assert "in 1 of 2 runs other programs used the processors" in text


def test_what_is_not_known_stays_so():
    assert "no exchange of it was recorded" in compared(run(0, 0.1, 0.05), run(1, 0.1, None))["straggler"].reason
    apart = compared(run(0, 0.100, 0.050), run(1, 0.150, 0.050))["straggler"]
    assert "are not the same steps" in apart.reason
    with pytest.raises(UsageError, match="two documents are of rank 0"):
        compared(run(0, 0.1, 0.05), run(0, 0.1, 0.05))
    with pytest.raises(UsageError, match="jobs of 2 and 4 ranks"):
        compared(run(0, 0.1, 0.05), run(1, 0.1, 0.05, world=4))


def test_the_verb(tmp_path):
    for rank, exposed in enumerate((0.07, 0.01)):
        (tmp_path / f"run-{rank}.json").write_text(json.dumps(run(rank, 0.1, exposed)))
    done = CliRunner().invoke(cli, ["trace", "ranks", str(tmp_path), "--json"], standalone_mode=False)
    assert json.loads(done.output)["straggler"] == 1
    assert done.return_value == 0
    (tmp_path / "run-2.json").write_text('{"traceEvents": []}')
    assert (
        not CliRunner()
        .invoke(cli, ["trace", "ranks", str(tmp_path)], standalone_mode=False)
        .output.count("straggler: rank 1")
    )
