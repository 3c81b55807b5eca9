"""Points of one run beside each other: implementations of one shape, and time against memory of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mansard.core.document import to_jsonable
from mansard.core.units import format_binary_bytes, format_s
from mansard.measure.benchmarks.comparison import Comparison, compare_implementations
from mansard.measure.benchmarks.remat import ParetoRow, pareto_table
from mansard.measure.points.result import Result, State

REPEATED = " #"  # behind the name of a point that its file holds twice
_APART = ("policy", "impl", "warmup_tries", "num_runs", "min_duration_s", "max_duration_s")


def comparisons(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield one conclusion for each shape of which several implementations were asked for and one was timed."""
    once = [r for r in results if REPEATED not in r.point.name]
    for found in compare_implementations(once):
        if len(found.rows) > 1 and found.tied:
            yield {
                "kind": "comparison", "benchmark": found.benchmark, "impl": ",".join(r.impl for r in found.rows),
                "test_name": _shape_name(found, once), "params": dict(found.params), "fastest": found.fastest,
                "tied": list(found.tied), "disturbed": found.disturbed, "sentence": found.sentence(), "rows": to_jsonable(list(found.rows)),
            }  # fmt: skip


def _shape_name(found: Comparison, results: Sequence[Result]) -> str:
    """Return the name of the compared points without the implementation."""
    first = next(
        r.point for r in results
        if r.point.benchmark == found.benchmark and all(r.point.params.get(k) == v for k, v in found.params.items())
    )  # fmt: skip
    return first.name.replace(f"[{first.impl}]", "", 1)


def pareto_tables(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield time against peak memory for each model of which several policies were measured."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        if r.point.benchmark == "remat" and r.state is State.DONE and REPEATED not in r.point.name:
            shared = repr(sorted((k, v) for k, v in r.point.params.items() if k not in _APART))
            groups.setdefault((r.point.impl, shared), []).append(r)
    for (impl, _), members in groups.items():
        rows = pareto_table(members)
        if len(rows) > 1:
            yield {
                "kind": "pareto", "benchmark": "remat", "impl": impl, "sentence": pareto_sentence(rows),
                "rows": to_jsonable(list(rows)),
            }  # fmt: skip


def pareto_sentence(rows: Sequence[ParetoRow]) -> str:
    """Return what a table of time against memory says in one sentence."""
    front = [r for r in rows if not r.dominated_by]
    small = min(rows, key=lambda r: (r.peak_memory_bytes, r.time_s))
    quick = min(front, key=lambda r: r.time_s)
    text = f"{quick.policy} takes {format_s(quick.time_s)} and {format_binary_bytes(quick.peak_memory_bytes)}"
    if small.policy != quick.policy:
        less, more = 1.0 - small.peak_memory_bytes / quick.peak_memory_bytes, small.time_s / quick.time_s
        text += f"; {small.policy} needs {less:.0%} less memory "
        wide = [r.policy for r in (quick, small) if r.noisy]
        text += f"for {more:.2f}x the time" if not wide else f"(times not compared: {', '.join(wide)} noisy)"
    worse = [r.policy for r in rows if r.dominated_by]
    return text + (f"; never the better choice: {', '.join(worse)}" if worse else "")


def sentence(conclusion: Mapping[str, Any]) -> str:
    """Return the sentence that a conclusion carries."""
    return str(conclusion["sentence"])
