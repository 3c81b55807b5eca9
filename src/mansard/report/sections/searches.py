"""Sections of the searches of `plan`: how a model is divided over devices, and what of its activations is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_ratio, format_s
from mansard.report.sections.blocks import Chart, Facts, Section, Series, number, reason_of
from mansard.report.sections.plain import facts, prose, table, value_text

#: What the parts of a time and of a memory are called, each with a colour that is its own throughout.
_TIMES = {
    "compute_s": ("kernels", "compute"), "recompute_s": ("made again", "latency"), "tensor_s": ("tensor messages", "network"),
    "context_s": ("context messages", "memory"), "expert_s": ("expert messages", "host"),
    "pipeline_s": ("pipeline messages", "unattributed"), "data_s": ("gradients and weights", "network"),
    "bubble_s": ("bubble", "undetermined"), "optimizer_s": ("optimizer", "host"),
}  # fmt: skip
_MEMORIES = {
    "weight_bytes": ("weights", "compute"), "gathered_bytes": ("weights gathered", "undetermined"), "gradient_bytes": ("gradients", "latency"),
    "optimizer_bytes": ("optimizer", "host"), "activation_bytes": ("activations", "memory"), "kv_cache_bytes": ("KV cache", "network"),
}  # fmt: skip
#: Plans whose time and memory are taken apart beside each other.
_APART = 5
_SPLIT = ("layout", "precision", "micro_batch", "accumulation", "chunks", "zero", "recompute", "sequences")


def shard(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return how a model is divided: the front of time over memory, the best plans taken apart, what would change the choice."""
    candidates = list(document["candidates"])
    winner = _winner(document)
    top = [candidates[i] for i in list(document["top"])[:_APART]]
    what = _time_of(document)
    blocks: list[Any] = []
    front = _front(candidates, set(document["pareto"]), winner, _plan_text)
    if front:
        budget = number(document.get("budget_bytes"))
        blocks.append(
            Chart(
                label=f"{what[0].upper()}{what[1:]} over memory of a device", x_title="memory of a device, bytes", y_title=f"{what}, s",
                x_log=True, y_log=True, series=front,
                uprights=[(budget, f"may be used: {format_bytes(budget)}")] if budget else [],
                notes=["A plan is on the front where no other is better in all of: "
                       + ", ".join(_measure(k, what) for k in document["pareto_of"]) + "."],
            )
        )  # fmt: skip
    if top:
        labels = _labels(top)
        blocks += [
            Chart(label=f"Where the {what} of the best plans goes", x_title=f"{what}, s", y_title="", sideways=True,
                  series=_parts(top, labels, "parts", _TIMES, format_s)),
            Chart(label="Memory of a device of the best plans", x_title="memory of a device, bytes", y_title="", sideways=True,
                  series=_parts(top, labels, "memory", _MEMORIES, format_bytes)),
        ]  # fmt: skip
    order = sorted(
        range(len(candidates)),
        key=lambda i: (i != winner, list(document["top"]).index(i) if i in document["top"] else _APART),
    )
    rows = [_plan_row(candidates[i], i == winner) for i in order]
    notes = [
        f"{document['plans']['listed']} plans were built, {document['plans']['fitting']} fit. Cost is {document['cost_is']}."
    ]
    blocks.append(table("Plans", rows, filter_by="fits" if len({r["fits"] for r in rows}) > 1 else "", notes=notes))
    if document.get("sensitivity"):
        columns = ("ceiling", "ratio", "stays", "time_s", "regret_ratio")
        blocks.append(table("Does the choice hold if a ceiling is another", document["sensitivity"], columns))
    if document.get("refused"):
        blocks.append(table("Not built", document["refused"]))
    known = {
        k: document["efficiency"].get(k) for k in ("name", "memory_ratio", "link_ratio", "network_ratio", "sources")
    }
    said = [("overlap", str(document["overlap"]["means"])), *((f"achieved: {k}", v) for k, v in facts(known).rows)]
    job = [(k, v) for k, v in facts(document["job"]).rows if v not in ("", "none")]
    blocks.append(Facts(rows=[*job, *said]))
    environment = document["environment"]
    small = f"{name}: {environment['model']} on {environment['machine']}"
    return Section(key=key, title="Sharding", small=small, blocks=[*blocks, prose(document)])


