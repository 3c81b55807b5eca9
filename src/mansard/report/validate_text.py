"""A validation for reading: errors by kind of run first, then the runs that were furthest off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_s

KINDS = {
    "train": "training step",
    "prefill": "prompt",
    "stream_decode": "decode, one stream",
    "stream_decode_narrow": "decode, one stream, under 16 bits",
    "serving_decode": "decode, many streams",
}
WORST = 5


def validate_text(document: Mapping[str, Any], *, every: bool = False) -> str:
    """Return the text of a `validation` document in plain JSON types, at most 80 columns wide.

    Args:
        document: The document.
        every: Every run, not the furthest alone.
    """
    lines = ["How far off estimates are: each run predicted from those of other groups", ""]
    lines += _kinds(document["kinds"], document["shares"])
    lines += _unpredicted(document["cases"])
    lines += _runs(document["cases"], every=every)
    if document["implausible"]:
        names = ", ".join(document["implausible"][:3])
        lines += ["", f"Faster than their bound, so one of the two is wrong: {names}"]
    if document["refused"]:
        lines += ["", f"Not compared: {len(document['refused'])}"]
        shown = document["refused"] if every else document["refused"][:3]
        lines += [f"  {r['name']}: {r['reason']}"[:200] for r in shown]
    foreign = document["environment"].get("foreign_load_ratio")
    if isinstance(foreign, int | float) and foreign > 0.1:
        lines += ["", f"Other programs took {foreign:.0%} of the processors meanwhile; these errors hold that."]
    return "\n".join(lines)


def _percent(value: Any, *, signed: bool = False) -> str:
    if not isinstance(value, int | float):
        return "?"
    return f"{value:+.0%}" if signed else f"{value:.0%}"


def _kinds(kinds: Sequence[Mapping[str, Any]], shares: Mapping[str, Any]) -> list[str]:
    rows = [("kind of run", "runs", "of bound", "error", "9 of 10", "bias", "in band", "public")]
    for k in kinds:
        share = shares.get(k["kind"])
        rows.append(
            (
                KINDS.get(k["kind"], k["kind"]), f"{k['count']}", _percent(share["median"]) if share else "?",
                _percent(k["error_median_ratio"]), _percent(k["error_p90_ratio"]), _percent(k["bias_ratio"], signed=True),
                _percent(k["in_band_ratio"]), _percent(k["published_error_ratio"]),
            )
        )  # fmt: skip
    if len(rows) == 1:
        return ["no run could be compared"]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [
        *lines,
        "",
        "of bound: least time over measured time, median; error: of the prediction,",
        "median and 9 of 10 runs below; bias: + where runs were faster than expected;",
        "in band: between the bound and the slowest tenth of the others; public: the",
        "median error with the shares of public runs instead (docs/measured_runs.md)",
    ]


def _unpredicted(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    alone = sum(1 for c in cases if not isinstance(c["error_ratio"], int | float))
    if not alone:
        return []
    return ["", f"Without a prediction: {alone} of {len(cases)}, fewer than three comparable runs (all with -v)"]


def _runs(cases: Sequence[Mapping[str, Any]], *, every: bool) -> list[str]:
    known = [c for c in cases if isinstance(c["error_ratio"], int | float)]
    shown = list(cases) if every else sorted(known, key=lambda c: -abs(c["error_ratio"]))[:WORST]
    if not shown:
        return []
    lines = ["", "Every run" if every else "Furthest off"]
    lines.append(f"{'run':40s} {'least':>9s} {'expected':>9s} {'measured':>9s} {'error':>6s}")
    for c in shown:
        expected = c["expected_s"]
        name = c["name"] if len(c["name"]) <= 40 else c["name"][:37] + "..."
        lines.append(
            f"{name:40s} {format_s(c['bound_s']):>9s} "
            f"{format_s(expected) if isinstance(expected, int | float) else '?':>9s} "
            f"{format_s(c['measured_s']):>9s} {_percent(c['error_ratio'], signed=True):>6s}"
        )
    return lines
