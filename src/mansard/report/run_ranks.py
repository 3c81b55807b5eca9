"""The documents of `mansard run` of the ranks of one job, held against each other: who makes the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mansard.core.document import header
from mansard.core.errors import UsageError
from mansard.core.units import format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_layout import table
from mansard.report.trace_text import shown, why

SCHEMA = "run_ranks/1"
#: Of a step; a rank whose own work is longer than the next longest by less is no straggler.
LEAST_GAIN = 0.05
#: Steps of one job that differ by more are not the same steps.
ONE_STEP = 0.1
_NO_RANK = Unknown("the document does not say which rank it is", ("mansard run behind the launcher",))


def run_ranks_document(documents: Sequence[Mapping[str, Any]], sources: Sequence[Path]) -> dict[str, Any]:
    """Return the comparison of the ranks of one job.

    Args:
        documents: Of `mansard run`, one of each rank.
        sources: Their files.

    Raises:
        UsageError: two of the same rank, or of jobs of other sizes.

    Assumes: ranks take their steps together, so that of equal steps the one with the most work of its own is waited for. Its own
    work is the step without the time in which nothing but an exchange is under way.
    """
    rows = sorted((_row(d, str(s)) for d, s in zip(documents, sources, strict=True)), key=_by_rank)
    ranks = [r["rank"] for r in rows if isinstance(r["rank"], int)]
    twice = next((r for r in ranks if ranks.count(r) > 1), None)
    if twice is not None:
        raise UsageError(f"two documents are of rank {twice}", hint="give one of each rank of one run")
    worlds = sorted({r["world_size"] for r in rows if isinstance(r["world_size"], int)})
    if len(worlds) > 1:
        raise UsageError(f"the documents are of jobs of {' and '.join(map(str, worlds))} ranks")
    known = [r["exposed_exchange_s"] for r in rows if isinstance(r["exposed_exchange_s"], float)]
    for row in rows:
        exposed = row["exposed_exchange_s"]
        row["waits_at_most_s"] = exposed - min(known) if isinstance(exposed, float) else exposed
    missing = [r for r in range(worlds[0] if worlds else 0) if r not in ranks] if len(ranks) == len(rows) else []
    straggler, gain = _straggler(rows)
    return {
        **header(SCHEMA, {}), "sources": [r["source"] for r in rows], "ranks": rows, "straggler": straggler,
        "step_less_at_most_s": gain, "missing_ranks": missing,
        "notes": [
            "own work is the step without the time in which only an exchange is under way; an exchange holds the waiting for late ranks",
            *([f"no document of rank {', '.join(map(str, missing))}"] if missing else []),
            *_loaded(documents, rows),
        ],
    }  # fmt: skip


def _loaded(documents: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say where other programs were in the figures, since who is slow may be who shared its processors."""
    found = sum(any(f["code"] == "foreign_load" for f in d["findings"]) for d in documents)
    what = "every run" if found == len(rows) else f"{found} of {len(rows)} runs"
    return [f"in {what} other programs used the processors: who is slow may be who shared them"] if found else []


def _by_rank(row: Mapping[str, Any]) -> tuple[bool, int]:
    known = isinstance(row["rank"], int)
    return (not known, row["rank"] if known else 0)


def _row(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    receipt = document["receipt"]
    job, network = receipt.get("job") or {}, receipt.get("network")
    step = document["step"]["median_s"] if document.get("step") else None
    step = step if isinstance(step, float | int) else Unknown("no steps were found", ("a longer run",))
    exposed: float | Unknown
    if isinstance(network, Mapping) and "exposed_s" in network:
        exposed = float(network["exposed_s"])
    elif isinstance(network, Mapping) and "unknown" in network:
        exposed = Unknown(str(network["unknown"]), tuple(network.get("needs", ())))
    else:
        exposed = Unknown("no exchange of it was recorded", ("a backend that records its exchanges, as gloo does",))
    return {
        "rank": job.get("rank", _NO_RANK), "host": job.get("host", ""), "world_size": job.get("world"), "source": source,
        "step_s": step, "exposed_exchange_s": exposed,
        "own_work_s": step - exposed if not isinstance(step, Unknown) else step, "verdict": document["verdict"]["bound"],
    }  # fmt: skip


def _straggler(rows: Sequence[Mapping[str, Any]]) -> tuple[int | Unknown | None, float | Unknown | None]:
    """Return the rank whose own work holds the others up, None where it is even, and what a step would take less without it."""
    own = {r["rank"]: r["own_work_s"] for r in rows}
    unsure = next((v for v in (*own, *own.values()) if isinstance(v, Unknown)), None)
    if unsure is not None:
        return unsure, unsure
    steps = [r["step_s"] for r in rows]
    if max(steps) > (1.0 + ONE_STEP) * min(steps):
        text = f"steps of {format_s(min(steps))} to {format_s(max(steps))} are not the same steps"
        apart = Unknown(text, ("runs of one job, and a machine that nothing else uses",))
        return apart, apart
    first, second = sorted(own.values(), reverse=True)[:2]
    if first - second < LEAST_GAIN * median(steps):
        return None, None
    return max(own, key=lambda r: own[r]), first - second


def run_ranks_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the comparison for reading.

    Args:
        document: `run_ranks/1` in plain JSON types.
    """
    head = ["rank", "host", "step", "own work", "only exchange", "waits at most", "bound"]
    rows = [
        [f"{shown(r['rank'], str)}", r["host"] or "-", shown(r["step_s"], format_s), shown(r["own_work_s"], format_s),
         shown(r["exposed_exchange_s"], format_s), shown(r["waits_at_most_s"], format_s), str(r["verdict"])]
        for r in document["ranks"]
    ]  # fmt: skip
    lines = [*table(head, rows), ""]
    straggler = document["straggler"]
    if isinstance(straggler, Mapping):
        lines.append(f"straggler: not known: {why(straggler)}")
    elif straggler is None:
        lines.append("straggler: none; the ranks have as much work of their own")
    else:
        own = {r["rank"]: r["own_work_s"] for r in document["ranks"]}
        others = max(v for rank, v in own.items() if rank != straggler)
        step = max(r["step_s"] for r in document["ranks"])
        lines.append(
            f"straggler: rank {straggler} makes the others wait: {format_s(own[straggler])} of work of its own, the next {format_s(others)}; "
            f"with as much as that a step takes up to {format_s(document['step_less_at_most_s'])} less "
            f"({format_ratio(document['step_less_at_most_s'] / step)})"
        )
    return [*lines, *(f"  note: {note}" for note in document["notes"])]
