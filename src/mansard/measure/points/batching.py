"""Which points of a run are kept ready together, so that they can be measured in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mansard.measure.points.taken import Taken

MEMORY_SHARE = 0.2  # of the free memory, for the arrays of the points that are kept ready at the same time
ARRAYS_OVER_WORK = 3.0  # references, results and copies beside the arrays that are counted
MOST_TOGETHER = 16


def batches(states: Sequence[Taken], free_bytes: float | None) -> Iterator[list[Taken]]:
    """Return the points in batches that fit into memory together; a point too large for company is alone.

    Args:
        states: Points with their work.
        free_bytes: Free memory of the host [B]; None where nothing tells.
    """
    room = MEMORY_SHARE * free_bytes if free_bytes else 2e9
    batch: list[Taken] = []
    held = 0.0
    for state in states:
        size = ARRAYS_OVER_WORK * float(state.work.demand.working_set) if state.work is not None else 0.0
        if batch and (held + size > room or len(batch) >= MOST_TOGETHER or batch[0].resumed != state.resumed):
            yield batch
            batch, held = [], 0.0
        if size > room:
            state.in_one_go = "its arrays leave no room for other points: not interleaved with them"
        batch.append(state)
        held += size
    if batch:
        yield batch
