"""Runs whose benchmarks fail, crash and hang as they are told: in real processes, or in this one where that is the same."""

from __future__ import annotations

import csv
import inspect
import io
import json
import sys
import textwrap
import time
from dataclasses import replace
from typing import ClassVar

import pytest

from mansard.core import Demand
from mansard.core.document import to_jsonable
from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.measure.points import runner as runner_module
from mansard.measure.points import worker
from mansard.measure.points.assemble import result_of
from mansard.measure.points.batching import batches
from mansard.measure.points.benchmark import Check, Prepared, Waived, Where, Work
from mansard.measure.points.effort import Effort, spread
from mansard.measure.points.identity import key_of, plan_hash
from mansard.measure.points.output import COLUMNS, Writer, points_left, read_detailed, summary_text
from mansard.measure.points.process import OrderFailedError, Worker, WorkerLostError
from mansard.measure.points.result import Point, State
from mansard.measure.points.runner import Runner
from mansard.measure.points.session import exit_code
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken

EFFORT = Effort(
    name="tiny", processes=2, rounds=2, budget_s=0.02, target_ratio=0.5, warmup_s=0.01, most_s=60.0, point_limit_s=2.0
)  # fmt: skip

WORKER = textwrap.dedent(
    """
    import os, sys, time
    from mansard.core import Demand
    from mansard.core.unknown import Unknown
    from mansard.measure.points import worker
    from mansard.measure.points.benchmark import Check, Prepared, Work

    class Told:
        def prepare(self, params, impl, where):
            how = params["how"]
            if how == "raises":
                raise ValueError("no such shape\\nand more")
            print("noise of a framework on standard output")
            calls = [0]

            def run(count):
                calls[0] += count
                if how == "crash":
                    os._exit(7)
                if how == "late_crash" and calls[0] > 4:
                    os._exit(9)
                if how == "killed" and calls[0] > 4:
                    os.kill(os.getpid(), 9)
                if how == "hang":
                    time.sleep(60)
                time.sleep(1e-4 * count)

            with open(params["log"], "a") as stream:
                stream.write(f"{os.getpid()} {params['name']}\\n")
            return Prepared(
                run=run, verify=lambda: Check(error_ratio=0.0, against="nothing"),
                count_by_compiler=lambda: Unknown("nothing is compiled"),
            )

    worker.benchmark_named = lambda name: Told()
    sys.exit(worker.main())
    """
)


class Told:
    name = "told"
    area = "compute"
    parameters = ()
    aliases = ()
    implementations = {"numpy": "numpy"}  # noqa: RUF012
    summary = ""

    def work(self, params, where):
        size = float(params.get("bytes", 1e3))
        return Work(demand=Demand(flop={("f32", "f32"): 1e6}, read_bytes=size), peak=("f32", "f32", "matrix"))

    def waived(self, params, impl, where):
        if params["how"] == "waived":
            return Waived(reason="needs a device", missing="device")
        return None

    def prepare(self, params, impl, where):
        """Make a point ready in this process; `WORKER` has what takes a process with it."""
        if params["how"] == "raises":
            raise ValueError("no such shape\nand more")
        with open(params["log"], "a") as stream:
            stream.write(f"{Here.number} {params['name']}\n")
        return Prepared(
            run=lambda count: time.sleep(1e-4 * count), verify=lambda: Check(error_ratio=0.0, against="nothing"),
            count_by_compiler=lambda: Unknown("nothing is compiled"),
        )  # fmt: skip


class Here:
    """A worker without a process of its own, for all that does not end a process: a real one takes a second to start."""

    number = 0
    made: ClassVar[list[Here]] = []

    def __init__(self, cpus, flags=None, command=None):
        assert command != ("false",), "no worker is needed"
        Here.number += 1
        self.waited_s, self.closed = 0.0, False
        Here.made.append(self)
        self.server = worker.Server()

    def ask(self, op, *, limit_s, kill_s=0.0, meanwhile=None, **arguments):
        order = json.loads(json.dumps(to_jsonable({"op": op, **arguments})))
        answer = json.loads(json.dumps(to_jsonable(worker.reply_to(self.server, order))))
        if "error" in answer:
            raise OrderFailedError(answer["error"])
        return answer["ok"]

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    def close(self):
        self.closed = True


@pytest.fixture
def setting(processes, monkeypatch):
    monkeypatch.setattr(runner_module, "Worker", Here)
    monkeypatch.setattr(worker, "benchmark_named", lambda name: Told())
    monkeypatch.setattr(worker, "floor_of", lambda _call: 1e-6)
    return processes


