"""Cold points, unfinished points of a killed run, and kernels that a CPU can only check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from mansard.core import Demand
from mansard.core.ceilings import Ceilings, MemoryLevel
from mansard.measure.benchmarks.attention import BENCHMARKS as ATTENTION
from mansard.measure.config.plan import plan_from_command_line
from mansard.measure.points import flush, timing
from mansard.measure.points.batching import batches
from mansard.measure.points.benchmark import Check, Prepared, Waived, Where, Work
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.identity import key_of
from mansard.measure.points.interpret import can_be_interpreted, interpreted
from mansard.measure.points.journal import UNFINISHED, Journal, record_of, restore
from mansard.measure.points.process import OrderFailedError
from mansard.measure.points.result import Conditions, Point, Samples, State
from mansard.measure.points.taken import Taken
from mansard.measure.points.worker import Server

LEVELS = (MemoryLevel(level="l2", capacity_bytes=2.0**20), MemoryLevel(level="dram", capacity_bytes=2.0**33))


# --- cold ---------------------------------------------------------------------------------------------------------------


def test_caches_are_emptied_before_each_sample_and_outside_of_it():
    clock, order = [0.0], []

    def spend(what, seconds):
        order.append(what)
        clock[0] += seconds

    prepared = Prepared(
        run=lambda count: spend("call", 1.0 * count), verify=lambda: Check(error_ratio=0.0, against=""),
        count_by_compiler=lambda: None,
    )  # fmt: skip
    found = timing.take_window(
        prepared, 1, timing.Limits(least_samples=3, most_samples=3), now=lambda: clock[0],
        flush=lambda: spend("flush", 100.0),
    )  # fmt: skip
    assert order == ["flush", "call"] * 3
    assert found.seconds == (1.0, 1.0, 1.0)  # the flush of 100 s is in none of them


def test_the_flush_rewrites_more_than_the_last_cache(monkeypatch):
    monkeypatch.setattr(flush, "cache_bytes", lambda cpus: 2.0**20)
    monkeypatch.setattr(flush, "HOST_LEAST_BYTES", 2**20)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    empty, facts = flush.flush_for(Where(backend="numpy", platform="cpu", cpus=cpus, threads=len(cpus)))
    assert facts == {"flushed_bytes": 2.0 * 2**20, "last_cache_bytes": 2.0**20}
    # flush -> rewrite -> its array: every element was 1 and is raised by one in each of two passes
    each = empty.__closure__
    rewrite = next(c.cell_contents for c in each if callable(c.cell_contents) and c.cell_contents.__closure__)
    parts = next(c.cell_contents for c in rewrite.__closure__ if isinstance(c.cell_contents, list))
    empty()
    assert {int(v) for p in parts for v in np.unique(p)} == {3}
    assert sum(p.nbytes for p in parts) == 2 * 2**20


def evidence(cache):
    return Evidence(
        work=Work(demand=Demand(read_bytes=1e4), headline="bytes", level="dram"), where=Where(backend="numpy", platform="cpu"),
        params={"cache": cache}, prepared={}, samples=Samples(seconds=(1.0,), median_s=1.0), conditions=Conditions(),
        ceilings=Ceilings(ceilings=(), levels=LEVELS),
    )  # fmt: skip


def test_a_cold_point_is_one_of_memory_whatever_its_size():
    assert evidence("hot").level() == "l2"
    assert evidence("hot").demand().working_set == 1e4
    assert evidence("cold").level() == "dram"
    assert evidence("cold").demand().working_set == 2.0**33


def test_hot_and_cold_are_two_points():
    hot, cold = plan_from_command_line(
        "hbm_bandwidth", {"size": "1024", "dtype": "f32", "impl": "numpy", "cache": "hot,cold"}
    ).points
    assert cold.name == f"{hot.name} cache=cold"
    assert key_of(hot) != key_of(cold)


def test_a_cold_sample_is_one_call_and_has_no_chain():
    server = Server()
    server.open("numpy", 1, [min(os.sched_getaffinity(0))], with_floor=False)
    (point,) = plan_from_command_line("hbm_bandwidth", {"size": "1024", "dtype": "f32", "impl": "numpy"}).points
    given = {"benchmark": point.benchmark, "impl": "numpy", "warmup_tries": 1, "warmup_s": 0.0, "warmup_most_s": 0.01}
    hot = server.prepare("hot", params={**point.params}, **given)
    cold = server.prepare("cold", params={**point.params, "cache": "cold"}, cold=True, **given)
    assert hot["per_sample"] >= 1  # how many, `calibrate` says: its own test has fixed times
    assert cold["per_sample"] == 1
    assert not cold["has_chain"]
    assert cold["facts"]["cache"] == "cold"
    assert "cache" not in hot["facts"]
    assert cold["facts"]["flushed_bytes"] >= 2 * cold["facts"]["last_cache_bytes"]


def test_gradients_work_in_a_worker_of_pytorch():
    torch = pytest.importorskip("torch")
    server = Server()
    server.open("torch", 1, [min(os.sched_getaffinity(0))])  # the empty call for the floor switches gradients off
    assert torch.is_grad_enabled()


# --- unfinished points --------------------------------------------------------------------------------------------------


def point(name):
    return Point(benchmark="told", impl="numpy", backend="numpy", params={"name": name}, name=name)


def taken(name, processes):
    state = Taken(point=point(name), benchmark=None, work=Work(demand=Demand(read_bytes=1.0)))
    state.groups = [[[1.0, 2.0], [3.0]] for _ in range(processes)]
    state.prepared = [{"per_sample": 4}] * processes
    state.slopes = [(0.5, 0.25)]
    state.work_s = 7.0
    return state


def test_what_a_killed_run_measured_comes_back(tmp_path):
    Journal(folder=tmp_path, plan="p").keep([taken("a", 2), taken("b", 1)])
    fresh = Taken(point=point("a"), benchmark=None)
    Journal(folder=tmp_path, plan="p").restorer()(fresh)
    assert record_of(fresh) == record_of(taken("a", 2))
    assert fresh.resumed == 2
    assert fresh.slopes == [(0.5, 0.25)]
    other = Taken(point=point("c"), benchmark=None)
    Journal(folder=tmp_path, plan="p").restorer()(other)
    assert other.resumed == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "unfinished/1", "plan": "other", "points": {}}'])
def test_a_journal_that_cannot_be_used_is_no_journal(tmp_path, text):
    (tmp_path / UNFINISHED).write_text(text)
    assert Journal(folder=tmp_path, plan="p").read() == {}


def test_points_that_are_equally_far_go_on_together():
    states = []
    for name, processes in (("a", 2), ("b", 2), ("c", 1), ("d", 0)):
        state = taken(name, processes)
        restore(state, record_of(state))
        states.append(state)
    assert [[s.point.name for s in batch] for batch in batches(states, 1e9)] == [["a", "b"], ["c"], ["d"]]


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from mansard.measure.config.plan import plan_from_command_line
    from mansard.measure.points import journal, windows
    from mansard.measure.points.effort import Effort
    from mansard.measure.points.session import Session

    folder, kill_after = Path(sys.argv[1]), int(sys.argv[2])
    kept, calls = journal.Journal.keep, []

    def keep(self, batch):
        kept(self, batch)
        calls.append([len(t.groups) for t in batch])
        print(calls[-1], flush=True)
        if len(calls) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    journal.Journal.keep = keep
    windows.Windows._clock_now = lambda self, state: {}  # the clock has its own tests; compiling it takes seconds
    effort = Effort(name="tiny", processes=3, rounds=1, budget_s=0.02, target_ratio=0.5, warmup_s=0.01, most_s=60.0,
                    point_limit_s=5.0)
    plan = plan_from_command_line("hbm_bandwidth", {"size": "1024,2048", "dtype": "f32", "impl": "numpy"})
    rows = Session(effort=effort, folder=folder, threads=1).run(plan.points, resume=kill_after == 0)
    print([(r["state"], r["metrics"]["processes"]) for r in rows])
    """
)


