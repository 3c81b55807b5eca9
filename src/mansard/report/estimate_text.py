"""An estimate for reading: totals first, then kernels, memory and what was taken for granted."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_flop, format_ratio, format_s
from mansard.report.plan_text import WIDTH, known, wrapped
from mansard.report.text import shorten


def _or_unknown(value: Any, style: Any) -> str:
    return str(style(value)) if known(value) else "unknown"


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
        *wrapped(f"{model['name']}: {document['phase']}{where}{devices}{f' ({split})' if split else ''}", ""),
        *wrapped(
            f"parameters {model['params']:,}, active {model['active_params']:,}, "
            f"matrix and active {model['matmul_params_active']:,}"
        ),
        *wrapped(
            f"activations {types['activations']}, products {types['products_with_quantised_weights']}, cache {types['cache']}"
        ),
    ]


def _total(label: str, value: str, remark: str = "") -> list[str]:
    """One total; a remark that does not fit beside it goes on below itself."""
    lead = f"  {label:<12}{value:>14}   "
    first, *rest = textwrap.wrap(remark, WIDTH - len(lead), break_on_hyphens=False) or [""]
    return [(lead + first).rstrip(), *(" " * len(lead) + line for line in rest)]


def _totals(document: Mapping[str, Any]) -> list[str]:
    totals, once = document["totals"], document["weights_once"]
    full = totals["flop_full_attention"]
    lines = [
        "",
        *_total(
            "FLOP", format_flop(totals["flop"]), f"attention {document['convention']}; full square {format_flop(full)}"
        ),
    ]
    if totals["executed_flop"] > totals["flop"] * 1.0005:
        lines += _total("executed", format_flop(totals["executed_flop"]), "with what is computed more than once")
    lines += _total("memory", format_bytes(totals["bytes"]), "weights, cache, activations that leave the chip")
    time_s = totals["time_bound_s"]
    if not known(time_s):
        reason = time_s["unknown"] if isinstance(time_s, Mapping) else "unknown"
        return [*lines, *wrapped(f"time        unknown: {reason} (--on NAME)")]
    rate = totals["tokens_per_s"]
    speed = f"   at most {_number(rate)} token/s" if known(rate) else ""
    bound = totals["bound"] if totals["bound"] == "undetermined" else f"{totals['bound']}-bound"
    lines += _total("at least", format_s(time_s), f"{bound}{speed}")
    if document["phase"] != "train" and isinstance(once, Mapping) and known(once.get("time_s")):
        lines += _total(
            "weights once",
            format_s(once["time_s"]),
            f"{format_bytes(once['bytes'])} of active parameters ({format_bytes(once['bytes_that_multiply'])} multiply); "
            f"all weights {format_bytes(once['all_weights_bytes'])}, {format_s(once['all_weights_time_s'])}; "
            "the bound above leaves out the token table, and adds cache, activations, messages, compute",
        )
    prediction = document["prediction"]
    if known(prediction["expected_s"]):
        lines += _total(
            "expected",
            format_s(prediction["expected_s"]),
            f"up to {format_s(prediction['high_s'])}: {prediction['basis']}",
        )
    else:
        lines += _total("expected", "unknown", prediction["expected_s"]["unknown"])
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _kernels(kernels: Sequence[Mapping[str, Any]], most: int = 14) -> list[str]:
    timed = all(known(k["time_bound_s"]) for k in kernels)
    key = "time_bound_s" if timed else "flop"
    total = sum(k[key] for k in kernels if known(k[key])) or 1.0
    ranked = sorted(kernels, key=lambda k: -k[key] if known(k[key]) else 0.0)
    body = [("kernel", "", "count", "FLOP", "bytes", "time", "share", "bound")]
    for k in ranked[:most]:
        share = format_ratio(k[key] / total) if known(k[key]) else ""
        time_s = format_s(k["time_bound_s"]) if known(k["time_bound_s"]) else "unknown"
        suffix = "" if k["pass"] == "forward" else f" ({k['pass']})"
        moved = format_bytes(k["bytes"] or k["sent_bytes"])
        body.append((k["name"], suffix, f"{k['count']:g}", format_flop(k["flop"]), moved, time_s, share, k["bound"]))
    rest = ranked[most:]
    if rest:
        share = format_ratio(sum(k[key] for k in rest if known(k[key])) / total)
        body.append((f"{len(rest)} more", "", "", "", "", "", share, "(--json)"))
    return ["", *_fitted(body)]


def _fitted(body: Sequence[tuple[str, ...]]) -> list[str]:
    """The table of kernels within the width; names give way, never their pass and never a figure."""
    widths = [max(len(row[i]) for row in body) for i in range(2, 8)]
    room = WIDTH - 2 - sum(widths) - 2 * len(widths)
    names = [shorten(row[0], max(8, room - len(row[1]))) + row[1] for row in body]
    wide = max(map(len, names))
    return [
        "  ".join(["  " + name.ljust(wide), *(c.rjust(w) for c, w in zip(row[2:7], widths, strict=False)), row[7]])
        for name, row in zip(names, body, strict=True)
    ]


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
    held = ", ".join(p for p in parts if p)
    lines = ["", *wrapped(f"one device holds {format_bytes(memory['total_bytes'])}: {held}")]
    if memory["kv_cache_bytes_all_kept"] > memory["kv_cache_bytes"]:
        more = format_bytes(memory["kv_cache_bytes_all_kept"])
        lines += wrapped(
            f"windowed layers keep their window; an engine that keeps every token there holds a cache of {more}"
        )
    if isinstance(memory["fits"], bool):
        verdict = "fits in" if memory["fits"] else "does not fit in"
        more = "" if memory["fits"] else f"; at least {memory['devices_at_least']} devices"
        room = memory.get("sequences_that_fit")
        count = "" if room is None else f"; {room:,} sequences of this length would fit"
        lines += wrapped(f"{verdict} {format_bytes(memory['budget_bytes'])}{more}{count}")
    return lines


def _views(views: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "six_nd" in views:
        v = views["six_nd"]
        lines += wrapped(f"6ND: {format_flop(v['flop'])}, {v['error_ratio']:+.1%} of the count above; {v['why']}")
    if "measured" in views:
        v = views["measured"]
        lines += wrapped(
            f"measured {format_s(v['time_s'])}, {_number(v['tokens_per_s'])} token/s: MFU {_ratio(v['mfu_ratio'])}, "
            f"HFU {_ratio(v['hfu_ratio'])}, share of the bound {_ratio(v['share_of_bound'])}"
        )
    if "reported" in views:
        v = views["reported"]
        name = v["convention"]
        said = f"unknown: {name['unknown']}" if isinstance(name, Mapping) else name
        lines += wrapped(f"reported {format_flop(v['flop_per_token'])} per token: convention {said}")
        for n in v["nearest"][:3]:
            lines += wrapped(f"{n['difference_ratio']:+7.2%} {n['convention']}: {n['means']}", "    ")
    return ["", *lines] if lines else []


def _ratio(value: Any) -> str:
    if known(value):
        return f"{value:.1%}"
    if isinstance(value, Mapping) and "implausible" in value:
        return f"implausible ({value['implausible']:.2f}; suspects: {', '.join(value['suspects'][:3])})"
    return f"unknown ({value['unknown']})" if isinstance(value, Mapping) else "unknown"


def _closing(document: Mapping[str, Any]) -> list[str]:
    told = [*document["assumed"]]
    told += [f"{d['key']} = {d['value']}: default of the class ({d['source']})" for d in document["defaults"]]
    told += [f"not bounded: {u['unknown']}" for u in document["receipt"].get("without_ceiling", [])]
    return ["", "  taken for granted:", *(line for text in told for line in wrapped(f"- {text}"))] if told else []


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
        *wrapped(
            f"{model['name']}: {model['params']:,} parameters, {model['active_params']:,} of them active per token", ""
        ),
        *wrapped(
            f"{model['matmul_params_active']:,} matrix parameters multiply per token: "
            f"{format_flop(2.0 * model['matmul_params_active'])} forward, attention apart"
        ),
    ]
    lines += [f"    {name:<28}{count:>22,}" for name, count in model["by_block"].items()]
    return "\n".join([*lines, *wrapped(document["next"])])