@pytest.fixture
def processes(tmp_path, monkeypatch, machine):
    monkeypatch.setattr(runner_module, "benchmark_named", lambda name: Told())
    script = tmp_path / "told.py"
    script.write_text(WORKER)

    def make(**more):
        kept = []
        return Setting(
            effort=EFFORT, cpus=(0,), ceilings=machine, keep=more.pop("keep", kept.append),
            finish=lambda taken: result_of(taken, machine, machine.levels, {}),
            command=(sys.executable, str(script)), **more,
        )  # fmt: skip

    return make


def point(name, how="fine", **params):
    return Point(
        benchmark="told",
        impl="numpy",
        backend="numpy",
        params={"how": how, "name": name, "num_runs": 4, **params},
        name=name,
    )


def by_name(results):
    return {r.point.name: r for r in results}


def test_failures_do_not_lose_the_others(processes, tmp_path):
    log = str(tmp_path / "log")
    ways = ("fine", "raises", "crash", "hang", "late_crash", "killed", "waived")
    points = [point(how, how, log=log) for how in ways] + [point("fine too", log=log)]
    found = by_name(Runner(processes()).run(points))
    assert {name: r.state for name, r in found.items()} == {
        "fine": State.DONE, "fine too": State.DONE, "waived": State.WAIVED, "raises": State.FAILED,
        "crash": State.FAILED, "hang": State.FAILED, "late_crash": State.FAILED, "killed": State.FAILED,
    }  # fmt: skip
    assert found["raises"].reason.startswith("ValueError: no such shape")
    assert "exit code 7" in found["crash"].reason
    assert "no answer within 4 s, the process was ended" in found["hang"].reason
    assert "(while it was made ready" in found["hang"].reason
    assert "exit code 9" in found["late_crash"].reason
    assert "signal 9 (out of memory is the usual reason for signal 9)" in found["killed"].reason
    assert exit_code([{"state": r.state, "verdict": r.verdict} for r in found.values()]) == 1
    assert found["waived"].reason == "needs a device (missing: device)"
    for name in ("fine", "fine too"):
        samples = found[name].samples
        assert samples is not None
        assert {process for process, _ in samples.windows} == {0, 1}
        assert sum(size for _, size in samples.windows) == len(samples.seconds) >= 4


def test_every_point_is_measured_in_several_processes_and_the_order_is_that_of_the_seed(setting, tmp_path):
    def order(seed, where):
        log = tmp_path / where
        Runner(setting(seed=seed)).run([point(str(i), log=str(log)) for i in range(6)])
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        assert len({pid for pid, _ in lines}) == 2  # two processes, each with all six points
        return [name for _, name in lines]

    first = order(1, "a")
    assert first == order(1, "b")
    assert first != order(2, "c")
    assert sorted(first[:6]) == sorted(first[6:]) == [str(i) for i in range(6)]
    assert first[:6] != first[6:]  # another order in the second process


def test_a_point_that_takes_too_long_is_waived_with_its_time(setting, tmp_path, monkeypatch):
    work = Work(demand=Demand(flop={("f32", "f32"): 1e14}, read_bytes=1.0), peak=("f32", "f32", "matrix"))
    monkeypatch.setattr(Told, "work", lambda *_: work)
    found = Runner(setting()).run([point("long", log=str(tmp_path / "log"))])
    # 10^14 FLOP at half of the machine's 10^13 FLOP/s take 20 s; three calls exceed the two that a point may
    assert found[0].state is State.WAIVED
    assert "about 20 s" in found[0].reason
    assert "(missing: time)" in found[0].reason


def test_points_over_the_budget_are_waived(setting, tmp_path):
    found = Runner(setting(budget_s=1e-9)).run([point("a", log=str(tmp_path / "log"))])
    assert [r.state for r in found] == [State.WAIVED]
    assert "budget" in found[0].reason


def test_the_process_that_was_asked_where_it_runs_goes_on_with_the_first_points(setting, tmp_path):
    log = str(tmp_path / "log")
    before = len(Here.made)
    Runner(setting()).run([point("a", log=log), point("b", log=log)])
    made = Here.made[before:]
    assert len(made) == EFFORT.processes  # and none beside them
    assert all(w.closed for w in made)
    before = len(Here.made)
    Runner(setting()).run([point("no device", "waived", log=log)])
    assert [w.closed for w in Here.made[before:]] == [True]


