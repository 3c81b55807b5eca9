"""The document of `mansard trace ranks`, and its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mansard.core.document import header
from mansard.core.units import format_ratio, format_s
from mansard.core.unknown import Unknown
from mansard.report.trace_layout import table
from mansard.report.trace_text import shown, why
from mansard.trace.many import FailedFile
from mansard.trace.rank_facts import RankFacts
from mansard.trace.ranks import JobRanks
from mansard.trace.timeline import Timeline

MOST_RANKS = 32  # in the text; the document has all


def _known(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _s(value: int | Unknown) -> float | Unknown:
    return value if isinstance(value, Unknown) else value / 1e9


def ranks_document(
    timelines: Sequence[Timeline | RankFacts], found: JobRanks, failed: Sequence[FailedFile] = ()
) -> dict[str, Any]:
    """Return the document of several files of one job.

    Args:
        timelines: The files, or what is kept of them.
        found: What they say together.
        failed: Files that could not be read.
    """
    names = [r.identity.rank for r in found.ranks]
    incomplete = any(t.incomplete for t in timelines) or bool(failed)
    damage = [{"source": t.source, "code": d.code, "text": d.text, "count": d.count, "incomplete": d.incomplete}
              for t in timelines for d in t.damage]  # fmt: skip
    straggler: Any = found.straggler if isinstance(found.straggler, Unknown) else names[found.straggler]
    return {
        **header("trace_ranks/1", {}),
        "sources": [t.source for t in timelines],
        "status": "incomplete" if incomplete else "complete",
        "damage": damage,
        "failed": [{"source": f.source, "error": f.error} for f in failed],
        "findings": [{"code": f.code, "text": f.text} for f in found.findings],
        "ranks": [
            {
                "rank": r.identity.rank, "stated_by": r.identity.stated_by, "world_size": r.identity.world_size, "source": r.source,
                "clock_shift_s": r.shift_ns / 1e9, "kernel_count": r.kernels, "compute_s": _s(r.compute_ns),
                "communication_s": _s(r.communication_ns), "overlap_s": _s(r.overlap_ns), "exposed_communication_s": _s(r.exposed_ns),
                "span_s": _s(r.span_ns), "waiting_s": _s(r.waiting_ns), "late_s": _s(r.late_ns), "arrived_last": r.last_count,
                "steps_s": {str(k): v / 1e9 for k, v in r.steps_ns.items()},
            }
            for r in found.ranks
        ],
        "clock": {
            "method": found.clock.method, "trust": found.clock.trust, "residual_s": [_s(v) for v in found.clock.residual_ns],
            "note": found.clock.note,
        },
        "steps": [
            {
                "step": s.number, "length_s": [v / 1e9 for v in s.length_ns], "spread_s": s.spread_ns / 1e9,
                "start_skew_s": s.start_skew_ns if isinstance(s.start_skew_ns, Unknown) else [v / 1e9 for v in s.start_skew_ns],
            }
            for s in found.steps
        ],
        "collectives": [
            {
                "operation": c.operation, "group": c.group, "number": c.number, "ranks": [names[i] for i in c.files],
                "arrival_skew_s": c.arrival_skew_ns / 1e9, "last_rank": names[c.last], "duration_s": [v / 1e9 for v in c.durations_ns],
                "transfer_at_most_s": c.transfer_ns / 1e9, "message_bytes": c.message_bytes,
            }
            for c in found.collectives
        ],
        "unmatched_kernels": list(found.unmatched),
        "straggler_rank": straggler,
        "imbalance_ratio": found.imbalance_ratio(),
    }  # fmt: skip


def ranks_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the text of `trace ranks`."""
    d = document
    rows = [
        [f"rank {shown(r['rank'], str)}", *(shown(r[k], format_s) for k in ("compute_s", "communication_s", "exposed_communication_s",
         "waiting_s", "late_s")), shown(r["arrived_last"], str)]
        for r in d["ranks"]
    ]  # fmt: skip
    head = ["rank", "compute", "communication", "exposed", "waiting", "made others wait", "arrived last"]
    hidden = len(rows) - MOST_RANKS
    if hidden > 0:  # of thousands, those that make others wait or wait most are what is looked for
        late = sorted(range(len(rows)), key=lambda i: -_known(d["ranks"][i]["late_s"]))[:MOST_RANKS]
        rows = [rows[i] for i in sorted(late)]
    lines = [
        *table(head, rows),
        *([f"{hidden} more ranks, which made others wait less"] if hidden > 0 else []),
        "",
        f"clock: {d['clock']['method']}, {d['clock']['trust']}: {d['clock']['note']}",
    ]
    steps = [
        [str(s["step"]), format_s(s["spread_s"]), shown(s["start_skew_s"], lambda v: ", ".join(format_s(x) for x in v)),
         ", ".join(format_s(v) for v in s["length_s"][:8])]
        for s in d["steps"][:20]
    ]  # fmt: skip
    lines += ["", *table(["step", "spread", "start after the first", "length by rank"], steps)] if steps else []
    worst = sorted(d["collectives"], key=lambda c: -c["arrival_skew_s"])[:10]
    shown_rows = [
        [f"{c['operation']} {c['number']}", format_s(c["arrival_skew_s"]), f"rank {shown(c['last_rank'], str)}",
         format_s(c["transfer_at_most_s"])]
        for c in worst
    ]  # fmt: skip
    lines += (
        ["", *table(["largest arrival skew", "skew", "last", "transfer at most"], shown_rows)] if shown_rows else []
    )
    straggler = d["straggler_rank"]
    lines += ["", f"straggler: {why(straggler) or f'rank {straggler}'}"]
    lines.append(f"imbalance of compute: {why(d['imbalance_ratio']) or format_ratio(d['imbalance_ratio'])}")
    return (
        lines
        + [f"  not read: {x['source']}: {x['error']}" for x in d["failed"]]
        + [f"  damaged: {x['source']}: {x['text']}" for x in d["damage"]]
        + [f"  note: {f['text']}" for f in d["findings"]]
    )
