"""Rematerialisation: time against peak memory of a stack of transformer blocks under checkpoint policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mansard.core.stats import median_interval
from mansard.measure.benchmarks.entry import Entry, integer, matrix_peak, missing_memory, missing_platform
from mansard.measure.benchmarks.remat_block import POLICIES, block_demand, block_executed_flop, block_shape
from mansard.measure.points.benchmark import Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.result import NOISY_RATIO, Result, State

IMPLEMENTATIONS: Mapping[str, str] = {"xla": "jax", "torch": "torch"}
TORCH_POLICIES = ("none", "dots", "dots_no_batch", "nothing")


PARAMETERS = (
    Parameter(
        name="policy", kind="str", default="none", choices=tuple(POLICIES), text="what is kept for the gradients"
    ),
    integer("layers", 4, "equal blocks, each with a checkpoint of its own"),
    integer("batch", 1, "sequences"),
    integer("seq_len", 512, "tokens of a sequence"),
    integer("model_dim", 512, "width"),
    integer("num_q_heads", 8, "query heads"),
    integer("num_kv_heads", 8, "key and value heads"),
    integer("ffn_dim", 1408, "inner width of the gated feed-forward"),
    Parameter(name="dtype", kind="dtype", default="f32", text="element type"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoRow:
    """One policy in the table of time against memory.

    Args:
        policy, impl: What was measured.
        time_s, low_s, high_s: Median of the samples and its 95 % interval [s].
        peak_memory_bytes: Peak memory [B].
        executed_over_model: Executed over model FLOP; None where it was not recorded.
        dominated_by: Policies that need no more memory and are faster, or need less and are as fast within their
            intervals; empty for a row of the front. What is wider than +-5 % is as fast as nothing.
    """

    policy: str
    impl: str
    time_s: float
    low_s: float
    high_s: float
    peak_memory_bytes: float
    executed_over_model: float | None = None
    dominated_by: tuple[str, ...] = ()

    @property
    def noisy(self) -> bool:
        """Whether its interval is too wide for a tie to mean anything."""
        return (self.high_s - self.low_s) / 2.0 > NOISY_RATIO * self.time_s


def pareto_table(results: Iterable[Result]) -> tuple[ParetoRow, ...]:
    """Return the policies by time, each with those that dominate it; only points that were measured are in it.

    Args:
        results: Points of `remat` that differ in their policy alone; implementations are compared among themselves.
    """
    rows = [row for r in results if (row := _row(r)) is not None]
    return tuple(
        ParetoRow(
            policy=a.policy, impl=a.impl, time_s=a.time_s, low_s=a.low_s, high_s=a.high_s,
            peak_memory_bytes=a.peak_memory_bytes, executed_over_model=a.executed_over_model,
            dominated_by=tuple(b.policy for b in rows if b is not a and b.impl == a.impl and dominates(b, a)),
        )
        for a in sorted(rows, key=lambda r: r.time_s)
    )  # fmt: skip


def dominates(a: ParetoRow, b: ParetoRow) -> bool:
    """Return whether nobody would choose `b` over `a`; times whose intervals overlap are equal, unless they are too wide."""
    faster = a.high_s < b.low_s
    tied = a.low_s <= b.high_s and b.low_s <= a.high_s and not (a.noisy or b.noisy)
    return (faster and a.peak_memory_bytes <= b.peak_memory_bytes) or (
        tied and a.peak_memory_bytes < b.peak_memory_bytes
    )


def _row(result: Result) -> ParetoRow | None:
    facts = result.audit.get("benchmark", {})
    memory = facts.get("peak_memory_bytes")
    if result.state is not State.DONE or result.samples is None or not isinstance(memory, int | float):
        return None
    samples = result.samples
    middle, low, high = samples.median_s, samples.low_s, samples.high_s
    if not middle > 0.0:
        found = median_interval(samples.seconds)
        middle, low, high = found.median, found.low, found.high
    executed, model = result.metrics.get("executed_flop"), result.metrics.get("flop")
    known = isinstance(executed, int | float) and isinstance(model, int | float) and model > 0
    return ParetoRow(
        policy=str(result.point.params["policy"]),
        impl=result.point.impl,
        time_s=middle,
        low_s=low,
        high_s=high,
        peak_memory_bytes=float(memory),
        executed_over_model=float(executed) / float(model) if known else None,  # type: ignore[arg-type]
    )


def _count(params: Params, _where: Where) -> Work:
    s = block_shape(params)
    return Work(
        demand=block_demand(s),
        executed_flop=block_executed_flop(s),
        headline="flop",
        composite=True,
        peak=matrix_peak(s.dtype),
        convention=(
            "model FLOP: forward and gradients, attention over s(s+1)/2 pairs, nothing made again; executed FLOP: scores in "
            "full and what the policy makes again"
        ),
    )


def _excuse(params: Params, impl: str, where: Where) -> Waived | None:
    s = block_shape(params)
    if impl == "torch" and s.policy not in TORCH_POLICIES:
        return Waived(reason=f"PyTorch's checkpoint has no policy {s.policy!r}", missing="implementation")
    if s.policy == "offload":
        missing = missing_platform("moving activations to host memory", where, "gpu", "tpu")
        if missing is not None:
            return Waived(reason=missing.reason + ", whose device memory is host memory", missing=missing.missing)
    return missing_memory(s.memory_bytes(), "this stack of blocks", where)


def _prepare(params: Params, impl: str, where: Where) -> Prepared:
    from mansard.measure.benchmarks import remat_calls

    s = block_shape(params)
    return remat_calls.in_torch(s, params, where) if impl == "torch" else remat_calls.in_jax(s, params)


BENCHMARKS = (
    Entry(
        name="remat",
        area="rematerialisation",
        parameters=PARAMETERS,
        implementations=IMPLEMENTATIONS,
        summary="forward and gradients of transformer blocks under a checkpoint policy: time against peak memory",
        count=_count,
        make=_prepare,
        excuse=_excuse,
        aliases=("rematerialisation",),
    ),
)
