"""One run of a plan from end to end: machine, ceilings, points, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceiling, Ceilings, ceilings_from_json
from mansard.core.document import read_document
from mansard.core.errors import MansardError
from mansard.hardware import ceilings as on_paper
from mansard.hardware import detect, load
from mansard.measure.machine import choose_cpus, describe, memory_levels, read_caches
from mansard.measure.points.assemble import result_of
from mansard.measure.points.conclusions import conclusions
from mansard.measure.points.effort import Effort
from mansard.measure.points.identity import key_of, plan_hash
from mansard.measure.points.journal import Journal
from mansard.measure.points.output import Writer, points_left
from mansard.measure.points.points_ceilings import envelope_of
from mansard.measure.points.result import Point, State, unmeasured
from mansard.measure.points.runner import Runner
from mansard.measure.points.setting import Setting
from mansard.measure.points.taken import Taken
from mansard.measure.store import load_cached

Progress = Callable[[float, str], None]
CEILINGS = "ceilings.json"
NO_CEILINGS = "no ceilings of this machine are kept, so CPU points cannot be judged: `mansard measure` takes a minute"


@dataclass(slots=True)
class Session:
    """What a run needs and what it made.

    Args:
        effort: How much a point is worth.
        folder: Where the files go; None keeps them in memory.
        threads: Threads of the team; None takes all this process may use.
        seed: Seed of the order of the points.
        budget_s: Wall time of the run [s]; None has no bound.
        hardware: Catalogue name or file whose declared ceilings count on an accelerator.
        declared: More declared ceilings, from the configuration.
        ceilings_file: A `ceilings.json` to judge against, in place of the kept ones.
        seconds_of_progress: Called with the share done and what is measured.
        writer: Set by `run`.
    """

    effort: Effort
    folder: Path | None = None
    threads: int | None = None
    seed: int = 0
    budget_s: float | None = None
    hardware: str | None = None
    declared: tuple[Ceiling, ...] = ()
    ceilings_file: Path | None = None
    progress: Progress = lambda _share, _text: None
    notes: list[str] = field(default_factory=list)
    writer: Writer | None = None
    cpus: tuple[int, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    cpu_ceilings: Ceilings | None = None
    device_ceilings: Ceilings | None = None
    fresh: Ceilings | None = None
    _levels: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.cpus = choose_cpus(self.threads)
        self.environment = {**describe(self.cpus), "seed": self.seed, "effort": self.effort.name}
        self._levels = memory_levels(read_caches(self.cpus), self.environment["memory_bytes"])
        self.cpu_ceilings = self._on_cpu()
        self.device_ceilings = self._on_device()

    def _on_cpu(self) -> Ceilings | None:
        if self.ceilings_file is not None:
            found: Ceilings | None = ceilings_from_json(
                read_document(self.ceilings_file, "ceilings/1"), source=str(self.ceilings_file)
            )
        else:
            found = load_cached(threads=self.threads)
        if found is None:
            self.notes.append(NO_CEILINGS)
            return None
        return found.merged(c for c in self.declared if c.scope == "node")

    def judge_against(self, ceilings: Ceilings) -> None:
        """Take these ceilings of the CPU instead of those that were kept; `ceilings.json` then holds them too."""
        self.cpu_ceilings = ceilings.merged(c for c in self.declared if c.scope == "node")
        self.fresh = ceilings
        self.notes = [n for n in self.notes if n != NO_CEILINGS]

    def _on_device(self) -> Ceilings | None:
        """Return what is declared of the accelerator: by the name given, else by what is detected, never a guess."""
        found = None
        if self.hardware is not None:
            sku = load(self.hardware)
            found = None if sku.kind.startswith("cpu") else on_paper(sku)
        else:
            devices = [d for d in detect().devices if d.kind != "cpu" and d.match.sku is not None]
            if devices and devices[0].match.sku is not None:
                found = on_paper(devices[0].match.sku)
        mine = [c for c in self.declared if c.scope != "node"]
        if found is None:
            return Ceilings(ceilings=tuple(mine)) if mine else None
        return found.merged(mine)

    def ceilings_of(self, taken: Taken) -> Ceilings | None:
        """Return what a point is judged against: this CPU, or the accelerator it ran on."""
        return self.cpu_ceilings if taken.where is None or taken.where.platform == "cpu" else self.device_ceilings

    def _runner(self, writer: Writer | None, journal: Journal | None = None, *, resume: bool = False) -> Runner:
        return Runner(
            Setting(
                effort=self.effort, cpus=self.cpus, seed=self.seed, budget_s=self.budget_s,
                ceilings=self.cpu_ceilings, device_ceilings=self.device_ceilings,
                note=journal.keep if journal is not None else lambda _batch: None,
                restore=journal.restorer() if journal is not None and resume else lambda _taken: None,
                progress=self.progress, keep=writer.keep if writer is not None else lambda _result: None,
                finish=lambda taken: result_of(taken, self.ceilings_of(taken), self._levels, self.environment),
            )
        )  # fmt: skip

    def survey(self, points: Sequence[Point]) -> list[tuple[Point, str, float | None]]:
        """Return what would happen to each point and how long it would take [s]."""
        return self._runner(None).survey(points)

    def run(
        self, points: Sequence[Point], waived: Sequence[tuple[Point, str]] = (), *, resume: bool = False
    ) -> list[dict[str, Any]]:
        """Measure the points and return the elements of `detailed.json` in the order of the plan.

        Args:
            points: What to measure.
            waived: Points that the plan leaves out, with the reason.
            resume: Take over what an earlier run of the same plan finished in `folder`.

        Raises:
            UsageError: the folder holds another plan's results.
        """
        whole = [*points, *(p for p, _ in waived)]
        writer = self.writer = Writer(
            folder=self.folder, plan=plan_hash(whole, self.effort), environment=self.environment,
            order=[key_of(p) for p in whole],
        )  # fmt: skip
        done = writer.resume() if resume else set()
        try:
            for point, reason in waived:
                if key_of(point) not in done:
                    writer.keep(unmeasured(point, State.WAIVED, reason))
            journal = Journal(folder=self.folder, plan=writer.plan)
            self._runner(writer, journal, resume=resume).run(points_left(points, done))
            journal.close()
        finally:
            writer.write()
            self._write_ceilings(writer)
        return writer.ordered()

    def ceilings(self) -> Ceilings:
        """Return the ceilings that the points of this run make, with fits and curves."""
        elements = self.writer.ordered() if self.writer is not None else []
        found = envelope_of(elements)
        if self.fresh is not None:  # a shipped suite measured the machine too
            found = dataclasses.replace(
                found, ceilings=(*self.fresh.ceilings, *found.ceilings), curves=(*self.fresh.curves, *found.curves)
            )
        together = conclusions(elements, self._levels)
        return dataclasses.replace(
            found,
            levels=self._levels,
            machine={**self.environment, "conclusions": together} if together else self.environment,
        )

    def _write_ceilings(self, writer: Writer) -> None:
        if writer.folder is None:
            return
        from mansard.core.document import dumps
        from mansard.measure.store import document, write_text

        try:
            write_text(writer.folder / CEILINGS, dumps(document(self.ceilings())))
        except MansardError:
            raise
        except ValueError as error:  # points that make no ceiling must not hide those that do
            self.notes.append(f"{CEILINGS} was not written: {error}")


def exit_code(elements: Sequence[dict[str, Any]]) -> int:
    """Return the exit code of a run: 1 with a failed point, 3 with an implausible one or nothing measured, else 0.

    >>> exit_code([{"state": "done", "verdict": "normal"}, {"state": "failed", "verdict": None}])
    1
    >>> exit_code([{"state": "done", "verdict": "implausible"}]), exit_code([{"state": "done", "verdict": None}])
    (3, 0)
    """
    if any(e["state"] == State.FAILED for e in elements):
        return 1
    done = [e for e in elements if e["state"] == State.DONE]
    if not done or any(e["verdict"] == "implausible" for e in done):
        return 3
    return 0