def test_a_budget_that_is_spent_starts_no_process(setting, tmp_path):
    found = Runner(replace(setting(budget_s=1e-9), command=("false",))).run([point("a", log=str(tmp_path / "log"))])
    assert [(r.state, "budget" in r.reason) for r in found] == [(State.WAIVED, True)]


def test_what_cannot_run_keeps_its_reason_after_the_budget_where_the_backend_was_seen(setting, tmp_path, monkeypatch):
    log = str(tmp_path / "log")
    runner = Runner(replace(setting(budget_s=1e9), command=("false",)))
    runner._opened_on["numpy"] = Where(backend="numpy", platform="cpu")
    monkeypatch.setattr(runner, "_spent", lambda: True)
    found = by_name(runner.run([point("no device", "waived", log=log), point("late", log=log)]))
    assert found["no device"].reason == "needs a device (missing: device)"
    assert found["late"].reason.endswith("(missing: time)")


def test_a_point_whose_calls_turn_out_too_long_is_let_go_and_can_be_resumed(setting, tmp_path, monkeypatch):
    log = tmp_path / "log"
    prepare, dropped = worker.Server.prepare, []

    def slow(self, key, **given):
        found = prepare(self, key, **given)
        return {**found, "call_s": 0.8} if given["params"]["name"] == "slow" else found

    monkeypatch.setattr(worker.Server, "prepare", slow)
    drop = worker.Server.drop
    monkeypatch.setattr(worker.Server, "drop", lambda self, key: (dropped.append(key), drop(self, key))[1])
    points = [point("slow", log=str(log)), point("fine", log=str(log))]
    found = by_name(Runner(setting()).run(points))
    assert found["fine"].state is State.DONE
    assert found["slow"].state is State.WAIVED  # three calls of 0.8 s are more than its 2 s
    assert found["slow"].reason.startswith("one call took 0.8 s, three of them exceed the limit of 2 s for one point")
    assert found["slow"].reason.endswith("(missing: time)")
    assert dropped == [key_of(points[0])]
    assert [line.split()[1] for line in log.read_text().splitlines()].count("slow") == 1


def test_what_is_under_way_when_the_budget_ends_has_one_limit_more_and_is_waived_for_time(
    setting, tmp_path, monkeypatch
):
    log, limits = str(tmp_path / "log"), []
    ask, over = Here.ask, [False]

    def asked(self, op, *, limit_s, kill_s=None, **arguments):
        limits.append(kill_s)
        if op == "window":
            over[0] = True
            raise WorkerLostError("no answer", silent=True)
        return ask(self, op, limit_s=limit_s, **arguments)

    monkeypatch.setattr(Here, "ask", asked)
    runner = Runner(setting(budget_s=0.5))
    for part in (runner, runner._windows):
        monkeypatch.setattr(part, "_spent", lambda: over[0])
    found = by_name(runner.run([point("a", log=log), point("b", log=log)]))
    assert {r.state for r in found.values()} == {State.WAIVED}
    reasons = sorted(r.reason for r in found.values())
    assert reasons[0] == "the budget of 0.5 s was spent (missing: time)"
    assert reasons[1] == "the budget of 0.5 s was spent while samples were taken (missing: time)"
    # the limit of 2 s and what is left of the budget, at most half a second, and no more for what others use
    assert all(2.0 <= x <= 2.5 for x in limits if x is not None)
    assert limits.count(None) == 2  # to be asked where it runs, and its floor


def test_a_process_gives_a_point_twice_its_limit_all_orders_together(setting):
    class Asked:
        waited_s = 0.0
        limits: list[float]

        def ask(self, op, *, limit_s, **_arguments):
            self.limits.append(limit_s)
            self.waited_s += 1.0
            if op == "finish":
                raise WorkerLostError("no answer")
            return {}

    asked, runner = Asked(), Runner(setting())
    asked.limits = []
    state = Taken(point=point("a"), benchmark=Told(), in_process_s=0.5)
    runner._windows.ask(asked, state, "prepare")
    runner._windows.ask(asked, state, "window")
    with pytest.raises(WorkerLostError):
        runner._windows.ask(asked, state, "finish")
    # 2 x 2 s less what went before; never less than the limit itself
    assert asked.limits == [3.5, 2.5, 2.0]
    assert state.work_s == 3.0
    assert runner._windows.doing == "after its samples, while its result was checked"


