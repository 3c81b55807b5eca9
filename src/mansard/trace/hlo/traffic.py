"""Which bytes a compiled operation must read and write: operands once, only what is used of them; results once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from mansard.trace.hlo.text import Computation, Instruction

_SAME = frozenset({"bitcast", "reshape", "copy", "convert", "transpose", "reverse", "bitcast-convert"})
_ALIASES = frozenset({"bitcast", "reshape", "bitcast-convert", "get-tuple-element"})
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})


def read_elements(computation: Computation) -> dict[str, float]:
    """Return how many elements of each value of a fused computation must be computed or read.

    The result is needed in full. What an instruction needs of an operand follows from its opcode: a slice or gather needs
    as many elements as it yields, a broadcast each at most once, an in-place update nothing of what it overwrites into.
    """
    need: dict[str, float] = defaultdict(float)
    need[computation.root.name] = computation.root.shape.elements
    in_place = {i.name for i in updates_in_place(computation)}
    for instruction in reversed(list(computation.instructions.values())):
        wanted = need[instruction.name]
        if wanted <= 0:
            continue
        for position, name in enumerate(instruction.operands):
            operand = computation.instructions.get(name)
            if operand is None:
                continue
            amount = _needed(instruction, position, operand, wanted, instruction.name in in_place)
            need[name] = min(operand.shape.elements, need[name] + amount)
    return need


def _needed(user: Instruction, position: int, operand: Instruction, wanted: float, in_place: bool) -> float:
    """Elements of `operand` that `wanted` elements of `user` need."""
    op, size, result = user.opcode, operand.shape.elements, max(1.0, user.shape.elements)
    if op in _SLICES and position == 0:
        return min(size, wanted)
    if op == "dynamic-update-slice":
        if position == 0:
            return 0.0 if in_place else min(size, wanted)
        return size
    if op == "scatter" and in_place and position < len(user.operands) // 2:
        return 0.0
    if op in ("tuple",):
        return size
    if op in ("get-tuple-element", "broadcast", "pad", "concatenate") or op in _SAME:
        return min(size, wanted)
    if op in ("reduce", "reduce-window", "dot", "convolution", "sort", "select-and-scatter", "map", "custom-call"):
        return size if wanted >= result else size * wanted / result
    if operand.shape.elements == user.shape.elements:
        return min(size, wanted)
    return size


def updates_in_place(computation: Computation) -> list[Instruction]:
    """Return the updates that a fused computation ends in and that write into their first operand.

    XLA makes a trailing dynamic-update-slice or scatter share the buffer of its operand and inserts a copy where it may not.
    Source: xla/hlo/analysis/hlo_dataflow_analysis.cc, in-place input/output pairs.
    """
    found = []
    for instruction in _results(computation):
        at = instruction
        while at.opcode in _ALIASES and at.operands[0] in computation.instructions:
            at = computation.instructions[at.operands[0]]
        if at.opcode in ("dynamic-update-slice", "scatter"):
            base = computation.instructions.get(at.operands[0])
            while base is not None and base.opcode in _ALIASES and base.operands:
                base = computation.instructions.get(base.operands[0])
            # A chain of updates of one buffer stays in place.
            if base is None or base.opcode in ("parameter", "dynamic-update-slice", "scatter"):
                found.append(at)
    return found


def _results(computation: Computation) -> list[Instruction]:
    root = computation.root
    if root.opcode != "tuple":
        return [root]
    return [computation.instructions[o] for o in root.operands if o in computation.instructions]


def fusion_bytes(computation: Computation) -> tuple[float, float]:
    """Return the bytes a fused computation reads and writes [B].

    Args:
        computation: The fused computation; parameters are what it reads.
    """
    need = read_elements(computation)
    read = 0.0
    for parameter in computation.parameters.values():
        elements = parameter.shape.elements
        if elements:
            read += parameter.shape.size_bytes * min(1.0, need[parameter.name] / elements)
    written = 0.0
    in_place = {i.name: i for i in updates_in_place(computation)}
    for result in _results(computation):
        at: Instruction = result
        while at.opcode in _ALIASES and at.operands[0] in computation.instructions:
            at = computation.instructions[at.operands[0]]
        if at.name in in_place:
            updated, touched = _update_bytes(at, computation.instructions)
            written += updated
            read += touched
        elif at.opcode == "parameter" and len(_results(computation)) > 1:
            continue
        else:
            written += result.shape.size_bytes
    return read, written


def _update_bytes(update: Instruction, values: Mapping[str, Instruction]) -> tuple[float, float]:
    """Bytes an in-place update writes, and bytes of the old contents it must read to combine with."""
    if update.opcode == "dynamic-update-slice":
        patch = values.get(update.operands[1])
        return (patch.shape.size_bytes if patch else 0.0), 0.0
    count = len(update.operands) // 2
    patches = [values[o].shape.size_bytes for o in update.operands[count + 1 :] if o in values]
    size = sum(patches)
    return size, size


def single_bytes(instruction: Instruction, computation: Computation) -> tuple[float, float]:
    """Return the bytes that an instruction outside of a fusion reads and writes [B]."""
    values: dict[str, Instruction] = {}
    for name in instruction.operands:
        operand = computation.instructions.get(name)
        if operand is not None:
            values[name] = Instruction(
                name=name, opcode="parameter", shape=operand.shape, operands=(), argument=str(len(values))
            )
    root = Instruction(
        name=instruction.name, opcode=instruction.opcode, shape=instruction.shape, operands=instruction.operands,
        argument=instruction.argument, attributes=instruction.attributes, root=True,
    )  # fmt: skip
    return fusion_bytes(Computation(name="", instructions={**values, root.name: root}))
