"""From what the workers said of a point to its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from mansard.core.ceilings import Ceilings, MemoryLevel
from mansard.measure.points.audit import audit
from mansard.measure.points.conditions import calm, joined
from mansard.measure.points.evidence import Evidence
from mansard.measure.points.interval import interval_of, interval_over
from mansard.measure.points.metrics import metrics_of
from mansard.measure.points.regimes import intervals_by_regime
from mansard.measure.points.result import Finding, Result, Samples, State, parameters_of, unmeasured
from mansard.measure.points.taken import Taken
from mansard.measure.points.timing import outliers
from mansard.measure.points.verdict import judge_point


def samples_of(taken: Taken) -> Samples:
    """Return all samples of a point, process after process, with their median and its interval."""
    groups = taken.samples
    seconds = [s for group in groups for s in group]
    found = interval_over(groups, taken.spread_s) if taken.spread_s else interval_of(groups)
    first = taken.prepared[0]
    slopes = [step for step, _ in taken.slopes]
    return Samples(
        seconds=tuple(seconds),
        per_sample=int(first["per_sample"]),
        warmup_s=tuple(s for p in taken.prepared for s in p["warmup_s"]) + tuple(taken.rewarm_s),
        steady=all(p["steady"] for p in taken.prepared),
        floor_s=float(np.median([p["floor_s"] for p in taken.prepared])),
        slope_s=float(np.median(slopes)) if slopes else None,
        fixed_s=float(np.median([fixed for _, fixed in taken.slopes])) if slopes else None,
        cold_s=float(first["cold_s"]),
        stopped_by=taken.stopped_by,
        outliers=outliers(seconds),
        windows=tuple((number, len(w)) for number, group in enumerate(taken.groups) for w in group),
        median_s=found.median,
        low_s=found.low,
        high_s=found.high,
        interval=found.holds,
        regimes=intervals_by_regime(taken.groups) if calm(joined(taken.seen)) else (),
    )


def evidence_of(taken: Taken, ceilings: Ceilings | None, levels: tuple[MemoryLevel, ...]) -> Evidence:
    """Return a measured point as audit, verdict and metrics take it; of several processes, the first that was checked.

    A wrong result in any process is the result of the point.
    """
    assert taken.work is not None
    assert taken.where is not None
    return Evidence(
        work=taken.work,
        where=taken.where,
        params=parameters_of(taken.point),
        prepared={**taken.prepared[0], "check": _worst([p["check"] for p in taken.prepared])},
        finished={**taken.finished[0], "check": _worst([f["check"] for f in taken.finished])} if taken.finished else {},
        samples=samples_of(taken),
        conditions=joined(taken.seen),
        ceilings=ceilings,
        levels=levels,
    )


def _worst(checks: list[dict[str, Any]]) -> dict[str, Any]:
    broken = [c for c in checks if c["error_ratio"] is None]
    return broken[0] if broken else max(checks, key=lambda c: float(c["error_ratio"]))


def result_of(
    taken: Taken, ceilings: Ceilings | None, levels: tuple[MemoryLevel, ...], environment: Mapping[str, Any]
) -> Result:
    """Return the result of a measured point: samples, conditions, audit, verdict and metrics.

    Args:
        taken: What was measured.
        ceilings: What it is judged against; None where nothing is known.
        levels: Memory levels of the machine.
        environment: What the numbers belong to.
    """
    if not any(taken.samples) or not taken.prepared:
        return unmeasured(taken.point, State.FAILED, "no sample was taken")
    e = evidence_of(taken, ceilings, levels)
    facts, findings = audit(e)
    facts["benchmark"] = {**facts["benchmark"], **e.finished.get("facts_after", {})}
    judged = judge_point(e, findings)
    findings = (*findings, *judged.findings)
    if taken.in_one_go:
        findings = (*findings, Finding(code="in_one_go", text=taken.in_one_go))
    facts["share_of_ceiling"] = judged.share
    facts["shortfall"] = judged.factors
    return Result(
        point=taken.point,
        state=State.DONE,
        samples=e.samples,
        conditions=e.conditions,
        metrics=metrics_of(e, judged, taken.benchmark),
        audit=facts,
        findings=findings,
        verdict=judged.verdict,
        verdict_reason=judged.reason,
        environment={**environment, "where": dataclasses.asdict(e.where)},
        started=taken.started,
    )
