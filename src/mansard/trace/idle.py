"""When a device was idle, and why, as intervals: the same definitions as the figures of `occupancy`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.core.intervals import EMPTY, IntervalSet, difference, intersection, merge, union
from mansard.trace.launches import Launches, join_launches
from mansard.trace.occupancy import DEVICE_KINDS, HostView, work_part
from mansard.trace.timeline import Kind, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Disjoint idle intervals of one device between its first and its last piece of work, by cause.

    Args:
        host_sync: A host thread waits in a synchronisation, and no work is queued.
        input_wait: The program waits for input, and no work is queued.
        late: The host had not yet called for the next work.
        queued: The next work was queued: what starting it costs the device.
        unexplained: Nothing recorded tells.
        blocked: The part of `unexplained` in which the next work had been queued before: the device waited with it for another
            stream, a peer, or something else that is not recorded.
    """

    host_sync: IntervalSet
    input_wait: IntervalSet
    late: IntervalSet
    queued: IntervalSet
    unexplained: IntervalSet
    blocked: IntervalSet = EMPTY


#: What lies between the last work of a step and its end mark for no longer than this has no cause of its own.
LONGEST_END_NS = 100_000


class Idles:
    """Idle intervals of the devices of one profile: what is asked twice is worked out once.

    Args:
        timeline: The profile, or a window of it.
        launches: Joined launches, where they are at hand.
    """

    def __init__(self, timeline: Timeline, launches: Launches | None = None) -> None:
        self._timeline = timeline
        self._host = HostView(timeline, launches or join_launches(timeline))
        self._known: dict[tuple[int, tuple[int, int] | None], Idle] = {}

    def of(self, device: int, window_ns: tuple[int, int] | None = None) -> Idle:
        """Return the idle intervals of a device by cause; a copy or a fill is no idle time here.

        Args:
            device: Index of the device.
            window_ns: Steps that begin before the first piece of work or end after the last: what lies between is idle time too.
        """
        key = (device, window_ns)
        if key not in self._known:
            self._known[key] = self._idle(device, window_ns)
        return self._known[key]

    def _idle(self, device: int, window_ns: tuple[int, int] | None) -> Idle:
        parts = {k: work_part(self._timeline.of(k), device) for k in DEVICE_KINDS}
        busy = union([merge(p.start_ns, p.end_ns) for p in parts.values()])
        gaps = busy.gaps()
        if window_ns is not None and len(busy):
            whole = IntervalSet(start_ns=np.array([window_ns[0]]), end_ns=np.array([window_ns[1]]))
            gaps = union([gaps, difference(whole, busy)])
        if not len(gaps):
            return Idle(host_sync=EMPTY, input_wait=EMPTY, late=EMPTY, queued=EMPTY, unexplained=EMPTY)
        sync, waits = self._host.waits(parts)
        launch, late = self._host.launch_gaps(parts, gaps.start_ns, gaps.end_ns)
        hosts = ~self._host.queued_gaps(parts, gaps.start_ns, gaps.end_ns)
        if window_ns is not None and len(busy) and launch.any():
            # A marked step that goes on after its last work, with nothing queued: the host did something else than launching.
            longer = gaps.end_ns - gaps.start_ns > LONGEST_END_NS
            after = (gaps.start_ns >= busy.end_ns[-1]) & hosts & longer
            launch, late = launch | after, late | after
        without_work = IntervalSet(start_ns=gaps.start_ns[hosts], end_ns=gaps.end_ns[hosts])
        in_sync = intersection(without_work, sync)
        in_input = difference(intersection(without_work, waits), sync)
        rest = difference(gaps, union([in_sync, in_input]))

        def part(chosen: npt.NDArray[np.bool_]) -> IntervalSet:
            return intersection(rest, IntervalSet(start_ns=gaps.start_ns[chosen], end_ns=gaps.end_ns[chosen]))

        return Idle(
            host_sync=in_sync,
            input_wait=in_input,
            late=part(launch & late),
            queued=part(launch & ~late),
            unexplained=part(~launch),
        )


def idle_of(
    timeline: Timeline, device: int, *, launches: Launches | None = None, window_ns: tuple[int, int] | None = None
) -> Idle:
    """Return the idle intervals of one device; who asks more than once keeps `Idles`.

    Args:
        timeline: The profile, or a window of it.
        device: Index of the device.
        launches: Joined launches, where they are at hand.
        window_ns: As in `Idles.of`.
    """
    return Idles(timeline, launches).of(device, window_ns)


def host_calls(timeline: Timeline) -> IntervalSet:
    """Return when any host thread is inside a runtime call or an operator of the framework."""
    return union([merge(t.start_ns, t.end_ns) for t in (timeline.of(Kind.RUNTIME), timeline.of(Kind.CPU_OP)) if len(t)])
