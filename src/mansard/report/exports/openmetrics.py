"""Runs and machines as OpenMetrics text, for a scrape or a push gateway.

Source: OpenMetrics 1.0 text format: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mansard.core import Implausible, Unknown, is_known
from mansard.core.ceilings import Ceiling
from mansard.core.document import damage_named
from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.diagnose.lower_limits import whole_work
from mansard.diagnose.records import Diagnosis
from mansard.report.exports.sources import Sources
from mansard.report.frames import why
from mansard.report.text import clean, distinct_names, shorten

#: Operators that get series of their own, by time; the rest of a run is one series: every label value is a series that is kept.
MOST_OPERATORS = 100
#: Longest label value.
_LONGEST = 200
_UNITS = {
    "FLOP/s": "flop_per_second",
    "B/s": "bytes_per_second",
    "s": "seconds",
    "evaluations/s": "evaluations_per_second",
    "1/s": "evaluations_per_second",
}


class _Families:
    """Metric families in the order of their first sample."""

    def __init__(self) -> None:
        self.heads: dict[str, tuple[str, str, str]] = {}
        self.lines: dict[str, dict[str, str]] = {}

    def add(self, name: str, text: str, value: float, labels: Mapping[str, object], unit: str = "") -> None:
        self._put(name, name, ("gauge", unit, text), value, labels)

    def info(self, name: str, text: str, labels: Mapping[str, object]) -> None:
        self._put(name, f"{name}_info", ("info", "", text), 1.0, labels)

    def _put(
        self, name: str, sample: str, head: tuple[str, str, str], value: float, labels: Mapping[str, object]
    ) -> None:
        self.heads.setdefault(name, head)
        pairs = ",".join(f'{k}="{_label(v)}"' for k, v in labels.items() if v is not None)
        series, lines = f"{sample}{{{pairs}}}" if pairs else sample, self.lines.setdefault(name, {})
        if series in lines:  # several figures with the same labels: each keeps its own series
            series = f'{series[:-1]},number="{len(lines)}"}}'
        lines[series] = _number(value)

    def text(self) -> str:
        out = []
        for name, (kind, unit, text) in self.heads.items():
            out.append(f"# TYPE {name} {kind}")
            out += [f"# UNIT {name} {unit}"] if unit else []
            out.append(f"# HELP {name} {_escaped(text)}")
            out += [f"{sample} {value}" for sample, value in self.lines[name].items()]
        return "\n".join([*out, "# EOF"]) + "\n"


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError("a metric is a finite number; what is not known has no sample")
    return repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _label(value: object) -> str:
    return _escaped(shorten(clean(value), _LONGEST))


def to_openmetrics(sources: Sources) -> str:
    """Return the figures of runs and ceilings; what is not known has no sample, and `mansard_unknown_info` says why."""
    out = _Families()
    for name, diagnosis, _ in sources.diagnoses:
        _run(out, name, diagnosis)
    own = [(name, c.ceilings) for name, c, _ in sources.ceilings]
    for name, ceilings in own or [(name, d.ceilings) for name, d, _ in sources.diagnoses]:
        for c in ceilings:
            _ceiling(out, name, c)
    for name, elements in sources.points:
        for element in elements:
            with damage_named(f"{name} has a damaged point", hint="measure again"):
                _point(out, name, element)
    return out.text()


def _unknown(out: _Families, metric: str, labels: Mapping[str, object], reason: object) -> None:
    out.info("mansard_unknown", "Figures without a sample, and why.", {"metric": metric, **labels, "reason": reason})


def _maybe(
    out: _Families, name: str, text: str, value: float | Unknown | Implausible, labels: Mapping[str, object], unit: str
) -> None:
    if is_known(value):
        out.add(name, text, value, labels, unit)
    else:
        _unknown(out, name, labels, why(value))


def _no_interval(d: Diagnosis) -> Unknown | None:
    """Return why the step time has no interval, where it has none."""
    if d.step.count < 2:
        return Unknown("one step has no interval", ("several steps",))
    if d.step.statistic != "median":
        low, high = (format_s(x) for x in d.step.ci95_s)
        return Unknown(f"steps do different work, the shortest {low} and the longest {high}")
    return None


def _whole(d: Diagnosis, value: float | Unknown, write: Callable[[float], str], *, flop: bool) -> float | Unknown:
    """Return an amount of a step; a lower limit is said beside the others that are not known, and is no sample."""
    if isinstance(value, Unknown) or whole_work(d, flop=flop):
        return value
    return Unknown(
        f"at least {write(value)}: the cost of {format_ratio(1.0 - d.attributed_ratio)} of operator time is not known"
    )


def _run(out: _Families, name: str, d: Diagnosis) -> None:
    of: dict[str, object] = {"run": name}
    v = d.verdict
    out.info("mansard_run", "What ran.", {**of, "program": d.program, "framework": d.framework})
    about = {
        "bound": v.bound.value,
        "limiting_ceiling": v.limiting_ceiling,
        "level": v.level,
        "link": v.link,
        "grade": v.grade.value,
    }
    out.info("mansard_verdict", "What bounds the run.", {**of, **about})
    spread = _no_interval(d)
    maybe: tuple[tuple[str, str, float | Unknown | Implausible, str], ...] = (
        (
            "verdict_share_of_ceiling",
            "Least over observed time of what the verdict is about.",
            v.share_of_ceiling,
            "ratio",
        ),
        ("verdict_headroom", "Time of a step above the ceiling.", v.headroom_s, "seconds"),
        ("step_time", "Median time of a step; the mean where steps do different work.", d.step.median_s, "seconds"),
        (
            "step_time_ci95_low",
            "Lower end of its 95 % interval.",
            d.step.ci95_s[0] if spread is None else spread,
            "seconds",
        ),
        (
            "step_time_ci95_high",
            "Upper end of its 95 % interval.",
            d.step.ci95_s[1] if spread is None else spread,
            "seconds",
        ),
        ("step_work", "Model matrix FLOP of a step.", _whole(d, d.flop_per_step, format_flop, flop=True), "flop"),
        ("step_traffic", "Compulsory bytes of a step.", _whole(d, d.bytes_per_step, format_bytes, flop=False), "bytes"),
        ("mfu", "Model FLOP over step time and matrix ceiling.", d.mfu_ratio, "ratio"),
        ("hfu", "Executed FLOP over step time and matrix ceiling.", d.hfu_ratio, "ratio"),
    )
    for stem, text, value, unit in maybe:
        _maybe(out, f"mansard_{stem}_{unit}", text, value, of, unit)
    for bound, share in d.time_shares.items():
        out.add("mansard_step_time_share_ratio", "Share of a step by bound.", share, {**of, "bound": bound}, "ratio")
    for part in d.parts:
        out.add(
            "mansard_part_time_seconds", "Time of a part of a step.", part.time_s, {**of, "part": part.kind}, "seconds"
        )
    for a in d.advice:
        out.add("mansard_advice_gain_seconds", "Most that an advice saves per step; gains overlap.", a.gain_s,
                {**of, "rule": a.rule}, "seconds")  # fmt: skip
    _operators(out, d, of)


def _operators(out: _Families, d: Diagnosis, of: Mapping[str, object]) -> None:
    names = distinct_names(d.operators)
    order = sorted(range(len(names)), key=lambda i: -d.operators[i].time_s)
    seen: set[tuple[str, str]] = set()
    for i in order[:MOST_OPERATORS]:
        o, name = d.operators[i], names[i]
        if (_label(name), o.part) in seen:  # names that differ only where they were cut
            name = f"#{i + 1} {shorten(clean(name), _LONGEST - 10)}"
        seen.add((_label(name), o.part))
        labels = {**of, "operator": name, "part": o.part, "bound": o.bound.value}
        out.add("mansard_operator_time_seconds", "Time of an operator per step.", o.time_s, labels, "seconds")
        _maybe(out, "mansard_operator_share_of_ceiling_ratio", "Least over observed time of an operator.", o.share_of_ceiling,
               labels, "ratio")  # fmt: skip
    rest = [d.operators[i].time_s for i in order[MOST_OPERATORS:]]
    if rest:
        out.add("mansard_operators_beyond_time_seconds", f"Time per step of the operators beyond the {MOST_OPERATORS} longest.",
                math.fsum(rest), of, "seconds")  # fmt: skip


def _ceiling(out: _Families, name: str, c: Ceiling) -> None:
    unit = _UNITS.get(c.unit, "")
    fields = {k: v for k, v in c.resource.to_json().items() if k != "area"}
    labels = {"machine": name, "resource": c.resource.label, "kind": c.kind.value, "scope": c.scope, **fields}
    text = f"How fast it can be consumed, or what it costs at least [{c.unit}]."
    out.add(f"mansard_{c.resource.area.value}_ceiling_{unit or 'value'}", text, c.value, labels, unit)


def _point(out: _Families, name: str, element: Mapping[str, Any]) -> None:
    labels = {"file": name, "test": element["metadata"]["test_name"]}
    metrics = element.get("metrics") or {}
    if element.get("state") != "done" or element.get("verdict") == "implausible":
        reason = element.get("reason") or element.get("verdict_reason") or element.get("state")
        _unknown(out, "mansard_point_time_seconds", labels, reason)
        return
    out.add(
        "mansard_point_time_seconds", "Median time of a measured point.", float(metrics["median_s"]), labels, "seconds"
    )
    for key, metric, unit in (
        ("flop_per_s", "mansard_point_flop_per_second", "flop_per_second"),
        ("bytes_per_s", "mansard_point_bytes_per_second", "bytes_per_second"),
        ("share_of_ceiling", "mansard_point_share_of_ceiling_ratio", "ratio"),
    ):
        value = metrics.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            out.add(metric, f"{key} of a measured point.", float(value), labels, unit)
