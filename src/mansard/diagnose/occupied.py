"""When operations of one step, or of one device, ran: union, communication, and idle time by cause, which add up to the wall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UndecidedError, UsageError
from mansard.core.intervals import IntervalSet, difference, intersection, merge, overlap_ns
from mansard.diagnose.account import Windows, windows_of
from mansard.diagnose.network import collective_ops
from mansard.trace.occupancy import COPY_ONLY, HOST_SYNC, INPUT_WAIT, LAUNCH_GAP, UNEXPLAINED, DeviceTime
from mansard.trace.run import RunTrace, WaitCause

#: Causes of idle time in order of precedence: an instant with several counts for the first.
IDLE_CAUSES = (
    "copy_only",
    "host_sync",
    "input_wait",
    "compile",
    "host_call",
    "host_python",
    "launch_gap",
    "unexplained_idle",
)
_CAUSE_OF_WAIT = {
    "input_wait": WaitCause.INPUT, "host_sync": WaitCause.SYNC, "compile": WaitCause.COMPILE, "host_call": WaitCause.CALL,
    "host_python": WaitCause.PYTHON,
}  # fmt: skip
_HOST = ("input_wait", "host_sync", "compile", "host_call", "host_python")
_PROFILE = "profile"  # framework word of a recorded profile: its copies and fills are operations, and no kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """How the wall time of one step, or of one device, was used.

    Args:
        wall_s: The whole [s].
        union_s: Time in which a kernel (an operation, on a host) runs [s].
        kernel_sum_s: Their times added up [s]; several may run at once.
        communication_s: Time in which a collective runs [s].
        overlapped_s: Part of it in which another kernel runs [s].
        idle: Seconds without a kernel by cause, keys `IDLE_CAUSES`; they add up to wall - union.
        basis: What the wall is, in words.
    """

    wall_s: float
    union_s: float
    kernel_sum_s: float
    communication_s: float
    overlapped_s: float
    idle: Mapping[str, float]
    basis: str

    @property
    def busy_ratio(self) -> float:
        """Union over wall."""
        return self.union_s / self.wall_s

    @property
    def idle_s(self) -> float:
        """Wall minus union [s]."""
        return self.wall_s - self.union_s

    @property
    def exposed_s(self) -> float:
        """Communication during which no other kernel runs [s]."""
        return self.communication_s - self.overlapped_s

    @property
    def host_blocked_s(self) -> float:
        """Idle time that the host is the cause of, launching apart [s]."""
        return sum(self.idle[cause] for cause in _HOST)

    def scaled_to(self, wall_s: float) -> Occupied:
        """Return the same proportions of another wall time, such as the step time without the profiler.

        Args:
            wall_s: That wall time [s].

        Assumes: what is taken out hits every part alike.
        """
        if not 0.0 < wall_s < float("inf"):
            raise UsageError(f"the wall time is {wall_s}, expected a positive number")
        k = wall_s / self.wall_s
        return replace(
            self, wall_s=wall_s, union_s=k * self.union_s, kernel_sum_s=k * self.kernel_sum_s, idle={c: k * t for c, t in self.idle.items()},
            communication_s=k * self.communication_s, overlapped_s=k * self.overlapped_s,
        )  # fmt: skip


def of_run(trace: RunTrace, windows: Windows | None = None) -> Occupied:
    """Return how a mean step of a run was used.

    Args:
        trace: The run; where it has no steps, everything recorded is one.
        windows: Its steady steps, where they are at hand.

    Operations are cut at the edges of the steps. What no operation, wait or dispatch covers is unexplained for work of a
    device, and Python between operations for a host, which runs nothing else.
    """
    windows = windows or windows_of(trace)
    steps = merge(windows.start_ns, windows.end_ns)
    count = windows.count
    communicates, copies = _kinds(trace)
    kernel = ~(communicates | copies)
    rest = _set(trace, kernel, steps)
    talk, copy = _set(trace, communicates, steps), _set(trace, copies, steps)
    busy = _set(trace, ~copies, steps)
    start, end = trace.start_ns[~copies], trace.end_ns[~copies]
    summed = int(steps.covered_ns(start, end)[end > start].sum())
    idle, left = {}, difference(steps, busy)
    causes = np.array([c.value for c in trace.wait_cause], dtype=object)
    for cause in IDLE_CAUSES[:-1]:
        if cause == "copy_only":
            covering = copy
        elif cause == "launch_gap":
            covering = merge(trace.dispatch_start_ns, trace.dispatch_end_ns)
        else:
            mine = causes == _CAUSE_OF_WAIT[cause].value if causes.size else np.zeros(0, dtype=np.bool_)
            covering = merge(trace.wait_start_ns[mine], trace.wait_end_ns[mine])
        idle[cause] = intersection(left, covering).length_ns
        left = difference(left, covering)
    stated = causes == WaitCause.UNEXPLAINED.value if causes.size else np.zeros(0, dtype=np.bool_)
    unexplained = intersection(left, merge(trace.wait_start_ns[stated], trace.wait_end_ns[stated])).length_ns
    own = trace.framework != _PROFILE and trace.scope != "device"
    idle["host_python"] += left.length_ns - unexplained if own else 0
    idle[IDLE_CAUSES[-1]] = unexplained if own else left.length_ns
    each = 1e-9 / count
    return Occupied(
        wall_s=steps.length_ns * each, union_s=busy.length_ns * each, kernel_sum_s=summed * each,
        communication_s=talk.length_ns * each, overlapped_s=overlap_ns(talk, rest) * each,
        idle={cause: idle[cause] * each for cause in IDLE_CAUSES},
        basis=f"mean of {count} recorded steps" if windows.repeated else "everything that was recorded",
    )  # fmt: skip


def _kinds(trace: RunTrace) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which executed operations communicate, and which are copies or fills beside the kernels."""
    moves = [
        trace.framework == _PROFILE and (o.category == "fill" or (o.category == "copy" and o.name.startswith("copy ")))
        for o in trace.operators
    ]
    table = np.array([*moves, False], dtype=np.bool_)
    copies: npt.NDArray[np.bool_] = table[trace.op] if trace.op.size else np.zeros(0, dtype=np.bool_)
    return collective_ops(trace), copies