def test_a_run_killed_inside_a_batch_goes_on_where_it_was(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    folder = tmp_path / "out"

    def run(kill_after):
        return subprocess.run(
            [sys.executable, str(script), str(folder), str(kill_after)], capture_output=True, text=True, timeout=120
        )

    first = run(2)
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.splitlines() == ["[1, 1]", "[2, 2]"]
    left = json.loads((folder / UNFINISHED).read_text())["points"]
    assert [len(p["groups"]) for p in left.values()] == [2, 2]
    again = run(0)
    # one process was missing: it alone was run
    assert again.stdout.splitlines() == ["[3, 3]", "[('done', 3), ('done', 3)]"], again.stderr
    assert not (folder / UNFINISHED).exists()
    for element in json.loads((folder / "detailed.json").read_text()):
        before = [t * 1e3 for group in left[element["metadata"]["key"]]["groups"] for window in group for t in window]
        assert element["raw_times_ms"][: len(before)] == pytest.approx(before, rel=1e-8)


# --- interpret mode -----------------------------------------------------------------------------------------------------

FLASHED = next(b for b in ATTENTION if b.name == "attention_flashed")
NO_DEVICE = Waived(reason="needs a TPU", missing="device")


def attention_point(impl):
    (found,) = plan_from_command_line(
        "attention_flashed",
        {"impl": impl, "seq_len": "8192", "num_q_heads": "8", "num_kv_heads": "2", "head_dim": "64"},
    ).points
    return found


def test_only_kernels_with_an_interpret_mode_are_checked():
    assert can_be_interpreted(attention_point("splash"), FLASHED, NO_DEVICE)
    assert not can_be_interpreted(attention_point("cudnn"), FLASHED, NO_DEVICE)
    assert not can_be_interpreted(attention_point("splash"), FLASHED, Waived(reason="", missing="memory"))


def test_what_is_checked_is_small_and_of_the_same_kind():
    text, _ = FLASHED.interpret({**attention_point("splash").params}, "splash")
    assert text == "256 x 256, 2 heads over 1, 64 wide, bf16, fwd, causal"


class Told:
    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, op, **_given):
        assert op == "interpret"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"shape": "small", "check": {"error_ratio": answer, "against": "f64"}}


