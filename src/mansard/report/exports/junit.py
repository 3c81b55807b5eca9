"""Checks, targets and measured points as JUnit XML, for the test view of a CI system.

A failed rule is a failure; what could not be decided is an error, so that neither looks green.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import Bound, Unknown
from mansard.core.document import damage_named
from mansard.core.errors import UsageError
from mansard.diagnose.records import Diagnosis
from mansard.report.exports.sources import Sources
from mansard.report.frames import why
from mansard.report.text import clean

PASSED, FAILED, UNDECIDED, SKIPPED = "passed", "failure", "error", "skipped"
_OUTCOMES = {"pass": PASSED, "fail": FAILED, "undecided": UNDECIDED}


@dataclass(frozen=True, slots=True)
class _Case:
    group: str
    name: str
    outcome: str
    kind: str
    text: str
    time_s: float | None = None


def to_junit(sources: Sources) -> str:
    """Return the results as JUnit XML.

    Raises:
        UsageError: there is nothing that passes or fails.
    """
    suites = [(name, list(_check(document))) for name, document in sources.checks]
    suites += [(name, list(_run(d, document))) for name, d, document in sources.diagnoses]
    for name, elements in sources.points:
        with damage_named(f"{name} has a damaged point", hint="measure again"):
            suites.append((name, [_point(e) for e in elements]))
    if not suites:
        raise UsageError(
            f"nothing passes or fails in {sources.kinds}",
            hint="give the JSON of mansard check or mansard diagnose --target, or detailed.json",
        )
    root = ET.Element("testsuites", {"name": "mansard", **_counts([c for _, cases in suites for c in cases])})
    for name, cases in suites:
        suite = ET.SubElement(root, "testsuite", {"name": clean(name), **_counts(cases)})
        for case in cases:
            _write(suite, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _counts(cases: list[_Case]) -> dict[str, str]:
    kinds = [c.outcome for c in cases]
    return {"tests": str(len(cases)), "failures": str(kinds.count(FAILED)), "errors": str(kinds.count(UNDECIDED)),
            "skipped": str(kinds.count(SKIPPED))}  # fmt: skip


def _write(suite: ET.Element, case: _Case) -> None:
    attributes = {"classname": clean(case.group), "name": clean(case.name)}
    if case.time_s is not None:
        attributes["time"] = f"{case.time_s:.9f}"
    element = ET.SubElement(suite, "testcase", attributes)
    if case.outcome == PASSED:
        ET.SubElement(element, "system-out").text = clean(case.text)
    else:
        ET.SubElement(element, case.outcome, {"type": clean(case.kind), "message": clean(case.text)})


def _check(document: Mapping[str, Any]) -> Iterator[_Case]:
    results = document.get("results") or []
    for r in results:
        yield _Case(
            str(r["rule"]),
            str(r["name"]),
            _OUTCOMES.get(str(r["outcome"]), UNDECIDED),
            str(r["verdict"]),
            str(r["reason"]),
        )
    if not results:
        yield _Case(
            "mansard",
            "something was checked",
            UNDECIDED,
            "inconclusive",
            str(document.get("empty") or "nothing was checked"),
        )


def _run(d: Diagnosis, document: Mapping[str, Any]) -> Iterator[_Case]:
    undecided = d.verdict.bound is Bound.UNDETERMINED
    text = d.verdict.sentence + ("; needs " + ", ".join(d.verdict.needs) if undecided and d.verdict.needs else "")
    yield _Case(
        "verdict",
        "the bound is known",
        UNDECIDED if undecided else PASSED,
        d.verdict.bound.value,
        text,
        d.step.median_s,
    )
    for t in document.get("targets") or ():
        met, value = t["met"], t["value"]
        said = why(_unknown(value)) if isinstance(value, Mapping) else f"value {value:.6g}"
        if met is True or met is False:
            yield _Case("target", str(t["target"]), PASSED if met else FAILED, "missed", said)
        else:
            yield _Case("target", str(t["target"]), UNDECIDED, "undecided", why(_unknown(met)) or said)


def _unknown(value: Any) -> Unknown:
    if isinstance(value, Mapping) and "unknown" in value:
        return Unknown(str(value["unknown"]), tuple(value.get("needs", ())))
    if isinstance(value, Mapping) and "implausible" in value:
        return Unknown(f"implausible: {value['implausible']}")
    return Unknown("not stated")


def _point(e: Mapping[str, Any]) -> _Case:
    """Return one point: failed ones are failures, implausible ones errors; a low share is for `mansard check` to judge."""
    meta, state, verdict = e["metadata"], str(e.get("state")), e.get("verdict")
    name, group = str(meta["test_name"]), str(meta["benchmark_name"])
    if state == "waived":
        return _Case(group, name, SKIPPED, "waived", str(e.get("reason") or ""))
    if state != "done":
        return _Case(group, name, FAILED, state, str(e.get("reason") or ""))
    seconds = float(e["metrics"]["median_s"])
    text = str(e.get("verdict_reason") or verdict or "measured")
    if verdict == "implausible":
        return _Case(group, name, UNDECIDED, "implausible", text, seconds)
    return _Case(group, name, PASSED, str(verdict), text, seconds)
