"""Loops of a code object, from its backward jumps."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop.

    Args:
        start: Offset of its first instruction, where each round but the first begins [bytes].
        end: Offset of its last backward jump [bytes].
        line: Source line of its head.
        heads: Offsets at which a trace of the start may be reported: the start, behind argument prefixes too.
    """

    start: int
    end: int
    line: int
    heads: tuple[int, ...]

    def holds(self, offset: int) -> bool:
        """Whether an instruction lies inside the loop."""
        return self.start <= offset <= self.end + 2


_cache: dict[CodeType, tuple[Loop, ...]] = {}


def loops_of(code: CodeType) -> tuple[Loop, ...]:
    """Return the loops of a code object, outer before inner.

    >>> def f(n):
    ...     for i in range(n):
    ...         while i:
    ...             i -= 1
    >>> [loop.line - f.__code__.co_firstlineno for loop in loops_of(f.__code__)]
    [1, 3]
    """
    known = _cache.get(code)
    if known is None:
        if len(_cache) > 4096:
            _cache.clear()
        known = _cache[code] = _find(code)
    return known


def _find(code: CodeType) -> tuple[Loop, ...]:
    ends: dict[int, int] = {}
    instructions = list(dis.get_instructions(code))
    for instruction in instructions:
        if "JUMP_BACKWARD" in instruction.opname and "NO_INTERRUPT" not in instruction.opname:
            target = int(instruction.argval)
            ends[target] = max(ends.get(target, 0), instruction.offset)
    lines = {offset: line for offset, line in dis.findlinestarts(code) if line is not None}
    by_offset = {instruction.offset: i for i, instruction in enumerate(instructions)}
    loops = []
    for start, end in ends.items():
        heads = [start]
        i = by_offset.get(start, len(instructions))
        while i < len(instructions) and instructions[i].opname == "EXTENDED_ARG":
            i += 1
            if i < len(instructions):
                heads.append(instructions[i].offset)
        line = max((offset for offset in lines if offset <= start), default=None)
        loops.append(Loop(start, end, lines[line] if line is not None else code.co_firstlineno, tuple(heads)))
    return tuple(sorted(loops, key=lambda loop: (loop.start, -loop.end)))
