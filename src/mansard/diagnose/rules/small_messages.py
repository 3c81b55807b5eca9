"""Messages so small that their latency is most of their time.

Needs: a measured fit t = alpha + bytes / beta of the same collective, ranks and link, and messages below its half-rate size alpha x beta.
Promises: alpha of the messages that joining saves, if as many are joined as reach four times the half-rate size. What the bytes need at
beta is not promised.
Source: Hockney, Parallel Computing 20(3), 1994: n_half = alpha x beta.
"""

from __future__ import annotations

from math import ceil

from mansard.core.units import format_bytes, format_s
from mansard.diagnose.case import Case, Change, Proposal
from mansard.diagnose.talks import fit_for, talks_of

#: Joined messages of this many half-rate sizes spend a fifth of their time on latency.
JOINED = 4.0


def small_messages(case: Case) -> Proposal | None:
    """Advise on joining messages that are dominated by latency."""
    rows, gain, text = [], 0.0, ""
    for talk in talks_of(case):
        fit = fit_for(case, talk)
        if fit is None:
            continue
        alpha, half = float(fit["alpha_s"]), float(fit["alpha_s"]) * float(fit["beta_bytes_per_s"])
        calls = case.calls([talk.row])
        joined = max(1.0, float(ceil(calls * talk.bus_bytes / (JOINED * half))))
        if talk.bus_bytes >= half or calls <= joined:
            continue
        time_s = case.per_step_s([talk.row])
        saved = min(alpha * (calls - joined), time_s - calls * talk.bus_bytes / float(fit["beta_bytes_per_s"]))
        if saved <= 0:
            continue
        rows.append(talk.row)
        gain += saved
        text = text or (
            f"{calls:.0f} x {talk.operation} of {format_bytes(talk.bus_bytes)} a step, below the half-rate size of {format_bytes(half)} "
            f"(latency {format_s(alpha)}); {joined:.0f} would do"
        )
    if not rows:
        return None
    return Proposal(
        rule="small_messages",
        change=Change.WORK,
        rows=tuple(r.index for r in rows),
        gain_s=gain,
        text="Join small messages into larger ones: larger buckets, coalesced collectives, one flat buffer.",
        evidence=f"{text}; these take {format_s(case.per_step_s(rows))}",
    )


RULE = small_messages