def test_a_budget_that_ends_inside_a_batch_leaves_out_what_was_not_begun(setting, tmp_path, monkeypatch):
    log = str(tmp_path / "log")
    runner = Runner(setting(budget_s=1e9))
    looks = []

    def spent():  # the budget ends after the first point of the batch was made ready
        looks.append(1)
        return len(looks) > 3

    for part in (runner, runner._windows):
        monkeypatch.setattr(part, "_spent", spent)
    found = runner.run([point(str(i), log=log) for i in range(3)])
    assert sorted(r.state for r in found) == [State.DONE, State.WAIVED, State.WAIVED]
    assert all("budget" in r.reason for r in found if r.state is State.WAIVED)
    (done,) = (r for r in found if r.state is State.DONE)
    assert [process for process, _ in done.samples.windows] == [0]  # what was ready got one window
    assert "the budget was spent after 1 process" in {f.code: f.text for f in done.findings}["in_one_go"]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_survey_measures_nothing(setting, tmp_path):
    log = tmp_path / "log"
    found = Runner(setting()).survey([point("a", log=str(log)), point("b", "waived", log=str(log))])
    assert found[0][1] == ""
    assert found[0][2] > 0.0
    assert found[1][1].startswith("waived: needs a device")
    assert not log.exists()


def test_points_share_memory_in_batches(setting):
    def state(name, size):
        taken = Taken(point=point(name), benchmark=Told())
        taken.work = Work(demand=Demand(read_bytes=size))
        return taken

    # room is a fifth of 15 GB, and arrays count three times: 0.5 + 0.4 GB fill it, 2 GB is alone
    states = [state("a", 0.5e9), state("b", 0.4e9), state("c", 0.3e9), state("d", 2e9)]
    found = [[s.point.name for s in batch] for batch in batches(states, 15e9)]
    assert found == [["a", "b"], ["c"], ["d"]]
    assert states[3].in_one_go
    assert not states[0].in_one_go


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_killed_run_is_resumed(setting, tmp_path):
    log, folder = str(tmp_path / "log"), tmp_path / "out"
    points = [point("a", log=log), point("b", "raises", log=log), point("c", log=log)]
    plan = plan_hash(points, EFFORT)
    keys = [key_of(p) for p in points]

    def writer():
        return Writer(folder=folder, plan=plan, environment={}, order=keys)

    first = writer()
    results = Runner(setting(keep=lambda r: None)).run(points[:2])
    for result in results:  # killed before the third
        first.keep(result)
    first.write()
    second = writer()
    done = second.resume()
    assert done == {keys[0]}  # the one that failed is tried again
    assert [p.name for p in points_left(points, done)] == ["b", "c"]
    before = read_detailed(folder / "detailed.json")
    again = Runner(setting(keep=second.keep)).run(points_left(points, done))
    second.write()
    after = read_detailed(folder / "detailed.json")
    assert {e["metadata"]["test_name"] for e in after} == {"a", "b", "c"}
    kept = next(e for e in after if e["metadata"]["test_name"] == "a")
    assert kept == next(e for e in before if e["metadata"]["test_name"] == "a")
    assert {r.point.name for r in again} == {"b", "c"}


def test_another_plan_is_not_resumed(setting, tmp_path):
    log = str(tmp_path / "log")
    points = [point("a", "waived", log=log)]
    first = Writer(folder=tmp_path, plan=plan_hash(points, EFFORT), environment={}, order=[key_of(points[0])])
    for result in Runner(setting()).run(points):
        first.keep(result)
    first.write()
    others = [point("a", "waived", log=log, bytes=5)]
    second = Writer(folder=tmp_path, plan=plan_hash(others, EFFORT), environment={}, order=[key_of(others[0])])
    with pytest.raises(UsageError, match="another plan"):
        second.resume()


@pytest.mark.parametrize("text", ["{", '{"schema": "detailed/1"}', '[{"schema": "ceilings/1"}]', "[1]"])
def test_a_foreign_file_is_named(tmp_path, text):
    (tmp_path / "detailed.json").write_text(text)
    with pytest.raises(InputError, match=r"detailed\.json"):
        read_detailed(tmp_path / "detailed.json")


