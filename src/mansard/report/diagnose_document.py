"""The `diagnose` document: the keys of a run, for a profile those of its busiest device, and other devices and ranks beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.core.document import header, to_jsonable
from mansard.diagnose.answer import Answer
from mansard.diagnose.candidates import Candidate
from mansard.diagnose.job import JobDiagnosis, arrival_of, rank_name
from mansard.diagnose.measured import JudgedPoint, MeasuredDiagnosis
from mansard.diagnose.profile import DeviceDiagnosis
from mansard.diagnose.target import TargetResult
from mansard.report.document import to_document
from mansard.report.sections.timeline import KEPT, TimelineBlock, of_profile


def answer_document(answer: Answer) -> dict[str, Any]:
    """Return the document of an answer, which `mansard diagnose --json` prints.

    Args:
        answer: What `mansard.diagnose(...)` returns.
    """
    if answer.devices:
        picture = None if answer.timeline is None else of_profile(answer.timeline, answer.devices[0].steps, most=KEPT)
        return diagnose_document(
            answer.devices, job=answer.job, targets=answer.targets, candidates=answer.candidates, picture=picture
        )
    if answer.measured is not None:
        return measured_document(answer.measured) | _beside(answer.targets, ())
    document = to_document(answer.diagnosis, schema="diagnose/1")
    return document | _beside(answer.targets, answer.candidates)


def measured_document(found: MeasuredDiagnosis) -> dict[str, Any]:
    """Return the document of measured points: verdicts, fixed costs, what they say together, advice.

    Args:
        found: Their diagnosis.
    """
    body: dict[str, Any] = {
        "headline": found.sentence, "source": found.source, "points": [_point(p) for p in found.points],
        "fixed_costs": [{"backend": w.backend, "what": w.what, "law": w.cost} for w in found.laws],
        "together": list(found.together), "advice": list(found.advice), "findings": list(found.findings),
        "unmeasured": [{"name": n, "state": s, "reason": r} for n, s, r in found.unmeasured],
    }  # fmt: skip
    return header("diagnose_points/1", found.environment) | dict(to_jsonable(body))


def _point(p: JudgedPoint) -> dict[str, Any]:
    return {
        "name": p.name, "benchmark": p.point.benchmark, "impl": p.point.impl, "backend": p.point.backend,
        "dtype": p.point.dtype, "time_s": p.point.time_s, "ci95_s": list(p.point.ci95_s), "worth": p.worth or None,
        "bound": p.bound, "limiting_ceiling": p.limiting_ceiling, "share_of_ceiling": p.share_of_ceiling,
        "shares_by_kind": p.shares_by_kind, "least_s": p.least_s, "headroom_s": p.headroom_s, "grade": p.grade,
        "reason": p.reason, "evidence": p.evidence, "counter_evidence": p.counter_evidence, "size": p.size,
        "foreign_ratio": p.foreign_ratio,
    }  # fmt: skip


def diagnose_document(
    found: Sequence[DeviceDiagnosis],
    *,
    job: JobDiagnosis | None = None,
    targets: Sequence[TargetResult] = (),
    candidates: Sequence[Sequence[Candidate]] = (),
    picture: TimelineBlock | None = None,
) -> dict[str, Any]:
    """Return the document of a profile's diagnosis.

    Args:
        found: The diagnosis of each device, the busiest first.
        job: The ranks, where several were given; `found` is then one of them.
        targets: What was asked of it.
        candidates: Measured implementations side by side.
        picture: One step over time.
    """
    first, *others = found
    document = _device(first)
    document["other_devices"] = [_device(d) for d in others]
    if job is not None:
        document |= _job(job)
    if picture is not None:
        document["timeline"] = picture.document()
    return document | _beside(targets, candidates)


def _beside(targets: Sequence[TargetResult], candidates: Sequence[Sequence[Candidate]]) -> dict[str, Any]:
    extra = {
        "targets": [{"target": t.target.text, "value": t.value, "met": t.met} for t in targets],
        "candidates": [[_candidate(c) for c in group] for group in candidates],
    }
    return dict(to_jsonable(extra))


def _device(one: DeviceDiagnosis) -> dict[str, Any]:
    """Return the document of one device."""
    document = to_document(one.diagnosis, schema="diagnose/1")
    scope = one.scope
    extra: dict[str, Any] = {
        "device": one.label, "kernel_table": one.table, "metrics": one.metrics, "fixed_costs": one.fixed_costs,
    }  # fmt: skip
    if scope is not None:
        extra["scope"] = {
            "flop_per_device_and_step": scope.flop_per_step, "refused": scope.refused, "source": scope.stated.source,
            "mismatches": scope.mismatches,
        }  # fmt: skip
    return document | dict(to_jsonable(extra))


def _job(job: JobDiagnosis) -> dict[str, Any]:
    """Return what the ranks say, each by itself and together; null where the diagnosis of a rank failed."""
    ranks = []
    for place, (d, seen) in enumerate(zip(job.verdicts, job.compared.ranks, strict=True)):
        ranks.append(
            {
                "rank": rank_name(seen, place), "source": seen.source, "verdict": d and d.verdict, "step": d and d.step,
                "time_shares": d and d.time_shares, "waiting_s": _s(seen.waiting_ns), "late_s": _s(seen.late_ns),
                "exposed_communication_s": _s(seen.exposed_ns),
            }
        )  # fmt: skip
    extra = {
        "shown_rank": job.shown_rank, "straggler_rank": job.straggler, "ranks": ranks,
        "imbalance_ratio": job.compared.imbalance_ratio(), "arrival": arrival_of(job.compared),
        "rank_findings": [{"code": f.code, "text": f.text} for f in job.compared.findings],
        "failed": [{"source": f.source, "error": f.error} for f in job.failed],
    }  # fmt: skip
    return dict(to_jsonable(extra))


def _s(value: Any) -> Any:
    return value / 1e9 if isinstance(value, int) else value


def _candidate(c: Candidate) -> dict[str, Any]:
    return {"benchmark": c.benchmark, "impl": c.impl, "backend": c.backend, "params": dict(c.params), "time_s": c.time_s,
            "device": c.device}  # fmt: skip
