"""Sections of measured points over a size: bandwidth over the working set, FLOP/s over N, transfers over the message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mansard.core.ceilings import Ceilings, MemoryLevel
from mansard.core.units import format_binary_bytes, format_bytes, format_bytes_per_s, format_flop_per_s, format_s
from mansard.measure.points.conclusions import WORST_OF_LAW, Element, conclusions, in_words
from mansard.report.points_text import share_text, short_names
from mansard.report.sections.blocks import Chart, Section, Series, number, words
from mansard.report.sections.fits import fitted


def bandwidth(elements: Sequence[Element], levels: Sequence[MemoryLevel], key: str, name: str) -> Section | None:
    """Return bandwidth over the working set, with the capacities of the caches."""
    chosen = [
        e for e in elements if e["metrics"].get("headline") == "bytes" and number(e["metrics"].get("bytes_per_s"))
    ]
    series = []
    for title, members in _families(
        chosen, "working_set_bytes", "size", "size_bytes", "num_elements", "data_size_mib"
    ).items():
        points = []
        for e in members:
            m = e["metrics"]
            size, rate, amount = number(m.get("working_set_bytes")), float(m["bytes_per_s"]), number(m.get("bytes"))
            if not size:
                continue
            low, high = _ends(m, amount) if amount else (None, None)
            level = f", {str(m['level']).upper()}" if m.get("level") else ""
            points.append((size, rate, low, high, f"{format_bytes_per_s(rate)} at {format_binary_bytes(size)}{level}"))
        if points:
            series.append(_curve(title, points))
    if not series:
        return None
    chart = Chart(
        label="Bandwidth against working set", x_title="working set, bytes", y_title="bandwidth, B/s", x_log=True, y_log=True,
        series=series, uprights=capacities(levels),
        levels=_ceiling_levels(chosen, "B/s"), notes=_cache_notes(levels),
    )  # fmt: skip
    return Section(key=f"{key}-bandwidth", title="Bandwidth against working set", small=name, blocks=(chart,))


def capacities(levels: Sequence[MemoryLevel]) -> tuple[tuple[float, str], ...]:
    """Return the capacity of every cache level with its name [B]; the last level is memory and has no line."""
    return tuple((m.capacity_bytes, f"{m.level.upper()} {format_binary_bytes(m.capacity_bytes)}") for m in levels[:-1])


def _cache_notes(levels: Sequence[MemoryLevel]) -> list[str]:
    if not levels:
        return ["The capacities of the caches are not known: give the ceilings.json of the same machine as well."]
    shared = [f"{m.instances} of {m.level.upper()}" for m in levels[:-1] if m.instances > 1]
    return [f"Upright lines are the capacity of one cache; this machine has {', '.join(shared)}."] if shared else []


def achieved_over_sizes(
    elements: Sequence[Element], levels: Sequence[MemoryLevel], key: str, name: str
) -> Section | None:
    """Return achieved FLOP/s over N, with the curve of a fixed cost where the points follow one."""
    series, notes, used = [], [], []  # type: list[Series], list[str], list[Element]
    chosen = [e for e in elements if e["metrics"].get("headline") == "flop" and number(e["metrics"].get("flop_per_s"))]
    wrong = [e for e in chosen if e.get("verdict") == "implausible"]
    sized = [e for e in chosen if _size_of(e) is not None and e not in wrong]
    for title, members in _families(sized, "size", "m", "n", "k", "matrix_dim").items():
        points = []
        for e in members:
            m, n = e["metrics"], _size_of(e)
            assert n is not None
            rate = float(m["flop_per_s"])
            low, high = _ends(m, float(m["flop"]))
            points.append((n, rate, low, high, f"{format_flop_per_s(rate)} at N = {n:g}, {share_text(m)}"))
        if len(points) < 2:
            continue
        used += members
        series.append(_curve(title, points))
        laws = [c for c in conclusions(members, levels) if c["kind"] == "size_law"]
        notes += [in_words(c) for c in laws]
        series += [law for c in laws if (law := _law(c)) is not None]
    if not series:
        return None
    left = [str(e["metadata"]["test_name"]) for e in wrong if _size_of(e) is not None]
    notes += [f"Left out as implausible: {words(left, 4)}."] if left else []
    chart = Chart(
        label="Achieved FLOP/s against N", x_title="N (one side of the matrices)", y_title="FLOP/s", x_log=True, y_log=True,
        series=series, levels=_ceiling_levels(used, "FLOP/s"), notes=notes,
    )  # fmt: skip
    return Section(key=f"{key}-sizes", title="Achieved FLOP/s against N", small=name, blocks=(chart,))


def _size_of(element: Element) -> float | None:
    """Return N of a point: its size, or the side of a matrix product whose sides are equal."""
    params = element["metadata"]["params"]
    size = number(params.get("size"))
    sides = [number(params.get(k)) for k in ("m", "n", "k")]
    if size is None and sides[0] is not None and sides[0] == sides[1] == sides[2]:
        size = sides[0]
    return size if size and size > 0 else None


def _law(conclusion: Mapping[str, Any]) -> Series | None:
    """Return the curve 2 N^3 / (T0 + 2 N^3 / rate) over the sizes that were measured, None where the points do not follow one."""
    fixed_s, flop_per_s = number(conclusion.get("fixed_s")), number(conclusion.get("flop_per_s"))
    error = number(conclusion.get("error_ratio"))
    if fixed_s is None or fixed_s < 0 or not flop_per_s or error is None or error > WORST_OF_LAW:
        return None
    sizes = [float(p["n"]) for p in conclusion["points"]]
    low, high = min(sizes), max(sizes)
    xs = [low * (high / low) ** (i / 60) for i in range(61)]
    ys = [2 * x**3 / (fixed_s + 2 * x**3 / flop_per_s) for x in xs]
    return Series(
        name=f"{conclusion['benchmark']}[{conclusion['impl']}]: fixed cost {format_s(fixed_s)}", x=xs, y=ys, mode="lines", dash="dash",
        text=[in_words(conclusion)] * len(xs), quiet=True,
    )  # fmt: skip


def collectives(elements: Sequence[Element], ceilings: Ceilings | None, key: str, name: str) -> Section | None:
    """Return the time of transfers over their size, with the fit, and their bus bandwidth with the ceiling of the link."""
    chosen = [
        e for e in elements
        if e["metrics"].get("operation") and number(e["metrics"].get("size_bytes")) and number(e["metrics"].get("bus_bytes"))
    ]  # fmt: skip
    if not chosen:
        return None
    times, rates, notes, links = [], [], [], {}  # type: list[Series], list[Series], list[str], dict[str, None]
    for title, members in _families(
        chosen, "matrix_dim", "data_size_mib", "data_size_bytes", "size", "size_bytes"
    ).items():
        seconds, rate, samples, ratio = [], [], {}, 1.0
        for e in members:
            m = e["metrics"]
            size, bus, t = float(m["size_bytes"]), float(m["bus_bytes"]), float(m["median_s"])
            ratio = bus / size
            samples[bus] = [float(v) * 1e-3 for v in e["raw_times_ms"]] or [t]
            links.setdefault(str(m.get("link") or ""))
            seconds.append(
                (
                    size,
                    t,
                    number(m.get("ci95_low_s")),
                    number(m.get("ci95_high_s")),
                    f"{format_bytes(size)} in {format_s(t)}",
                )
            )
            low, high = _ends(m, bus)
            rate.append(
                (size, bus / t, low, high, f"bus bandwidth {format_bytes_per_s(bus / t)} at {format_bytes(size)}")
            )
        times.append(_curve(title, seconds))
        rates.append(_curve(title, rate))
        fit, said = fitted(samples, name=title, per_size=ratio)
        notes.append(f"{title}: {said}")
        times += [fit] if fit is not None else []
    known = [c for c in (ceilings.ceilings if ceilings else ()) if c.unit == "B/s" and c.resource.link in links]
    lines = [(c.value, f"{c.resource.label} {format_bytes_per_s(c.value)} ({c.kind.value})") for c in known][:8]
    if not lines:
        notes.append(
            f"No ceiling is known for {words(sorted(k for k in links if k) or ['these links'])}: rates have nothing to be compared with."
        )
    charts = (
        Chart(label="Time of transfers against size", x_title="message size S, bytes", y_title="time, s", x_log=True, y_log=True,
              series=times, notes=notes),
        Chart(label="Bus bandwidth against size", x_title="message size S, bytes", y_title="bus bandwidth, B/s", x_log=True,
              y_log=True, series=rates, levels=lines),
    )  # fmt: skip
    return Section(key=f"{key}-transfers", title="Collectives and transfers against size", small=name, blocks=charts)


def _families(elements: Iterable[Element], *apart: str) -> dict[str, list[Element]]:
    """Return points by benchmark, implementation and every parameter but those in `apart`; the key tells what differs."""
    groups: dict[tuple[str, str, str], list[Element]] = {}
    for e in elements:
        meta = e["metadata"]
        kept = {k: v for k, v in meta["params"].items() if k not in apart and k not in ("start", "end", "per_doubling")}
        groups.setdefault((meta["benchmark_name"], meta["impl"], repr(sorted(kept.items()))), []).append(e)
    names = short_names([_family_name(members[0], apart) for members in groups.values()])
    out: dict[str, list[Element]] = {}
    for title, members in zip(names, groups.values(), strict=True):
        unique = title if title not in out else f"{title} #{len(out) + 1}"
        out[unique] = members
    return out


def _family_name(element: Element, apart: Sequence[str]) -> str:
    first, *rest = str(element["metadata"]["test_name"]).split(" ")
    return " ".join([first, *(w for w in rest if w.partition("=")[0] not in (*apart, "start", "end", "per_doubling"))])


def _ends(m: Mapping[str, Any], amount: float) -> tuple[float | None, float | None]:
    """Return the interval of a rate from that of its time."""
    low, high = number(m.get("ci95_low_s")), number(m.get("ci95_high_s"))
    return (amount / high if high else None), (amount / low if low else None)


def _curve(title: str, points: Sequence[tuple[float, float, float | None, float | None, str]]) -> Series:
    ordered = sorted(points, key=lambda p: p[0])
    return Series(
        name=title, x=[p[0] for p in ordered], y=[p[1] for p in ordered], low=[p[2] for p in ordered],
        high=[p[3] for p in ordered], text=[f"{title}: {p[4]}" for p in ordered],
    )  # fmt: skip


def _ceiling_levels(elements: Sequence[Element], unit: str) -> list[tuple[float, str]]:
    """Return the ceilings that points were judged against, once each."""
    found: dict[tuple[float, str], None] = {}
    for e in elements:
        m = e["metrics"]
        value = number(m.get("ceiling_value"))
        if value and m.get("ceiling_unit") == unit:
            write = format_flop_per_s if unit == "FLOP/s" else format_bytes_per_s
            found[
                value,
                f"{m.get('ceiling')} {write(value)} ({m.get('ceiling_kind')}, {m.get('ceiling_scope', 'scope not kept')})",
            ] = None
    return list(found)[:12]
