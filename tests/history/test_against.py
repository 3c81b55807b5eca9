"""Two versions in turn, on a machine whose speed wanders by rule: the workers of the fixture keep one clock between them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mansard.core.errors import InputError, UsageError
from mansard.history.against import Budget, Paired, compared, in_turn, measure_in_turn
from mansard.history.compare import Comparison, ComparisonVerdict, Limits, compare_figures
from mansard.history.programs import command_of, in_turn_programs
from mansard.history.sides import Version, version_at
from mansard.measure.config.plan import plan_from_command_line

_SIZE = {"m": "64", "n": "64", "k": "64", "in_dtype": "f32", "out_dtype": "f32", "impl": "numpy"}
POINT = plan_from_command_line("gemm_generalized", _SIZE).points[0]

#: A worker that answers orders without measuring: a sample takes 1 ms times its version's factor times the speed of the machine, which
#: falls by 0.5 % with every window that anyone takes: 100 windows later everything takes exp(0.5) = 1.65 times as long.
WORKER = """
import json, math, pathlib, sys
from mansard.factor import FACTOR
clock = pathlib.Path({clock!r})
for line in sys.stdin:
    order = json.loads(line)
    op = order["op"]
    answer = {{}}
    if op == "open":
        answer = {{"where": {{"backend": "numpy", "platform": "cpu", "devices": 1, "threads": 1, "cpus": [0], "memory_bytes": None,
                             "device_name": "x"}}, "floor_s": 0.0, "pid": 0}}
    elif op == "prepare":
        if FACTOR == "broken":
            print(json.dumps({{"error": {{"message": "no such benchmark"}}}}), flush=True)
            continue
        if FACTOR == "dies":
            sys.exit(3)
        answer = {{"check": {{"error_ratio": 0.0, "against": "x"}}, "call_s": 1e-3, "per_sample": order["per_sample"] or 1}}
    elif op == "window":
        count = len(clock.read_bytes())
        clock.write_bytes(b"x" * (count + 1))
        answer = {{"seconds": [1e-3 * FACTOR * math.exp(0.005 * count)] * order["limits"]["least_samples"]}}
    elif op == "finish":
        answer = {{"check": {{"error_ratio": {wrong}, "against": "x"}}}}
    print(json.dumps({{"ok": answer}}), flush=True)
"""


def package(folder: Path, factor: object, clock: Path, wrong: float = 0.0) -> None:
    """A package of that name with a worker of its own."""
    inner = folder / "src" / "mansard"
    (inner / "measure" / "points").mkdir(parents=True, exist_ok=True)
    for name in ("", "measure", "measure/points"):
        (inner / name / "__init__.py").touch()
    (inner / "factor.py").write_text(f"FACTOR = {factor!r}\n")
    (inner / "measure" / "points" / "worker.py").write_text(WORKER.format(clock=str(clock), wrong=wrong))


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    path = tmp_path / "clock"
    path.touch()
    return path


def git(folder: Path, *words: str) -> str:
    user = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *user, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path, clock: Path) -> Path:
    """A checkout with two commits: the second one takes 5 % longer."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for factor in (1.0, 1.05):
        package(folder, factor, clock)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"factor {factor}")
    return folder


def measured(repository: Path, old: str, new: str, budget: Budget | None = None) -> tuple[list[Paired], Comparison]:
    with version_at(old, folder=repository) as a, version_at(new, folder=repository) as b:
        found = measure_in_turn([POINT], (a, b), cpus=[0], budget=budget or Budget(pairs=3, rounds=10), seed=1)
        return found, compared(found, (a, b), Limits())


