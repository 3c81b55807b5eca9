"""How a baseline grows and when it advances: a better result has to come twice, a worse one has to be accepted with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown
from mansard.history.compare import Comparison, ComparisonVerdict, Limits, Result, compare, impossible
from mansard.history.documents import read_bytes
from mansard.history.records import Record
from mansard.history.store import Store

#: A baseline that took in every run that is nearly the same would follow a slow decline and never report it.
MOST_RUNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What became of a result that was offered to a baseline.

    Args:
        action: `started`, `joined`, `kept`, `pending`, `advanced`, `accepted`, `unchanged` or `refused`.
        text: What that means, in words.
        comparison: The comparison with the accepted results, where there were any.
    """

    action: str
    text: str
    comparison: Comparison | None = None

    @property
    def exit_code(self) -> int:
        """0 unless it was refused: then that of the comparison."""
        if self.action != "refused":
            return 0
        return self.comparison.exit_code if self.comparison is not None else 3


def add_to_baseline(
    store: Store, name: str, raw: bytes, *, source: str, accept: str = "", limits: Limits | None = None, form: str = "auto",
    labels: Mapping[str, Mapping[str, str]] | None = None,
) -> Added:  # fmt: skip
    """Offer a result to a baseline.

    Args:
        store: The history.
        name: The baseline.
        raw: The document.
        source: Its file name.
        accept: A reason to take it whatever the comparison says; it is recorded.
        limits: What counts as a change.
        form, labels: As in `Store.add`.

    The first result starts the baseline. One that is the same joins it: more runs tell more about the noise. A better one waits, and
    the baseline advances when a second run is as good: one lucky run must not make all later ones look slow. Anything else is
    refused unless it is accepted with a reason.

    Raises:
        InputError: the document is damaged or holds nothing to compare.
    """
    record = read_bytes(raw, source=source, labels=labels, form=form)
    if record.empty:
        raise InputError(f"{source} cannot be a baseline: {record.empty}", hint="measure again")
    offer = _Offer(raw=raw, record=record, form=form, labels=labels)
    known = next((s for s in store.baselines() if s.name == name), None)
    if known is None or not known.states["accepted"]:
        warned = _not_believed(record)
        offer.put(store, name, state="accepted", reason=accept or "first")
        return Added(action="started", text=f"baseline {name!r} starts with {source}{warned}")
    baseline = store.baseline(name)
    here = next((e for e in baseline.entries if e.stored.sha256 == record.sha256 and e.state != "retired"), None)
    if here is not None and not accept:
        same = dict(here.stored.labels) == dict(labels or {})
        hint = (
            "" if same else "; its labels are others there: --accept REASON takes it with these, as the baseline alone"
        )
        return Added(action="unchanged", text=f"{source} is in baseline {name!r} already ({here.state}){hint}")
    found = compare(baseline.records(), [record], limits)
    if accept:
        store.replace(name, raw, source=source, reason=accept, form=form, labels=labels)
        return Added(action="accepted", text=f"baseline {name!r} is now {source}: {accept}", comparison=found)
    if found.verdict is ComparisonVerdict.SAME and known.states["accepted"] >= MOST_RUNS:
        store.add(raw, source=source, form=form, labels=labels)
        text = f"{source} is the same as baseline {name!r}, which has its {MOST_RUNS} runs: kept in the history alone"
        return Added(action="kept", text=text, comparison=found)
    if found.verdict is ComparisonVerdict.SAME:
        offer.put(store, name, state="accepted", reason="the same as the baseline")
        return Added(action="joined", text=f"{source} joins baseline {name!r}: no change", comparison=found)
    if _learns(found):
        offer.put(store, name, state="accepted", reason="within what processes are assumed to differ by")
        text = (
            f"{source} joins baseline {name!r}: within the {found.limits.unseen_ratio:.0%} that processes are assumed to differ by; "
            "nothing shows yet how much they do, more runs will"
        )
        return Added(action="joined", text=text, comparison=found)
    if found.verdict is ComparisonVerdict.FASTER:
        return _better(store, name, offer, found, baseline.records("pending"), limits)
    text = f"{source} is {found.verdict.value.replace('_', ' ')} against baseline {name!r}: not added"
    return Added(action="refused", text=text, comparison=found)


def _not_believed(record: Record) -> str:
    """Return what to say of a first result of which some figures cannot be believed; empty where all can.

    Raises:
        InputError: none can: every later result would be held against something that cannot be.
    """
    measured = [m for m in record.measurements if m.primary and (m.flaw or not m.absent)]
    wrong = [(m.name, why) for m in measured if (why := m.flaw or impossible([m]))]
    if not wrong:
        return ""
    if len(wrong) == len(measured):
        raise InputError(f"{record.source} cannot be a baseline: {wrong[0][1]}", hint="measure again")
    return f"; {len(wrong)} of its {len(measured)} figures cannot be believed and judge nothing: {wrong[0][0]}, {wrong[0][1]}"


def _learns(found: Comparison) -> bool:
    """Return whether a run is taken in because only more runs can show how processes differ.

    Each figure is the same, or could not be called for want of that alone and lies within what is assumed. This ends with the fourth run,
    so a slow decline cannot follow it.
    """
    edge = math.log1p(found.limits.unseen_ratio)

    def near(r: Result) -> bool:
        return r.code == "single_process" and not isinstance(r.ratio, Unknown) and abs(math.log(r.ratio)) <= edge

    undecided = [r for r in found.results if r.verdict is not ComparisonVerdict.SAME]
    return bool(undecided) and all(near(r) for r in undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A result on its way into a baseline."""

    raw: bytes
    record: Record
    form: str
    labels: Mapping[str, Mapping[str, str]] | None

    def put(self, store: Store, name: str, *, state: str, reason: str, promote: bool = False) -> None:
        """Keep it as part of a baseline."""
        store.put(
            name, self.raw, source=self.record.source, form=self.form, labels=self.labels, state=state, reason=reason, promote=promote
        )  # fmt: skip


def _better(
    store: Store, name: str, offer: _Offer, found: Comparison, pending: list[Record], limits: Limits | None
) -> Added:
    source = offer.record.source
    if pending:
        again = compare(pending, [offer.record], limits)
        if again.verdict in (ComparisonVerdict.SAME, ComparisonVerdict.FASTER):
            offer.put(store, name, state="accepted", reason="improvement, confirmed", promote=True)
            text = f"baseline {name!r} advances: {source} confirms the improvement of {len(pending)} run before it"
            return Added(action="advanced", text=text, comparison=found)
        offer.put(store, name, state="pending", reason="improvement, not confirmed: it differs from the one before")
        text = f"{source} is better than baseline {name!r}, but differs from the pending run: one more run decides"
        return Added(action="pending", text=text, comparison=found)
    offer.put(store, name, state="pending", reason="improvement, waits for a second run")
    text = f"{source} is better than baseline {name!r}: kept as pending, a second run that is as good advances the baseline"
    return Added(action="pending", text=text, comparison=found)
