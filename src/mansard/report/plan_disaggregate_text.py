"""A `plan disaggregate` document for reading in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.report.plan_text import known, notes_text, rate, shown, wrapped
from mansard.report.text import clean


def disaggregate_text(document: Mapping[str, Any]) -> str:
    """Return the text of a `plan disaggregate` document in plain JSON types."""
    env, job = document["environment"], document["job"]
    limits = [f"{n.upper()[:4]} within {format_s(job[n])}" for n in ("ttft_s", "tpot_s") if job[n] is not None]
    asked = f"prompts of {job['prompt']:,} tokens, answers of {job['output']:,}"
    lines = wrapped(
        f"{clean(env['model'])} on {clean(env['machine'])}: {asked}; {', '.join(limits) or 'no limits'}", ""
    )
    if document["rate_per_s"] is not None:
        lines += wrapped(f"{document['rate_per_s']:g} requests/s to serve")
    if document["devices"] is not None:
        lines += wrapped(f"{document['devices']} devices")
    lines += ["", *_table(document), *_verdict(document)]
    return "\n".join([*lines, *notes_text(document["notes"], "to know")])


def _table(document: Mapping[str, Any]) -> list[str]:
    rows = document["candidates"]
    if not rows:
        return []
    body = [("  split", "workers", "batch", "n", "TTFT", "TPOT", "req/s", "per dev", "$/Mtok")]
    for i, r in enumerate(rows):
        split = r["kind"] == "disaggregated"
        workers = f"{_plan(r['prefill']['plan'])} + {_plan(r['decode']['plan'])}" if split else _plan(r["plan"])
        batch = r["decode"]["batch"] if split else r["batch"]
        name = r["name"] if split else f"{r['name']} both"
        body.append((
            f"{'*' if i == document['best'] else ' '} {name}", workers, str(batch), f"{r['devices']}",
            shown(r["ttft_s"], format_s), format_s(r["tpot_s"]), rate(r["rate_per_s"]), rate(r["goodput_per_device"]),
            shown(r["cost"], rate),
        ))  # fmt: skip
    widths = [max(least, *(len(row[c]) for row in body)) for c, least in enumerate((10, 17, 5, 4, 8, 8, 6, 7, 6))]
    lines = [
        " ".join(cell.ljust(w) if c < 2 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in body
    ]
    lines.append("  workers: prefill + decode; both: engines that read and decode")
    return lines


def _plan(plan: Mapping[str, Any]) -> str:
    parts = [f"{k}{plan[k]}" for k in ("tp", "dp", "ep") if plan[k] > 1]
    return " ".join(parts) or "tp1"


def _verdict(document: Mapping[str, Any]) -> list[str]:
    rows = document["candidates"]
    lines = [""]
    gain = document["gain_ratio"]
    splits = [r for r in rows if r["kind"] == "disaggregated"]
    if known(gain):
        if document["pays"]:
            lines += wrapped(f"disaggregated: {gain:.3g} times the requests of each device under these limits")
        else:
            lines += wrapped(
                f"it does not pay: a split serves {gain:.3g} times the requests of each device that engines doing both do; "
                f"that is less than the {document['pays_from']:g} times that would be worth a second kind of worker"
            )
    elif splits:
        lines += wrapped(f"only a split meets these limits: {gain['unknown']}")
    elif rows:
        lines += wrapped(f"only engines that do both meet these limits: {gain['unknown']}")
    else:
        lines += _nothing(document)
    if splits:
        lines += _forced(splits[0], document)
    engine = [r for r in rows if r["kind"] == "aggregated"]
    if engine:
        chunk = engine[0]["chunk"]
        how = "decoding stops while a prompt is read" if chunk is None else f"{chunk:,} prompt tokens beside a step"
        lines += wrapped(f"engines that do both: {how}; no higher rate because of {engine[0]['limited_by']}")
    for kind, reasons in document["refused"].items():
        if reasons:
            said = ", ".join(f"{many} by {why}" for why, many in reasons.items())
            lines += wrapped(f"{kind} workers ruled out: {said}")
    return lines


def _nothing(document: Mapping[str, Any]) -> list[str]:
    job = document["job"]
    said = []
    if job["ttft_s"] is not None:
        said.append(f"one prompt alone takes {format_s(document['fastest_prompt_s'])} of {format_s(job['ttft_s'])}")
    if job["tpot_s"] is not None:
        said.append(
            f"one sequence alone decodes in {format_s(document['fastest_step_s'])} of {format_s(job['tpot_s'])}"
        )
    return wrapped(f"nothing meets these limits: {'; '.join(said) or 'no worker fits'}")


def _forced(row: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """What the limits and the link make of the best split."""
    p, d, kv = row["prefill"], row["decode"], row["kv"]
    limited = d["batch_limited_by"]
    why = f"the limit on {limited}" if limited == "TPOT" else limited
    lines = wrapped(
        f"{row['name']}: prefill workers are busy {format_ratio(min(1.0, p['busy_ratio']))} of the time, a prompt takes "
        f"{format_s(p['prompt_s'])}; decode batches of {d['batch']} ({d['batch_that_fits']} fit, {why} keeps them there); "
        f"{row['limited_by']} is the narrow side"
    )
    return lines + wrapped(
        f"cache of a prompt: {format_bytes(kv['bytes'])}, sent in {format_s(kv['transfer_s'])} at "
        f"{format_bytes_per_s(document['kv_link_bytes_per_s'])} a device ({document['kv_link_is']})"
    )