def test_a_checked_kernel_is_waived_and_a_wrong_one_has_failed():
    broken = OrderFailedError({"message": "no such kernel"})
    pairs = [(attention_point("splash"), NO_DEVICE)] * 4
    fine, wrong, endless, raised = interpreted(pairs, lambda: Told(0.25, 3.0, None, broken))
    assert fine.state is State.WAIVED
    assert "checked in interpret mode, not timed" in fine.reason
    assert fine.reason.endswith("(missing: device)")
    assert fine.audit["interpreted"]["check"]["error_ratio"] == 0.25
    assert wrong.state is endless.state is raised.state is State.FAILED
    assert "3 times its tolerance" in wrong.reason
    assert "not finite" in endless.reason
    assert "no such kernel" in raised.reason


def test_what_the_budget_leaves_unchecked_says_so():
    over = iter([False, True, True])
    pairs = [(attention_point("splash"), NO_DEVICE)] * 3
    checked, second, third = interpreted(pairs, lambda: Told(0.25), lambda: next(over))
    assert "checked in interpret mode" in checked.reason
    for left in (second, third):
        assert left.state is State.WAIVED
        assert left.reason.endswith("the budget ended before its result was checked (missing: device)")


def test_nothing_is_started_where_nothing_is_to_be_checked():
    def start():
        raise AssertionError("no worker is needed")

    assert list(interpreted([], start)) == []
