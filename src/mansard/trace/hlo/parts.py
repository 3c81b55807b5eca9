"""What kind of operation a compiled instruction is, and which part of the step it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mansard.trace.hlo.calls import collective_kind
from mansard.trace.hlo.recompute import MATRIX, says_recompute
from mansard.trace.hlo.text import Instruction, Module
from mansard.trace.run import Part

_FREE = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "opt-barrier",
        "optimization-barrier",
        "add-dependency",
        "domain",
        "partition-id",
        "replica-id",
    ]
)
_COPIES = frozenset(
    [
        "copy",
        "copy-start",
        "transpose",
        "broadcast",
        "iota",
        "reshape",
        "concatenate",
        "pad",
        "slice",
        "dynamic-slice",
        "dynamic-update-slice",
        "reverse",
        "convert",
        "bitcast-convert",
    ]
)
_OPTIMIZER_FILE = re.compile(r"/optax/(?!.*loss)|/flax/nnx/training/optimizer\.py|/flax/training/train_state\.py")
_OPTIMIZER_FUNCTION = re.compile(r"(^|[._])(apply_updates|apply_gradients|update_fn|adamw?|sgd|lion|adafactor)([._]|$)")
_OPTIMIZER_SCOPE = re.compile(r"(^|/)(optimi[sz]er|apply_updates|apply_gradients|adamw?|sgd)(/|$)", re.IGNORECASE)


def is_free(instruction: Instruction) -> bool:
    """Whether nothing runs for it."""
    return instruction.opcode in _FREE or instruction.opcode.endswith(("-done", "-update"))


def category_of(instruction: Instruction, contained: Iterable[Instruction]) -> str:
    """Return the category of an operation by what it contains, never by its name.

    Args:
        instruction: The instruction that runs.
        contained: It and all instructions fused into it.
    """
    contained = list(contained)
    # Scalars beside arrays are addresses and loop counters.
    large = [i for i in contained if i.shape.elements > 1]
    opcodes = {i.opcode for i in large or contained}
    targets = {i.target for i in contained if i.opcode == "custom-call"}
    if any(collective_kind(i) for i in contained):
        return "collective"
    if "dot" in opcodes or any("gemm" in t or "matmul" in t for t in targets):
        return "gemm"
    if "convolution" in opcodes or any("conv" in t for t in targets):
        return "convolution"
    if any("fmha" in t for t in targets):
        return "attention"
    if opcodes & {"sort", "topk"} or "TopK" in targets:
        return "sort"
    if opcodes & {"rng", "rng-bit-generator"} or _random(contained):
        return "random"
    if opcodes & {"scatter", "select-and-scatter"}:
        return "scatter"
    if opcodes & {"reduce", "reduce-window"}:
        return "softmax" if "exponential" in opcodes else "reduction"
    working = opcodes - _FREE - _COPIES - {"fusion"}
    if "gather" in opcodes and not working - {"gather", "clamp", "compare", "select", "add", "and"}:
        return "gather"
    if instruction.opcode in ("custom-call", "fft", "cholesky", "triangular-solve", "conditional", "while", "call"):
        return "other"
    if not working:
        return "copy"
    return "elementwise"


def label_of(telling: Instruction, instruction: Instruction, contained: Iterable[Instruction] = ()) -> str:
    """Return the name of the primitive behind an operation.

    Where none is recorded it is what a fusion does (its own name says nothing), else the instruction's name without its number.
    """
    matrix = {"dot": "dot_general", "convolution": "conv_general_dilated"}.get(telling.opcode)
    if matrix:
        return matrix
    if instruction.opcode == "custom-call":
        return instruction.target
    # Without a slash it is the name of an argument, not of an operation.
    _, slash, last = telling.op_name.split(";")[0].rpartition("/")
    named = last if slash else ""
    while wrapped := re.fullmatch(r"(?:p?jit|jvp|vmap|transpose|closed_call|checkpoint)\((.+)\)", named):
        named = wrapped.group(1)
    if not named and instruction.opcode == "fusion":
        does = dict.fromkeys(i.opcode for i in contained if i.opcode != "fusion" and not is_free(i))
        named = "+".join([*does][:3]) + ("+..." if len(does) > 3 else "")
    return named or re.sub(r"(\.\d+|\.clone)+$", "", instruction.name)


def _random(contained: Iterable[Instruction]) -> bool:
    """Threefry is integer arithmetic: shifts and exclusive-ors in number, named after the random primitive."""
    instructions = list(contained)
    shifts = sum(1 for i in instructions if i.opcode in ("xor", "shift-left", "shift-right-logical"))
    return shifts >= 6 and any("random" in i.op_name or "threefry" in i.op_name for i in instructions)


def part_of(
    instruction: Instruction,
    contained: list[Instruction],
    module: Module,
    *,
    training: bool,
    again: frozenset[str] = frozenset(),
) -> Part:
    """Return the part of the step, from names and source positions that the framework recorded.

    Args:
        instruction: The instruction that runs.
        contained: It and what is fused into it.
        module: Its module.
        training: Whether the module holds a transposed computation; without one nothing is called forward.
        again: Instructions that compute something a second time. A product that is named so and is the only one is forward
            work: XLA merged the two.
    """
    told = telling_of(instruction, contained)
    if any(i.opcode in MATRIX and says_recompute(i) and i.name not in again for i in told):
        return Part.FORWARD
    names = [n for n in (i.op_name for i in told) if n]
    votes = [_vote(n) for n in names]
    if Part.BACKWARD in votes:
        return Part.BACKWARD
    if Part.FORWARD in votes and training:
        return Part.FORWARD
    if any(_OPTIMIZER_SCOPE.search(n) for n in names):
        return Part.OPTIMIZER
    for one in told:
        for file, function, _ in module.frames_of(one):
            if _OPTIMIZER_FILE.search(file) or (_OPTIMIZER_FUNCTION.search(function) and training):
                return Part.OPTIMIZER
    return Part.OTHER


def telling_of(instruction: Instruction, contained: list[Instruction]) -> list[Instruction]:
    """Whose metadata speaks: the matrix work inside where there is some, else the instruction, else all that is inside."""
    matrix = [i for i in contained if i.opcode in MATRIX and i.op_name]
    if matrix:
        return matrix
    return [instruction] if instruction.op_name else [i for i in contained if i.op_name]


def _vote(op_name: str) -> Part:
    if "transpose(" in op_name and "jvp" in op_name:
        return Part.BACKWARD
    return Part.FORWARD if "jvp(" in op_name else Part.OTHER


def is_training(module: Module) -> bool:
    """Whether the module holds a transposed (backward) computation."""
    return any(
        "transpose(jvp" in i.attributes.get("metadata", "")
        for c in module.computations.values()
        for i in c.instructions.values()
    )
