"""Points of microbenchmarks as tables: each number with its verdict beside it, and the plan before they run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mansard.core.document import to_jsonable
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio, format_s
from mansard.measure.points.conclusions import conclusions, in_words
from mansard.report.side_by_side_table import tables
from mansard.report.text import clean

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


def share_text(metrics: Mapping[str, Any]) -> str:
    """Return the share with its ceiling; `?` where it is not known, `!` behind one that cannot be true.

    >>> share_text({"share_of_ceiling": 0.81, "ceiling": "f32 matrix", "ceiling_kind": "measured"})
    '81 % f32 matrix'
    """
    share, of = metrics.get("share_of_ceiling"), metrics.get("ceiling", "")
    kind = metrics.get("ceiling_kind", "measured")
    name = f" {of}" + ("" if kind == "measured" else f" ({kind})")
    if isinstance(share, int | float):
        return format_ratio(float(share)) + name
    if isinstance(share, Mapping) and "implausible" in share:
        return f"{format_ratio(float(share['implausible']))}!{name}"
    return "?"


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
    """Print the points with time, interval, rate, share and verdict, then why, then what was not measured."""
    out = console or Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    done = [e for e in elements if e["state"] == "done"]
    if done:
        table = Table(box=None, pad_edge=False)
        for head, justify in (("point", "left"), ("median", "right"), ("95 %", "right"), ("rate", "right"),
                              ("of ceiling", "left"), ("verdict", "left")):  # fmt: skip
            table.add_column(head, justify=justify, no_wrap=head != "point", overflow="fold")  # type: ignore[arg-type]
        called = short_names([e["metadata"]["test_name"] for e in elements])
        for e, name in zip(elements, called, strict=True):
            if e["state"] != "done":
                continue
            m = e["metrics"]
            verdict = e["verdict"] or "not judged"
            table.add_row(
                Text(clean(name)), format_s(float(m["median_s"])),
                f"+-{format_ratio(float(m['half_interval_ratio']))}", rate_text(m), Text(clean(share_text(m))),
                Text(verdict, style=_STYLE.get(verdict, "")),
            )  # fmt: skip
        out.print(table)
    for title, made in tables(conclusions(elements)):
        out.print()
        out.print(Text(title, style="bold"))
        out.print(made)
    for title, text in _lines(elements):
        out.print()
        out.print(Text(title, style="bold"))
        for line in text:
            out.print(Text(f"  {line}"), soft_wrap=True)


def _lines(elements: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[str]]]:
    """Yield the parts below the table: why verdicts are what they are, findings by code, failed and waived points."""
    why, found = [], dict[str, list[tuple[str, str]]]()
    called = [clean(name) for name in short_names([e["metadata"]["test_name"] for e in elements])]
    for e, name in zip(elements, called, strict=True):
        if e["state"] != "done":
            continue
        reason = clean(e["verdict_reason"])
        if e["verdict"] != "normal" and reason:
            why.append(f"{name}: {reason}")
        for f in e["audit"].get("findings", ()):
            if clean(f["text"]) not in reason:
                found.setdefault(clean(f["code"]), []).append((name, clean(f["text"])))
    if why:
        yield "Why", why
    if found:
        yield "Findings", [_finding(code, said) for code, said in found.items()]
    together = [c for c in conclusions(elements) if c["kind"] != "comparison"]  # those are tables
    if together:
        yield "Together", [clean(in_words(c)) for c in together]
    for state, title in (("failed", "Failed"), ("waived", "Not run here")):
        grouped: dict[str, list[str]] = {}
        for e, name in zip(elements, called, strict=True):
            if e["state"] == state:
                grouped.setdefault(clean(e["reason"]), []).append(name)
        if grouped:
            yield title, [f"{_names(names)}: {reason}" for reason, names in grouped.items()]


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
    for product in plan.products:
        axes = " x ".join(f"{name} {count}" for name, count in product.axes.items())
        click.echo(f"sweep of {product.benchmark}: {axes} = {product.size} points")
    for point, reason, expected in rows:
        click.echo(f"{clean(point.name)}  [{clean(point.origin)}]  {reason or f'about {format_s(expected or 0.0)}'}")
    run = sum(1 for _, reason, _ in rows if not reason)
    click.echo(f"{run} of {len(rows)} points would run, in about {format_s(total)}; values: {plan.order}")


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
    area = ""
    for b in sorted(known.values(), key=lambda x: (x.area, x.name)):
        if b.area != area:
            area = b.area
            click.echo(f"{area}")
        also = f" (also {', '.join(b.aliases)})" if b.aliases else ""
        click.echo(f"  {b.name}{also}: {b.summary}")
        click.echo(f"      impl: {', '.join(b.implementations)}")
        click.echo("      " + ", ".join(f"{p.name}={p.default!r}" for p in b.parameters))
