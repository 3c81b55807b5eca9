"""An estimate for reading: totals first, then kernels, memory and what was taken for granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_flop, format_ratio, format_s


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _or_unknown(value: Any, style: Any) -> str:
    return str(style(value)) if _known(value) else "unknown"


def estimate_text(document: Mapping[str, Any]) -> str:
    """Return the text of an `estimate` document in plain JSON types."""
    lines = [*_head(document), *_totals(document), *_kernels(document["kernels"]), *_memory(document["memory"])]
    lines += _views(document["views"])
    lines += _closing(document)
    return "\n".join(lines)


def _head(document: Mapping[str, Any]) -> list[str]:
    model, plan, types = document["model"], document["plan"], document["types"]
    machine = document["environment"]["machine"]
    where = f" on {machine}" if machine else ""
    devices = f", {plan['devices']} devices" if plan["devices"] > 1 else ""
    split = ", ".join(f"{name} {plan[name]}" for name in ("tp", "pp", "dp", "ep", "cp") if plan[name] > 1)
    return [
        f"{model['name']}: {document['phase']}{where}{devices}{f' ({split})' if split else ''}",
        f"  parameters {model['params']:,}, active {model['active_params']:,}, matrix and active {model['matmul_params_active']:,}",
        f"  activations {types['activations']}, products {types['products_with_quantised_weights']}, cache {types['cache']}",
    ]


def _totals(document: Mapping[str, Any]) -> list[str]:
    totals, once = document["totals"], document["weights_once"]
    full = totals["flop_full_attention"]
    lines = [
        "",
        f"  FLOP        {format_flop(totals['flop']):>14}   attention {document['convention']}; full square {format_flop(full)}",
        f"  memory      {format_bytes(totals['bytes']):>14}   weights, cache, activations that leave the chip",
    ]
    if totals["executed_flop"] > totals["flop"] * 1.0005:
        lines.insert(
            2, f"  executed    {format_flop(totals['executed_flop']):>14}   with what is computed more than once"
        )
    time_s = totals["time_bound_s"]
    if not _known(time_s):
        reason = time_s["unknown"] if isinstance(time_s, Mapping) else "unknown"
        return [*lines, f"  time        unknown: {reason} (--on NAME)"]
    rate = totals["tokens_per_s"]
    speed = f"   at most {_number(rate)} token/s" if _known(rate) else ""
    lines.append(f"  at least    {format_s(time_s):>14}   {totals['bound']}-bound{speed}")
    if document["phase"] != "train" and isinstance(once, Mapping) and _known(once.get("time_s")):
        lines.append(
            f"  weights once{format_s(once['time_s']):>14}   {format_bytes(once['bytes'])} of active parameters "
            f"({format_bytes(once['bytes_that_multiply'])} multiply); all weights "
            f"{format_bytes(once['all_weights_bytes'])}, {format_s(once['all_weights_time_s'])}"
        )
        lines.append(
            "              the bound above leaves out the token table, and adds cache, activations, messages, compute"
        )
    prediction = document["prediction"]
    if _known(prediction["expected_s"]):
        lines.append(
            f"  expected    {format_s(prediction['expected_s']):>14}   up to {format_s(prediction['high_s'])}: {prediction['basis']}"
        )
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _kernels(kernels: Sequence[Mapping[str, Any]], most: int = 14) -> list[str]:
    timed = all(_known(k["time_bound_s"]) for k in kernels)
    key = "time_bound_s" if timed else "flop"
    total = sum(k[key] for k in kernels if _known(k[key])) or 1.0
    ranked = sorted(kernels, key=lambda k: -k[key] if _known(k[key]) else 0.0)
    lines = ["", f"  {'kernel':<34}{'count':>7}{'FLOP':>13}{'bytes':>11}{'time':>11}{'share':>7}  bound"]
    for k in ranked[:most]:
        name = k["name"] if k["pass"] == "forward" else f"{k['name']} ({k['pass']})"
        name = name if len(name) <= 33 else name[:32] + "~"
        share = format_ratio(k[key] / total) if _known(k[key]) else ""
        time_s = format_s(k["time_bound_s"]) if _known(k["time_bound_s"]) else "unknown"
        lines.append(
            f"  {name:<34}{k['count']:>7g}{format_flop(k['flop']):>13}{format_bytes(k['bytes'] or k['sent_bytes']):>11}"
            f"{time_s:>11}{share:>7}  {k['bound']}"
        )
    rest = ranked[most:]
    if rest:
        share = sum(k[key] for k in rest if _known(k[key])) / total
        lines.append(
            f"  {f'{len(rest)} more':<34}{'':>7}{'':>13}{'':>11}{'':>11}{format_ratio(share):>7}  (all with --json)"
        )
    return lines


def _memory(memory: Mapping[str, Any]) -> list[str]:
    parts = [
        f"weights {format_bytes(memory['weight_bytes'])}",
        f"cache {format_bytes(memory['kv_cache_bytes'])} ({format_bytes(memory['kv_bytes_per_token'])} a token)"
        if memory["kv_cache_bytes"]
        else "",
        f"activations {format_bytes(memory['activation_bytes'])}",
        f"gradients {format_bytes(memory['gradient_bytes'])}" if memory["gradient_bytes"] else "",
        f"optimizer {format_bytes(memory['optimizer_bytes'])}" if memory["optimizer_bytes"] else "",
    ]
    lines = ["", f"  one device holds {format_bytes(memory['total_bytes'])}: " + ", ".join(p for p in parts if p)]
    if isinstance(memory["fits"], bool):
        verdict = "fits in" if memory["fits"] else "does not fit in"
        more = "" if memory["fits"] else f"; at least {memory['devices_at_least']} devices"
        room = memory.get("sequences_that_fit")
        held = "" if room is None else f"; {room:,} sequences of this length would fit"
        lines.append(f"  {verdict} {format_bytes(memory['budget_bytes'])}{more}{held}")
    return lines


def _views(views: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "six_nd" in views:
        v = views["six_nd"]
        lines.append(f"  6ND: {format_flop(v['flop'])}, {v['error_ratio']:+.1%} of the count above; {v['why']}")
    if "measured" in views:
        v = views["measured"]
        lines.append(
            f"  measured {format_s(v['time_s'])}: MFU {_ratio(v['mfu_ratio'])}, HFU {_ratio(v['hfu_ratio'])}, "
            f"share of the bound {_ratio(v['share_of_bound'])}"
        )
    if "reported" in views:
        v = views["reported"]
        name = v["convention"]
        said = f"unknown: {name['unknown']}" if isinstance(name, Mapping) else name
        lines.append(f"  reported {format_flop(v['flop_per_token'])} per token: convention {said}")
        lines += [f"    {n['difference_ratio']:+7.2%} {n['convention']}: {n['means']}" for n in v["nearest"][:3]]
    return ["", *lines] if lines else []


def _ratio(value: Any) -> str:
    if _known(value):
        return f"{value:.1%}"
    if isinstance(value, Mapping) and "implausible" in value:
        return f"implausible ({value['implausible']:.2f}; suspects: {', '.join(value['suspects'][:3])})"
    return f"unknown ({value['unknown']})" if isinstance(value, Mapping) else "unknown"


def _closing(document: Mapping[str, Any]) -> list[str]:
    lines = ["", "  taken for granted:"]
    lines += [f"  - {text}" for text in document["assumed"]]
    lines += [f"  - {d['key']} = {d['value']}: default of the class ({d['source']})" for d in document["defaults"]]
    missing = document["receipt"].get("without_ceiling", [])
    lines += [f"  - not bounded: {u['unknown']}" for u in missing]
    return lines if len(lines) > 2 else []


def sweep_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of a sweep for reading; a point that failed says why."""
    heads = [*columns, "FLOP", "bytes", "time", "token/s", "memory", "bound"]
    body = []
    for row in rows:
        first = [str(row[c]) for c in columns]
        if "error" in row:
            body.append([*first, row["error"]["message"]])
            continue
        rate = row["tokens_per_s"]
        body.append(
            [
                *first,
                format_flop(row["flop"]),
                format_bytes(row["bytes"]),
                _or_unknown(row["time_bound_s"], format_s),
                _or_unknown(rate, _number),
                format_bytes(row["memory_bytes"]) + ("" if row["fits"] is not False else " (too much)"),
                row["bound"],
            ]
        )
    full = [heads, *(r for r in body if len(r) == len(heads))]
    widths = [max(len(r[i]) for r in full) for i in range(len(heads))]
    widths[: len(columns)] = [max([widths[i], *(len(r[i]) for r in body)]) for i in range(len(columns))]
    return "\n".join("  ".join(text.rjust(w) for text, w in zip(r, widths, strict=False)) for r in [heads, *body])


def model_text(document: Mapping[str, Any]) -> str:
    """Return the counts of a model for reading."""
    model = document["model"]
    lines = [
        f"{model['name']}: {model['params']:,} parameters, {model['active_params']:,} of them active per token",
        f"  {model['matmul_params_active']:,} matrix parameters multiply per token: "
        f"{format_flop(2.0 * model['matmul_params_active'])} forward, attention apart",
    ]
    lines += [f"    {name:<28}{count:>22,}" for name, count in model["by_block"].items()]
    return "\n".join([*lines, f"  {document['next']}"])
