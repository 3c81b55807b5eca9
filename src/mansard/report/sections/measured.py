"""The section of measured points alone, as `mansard diagnose out/` writes them: advice, verdicts, fixed costs, what they say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_s
from mansard.measure.points.conclusions import in_words
from mansard.report.sections import plain
from mansard.report.sections.blocks import Prose, Section, number

_POINT = (
    "name",
    "time_s",
    "bound",
    "share_of_ceiling",
    "limiting_ceiling",
    "headroom_s",
    "worth",
    "reason",
    "too_small",
    "grade",
)
_LAW = ("backend", "what", "fixed_s", "interval", "rate_flop_per_s", "n_for_80_percent", "source")


def section(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return the diagnosis of measured points.

    Args:
        document: A `diagnose_points/1` document.
        key: Identifier in the page.
        name: Name of the file.
    """
    points = [{**p, "too_small": (p.get("size") or {}).get("text")} for p in document["points"]]
    blocks: list[Any] = [Prose(lines=[_advice(a) for a in document["advice"]])] if document["advice"] else []
    blocks.append(
        plain.table("Points, by headroom of one operation", points, _POINT, filter_by="bound", swatch="bound")
    )
    if document["fixed_costs"]:
        blocks.append(plain.table("Fixed cost, t = T0 + work / rate", [_law(w) for w in document["fixed_costs"]], _LAW))
    said = [in_words(c) for c in document["together"] if c["kind"] != "size_law"]
    said += [str(f["text"]) for f in document["findings"]]
    blocks += [Prose(lines=said)] if said else []
    if document["unmeasured"]:
        blocks.append(plain.table("Not measured", document["unmeasured"]))
    return Section(key=key, title="Measured points, judged", small=name, blocks=blocks)


def _advice(advice: Mapping[str, Any]) -> str:
    gain = number(advice["gain_s"])
    saves = (
        ""
        if gain is None
        else f"Saves {'at most' if advice['at_most'] else 'at least'} {format_s(gain)} of an operation: "
    )
    return f"{saves}{advice['text']} ({advice['evidence']})"


def _law(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fixed cost as a row; one that no sweep tells keeps its reason."""
    law = told["law"]
    row = {"backend": told["backend"], "what": told["what"]}
    if "unknown" in law:
        return {**row, "fixed_s": law}
    ends = law["fixed_ci95_s"]
    rate = law["rate_per_s"] if law["unit"] == "FLOP/s" else None
    return {
        **row, "fixed_s": law["fixed_s"], "rate_flop_per_s": rate, "source": law["source"],
        "interval": f"{format_s(ends[0])} to {format_s(ends[1])}" if isinstance(ends, list) else None,
        "n_for_80_percent": (law.get("hiding_gemm_size") or {}).get("0.8"),
    }  # fmt: skip