def test_a_planted_slowdown_is_found_though_the_machine_slows_down_far_more(repository: Path) -> None:
    found, comparison = measured(repository, "HEAD~1", "HEAD")
    (result,) = comparison.results
    # The two windows of a round follow each other: 0.5 %, one way as often as the other.
    assert (result.verdict, comparison.exit_code) == (ComparisonVerdict.SLOWER, 1), result.reason
    assert result.ratio == pytest.approx(1.05, rel=0.006), result.reason
    assert (len(found[0].groups[0]), [len(g) for g in found[0].groups[1]]) == (3, [10, 10, 10])
    # The same samples in another order than they were taken in: one side after the other. It would have been called 1.1 times slower
    # or more, so an order that is not in turn fails this test.
    times = sorted(x for side in found[0].groups for g in side for x in g)
    half = len(times) // 2
    assert times[half:][half // 2] / times[:half][half // 2] > 1.1
    # Nothing is left behind in the checkout.
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_the_same_commit_twice_is_the_same(repository: Path) -> None:
    _, comparison = measured(repository, "HEAD", "HEAD", Budget(pairs=4, rounds=20))
    assert comparison.verdict is ComparisonVerdict.SAME
    faster = measured(repository, "HEAD", "HEAD~1", Budget(pairs=4, rounds=20))[1]
    assert (faster.verdict, faster.exit_code) == (ComparisonVerdict.FASTER, 0)
    assert [d.component for d in faster.results[0].differs] == ["revision"]


def wandering(folder: Path, clock: Path) -> Path:
    """A checkout whose processes are by turns 6 % faster and slower, each for its life."""
    package(folder, 1.0, clock)
    starts = folder / "starts"
    starts.touch()
    (folder / "src" / "mansard" / "factor.py").write_text(
        f"import pathlib\np = pathlib.Path({str(starts)!r})\nn = len(p.read_bytes())\np.write_bytes(b'x' * (n + 1))\n"
        "FACTOR = 1.06 if n % 2 else 1 / 1.06\n"
    )
    return folder


def test_a_point_whose_processes_differ_gets_more_pairs_of_them(repository: Path, tmp_path: Path, clock: Path) -> None:
    other = str(wandering(tmp_path / "other", clock))
    budget = Budget(pairs=6, most_pairs=8, rounds=4)
    (loose,), comparison = measured(repository, "HEAD~1", other, budget)
    # Six pairs are from the least to the largest: +- 6 % against the 1.75 % that are aimed at would be over a hundred pairs.
    assert (loose.planned, len(loose.groups[0]), len(loose.groups[1])) == (8, 8, 8)
    assert comparison.verdict is not ComparisonVerdict.SLOWER
    # Its time was over with the first ones: no more of them, and no more rounds than the least.
    (short,), _ = measured(repository, "HEAD~1", other, Budget(pairs=6, most_pairs=8, rounds=10, point_s=0.0))
    assert (short.planned, [len(g) for g in short.groups[0]]) == (8, [4] * 6)


@pytest.mark.parametrize(("factor", "why"), [("broken", "no such benchmark"), ("dies", "exit code 3")])
def test_a_side_that_fails_is_named_and_nothing_is_decided(
    repository: Path, clock: Path, factor: str, why: str
) -> None:
    package(repository, factor, clock)
    found, comparison = measured(repository, "HEAD", str(repository))
    assert found[0].failures[0] == ""
    assert why in found[0].failures[1]
    assert (comparison.verdict, comparison.exit_code) == (ComparisonVerdict.INCONCLUSIVE, 3)


def test_a_side_whose_result_is_wrong_is_implausible(repository: Path, clock: Path) -> None:
    package(repository, 1.0, clock, wrong=2.0)
    assert measured(repository, "HEAD", str(repository))[1].verdict is ComparisonVerdict.IMPLAUSIBLE


def test_each_side_goes_first_as_often_as_the_other() -> None:
    log: list[int] = []

    def turn(side: int) -> float:
        log.append(side)
        return 1.0

    _, _, first = in_turn((lambda: turn(0), lambda: turn(1)), 40, random.Random(3))
    pairs = [log[i : i + 2] for i in range(0, 80, 2)]
    assert [p[0] for p in pairs] == first
    assert all(sorted(p) == [0, 1] for p in pairs)
    assert sum(first) == 20
    # In random order: neither AB AB AB nor AB BA AB BA all along.
    assert len({tuple(first[i : i + 2]) for i in range(0, 40, 2)}) == 2
    short = in_turn((lambda: 1.0, lambda: 1.0), 40, random.Random(3), spent=lambda: True)
    assert len(short[0]) == 4  # a spent budget leaves the least


def test_programs_are_run_in_turn() -> None:
    ran: list[str] = []

    def run(words: Sequence[str]) -> float:
        ran.append(words[0])
        # The machine slows down by 2 % with every run; b takes 10 % longer.
        return float(1.02 ** len(ran)) * (1.1 if words[0] == "b" else 1.0)

    a, b = in_turn_programs("a --n 1", "b", 20, run=run)
    assert ran[:2] == ["a", "b"]  # one run each that does not count
    assert (ran.count("a"), ran.count("b"), len(a[0].samples)) == (21, 21, 20)
    found = compare_figures(a, b, Limits(interleaved=True))
    assert found.verdict is ComparisonVerdict.SLOWER
    assert found.results[0].ratio == pytest.approx(1.1, rel=0.021)


def test_a_program_that_fails_has_no_time() -> None:
    with pytest.raises(InputError, match="exit code 3"):
        in_turn_programs(f"{sys.executable} -c 'raise SystemExit(3)'", "true", 5)
    with pytest.raises(InputError, match="cannot be started"):
        in_turn_programs("no-such-program-here", "true", 5)
    for wrong in ("", "a 'b"):
        with pytest.raises(UsageError):
            command_of(wrong)


def test_what_is_no_version_is_refused(repository: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    for text, error in (
        ("no-such-commit", UsageError),
        ("--exec=x", UsageError),
        (str(empty), UsageError),
        (str(silent), InputError),
    ):
        with pytest.raises(error), version_at(text, folder=repository):
            pass


def test_a_virtual_environment_is_its_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with version_at(str(tmp_path)) as found:
        assert isinstance(found, Version)
        assert found.command[0] == str(tmp_path / "bin" / "python")
        assert json.loads(json.dumps(dict(found.environment)))["python"].startswith("3.")
