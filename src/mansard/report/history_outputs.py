"""A gate in the forms that CI systems and benchmark dashboards read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

from mansard.core.unknown import Unknown
from mansard.history.check import Check, CheckResult, Outcome
from mansard.history.records import Measurement, Record
from mansard.report.history_text import amount, check_markdown, headline, ordered
from mansard.report.text import clean

#: GitHub shows ten annotations of a kind per step; the rest is said in one.
MOST_ANNOTATIONS = 10


def junit(found: Check) -> str:
    """Return a gate as JUnit XML: a failed rule is a failure, an undecided one an error, so that neither looks green."""
    failed = sum(r.outcome is Outcome.FAIL for r in found.results)
    undecided = sum(r.outcome is Outcome.UNDECIDED for r in found.results)
    counts = {"tests": str(len(found.results)), "failures": str(failed), "errors": str(undecided), "skipped": "0"}
    # The schema of Jenkins has no number of skipped ones at the top.
    root = ET.Element("testsuites", {"name": "mansard check", **{k: n for k, n in counts.items() if k != "skipped"}})
    suite = ET.SubElement(root, "testsuite", {"name": _plain(found.source), **counts})
    for r in found.results:
        case = ET.SubElement(suite, "testcase", {"classname": _plain(r.rule), "name": _plain(r.name)})
        if r.outcome is not Outcome.PASS:
            tag = "failure" if r.outcome is Outcome.FAIL else "error"
            # Some readers show the attribute, others the text.
            said = f"{r.verdict}: {r.reason}; value {amount(r.value, r.unit)}, expected {r.limit}"
            ET.SubElement(case, tag, {"type": r.verdict, "message": _plain(r.reason)}).text = _plain(said)
        else:
            ET.SubElement(case, "system-out").text = _plain(r.reason)
    if not found.results:
        case = ET.SubElement(suite, "testcase", {"classname": "mansard", "name": "something was checked"})
        ET.SubElement(case, "error", {"type": "inconclusive", "message": _plain(found.empty or "nothing was checked")})
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _plain(text: str) -> str:
    """Return text without the characters that XML forbids."""
    return clean(text)


def github_annotations(found: Check) -> str:
    """Return a gate as workflow commands of GitHub: errors for what failed, warnings for what is undecided."""
    lines = []
    for outcome, command in ((Outcome.FAIL, "error"), (Outcome.UNDECIDED, "warning")):
        rows = [r for r in ordered(found.results) if r.outcome is outcome]
        shown = rows if len(rows) <= MOST_ANNOTATIONS else rows[: MOST_ANNOTATIONS - 1]
        lines += [f"::{command} title={_property(r.name)}::{_message(_said(r))}" for r in shown]
        if len(rows) > len(shown):
            lines.append(
                f"::{command} title=mansard check::{len(rows) - len(shown)} more {outcome.value}; see the job summary"
            )
    lines.append(f"::notice title=mansard check::{_message(headline(found))}")
    return "\n".join(lines) + "\n"


def _said(r: CheckResult) -> str:
    return f"{r.verdict}: {r.reason} [{r.rule}]"


def _message(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _figures(record: Record) -> list[tuple[Measurement, float]]:
    pairs = [(m, m.value) for m in record.measurements if m.primary and not m.flaw]
    return [(m, v) for m, v in pairs if not isinstance(v, Unknown)]


def _bounds(m: Measurement, value: float) -> tuple[float, float]:
    from mansard.core.stats import median_interval

    if m.stated is not None:
        return m.stated[1], m.stated[2]
    s = median_interval(m.samples)
    return min(s.low, value), max(s.high, value)


def benchmark_action(record: Record, *, bigger_is_better: bool) -> str:
    """Return the figures in the custom form of github-action-benchmark, which has one direction per file.

    Args:
        record: The result.
        bigger_is_better: Which figures: rates and shares, or times.
    """
    rows: list[dict[str, Any]] = []
    for m, value in _figures(record):
        if m.more_is_better is bigger_is_better:
            low, high = _bounds(m, value)
            rows.append({
                "name": m.name, "unit": m.unit, "value": value, "range": f"{low:.6g} to {high:.6g}", "extra": f"{m.sample_count} samples",
            })  # fmt: skip
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def bencher(record: Record) -> str:
    """Return the figures in Bencher's metric form: benchmark -> measure -> value and bounds."""
    found: dict[str, dict[str, Any]] = {}
    for m, value in _figures(record):
        low, high = _bounds(m, value)
        found.setdefault(m.benchmark, {})[m.metric] = {"value": value, "lower_value": low, "upper_value": high}
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


#: Name of a form -> what it writes.
FORMS = ("markdown", "junit", "annotations", "benchmark-action-smaller", "benchmark-action-bigger", "bencher")


def written(form: str, found: Check, record: Record) -> str:
    """Return a gate, or the figures that it saw, in a form.

    Raises:
        ValueError: an unknown form.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}, expected one of {', '.join(FORMS)}")
    if form == "markdown":
        return check_markdown(found)
    if form == "junit":
        return junit(found)
    if form == "annotations":
        return github_annotations(found)
    if form == "bencher":
        return bencher(record)
    return benchmark_action(record, bigger_is_better=form.endswith("bigger"))
