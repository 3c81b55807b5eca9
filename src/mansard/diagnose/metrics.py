"""The metrics of a run, each with its unit, its definition and the numbers it was made from.

One list for training and inference, in a stable order. What a record does not tell is `Unknown`, and stands in the list all
the same. The figures are tied by identities, which hold for every run and are tested as such:

    MFU = kernel-union ratio x union / wall            HFU = MFU x executed FLOP / model FLOP
    wall = union + idle                                idle = sum over its causes
    communication = exposed + overlapped               union = everything else + exposed communication
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core import Implausible, Unknown, is_known
from mansard.core.bound import share_of
from mansard.core.errors import UsageError
from mansard.core.units import format_bytes_per_s, format_flop_per_s, format_ratio
from mansard.diagnose.occupied import IDLE_CAUSES, Occupied
from mansard.diagnose.records import Diagnosis

#: Share of operation time whose amount may be unknown before a sum is called a lower bound.
MOST_LOST = 0.01
Value = float | Unknown | Implausible
NO_TOKENS = Unknown("the tokens of a step are not known", ("--tokens", "--model with --batch and --seq"))
NO_RECORD = Unknown("nothing recorded says when operations ran", ("a profile", "mansard run"))

#: What each metric is. The text is printed where the number is.
DEFINITIONS: Mapping[str, tuple[str, str]] = {
    "step_s": ("s", "median wall time of one step, profiler off where that was measured; the mean where steps do different work"),
    "mfu_ratio": ("1", "model FLOP (recomputation left out) / (wall time x devices x dense peak)"),
    "hfu_ratio": ("1", "executed FLOP (recomputation counted) / (wall time x devices x dense peak)"),
    "kernel_union_ratio": (
        "1",
        "model FLOP / (union of kernel intervals x devices x dense peak); a diagnostic and no MFU: "
        "MFU = kernel-union ratio x busy ratio",
    ),
    "busy_ratio": ("1", "union of kernel intervals / wall time of the recorded steps; copies are no kernels"),
    "achieved_flop_per_s": ("FLOP/s", "model FLOP of a step on one device / wall time"),
    "achieved_bytes_per_s": ("B/s", "compulsory bytes of a step on one device / wall time"),
    "sol_ratio": (
        "1",
        "least time of the operations whose ceiling is known / the time charged to them (speed of light); operations "
        "of one engine that run at once share its time",
    ),
    "union_s": ("s", "time of a step in which at least one kernel runs"),
    "concurrency_ratio": ("1", "sum of kernel times / union of kernel intervals; above 1 several run at once"),
    "communication_s": ("s", "time of a step in which a collective runs"),
    "overlapped_communication_s": ("s", "communication during which another kernel runs"),
    "exposed_communication_s": ("s", "communication during which no other kernel runs: communication - overlapped"),
    "overlap_ratio": ("1", "overlapped communication / communication"),
    "idle_s": ("s", "wall time - union: no kernel runs"),
    "copy_only_s": ("s", "idle time in which a copy or a fill runs"),
    "host_sync_s": ("s", "idle time in which the host waits in a synchronisation"),
    "input_wait_s": ("s", "idle time in which the host waits for input"),
    "compile_s": ("s", "idle time in which the host compiles"),
    "host_call_s": ("s", "idle time in which the host is in one long call, of more than 1 ms: first use, allocation, loading of kernels"),
    "host_python_s": ("s", "idle time in which the host did not call for the next operation, outside any known wait"),
    "launch_gap_s": ("s", "idle time that starting work costs: dispatch, launch calls, gaps between queued kernels"),
    "unexplained_idle_s": ("s", "idle time whose cause nothing recorded tells"),
    "host_blocked_s": ("s", "input wait + synchronisation + compilation + long calls + Python between operations"),
    "tokens_per_s": ("token/s", "tokens of a step on all devices / wall time"),
    "tokens_per_s_per_device": ("token/s", "tokens of a step on all devices / wall time / devices"),
    "requests_per_s": ("1/s", "requests that ended / wall time of the run"),
    "output_tokens_per_s": ("token/s", "output tokens of all requests / wall time of the run"),
    "ttft_s": ("s", "median time from a request to its first chunk that carries a token; queueing is in it"),
    "ttft_p99_s": ("s", "the same, value at rank ceil(0.99 n)"),
    "tpot_s": ("s", "median over requests of (latency - TTFT) / (tokens - 1)"),
    "tpot_p99_s": ("s", "the same, value at rank ceil(0.99 n)"),
    "itl_s": ("s", "median gap before each token after the first, over all tokens of all requests"),
    "itl_p99_s": ("s", "the same, value at rank ceil(0.99 n)"),
    "latency_s": ("s", "median time from a request to its last token"),
    "concurrent_requests": ("1", "sum of latencies / wall time of the run: mean requests under way (Little's law)"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a run.

    Args:
        name: Stable name, the unit in it.
        value: The number; `Unknown` with the reason, or `Implausible`.
        unit: SI unit; `1` for a ratio or a count.
        definition: What it is, to be printed beside it.
        inputs: What it was made from, by name.
    """

    name: str
    value: Value
    unit: str
    definition: str
    inputs: Mapping[str, float | str | Unknown] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the element of `metrics`."""
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "definition": self.definition, "inputs": dict(self.inputs),
        }  # fmt: skip


def metric(name: str, value: Value, **inputs: float | str | Unknown) -> Metric:
    """Return a metric of `DEFINITIONS`.

    >>> metric("idle_s", 0.25, step_s=1.0).unit
    's'
    """
    unit, definition = DEFINITIONS[name]
    return Metric(name=name, value=value, unit=unit, definition=definition, inputs=inputs)


def by_name(metrics: tuple[Metric, ...]) -> dict[str, Metric]:
    """Return metrics by their names."""
    return {m.name: m for m in metrics}


def run_metrics(
    diagnosis: Diagnosis,
    occupied: Occupied | Unknown = NO_RECORD,
    *,
    devices: int = 1,
    tokens_per_step: float | Unknown = NO_TOKENS,
) -> tuple[Metric, ...]:
    """Return the metrics of the steps of a run, in the order of `DEFINITIONS`.

    Args:
        diagnosis: Of one device; its FLOP and bytes are those of one device.
        occupied: When its operations ran, from `occupied.of_run` or `occupied.of_device`. The times are scaled to the
            step time of the diagnosis, from which the profiler was taken out.
        devices: Devices that share the step.
        tokens_per_step: Tokens of one step on all devices [token].

    Raises:
        UsageError: fewer than one device, or tokens that are not positive.
    """
    if devices < 1:
        raise UsageError(f"devices is {devices}, expected at least 1")
    if is_known(tokens_per_step) and not 0.0 < tokens_per_step < float("inf"):
        raise UsageError(f"tokens per step are {tokens_per_step}, expected a positive number")
    step_s = diagnosis.step.median_s
    if not isinstance(occupied, Unknown):
        occupied = occupied.scaled_to(step_s)
    rate = tokens_per_step / step_s
    return (
        metric("step_s", step_s, steps=float(diagnosis.step.count), source=diagnosis.step.source),
        *_utilisation(diagnosis, occupied),
        *occupied_metrics(occupied),
        metric("tokens_per_s", rate, tokens=tokens_per_step, step_s=step_s),
        metric("tokens_per_s_per_device", rate / devices, tokens=tokens_per_step, step_s=step_s, devices=float(devices)),
    )  # fmt: skip


def _utilisation(diagnosis: Diagnosis, occupied: Occupied | Unknown) -> list[Metric]:
    d, step_s = diagnosis, diagnosis.step.median_s
    peak = _peak(d)
    given: dict[str, float | str | Unknown] = {"flop": d.flop_per_step, "step_s": step_s, "peak_flop_per_s": peak}
    busy: float | Unknown = occupied if isinstance(occupied, Unknown) else occupied.busy_ratio
    return [
        metric("mfu_ratio", d.mfu_ratio, **given),
        metric("hfu_ratio", d.hfu_ratio, executed_flop=d.hardware_flop_per_step, step_s=step_s, peak_flop_per_s=peak),
        metric("kernel_union_ratio", kernel_union_ratio(d.mfu_ratio, busy), **given, busy_ratio=busy),
        metric("busy_ratio", busy, step_s=step_s),
        metric("achieved_flop_per_s", _flop_rate(d), flop=d.flop_per_step, step_s=step_s),
        metric("achieved_bytes_per_s", _byte_rate(d), bytes=d.bytes_per_step, step_s=step_s),
        _speed_of_light(d),
    ]


def _flop_rate(d: Diagnosis) -> float | Unknown:
    """Return model FLOP over wall time; a sum that leaves matrix work out is a lower bound, and no rate.

    Kernels without matrix work need no FLOP count: where an MFU could be made, the sum was found to be whole.
    """
    rate = d.flop_per_step / d.step.median_s
    lost = _lost_ratio([(row.time_s, row.flop) for row in d.operators])
    if isinstance(rate, Unknown) or not isinstance(d.mfu_ratio, Unknown) or lost <= MOST_LOST:
        return rate
    text = f"at least {format_flop_per_s(rate)}: the FLOP of {format_ratio(lost)} of operation time are not known"
    return Unknown(text, ("--flops", "--model config.json", "--ncu REPORT.csv"))


def _byte_rate(d: Diagnosis) -> float | Unknown:
    """Return compulsory bytes over wall time, with the same care."""
    rate = d.bytes_per_step / d.step.median_s
    lost = _lost_ratio([(row.time_s, row.bytes) for row in d.operators])
    if isinstance(rate, Unknown) or lost <= MOST_LOST:
        return rate
    text = f"at least {format_bytes_per_s(rate)}: the bytes of {format_ratio(lost)} of operation time are not known"
    return Unknown(text, ("record shapes", "--ncu REPORT.csv"))


def _lost_ratio(rows: Sequence[tuple[float, float | Unknown]]) -> float:
    """Return the share of time of rows whose amount is not known."""
    total = sum(time_s for time_s, _ in rows)
    return sum(time_s for time_s, amount in rows if isinstance(amount, Unknown)) / total if total > 0 else 0.0


def kernel_union_ratio(mfu_ratio: Value, busy_ratio: float | Unknown) -> Value:
    """Return the FLOP over union x devices x peak, by the identity MFU = kernel-union ratio x busy ratio.

    Args:
        mfu_ratio: Over wall time.
        busy_ratio: Union over wall time.

    A region 40 % busy at 36 % MFU does its work at 90 % of the peak while it works:

    >>> kernel_union_ratio(0.36, 0.4)
    0.8999999999999999
    """
    if isinstance(mfu_ratio, Unknown | Implausible):
        return mfu_ratio
    if isinstance(busy_ratio, Unknown):
        return busy_ratio
    if busy_ratio <= 0.0:
        return Unknown("no kernel ran in the steps")
    return share_of(mfu_ratio, busy_ratio)


def _peak(diagnosis: Diagnosis) -> float | Unknown:
    found = diagnosis.receipt.get("mfu_peak")
    if isinstance(found, Mapping) and isinstance(found.get("value"), int | float):
        return float(found["value"])
    return Unknown("no peak of the element type of its matrix work is known", ("--hardware", "mansard measure"))


def _speed_of_light(diagnosis: Diagnosis) -> Metric:
    """Return least over observed time of the operations that could be bounded, with how much of the time that is."""
    least = known = total = 0.0
    for row in diagnosis.operators:
        total += row.time_s
        if is_known(row.headroom_s) and is_known(row.share_of_ceiling):
            known += row.time_s
            least += row.time_s - row.headroom_s
    if known <= 0.0:
        none = Unknown("no operation has a ceiling that it could be compared with", ("--hardware", "mansard measure"))
        return metric("sol_ratio", none)
    return metric("sol_ratio", share_of(least, known), least_s=least, observed_s=known, coverage_ratio=known / total)


def occupied_metrics(occupied: Occupied | Unknown) -> tuple[Metric, ...]:
    """Return when kernels ran and what the idle time is, in the order of `DEFINITIONS`.

    Args:
        occupied: One step, or one whole device.
    """
    if isinstance(occupied, Unknown):
        return tuple(metric(name, occupied) for name in _OCCUPIED)
    o = occupied
    none = Unknown("no communication was recorded")
    values: dict[str, Value] = {
        "union_s": o.union_s,
        "concurrency_ratio": o.kernel_sum_s / o.union_s if o.union_s > 0 else Unknown("no kernel ran in the steps"),
        "communication_s": o.communication_s,
        "overlapped_communication_s": o.overlapped_s,
        "exposed_communication_s": o.exposed_s,
        "overlap_ratio": o.overlapped_s / o.communication_s if o.communication_s > 0 else none,
        "idle_s": o.idle_s,
        **{f"{cause}_s": o.idle[cause] for cause in IDLE_CAUSES},
        "host_blocked_s": o.host_blocked_s,
    }
    return tuple(metric(name, values[name], wall_s=o.wall_s, basis=o.basis) for name in _OCCUPIED)


_OCCUPIED = (
    "union_s", "concurrency_ratio", "communication_s", "overlapped_communication_s", "exposed_communication_s",
    "overlap_ratio", "idle_s", *(f"{cause}_s" for cause in IDLE_CAUSES), "host_blocked_s",
)  # fmt: skip
