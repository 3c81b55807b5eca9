"""How often a compiled loop runs."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard.core import Unknown
from mansard.trace.hlo.text import Computation, Instruction, Module

_PASS = frozenset({"copy", "bitcast", "convert", "reshape"})


def trip_count(loop: Instruction, home: Computation, module: Module) -> int | Unknown:
    """Return how many times the body of a while loop runs.

    The compiler's own `known_trip_count` where there is one; else a counter that starts at a constant, is changed by a constant
    in the body and compared with a constant in the condition; else `Unknown`.

    Args:
        loop: The while instruction.
        home: The computation it stands in.
        module: Its module.
    """
    known = loop.backend_config.get("known_trip_count")
    if isinstance(known, dict) and str(known.get("n", "")).isdigit():
        return int(known["n"])
    reason = Unknown(f"the trip count of the loop {loop.name} depends on data", ("how often it ran",))
    called = loop.called
    if "condition" not in called or "body" not in called:
        return reason
    condition, body = (module.computations[called[k][0]] for k in ("condition", "body"))
    test = _test(condition, module)
    if test is None:
        return reason
    index, direction, limit = test
    step = _step(body, index, module)
    start = _start(loop, home, index)
    if step is None or start is None:
        return reason
    return _count(start, step, direction, limit) if step else reason


def _count(start: int, step: int, direction: str, limit: int) -> int | Unknown:
    if direction in ("LT", "LE") and step > 0:
        return max(0, math.ceil((limit + (direction == "LE") - start) / step))
    if direction in ("GT", "GE") and step < 0:
        return max(0, math.ceil((start - limit + (direction == "GE")) / -step))
    if direction == "NE" and (limit - start) % step == 0 and (limit - start) // step >= 0:
        return (limit - start) // step
    return Unknown("the loop counter moves away from its limit")


def _constant(at: Instruction | None) -> int | None:
    if at is None or at.opcode != "constant":
        return None
    try:
        return int(at.argument)
    except ValueError:
        return None


def _resolve(
    name: str, computation: Computation, outer: Callable[[int], Instruction | None] | None
) -> Instruction | None:
    """Follow copies to what defines a value; a parameter of a fused computation leads to the fusion's operand."""
    at = computation.instructions.get(name)
    while at is not None and at.opcode in _PASS and at.operands:
        at = computation.instructions.get(at.operands[0])
    if at is not None and at.opcode == "parameter" and outer is not None:
        return outer(int(at.argument))
    return at


def _inline(
    at: Instruction, computation: Computation, module: Module
) -> tuple[Instruction, Callable[[str], Instruction | None]]:
    """Return the arithmetic behind a value and how to resolve its operands, looking through one fusion or call."""
    if at.opcode in ("fusion", "call"):
        names = at.called.get("calls") or at.called.get("to_apply") or ()
        if names:
            inner = module.computations[names[0]]

            def argument(number: int) -> Instruction | None:
                return _resolve(at.operands[number], computation, None) if number < len(at.operands) else None

            root = _resolve(inner.root.name, inner, None) or inner.root
            return root, lambda name: _resolve(name, inner, argument)
    return at, lambda name: _resolve(name, computation, None)


def _test(condition: Computation, module: Module) -> tuple[int, str, int] | None:
    """(tuple index of the counter, direction, limit) of a condition that compares a counter with a constant."""
    compare, resolve = _inline(condition.root, condition, module)
    if compare.opcode != "compare" or len(compare.operands) != 2:
        return None
    left, right = resolve(compare.operands[0]), resolve(compare.operands[1])
    direction = compare.attributes.get("direction", "")
    if _constant(left) is not None:
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    limit = _constant(right)
    if left is None or left.opcode != "get-tuple-element" or limit is None:
        return None
    return left.ints("index")[0], direction, limit


def _step(body: Computation, index: int, module: Module) -> int | None:
    """What the body adds to tuple element `index`."""
    root = body.root
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    value = _resolve(root.operands[index], body, None)
    if value is None:
        return None
    add, resolve = _inline(value, body, module)
    if add.opcode not in ("add", "subtract") or len(add.operands) != 2:
        return None
    left, right = resolve(add.operands[0]), resolve(add.operands[1])
    sign = -1 if add.opcode == "subtract" else 1
    if _constant(left) is not None and sign > 0:
        left, right = right, left
    amount = _constant(right)
    if left is None or left.opcode != "get-tuple-element" or left.ints("index") != (index,) or amount is None:
        return None
    return sign * amount


def _start(loop: Instruction, home: Computation, index: int) -> int | None:
    state = _resolve(loop.operands[0], home, None)
    if state is None or state.opcode != "tuple" or index >= len(state.operands):
        return None
    return _constant(_resolve(state.operands[index], home, None))
