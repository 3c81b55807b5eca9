"""Points of microbenchmarks as tables: each number with its verdict beside it, and the plan before they run."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mansard.core.document import to_jsonable
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.measure.points.conclusions import conclusions, in_words
from mansard.report.side_by_side_table import plus_minus, tables
from mansard.report.text import ceiling_value, clean

_STYLE = {"normal": "green", "low": "yellow", "implausible": "bold red", "noisy": "magenta"}


def document_text(elements: Sequence[Mapping[str, Any]]) -> str:
    """Return `detailed.json` as text."""
    return json.dumps(list(elements), indent=1, allow_nan=False) + "\n"


def rate_text(metrics: Mapping[str, Any]) -> str:
    """Return the headline rate of a point.

    >>> rate_text({"headline": "flop", "flop_per_s": 2e11}), rate_text({"headline": "time", "median_s": 1e-3})
    ('200 GFLOP/s', '')
    """
    if metrics.get("operation"):
        busbw, algbw = metrics.get("busbw_bytes_per_s"), metrics.get("algbw_bytes_per_s")
        if isinstance(busbw, int | float):
            return f"{format_bytes_per_s(busbw)} bus"
        return f"{format_bytes_per_s(algbw)} alg" if isinstance(algbw, int | float) else ""
    if metrics.get("headline") == "flop" and metrics.get("flop_per_s"):
        return format_flop_per_s(float(metrics["flop_per_s"]))
    if metrics.get("headline") == "bytes" and metrics.get("bytes_per_s"):
        level = f" {str(metrics['level']).upper()}" if metrics.get("level") else ""
        return format_bytes_per_s(float(metrics["bytes_per_s"])) + level
    return ""


def share_of(metrics: Mapping[str, Any]) -> float | None:
    """Return least over median time; above 1 too, where a file from before wrote that as 1; None where it is not known.

    >>> share_of({"share_of_ceiling": 1.0, "least_s": 1.19e-3, "median_s": 1e-3}), share_of({"share_of_ceiling": 0.5})
    (1.19, 0.5)
    """
    share = metrics.get("share_of_ceiling")
    if isinstance(share, Mapping):
        share = share.get("implausible")
    if not isinstance(share, int | float):
        return None
    least, median = metrics.get("least_s"), metrics.get("median_s")
    if share == 1.0 and isinstance(least, int | float) and isinstance(median, int | float) and 0.0 < median < least:
        return float(f"{least / median:.6g}")
    return float(share)


def share_text(metrics: Mapping[str, Any], *, brief: bool = False) -> str:
    """Return the share with the ceiling and its value; `?` where it is not known, `!` behind one that cannot be true.

    Args:
        metrics: Of a point.
        brief: The least time stands beside it, and is not said again.

    >>> share_text({"share_of_ceiling": 0.81, "ceiling": "f32 matrix", "ceiling_value": 345e9, "ceiling_unit": "FLOP/s"})
    '81 % of 345 GFLOP/s f32 matrix'
    >>> share_text({"share_of_ceiling": 0.28, "ceiling": "jax fixed cost", "ceiling_value": 3.6e-6, "ceiling_unit": "s", "least_s": 5.7e-6})
    '28 %, least 5.70 us, most of it jax fixed cost'
    """
    share, of = share_of(metrics), str(metrics.get("ceiling", ""))
    if share is None:
        return "?"
    value, unit, least = metrics.get("ceiling_value"), metrics.get("ceiling_unit"), metrics.get("least_s")
    kind = metrics.get("ceiling_kind", "measured")
    text = format_ratio(share) + ("!" if isinstance(metrics["share_of_ceiling"], Mapping) else "")
    if unit == "s" and isinstance(least, int | float):
        text += f", mostly {of}" if brief else f", least {format_s(float(least))}, most of it {of}"
    elif isinstance(value, int | float) and isinstance(unit, str) and unit != "s":
        text += f" of {ceiling_value(float(value), unit)} {of.removesuffix(' bandwidth') if unit == 'B/s' else of}"
    else:
        text += f" of {of}" if of else ""
    return text + ("" if kind == "measured" else f" ({kind})")


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the parameters that all points of the same benchmark share; a single one keeps all of its own.

    >>> short_names(["gemm[jax] m=1 k=2", "gemm[numpy] m=1 k=4", "copy[jax] size=1"])
    ['gemm[jax] k=2', 'gemm[numpy] k=4', 'copy[jax] size=1']
    """
    words = [name.split(" ") for name in names]
    groups: dict[str, list[set[str]]] = {}
    for first, *rest in words:
        groups.setdefault(first.partition("[")[0], []).append(set(rest))
    common = {key: set.intersection(*sets) if len(sets) > 1 else set() for key, sets in groups.items()}
    return [" ".join([first, *(w for w in rest if w not in common[first.partition("[")[0]])]) for first, *rest in words]


