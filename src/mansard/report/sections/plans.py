"""Sections of the `plan` documents: scaling, what fits, experts and layers on the host, one ceiling changed, shapes of a slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_ratio, format_s
from mansard.report.sections.blocks import Chart, Facts, Prose, Section, Series, number, reason_of
from mansard.report.sections.plain import facts, prose, table, value_text
from mansard.report.text import count

_Rows = Sequence[Mapping[str, Any]]


def _known(rows: _Rows, *keys: str) -> list[Mapping[str, Any]]:
    return [r for r in rows if all(number(r.get(k)) is not None for k in keys)]


def scale(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return how a job scales: measured and modelled time and efficiency over N, and the N where more stop paying."""
    weak, relative = document["scaling"] == "weak", bool(document["relative"])
    rows, measured = list(document["rows"]), list(document["measured"])
    unit = "share of T(1)" if relative else "s"
    write = (lambda v: f"{v:.4g} T(1)") if relative else format_s
    what = "fitted" if document["from"] == "points" else "from its parts"
    stop, floor, last = (
        number(document.get("best_n")),
        float(document["efficiency_floor"]),
        number(document.get("last_n_above")),
    )
    uprights = [(stop, "more devices stop paying")] if stop is not None else []
    uprights += [(last, f"last N above {format_ratio(floor)}")] if last is not None and last != stop else []
    efficiency = "weak_efficiency_ratio" if weak else "strong_efficiency_ratio"
    times, shares = _known(rows, "n", "time_s"), _known(rows, "n", efficiency)
    ideal = (
        []
        if weak or not times
        else [
            Series(name="ideal, T(1) / N", x=[r["n"] for r in times], y=[times[0]["time_s"] * times[0]["n"] / r["n"] for r in times], mode="lines",
                   dash="dot", colour="undetermined")
        ]
    )  # fmt: skip
    points = [
        Series(name="measured", x=[m["n"] for m in measured], y=[m["time_s"] for m in measured], mode="markers", colour="latency",
               text=[f"N = {m['n']}: {write(m['time_s'])}, measured" for m in measured])
    ] if measured else []  # fmt: skip
    blocks = [
        Facts(rows=_scale_facts(document)),
        Chart(
            label="Time of a step over the number of devices", x_title="devices N", y_title=f"time T(N), {unit}", x_log=True, y_log=True,
            uprights=uprights, series=[*points, _model(times, "time_s", what, write), *ideal],
        ),
        Chart(
            label="Efficiency over the number of devices", x_title="devices N",
            y_title=f"{'weak' if weak else 'strong'} scaling efficiency", x_log=True, percent=True, uprights=uprights,
            levels=[(floor, f"{format_ratio(floor)}")],
            series=[
                *([Series(name="measured", x=[m["n"] for m in measured], y=[m["efficiency_ratio"] for m in measured], mode="markers",
                          colour="latency", text=[f"N = {m['n']}: {format_ratio(m['efficiency_ratio'])}, measured" for m in measured])]
                  if measured else []),
                _model(shares, efficiency, what, format_ratio),
            ],
        ),
        table("Scaling", [_scale_row(r, relative, document) for r in rows], notes=["Times are shares of T(1)."] if relative else []),
        prose(document),
    ]  # fmt: skip
    return Section(key=key, title="Scaling", small=f"{name}: {document['scaling']}, {what}", blocks=blocks)


