"""Metrics, fixed costs and money for the terminal: each number with its unit, and its definition beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.core.unknown import Implausible, Unknown
from mansard.diagnose.economics import Cost, Tradeoff
from mansard.diagnose.fixed_cost import HIDDEN, FixedCost
from mansard.diagnose.metrics import Metric

_NAME = 28
_VALUE = 14


def shown(value: float | Unknown | Implausible, unit: str) -> str:
    """Return a number with its unit; `?` where it is not known, `!` where it cannot be true.

    >>> shown(0.4, "1"), shown(1.5e12, "FLOP/s"), shown(Unknown("no peak"), "1"), shown(1234.5, "token/s")
    ('40 %', '1.50 TFLOP/s', '?', '1234 token/s')
    """
    if isinstance(value, Unknown):
        return "?"
    if isinstance(value, Implausible):
        return f"! {value.value:.3g}"
    if unit == "1":
        return format_ratio(value)
    if unit == "s":
        return format_s(value)
    if unit == "FLOP/s":
        return format_flop_per_s(value)
    if unit == "B/s":
        return format_bytes_per_s(value)
    return f"{value:.0f} {unit}" if value >= 1000.0 else f"{value:.3g} {unit}"


def metric_lines(metrics: Sequence[Metric], *, width: int = 100, unknown: bool = True) -> list[str]:
    """Return one entry per metric: name, value, definition, wrapped to the width.

    Args:
        metrics: What to print.
        width: Columns.
        unknown: Also what is not known, with the reason in the place of the definition.
    """
    out = []
    for m in metrics:
        missing = isinstance(m.value, Unknown)
        if missing and not unknown:
            continue
        count = m.name in ("concurrency_ratio", "concurrent_requests")  # counts, which no percentage is
        value = f"{m.value:.3g}" if count and isinstance(m.value, float) else shown(m.value, m.unit)
        text = f"not known: {m.value.reason}" if isinstance(m.value, Unknown) else m.definition
        if isinstance(m.value, Implausible):
            text = f"cannot be true; first suspect: {m.value.suspects[0]}"
        head = f"  {m.name:<{_NAME}} {value:>{_VALUE}}  "
        room = max(20, width - len(head))
        first, *rest = textwrap.wrap(text, room) or [""]
        out.append(head + first)
        out += [" " * len(head) + line for line in rest]
    return out


def fixed_cost_lines(costs: Sequence[FixedCost | Unknown], *, width: int = 100) -> list[str]:
    """Return T0 of each kind of work with its interval, and the size at which it is hidden, wrapped to the width."""
    out: list[str] = []
    for c in costs:
        if isinstance(c, Unknown):
            out += _wrapped(f"fixed cost not known: {c.reason}", width)
            continue
        interval = (
            "" if isinstance(c.ci95_s, Unknown) else f" ({format_s(max(c.ci95_s[0], 0.0))} to {format_s(c.ci95_s[1])})"
        )
        fixed = f"not seen, {c.fixed_s.reason}" if isinstance(c.fixed_s, Unknown) else format_s(c.fixed_s) + interval
        size = c.hiding_gemm_size() if c.unit == "FLOP/s" else Unknown("no product")
        hidden = "" if isinstance(size, Unknown) else f"; {format_ratio(HIDDEN)} of the rate from N = {size:.0f} on"
        out += _wrapped(
            f"{c.backend}, {c.what}: T0 {fixed}{hidden}; {c.source}, {c.sizes} {'gaps' if not c.unit else 'sizes'}",
            width,
        )
    return out


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def number_lines(
    metrics: Sequence[Metric], costs: Sequence[FixedCost | Unknown] = (), *, width: int = 100
) -> list[str]:
    """Return the metrics of a device and its fixed costs under their headings."""
    out = ["", "Metrics", *metric_lines(metrics, width=width)]
    return [*out, "", "Fixed cost  t = T0 + work / rate", *fixed_cost_lines(costs, width=width)] if costs else out


def cost_lines(cost: Cost, change: Tradeoff | None = None) -> list[str]:
    """Return money and energy with where their price and power come from, and what a change does to both."""
    out = []
    if isinstance(cost.usd_per_step, Unknown):
        out.append(f"  money not known: {cost.usd_per_step.reason}")
    elif not isinstance(cost.price, Unknown):
        p = cost.price
        dated = f", {p.date}" if p.date else ""
        out.append(
            f"  {cost.usd_per_step:.4g} USD per step ({p.usd_per_hour:.4g} USD/h a device, {p.offer}{dated}, {p.certainty})"
        )
        if not isinstance(cost.usd_per_token, Unknown):
            out.append(f"  {cost.usd_per_token * 1e6:.4g} USD per million tokens")
        if not isinstance(cost.usd_per_run, Unknown):
            out.append(f"  {cost.usd_per_run:.4g} USD for the run")
    if isinstance(cost.joule_per_step, Unknown):
        out.append(f"  energy not known: {cost.joule_per_step.reason}")
    elif not isinstance(cost.power, Unknown):
        most = "at most " if cost.energy_is_upper_bound else ""
        out.append(
            f"  {most}{cost.joule_per_step:.4g} J per step ({cost.power.watt:.4g} W a device, {cost.power.source})"
        )
        if not isinstance(cost.joule_per_token, Unknown):
            out.append(f"  {most}{cost.joule_per_token:.4g} J per token")
    if change is not None:
        out.append(f"  {change.text}: {change.verdict}")
    return out
