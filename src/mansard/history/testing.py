"""Assertions about performance for test suites. What cannot be decided fails too, and says so: a gate never passes on nothing."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.history.check import Check, Outcome, check
from mansard.history.documents import read, read_bytes, read_samples
from mansard.history.records import Record
from mansard.history.rules import Rules, rules_of
from mansard.history.samples import samples_document, samples_of

Source = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the fixture `mansard` is.

    Args:
        result: The result that assertions are about where they name none.
        baseline: The baseline that they compare with where they name none.
        store: URL of the store.
        taken: The samples that assertions were given, by benchmark, with what they depend on; a baseline can be made of them.
    """

    result: str | None = None
    baseline: str | None = None
    store: str | None = None
    taken: dict[str, tuple[list[list[float]], dict[str, Any]]] = field(default_factory=dict)

    def assert_share(self, op: str, *, at_least: float, of: Source | None = None) -> None:
        """Assert that operations reach a share of their ceiling.

        Args:
            op: Glob over benchmarks or operators, such as `gemm*` or `aten::mm*`.
            at_least: The share (0..1).
            of: File, document or record; None takes `--mansard-result`.

        Raises:
            AssertionError: one is below, or there is none, or its share is not known.

        >>> point = {"name": "gemm", "metric": "share_of_ceiling", "runs": [[0.70, 0.71, 0.72]]}
        >>> Gate().assert_share("gemm", at_least=0.6, of={"schema": "samples/1", "benchmarks": [point]})
        """
        self._held([{"metric": f"{op}/share_of_ceiling", "at_least": at_least}], self._record(of), ())

    def assert_ratio(self, achieved: float, *, of: float, at_least: float) -> None:
        """Assert that a figure reaches a share of another one, such as a ceiling.

        Args:
            achieved: The figure, in any unit.
            of: What it is held against, in the same unit.
            at_least: The share.

        Raises:
            AssertionError: it does not, or a figure is not finite and positive.
            UsageError: `at_least` is no share: every comparison with NaN would pass.

        >>> Gate().assert_ratio(70.0, of=100.0, at_least=0.6)
        """
        if not (math.isfinite(at_least) and at_least > 0):
            raise UsageError(f"at_least is {at_least!r}, expected a share", hint="at_least=0.6")
        if not (math.isfinite(achieved) and math.isfinite(of) and achieved > 0 and of > 0):
            raise AssertionError(f"{achieved!r} of {of!r} is no share: both must be finite and positive")
        if achieved / of < at_least:
            raise AssertionError(f"{achieved / of:.3g} of {of:.6g} is below {at_least:.3g}")

    def assert_no_regression(
        self, name: str = "*", *, samples: Sequence[float] | None = None, of: Source | None = None,
        baseline: Source | None = None, max_regression: float = 0.05, environment: Mapping[str, Any] | None = None,
        run_spread: float | None = None,
    ) -> None:  # fmt: skip
        """Assert that figures are not worse than the baseline.

        Args:
            name: Glob over benchmarks; the name of the benchmark where `samples` are given.
            samples: Samples of a time [s], taken by the test, which is one process: they show nothing of how processes differ, so
                10 % are assumed until the baseline has runs of four different times, or `run_spread` states it. None takes a result.
            of: File, document or record; None takes `--mansard-result`.
            baseline: The same for the baseline, or the name of one in the store; None takes `--mansard-baseline`.
            max_regression: The largest worsening, relative.
            environment: What `samples` depend on.
            run_spread: Known spread of this machine between runs, relative, such as 0.01.

        Raises:
            AssertionError: one is worse, or it cannot be decided.
            UsageError: `samples` without the name of their benchmark, or the same name for samples of two environments.
        """
        record = self._record(of) if samples is None else self._of_test(name, samples, environment or {})
        rules = [
            {"metric": f"{name}/{m}", "max_regression": max_regression, "required": False}
            for m in _compared_metrics(record)
        ]
        if not rules:
            raise AssertionError(f"nothing to compare: {record.empty or 'no figures'}")
        self._held(rules, record, self._baseline(baseline), {} if run_spread is None else {"run_spread": run_spread})

    def _of_test(self, name: str, samples: Sequence[float], environment: Mapping[str, Any]) -> Record:
        """Keep samples for a baseline, and return their record."""
        if not name or "*" in name or "?" in name:
            raise UsageError(
                f"samples of {name!r}, expected the name of their benchmark",
                hint='assert_no_regression("sort", samples=...)',
            )
        runs, told = self.taken.setdefault(name, ([], dict(environment)))
        if told != dict(environment):
            raise UsageError(
                f"samples of {name!r} were given with another environment before", hint="give each a name of its own"
            )
        runs.append([float(x) for x in samples])
        return read_samples(name, samples, environment=environment, one_process=True)

    def document(self) -> dict[str, Any]:
        """Return what was taken as a `samples/1` document, for `mansard baseline add NAME FILE`."""
        benchmarks = [samples_of(n, runs, environment=told, one_process=True) for n, (runs, told) in self.taken.items()]
        return samples_document(benchmarks, created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def _held(
        self,
        rules: list[dict[str, Any]],
        record: Record,
        baseline: Sequence[Record],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        parsed: Rules = rules_of({"rules": rules, "defaults": dict(defaults or {})}, "assertion")
        found: Check = check(record, parsed, baseline=baseline)
        wrong = [r for r in found.results if r.outcome is not Outcome.PASS]
        if wrong or not found.results:
            lines = [f"{r.outcome.value}: {r.name}: {r.reason}" for r in wrong] or [
                "nothing was checked: the baseline has no such figure"
            ]
            raise AssertionError("\n".join(lines))

    def _record(self, of: Source | None) -> Record:
        if of is None:
            if self.result is None:
                raise UsageError("no result to check", hint="give of=..., or run pytest --mansard-result FILE")
            return read(Path(self.result))
        if isinstance(of, Record):
            return of
        if isinstance(of, str | Path):
            return read(Path(of))
        return read_bytes(json.dumps(of).encode(), source="document")

    def _baseline(self, baseline: Source | None) -> list[Record]:
        chosen = self.baseline if baseline is None else baseline
        if chosen is None:
            raise UsageError(
                "no baseline to compare with", hint="give baseline=..., or run pytest --mansard-baseline NAME"
            )
        if not isinstance(chosen, str) or Path(chosen).is_file():
            return [self._record(chosen)]
        from mansard.history.store import open_store

        with open_store(self.store, make=False) as store:
            return store.baseline(chosen).records()


def _compared_metrics(record: Record) -> list[str]:
    return list(dict.fromkeys(m.metric for m in record.measurements if m.primary))
