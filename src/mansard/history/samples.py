"""Samples at hand as a `samples/1` document, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.errors import InputError
from mansard.history.fingerprint import fingerprint_of
from mansard.history.records import METRICS, Measurement


def samples_of(
    benchmark: str, runs: Sequence[Sequence[float]], metric: str = "time_s", environment: Mapping[str, Any] | None = None, *,
    one_process: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return one benchmark of a `samples/1` document; see `read_samples`."""
    told: dict[str, Any] = {"environment": dict(environment)} if environment else {}
    told |= {"one_process": True} if one_process else {}
    return {"name": benchmark, "metric": metric, **told, "runs": [[float(x) for x in run] for run in runs]}


def samples_document(benchmarks: Sequence[Mapping[str, Any]], *, created: str = "") -> dict[str, Any]:
    """Return a `samples/1` document.

    Args:
        benchmarks: What `samples_of` returned.
        created: When they were taken, ISO 8601.
    """
    return {"schema": "samples/1", **({"created": created} if created else {}), "benchmarks": list(benchmarks)}


def measurements_of_samples(d: Mapping[str, Any]) -> list[Measurement]:
    """Read `samples/1`: benchmarks with a name, a metric and the samples of each run, in SI units.

    `one_process` says that one process took all of them, so that they show nothing of how processes differ.
    """
    base = fingerprint_of(d.get("environment", {}))
    found = []
    for b in d["benchmarks"]:
        metric = b.get("metric", "time_s")
        if metric not in METRICS:
            raise InputError(f"unknown metric {metric!r} of {b['name']!r}", hint=f"one of {', '.join(METRICS)}")
        own = base.merged(fingerprint_of(b.get("environment", {})).parts)
        wrong = [x for run in b["runs"] for x in (run if isinstance(run, list) else [run]) if _no_sample(x, run)]
        if wrong:
            raise InputError(
                f"a run of {b['name']!r} holds {wrong[0]!r}, expected a list of numbers", hint='"runs": [[0.101, 0.099, 0.100]]'
            )  # fmt: skip
        groups = tuple(tuple(float(x) for x in run) for run in b["runs"] if run)
        alone = b.get("one_process", False)
        if not isinstance(alone, bool):
            raise InputError(f"one_process of {b['name']!r} is {alone!r}, expected true or false")
        groups = (tuple(x for run in groups for x in run),) if groups and alone else groups
        found.append(
            Measurement(
                benchmark=b["name"], metric=metric, groups=groups, absent="" if groups else "no samples", fingerprint=own, single=alone
            )
        )  # fmt: skip
    return found


def _no_sample(x: Any, run: Any) -> bool:
    return not isinstance(run, list) or isinstance(x, bool) or not isinstance(x, int | float)