def show(elements: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the points with time, interval, rate, share and verdict, then why, then what was not measured.

    Where the table is wider than the terminal, each point takes two lines: its name, and its figures below.
    """
    out = console or Console(width=text_width(), highlight=False)
    rows = _rows(elements)
    if rows:
        whole = [max(map(len, column)) for column in zip(*(r[1:] for r in rows), strict=True)]
        if min(NAME_LEAST, max(len(r[0]) for r in rows)) + sum(whole) + 2 * len(whole) <= out.width:
            out.print(_table(rows))
        else:
            _stacked(rows, out)
    for title, made in tables(conclusions(elements)):
        out.print()
        out.print(Text(title, style="bold"))
        out.print(made)
    for title, text in _lines(elements):
        out.print()
        out.print(Text(title, style="bold"))
        for line in text:
            out.print(Text(wrapped(line, out.width if console or text_width() is None else None)), soft_wrap=True)


def text_width() -> int | None:
    """Return how wide tables are where no terminal looks on; None where a terminal or COLUMNS says it."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else 120


def wrapped(line: str, width: int | None, indent: str = "  ") -> str:
    """Return a line with its indent, broken between words; whole where there is no width, for programs that read it.

    >>> wrapped("a: other programs used it", 20)
    '  a: other programs\\n      used it'
    """
    if width is None:
        return indent + line
    text = textwrap.fill(
        line.replace(" %", "\u00a0%"), max(20, width), initial_indent=indent, subsequent_indent=indent + "    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return text.replace("\u00a0%", " %")  # a number and its sign stay together


HEADS = ("point", "median", "95 %", "rate", "of ceiling", "verdict")
NAME_LEAST = 40  # columns that names get in a table; where there are fewer, a name has a line of its own


def _rows(elements: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the cells of every measured point in the order of `HEADS`."""
    called = short_names([e["metadata"]["test_name"] for e in elements])
    return [
        (clean(name), format_s(float(m["median_s"])), plus_minus(float(m["half_interval_ratio"])), rate_text(m),
         clean(share_text(m)), e["verdict"] or "not judged")
        for e, name in zip(elements, called, strict=True) if e["state"] == "done" for m in [e["metrics"]]
    ]  # fmt: skip


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in HEADS:
        justify = "right" if head in HEADS[1:4] else "left"
        table.add_column(head, justify=justify, no_wrap=head != "point", overflow="fold")  # type: ignore[arg-type]
    for name, *figures, verdict in rows:
        table.add_row(Text(name), *map(Text, figures), Text(verdict, style=_STYLE.get(verdict, "")))
    return table


def _stacked(rows: Sequence[tuple[str, ...]], out: Console) -> None:
    """Print each point in lines of its own: its name, then time, interval, rate and verdict, and the share behind or below."""
    own = [list(HEADS), *map(list, rows)]
    wide = [max(len(r[i]) for r in own) for i in range(len(HEADS))]
    for number, (name, median, interval, rate, share, verdict) in enumerate(own):
        if number:
            out.print(Text(wrapped(name, out.width, "")))
        line = Text(f"  {median:>{wide[1]}}  {interval:>{wide[2]}}  {rate:>{wide[3]}}  ")
        line.append(f"{verdict:<{wide[5]}}", style=_STYLE.get(verdict, ""))
        if line.cell_len + 2 + wide[4] <= out.width:
            line.append(f"  {share}".rstrip())
        else:
            line.append("\n    " + (share if number == 0 else f"{share} of its ceiling" if share == "?" else share))
        line.rstrip()
        out.print(line, soft_wrap=True)


def _lines(elements: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[str]]]:
    """Yield the parts below the table: why verdicts are what they are, findings by code, failed and waived points."""
    why, found, loaded = [], dict[str, list[tuple[str, str]]](), []
    called = [clean(name) for name in short_names([e["metadata"]["test_name"] for e in elements])]
    for e, name in zip(elements, called, strict=True):
        if e["state"] != "done":
            continue
        reason = clean(e["verdict_reason"])
        codes = {clean(f["code"]) for f in e["audit"].get("findings", ())}
        others = (e.get("conditions") or {}).get("foreign_ratio")
        if e["verdict"] == "noisy" and "foreign_load" in codes and isinstance(others, int | float):
            loaded.append((name, float(others)))
        elif e["verdict"] != "normal" and reason:
            why.append(f"{name}: {reason}")
        for f in e["audit"].get("findings", ()):
            if clean(f["text"]) not in reason:
                found.setdefault(clean(f["code"]), []).append((name, clean(f["text"])))
    if loaded:
        why.insert(0, _under_load(loaded))
    if why:
        yield "Why", why
    if found:
        yield "Findings", [_finding(code, said) for code, said in found.items()]
    together = [c for c in conclusions(elements) if c["kind"] != "comparison"]  # those are tables
    if found_twice := {e["metadata"]["test_name"] for e in elements if "two regimes" in (e["verdict_reason"] or "")}:
        together = [c for c in together if c["kind"] != "two_regimes" or c.get("test_name") not in found_twice]
    if together:
        yield "Together", [clean(in_words(c)) for c in together]
    for state, title in (("failed", "Failed"), ("waived", "Not run here")):
        grouped: dict[str, list[str]] = {}
        for e, name in zip(elements, called, strict=True):
            if e["state"] == state:
                grouped.setdefault(clean(e["reason"]), []).append(name)
        if grouped:
            yield title, [f"{_names(names)}: {reason}" for reason, names in grouped.items()]


def _under_load(points: Sequence[tuple[str, float]]) -> str:
    """Return one line for all points that are noisy while others used the machine.

    >>> _under_load([("a", 0.5)])
    'noisy, a: others used 50 % of the processors, so its figure is a lower bound'
    """
    names, loads = [name for name, _ in points], sorted(load for _, load in points)
    if len(points) == 1:
        return (
            f"noisy, {names[0]}: others used {format_ratio(loads[0])} of the processors, so its figure is a lower bound"
        )
    low, high = format_ratio(loads[0]), format_ratio(loads[-1])
    span = low if low == high else f"{low} to {high}"
    return (
        f"noisy, {len(points)} points ({_names(names)}): others used {span} of the processors, so their figures are "
        "lower bounds"
    )


def _finding(code: str, said: Sequence[tuple[str, str]]) -> str:
    """Return one code with its points; the words are those of the first of them.

    >>> _finding("near_floor", [("a", "it is short"), ("b", "it is short too")])
    'near_floor, 2 points (a, b): it is short'
    """
    names = list(dict.fromkeys(name for name, _ in said))
    if len(names) == 1:
        return f"{code}: {names[0]}: {said[0][1]}"
    return f"{code}, {len(names)} points ({_names(names)}): {said[0][1]}"


def _names(names: Sequence[str]) -> str:
    """Return names of points with one reason; all of them where they are few.

    >>> _names(["a", "b"]), _names(["a", "b", "c", "d"])
    ('a, b', 'a, b and 2 more')
    """
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def show_plan(
    plan: Any, survey: Sequence[tuple[Any, str, float | None]], waived: Sequence[tuple[Any, str]], *, as_json: bool
) -> None:
    """Print what a plan would do: every point with its expected time, those left out with the reason, the sum.

    Args:
        plan: The plan, for its order of merging and its sweeps.
        survey: Points with why they would not run and their expected time [s].
        waived: Points that the plan leaves out.
        as_json: Print one document instead.
    """
    rows = [*survey, *((p, f"waived: {reason}", None) for p, reason in waived)]
    total = sum(t for _, _, t in rows if t is not None)
    if as_json:
        body = {
            "points": [
                {"name": p.name, "benchmark": p.benchmark, "impl": p.impl, "backend": p.backend, "params": p.params,
                 "origin": p.origin, "flags": p.flags, "expected_s": t, "reason": reason}
                for p, reason, t in rows
            ],
            "expected_s": total, "order": plan.order, "notes": plan.notes,
            "products": [{"benchmark": x.benchmark, "axes": x.axes, "size": x.size} for x in plan.products],
        }  # fmt: skip
        from mansard.core.document import header

        click.echo(json.dumps(to_jsonable({**header("plan/1", {}), **body}), indent=1, allow_nan=False))
        return
    width = None if text_width() else Console().width
    for product in plan.products:
        axes = " x ".join(f"{name} {count}" for name, count in product.axes.items())
        click.echo(f"sweep of {product.benchmark}: {axes} = {product.size} points")
    for point, reason, expected in rows:
        line = f"{clean(point.name)}  [{clean(point.origin)}]  {reason or f'about {format_s(expected or 0.0)}'}"
        click.echo(wrapped(line, width, ""))
    run = sum(1 for _, reason, _ in rows if not reason)
    click.echo(
        wrapped(f"{run} of {len(rows)} points would run, in about {format_s(total)}; values: {plan.order}", width, "")
    )


def show_benchmarks(*, as_json: bool) -> None:
    """Print every benchmark with its implementations and parameters."""
    from mansard.measure.points.registry import all_benchmarks

    known = {b.name: b for b in all_benchmarks().values()}
    if as_json:
        body = [
            {"name": b.name, "aliases": b.aliases, "area": b.area, "summary": b.summary,
             "implementations": b.implementations,
             "parameters": [{"name": p.name, "kind": p.kind, "default": None if repr(p.default) == "REQUIRED" else
                             p.default, "required": repr(p.default) == "REQUIRED", "choices": p.choices, "text": p.text}
                            for p in b.parameters]}
            for b in known.values()
        ]  # fmt: skip
        from mansard.core.document import header

        click.echo(json.dumps(to_jsonable({**header("benchmarks/1", {}), "benchmarks": body}), indent=1))
        return
    area, width = "", Console(width=80 if text_width() else None).width
    for b in sorted(known.values(), key=lambda x: (x.area, x.name)):
        if b.area != area:
            area = b.area
            click.echo(area)
        also = f" (also {', '.join(b.aliases)})" if b.aliases else ""
        click.echo(wrapped(f"{b.name}{also}: {b.summary}", width))
        click.echo(wrapped(f"impl: {', '.join(b.implementations)}", width, "      "))
        click.echo(wrapped(", ".join(f"{p.name}={_default(p.default)}" for p in b.parameters), width, "      "))


def _default(value: Any) -> str:
    """Return a default as it is written on the command line.

    >>> _default("f32"), _default(0.0), _default(None), _default(True)
    ('f32', '0', '(none)', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "(none)" if value is None or value == "" else str(value)
