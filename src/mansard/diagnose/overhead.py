"""What the profiler added to a step, and where: it pays per recorded event, so it lies where the events are.

An operator on small tensors may record five events (itself, a conversion, an allocation, a copy), each of which costs the
same few hundred nanoseconds; a matrix product of 20 ms records four.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.trace.run import RunTrace

#: Two measurements of the step time of one program differ by this much for reasons other than the profiler.
STEP_NOISE = 0.05
#: The calibrated cost of an event is that of the smallest operator in a loop; others differ from it by about half of it ...
CALIBRATION_NOISE = 0.5
#: ... and cost at most this many times as much.
MOST_TIMES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerCost:
    """The profiler's part in a run.

    Args:
        per_event_s: Cost of one recorded event [s].
        events: Recorded events inside each operation, itself included; 0 for work of a device.
        around_s: What lies around the operations of one step: the frames of the framework, and half of each operation's own
            event [s].
        step_s: All of one step [s].
    """

    per_event_s: float
    events: npt.NDArray[np.int32]
    around_s: float
    step_s: float

    def inside_s(self) -> npt.NDArray[np.float64]:
        """Return what lies inside each operation's interval [s]: all events but half of its own."""
        inside: npt.NDArray[np.float64] = self.per_event_s * np.maximum(self.events - 0.5, 0.0)
        return inside


def profiler_cost(
    trace: RunTrace,
    chosen: npt.NDArray[np.bool_],
    frames: int,
    steps: int,
    profiled_s: float,
) -> ProfilerCost:
    """Return what the profiler cost.

    Args:
        trace: The run.
        chosen: Operations of the steady steps.
        frames: Recorded events of the steady steps outside operations.
        steps: How many steady steps there are.
        profiled_s: Median step time with the profiler on [s].
    """
    events = trace.op_events if trace.op_events.size else np.ones(trace.op.size, dtype=np.int32)
    inside = int(events[chosen].sum())
    own = int((events[chosen] > 0).sum())
    per_step = (inside + frames) / steps
    unprofiled = float(np.median(trace.unprofiled_step_s)) if trace.unprofiled_step_s else None
    each = event_cost_s(trace.op_overhead_s, per_step, profiled_s, unprofiled)
    return ProfilerCost(
        per_event_s=each, events=events, around_s=each * (frames + 0.5 * own) / steps, step_s=each * per_step
    )


def event_cost_s(calibrated_s: float, events: float, profiled_s: float, unprofiled_s: float | None) -> float:
    """Return the cost of one recorded event, from the calibration and from the step times, each weighed by its certainty.

    Args:
        calibrated_s: Of the smallest operator in a loop [s]; 0 where there was no calibration.
        events: Recorded events per step.
        profiled_s, unprofiled_s: Step time with the profiler on, and off where that was measured [s].

    Formula: inverse-variance weighting of `calibrated_s`, uncertain by half, and (profiled - unprofiled) / events, uncertain
    by 5 % of a step over the events.

    40 000 events in a step of 20 ms: the step times decide (0.5 us; the calibration alone says 0.3 us):

    >>> round(event_cost_s(0.3e-6, 40_000, 40e-3, 20e-3) * 1e6, 2)
    0.49

    100 events in a step of 100 ms that was 5 ms longer: that is not the profiler, the calibration stands:

    >>> round(event_cost_s(0.3e-6, 100, 105e-3, 100e-3) * 1e6, 2)
    0.3
    """
    if unprofiled_s is None or events <= 0 or calibrated_s <= 0:
        return calibrated_s
    seen = max(0.0, profiled_s - unprofiled_s) / events
    doubt_seen, doubt_calibrated = STEP_NOISE * unprofiled_s / events, CALIBRATION_NOISE * calibrated_s
    weight = doubt_seen**2 / (doubt_seen**2 + doubt_calibrated**2)
    return min(weight * calibrated_s + (1.0 - weight) * seen, MOST_TIMES * calibrated_s)
