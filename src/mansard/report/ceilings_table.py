"""Ceilings as tables for a terminal of 80 columns: best and typical figure, and the conditions in short."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from mansard.core.ceilings import Area, Ceiling, Ceilings
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_s

_ENGINES = ("vector", "matrix", "special")
_LEVELS = ("l1", "l2", "l3", "l4", "dram")
_MIXES = ("read", "write", "copy", "scale", "add", "triad", "in_place", "fresh")


def show(ceilings: Ceilings, console: Console | None = None) -> None:
    """Print the ceilings as tables: best figure, typical figure, and the conditions in short."""
    out = console or Console(width=None if sys.stdout.isatty() else 80, highlight=False)
    machine = ceilings.machine
    clock = machine.get("clock_hz_estimated")
    clock_text = f", about {clock / 1e9:.2f} GHz" if clock else ""
    out.print(f"{machine.get('cpu_model', 'this machine')}{clock_text}; {machine['threads']} thread(s)", markup=False)
    for title, rows in (
        ("Compute", _compute(ceilings)),
        ("Memory", _memory(ceilings)),
        ("Fixed cost of one call", _latency(ceilings)),
    ):
        if not rows:
            continue
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        heads = ("", "one core", f"{machine['threads']} threads", "typical", "how")
        for number, head in enumerate(heads):
            table.add_column(
                head, justify="right" if 0 < number < 4 else "left", no_wrap=number < 4, overflow="ellipsis"
            )
        for row in rows:
            table.add_row(*row)
        out.print()
        out.print(table)


def _pair(ceilings: Iterable[Ceiling]) -> dict[str, Ceiling]:
    """Return the best ceiling of each scope."""
    best: dict[str, Ceiling] = {}
    for c in ceilings:
        if c.scope not in best or c.value > best[c.scope].value:
            best[c.scope] = c
    return best


def _row(
    name: str, found: Iterable[Ceiling], write: Callable[[float], str], how: Callable[[Ceiling], str]
) -> list[str]:
    best = _pair(found)
    last = best.get("node") or best["core"]
    typical = write(float(last.conditions.get("median", last.value)))
    return [name, *(write(best[s].value) if s in best else "" for s in ("core", "node")), typical, how(last)]


def _compute(ceilings: Ceilings) -> list[list[str]]:
    def per_s(value: float) -> str:
        return f"{value / 1e9:.3g} G/s"

    def operations(value: float) -> str:
        return format_flop_per_s(value).replace("FLOP", "OP")

    def call(c: Ceiling) -> str:
        if c.resource.engine == "vector":
            return f"FMA chains, {c.conditions['lanes']} lanes"
        size = "" if c.resource.engine == "special" else f", n = {c.conditions['size']}"
        return f"{str(c.conditions['call']).split('(')[0].split(',')[0]}{size}"

    groups: dict[tuple[Any, ...], list[Ceiling]] = {}
    for c in ceilings.ceilings:
        if c.resource.area is Area.COMPUTE:
            key = (c.resource.engine, c.resource.dtype, c.conditions.get("function"))
            groups.setdefault(key, []).append(c)
    rows = []
    for engine, dtype, function in sorted(groups, key=lambda k: (_ENGINES.index(k[0]), k[2] or "")):
        write = per_s if engine == "special" else operations if dtype.startswith("i") else format_flop_per_s
        rows.append(_row(f"{dtype} {function or engine}", groups[engine, dtype, function], write, call))
    return rows


def _memory(ceilings: Ceilings) -> list[list[str]]:
    def how(c: Ceiling) -> str:
        if c.resource.level != "dram":
            return f"{float(c.conditions['working_set_bytes']) / 2**10:.0f} KiB in use"
        store = f", {c.resource.store} stores" if c.resource.mix not in ("read", None) else ""
        return f"{c.resource.page} pages{store}"

    groups: dict[tuple[str, str], list[Ceiling]] = {}
    for c in ceilings.ceilings:
        if c.resource.area is Area.MEMORY:
            groups.setdefault((str(c.resource.level), str(c.resource.mix)), []).append(c)
    ordered = sorted(groups, key=lambda k: (_LEVELS.index(k[0]), _MIXES.index(k[1])))
    return [_row(f"{level} {mix}", groups[level, mix], format_bytes_per_s, how) for level, mix in ordered]


def _latency(ceilings: Ceilings) -> list[list[str]]:
    found = [c for c in ceilings.ceilings if c.resource.area is Area.LATENCY]
    return [
        [
            str(c.resource.backend),
            "",
            format_s(c.value),
            format_s(float(c.conditions["median"])),
            str(c.conditions["call"]),
        ]
        for c in found
    ]
