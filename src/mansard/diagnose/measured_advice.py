"""What to do about measured points: another implementation, padding, a larger size, a quiet machine, a slow kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mansard.core import Bound, Ceilings, Grade, Unknown, is_known
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.candidates import REFERENCES
from mansard.diagnose.fixed_cost import FixedCost, backend_of, product_name
from mansard.diagnose.measured import Element, JudgedPoint, Law, MeasuredDiagnosis, PointAdvice, judged_points, laws_of
from mansard.diagnose.records import Note
from mansard.diagnose.regime import FOREIGN_LOAD
from mansard.measure.points.conclusions import conclusions
from mansard.measure.points.verdict import NORMAL_SHARE

_NO_GAIN = Unknown("it makes figures sure and saves no time by itself")
_MOST_SLOW = 3  # points far below their ceiling that are named


def diagnose_points(
    elements: Sequence[Element], ceilings: Ceilings | None = None, *, source: str = "measured points",
    notes: Sequence[Note] = (),
) -> MeasuredDiagnosis:  # fmt: skip
    """Return the diagnosis of measured points.

    Args:
        elements: Elements of `detailed.json`.
        ceilings: Ceilings beside them: those that the same run measured, those of a product, or both.
        source: Where the points come from.
        notes: Findings to begin with.
    """
    laws = laws_of(elements, ceilings)
    points = judged_points(elements, ceilings, laws)
    together = tuple(conclusions(elements, ceilings.levels if ceilings is not None else ()))
    found = [*_again(points), *sorted(_gains(points, together), key=lambda a: -_order(a)), *_sizes(points, laws)]
    return MeasuredDiagnosis(
        source=source, points=points, laws=laws, together=together, advice=tuple(found),
        findings=(*notes, *_findings(points)),
        unmeasured=tuple(
            (str(e["metadata"]["test_name"]), str(e["state"]), str(e.get("reason") or "")) for e in elements if e["state"] != "done"
        ),
        environment=dict(elements[0].get("environment") or {}) if elements else {},
    )  # fmt: skip


def _order(advice: PointAdvice) -> float:
    return float(advice.gain_s) if is_known(advice.gain_s) else 0.0


def _again(points: Sequence[JudgedPoint]) -> Iterator[PointAdvice]:
    """Yield that the points should be measured again where others used the machine while most of them were."""
    busy = [p for p in points if p.foreign_ratio is not None and p.foreign_ratio > FOREIGN_LOAD]
    if not busy or 2 * len(busy) < len(points):
        return
    loads = sorted(p.foreign_ratio for p in busy if p.foreign_ratio is not None)
    yield PointAdvice(
        rule="idle_machine", gain_s=_NO_GAIN, text="Measure again on an idle machine before anything else is concluded.",
        evidence=f"other programs used up to {format_ratio(loads[-1])} of the processors during {len(busy)} of {len(points)} points",
    )  # fmt: skip


def _gains(points: Sequence[JudgedPoint], together: Sequence[Mapping[str, Any]]) -> Iterator[PointAdvice]:
    # What others slowed down has no other remedy yet than a quiet machine.
    busy = {_place(p) for p in points if p.worth == "noisy" and (p.foreign_ratio or 0.0) > FOREIGN_LOAD}
    slower: set[tuple[str, str]] = set()  # shape and implementation that another one is faster than
    for c in together:
        if c["kind"] == "comparison":
            yield from _choice(c, busy)
            slower |= {(str(c["test_name"]), str(r["impl"])) for r in c["rows"] if r["impl"] not in c["tied"]}
    yield from _padding(together, [p for p in points if _place(p) in busy])
    slow = [
        p for p in points
        if p.worth != "implausible" and is_known(p.share_of_ceiling) and p.share_of_ceiling < NORMAL_SHARE and is_known(p.headroom_s)
        and p.bound is not Bound.LATENCY and p.point.impl not in REFERENCES
        and _place(p) not in slower | busy
        and not (p.size is not None and p.size.too_small is True)
    ]  # fmt: skip
    for p in slow[:_MOST_SLOW]:
        assert is_known(p.headroom_s)
        yield PointAdvice(
            rule="below_ceiling", gain_s=p.headroom_s, at_most=True, grade=Grade.MODELLED,
            text=f"Find out why {p.point.label} is far below its ceiling.",
            evidence=f"{p.worth_reason or p.reason}; {p.name}",
        )  # fmt: skip


def _place(p: JudgedPoint) -> tuple[str, str]:
    """Return shape and implementation of a point, as comparisons name them."""
    return p.name.replace(f"[{p.point.impl}]", "", 1), p.point.impl


def _choice(c: Mapping[str, Any], busy: set[tuple[str, str]]) -> Iterator[PointAdvice]:
    """Yield which implementation to use: only one that is no reference, and that no other overlaps with."""
    rows = [r for r in c["rows"] if r["time_s"] is not None and r["impl"] not in REFERENCES]
    if len(rows) < 2 or rows[1]["impl"] in rows[0]["tied_with"]:
        return
    best, next_ = rows[0], rows[1]
    if {(str(c["test_name"]), str(r["impl"])) for r in (best, next_)} & busy:
        return
    yield PointAdvice(
        rule="kernel_choice", gain_s=next_["low_s"] - best["high_s"],
        text=f"Use {best['impl']} for {c['test_name']}.",
        evidence=f"{best['impl']} takes {format_s(best['time_s'])}, {next_['impl']} {format_s(next_['time_s'])} "
        f"({next_['time_s'] / best['time_s']:.2f} times as long); their intervals do not overlap",
    )  # fmt: skip


def _padding(together: Sequence[Mapping[str, Any]], busy: Sequence[JudgedPoint]) -> Iterator[PointAdvice]:
    """Yield the padded size that saves most of each size that was measured with padding."""
    best: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for c in together:
        sizes = (c.get("base"), c.get("padded"))
        doubted = any(
            (p.point.benchmark, p.point.impl) == (c["benchmark"], c["impl"]) and p.point.params.get("size") in sizes for p in busy
        )  # fmt: skip
        if c["kind"] == "padding" and c["verdict"] == "pad" and not doubted:
            key = (str(c["benchmark"]), str(c["impl"]), int(c["base"]))
            if key not in best or best[key]["ci95"][0] < c["ci95"][0]:
                best[key] = c
    for (benchmark, impl, base), c in best.items():
        own_s = 2.0 * float(base) ** 3 / float(c["flop_per_s"][0])
        low, high = c["ci95"]
        yield PointAdvice(
            rule="shape_alignment", gain_s=own_s * (1.0 - 1.0 / low),
            text=f"Pad {base} to {c['padded']} in {benchmark}[{impl}].",
            evidence=f"padded it is {c['gain_ratio']:.2f} times as fast ({low:.2f} to {high:.2f}), its "
            f"{format_ratio(float(c['extra_flop_ratio']))} more work included",
        )  # fmt: skip


def _sizes(points: Sequence[JudgedPoint], laws: Sequence[Law]) -> Iterator[PointAdvice]:
    """Yield from which size on a rate can be judged, where points are too small for it."""
    small = [p for p in points if p.size is not None and p.size.too_small is True]
    for law in laws:
        if not isinstance(law.cost, FixedCost):
            continue
        mine = [
            p for p in small
            if (backend_of(p.point.impl, p.point.backend), product_name(p.point.dtype)) == (law.backend, law.what)
        ]  # fmt: skip
        enough = law.cost.hiding_gemm_size()
        if mine and is_known(enough):
            names = ", ".join(dict.fromkeys(p.size.text.partition(" is ")[0] for p in mine if p.size is not None))
            yield PointAdvice(
                rule="too_small", gain_s=_NO_GAIN,
                text=f"Judge the rate of {law.backend} from N of {enough:.0f} on.",
                evidence=f"{names}: too small to judge, their fixed cost keeps them below 80 % of the rate",
            )  # fmt: skip


def _findings(points: Sequence[JudgedPoint]) -> Iterator[Note]:
    false = [p for p in points if p.worth == "implausible"]
    if false:
        names = ", ".join(p.point.label for p in false[:3])
        yield Note(
            code="implausible_points",
            text=f"{len(false)} of {len(points)} points cannot be true and are no evidence, first {names}: {false[0].reason}",
        )
    unknown = [p for p in points if isinstance(p.share_of_ceiling, Unknown)]
    if unknown:
        assert isinstance(unknown[0].share_of_ceiling, Unknown)
        needs = " or ".join(unknown[0].share_of_ceiling.needs)
        text = f"the share of {len(unknown)} of {len(points)} points is not known: {unknown[0].share_of_ceiling.reason}"
        yield Note(code="no_share", text=text + (f"; supply {needs}" if needs else ""))
