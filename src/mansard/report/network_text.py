"""The ranks and links of a run over several processes, as text: who is slow, and which link is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mansard.core.units import format_bytes, format_bytes_per_s, format_s

SLOW_LINK = 0.7  # of the median rate of all pairs
SLOW_RANK = 1.25  # times the median time of all ranks, in most collectives
MOST_COLUMNS = 16


def network_lines(elements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the pair matrix of the largest messages, slow links and stragglers; nothing where neither was measured.

    Args:
        elements: Elements of `detailed.json`.
    """
    return [*_pairs(elements), *_ranks(elements), *_fits(elements)]


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
    usual = median(rate.values())
    slow = sorted((v, p) for p, v in rate.items() if v < SLOW_LINK * usual)
    for value, (a, b) in slow[:8]:
        lines.append(f"  slow link: {a} to {b} at {format_bytes_per_s(value)}, {value / usual:.2f} of the median pair")
    if not slow:
        lines.append(f"  no link is below {SLOW_LINK:.0%} of the median pair, {format_bytes_per_s(usual)}")
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
