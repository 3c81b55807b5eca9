"""The network of a run: what its collectives sent, the rate they reached, latency against bandwidth, and another rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core import Ceilings, Unknown
from mansard.core.collectives import AlphaBeta, fit_alpha_beta
from mansard.core.errors import UsageError
from mansard.core.intervals import merge
from mansard.core.units import format_bytes_per_s, format_ratio, format_s
from mansard.diagnose.account import Account, Windows, inside
from mansard.diagnose.links import within_process
from mansard.diagnose.records import Note
from mansard.trace.run import RunTrace

ALONE = 0.95  # share of an exchange in which no other runs, for its time to be its own
LEAST_CALLS = 3
LEAST_SHARE = 0.02  # of a step, for its exchanges to be told
SPREAD = 2.0  # largest over smallest message from which on a line tells latency from bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """What one step sends to other processes, and how long that takes.

    Args:
        link: Link it goes over.
        calls: Exchanges of a step.
        bus_bytes: What one process must send in a step [B].
        busy_s: Time of a step in which an exchange is under way, waiting for late peers included [s].
        exposed_s: Part of it in which nothing else runs [s].
        step_s: Time of a step [s].
        fit: t = alpha + bus bytes / beta over the exchanges that ran alone, by size; or why there is none.
        link_bytes_per_s: Rate of the link [B/s]: its ceiling, else the fit, else the best rate that an exchange reached.
        rate_from: Where that rate comes from.
    """

    link: str
    calls: float
    bus_bytes: float
    busy_s: float
    exposed_s: float
    step_s: float
    fit: AlphaBeta | Unknown
    link_bytes_per_s: float
    rate_from: str

    @property
    def busbw_bytes_per_s(self) -> float:
        """Bytes that busbw counts over the time in which an exchange is under way [B/s]."""
        return self.bus_bytes / self.busy_s

    @property
    def bandwidth_share_ratio(self) -> float:
        """Share of that time which the bytes need at the rate of the link; the rest is latency and waiting for peers."""
        return min(1.0, self.bus_bytes / self.link_bytes_per_s / self.busy_s)

    @property
    def dominated_by(self) -> str:
        """`bandwidth` or `latency`, whichever has most of the time of the exchanges."""
        return "bandwidth" if self.bandwidth_share_ratio >= 0.5 else "latency"

    def step_at_s(self, bytes_per_s: float) -> float:
        """Return the time of a step over a link of another rate and the same latency [s].

        The bytes take S / W instead of S / W0. What computation hides today it goes on hiding: of the exchanges
        `busy - exposed` stays hidden while they last at least that long.

        Args:
            bytes_per_s: W, one way, of one process [B/s].

        Source: Hockney 1994 for alpha + S / W; docs/design.md, one equation.
        """
        if not bytes_per_s > 0.0:
            raise UsageError(f"the rate of a link must be positive, got {bytes_per_s} B/s")
        hidden = self.busy_s - self.exposed_s
        busy = self.busy_s * (1.0 - self.bandwidth_share_ratio) + self.bus_bytes / bytes_per_s
        return self.step_s - self.exposed_s + max(0.0, busy - hidden)

    def to_json(self) -> dict[str, Any]:
        """Return it with what follows from it."""
        fit: Any = self.fit.to_json()
        return {
            "link": self.link, "calls_per_step": self.calls, "bus_bytes_per_step": self.bus_bytes, "busy_s": self.busy_s,
            "exposed_s": self.exposed_s, "busbw_bytes_per_s": self.busbw_bytes_per_s,
            "link_bytes_per_s": self.link_bytes_per_s, "link_rate_from": self.rate_from, "dominated_by": self.dominated_by,
            "bandwidth_share_ratio": self.bandwidth_share_ratio, "fit": fit, "step_s": self.step_s,
            "step_at_rates": [
                {"link_ratio": ratio, "bytes_per_s": ratio * self.link_bytes_per_s,
                 "step_s": self.step_at_s(ratio * self.link_bytes_per_s)} for ratio in (0.5, 2.0, 4.0, 10.0)
            ],
        }  # fmt: skip


def collective_ops(trace: RunTrace) -> npt.NDArray[np.bool_]:
    """Return for each executed operation whether it is an exchange between processes or devices."""
    kinds = np.array([o.category == "collective" for o in trace.operators] or [False])
    chosen: npt.NDArray[np.bool_] = kinds[trace.op] if trace.op.size else np.zeros(0, dtype=bool)
    return chosen


def network_use(trace: RunTrace, windows: Windows, where: Account, ceilings: Ceilings) -> NetworkUse | Unknown | None:
    """Return what a step of a run does with the network; None where it has no exchanges.

    Args:
        trace: The run.
        windows: Its steady steps.
        where: Its account.
        ceilings: The machine; a ceiling of the link is its rate.
    """
    mine = collective_ops(trace)
    rows = np.flatnonzero(mine & inside(windows, trace.start_ns))
    if not rows.size:
        return None
    within = within_process(trace.environment)
    if within is not None:
        return within
    sent = np.zeros(rows.size)
    links: dict[str, float] = {}
    for i, kind in enumerate(trace.op[rows].tolist()):
        demand = trace.operators[kind].demand
        if isinstance(demand, Unknown):
            return demand
        sent[i] = sum(float(b) for b in demand.link_bytes.values())
        for name, size in demand.link_bytes.items():
            links[name] = links.get(name, 0.0) + float(size)
    if not links or not sent.sum() > 0.0:
        return Unknown("the exchanges of this run send nothing", ())
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    scale = 1e-9 / windows.count
    busy = merge(start, end).length_ns * scale
    link = max(links, key=lambda n: links[n])
    samples = _alone(start, end, sent)
    fit = _fit(samples)
    rate, origin = _rate(ceilings, link, fit, samples, float(sent.sum()) / windows.count / busy)
    return NetworkUse(
        link=link, calls=rows.size / windows.count, bus_bytes=float(sent.sum()) / windows.count, busy_s=busy,
        exposed_s=min(busy, where.by_kind["network"]), step_s=where.step_s, fit=fit, link_bytes_per_s=rate, rate_from=origin,
    )  # fmt: skip


def _alone(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], sent: npt.NDArray[np.float64]
) -> dict[float, list[float]]:
    """Return the times of the exchanges that shared the network with no other of this process, by their bytes [s]."""
    order = np.argsort(start, kind="stable")
    found: dict[float, list[float]] = {}
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end[order])[:-1]])
    after = np.concatenate([start[order][1:], [np.iinfo(np.int64).max]])
    for i, row in enumerate(order.tolist()):
        length = int(end[row] - start[row])
        own = min(int(end[row]), int(after[i])) - max(int(start[row]), int(before[i]))
        if sent[row] > 0 and length > 0 and own >= ALONE * length:
            found.setdefault(float(sent[row]), []).append(length * 1e-9)
    return {size: times for size, times in found.items() if len(times) >= LEAST_CALLS}


def _fit(samples: Mapping[float, list[float]]) -> AlphaBeta | Unknown:
    if len(samples) < 2 or max(samples) < SPREAD * min(samples):
        return Unknown(
            f"{len(samples)} sizes of messages ran alone often enough; a line needs two that differ by {SPREAD:g}x",
            ("mansard measure across the processes",),
        )
    return fit_alpha_beta(samples)


def _rate(
    ceilings: Ceilings, link: str, fit: AlphaBeta | Unknown, samples: Mapping[float, list[float]], whole: float
) -> tuple[float, str]:
    """Return the rate of the link [B/s] and where it is from; what exchanges reached is a lower bound of it."""
    known = ceilings.link(link)
    if not isinstance(known, Unknown):
        return known.value, f"{known.kind.value} ceiling of the link"
    best = max([whole, *(size / float(np.median(times)) for size, times in samples.items() if size > 0)])
    if isinstance(fit, AlphaBeta) and isinstance(fit.beta_bytes_per_s, float) and fit.beta_bytes_per_s >= best:
        return fit.beta_bytes_per_s, "fit of latency and bandwidth over the sizes of this run"
    return best, "best rate that an exchange of this run reached: a lower bound"


def network_notes(use: NetworkUse | Unknown | None) -> tuple[Note, ...]:
    """Return what to tell a reader of the network of a run; nothing where it hardly matters."""
    if use is None:
        return ()
    if isinstance(use, Unknown):
        return (Note(code="network_unknown", text=f"the collectives have no figures of a network: {use.reason}"),)
    if use.exposed_s < LEAST_SHARE * use.step_s:
        return ()
    fit = ""
    if isinstance(use.fit, AlphaBeta) and isinstance(use.fit.beta_bytes_per_s, float):
        fit = f" (fit over sizes: {format_s(use.fit.alpha_s)} + bytes / {format_bytes_per_s(use.fit.beta_bytes_per_s)})"
    mean = "" if float(use.calls).is_integer() else " (the mean of steps that differ)"
    text = (
        f"a step sends {use.bus_bytes / 1e6:.3g} MB in {use.calls:.3g} exchanges{mean} over {use.link} at busbw "
        f"{format_bytes_per_s(use.busbw_bytes_per_s)}, {use.dominated_by}-dominated: the bytes need "
        f"{format_ratio(use.bandwidth_share_ratio)} of that time at {format_bytes_per_s(use.link_bytes_per_s)} "
        f"({use.rate_from}){fit}; over a link twice as fast a step would take {format_s(use.step_at_s(2.0 * use.link_bytes_per_s))} "
        f"instead of {format_s(use.step_s)}"
    )
    return (Note(code="network", text=text),)