def _set(trace: RunTrace, chosen: npt.NDArray[np.bool_], steps: IntervalSet) -> IntervalSet:
    return intersection(merge(trace.start_ns[chosen], trace.end_ns[chosen]), steps)


def of_device(device: DeviceTime) -> Occupied:
    """Return how a device was used from its first kernel to its last.

    Args:
        device: From `trace.occupancy`.

    A gap in which the host had not yet called for the next work is the host's, the launch call itself included: this record
    does not tell the two apart, `of_run` does.

    Raises:
        UndecidedError: no kernel has a length.
    """
    if device.span_ns <= 0:
        raise UndecidedError("no kernel of this device has a length", hint="choose another device")
    idle = dict.fromkeys(IDLE_CAUSES, 0.0)
    idle["copy_only"] = device.idle_ns[COPY_ONLY] * 1e-9
    idle["input_wait"] = device.idle_ns[INPUT_WAIT] * 1e-9
    idle["host_sync"] = device.idle_ns[HOST_SYNC] * 1e-9
    idle["host_python"] = device.late_ns * 1e-9
    idle["launch_gap"] = (device.idle_ns[LAUNCH_GAP] - device.late_ns) * 1e-9
    idle["unexplained_idle"] = device.idle_ns[UNEXPLAINED] * 1e-9
    return Occupied(
        wall_s=device.span_ns * 1e-9, union_s=device.busy_ns * 1e-9, kernel_sum_s=device.kernel_sum_ns * 1e-9,
        communication_s=device.kinds["communication"].length_ns * 1e-9, overlapped_s=device.overlap_ns * 1e-9, idle=idle,
        basis="from the first kernel of the device to its last",
    )  # fmt: skip
