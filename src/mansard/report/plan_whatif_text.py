"""A `plan whatif` document for reading in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.report.plan_text import known, model_title, notes_text, shown, wrapped
from mansard.report.text import clean, shorten


def whatif_text(document: Mapping[str, Any]) -> str:
    """Return the text of a `plan whatif` document in plain JSON types."""
    env = document["environment"]
    lines = wrapped(f"{model_title(env['model'])}: {document['phase']} on {env['machine']}", "")
    changed = [_change(c) for c in document["ceilings"]]
    for text in list(dict.fromkeys(changed))[:8]:
        lines += wrapped(text)
    if len(set(changed)) > 8:
        lines.append(f"  {len(set(changed)) - 8} more ceilings (all with --json)")
    before, after = document["candidates"]
    lines += ["", f"  {'part':<26}{'before':>10}{'after':>10}{'share':>8}   bound"]
    total = sum(r["before_s"] for r in document["areas"]) or 1.0
    for r in document["areas"]:
        bound = (
            r["bound_before"] if r["bound_before"] == r["bound_after"] else f"{r['bound_before']} -> {r['bound_after']}"
        )
        lines.append(
            f"{'*' if r['moves'] else ' '} {shorten(clean(r['area']), 25):<26}{_time(r['before_s']):>10}"
            f"{_time(r['after_s']):>10}{format_ratio(r['before_s'] / total):>8}   {bound}"
        )
    lines.append("  * moves")
    lines += ["", *_verdict(document, before, after)]
    return "\n".join([*lines, *notes_text(document["notes"], "to know")])


def _change(c: Mapping[str, Any]) -> str:
    after = "off" if c["off"] else _figure(c["after"], c["unit"])
    return f"{c['resource']}: {_figure(c['before'], c['unit'])} -> {after}"


def _time(value: float) -> str:
    return "0 s" if value < 1e-12 else format_s(value)


def _figure(value: float, unit: str) -> str:
    style = {"FLOP/s": format_flop_per_s, "B/s": format_bytes_per_s, "s": format_s}.get(unit)
    return style(value) if style else f"{value:.4g} {unit}"


def _verdict(document: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    if not known(before["time_s"]):
        return wrapped(f"the step is not known: {before['time_s']['unknown']}")
    moving, still = document["moving_s"], document["not_moving_s"]
    share = moving / (moving + still) if moving + still else 0.0
    speed = document["speedup_ratio"]
    if not moving:
        what = " and ".join(dict.fromkeys(c["resource"] for c in document["ceilings"]))
        return wrapped(
            f"nothing moves: no part of the step is bound by {what}; it takes at least {format_s(before['time_s'])}"
        )
    lines = wrapped(
        f"step at least {format_s(before['time_s'])} -> {shown(after['time_s'], format_s)}, {speed:.3g} times as fast; "
        f"{format_ratio(share)} of the kernels' time moves, {format_ratio(1.0 - share)} does not"
    )
    lines += wrapped(f"{before['bound']}-bound before, {after['bound']}-bound after")
    if document["hidden_s"] > 0 and document["overlap"] == "full":
        lines += wrapped(f"{format_s(document['hidden_s'])} of messages or kernels hide behind each other")
    if before["fits"] is False:
        lines += wrapped("the model does not fit the device: plan size says how many hold it")
    return lines
