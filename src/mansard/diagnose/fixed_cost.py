"""What an operation costs whatever its size, and from which size on that no longer matters.

t = T0 + work / rate. T0 comes from a sweep over sizes, from the kernels of a recording that did the same kind of work at
several sizes, from the gaps between queued work, or from single rows whose bound is known. A size at which T0 decides says
nothing of the rate, and is called too small to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.core import Ceiling, Ceilings, Unknown, is_known, median_interval
from mansard.core.collectives import fit_alpha_beta
from mansard.core.errors import UsageError
from mansard.core.intervals import merge
from mansard.core.units import format_ratio, format_s
from mansard.diagnose.account import Windows, inside, windows_of
from mansard.diagnose.partial import bytes_of, flop_of
from mansard.hardware.views import fixed_cost_s, hiding_gemm_size, hiding_work
from mansard.measure.points.conclusions import seconds_of
from mansard.trace.run import Operator, RunTrace

LEAST_SIZES = 3  # two sizes make a line that no point can disagree with
WORST_MISFIT = 0.5  # relative distance of a point from the line, beyond which it is no line
HIDDEN = 0.8  # share of the rate at which a fixed cost counts as hidden
_MOST_CALLS = 500  # of one size that a fit looks at
_MOST_GAPS = 1000  # that an interval is made of, evenly over the recording
_CLOCK_S = 10e-9  # gaps below it are rounding of the recorder's clock
SWEEP = "gemm_sweep"

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCost:
    """The law t = T0 + work / rate of one kind of work on one backend.

    Args:
        backend: Who dispatches: `numpy`, `torch`, `jax`, `native`, a framework, `profile`.
        what: The work, such as `f32 square product` or `gemm kernels`.
        fixed_s: T0 [s]; `Unknown` where the sizes do not tell it.
        ci95_s: Its 95 % interval [s], or the range of the rows it comes from.
        rate_per_s: Rate of large work [FLOP/s or B/s].
        rate_ci95: Its interval.
        unit: `FLOP/s` or `B/s`; empty where there is no work, as for gaps.
        sizes: Sizes it comes from.
        error_ratio: Largest relative distance of a size from the law.
        source: `sweep`, `trace`, `launch gaps` or `rows`.
    """

    backend: str
    what: str
    fixed_s: float | Unknown
    ci95_s: Interval | Unknown
    rate_per_s: float | Unknown
    rate_ci95: Interval | Unknown
    unit: str
    sizes: int
    error_ratio: float
    source: str

    def share_ratio(self, work: float) -> float | Unknown:
        """Return the share of the rate that work of this size can reach: (W/P) / (T0 + W/P).

        Args:
            work: W [FLOP or B].
        """
        return _share(self.fixed_s, self.rate_per_s, work)

    def hiding_work(self, share: float = HIDDEN) -> float | Unknown:
        """Return the work at which T0 is hidden up to that share [FLOP or B]."""
        if isinstance(self.fixed_s, Unknown):
            return self.fixed_s
        if isinstance(self.rate_per_s, Unknown):
            return self.rate_per_s
        return hiding_work(fixed_s=self.fixed_s, rate_per_s=self.rate_per_s, share=share) if self.fixed_s > 0 else 0.0

    def hiding_gemm_size(self, share: float = HIDDEN) -> float | Unknown:
        """Return N of the square product at which T0 is hidden up to that share; for a rate in FLOP/s."""
        return self._gemm_size(self.fixed_s, share)

    def hiding_gemm_interval(self, share: float = HIDDEN) -> Interval | Unknown:
        """Return N at the two ends of T0's interval, at the rate as it is."""
        if isinstance(self.ci95_s, Unknown):
            return self.ci95_s
        low, high = (self._gemm_size(max(t, 0.0), share) for t in self.ci95_s)
        if isinstance(low, Unknown):
            return low
        return high if isinstance(high, Unknown) else (low, high)

    def _gemm_size(self, fixed_s: float | Unknown, share: float) -> float | Unknown:
        if self.unit != "FLOP/s":
            return Unknown(f"{self.what} has no rate in FLOP/s", ("a sweep over products",))
        if isinstance(fixed_s, Unknown):
            return fixed_s
        if isinstance(self.rate_per_s, Unknown):
            return self.rate_per_s
        return hiding_gemm_size(fixed_s=fixed_s, flop_per_s=self.rate_per_s, share=share) if fixed_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the record with the sizes at which T0 is hidden to 50, 80 and 95 %."""
        interval = self.ci95_s if isinstance(self.ci95_s, Unknown) else list(self.ci95_s)
        rates = self.rate_ci95 if isinstance(self.rate_ci95, Unknown) else list(self.rate_ci95)
        found: dict[str, Any] = {
            "backend": self.backend, "what": self.what, "fixed_s": self.fixed_s, "fixed_ci95_s": interval,
            "rate_per_s": self.rate_per_s, "rate_ci95": rates, "unit": self.unit, "sizes": self.sizes,
            "error_ratio": self.error_ratio, "source": self.source, "model": "t = T0 + work / rate",
        }  # fmt: skip
        if self.unit:
            found["hiding_work"] = {str(s): self.hiding_work(s) for s in (0.5, 0.8, 0.95)}
        if self.unit == "FLOP/s":
            found["hiding_gemm_size"] = {str(s): self.hiding_gemm_size(s) for s in (0.5, 0.8, 0.95)}
        return found


def _share(fixed_s: float | Unknown, rate: float | Unknown, work: float) -> float | Unknown:
    if work <= 0.0:
        raise UsageError(f"the work is {work}, expected a positive amount")
    if isinstance(fixed_s, Unknown):
        return fixed_s
    if isinstance(rate, Unknown):
        return rate
    return (work / rate) / (max(fixed_s, 0.0) + work / rate)


def fit_fixed_cost(
    samples: Mapping[float, Sequence[float]], *, backend: str, what: str, unit: str = "FLOP/s", source: str = "sweep"
) -> FixedCost | Unknown:
    """Fit T0 and the rate to times of several sizes.

    Args:
        samples: Times [s] by work [FLOP or B].
        backend, what, unit, source: Of the result.

    Returns: `Unknown` for less than three sizes, for times that follow no straight line in the work, and where larger work
        did not take longer. A T0 whose interval holds 0 is kept: it says how large T0 is at most.

    Source: Hockney, Parallel Computing 20(3), 1994; relative least squares and intervals of `core.collectives`.

    10 us and 1 TFLOP/s at three sizes:

    >>> cost = fit_fixed_cost({w: [10e-6 + w / 1e12] for w in (1e6, 1e7, 1e8)}, backend="jax", what="made by hand")
    >>> round(cost.fixed_s * 1e6, 6), round(cost.rate_per_s / 1e12, 6), round(cost.hiding_work())
    (10.0, 1.0, 40000000)
    """
    if len(samples) < LEAST_SIZES:
        return Unknown(f"a fixed cost needs {LEAST_SIZES} sizes, there are {len(samples)}", ("a sweep over sizes",))
    fit = fit_alpha_beta(samples)
    if isinstance(fit, Unknown):
        return fit
    if isinstance(fit.beta_bytes_per_s, Unknown):
        return Unknown("larger work did not take longer, so all of it is fixed cost here", ("larger sizes",))
    if fit.error_ratio > WORST_MISFIT:
        text = f"the times are no straight line in the work: a size is {format_ratio(fit.error_ratio)} off"
        return Unknown(text, ("sizes at which one algorithm runs", "a quiet machine"))
    known = fit.alpha_s > 0.0
    below = Unknown(
        f"no fixed cost is seen: the fit gives {'-' if fit.alpha_s < 0 else ''}{format_s(abs(fit.alpha_s))}",
        ("smaller sizes",),
    )
    return FixedCost(
        backend=backend, what=what, fixed_s=fit.alpha_s if known else below, ci95_s=fit.alpha_ci95_s,
        rate_per_s=fit.beta_bytes_per_s, rate_ci95=fit.beta_ci95_bytes_per_s, unit=unit, sizes=fit.sizes,
        error_ratio=fit.error_ratio, source=source,
    )  # fmt: skip


def fixed_cost_of_rows(
    rows: Iterable[tuple[float, float]], *, backend: str, what: str, rate: Ceiling | float, unit: str = "FLOP/s"
) -> FixedCost:
    """Return T0 from single rows whose bound is known: observed minus least time, as a range over the rows.

    Args:
        rows: (observed, least) time of each [s].
        backend, what, unit: Of the result.
        rate: The ceiling of large work [FLOP/s or B/s].

    Raises:
        UsageError: no row, or one faster than its bound.

    Assumes: all that is above the bound is fixed cost; where a kernel is also slow this is an upper limit.
    """
    found = [fixed_cost_s(observed, least) for observed, least in rows]
    if not found:
        raise UsageError("a fixed cost needs at least one row")
    value = rate.value if isinstance(rate, Ceiling) else rate
    return FixedCost(
        backend=backend, what=what, fixed_s=float(np.median(found)), ci95_s=(min(found), max(found)), rate_per_s=value,
        rate_ci95=rate.ci95 if isinstance(rate, Ceiling) and rate.ci95 else Unknown("the ceiling has no interval"),
        unit=unit, sizes=len(found), error_ratio=0.0, source="rows",
    )  # fmt: skip


def laws_of_sweep(elements: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str, FixedCost | Unknown], ...]:
    """Return backend, work and T0 of every implementation in the `gemm_sweep` points of a `detailed.json`.

    Args:
        elements: Its elements; points that failed or are implausible are left out. Element types, implementations and
            threads are never in one fit.
    """
    groups: dict[tuple[str, str, str], dict[float, list[float]]] = {}
    for e in elements:
        meta = e["metadata"]
        if meta["benchmark_name"] != SWEEP or e["state"] != "done" or e.get("verdict") == "implausible":
            continue
        params = meta["params"]
        rest = repr(sorted((k, v) for k, v in params.items() if k not in ("size", "in_dtype", "dtype", "impl")))
        dtype = str(params.get("in_dtype") or params.get("dtype"))
        key = (backend_of(meta["impl"], meta["backend"]), dtype, rest)
        groups.setdefault(key, {}).setdefault(float(e["metrics"]["flop"]), []).extend(seconds_of(e))
    found = []
    for (backend, dtype, _), samples in groups.items():
        what = product_name(dtype)
        found.append((backend, what, fit_fixed_cost(samples, backend=backend, what=what)))
    return tuple(found)


def backend_of(impl: str, backend: str) -> str:
    """Return how an implementation is called beside its fixed cost."""
    return f"{impl} ({backend})"


def product_name(dtype: str) -> str:
    """Return how the work of a sweep over products is called."""
    return f"{dtype} square product"


def fixed_costs_of_sweep(elements: Iterable[Mapping[str, Any]]) -> tuple[FixedCost | Unknown, ...]:
    """Return T0 of every implementation in the `gemm_sweep` points of a `detailed.json`.

    Args:
        elements: Its elements, as `laws_of_sweep` takes them.
    """
    return tuple(cost for _, _, cost in laws_of_sweep(elements))


_BY_FLOP = ("gemm", "attention", "convolution")


def fixed_costs_of_trace(trace: RunTrace, windows: Windows | None = None) -> tuple[FixedCost, ...]:
    """Return what a recording tells of fixed cost: of kernels that did one kind of work at several sizes, and of launching.

    Args:
        trace: The run; operations of its steady steps count. Kinds that ran at too few sizes, or at no straight line in
            their work, are left out: they tell nothing.
        windows: Its steady steps, where they are at hand.
    """
    windows = windows or windows_of(trace)
    chosen = np.flatnonzero(inside(windows, trace.start_ns))
    chosen = chosen[np.argsort(trace.op[chosen], kind="stable")]
    seconds = (trace.end_ns[chosen] - trace.start_ns[chosen]).astype(np.float64) * 1e-9
    edges = np.searchsorted(trace.op[chosen], np.arange(len(trace.operators) + 1))
    groups: dict[tuple[str, str], dict[float, list[float]]] = {}
    for index, operator in enumerate(trace.operators):
        work = _work(operator)
        mine = seconds[edges[index] : edges[index + 1]]
        if work is None or not mine.size:
            continue
        unit, amount = work
        kind = f"{operator.category} {_dtypes(operator)}".strip()
        groups.setdefault((kind, unit), {}).setdefault(amount, []).extend(mine[mine > 0][:_MOST_CALLS].tolist())
    found = []
    for (kind, unit), samples in groups.items():
        cost = fit_fixed_cost(
            {w: t for w, t in samples.items() if t}, backend=trace.framework, what=f"{kind} operations", unit=unit, source="trace"
        )  # fmt: skip
        if isinstance(cost, FixedCost):
            found.append(cost)
    gaps = launch_gap_cost(trace, windows)
    return (*found, gaps) if isinstance(gaps, FixedCost) else tuple(found)


def _work(operator: Operator) -> tuple[str, float] | None:
    """Return unit and amount of the work that an operation's time should grow with; None where it is not known."""
    by_flop = operator.category in _BY_FLOP
    amount = flop_of(operator.demand) if by_flop else bytes_of(operator.demand)
    if not is_known(amount) or amount <= 0.0 or operator.category == "collective":
        return None
    return ("FLOP/s" if by_flop else "B/s"), float(amount)


