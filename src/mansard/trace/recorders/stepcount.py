"""Which marks close a step, where several signs come in each step. Standard library only: the guest uses it too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

#: Time [ns since the epoch], source such as `optimizer#0`, rounds of the loop so far (None for other sources), and
#: the number of the traced stretch that the mark belongs to.
Mark = tuple[int, str, int | None, int]


def steps_between(a: Mark, b: Mark, counted: bool) -> int | None:
    """Return the steps between two marks of one source; None where rounds went by uncounted.

    Args:
        a, b: The marks, in order.
        counted: Whether the loop's own iterator told the count, so that it holds over gaps in tracing.

    >>> steps_between((0, "optimizer#0", None, 0), (9, "optimizer#0", None, 0), False)
    1
    >>> steps_between((0, "loop#0", 4, 1), (9, "loop#0", 11, 2), True)
    7
    """
    if a[2] is None or b[2] is None:
        return 1
    if counted or a[3] == b[3]:
        return b[2] - a[2]
    return None


def closing(sources: Sequence[str]) -> list[int]:
    """Return the indices of the marks that end a step.

    With one source every mark ends a step. With several (two optimizers in each iteration) the shortest repeating
    group is one step and its last mark ends it. Where nothing repeats, the rarest source with three marks or more
    ends a step.

    >>> closing(["optimizer#0"] * 3)
    [0, 1, 2]
    >>> closing(["a", "a", "b", "a", "a", "b"])
    [2, 5]
    """
    n = len(sources)
    counts = Counter(sources)
    if len(counts) <= 1:
        return list(range(n))
    first = {source: sources.index(source) for source in counts}
    for period in range(max(first.values()) + 1, min(64, n // 2) + 1):
        if all(sources[i] == sources[i - period] for i in range(period, n)):
            return list(range(period - 1, n, period))
    enough = [s for s, c in counts.items() if c >= 3]
    if not enough:
        return []
    rarest = min(enough, key=lambda s: (counts[s], -first[s]))
    return [i for i, s in enumerate(sources) if s == rarest]
