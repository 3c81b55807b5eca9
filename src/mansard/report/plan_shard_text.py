"""A `plan shard` document for reading in 80 columns: the plan, its step part by part, its rivals, what it hangs on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.report.plan_text import known, notes_text, shown, wrapped
from mansard.report.text import clean

_PARTS = {
    "compute_s": "kernels", "recompute_s": "computed again", "tensor_s": "tensor messages", "context_s": "context messages",
    "expert_s": "expert messages", "pipeline_s": "between stages", "data_s": "data messages", "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
}  # fmt: skip
_HELD = {
    "weight_bytes": "weights", "gathered_bytes": "gathered", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer",
    "activation_bytes": "activations", "kv_cache_bytes": "cache",
}  # fmt: skip
_CEILINGS = {
    "compute": "peak FLOP/s", "memory": "memory bandwidth", "link": "link in the node", "network": "network",
    "capacity": "memory size",
}  # fmt: skip
_BAR = 28
_FRONT = 6
_NEAR = 2.0


def shard_text(document: Mapping[str, Any]) -> str:
    """Return the text of a `plan shard` document in plain JSON types."""
    job = document["job"]
    train = job["phase"] == "train"
    lines = [*_asked(document, job), *_counts(document)]
    best = document["best"]
    if "unknown" in best:
        refused = _refused(document) if document["plans"]["listed"] else []
        return "\n".join([*lines, "", *wrapped(f"no plan: {best['unknown']}"), *refused])
    plan = document["candidates"][best["candidate"]]
    lines += ["", *_winner(plan, train, job["objective"] == "cost"), "", *_parts(plan), "", *_rivals(document, train)]
    lines += ["", *_verdict(document), *_shifts(document), *_front(document, train), *_refused(document)]
    return "\n".join([*lines, *_to_know(document)])


def _asked(document: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    env = document["environment"]
    shapes = ", ".join(f"{int(n):,} ({s})" if s != n else f"{int(n):,}" for n, s in job["shapes"].items())
    what = (
        f"train, {job['batch']:,} sequences of {job['seq']:,} tokens a step"
        if job["phase"] == "train"
        else f"serve, prompts of {job['prompt']:,}, context {job['context']:,}"
    )
    return wrapped(f"{clean(env['model'])} on {shapes} {clean(env['machine'])}: {what}", "")


def _counts(document: Mapping[str, Any]) -> list[str]:
    plans = document["plans"]
    text = f"{plans['listed']:,} plans, {plans['fitting']:,} fit"
    if known(document["budget_bytes"]):
        text += f" into {format_bytes(document['budget_bytes'])} of a device"
    if plans["within_limits"] != plans["fitting"]:
        text += f", {plans['within_limits']:,} of them within the limits"
    return wrapped(text)


def _how(c: Mapping[str, Any], train: bool) -> str:
    """How a plan works, beside its ranks."""
    if not train:
        return f"{c['sequences']:,} sequences at once, {c['precision']}"
    parts = [f"micro-batch {c['micro_batch']:,} x {c['accumulation']:,}"]
    if c["chunks"] > 1:
        parts.append(f"{c['chunks']} chunks a stage")
    if c["dp"] * c["cp"] > 1:
        parts.append(f"zero {c['zero']}")
    parts.append({"none": "nothing recomputed"}.get(c["recompute"], f"recompute {c['recompute']}"))
    return ", ".join([*parts, c["precision"]])


def _winner(c: Mapping[str, Any], train: bool, by_cost: bool) -> list[str]:
    lines = wrapped(f"best: {c['layout']}; {_how(c, train)}")
    text = f"{'step' if train else 'token after'} {format_s(c['time_s'])}"
    if not train:
        text += f", first token after {format_s(c['ttft_s'])}"
    text += f", {c['tokens_per_s']:,.0f} token/s"
    if known(c["mfu_ratio"]):
        text += f", MFU {format_ratio(c['mfu_ratio'])}"
    if known(c["cost"]):
        text += f", {c['cost']:.3g} USD a million tokens"
    elif by_cost:
        text += (
            f", ? USD a million tokens: {c['cost']['unknown']}, so plans are ranked by device seconds (--usd-per-hour)"
        )
    lines += wrapped(text, "    ")
    held = ", ".join(f"{_HELD[k]} {format_bytes(v)}" for k, v in c["memory"].items() if v >= 0.0005 * c["memory_bytes"])
    return [*lines, *wrapped(f"{format_bytes(c['memory_bytes'])} a device: {held}", "    ")]


def _parts(c: Mapping[str, Any]) -> list[str]:
    total = c["time_s"]
    lines = []
    for key, value in c["parts"].items():
        if value < 0.0005 * total:
            continue
        bar = "█" * max(1, round(value / total * _BAR))
        lines.append(f"    {_PARTS[key]:<18}{format_s(value):>9}{format_ratio(value / total):>8}  {bar}")
    waited = sum(c["parts"].get(k, 0.0) for k in ("tensor_s", "context_s", "expert_s", "pipeline_s", "data_s"))
    hidden = max(0.0, c["messages_s"] - waited)
    if c["messages_s"] > 0.0:
        lines += wrapped(
            f"messages {format_s(c['messages_s'])}: {format_s(waited) if waited else '0 s'} waited for, "
            f"{format_s(hidden) if hidden > 1e-12 else '0 s'} hidden",
            "    ",
        )
    return lines


def _rivals(document: Mapping[str, Any], train: bool) -> list[str]:
    """The best plan of each of the best sets of ranks."""
    heads = ("step", "behind") if train else ("token", "behind")
    lines = [f"  {'best of other ranks':<26}{'how':<25}{heads[0]:>9}{heads[1]:>9}{'memory':>9}"]
    rows = [document["candidates"][i] for i in document["top"]]
    for c in rows:
        lines.append(
            f"  {_ranks(c, document):<26}{_short(c, train):<25}{format_s(c['time_s']):>9}"
            f"{_behind(c, rows[0], document):>9}{format_bytes(c['memory_bytes']):>9}"
        )
    return lines


def _ranks(c: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    several = len(document["job"]["shapes"]) > 1
    return (f"{c['devices']}: " if several else "") + str(c["layout"])


def _short(c: Mapping[str, Any], train: bool) -> str:
    if not train:
        return f"{c['sequences']} at once, {c['precision']}"
    out = f"{c['micro_batch']}x{c['accumulation']}"
    out += f" v{c['chunks']}" if c["chunks"] > 1 else ""
    out += f" z{c['zero']}" if c["dp"] * c["cp"] > 1 else ""
    return f"{out} {'' if c['recompute'] == 'none' else c['recompute'] + ' '}{c['precision']}"


def _value(c: Mapping[str, Any], document: Mapping[str, Any]) -> float:
    by = document["job"]["objective"]
    return float(c["time_s"] if by == "time" else (c["devices"] if by == "cost" else 1.0) / c["tokens_per_s"])


def _behind(c: Mapping[str, Any], best: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    ratio = _value(c, document) / _value(best, document) - 1.0
    return "-" if c is best else f"{ratio:.1%}" if ratio < 1.0 else f"{ratio + 1.0:.3g}x"


def _verdict(document: Mapping[str, Any]) -> list[str]:
    tie, runner = document["tie"], document["runner_up"]
    verdict = document["verdict"]
    if verdict == "only":
        return wrapped("No other ranks are possible.")
    margin = f"{runner['margin_ratio']:.1%}"
    if verdict == "tie":
        return wrapped(
            f"A tie: {tie['layouts']} sets of ranks lie within {format_ratio(tie['ratio'])} of each other; take the one that "
            "is easier to run, or measure both."
        )
    other = document["candidates"][runner["candidate"]]["layout"]
    if verdict == "depends":
        return wrapped(f"Ahead of {other} by {margin}, but an uncertain ceiling decides, see below.")
    return wrapped(f"Clear: ahead of {other} by {margin}, and no ceiling within its uncertainty changes that.")


def _shifts(document: Mapping[str, Any]) -> list[str]:
    if not document["sensitivity"]:
        return []
    x = format_ratio(document["uncertain_ratio"])
    by: dict[str, list[Mapping[str, Any]]] = {}
    for s in document["sensitivity"]:
        by.setdefault(s["ceiling"], []).append(s)
    lines = [f"  each ceiling {x} lower and higher:"]
    quiet = [c for c, pair in by.items() if all(s["stays"] for s in pair)]
    if quiet:
        lines += wrapped(f"stays the best, or tied: {', '.join(_CEILINGS[c] for c in quiet)}", "    ")
    for ceiling, pair in by.items():
        for s in pair:
            if not s["stays"]:
                lines += wrapped(f"{_CEILINGS[ceiling]} x {s['ratio']:g}: {_moved(s)}", "    ")
    return lines


def _moved(s: Mapping[str, Any]) -> str:
    if s["best"] is None:
        return "no plan is left"
    why = "it does not fit or breaks a limit" if s["regret_ratio"] is None else f"it is {s['regret_ratio']:.1%} behind"
    return f"{why}; {s['best']['layout']} in {format_s(s['best']['time_s'])}"


def _front(document: Mapping[str, Any], train: bool) -> list[str]:
    """A few of the plans that no other beats, the first and the last among them."""
    front = [document["candidates"][i] for i in document["pareto"]]
    if len(front) < 2:
        return []
    # Plans that take far longer to save a little memory are in the document.
    near = [c for c in front if c["time_s"] <= _NEAR * front[0]["time_s"]]
    step = max(1.0, (len(near) - 1) / (_FRONT - 1))
    chosen = [near[i] for i in sorted({min(len(near) - 1, round(k * step)) for k in range(_FRONT)})]
    lines = [
        "",
        f"  no plan beats these {'in time and memory' if train else 'in time, memory and cost'} ({len(front)} in all):",
    ]
    for c in chosen:
        cost = f"{shown(c['cost'], lambda v: f'{v:.3g} USD'):>10}" if known(c["cost"]) else ""
        lines.append(
            f"    {_ranks(c, document):<24}{_short(c, train):<25}{format_s(c['time_s']):>8}"
            f"{format_bytes(c['memory_bytes']):>9}{cost}"
        )
    return lines


def _refused(document: Mapping[str, Any]) -> list[str]:
    rows = document["refused"]
    if not rows:
        return []
    text = "; ".join(f"{clean(r['reason'])}" for r in rows[:3])
    more = f"; {len(rows) - 3} more reasons" if len(rows) > 3 else ""
    return ["", *wrapped(f"ruled out: {text}{more}")]


def _to_know(document: Mapping[str, Any]) -> list[str]:
    eff = document["efficiency"]
    if eff["name"] == "bound":
        reached = "every kernel and message at its ceiling: times are bounds, good for comparing plans"
    else:
        types = ", ".join(f"{k} {format_ratio(v)}" for k, v in eff["matmul"].items() if k != "*") or format_ratio(
            eff["matmul"]["*"]
        )
        reached = (
            f"{eff['name']} efficiency: products {types} of peak, memory {format_ratio(eff['memory_ratio'])}, links "
            f"{format_ratio(eff['link_ratio'])}" + (", less for short kernels" if eff["short_kernels"] else "")
        )
    first = next(iter(document["levels"].values()))
    rates, inside = [], 1
    for v in first:
        of = f" for {inside} devices" if inside > 1 else ""
        rates.append(f"{v['name']} {format_bytes_per_s(v['bytes_per_s'])}{of}")
        inside *= math.prod(v["lengths"])
    lines = [
        reached,
        _overlap(document),
        "one way: " + ", ".join(rates),
    ]
    if document["job"]["imbalance"] > 1.0:
        lines.append(f"the busiest expert rank has {document['job']['imbalance']:g} times the mean work")
    return notes_text([*lines, *_notes(document["notes"])], "to know")


def _overlap(document: Mapping[str, Any]) -> str:
    policy = document["overlap"]
    if document["job"]["phase"] == "serve" and policy["policy"] != "full":
        return "every message is waited for; no queue, scheduler or host time is counted"
    return f"{policy['policy']} overlap: {policy['means']}"


def _notes(notes: Sequence[str]) -> list[str]:
    return [*notes[:4], *([f"{len(notes) - 4} more notes with --json"] if len(notes) > 4 else [])]