def _dtypes(operator: Operator) -> str:
    """Return the element types of the work, which never share a fit."""
    if isinstance(operator.demand, Unknown):
        return ""
    return "+".join(sorted({d for d, _ in operator.demand.flop} or set(operator.demand.vector_flop)))


def launch_gap_cost(trace: RunTrace, windows: Windows | None = None) -> FixedCost | Unknown:
    """Return what lies between two operations that follow each other with no known wait between them.

    Args:
        trace: The run. Of each lane, the gaps between consecutive operations of one step count; those that touch a wait
            of a known or unknown cause do not, for they are not the price of a launch.
        windows: Its steady steps, where they are at hand.
    """
    windows = windows or windows_of(trace)
    wait = merge(trace.wait_start_ns, trace.wait_end_ns)
    lengths = []
    for lane in np.flatnonzero(np.bincount(trace.lane, minlength=1)).tolist():
        mine = np.flatnonzero(trace.lane == lane)
        mine = mine[np.argsort(trace.start_ns[mine], kind="stable")]
        start, end = trace.end_ns[mine][:-1], trace.start_ns[mine][1:]
        step = np.searchsorted(windows.start_ns, trace.start_ns[mine], side="right")
        kept = (end > start) & (step[1:] == step[:-1]) & inside(windows, start) & inside(windows, end)
        kept &= wait.covered_ns(start, end) == 0
        lengths.append((end - start)[kept])
    gaps = np.concatenate(lengths).astype(np.float64) * 1e-9 if lengths else np.zeros(0)
    if not gaps.size:
        return Unknown("no operation follows another without a wait between them", ("a longer recording",))
    kept_gaps = gaps[:: max(1, gaps.size // _MOST_GAPS)]
    middle = median_interval(kept_gaps)
    if middle.median < _CLOCK_S:
        return Unknown("queued operations follow each other within the resolution of the recording's clock")
    no_rate = Unknown("a gap does no work")
    return FixedCost(
        backend=trace.framework, what="gap between operations", fixed_s=middle.median, ci95_s=(middle.low, middle.high),
        rate_per_s=no_rate, rate_ci95=no_rate, unit="", sizes=int(gaps.size), error_ratio=0.0, source="launch gaps",
    )  # fmt: skip


def known_fixed_cost(ceilings: Ceilings, backend: str) -> FixedCost | Unknown:
    """Return the measured dispatch cost of a backend in the same form, without a rate.

    Args:
        ceilings: The machine.
        backend: Whose dispatch.
    """
    found = ceilings.fixed_cost(backend)
    if isinstance(found, Unknown):
        return found
    no_rate = Unknown("a dispatch does no work")
    return FixedCost(
        backend=backend, what="dispatch of an empty operation", fixed_s=found.value, ci95_s=found.ci95 or no_rate,
        rate_per_s=no_rate, rate_ci95=no_rate, unit="", sizes=1, error_ratio=0.0, source=f"{found.kind.value} ceiling",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeJudgement:
    """Whether a size can say anything of a rate.

    Args:
        too_small: Whether the fixed cost keeps it below the wanted share; `Unknown` where its interval does not decide.
        share_ratio: Share of the rate that this size can reach at best.
        fixed_share_ratio: Share of its time that is fixed cost.
        enough_work: Work from which on the share is reached [FLOP or B].
        text: In words.
    """

    too_small: bool | Unknown
    share_ratio: float | Unknown
    fixed_share_ratio: float | Unknown
    enough_work: float | Unknown
    text: str


def judge_work(cost: FixedCost, work: float, *, label: str, share: float = HIDDEN) -> SizeJudgement:
    """Return whether work of this size is too small to judge a rate by.

    Args:
        cost: T0 and rate.
        work: Its size [FLOP or B].
        label: How it is called, such as `N = 512`.
        share: Share of the rate that it should be able to reach.
    """
    reached, enough = cost.share_ratio(work), cost.hiding_work(share)
    if isinstance(reached, Unknown):
        return _without_value(cost, work, label, share, reached)
    ends: list[float] = [reached]
    if not isinstance(cost.ci95_s, Unknown):
        ends = [s for t in cost.ci95_s if is_known(s := _share(t, cost.rate_per_s, work))]
    small: bool | Unknown = max(ends) < share
    if not small and min(ends) < share:
        small = Unknown(f"the interval of the fixed cost holds both answers for {label}", ("more samples",))
    assert is_known(cost.fixed_s)
    fixed = format_s(cost.fixed_s)
    if small is True:
        text = (
            f"{label} is too small to judge: its fixed cost of {fixed} is {format_ratio(1.0 - reached)} of its time, so no "
            f"kernel can show more than {format_ratio(reached)} of the rate"
        )
    elif small is False:
        text = f"{label} is large enough: its fixed cost of {fixed} leaves {format_ratio(reached)} of the rate"
    else:
        text = (
            f"{label} may be too small: with a fixed cost of {fixed} it can reach {format_ratio(reached)} of the rate"
        )
    return SizeJudgement(
        too_small=small, share_ratio=reached, fixed_share_ratio=1.0 - reached, enough_work=enough,
        text=text + _from_size(cost, share, small),
    )  # fmt: skip


def _without_value(cost: FixedCost, work: float, label: str, share: float, why: Unknown) -> SizeJudgement:
    """Judge where T0 has no value: its upper end may still show that it does not matter."""
    most = Unknown("") if isinstance(cost.ci95_s, Unknown) else _share(max(cost.ci95_s), cost.rate_per_s, work)
    if is_known(most) and most >= share:
        return SizeJudgement(
            too_small=False, share_ratio=why, fixed_share_ratio=why, enough_work=why,
            text=f"{label} is large enough: a fixed cost is not seen, and the largest one possible leaves {format_ratio(most)} of the rate",
        )  # fmt: skip
    return SizeJudgement(
        too_small=why, share_ratio=why, fixed_share_ratio=why, enough_work=why,
        text=f"whether {label} is large enough is not known: {why.reason}",
    )  # fmt: skip


def _from_size(cost: FixedCost, share: float, small: bool | Unknown) -> str:
    size = cost.hiding_gemm_size(share)
    if small is False or not is_known(size):
        return ""
    return f"; {format_ratio(share)} needs N of {size:.0f} or more"


def judge_gemm(cost: FixedCost, size: int, *, share: float = HIDDEN) -> SizeJudgement:
    """Return whether a square product of N is too small to judge.

    Args:
        cost: T0 and rate of products [FLOP/s].
        size: N.
        share: Share of the rate that it should be able to reach.

    f32 on a GPU with a fixed cost of 13.4 us and 67 TFLOP/s:

    >>> gpu = fixed_cost_of_rows([(17.42e-6, 2 * 512**3 / 67e12)], backend="cublas", what="f32", rate=67e12)
    >>> judge_gemm(gpu, 512).text
    'N = 512 is too small to judge: its fixed cost of 13.4 us is 77 % of its time, so no kernel can show more than 23 % of the rate; 80 % needs N of 1216 or more'
    """
    return judge_work(cost, 2.0 * float(size) ** 3, label=f"N = {size}", share=share)
