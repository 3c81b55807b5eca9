"""Sections of measured points (`detailed.json`): measured over theory, rates over sizes, collectives with their fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mansard.core.ceilings import Ceiling, Ceilings, Kind, MemoryLevel
from mansard.core.units import (
    format_binary_bytes,
    format_bytes,
    format_bytes_per_s,
    format_flop_per_s,
    format_ratio,
    format_s,
)
from mansard.measure.points.conclusions import WORST_OF_LAW, conclusions, in_words
from mansard.measure.points.result import NOISY_MOST_RATIO, NOISY_RATIO
from mansard.measure.points.verdict import NORMAL_SHARE, QUIET_RATIO
from mansard.report.points_text import rate_text, share_of, share_text, short_names
from mansard.report.sections.blocks import Cell, Chart, Prose, Section, Series, Table, number, reason_of, words
from mansard.report.sections.fits import fitted
from mansard.report.text import ceiling_value

Element = Mapping[str, Any]
#: Most bars of the chart of shares.
BARS = 60


def sections(elements: Sequence[Element], ceilings: Ceilings | None, *, key: str, name: str) -> list[Section]:
    """Return the sections of the points of one run of `mansard measure`.

    Args:
        elements: Elements of `detailed.json`.
        ceilings: Ceilings given beside them, for the levels of memory and for links.
        key: Prefix of the identifiers in the page.
        name: Name of the file.
    """
    done = [e for e in elements if e["state"] == "done" and number(e["metrics"].get("median_s"))]
    sound = [e for e in done if e.get("verdict") != "implausible"]
    levels = ceilings.levels if ceilings is not None else ()
    out = [
        _theory(done, elements, ceilings, key, name),
        _bandwidth(sound, levels, key, name),
        _sizes(done, levels, key, name),
        _collectives(sound, ceilings, key, name),
    ]
    return [s for s in out if s is not None]


#: Characters that the axis of a bar chart has room for.
_BAR_NAME = 42


def headline(elements: Sequence[Element]) -> str:
    """Return what the points of a file come to, in one sentence."""
    done = [e for e in elements if e["state"] == "done"]
    counts: dict[str, int] = {}
    for e in done:
        counts[e.get("verdict") or "not judged"] = counts.get(e.get("verdict") or "not judged", 0) + 1
    other = len(elements) - len(done)
    said = words(f"{n} {verdict}" for verdict, n in sorted(counts.items(), key=lambda c: -c[1]))
    return (
        f"{len(done)} of {len(elements)} points were measured"
        + (f": {said}" if said else "")
        + (f"; {other} failed or could not run here." if other else ".")
    )


def first(elements: Sequence[Element]) -> list[str]:
    """Return what to do first: repeat what is mostly noise, then what is low, above its ceiling, or cannot be true."""
    done = [e for e in elements if e["state"] == "done"]
    names = _bar_names(short_names([e["metadata"]["test_name"] for e in done]))
    of = {
        v: [(n, e) for n, e in zip(names, done, strict=True) if e.get("verdict") == v]
        for v in ("noisy", "low", "implausible")
    }
    out = []
    if 2 * len(of["noisy"]) > len(done):
        loads = [
            x for _, e in of["noisy"] if (x := number((e.get("conditions") or {}).get("foreign_ratio"))) is not None
        ]
        span = dict.fromkeys(map(format_ratio, (min(loads), max(loads)))) if loads and max(loads) > QUIET_RATIO else ()
        used = f"; other programs used {' to '.join(span)} of the processors" if span else ""
        wide = f"a 95\u00a0% interval wider than \u00b1{format_ratio(NOISY_RATIO)} that leaves the verdict open"
        out.append(
            f"Try first: measure again on an idle machine. {len(of['noisy'])} of {len(done)} points are noisy ({wide}){used}."
        )
    if of["low"]:
        found = [f"{n} ({share_text(e['metrics'])})" for n, e in of["low"]]
        out.append(f"{'Then look' if out else 'Try first: look'} at what is low: {words(found, 3)}.")
    above = [(n, e) for n, e in of["implausible"] if _is_above(e)]
    if above:
        found = [f"{n} with {rate_text(e['metrics'])}, {share_text(e['metrics']).replace('!', '')}" for n, e in above]
        out.append(f"Above its ceiling, so the point or the ceiling is wrong: {words(found, 3)}.")
    if wrong := [n for n, e in of["implausible"] if not _is_above(e)]:
        out.append(f"Cannot be true: {words(wrong, 3)}; the table says why.")
    return out


def _is_above(element: Element) -> bool:
    """Return whether the one thing that is wrong with a point is that it lies above its ceiling."""
    fatal = {f["code"] for f in (element.get("audit") or {}).get("findings") or () if f.get("fatal")}
    share = element["metrics"].get("share_of_ceiling")
    return isinstance(share, Mapping) and "implausible" in share and fatal <= {"above_ceiling"}


def _bar_names(titles: Sequence[str]) -> list[str]:
    """Return a name of each bar; those that would look the same keep what tells them apart, or get a number.

    >>> _bar_names(["gemm[jax] k=2", "gemm[jax] k=2"])
    ['gemm[jax] k=2', 'gemm[jax] k=2 #2']
    """
    short = [brief(t) for t in titles]
    out: list[str] = []
    for title, name in zip(titles, short, strict=True):
        chosen = name if short.count(name) == 1 else title
        seen = sum(o == chosen or o.startswith(f"{chosen} #") for o in out)
        out.append(f"{chosen} #{seen + 1}" if seen else chosen)
    return out


def brief(title: str, room: int = _BAR_NAME) -> str:
    """Return the name of a point for a bar or a row: where it is long, the values of its parameters without their names.

    >>> brief("gemm[jax] m=1 k=2"), brief("gemm_generalized[jax] m=2048 k=2048 n=2000 in_dtype=f32")
    ('gemm[jax] m=1 k=2', 'gemm_generalized[jax] 2048 2048 2000 f32')
    """
    if len(title) <= room:
        return title
    head, *rest = title.split(" ")
    return " ".join([head, *map(_value_of, rest)])


def _value_of(word: str) -> str:
    """Return the value of a parameter, bytes with their unit.

    >>> _value_of("m=2048"), _value_of("working_set_bytes=67108864"), _value_of("#2")
    ('2048', '64 MiB', '#2')
    """
    name, _, value = word.partition("=")
    return format_binary_bytes(float(value)) if name.endswith("_bytes") and value.isdigit() else value or word


def _theory(
    done: Sequence[Element], every: Sequence[Element], ceilings: Ceilings | None, key: str, name: str
) -> Section | None:
    names = short_names([e["metadata"]["test_name"] for e in done])
    rows, bars, higher = [], [], _higher(done, ceilings)
    for e, title, bar in zip(done, names, _bar_names(names), strict=True):
        m = e["metrics"]
        share, verdict, least = share_of(m), e.get("verdict") or "not judged", number(m.get("least_s"))
        rows.append((
            title, Cell(format_s(float(m["median_s"])), float(m["median_s"])), _interval(m), _rate_cell(m),
            Cell("?") if least is None else Cell(format_s(least), least), Cell(share_text(m, brief=True), share), verdict, _why(e) + _of_higher(m, higher),
        ))  # fmt: skip
        if share is not None:
            bars.append((bar, share, verdict, f"{title}: {share_text(m)}"))
    bars.sort(key=lambda b: -b[1])
    shown, blocks = bars[:BARS], []  # type: list[tuple[str, float, str, str]], list[Any]
    if shown:
        kinds = dict.fromkeys(b[2] for b in shown)
        blocks.append(
            Chart(
                label="Measured rate over the ceiling of each point", x_title="measured over ceiling", y_title="",
                sideways=True, percent=True, uprights=((1.0, "ceiling"),),
                series=[
                    Series(name=k, colour=k, mode="bars", x=[b[0] for b in shown if b[2] == k],
                           y=[b[1] for b in shown if b[2] == k], text=[f"{b[3]}, {k}" for b in shown if b[2] == k])
                    for k in kinds
                ],
                notes=[f"The best {BARS} of {len(bars)} points that have a ceiling; all are in the table."] if len(bars) > BARS else [],
            )
        )  # fmt: skip
    lost = [e for e in every if e["state"] != "done"]
    notes = [f"{e['metadata']['test_name']}: {e['state']}, {e['reason']}" for e in lost[:20]]
    notes += [f"{len(lost) - 20} more failed or could not run here."] if len(lost) > 20 else []
    notes = [*notes, *_other_values(done, ceilings), *_NOTES] if rows else notes
    blocks.append(
        Table(
            label="Points", rows=rows, texts=frozenset({0, 6, 7}), filter_by=6, swatch=6, notes=notes, total=len(rows),
            columns=("point", "median", "95 %", "rate", "least", "of ceiling", "verdict", "why"),
        )
    )  # fmt: skip
    together = [in_words(c) for c in conclusions(every, ceilings.levels if ceilings is not None else ())]
    if together:
        blocks.append(Prose(lines=[f"Together: {line}" for line in together]))
    return Section(key=f"{key}-theory", title="Measured over theory", small=f"{name}: {headline(every)}", blocks=blocks)


#: What the columns and the verdicts mean.
_NOTES = (
    "Of ceiling: least time over median time, and the ceiling that decides the least time as it was known when the point ran; that of compute "
    "and near caches is taken at the clock that was seen.",
    "Least: the least time of the work that is executed, with the cost of a dispatch. Where the rate counts less than that, rate over ceiling is less than the share.",
    f"Normal: a share of {format_ratio(NORMAL_SHARE)} or more. Low: less. Noisy: a 95\u00a0% interval of the median wider than "
    f"\u00b1{format_ratio(NOISY_RATIO)} that holds both or has no ceiling, or wider than \u00b1{format_ratio(NOISY_MOST_RATIO)}. Implausible: a wrong result, or above its ceiling by more than their uncertainty. Rates with "
    "\u201cbus\u201d are of bytes over the busiest link of the algorithm.",
)
#: Half of an interval over its median up to which one figure says it; wider ones are never even, and a time is not below 0.
_EVEN = 0.2


def _higher(done: Sequence[Element], ceilings: Ceilings | None) -> dict[tuple[str, str], tuple[Ceiling, float, float]]:
    """Return by label and scope the ceilings given beside the points that are higher than those the points were judged by.

    With each stand the highest value that points were judged by, and its factor of the clock.
    """
    judged: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for e in done:
        m, value = e["metrics"], number(e["metrics"].get("ceiling_value"))
        if value and m.get("ceiling_kind") == "measured" and m.get("ceiling_unit") != "s" and m.get("ceiling_scope"):
            judged.setdefault(_resource(m), []).append((value, number(m.get("clock_factor")) or 1.0))
    out = {}
    for key, values in judged.items():
        best = max(_alike(ceilings, key), key=lambda c: c.value, default=None)
        most, factor = max(values)
        if best is not None and best.value > 1.05 * most:
            out[key] = (best, most, factor)
    return out


def _resource(metrics: Mapping[str, Any]) -> tuple[str, str]:
    return str(metrics.get("ceiling")), str(metrics.get("ceiling_scope"))


def _alike(ceilings: Ceilings | None, key: tuple[str, str]) -> list[Ceiling]:
    return [
        c
        for c in (ceilings.ceilings if ceilings is not None else ())
        if (c.resource.label, c.scope) == key and c.kind is Kind.MEASURED
    ]


def _other_values(done: Sequence[Element], ceilings: Ceilings | None) -> list[str]:
    """Return where the ceilings given beside the points are higher than those that the points were judged by, and what set them."""
    names = {e["metadata"]["test_name"] for e in done}
    out = []
    for key, (best, most, factor) in _higher(done, ceilings).items():
        by = str(best.conditions.get("size"))
        # Those that follow the clock were judged by at the clock that was seen.
        own = [
            c
            for c in _alike(ceilings, key)
            if min(abs(c.value / most - 1.0), abs(c.value * factor / most - 1.0)) < 1e-6
        ]
        load = max((number(c.conditions.get("foreign_load_ratio")) or 0.0 for c in own), default=0.0)
        under = (
            f", measured while other programs used {format_ratio(load)} of the processors" if load > QUIET_RATIO else ""
        )
        out.append(
            f"{', '.join(key)}: judged by {ceiling_value(most, best.unit)}{under}; the ceilings given here have "
            f"{ceiling_value(best.value, best.unit)}" + (f", set by a point {by}" if by in names else "") + "."
        )
    return out


def _of_higher(metrics: Mapping[str, Any], higher: Mapping[tuple[str, str], tuple[Ceiling, float, float]]) -> str:
    """Return what the share of a point is of the higher ceiling that is given beside it; empty where none is."""
    found, share, value = higher.get(_resource(metrics)), share_of(metrics), number(metrics.get("ceiling_value"))
    if found is None or share is None or not value:
        return ""
    best = found[0]
    return f"; {format_ratio(share * value / best.value)} of the {ceiling_value(best.value, best.unit)} given here"


def _why(element: Element) -> str:
    """Return why a point has its verdict; of one that is noise under load the load alone, since the other columns have the rest."""
    reason = str(element.get("verdict_reason") or reason_of(element["metrics"].get("share_of_ceiling")))
    codes = {f["code"] for f in (element.get("audit") or {}).get("findings") or ()}
    load = number((element.get("conditions") or {}).get("foreign_ratio"))
    if (
        element.get("verdict") == "noisy"
        and "foreign_load" in codes
        and load is not None
        and "two regimes" not in reason
    ):
        return f"others used {format_ratio(load)} of the processors: a lower bound"
    return reason


def _interval(metrics: Mapping[str, Any]) -> Cell:
    """Return the interval of the median: one figure where it is narrow, else both ends."""
    half, low, high = (number(metrics.get(k)) for k in ("half_interval_ratio", "ci95_low_s", "ci95_high_s"))
    if half is None:
        return Cell("?")
    if half > _EVEN and low is not None and high is not None:
        ends = [format_s(low), format_s(high)]
        alike = len({end.rpartition(" ")[2] for end in ends}) == 1
        return Cell(f"{ends[0].rpartition(' ')[0] if alike else ends[0]} to {ends[1]}", half)
    return Cell(f"\u00b1{format_ratio(half)}" if half <= 1.0 else "> 100\u00a0%", half)


def _rate_cell(metrics: Mapping[str, Any]) -> Cell:
    value = (
        number(metrics.get("busbw_bytes_per_s"))
        or number(metrics.get("flop_per_s"))
        or number(metrics.get("bytes_per_s"))
    )
    return Cell(rate_text(metrics) or "\u2013", value)


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


def _bandwidth(elements: Sequence[Element], levels: Sequence[MemoryLevel], key: str, name: str) -> Section | None:
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


def _sizes(elements: Sequence[Element], levels: Sequence[MemoryLevel], key: str, name: str) -> Section | None:
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


def _collectives(elements: Sequence[Element], ceilings: Ceilings | None, key: str, name: str) -> Section | None:
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
