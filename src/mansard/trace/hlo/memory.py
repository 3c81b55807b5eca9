"""Which results of a compiled program go into memory that this run of it touches first.

A program's results are buffers of their own, except those that take the place of a donated argument. What lies between is
packed into one temporary buffer that is allocated anew for each run: an instruction that makes more of it live than ever
before in this run is the first to touch that much of it. Loop bodies touch theirs in the first pass alone and are left out.
"""

from __future__ import annotations

import re

from mansard.trace.hlo.parts import is_free
from mansard.trace.hlo.text import Computation, Instruction, Module

#: Instructions whose result is, or may be, their operand's memory.
_ALIASES = frozenset(
    {"bitcast", "tuple", "get-tuple-element", "while", "dynamic-update-slice", "opt-barrier", "conditional"}
)


def fresh_results(module: Module) -> dict[str, float]:
    """Return the bytes of each instruction of the entry computation that go into newly touched memory [B].

    Args:
        module: A scheduled module: its instructions stand in the order in which they run.

    Assumes:
        Temporary buffers are packed without gaps.
    """
    entry = module.computations[module.entry]
    results, donated = _results(module)
    owners = {name: _owners(entry, name) for name in entry.instructions}
    last = {owner: at for at, name in enumerate(entry.instructions) for owner in _read(entry, name, owners)}
    fresh: dict[str, float] = {}
    live: dict[str, float] = {}
    peak = 0.0
    for at, (name, instruction) in enumerate(entry.instructions.items()):
        if is_free(instruction) or instruction.opcode in _ALIASES or name in donated:
            continue
        size = instruction.shape.size_bytes
        if name in results:
            fresh[name] = size
            continue
        ended = [o for o in live if last.get(o, at) < at]
        dying = [o for o in live if last.get(o, at) == at]
        if _in_place(instruction, [live[o] for o in dying], size):
            ended += dying
        for owner in ended:
            del live[owner]
        live[name] = size
        total = sum(live.values())
        if total > peak:
            fresh[name] = min(size, total - peak)
            peak = total
    return fresh


def _in_place(instruction: Instruction, dying: list[float], size: float) -> bool:
    """Whether an element-wise instruction can write where an operand of its size was that nothing reads later."""
    return instruction.attributes.get("kind", "") == "kLoop" and size in dying


def _owners(entry: Computation, name: str) -> frozenset[str]:
    """Return the instructions whose memory a value lies in."""
    seen: set[str] = set()
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in seen or one not in entry.instructions:
            continue
        seen.add(one)
        instruction = entry.instructions[one]
        if instruction.opcode in _ALIASES:
            waiting += instruction.operands
        else:
            found.add(one)
    return frozenset(found)


def _read(entry: Computation, name: str, owners: dict[str, frozenset[str]]) -> frozenset[str]:
    """Return whose memory an instruction reads; an alias reads nothing by itself."""
    instruction = entry.instructions[name]
    if instruction.opcode in ("bitcast", "tuple", "get-tuple-element", "opt-barrier"):
        return frozenset()
    return frozenset(o for operand in instruction.operands if operand in owners for o in owners[operand])


def _results(module: Module) -> tuple[frozenset[str], frozenset[str]]:
    """Return the instructions whose value is a result of the program: in memory of its own, in that of an argument."""
    entry = module.computations[module.entry]
    root = entry.root
    taken = {int(g.split(",")[0] or 0) for g in _aliased(module.header.get("input_output_alias", ""))}
    if root.opcode != "tuple":
        named = frozenset({root.name})
        return (frozenset(), named) if taken else (named, frozenset())
    kept = {o for n, o in enumerate(root.operands) if n not in taken and not is_free(entry.instructions[o])}
    return frozenset(kept), frozenset(o for n, o in enumerate(root.operands) if n in taken and o not in kept)


def _aliased(text: str) -> list[str]:
    """Output indices of `{ {0}: (0, {}, may-alias), {1}: ... }`."""
    return re.findall(r"\{([\d,\s]*)\}\s*:", text)