def headline_of_shard(document: Mapping[str, Any]) -> str:
    """Return the best plan in one sentence."""
    winner = _winner(document)
    listed = f"{document['plans']['listed']:,}"
    if winner is None:
        return f"None of {listed} plans fits."
    best = document["candidates"][winner]
    told = f"Best of {listed} plans: {best['layout']} on {value_text('devices', best['devices'])} devices, {_time_of(document)} {format_s(best['time_s'])}"
    tie = document.get("tie") or {}
    if document["verdict"] == "tie" and tie:
        return f"{told}; {tie['plans']} plans are within {format_ratio(tie['ratio'])} of it: a tie."
    return f"{told}."


def remat(document: Mapping[str, Any], *, key: str, name: str) -> Section:
    """Return what to keep: the front of time over memory, what the time and the memory of each policy are made of."""
    candidates = list(document["candidates"])
    best = document["best"] if isinstance(document["best"], int) else None
    budget = number(document.get("budget_bytes"))
    blocks: list[Any] = []
    front = _front(candidates, set(document["pareto"]), best, _policy_text)
    if front:
        blocks.append(
            Chart(
                label="Time of a step over memory of a device", x_title="memory of a device, bytes", y_title="step, s", series=front,
                uprights=[(budget, f"may be used: {format_bytes(budget)}")] if budget else [],
            )
        )  # fmt: skip
    if candidates:
        fixed = number(document["step"].get("fixed_bytes"))
        labels = [f"#{i + 1}{' (best)' if i == best else ''}" for i in range(len(candidates))]
        kept = {"kept_bytes": ("activations kept", "memory"), "working_bytes": ("in work", "latency"),
                "host_bytes": ("on the host instead", "host")}  # fmt: skip
        base = [] if fixed is None else [
            Series(name="weights, gradients, optimizer", colour="compute", mode="bars", x=labels, y=[fixed] * len(labels),
                   text=[f"{label}: {format_bytes(fixed)}" for label in labels])
        ]  # fmt: skip
        flat = [{"memory": c} for c in candidates]
        blocks.append(
            Chart(label="Memory of a device and of its host under each policy", x_title="memory, bytes", y_title="", sideways=True,
                  series=[*base, *_parts(flat, labels, "memory", kept, format_bytes)])
        )  # fmt: skip
        blocks.append(table("Policies", [_policy_row(c, i, best) for i, c in enumerate(candidates)]))
    made = [
        {"name": m["name"], "meaning": m["is"], "layers": a["layers"], **m}
        for a in document["activations"]
        for m in a["made"]
    ]
    columns = ("name", "meaning", "layers", "bytes", "recompute_s", "recompute_messages_s", "needed")
    blocks.append(table("Activations of a layer and micro-batch", made, columns))
    blocks.append(
        Facts(
            rows=[
                *facts(document["step"]).rows,
                ("link to the host", _link(document)),
                ("copies", str(document["overlap"])),
            ]
        )
    )
    environment = document["environment"]
    small = f"{name}: {environment['model']} on {environment['machine']}"
    return Section(key=key, title="What to keep and to recompute", small=small, blocks=[*blocks, prose(document)])


def headline_of_remat(document: Mapping[str, Any]) -> str:
    """Return the best policy in one sentence."""
    best = document["best"]
    budget = number(document.get("budget_bytes"))
    room = f" in {format_bytes(budget)}" if budget else ""
    if not isinstance(best, int):
        return f"No policy fits{room}."
    c = document["candidates"][best]
    return f"{_policy_text(c)}: a step of {format_s(c['time_s'])} with {format_bytes(c['memory_bytes'])}{room}."


def _winner(document: Mapping[str, Any]) -> int | None:
    best = document.get("best")
    return best["candidate"] if isinstance(best, Mapping) and isinstance(best.get("candidate"), int) else None


def _time_of(document: Mapping[str, Any]) -> str:
    return "time of a step" if document["job"]["phase"] == "train" else "time per output token"


def _measure(field: str, time: str) -> str:
    return {"time_s": time, "memory_bytes": "memory", "cost": "cost", "ttft_s": "time to first token"}.get(field, field)


