"""Plans for reading in 80 columns: what fits, how fast, what it costs, and what moves when a ceiling does."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from mansard.core.units import format_bytes, format_s
from mansard.report.text import clean, shorten

WIDTH = 80


def known(value: Any) -> bool:
    """Return whether a value of a document is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rate(value: float) -> str:
    """Return a rate or a price with its digits grouped from a thousand on, else with three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def shown(value: Any, style: Callable[[Any], str]) -> str:
    """Return a number of a document for reading, `?` where it is not known."""
    return style(value) if known(value) else "?"


def _count(value: float) -> str:
    if value >= 1e7:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.3g}M" if value < 1e9 else f"{value:.2e}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Return foreign text in lines of at most 80 characters."""
    return textwrap.wrap(
        clean(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    ) or [indent.rstrip()]


def model_title(source: str) -> str:
    """Return a short name of a model that was named by its file.

    >>> model_title("llama-3.1-8b"), model_title("/a/qwen3/config.json"), model_title("x/gpt2_config.json")
    ('llama-3.1-8b', 'qwen3', 'gpt2')
    """
    path = PurePath(source)
    if path.suffix != ".json":
        return clean(path.name)
    name = path.stem.removesuffix("config").rstrip("_")
    return clean(name or path.parent.name or path.stem)


def notes_text(lines: Sequence[str], title: str) -> list[str]:
    """Return notes as a list under a title, each once."""
    unique = list(dict.fromkeys(lines))
    return ["", f"  {title}:", *(row for text in unique for row in wrapped(f"- {text}"))] if unique else []


def size_text(document: Mapping[str, Any], *, rows: int = 24) -> str:
    """Return the text of a `plan size` document in plain JSON types."""
    out: list[str] = []
    best = document["best"] if isinstance(document["best"], list) else [document["best"]]
    winners = {b["candidate"] for b in best if b}
    for model in document["environment"]["models"]:
        found = [(i, c) for i, c in enumerate(document["candidates"]) if c["model"] == model]
        out += [*([""] if out else []), *_size_model(model, found, winners, document, rows)]
    if document["side_by_side"]:
        out += ["", *_side_by_side(document["side_by_side"])]
    candidates = document["candidates"]
    granted = [n for c in candidates for n in c["notes"]] if len(candidates) <= 4 else _shared(candidates)
    won = [c for i, c in enumerate(candidates) if i in winners]
    bases = [f"{key}: {c[key]['basis']}" for c in won for key in ("tpot", "step") if c[key]]
    meant = [f"time: {document['time_is']}; cost: {document['cost_is']}", f"division: {document['division_is']}"]
    out += notes_text([*meant, *bases, *granted], "to know")
    if left := document["left_out"]:
        out += notes_text([f"{item['device']}: {item['reason']}" for item in left], "not judged")
    return "\n".join(out)


def _shared(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    return [n for n in candidates[0]["notes"] if all(n in c["notes"] or not c["notes"] for c in candidates)]


def _size_model(
    model: str, found: list[tuple[int, Mapping[str, Any]]], winners: set[int], document: Mapping[str, Any], rows: int
) -> list[str]:
    train = document["job"]["phase"] == "train"
    one = found[0][1]["one_device_bytes"]
    last = "USD/run" if train else "USD/Mtok"
    # What can be used comes first, the fewest devices on top; what is left is counted, never dropped in silence.
    found = sorted(found, key=lambda item: _rank(item[1], document["best_by"]))
    lines = [f"{clean(model)}: {format_bytes(one)} on one device", ""]
    heads = ("step" if train else "TPOT", "TTFT")
    lines.append(f"  {'device':<16}{'n':>6} {'split':<11}{'each':>8}{heads[0]:>9}{heads[1]:>9}{'token/s':>9}{last:>9}")
    for index, c in found[:rows]:
        mark = "*" if index in winners else " "
        plan = c["plan"]
        split = "" if plan is None else " ".join(f"{k}{plan[k]}" for k in ("tp", "pp", "dp", "ep") if plan[k] > 1)
        first = c["step"] if train else c["tpot"]
        each = shown(c["memory_bytes"], format_bytes) if c["fits"] is True or known(c["devices"]) else "-"
        lines.append(
            f"{mark} {shorten(clean(c['device']), 15):<16}{shown(c['devices'], _count):>6} {split:<11}{each:>8}"
            f"{_low(first):>9}{_low(c['ttft']):>9}{shown(c['tokens_per_s'], _count):>9}{shown(c['cost'], _money):>9}"
        )
    unpriced = [
        c for _, c in found[:rows] if known(c["time_s"]) and not known(c["cost"]) and "usd_per_hour" not in c["price"]
    ]
    if unpriced:
        who = clean(unpriced[0]["device"])
        lines += wrapped(f"{last} ?: no price with a source is on record; --usd-per-hour {who}=USD gives one")
    if len(found) > rows:
        lines.append(f"  {len(found) - rows} more devices (all with --json)")
    reasons = [f"{c['device']}: {c['why_not']}" for _, c in found[:rows] if c["why_not"]]
    lines += _grouped(reasons)
    short = [(c["device"], c["one_device_short_bytes"]) for _, c in found[:rows] if known(c["one_device_short_bytes"])]
    if len(short) <= 4:
        lines += [f"  one {clean(d)} is {format_bytes(s)} short" for d, s in short if s > 0]
    for index, c in found:
        if index in winners:
            lines += _expected(c, train)
    return lines


def _rank(c: Mapping[str, Any], by: str) -> tuple[Any, ...]:
    keys = {"devices": ("devices", "time_s"), "time": ("time_s", "devices"), "cost": ("cost", "time_s")}[by]
    inf = float("inf")
    return (c["fits"] is not True, not known(c["time_s"]), *(c[k] if known(c[k]) else inf for k in keys))


def _grouped(reasons: Sequence[str]) -> list[str]:
    if not reasons:
        return []
    by_reason: dict[str, list[str]] = {}
    for text in reasons:
        device, _, why = text.partition(": ")
        by_reason.setdefault(why, []).append(device)
    lines = [""]
    for why, devices in by_reason.items():
        lines += wrapped(f"{', '.join(devices)}: {why}")
    return lines


def _low(r: Mapping[str, Any] | None) -> str:
    return "-" if r is None else shown(r["low_s"], format_s)


def _expected(c: Mapping[str, Any], train: bool) -> list[str]:
    lines = []
    for key in ("step",) if train else ("tpot", "ttft"):
        r = c[key]
        if r is None or not known(r["low_s"]):
            continue
        name = key.upper() if key != "step" else key
        said = f"{c['device']}: {name} at least {format_s(r['low_s'])}"
        if known(r["expected_s"]):
            said += f", expected {format_s(r['expected_s'])}, up to {format_s(r['high_s'])}"
        else:
            said += "; a bound alone, no comparable runs are on record"
        lines += wrapped(said)
    if known(c["cost_expected"]) and known(c["cost"]):
        lines += wrapped(
            f"{c['device']}: cost at least {_money(c['cost'])} USD, expected {_money(c['cost_expected'])} USD"
        )
    if isinstance(c["price"], Mapping) and "usd_per_hour" in c["price"]:
        p = c["price"]
        date = f", {p['date']}" if p["date"] else ""
        sure = "" if p["certainty"] == "given" else f", {p['certainty']}"
        where = "" if p["certainty"] == "given" else f" by {urlsplit(p['source']).netloc or p['source']}"
        lines += wrapped(f"{p['usd_per_hour']:g} USD per device and hour: {p['offer']}{date}{sure}{where}")
    one, every = c["one_device_weights_time_s"], c["all_weights_time_s"]
    if known(one) and known(every) and not train:
        lines += wrapped(
            f"one {c['device']} reading a token's weights: {format_s(one)}; {_count(c['devices'])} reading all weights: "
            f"{format_s(every)}"
        )
    return ["", *lines] if lines else []


def _side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["  side by side"]
    for r in rows[:8]:
        parts = [
            f"{shown(r['one_device_weights_ratio'], _factor)} the weights read by a token",
            f"{shown(r['time_ratio'], _factor)} the time",
            f"{shown(r['devices_ratio'], _factor)} the devices",
        ]
        lines += wrapped(f"{r['device']}: {r['model']} against {r['against']}: {', '.join(parts)}")
    if len(rows) > 8:
        lines.append(f"  {len(rows) - 8} more (all with --json)")
    return lines


def _factor(value: float) -> str:
    return f"1/{1 / value:.3g} of" if 0 < value < 0.95 else f"{value:.3g}x"
