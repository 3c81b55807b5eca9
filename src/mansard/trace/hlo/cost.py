"""The demand of every instruction of a compiled program, loops multiplied by their trip count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mansard.core import NOTHING, Demand, Unknown
from mansard.trace.hlo.arithmetic import Arithmetic, arithmetic_of, vector_dtype
from mansard.trace.hlo.calls import LINK, collective_demand, collective_kind, custom_call, group_size
from mansard.trace.hlo.loops import trip_count
from mansard.trace.hlo.memory import fresh_results
from mansard.trace.hlo.parts import category_of, is_free, is_training, label_of, part_of, telling_of
from mansard.trace.hlo.recompute import recomputed, says_recompute
from mansard.trace.hlo.text import Computation, Instruction, Module
from mansard.trace.hlo.traffic import fusion_bytes, single_bytes
from mansard.trace.run import Part

_CONTROL = frozenset({"while", "conditional", "call", "async-start"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionCost:
    """What one execution of an instruction consumes.

    Args:
        name: Instruction name, unique in its module.
        label: What the program calls it: the primitive, such as `dot_general`.
        category, part: As in `mansard.trace.run.Operator`.
        demand: Its demand; of a loop, of all its passes; `Unknown` with the reason.
        shapes: Operands and result for reading.
        source: Framework name and source position.
        formula: How the demand was counted.
        control: Whether it runs other instructions (loop, branch, call) that may show up on their own.
        may_be_idle: Whether it may run none: a branch without instructions.
        fresh_bytes: Bytes of its result that go into memory newly touched in this run of the program [B].
        recompute: Whether it computes again what the program has computed before (`jax.checkpoint`).
    """

    name: str
    label: str
    category: str
    part: Part
    demand: Demand | Unknown
    shapes: str
    source: str
    formula: str
    control: bool = False
    may_be_idle: bool = False
    fresh_bytes: float = 0.0
    recompute: bool = False


class ModuleCosts:
    """The costs of a module's instructions, worked out when asked for.

    Args:
        module: A parsed module.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.training = is_training(module)
        self._home = {n: c for c in module.computations.values() for n in c.instructions}
        self._arithmetic: dict[str, Arithmetic] = {}
        self._costs: dict[str, InstructionCost] = {}
        self._totals: dict[str, Demand | Unknown] = {}
        self._fresh = fresh_results(module)
        self._again = recomputed(module)
        devices = module.header.get("num_partitions", ""), module.header.get("replica_count", "")
        self._devices = max(1, *(int(d) for d in devices if d.isdigit())) if any(d.isdigit() for d in devices) else 1

    def __contains__(self, name: str) -> bool:
        return name in self._home

    @property
    def names(self) -> frozenset[str]:
        """Names of all instructions."""
        return frozenset(self._home)

    def instruction(self, name: str) -> Instruction:
        """Return an instruction by name."""
        return self._home[name].instructions[name]

    def of(self, name: str) -> InstructionCost:
        """Return the cost of one execution of instruction `name`.

        Raises:
            KeyError: the module has no such instruction.
        """
        if name not in self._costs:
            self._costs[name] = self._cost(self._home[name].instructions[name], self._home[name])
        return self._costs[name]

    def total(self) -> Demand | Unknown:
        """Return the demand of one execution of the program; `Unknown` if that of any instruction is."""
        return self._computation_total(self.module.entry)

    def inside(self, name: str) -> frozenset[str]:
        """Names of all instructions that a control instruction may run, at any depth."""
        found: set[str] = set()
        stack = list(self._callees(self.instruction(name)))
        while stack:
            computation = self.module.computations.get(stack.pop())
            if computation is None or not found.isdisjoint(computation.instructions):
                continue
            found.update(computation.instructions)
            for instruction in computation.instructions.values():
                if instruction.opcode in _CONTROL:
                    stack += self._callees(instruction)
        return frozenset(found)

    @staticmethod
    def _callees(instruction: Instruction) -> list[str]:
        return [c for names in instruction.called.values() for c in names]

    def _contained(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instruction and everything fused into it."""
        yield instruction
        if instruction.opcode in ("fusion", "call", "async-start"):
            for name in self._callees(instruction):
                for inner in self.module.computations[name].instructions.values():
                    if inner.opcode not in ("parameter",):
                        yield from self._contained(inner)

    def _cost(self, instruction: Instruction, home: Computation) -> InstructionCost:
        contained = list(self._contained(instruction))
        told = telling_of(instruction, contained)
        formula: list[str] = []
        demand = NOTHING if is_free(instruction) else self._demand(instruction, home, formula)
        operands = [home.instructions[o].shape for o in instruction.operands if o in home.instructions]
        telling = next((i for i in contained if i.opcode in ("dot", "convolution") and i.op_name), instruction)
        where = self.module.location(telling) or self.module.location(instruction)
        return InstructionCost(
            name=instruction.name,
            label=label_of(telling, instruction, contained),
            category=category_of(instruction, contained),
            part=part_of(instruction, contained, self.module, training=self.training, again=self._again),
            demand=demand,
            shapes=" ".join(str(s) for s in operands if s.dtype != "tuple") + f" -> {instruction.shape}",
            source=" ".join(w for w in (telling.op_name or instruction.op_name, where) if w),
            formula="; ".join(formula),
            control=instruction.opcode in _CONTROL,
            may_be_idle=instruction.opcode == "conditional" and self._has_idle_branch(instruction),
            fresh_bytes=self._fresh.get(instruction.name, 0.0),
            recompute=bool(told) and all(says_recompute(i) and i.name in self._again for i in told),
        )

    def _demand(self, instruction: Instruction, home: Computation, formula: list[str]) -> Demand | Unknown:
        op = instruction.opcode
        if op == "while":
            return self._loop(instruction, home, formula)
        if op == "conditional":
            return self._branches(instruction, formula)
        if op in ("call", "async-start"):
            called = self._callees(instruction)
            return self._computation_total(called[0]) if called else Unknown(f"{op} {instruction.name} names nothing")
        operands = [home.instructions[o].shape for o in instruction.operands if o in home.instructions]
        link: dict[str, float] = {}
        kind = collective_kind(instruction)
        if kind is not None:
            n = group_size(instruction, self._devices)
            if isinstance(n, Unknown):
                return n
            sent, reduced, text = collective_demand(kind, operands, instruction.shape, n)
            count, link = Arithmetic(formulas=[text]), {LINK: sent}
            kind_of_work = vector_dtype(operands[0].dtype) if operands else None
            if reduced and kind_of_work is not None:
                count.vector[kind_of_work] += reduced
        elif op == "fusion":
            count = self._of_computation(self._callees(instruction)[0])
        elif op == "custom-call":
            count = custom_call(instruction, operands)
        else:
            count = arithmetic_of(instruction, home, self._inner(instruction))
        if count.unknown is not None:
            return count.unknown
        if op == "fusion":
            read, written = fusion_bytes(self.module.computations[self._callees(instruction)[0]])
        else:
            read, written = single_bytes(instruction, home)
        if instruction.shape.any_dynamic:
            return Unknown(f"{instruction.name} has a dynamic dimension", ("the extent at run time",))
        formula += [*count.formulas, f"{read:.0f} B read, {written:.0f} B written"]
        return Demand(
            flop=dict(count.flop), vector_flop=dict(count.vector), transcendental=dict(count.special),
            read_bytes=read, write_bytes=written, link_bytes=link, uncounted=tuple(count.uncounted),
        )  # fmt: skip

    def _inner(self, instruction: Instruction) -> dict[str, Arithmetic]:
        return {c: self._of_computation(c) for c in self._callees(instruction)}

    def _of_computation(self, name: str) -> Arithmetic:
        """Arithmetic of one execution of a computation that is applied or fused."""
        if name not in self._arithmetic:
            total = Arithmetic()
            computation = self.module.computations[name]
            for instruction in computation.instructions.values():
                if instruction.opcode in ("fusion", "call"):
                    for called in self._callees(instruction):
                        total.add(self._of_computation(called))
                elif instruction.opcode == "custom-call":
                    shapes = [computation.instructions[o].shape for o in instruction.operands]
                    total.add(custom_call(instruction, shapes))
                else:
                    total.add(arithmetic_of(instruction, computation, self._inner(instruction)))
            self._arithmetic[name] = total
        return self._arithmetic[name]

    def _computation_total(self, name: str) -> Demand | Unknown:
        if name not in self._totals:
            total: Demand | Unknown = NOTHING
            for instruction in self.module.computations[name].instructions.values():
                if is_free(instruction):
                    continue
                demand = self.of(instruction.name).demand
                total = demand + total if isinstance(demand, Unknown) or isinstance(total, Unknown) else total + demand
                if isinstance(total, Unknown):
                    break
            self._totals[name] = total
        return self._totals[name]

    def _loop(self, instruction: Instruction, home: Computation, formula: list[str]) -> Demand | Unknown:
        trips = trip_count(instruction, home, self.module)
        if isinstance(trips, Unknown):
            return trips
        called = instruction.called
        body, condition = (self._computation_total(called[k][0]) for k in ("body", "condition"))
        if isinstance(body, Unknown):
            return body
        if isinstance(condition, Unknown):
            return condition
        formula.append(f"{trips} passes of the loop body")
        return body.scaled(float(trips)) + condition.scaled(float(trips + 1))

    def _has_idle_branch(self, instruction: Instruction) -> bool:
        branches = [self.module.computations[c] for c in self._callees(instruction)]
        return any(all(is_free(i) for i in b.instructions.values()) for b in branches)

    def _branches(self, instruction: Instruction, formula: list[str]) -> Demand | Unknown:
        branches = [self._computation_total(c) for c in self._callees(instruction)]
        if branches and all(b == branches[0] for b in branches):
            formula.append("all branches cost the same")
            return branches[0]
        return Unknown(f"which branch of {instruction.name} ran is not recorded", ("events of the operations inside",))
