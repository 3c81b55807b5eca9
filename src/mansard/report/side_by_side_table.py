"""Implementations of one shape beside each other, and time against peak memory of checkpoint policies, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mansard.core.units import format_binary_bytes, format_ratio, format_s
from mansard.measure.points.result import NOISY_RATIO
from mansard.report.text import clean


def tables(conclusions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Table]]:
    """Yield title and table of every comparison of implementations and of time against memory."""
    for c in conclusions:
        if c["kind"] == "comparison":
            yield f"Side by side: {clean(str(c['test_name']))}", _comparison(c)
        elif c["kind"] == "pareto":
            yield f"Time against peak memory: remat[{clean(str(c['impl']))}]", _pareto(c)


def plus_minus(half_ratio: float) -> str:
    """Return half of an interval over its middle; beyond the middle itself its size says nothing more.

    >>> plus_minus(0.095), plus_minus(68.1)
    ('+-9.5 %', '> 100 %')
    """
    return f"+-{format_ratio(half_ratio)}" if half_ratio <= 1.0 else "> 100 %"


def _table(*heads: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head, justify in heads:
        table.add_column(head, justify=justify, no_wrap=head != "remark", overflow="fold")  # type: ignore[arg-type]
    return table


def _spread(row: Mapping[str, Any]) -> str:
    return plus_minus((row["high_s"] - row["low_s"]) / 2.0 / row["time_s"])


def _comparison(c: Mapping[str, Any]) -> Table:
    """Return the implementations by time; `tied` stands beside those of which none is clearly the fastest."""
    table = _table(
        ("impl", "left"), ("median", "right"), ("95 %", "right"), ("of fastest", "right"), ("remark", "left")
    )
    for row in c["rows"]:
        name = Text(clean(str(row["impl"])))
        if row["time_s"] is None:
            how, colon, _ = str(row["remark"]).partition(
                ": "
            )  # the reason stands below, once for all points that share it
            table.add_row(name, "-", "-", "-", Text(clean(f"{how}, see below" if colon else how)))
            continue
        with_it = ", ".join(row["tied_with"])
        remark = f"tied with {with_it}" if with_it else "fastest" if row["impl"] == c["fastest"] else ""
        if not with_it and c.get("disturbed"):
            remark = str(c["disturbed"]) if row is c["rows"][0] else "not comparable"
        table.add_row(name, format_s(row["time_s"]), _spread(row), f"{row['times_fastest']:.2f}x", Text(clean(remark)))
    return table


def _pareto(c: Mapping[str, Any]) -> Table:
    """Return the policies by time; those that another one beats in both name it."""
    table = _table(
        ("policy", "left"), ("median", "right"), ("95 %", "right"), ("peak memory", "right"),
        ("executed / model FLOP", "right"), ("remark", "left"),
    )  # fmt: skip
    for row in c["rows"]:
        executed = row["executed_over_model"]
        beaten = ", ".join(row["dominated_by"])
        noisy = (row["high_s"] - row["low_s"]) / 2.0 > NOISY_RATIO * row["time_s"]
        front = "noisy: not told" if noisy else "on the front"
        table.add_row(
            Text(clean(str(row["policy"]))), format_s(row["time_s"]), _spread(row),
            format_binary_bytes(row["peak_memory_bytes"]), "?" if executed is None else f"{executed:.2f}",
            Text(f"beaten by {clean(beaten)}" if beaten else front),
        )  # fmt: skip
    return table