def _front(candidates: Sequence[Mapping[str, Any]], front: set[int], winner: int | None, said: Any) -> list[Series]:
    """Return time over memory of the plans on the front, of the others and of the best one."""
    drawn = [
        (i, c)
        for i, c in enumerate(candidates)
        if number(c.get("memory_bytes")) and number(c.get("time_s")) is not None
    ]
    out = []
    for label, colour, kept in (
        ("others", "undetermined", [c for i, c in drawn if i not in front and i != winner]),
        ("on the front", "compute", [c for i, c in drawn if i in front and i != winner]),
        ("best", "latency", [c for i, c in drawn if i == winner]),
    ):
        ordered = sorted(kept, key=lambda c: c["memory_bytes"])
        if ordered:
            out.append(
                Series(
                    name=label, colour=colour, mode="markers", x=[c["memory_bytes"] for c in ordered], y=[c["time_s"] for c in ordered],
                    text=[f"{said(c)}: {format_s(c['time_s'])}, {format_bytes(c['memory_bytes'])}" for c in ordered],
                )
            )  # fmt: skip
    return out


def _parts(
    rows: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    field: str,
    names: Mapping[str, tuple[str, str]],
    write: Any,
) -> list[Series]:
    """Return bars of what figures are made of; parts that nothing has are left out, ones of no name here keep their key."""
    every = (
        dict.fromkeys(k for k in names)
        if field == "memory" and "kept_bytes" in names
        else dict.fromkeys(k for r in rows for k in r[field])
    )
    out = []
    for part in every:
        values = [number(r[field].get(part)) or 0.0 for r in rows]
        if any(values):
            title, colour = names.get(part, (part.rpartition("_")[0].replace("_", " "), ""))
            texts = [f"{label}: {title} {write(v)}" for label, v in zip(labels, values, strict=True)]
            out.append(Series(name=title, colour=colour, mode="bars", x=labels, y=values, text=texts))
    return out


def _labels(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the layouts, with what tells plans of the same layout apart."""
    layouts = [str(p["layout"]) for p in plans]
    return [
        layout if layouts.count(layout) == 1 else f"{i + 1}. {_plan_text(p)}"
        for i, (layout, p) in enumerate(zip(layouts, plans, strict=True))
    ]


def _plan_text(c: Mapping[str, Any]) -> str:
    words = {"micro_batch": "micro-batch", "zero": "zero", "recompute": "recompute", "sequences": "sequences"}
    rest = [f"{word} {c[k]}" for k, word in words.items() if c.get(k) is not None]
    return ", ".join([str(c["layout"]), *rest])


def _plan_row(c: Mapping[str, Any], won: bool) -> dict[str, Any]:
    split = {k: c.get(k) for k in _SPLIT}
    return {
        **split, "layout": f"{c['layout']}{' (best)' if won else ''}", "devices": c["devices"], "fits": c["fits"], "time_s": c["time_s"],
        "ttft_s": c["ttft_s"], "tokens_per_s": c["tokens_per_s"], "mfu_ratio": c["mfu_ratio"], "cost_usd": c["cost"],
        "memory_bytes": c["memory_bytes"], "messages_s": c["messages_s"], "why_not": c["why_not"],
    }  # fmt: skip


def _policy_text(c: Mapping[str, Any]) -> str:
    """Return a policy in words: what is made again and what goes to the host."""
    told = []
    for p in c["policies"]:
        again = f"recompute {', '.join(p['recompute'])}" if p["recompute"] else "recompute nothing"
        away = [*p["offload"], *(["the layer's input"] if p["layer_input"] == "offload" else [])]
        where = f" in {value_text('layers', p['layers'])} layers" if len(c["policies"]) > 1 else ""
        told.append(again + (f", offload {', '.join(away)}" if away else "") + where)
    text = "; ".join(told)
    return text[:1].upper() + text[1:]


def _policy_row(c: Mapping[str, Any], index: int, best: int | None) -> dict[str, Any]:
    return {
        "policy": f"#{index + 1}{' (best)' if index == best else ''}", "what": _policy_text(c), "fits": c["fits"],
        "time_s": c["time_s"], "memory_bytes": c["memory_bytes"], "host_bytes": c["host_bytes"], "recompute_s": c["recompute_s"],
        "copy_s": c["copy_s"], "waiting_s": c["waiting_s"], "tokens_per_s": c["tokens_per_s"], "why_not": c["why_not"],
    }  # fmt: skip


def _link(document: Mapping[str, Any]) -> str:
    rate = document["host_link_bytes_per_s"]
    known = value_text("bytes_per_s", rate) if number(rate) is not None else reason_of(rate) or "none"
    return f"{known}, {document['host_link_is']}"
