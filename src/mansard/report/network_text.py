"""The ranks and links of a run over several processes, as text: who is slow, and which link is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s

SLOW_LINK = 0.7  # of the median rate of all pairs
SLOW_RANK = 1.25  # times the median time of all ranks, in most collectives
MOST_COLUMNS = 16


def network_lines(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the collectives by size, the pair matrix of the largest messages, slow ranks and links, stragglers, and fits.

    Args:
        elements: Elements of `detailed.json`; what was not measured is left out.
    """
    return [*_collectives(elements), *_pairs(elements), *_ranks(elements), *_fits(elements)]


def _collectives(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Both rates of each collective with the size they belong to."""
    rows = [("operation", "ranks", "S", "time", "algbw", "busbw")]
    for e in sorted(
        _done(elements), key=lambda e: (str(e["metrics"].get("operation")), e["metrics"].get("size_bytes") or 0.0)
    ):
        m = e["metrics"]
        figures = [m.get(k) for k in ("size_bytes", "median_s", "algbw_bytes_per_s", "busbw_bytes_per_s")]
        if len(_facts(e).get("rank_s", ())) > 1 and all(isinstance(v, float | int) for v in figures):
            size, time_s, algbw, busbw = (float(v) for v in figures)
            rows.append(
                (str(m["operation"]), str(m["participants"]), format_bytes(size), format_s(time_s), format_bytes_per_s(algbw),
                 format_bytes_per_s(busbw))
            )  # fmt: skip
    if len(rows) == 1:
        return []
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    head = "Collectives: algbw is S / t, busbw compares with one link"
    return [
        "",
        head,
        *(
            "  " + "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
            for r in rows
        ),
    ]


def _done(elements: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [e for e in elements if e["state"] == "done"]


def _facts(element: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = element["audit"].get("benchmark") or {}
    return found


def _pairs(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    matrices = [e for e in _done(elements) if len(_facts(e).get("matrix", ())) > 1]
    if not matrices:
        return []
    largest = max(matrices, key=lambda e: e["metrics"].get("size_bytes") or 0.0)
    rows = _facts(largest)["matrix"]
    rate = {(r["source"], r["target"]): float(r["bytes_per_s"]) for r in rows}
    ranks = sorted({r for pair in rate for r in pair})
    size = largest["metrics"].get("size_bytes")
    of = f" of {format_bytes(size)}" if isinstance(size, float | int) else ""
    lines = ["", f"Links, messages{of}, row sends to column, {_facts(largest)['matrix_means']}"]
    if len(ranks) <= MOST_COLUMNS:
        lines.append("      " + "".join(f"{r:>11}" for r in ranks))
        for a in ranks:
            cells = (format_bytes_per_s(rate[a, b]) if (a, b) in rate else "-" for b in ranks)
            lines.append(f"  {a:>4}" + "".join(f"{c:>11}" for c in cells))
    return [*lines, *_slow(rate, ranks)]


def _slow(rate: Mapping[tuple[int, int], float], ranks: Sequence[int]) -> list[str]:
    """Name the ranks whose best pair is slow, then the slow links between the others.

    A rank is held against the best that the others reach, since in a small job the pairs of one slow rank are the larger part
    of all pairs and their median is theirs.
    """
    lines, blamed = [], set()
    for word, place in (("sends", 0), ("receives", 1)):
        best = {r: max((v for pair, v in rate.items() if pair[place] == r), default=0.0) for r in ranks}
        others = median(best.values())
        for r in ranks if len(ranks) > 2 else ():
            if best[r] < SLOW_LINK * others:
                blamed.add((place, r))
                lines.append(
                    f"  slow rank: {r} {word} at {format_bytes_per_s(best[r])} at best, {best[r] / others:.2f} of the median rank"
                )
    left = {pair: v for pair, v in rate.items() if not any((place, pair[place]) in blamed for place in (0, 1))}
    usual = median(left.values() or rate.values())
    slow = sorted((v, p) for p, v in left.items() if v < SLOW_LINK * usual)
    among = " of the other ranks" if blamed else ""
    for value, (a, b) in slow[:8]:
        lines.append(
            f"  slow link: {a} to {b} at {format_bytes_per_s(value)}, {value / usual:.2f} of the median pair{among}"
        )
    if not slow and left:
        lines.append(
            f"  no link{among} is below {format_ratio(SLOW_LINK)} of the median pair, {format_bytes_per_s(usual)}"
        )
    return lines


def _ranks(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    timed = [_facts(e)["rank_s"] for e in _done(elements) if len(_facts(e).get("rank_s", ())) > 1]
    if not timed:
        return []
    over: dict[int, list[float]] = {}
    for times in timed:
        usual = median(times)
        for rank, t in enumerate(times):
            over.setdefault(rank, []).append(t / usual if usual > 0 else 1.0)
    lines = ["", f"Ranks, time over the median rank, median of {len(timed)} collectives"]
    lines.append("  " + "  ".join(f"{r}: {median(v):.2f}" for r, v in sorted(over.items())))
    late = [r for r, v in over.items() if median(v) > SLOW_RANK]
    lines += [f"  straggler: rank {r}, {median(over[r]):.2f} times the median rank" for r in late]
    return lines if late else [*lines, f"  no rank takes more than {SLOW_RANK:.2f} times the median"]


def _fits(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    from mansard.measure.links.fits import fit_of

    lines = []
    for fit in fit_of(elements):
        beta = fit["beta_bytes_per_s"]
        rate = format_bytes_per_s(beta) if isinstance(beta, float) else "? (larger messages did not take longer)"
        half = fit["n_half_bytes"]
        until = f", half of it from {format_bytes(half)}" if isinstance(half, float) else ""
        lines.append(
            f"  {fit['operation']}, {fit['participants']} ranks: {format_s(fit['alpha_s'])} + bus bytes / {rate}{until}"
        )
    return ["", f"Latency and bandwidth, fitted over sizes ({len(lines)})", *lines] if lines else []
