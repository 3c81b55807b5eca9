"""Results go into memory that the kernel must map first.

Needs: counted page faults that map at least half of the new results, and memory-bound operations that make them.
Promises: at most the observed time of these operations less their least time.
Source: man getrusage(2), ru_minflt; a fault maps one page, 4 KiB or 2 MiB.
"""

from __future__ import annotations

from mansard.core import Bound
from mansard.core.units import format_bytes, format_s
from mansard.diagnose.case import Case, Change, Proposal

_HOW = {
    "torch": "Reuse memory for large results: in-place operations or out= buffers",
    "jax": "XLA allocates results and temporaries anew in each call: donate arguments whose place a result can take "
    "(donate_argnums)",
}


def page_faults(case: Case) -> Proposal | None:
    """Advise where page faults on new results take the time of memory-bound operations."""
    if not case.memory.fresh_is_faulted or case.memory.faulted_bytes_per_step is None:
        return None
    rows = [r for r in case.of_bound(Bound.MEMORY) if r.operator.fresh_bytes > 0]
    time_s, gain = case.per_step_s(rows), case.headroom_s(rows)
    if gain <= 0:
        return None
    return Proposal(
        rule="page_faults",
        change=Change.RATE,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text=f"{_HOW.get(case.trace.framework, 'Reuse memory for large results')}; or keep freed memory with a caching "
        "allocator or huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1).",
        evidence=f"page faults map {format_bytes(case.memory.faulted_bytes_per_step)} a step for "
        f"{format_bytes(case.memory.fresh_bytes_per_step)} of new results; these operations take {format_s(time_s)}",
    )


RULE = page_faults