def test_the_files_hold_what_was_measured(setting, tmp_path):
    log = str(tmp_path / "log")
    points = [point("a", log=log), point("b", "waived", log=log)]
    writer = Writer(
        folder=tmp_path, plan=plan_hash(points, EFFORT), environment={"versions": {"numpy": "2"}},
        order=[key_of(p) for p in points],
    )  # fmt: skip
    Runner(setting(keep=writer.keep)).run(points)
    writer.write()
    elements = json.loads((tmp_path / "detailed.json").read_text())
    one = next(e for e in elements if e["metadata"]["test_name"] == "a")
    assert {
        "schema",
        "tool_version",
        "created",
        "environment",
        "metadata",
        "metrics",
        "raw_times_ms",
        "audit",
        "verdict",
    } <= set(one)
    assert len(one["raw_times_ms"]) == one["metrics"]["actual_runs"]
    assert one["metadata"]["params"]["how"] == "fine"
    # the published suite's average is that of all samples
    assert one["metrics"]["avg_ms"] == pytest.approx(sum(one["raw_times_ms"]) / len(one["raw_times_ms"]), rel=1e-6)
    assert one["metrics"]["KET_ms"] == one["metrics"]["avg_ms"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "summary.csv").read_text())))
    assert [r["test_name"] for r in rows] == ["a", "b"]
    assert float(rows[0]["p50_ms"]) == pytest.approx(one["metrics"]["p50_ms"])
    # 10^6 FLOP over the median, in TFLOP/s
    assert float(rows[0]["tflops_per_sec"]) == pytest.approx(1e6 / (one["metrics"]["p50_ms"] * 1e-3) / 1e12, rel=1e-6)
    assert rows[1]["state"] == "waived"
    assert rows[1]["reason"] == "needs a device (missing: device)"
    assert rows[1]["p50_ms"] == ""
    assert rows[0]["numpy_version"] == ""  # its own environment is empty; that of the file belongs to what was not run


def test_the_columns_are_fixed():
    text = summary_text([])
    assert text.strip().split(",") == list(COLUMNS)
    for name in ("p50_ms", "p90_ms", "avg_ms", "std_ms", "bandwidth_gb_s", "tflops_per_sec", "KET_ms", "throughput"):
        assert name in COLUMNS


def test_exit_codes():
    done = {"state": "done", "verdict": "normal"}
    assert exit_code([done, {"state": "waived", "verdict": None}]) == 0
    assert exit_code([done, {"state": "failed", "verdict": None}]) == 1
    assert exit_code([done, {"state": "done", "verdict": "implausible"}]) == 3
    assert exit_code([done, {"state": "done", "verdict": "low"}, {"state": "done", "verdict": "noisy"}]) == 0
    assert exit_code([{"state": "waived", "verdict": None}]) == 3  # nothing was measured


def test_spread_points_take_turns_over_the_whole_time(setting, tmp_path):
    """Every point gets one process in each turn, turns lie evenly in the time, and the figure is of all of them."""
    log, waits = tmp_path / "log", []
    effort = replace(spread(EFFORT, 30.0), processes=3)
    made = replace(setting(wait=waits.append), effort=effort)
    points = [point("a", log=str(log)), point("b", log=str(log))]
    found = by_name(Runner(made).run(points))
    assert {r.state for r in found.values()} == {State.DONE}
    for r in found.values():
        assert {process for process, _ in r.samples.windows} == {0, 1, 2}
    lines = [line.split() for line in log.read_text().splitlines()]
    turns = [sorted(name for _, name in lines[i : i + 2]) for i in range(0, 6, 2)]
    assert turns == [["a", "b"]] * 3
    assert len({pid for pid, _ in lines}) == 3
    assert len(waits) == 2
    assert 10.0 <= sum(waits) <= 30.0  # to 10 s and to 20 s after the begin, less what the turns themselves took


def test_a_spread_run_does_not_wait_for_a_budget_that_is_spent(setting, tmp_path):
    waits = []
    made = replace(setting(wait=waits.append, budget_s=1e-9), effort=spread(EFFORT, 30.0))
    (result,) = Runner(made).run([point("a", log=str(tmp_path / "log"))])
    assert result.state is State.WAIVED
    assert waits == []


def test_no_word_of_an_order_is_one_that_asking_takes_itself(setting):
    # the budget of a slope and the moment at which a worker is killed once had one name, so that no slope could be asked for
    orders = []

    class Asked:
        waited_s = 0.0

        def ask(self, op, *, limit_s, kill_s=0.0, meanwhile=None, **words):
            orders.append((op, words))
            return {}

    runner = Runner(setting())
    state = Taken(point=point("a"), benchmark=Told())
    runner._windows.ask(Asked(), state, "slope", most_s=1.0)
    own = set(inspect.signature(Worker.ask).parameters)
    assert [op for op, words in orders if not own & set(words)] == ["slope"]
    assert orders[0][1]["most_s"] == 1.0
