"""When windows open and close, with a profiler and a loop finder that do nothing."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from mansard.trace.recorders import controller as module
from mansard.trace.recorders.controller import Controller


class Profiler:
    def __init__(self) -> None:
        self.events: list[str] = []

    def install(self, controller: Any) -> None:
        self.controller = controller

    def start(self, directory: Path) -> None:
        self.events.append("start")

    def stop(self) -> list[str]:
        self.events.append("stop")
        return []

    def synchronize(self) -> None: ...

    def metadata(self) -> dict[str, Any]:
        return {}

    def calibrate(self) -> dict[str, float]:
        return {}


class Finder:
    current = None
    blind = False
    segment = 0

    def __init__(self, _mark: Any) -> None:
        self.stalls: list[tuple[int, int]] = []

    def start(self, tick: Any) -> None:
        self.tick = tick

    def soon(self, function: Any) -> None:
        function()

    def stop(self) -> None: ...

    def give_way(self) -> None: ...

    def tracing_ns(self) -> list[list[int]]:
        return []

    def findings(self) -> list[dict[str, str]]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [10_000_000_000]
    fake = types.SimpleNamespace(**{**vars(time), "time_ns": lambda: now[0]})
    monkeypatch.setattr(module, "time", fake)
    return now


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[int]) -> tuple[Controller, Profiler]:
    profiler = Profiler()
    monkeypatch.setattr("mansard.trace.recorders.growth.resident_bytes", lambda: 0)
    monkeypatch.setattr(module, "LoopFinder", Finder)
    session = types.ModuleType("mansard.trace.recorders.fake_session")
    session.make_session = lambda: profiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, session.__name__, session)
    control = Controller(tmp_path, argv=["p.py"], module=False)
    control.framework_imported("fake")
    profiler.controller.ready()
    return control, profiler


def run_for(control: Controller, clock: list[int], seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        clock[0] += 100_000_000
        control._tick()


def test_without_a_step_three_windows_look_for_one(recording, clock, tmp_path) -> None:
    control, profiler = recording
    assert profiler.events == ["start"]
    run_for(control, clock, 21)  # little is recorded: closed after 20 s
    assert profiler.events == ["start", "stop"]
    run_for(control, clock, 39)  # twice its length later the next one
    assert profiler.events == ["start", "stop"]
    run_for(control, clock, 2)
    assert profiler.events == ["start", "stop", "start"]
    run_for(control, clock, 300)
    assert profiler.events == ["start", "stop"] * 3
    control.finish({"kind": "ended", "code": 0})
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert [w["complete"] for w in meta["windows"]] == [False] * 3
    assert [f["code"] for f in meta["findings"]] == ["profile_capped"]


def test_with_a_mark_the_next_window_waits_for_a_mark(recording, clock) -> None:
    control, profiler = recording
    run_for(control, clock, 21)
    profiler.controller.mark("optimizer#0")  # a first sign of a step opens the window itself
    assert profiler.events == ["start", "stop", "start"]
    run_for(control, clock, 100)
    assert profiler.events == ["start", "stop", "start", "stop"]


def test_memory_that_a_compiler_took_does_not_close_the_window(recording, clock, monkeypatch) -> None:
    control, profiler = recording
    resident = [0]
    monkeypatch.setattr("mansard.trace.recorders.growth.resident_bytes", lambda: resident[0])
    control._growth.begin()
    for _ in range(20):  # 20 x 5 MB in 2 s: more than half of what events may take (64 MB)
        resident[0] += 5_000_000
        clock[0] += 40_000_000
        control._growth.look(clock[0])
    profiler.controller.set_aside(2.0)
    run_for(control, clock, 2)
    assert profiler.events == ["start"]


@pytest.mark.parametrize("all_threads", [True, False])
def test_a_program_that_computes_in_a_thread_is_recorded_where_the_profiler_can(
    monkeypatch, tmp_path, clock, all_threads
) -> None:
    profiler = Profiler()
    profiler.all_threads = all_threads
    monkeypatch.setattr("mansard.trace.recorders.growth.resident_bytes", lambda: 0)
    monkeypatch.setattr(module, "LoopFinder", Finder)
    session = types.ModuleType("mansard.trace.recorders.fake_session")
    session.make_session = lambda: profiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, session.__name__, session)
    control = Controller(tmp_path, argv=["p.py"], module=False)
    control.framework_imported("fake")
    worker = threading.Thread(target=profiler.controller.ready)
    worker.start()
    worker.join()
    assert profiler.events == (["start"] if all_threads else [])
    # The main thread waits for the worker: whoever watches closes the window.
    watcher = threading.Thread(target=run_for, args=(control, clock, 100))
    watcher.start()
    watcher.join()
    assert profiler.events == (["start", "stop"] if all_threads else [])
    control.finish({"kind": "ended", "code": 0})
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert len(meta["windows"]) == all_threads
    assert ("other_thread" in [f["code"] for f in meta["findings"]]) == all_threads