def _scale_row(row: Mapping[str, Any], relative: bool, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table; a relative time is a share, not seconds, and measured strong scaling says nothing of weak."""
    silent = "weak_" if document["from"] == "points" and document["scaling"] == "strong" else "-"
    names = {"n": "devices N", "comm_s": "messages_s"}
    kept = {names.get(k, k): v for k, v in row.items() if not k.startswith(silent)}
    return {
        k.replace("_s", "_of_T(1)") if relative and k.endswith(("time_s", "messages_s")) else k: v
        for k, v in kept.items()
    }


def _model(rows: _Rows, key: str, what: str, write: Any) -> Series:
    return Series(
        name=f"model, {what}", x=[r["n"] for r in rows], y=[r[key] for r in rows], mode="lines", colour="compute",
        text=[f"N = {r['n']}: {write(float(r[key]))}, model {what}" for r in rows],
    )  # fmt: skip


def _scale_facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    fit, limit = document.get("fit") or {}, document.get("limit")
    rows = [("law", f"{fit['law']}: {document['model']}" if fit else str(document["model"]))]
    if fit:
        low, high = (number(v) for v in (fit.get("serial_ci95_ratio") or (None, None))[:2])
        between = (
            f", 95 % in {format_ratio(low)} to {format_ratio(high)}" if low is not None and high is not None else ""
        )
        rows.append(("serial share", value_text("serial_ratio", fit["serial_ratio"]) + between))
        rows.append(("distance of the fit from the points", value_text("error_ratio", fit.get("error_ratio"))))
    known = number(limit)
    rows.append(("largest speedup at any N", f"{known:.4g}" if known is not None else reason_of(limit)))
    rows.append(("where more devices stop paying", str(document["stops_paying"])))
    last = document.get("last_n_above")
    rows.append(
        (
            f"last N with at least {format_ratio(document['efficiency_floor'])} efficiency",
            "no end" if last is None else count(last),
        )
    )
    return rows  # fmt: skip


def headline_of_scale(document: Mapping[str, Any]) -> str:
    """Return how far a job scales in one sentence."""
    last, floor = number(document.get("last_n_above")), format_ratio(document["efficiency_floor"])
    head = (
        f"Scaling: efficiency stays at {floor} or more up to N = {count(last)}"
        if last is not None
        else f"Scaling: efficiency stays above {floor}"
    )
    stop = number(document.get("best_n"))
    return f"{head}; {'beyond N = ' + count(stop) + ' a further device makes the step longer' if stop is not None else 'more devices always help, by less and less'}."  # fmt: skip


def size(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return how many devices hold a model, how fast they are, and what they cost."""
    candidates = list(document["candidates"])
    best = document["best"] if isinstance(document["best"], list) else [document["best"]]
    winners = {b["candidate"] for b in best if b}
    front = set(document["pareto"])
    order = sorted(
        range(len(candidates)), key=lambda i: (i not in winners, *_rank(candidates[i], str(document["best_by"])))
    )
    rows = [_size_row(candidates[i], i in winners) for i in order]
    drawn = [
        (i, c)
        for i, c in enumerate(candidates)
        if number(c.get("devices")) is not None and number(c.get("time_s")) is not None
    ]
    series = [
        Series(
            name=label, colour=colour, mode="markers", x=[c["devices"] for _, c in kept], y=[c["time_s"] for _, c in kept],
            text=[f"{c['model']} on {value_text('devices', c['devices'])} x {c['device']}: {format_s(c['time_s'])}, {value_text('', c.get('bound'))} bound"
                  for _, c in kept],
        )
        for label, colour, kept in (
            ("no better one with as few devices", "latency", [d for d in drawn if d[0] in front]),
            ("others", "undetermined", [d for d in drawn if d[0] not in front]),
        ) if kept
    ]  # fmt: skip
    left = [{"device": o["device"], "reason": o["reason"]} for o in document.get("left_out") or ()]
    notes = [f"Time is {document['time_is']}. Cost is {document['cost_is']}."]
    notes += [
        f"Best by {document['best_by']}: {', '.join(str(candidates[i]['device']) for i in sorted(winners))}."
    ] if winners else []  # fmt: skip
    blocks: list[Any] = [
        Chart(
            label="Time over the number of devices", x_title="devices", y_title=f"{_time_title(document)}, s", x_log=True, y_log=True,
            series=series,
        ),
        table("Devices", rows, filter_by="model" if len({c["model"] for c in candidates}) > 1 else "bound", swatch="bound", notes=notes),
    ]  # fmt: skip
    if document.get("side_by_side"):
        blocks.append(table("Side by side", document["side_by_side"]))
    if left:
        blocks.append(table("Not judged", left))
    blocks.append(Prose(lines=list(dict.fromkeys(n for c in candidates for n in c["notes"]))[:30]))
    return Section(key=key, title="What fits", small=name, blocks=blocks)


def _rank(c: Mapping[str, Any], by: str) -> tuple[Any, ...]:
    """What fits first, then what has a time, then by what was asked."""
    keys = {"devices": ("devices", "time_s"), "time": ("time_s", "devices"), "cost": ("cost", "time_s")}[by]
    figures = [number(c.get(k)) for k in keys]
    return (c["fits"] is not True, number(c.get("time_s")) is None, *(math.inf if v is None else v for v in figures))


def _time_title(document: Mapping[str, Any]) -> str:
    return str(document["time_is"]).removeprefix("the ")


def _size_row(c: Mapping[str, Any], won: bool) -> dict[str, Any]:
    """Return one candidate as a row: what it is, then the floor, the expected time, rate, money, memory."""
    plan = c.get("plan") or {}
    split = " ".join(f"{k}{plan[k]}" for k in ("tp", "pp", "dp", "ep") if plan.get(k, 1) > 1)
    span = c.get("step") or c.get("tpot") or {}
    first = c.get("ttft") or {}
    return {
        "device": f"{c['device']}{' (best)' if won else ''}", "model": c["model"], "devices": c["devices"], "split": split or "none", "fits": c["fits"],
        "floor_s": c["time_s"], "expected_s": span.get("expected_s"), "slow_end_s": span.get("high_s"), "ttft_s": first.get("low_s"),
        "tokens_per_s": c["tokens_per_s"], "cost_usd": c["cost"], "bound": c["bound"], "memory_bytes": c["memory_bytes"],
        "budget_bytes": c["budget_bytes"], "why_not": c["why_not"],
    }  # fmt: skip


def headline_of_size(document: Mapping[str, Any]) -> str:
    """Return what fits in one sentence."""
    best = document["best"] if isinstance(document["best"], list) else [document["best"]]
    found = [document["candidates"][b["candidate"]] for b in best if b]
    if not found:
        return "None of these devices holds the model."
    told = [f"{c['model']} fits on {value_text('devices', c['devices'])} x {c['device']}, {format_s(c['time_s'])} at best"
            if number(c["time_s"]) is not None else f"{c['model']} fits on {value_text('devices', c['devices'])} x {c['device']}" for c in found]  # fmt: skip
    return (
        f"{'; '.join(told)} (fewest {document['best_by']})."
        if document["best_by"] == "devices"
        else f"{'; '.join(told)} (least {document['best_by']})."
    )


def offload(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return experts or layers on the host: hit rate and time of a step over the memory that caches them, and what fills the link."""
    rows = _known(document["candidates"], "memory_bytes") or _known(document["candidates"], "cached_units")
    across = "memory_bytes" if rows and number(rows[0].get("memory_bytes")) is not None else "cached_units"
    blocks: list[Any] = []
    policies = dict.fromkeys(str(r["policy"]) for r in rows)
    series = [
        Series(
            name=f"{policy}, {words}", dash=dash, x=[r[across] for r in kept], y=[r[field] for r in kept],
            text=[f"{policy}, {count(r['cached_units'])} cached: {format_s(r[field])} ({words}), hits {value_text('hit_ratio', r['hit_ratio'])}" for r in kept],
        )
        for policy in policies
        for field, words, dash in (("serial_s", "each miss waits", "solid"), ("time_s", "misses hide", "dash"))
        if (kept := [r for r in _known(rows, across, field) if str(r["policy"]) == policy])
    ]  # fmt: skip
    if series:
        rest = document.get("rest") or {}
        budget = number(rest.get("budget_bytes")) if across == "memory_bytes" else None
        x_title = (
            "memory of one device, byte"
            if across == "memory_bytes"
            else f"{(document.get('bank') or {}).get('unit', 'unit')}s cached"
        )
        blocks.append(
            Chart(
                label="Time of a decode step over what is cached", x_title=x_title, y_title="decode step, s", y_log=True, series=series,
                uprights=[(budget, f"memory of the device, {format_bytes(budget)}")] if budget is not None else [],
                notes=[f"Times: {document['time_is']}."],
            )
        )  # fmt: skip
    if document["candidates"]:
        columns = ("policy", "cached_units", "fits", "memory_bytes", "hit_ratio", "simulated_hit_ratio", "misses_per_step", "miss_bytes_per_step", "link_s",
                   "time_s", "serial_s", "cpu_serial_s", "tokens_per_s_serial", "cost", "why_not")  # fmt: skip
        blocks.append(
            table(
                "Caches", document["candidates"], columns, filter_by="policy", notes=[f"Cost: {document['cost_is']}."]
            )
        )
    link = document.get("link") or {}
    if link:
        full = "is full" if link["full"] else f"carries {format_ratio(link['share_ratio'])} of what it can"
        told = f"The link {full}; {link['more_ratio']:.3g} times the bytes in flight would fill it (latency {format_s(link['latency_s'])}, {link['latency_is']})."
        blocks += [Prose(lines=[told]), table("More bytes in flight", link["with_more"])]
    for part in ("bank", "rest", "host", "cpu", "replay"):
        if document.get(part):
            blocks.append(Facts(rows=[(f"{part}: {k}", v) for k, v in facts(document[part]).rows]))
    return Section(key=key, title="Offload to the host", small=name, blocks=[*blocks, prose(document)])


def headline_of_offload(document: Mapping[str, Any]) -> str:
    """Return the best cache, or how full the link is, in one sentence."""
    best, rows, link = document.get("best"), document["candidates"], document.get("link") or {}
    if isinstance(best, int) and rows:
        row = rows[best]
        unit = (document.get("bank") or {}).get("unit", "unit")
        time = number(row["serial_s"]) if number(row["serial_s"]) is not None else number(row["time_s"])
        told = f": {format_s(time)} per decode step at best" if time is not None else ""
        return f"Best of {len(rows)} caches: {row['policy']} with {count(row['cached_units'])} {unit}s of each layer on the device{told}."
    if link:
        return f"The link carries {format_ratio(link['share_ratio'])} of what it can: {link['more_ratio']:.3g} times the bytes in flight would fill it."
    return "Experts or layers on the host: nothing that was tried fits."


def whatif(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return what one changed ceiling moves: the step before and after by bound, and each area."""
    rows = list(document["candidates"])
    bounds = dict.fromkeys(k for r in rows for k in r["time_by_bound_s"])
    series = [
        Series(
            name=bound, colour=bound, mode="bars", x=[r["name"] for r in rows], y=[r["time_by_bound_s"].get(bound, 0.0) for r in rows],
            text=[f"{r['name']}: {bound} bound {format_s(r['time_by_bound_s'].get(bound, 0.0))}" for r in rows],
        )
        for bound in bounds
    ]  # fmt: skip
    changes = "; ".join(f"{c['resource']} = {c['value']}" for c in document["changes"])
    ceilings = [
        {"ceiling": c["resource"], "before": value_text(_rate(c["unit"]), c["before"]),
         "after": "off" if c["off"] else value_text(_rate(c["unit"]), c["after"])} for c in document["ceilings"]
    ]  # fmt: skip
    blocks = [
        Chart(label="Floor of a step before and after, by bound", x_title="floor of a step, s", y_title="", sideways=True, series=series),
        table("Ceilings changed", ceilings),
        table("Areas of the step", document["areas"], swatch="bound_after"),
        Facts(rows=[
            ("speedup", f"{document['speedup_ratio']:.4g}" if number(document["speedup_ratio"]) is not None else value_text("", document["speedup_ratio"])),
            ("time that moves", value_text("_s", document["moving_s"])), ("time that does not", value_text("_s", document["not_moving_s"])),
            ("messages and kernels", value_text("", document["overlap"])),
        ]),
        prose(document),
    ]  # fmt: skip
    return Section(key=key, title="One ceiling changed", small=f"{name}: {changes}", blocks=blocks)


def _rate(unit: str) -> str:
    return {"B/s": "bytes_per_s", "FLOP/s": "flop_per_s", "s": "_s"}.get(unit, "")


def headline_of_whatif(document: Mapping[str, Any]) -> str:
    """Return what a changed ceiling does in one sentence."""
    changes = "; ".join(f"{c['resource']} = {c['value']}" for c in document["changes"])
    before, after = (number(r["time_s"]) for r in document["candidates"])
    if before is None or after is None:
        return f"With {changes}: the floor of a step is not known."
    ratio = number(document["speedup_ratio"])
    faster = f", {ratio:.3g} times as fast" if ratio is not None else ""
    return f"With {changes} the floor of a step goes from {format_s(before)} to {format_s(after)}{faster}."


def topology(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return shapes of a slice beside each other: time of kernels and of messages, and which axis serves which parallelism."""
    shapes = [s for s in document["shapes"] if not reason_of(s["best"])]
    series = [
        Series(
            name=label, colour=colour, mode="bars", x=[str(s["shape"]) for s in shapes], y=[float(s["best"][k]) for s in shapes],
            text=[f"{s['shape']}: {label} {format_s(float(s['best'][k]))}" for s in shapes],
        )
        for k, label, colour in (("compute_s", "kernels", "compute"), ("messages_s", "messages", "network"))
    ]  # fmt: skip
    rows = [_shape_row(s) for s in document["shapes"]]
    why = [f"{s['shape']}: {r}" for s in document["shapes"] for r in (s.get("reasons") or ())]
    blocks: list[Any] = []
    if shapes:
        blocks.append(
            Chart(label="Kernels and messages of the best plan of each shape", x_title="time at the ceilings, s", y_title="", sideways=True, stacked=False, series=series,
                  notes=["In training messages hide behind kernels as a whole, so the step is the longer of the two; in inference it is their sum."])
        )  # fmt: skip
    blocks += [table("Shapes", rows), Prose(lines=why[:40]), prose(document)]
    return Section(key=key, title="Topology", small=f"{name}: {document['model']}, {document['phase']}", blocks=blocks)


def _shape_row(s: Mapping[str, Any]) -> dict[str, Any]:
    best = s["best"]
    if reason_of(best):
        return {"shape": s["shape"], "why_not": reason_of(best)}
    plan = " ".join(f"{k}{v}" for k, v in best["plan"].items() if k != "zero" and v > 1) or "none"
    axes = "; ".join(
        f"{axis}: {', '.join(f'{k} {n}' for k, n in use.items()) or 'idle'}" for axis, use in best["axes"].items()
    )
    return {
        "shape": s["shape"], "devices": s["devices"], "split": plan, "axes": axes, "step_s": best["step_s"], "compute_s": best["compute_s"],
        "messages_s": best["messages_s"], "tokens_per_s_and_device": best["tokens_per_s_and_device"], "memory_bytes": best["memory_bytes"],
        "fits": best["fits"], "tried": s["tried"],
    }  # fmt: skip


def headline_of_topology(document: Mapping[str, Any]) -> str:
    """Return the best shape in one sentence."""
    first = next((s for s in document["shapes"] if not reason_of(s["best"])), None)
    if first is None:
        return "None of these shapes works."
    best = first["best"]
    return f"Best of {len(document['shapes'])} shapes: {first['shape']}, {best['tokens_per_s_and_device']:.4g} tokens per second and device at best."
