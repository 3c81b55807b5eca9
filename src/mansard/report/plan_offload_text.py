"""A `plan offload` document for reading in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.report.plan_text import known, model_title, notes_text, rate, shown, wrapped


def offload_text(document: Mapping[str, Any]) -> str:
    """Return the text of a `plan offload` document in plain JSON types."""
    lines: list[str] = []
    if document["bank"]:
        lines += _bank(document)
        lines += ["", *_table(document)]
        lines += ["", *_cpu(document)]
    if document["link"]:
        lines += [*([""] if lines else []), *_link(document["link"])]
    if document["replay"]:
        r = document["replay"]
        lines += wrapped(
            f"recorded: {r['requests']:,} requests of {r['steps']:,} steps in {r['layers']} layer(s), "
            f"{r['first_requests']:,} of them the first for their expert"
        )
    return "\n".join([*lines, *notes_text(document["notes"], "to know")])


def _bank(document: Mapping[str, Any]) -> list[str]:
    b, host, rest = document["bank"], document["host"], document["rest"]
    name = model_title(document["environment"]["model"] or "units")
    layers = f" in {b['layers']} layers" if b["unit"] == "expert" else ""
    lines = wrapped(
        f"{name}: {b['items']} {b['unit']}s{layers}, {b['per_token']} per token, {format_bytes(b['unit_bytes'])} each, "
        f"{format_bytes(b['total_bytes'])} in all; routing {document['routing']}, batch {document['batch']}",
        "",
    )
    lines += wrapped(f"link {format_bytes_per_s(host['link_bytes_per_s'])} ({host['link_bytes_per_s_is']})")
    if known(rest["resident_bytes"]):
        lines += wrapped(
            f"beside them the device holds {format_bytes(rest['resident_bytes'])} of "
            f"{shown(rest['budget_bytes'], format_bytes)}; a step without a miss takes at least "
            f"{shown(rest['step_s'], format_s)}"
        )
    return lines


def _table(document: Mapping[str, Any]) -> list[str]:
    simulated = any(known(c["simulated_hit_ratio"]) for c in document["candidates"])
    last = "  drawn" if simulated else ""
    lines = [
        f"  {'cache':<7}{'kept':>6}{'device':>10}{'hits':>8}{'misses':>9}{'fetched':>10}{'step':>10}{'waiting':>10}{last}"
    ]
    for i, c in enumerate(document["candidates"]):
        mark = "*" if i == document["best"] else "x" if c["fits"] is False else " "
        drawn = f"{format_ratio(c['simulated_hit_ratio']):>7}" if simulated and known(c["simulated_hit_ratio"]) else ""
        lines.append(
            f"{mark} {c['policy']:<7}{c['cached_units']:>6}{shown(c['memory_bytes'], format_bytes):>10}"
            f"{format_ratio(c['hit_ratio']):>8}{rate(c['misses_per_step']):>9}{format_bytes(c['miss_bytes_per_step']):>10}"
            f"{format_s(c['time_s']):>10}{shown(c['serial_s'], format_s):>10}{drawn}"
        )
    lines.append("  step: fetching hides behind the rest; waiting: each miss waits")
    if any(c["fits"] is False for c in document["candidates"]):
        lines.append("  x: more than the device may hold")
    if document["best"] is not None:
        c = document["candidates"][document["best"]]
        low, high = c["tokens_per_s_serial"], c["tokens_per_s_at_most"]
        if c["misses_per_step"] == 0 and c["fits"] is True:
            lines += wrapped(f"every {document['bank']['unit']} fits the device: nothing needs to be offloaded")
        lines += wrapped(
            f"*: {c['policy']}, {c['cached_units']} kept: {shown(low, rate)} token/s where each miss waits, at most "
            f"{shown(high, rate)}; USD per million tokens: {shown(c['cost'], rate)}"
        )
    return lines


def _cpu(document: Mapping[str, Any]) -> list[str]:
    cpu = document["cpu"]
    head = f"one miss, {cpu['tokens']:.3g} token(s): fetched in {format_s(cpu['transfer_s'])}"
    if not known(cpu["cpu_s"]):
        return wrapped(f"{head}; computed on the host: unknown, {cpu['cpu_s']['unknown']}")
    if not cpu["cpu_is_faster"] and cpu["tokens_at_most"] == 0:
        return wrapped(f"{head}; the host needs {format_s(cpu['cpu_s'])} to read it alone: fetch")
    verdict = "compute on the host" if cpu["cpu_is_faster"] else "fetch"
    upto = f"; the host is quicker below {rate(cpu['tokens_at_most'])} tokens" if known(cpu["tokens_at_most"]) else ""
    return wrapped(f"{head}, computed on the host in {format_s(cpu['cpu_s'])}: {verdict}{upto}")


def _link(link: Mapping[str, Any]) -> list[str]:
    seen = (
        f"link: {format_bytes_per_s(link['observed_bytes_per_s'])} of {format_bytes_per_s(link['limit_bytes_per_s'])} "
        f"({format_ratio(link['share_ratio'])}) with {link['in_flight_bytes']:,.0f} B in flight, so each byte is under way "
    )
    if link["full"]:
        return wrapped(
            seen + f"at most {format_s(link['latency_s'])}; the link is full, more in flight changes nothing"
        )
    lines = wrapped(
        seen
        + f"{format_s(link['latency_s'])}; {link['needed_bytes']:,.0f} B fill it, {link['more_ratio']:.2g} times as many"
    )
    for row in link["with_more"]:
        blocks = f", {row['blocks']} blocks" if row["blocks"] is not None else ""
        lines.append(
            f"    {row['factor']:g}x: {row['in_flight_bytes']:>12,.0f} B{blocks}: {format_bytes_per_s(row['bytes_per_s'])}"
        )
    if link["blocks_needed"] is not None:
        lines.append(f"  {link['blocks']} blocks had them: {link['blocks_needed']} fill the link")
    return lines
