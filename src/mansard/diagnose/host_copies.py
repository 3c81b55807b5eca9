"""How copies between host and device go: bytes, rate, share of their link, and whether they or the link are what is slow."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core import Demand, Implausible, Unknown
from mansard.core.units import format_bytes, format_bytes_per_s, format_ratio, format_s
from mansard.diagnose.areas import share_and_least
from mansard.diagnose.case import Case
from mansard.diagnose.judge_operators import JudgedOperator

#: From this share of its rate on a link counts as full: protocol headers alone take about as much as the rest.
FULL_SHARE = 0.8
#: What has less of the copies' time explains nothing of it.
_TELLING = 0.05


def is_pageable(case: Case, row: JudgedOperator) -> bool | None:
    """Return whether the host's memory of a kind of copy is pageable; None where that is not recorded."""
    told = case.facts.transfers.get(row.index)
    if told is not None and told.pinned is not None:
        return not told.pinned
    return True if "pageable" in row.operator.formula else None


def is_small(case: Case, row: JudgedOperator) -> bool:
    """Return whether starting a copy, as recorded, is a good part of its time."""
    told = case.facts.transfers.get(row.index)
    return told is not None and told.latency_s is not None


def copy_evidence(case: Case) -> list[str]:
    """Return what copies of each direction move, at what rate and share of their link, and what limits them.

    Args:
        case: The case.
    """
    lines = []
    for to_device, way in ((True, "host to device"), (False, "device to host")):
        rows = case.host_copies(to_device=to_device)
        sizes = [
            sum(float(b) for b in r.operator.demand.link_bytes.values()) * r.calls
            for r in rows
            if isinstance(r.operator.demand, Demand)
        ]
        seconds, total = case.per_step_s(rows), sum(sizes) / case.windows.count
        if len(sizes) != len(rows) or total <= 0 or seconds <= _TELLING * case.per_step_s(case.host_copies()):
            continue
        text = f"{way}: {format_bytes(total)} a step at {format_bytes_per_s(total / seconds)}"
        lines.append(f"{text}; {_judged(case, rows)} [measured]")
    return lines + _memory_evidence(case)


def _judged(case: Case, rows: Sequence[JudgedOperator]) -> str:
    """Return the share of the link in words, and which of the two is slow."""
    share, _ = share_and_least(rows)
    limiting = next((r.judgement.limiting for r in rows if r.judgement.limiting is not None), None)
    if isinstance(share, Unknown) or limiting is None:
        return "its share of the link is not known" + (f": {share.reason}" if isinstance(share, Unknown) else "")
    ceiling = limiting.ceiling
    link = f"{ceiling.resource.label} ({format_bytes_per_s(ceiling.value)}, {ceiling.kind.value})"
    if isinstance(share, Implausible):
        return f"{share.value:.2f} of the {link}, which cannot be"
    if share >= FULL_SHARE:
        return (
            f"{format_ratio(share)} of the {link}: the link is full, fewer bytes or overlap help and pinning does not"
        )
    time_s = sum(r.total_s for r in rows)
    paged = sum(r.total_s for r in rows if is_pageable(case, r))
    small = sum(r.total_s for r in rows if is_small(case, r) and not is_pageable(case, r))
    pinned = sum(r.total_s for r in rows if is_pageable(case, r) is False)
    if paged > 0.5 * time_s:
        why = "the copies are slow: pageable memory"
    elif small > 0.5 * time_s:
        why = "the copies are slow: small pieces"
    elif pinned > 0.5 * time_s:
        why = "pinned and not small: other traffic, or a link with fewer lanes or of an older generation than this ceiling's"
    else:
        why = "the link is not full"
    return f"{format_ratio(share)} of the {link}: {why}"


def _memory_evidence(case: Case) -> list[str]:
    """Return what is known of the host's memory."""
    rows = case.host_copies()
    pageable = case.per_step_s([r for r in rows if is_pageable(case, r)])
    if pageable > _TELLING * case.per_step_s(rows):
        return [
            f"{format_s(pageable)} of them from or to pageable memory; pinned memory goes at the link's rate [measured]"
        ]
    if case.trace.framework == "profile" and all(is_pageable(case, r) is None for r in rows):
        return ["whether their memory is pinned is not recorded; from pageable memory the link is not filled [assumed]"]
    return []
