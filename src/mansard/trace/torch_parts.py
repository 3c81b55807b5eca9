"""Which part of a step an operation belongs to, where its own record does not say: the order of the parts tells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.trace.run import Part
from mansard.trace.torch_tree import Emitted

#: Parts by their number in the arrays below; -1 is a part that the record does not tell.
PARTS = tuple(Part)
_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = (
    PARTS.index(p) for p in (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.OTHER)
)


def settle_parts(emitted: Emitted) -> list[Part]:
    """Return the part of each operation.

    Args:
        emitted: Operations with the parts that their own record tells.
    """
    told = np.array([-1 if p is None else PARTS.index(p) for p in emitted.part], dtype=np.int8)
    start, zeroing = np.array(emitted.start_ns, dtype=np.int64), np.array(emitted.zeroing, dtype=np.bool_)
    return [PARTS[code] for code in settled_codes(told, start, zeroing).tolist()]


def settled_codes(
    told: npt.NDArray[np.int8], start_ns: npt.NDArray[np.int64], zeroing: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int8]:
    """Return the part of each operation as an index into `PARTS`.

    Operations under the autograd engine, an optimizer or a DataLoader know their part. Of the rest, what comes before
    the next backward pass is forward; what comes between a backward pass and the optimizer (clipping of gradients) is
    other, as is everything in a program without a backward pass. After the last optimizer step the window ends inside the
    next forward pass.

    Args:
        told: What the record of each operation tells, -1 for nothing.
        start_ns: When each starts [ns].
        zeroing: Which belong to the zeroing of gradients rather than to a step of the optimizer.

    >>> unknown, backward, optimizer = -1, PARTS.index(Part.BACKWARD), PARTS.index(Part.OPTIMIZER)
    >>> told = np.array([unknown, backward, unknown, optimizer, unknown], dtype=np.int8)
    >>> [PARTS[i].value for i in settled_codes(told, np.arange(5), np.zeros(5, dtype=bool))]
    ['forward', 'backward', 'other', 'optimizer', 'forward']
    """
    order = np.argsort(start_ns, kind="stable")
    part = told[order]
    marks = np.flatnonzero((part == _BACKWARD) | ((part == _OPTIMIZER) & ~zeroing[order]))
    untold = part < 0
    part[untold] = _OTHER
    if marks.size:
        following = np.searchsorted(marks, np.arange(part.size))
        before = following < marks.size
        backward = np.zeros(part.size, dtype=np.bool_)
        backward[before] = part[marks[following[before]]] == _BACKWARD
        both = bool((told == _BACKWARD).any() and (told == _OPTIMIZER).any())
        part[untold & (backward | (~before if both else False))] = _FORWARD
    out = np.empty_like(told)
    out[order] = part
    return out
