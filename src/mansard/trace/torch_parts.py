"""Which part of a step an operation belongs to, where its own record does not say: the order of the parts tells."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.trace.run import Part
from mansard.trace.torch_tree import Emitted


def settle_parts(emitted: Emitted) -> list[Part]:
    """Return the part of each operation.

    Operations under the autograd engine, an optimizer or a DataLoader know their part. Of the rest, what comes before
    the next backward pass is forward; what comes between a backward pass and the optimizer (clipping of gradients) is
    other, as is everything in a program without a backward pass.

    Args:
        emitted: Operations with the parts that their own record tells.
    """
    by_time = sorted(range(len(emitted.part)), key=lambda i: emitted.start_ns[i])
    out: list[Part] = [part if part is not None else Part.OTHER for part in emitted.part]
    following: Part | None = None
    for i in reversed(by_time):
        part = emitted.part[i]
        if part in (Part.BACKWARD, Part.OPTIMIZER):
            if part is Part.BACKWARD or _steps(emitted, i):
                following = part
        elif part is None and following is Part.BACKWARD:
            out[i] = Part.FORWARD
    return _last_forward(emitted, by_time, out)


def _steps(emitted: Emitted, i: int) -> bool:
    """Whether an optimizer operation belongs to a step rather than to the zeroing of gradients."""
    return not emitted.zeroing[i]


def _last_forward(emitted: Emitted, by_time: Sequence[int], out: list[Part]) -> list[Part]:
    """After the last optimizer step the window ends inside the next forward pass."""
    parts = set(emitted.part)
    if Part.BACKWARD not in parts or Part.OPTIMIZER not in parts:
        return out
    for i in reversed(by_time):
        part = emitted.part[i]
        if part is Part.BACKWARD or (part is Part.OPTIMIZER and not emitted.zeroing[i]):
            break
        if part is None:
            out[i] = Part.FORWARD
    return out
