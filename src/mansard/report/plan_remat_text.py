"""A `plan remat` document for reading in 80 columns; the code of the policy as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_s
from mansard.report.plan_text import known, notes_text, shown, wrapped
from mansard.report.text import clean

_TITLES = {"jax": "JAX", "torch": "PyTorch"}


def remat_text(document: Mapping[str, Any], *, rows: int = 12) -> str:
    """Return the text of a `plan remat` document in plain JSON types."""
    lines = _head(document)
    lines += ["", *_table(document, rows)]
    lines += _choice(document)
    lines += notes_text(document["notes"], "to know")
    return "\n".join([*lines, *_code(document)])


def _head(document: Mapping[str, Any]) -> list[str]:
    env, step = document["environment"], document["step"]
    micro = "" if step["micro_batches"] == 1 else f" in {step['micro_batches']} micro-batches"
    lines = wrapped(
        f"{clean(env['model'])} on {step['devices']} x {clean(env['machine'])}: a step of {step['tokens']:,.0f} tokens"
        f"{micro}, {step['layers']:g} layers",
        "",
    )
    made = max(sum(n["bytes"] for n in kind["made"] if n["needed"]) for kind in document["activations"])
    lines += wrapped(
        f"weights, gradients, optimizer state, tables and logits take {format_bytes(step['fixed_bytes'])} of "
        f"{shown(document['budget_bytes'], format_bytes)}; a layer keeps {format_bytes(step['layer_input_bytes'])} of "
        f"input and up to {format_bytes(made)} for its gradients"
    )
    link = document["host_link_bytes_per_s"]
    if known(link):
        how = "copies hide behind the pass" if document["overlap"] == "full" else "copies are waited for"
        lines += wrapped(f"host link {format_bytes_per_s(link)} each way ({document['host_link_is']}); {how}")
    else:
        lines += wrapped(f"nothing is offloaded: {link['unknown']}")
    return lines


def _table(document: Mapping[str, Any], rows: int) -> list[str]:
    plans = document["candidates"]
    lines = [f"  {'step':>9}{'again':>10}{'waits':>10}{'memory':>11}{'kept':>11}{'on host':>11}  fits"]
    chosen = document["best"]
    for i in _thinned(len(plans), rows, chosen):
        p = plans[i]
        fits = "?" if not isinstance(p["fits"], bool) else "yes" if p["fits"] else "no"
        lines.append(
            f"{'*' if i == chosen else ' '} {format_s(p['time_s']):>9}{_time(p['recompute_s']):>10}"
            f"{_time(p['waiting_s']):>10}{format_bytes(p['memory_bytes']):>11}{format_bytes(p['kept_bytes']):>11}"
            f"{_bytes(p['host_bytes']):>11}  {fits}"
        )
    if len(plans) > rows:
        lines.append(f"  {len(plans) - rows} more between them (all with --json)")
    lines.append("  again: kernels that run twice; waits: copies that do not hide")
    return lines


def _thinned(count: int, rows: int, chosen: int | None) -> Sequence[int]:
    """Rows to show: evenly spread over the front, its ends and the chosen one among them."""
    if count <= rows:
        return range(count)
    picked = {round(k * (count - 1) / (rows - 1)) for k in range(rows)}
    if chosen is not None and chosen not in picked:
        picked.remove(min((p for p in picked if 0 < p < count - 1), key=lambda p: abs(p - chosen)))
        picked.add(chosen)
    return sorted(picked)


def _time(value: float) -> str:
    return "-" if value <= 0 else format_s(value)


def _bytes(value: float) -> str:
    return "-" if value <= 0 else format_bytes(value)


def _choice(document: Mapping[str, Any]) -> list[str]:
    plans, best = document["candidates"], document["best"]
    if best is None:
        return ["", *wrapped(f"no policy fits: {plans[-1]['why_not']}, with as little kept as can be")]
    lines = [""]
    fast = plans[0]
    chosen = plans[best]
    said = f"*: {format_s(chosen['time_s'])} in {format_bytes(chosen['memory_bytes'])}"
    if best:
        more = chosen["time_s"] / fast["time_s"] - 1.0
        need = format_bytes(fast["memory_bytes"])
        said += f"; the fastest needs {need}, this one takes {100.0 * more:.2g} % longer"
    lines += wrapped(said)
    if not any(k["recompute"] or k["offload"] or k["layer_input"] == "offload" for k in chosen["policies"]):
        return [*lines, *wrapped("everything a gradient needs fits, so no policy is needed")]
    for kind in chosen["policies"]:
        which = f"{kind['layers']:g} layers: " if len(chosen["policies"]) > 1 else ""
        moved = [*(["layer_input"] if kind["layer_input"] == "offload" else []), *kind["offload"]]
        parts = [("keep", kind["keep"]), ("offload", moved), ("recompute", kind["recompute"])]
        said = "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)
        lines += wrapped(f"{which}{said}")
    return [*lines, "", *_where(document, chosen)]


def _where(document: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """What the names that stand in the code mean."""
    means = {n["name"]: n["is"] for kind in document["activations"] for n in kind["made"]}
    means["layer_input"] = "what a layer is called with"
    used: list[str] = []
    for kind in chosen["policies"]:
        used += [*(["layer_input"] if kind["layer_input"] == "offload" else []), *kind["keep"], *kind["offload"]]
    return [row for name in dict.fromkeys(used) for row in wrapped(f"{name}: {means[name]}")]


def _code(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    policies = document["policy"] or []
    for policy in policies:
        which = f", {policy['layers']:g} of the layers" if len(policies) > 1 else ""
        for framework, code in policy["code"].items():
            lines += ["", f"  {_TITLES[framework]}{which}:", "", *code.splitlines()]
    return lines
