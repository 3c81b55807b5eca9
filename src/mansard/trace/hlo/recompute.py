"""Which instructions of a compiled program compute again what the program has computed before (`jax.checkpoint`).

A name alone does not tell. XLA merges a recomputation with its original where no barrier keeps them apart, and the one
that is left may carry either name; what ran once is no recomputation. So a recomputation needs its original: an
instruction with the same value in the same computation, or, where loops keep the two apart, the same work in another.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator

from mansard.trace.hlo.shapes import Shape
from mansard.trace.hlo.text import Computation, Instruction, Module

_MARK = "rematted_computation"
#: XLA's own rematerialisation pass names its clones so. Source: xla/hlo/transforms/simplifiers/hlo_rematerialization.cc.
_XLA_NAME = re.compile(r"\.remat\d*(\.|$)")
#: Instructions that do matrix work.
MATRIX = frozenset({"dot", "convolution"})
_INLINED = frozenset({"fusion", "call"})
_SAME_VALUE = frozenset({"copy", "opt-barrier", "optimization-barrier"})
_HANDS_ON = _INLINED | _SAME_VALUE | {"parameter", "tuple", "get-tuple-element"}
_IRRELEVANT = frozenset({"metadata", "backend_config", "sharding", "frontend_attributes", "kind", "control-predecessors",
                         "origin", "statistics"})  # fmt: skip


def says_recompute(instruction: Instruction) -> bool:
    """Whether the instruction carries the name of a recomputation."""
    return _MARK in instruction.op_name or _XLA_NAME.search(instruction.name) is not None


def recomputed(module: Module) -> frozenset[str]:
    """Return the names of the instructions whose value the program has computed elsewhere as well.

    Args:
        module: A parsed module.
    """
    marked = [i for c in module.computations.values() for i in c.instructions.values() if says_recompute(i)]
    if not marked:
        return frozenset()
    values = _Values(module)
    values.run(module.entry)
    originals = {v for n, v in values.of.items() if _computes(values.instruction[n])}
    elsewhere: dict[Hashable, set[str]] = {}
    for name, home in values.home.items():
        instruction = values.instruction[name]
        if instruction.opcode in MATRIX and _is_forward(instruction):
            elsewhere.setdefault(_work(instruction, values), set()).add(home)
    found = set()
    for instruction in marked:
        name = instruction.name
        if name not in values.of:
            continue
        home = values.home[name]
        other = elsewhere.get(_work(instruction, values), set()) - {home} if instruction.opcode in MATRIX else set()
        # At the top level the original would be at the top level too, so there the value alone decides.
        if values.of[name] in originals or (home != module.entry and other):
            found.add(name)
    return frozenset(found)


def _computes(instruction: Instruction) -> bool:
    """Whether it makes a value itself and does not say that it does so again; others only hand one on."""
    return instruction.opcode not in _HANDS_ON and not says_recompute(instruction)


def _is_forward(instruction: Instruction) -> bool:
    return not says_recompute(instruction) and "transpose(" not in instruction.op_name


def _work(instruction: Instruction, values: _Values) -> Hashable:
    """What a product or convolution costs: elements of the result and of the operands, in whatever order."""
    return (
        instruction.opcode,
        instruction.shape.elements,
        tuple(sorted(values.elements(instruction))),
    )


def _form_of(shape: Shape) -> Hashable:
    """A shape without its layout."""
    return (shape.dtype, shape.dims, tuple(_form_of(p) for p in shape.parts))


class _Values:
    """Numbers for values: equal numbers are equal expressions of the same inputs, barriers, copies and fusions aside.

    Args:
        module: A parsed module.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._numbers: dict[Hashable, int] = {}
        self._parts: dict[int, tuple[int, ...]] = {}  # elements of tuples
        self.of: dict[str, int] = {}
        self.home: dict[str, str] = {}
        self.instruction: dict[str, Instruction] = {}
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._forms: dict[str, int] = {}

    def elements(self, instruction: Instruction) -> tuple[int, ...]:
        """Elements of its operands."""
        return self._sizes[instruction.name]

    def run(self, entry: str) -> None:
        """Number the entry computation and, each by itself, what loops and branches run."""
        waiting, seen = [entry], {entry}
        while waiting:
            name = waiting.pop()
            computation = self._module.computations[name]
            inputs = {n: self._number(("input", name, n)) for n in computation.parameters}
            self._walk(computation, inputs, name)
            for called in self._separate(computation):
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)

    def _separate(self, computation: Computation) -> Iterator[str]:
        """Computations that run apart from the one that names them, at any depth of fusion."""
        for instruction in computation.instructions.values():
            for key, names in instruction.called.items():
                for name in names:
                    if instruction.opcode in _INLINED:
                        yield from self._separate(self._module.computations[name])
                    elif key != "to_apply":
                        yield name

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _walk(self, computation: Computation, inputs: dict[int, int], home: str) -> int:
        """Number the instructions of a computation; return the value of its result."""
        here: dict[str, int] = {}
        for instruction in computation.instructions.values():
            name = instruction.name
            shapes = (computation.instructions[o].shape for o in instruction.operands if o in here)
            here[name] = self._value(instruction, [here[o] for o in instruction.operands if o in here], inputs, home)
            self.of[name], self.home[name], self.instruction[name] = here[name], home, instruction
            self._sizes[name] = tuple(int(s.elements) for s in shapes)
        return here[computation.root.name]

    def _value(self, instruction: Instruction, operands: list[int], inputs: dict[int, int], home: str) -> int:
        op = instruction.opcode
        if op == "parameter":
            return inputs[int(instruction.argument)]
        if op in _SAME_VALUE and len(operands) == 1:
            return operands[0]
        if op == "get-tuple-element" and operands[0] in self._parts:
            return self._parts[operands[0]][instruction.ints("index")[0]]
        if op in _INLINED and instruction.called:
            callee = self._module.computations[next(iter(instruction.called.values()))[0]]
            return self._walk(callee, dict(enumerate(operands)), home)
        called = tuple(self._form(name) for names in instruction.called.values() for name in names)
        written = {k: v for k, v in instruction.attributes.items() if k not in _IRRELEVANT and "%" not in v}
        value = self._number(
            (
                op,
                _form_of(instruction.shape),
                "" if operands else instruction.argument,
                tuple(sorted(written.items())),
                called,
                tuple(operands),
            )
        )
        if op == "tuple":
            self._parts[value] = tuple(operands)
        return value

    def _form(self, name: str) -> int:
        """Number what an applied computation, or the body of a loop, does to its inputs."""
        if name not in self._forms:
            computation = self._module.computations[name]
            inputs = {n: self._number(("form", n)) for n in computation.parameters}
            apart = _Values(self._module)
            apart._numbers, apart._parts, apart._forms = self._numbers, self._parts, self._forms
            self._forms[name] = apart._walk(computation, inputs, name)
        return self._forms[name]
