"""What library calls and collectives of compiled programs compute and send."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mansard.core import Unknown
from mansard.trace.hlo.arithmetic import Arithmetic, accumulate_dtype, dot_flop, vector_dtype
from mansard.trace.hlo.shapes import Shape, dtype_name
from mansard.trace.hlo.text import Instruction

COLLECTIVES = frozenset(
    [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
        "collective-broadcast",
        "ragged-all-to-all",
    ]
)
#: Name of the link that collectives of one program use. Which wire carries it is not in the program.
LINK = "collective"


def collective_kind(instruction: Instruction) -> str | None:
    """Return which collective an instruction starts, such as `all-reduce`; None if it is none.

    The `-done` half of an asynchronous pair carries nothing.
    """
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def group_size(instruction: Instruction, devices: int) -> int | Unknown:
    """Return how many devices take part.

    Args:
        instruction: A collective.
        devices: Devices of the program, for an empty list of groups.

    >>> call = Instruction(name="a", opcode="all-reduce", shape=Shape(dtype="f32"), operands=(), argument="",
    ...                    attributes={"replica_groups": "{{0,1,2,3},{4,5,6,7}}"})
    >>> group_size(call, 8)
    4
    """
    text = instruction.attributes.get("replica_groups", "")
    iota = re.match(r"\[(\d+),(\d+)\]<=", text)
    if iota:
        return int(iota.group(2))
    inside = re.search(r"\{\{([\d,]*)\}", text)
    if inside:
        return len([x for x in inside.group(1).split(",") if x])
    if instruction.opcode.startswith("collective-permute"):
        return 2
    if text in ("{}", "") and devices > 0:
        return devices
    return Unknown(f"the groups {text!r} of {instruction.name} are not known", ("replica_groups",))


def collective_demand(kind: str, operands: list[Shape], out: Shape, n: int) -> tuple[float, float, str]:
    """Return bytes one device must send [B], vector FLOP of the reduction, and the formula.

    Args:
        kind: Which collective.
        operands, out: Shapes on one device.
        n: Devices that take part.

    Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH, 2005: lower bounds
    on the bytes each process sends.

    >>> from mansard.trace.hlo.shapes import parse_shape
    >>> x = parse_shape("f32[1024]")
    >>> collective_demand("all-reduce", [x], x, 4)[:2]
    (6144.0, 768.0)
    """
    size, elements = sum(s.size_bytes for s in operands), sum(s.elements for s in operands)
    share = (n - 1) / n if n else 0.0
    if kind == "all-reduce":
        return 2 * share * size, share * elements, f"2 (n-1)/n x {size:.0f} B, n = {n}"
    if kind == "reduce-scatter":
        return share * size, share * elements, f"(n-1)/n x {size:.0f} B in, n = {n}"
    if kind == "all-gather":
        return share * n * size, 0.0, f"(n-1) x {size:.0f} B in, n = {n}"
    if kind in ("all-to-all", "ragged-all-to-all"):
        return share * size, 0.0, f"(n-1)/n x {size:.0f} B, n = {n}"
    return size, 0.0, f"{out.size_bytes:.0f} B to one peer"


def custom_call(instruction: Instruction, operands: list[Shape]) -> Arithmetic:
    """Count what a library call computes; `Arithmetic.unknown` is set where the target is not known."""
    target, count = instruction.target, Arithmetic()
    outs = instruction.shape.leaves
    if instruction.shape.any_dynamic or any(s.any_dynamic for s in operands):
        count.unknown = Unknown(f"{target} with a dynamic dimension", ("the extent at run time",))
    elif target.startswith("__onednn$matmul"):
        _matmul_by_size(count, target, operands, outs[0])
    elif target.startswith(("__cublas$gemm", "__cublas$lt$matmul")):
        _cublas(count, instruction, operands, outs[0])
    elif target.startswith(("__cudnn$conv", "__onednn$conv")):
        _library_convolution(count, instruction, operands, outs[0])
    elif target == "TopK":
        kind = vector_dtype(operands[0].dtype)
        if kind is not None:
            count.vector[kind] += operands[0].elements
        count.formulas.append("one comparison per element at least")
    elif re.fullmatch(r"lapack_[sdcz](potrf|getrf|trsm)(_ffi)?|blas_[sdcz]trsm(_ffi)?", target):
        _lapack(count, target, operands, outs[0])
    elif target in _MARKERS:
        return count
    else:
        count.unknown = Unknown(f"the library call {target!r} does not say what it computes", (f"a cost of {target}",))
    return count


_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "AllocateBuffer", "annotate_device_placement",
                      "MoveToHost", "MoveToDevice", "AssumeGatherIndicesInBound", "PinToDevice"})  # fmt: skip


def _add(count: Arithmetic, dtype: str, flop: float, formula: str) -> None:
    count.flop[(dtype, accumulate_dtype(dtype))] += flop
    count.formulas.append(formula)


def _matmul_by_size(count: Arithmetic, target: str, operands: list[Shape], out: Shape) -> None:
    """Transposition does not matter: (mk)(kn)(mn) = (mkn)^2 per batch.

    >>> from mansard.trace.hlo.shapes import parse_shape
    >>> count = Arithmetic()
    >>> _matmul_by_size(count, "t", [parse_shape("f32[6,4]"), parse_shape("f32[5,6]")], parse_shape("f32[4,5]"))
    >>> dict(count.flop)
    {('f32', 'f32'): 240.0}
    """
    lhs, rhs = operands[0], operands[1]
    batch = math.prod(out.dims[:-2])
    if math.prod(lhs.dims[:-2]) != batch or math.prod(rhs.dims[:-2]) != batch or not batch:
        count.unknown = Unknown(f"{target} with unequal batch extents {lhs} x {rhs} -> {out}")
        return
    mnk = math.sqrt(lhs.elements / batch * (rhs.elements / batch) * (out.elements / batch))
    _add(count, dtype_name(lhs.dtype), 2.0 * batch * mnk, f"2 x {batch} batch x sqrt(mk x kn x mn), {lhs} x {rhs}")


def _cublas(count: Arithmetic, instruction: Instruction, operands: list[Shape], out: Shape) -> None:
    config: Mapping[str, object] = instruction.backend_config
    for key in ("gemm_backend_config", "dot_dimension_numbers"):
        inner = config.get(key)
        config = inner if isinstance(inner, dict) else (config if key == "gemm_backend_config" else {})
    dims = config.get("lhs_contracting_dimensions")
    if not isinstance(dims, list):
        count.unknown = Unknown(f"{instruction.target} without dimension numbers", ("backend_config of the call",))
        return
    flop, formula = dot_flop(operands[0], out, tuple(int(str(d)) for d in dims))
    _add(count, dtype_name(operands[0].dtype), flop, formula)


def _library_convolution(count: Arithmetic, instruction: Instruction, operands: list[Shape], out: Shape) -> None:
    """2 x elements of y x elements of the filter / output channels, whichever of x, w, y the call yields."""
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", ""))
    if labels is None or len(operands) < 2:
        count.unknown = Unknown(f"{instruction.target} without dim_labels", ("dim_labels",))
        return
    if "BackwardInput" in instruction.target:
        y, kernel = operands[0], operands[1]
    elif "BackwardFilter" in instruction.target:
        y, kernel = operands[1], out
    else:
        y, kernel = out, operands[1]
    channels = kernel.dims[labels.group(2).index("o")] if "o" in labels.group(2) else 0
    if not channels:
        count.unknown = Unknown(f"{instruction.target}: no output channels in {labels.group(0)}")
        return
    flop = 2.0 * y.elements * kernel.elements / channels
    _add(count, dtype_name(operands[0].dtype), flop, f"2 x {y} x {kernel} / {channels} output channels")


def _lapack(count: Arithmetic, target: str, operands: list[Shape], out: Shape) -> None:
    """Leading terms. Source: LAPACK Working Note 41, operation counts."""
    if "trsm" in target:
        n = operands[0].dims[-1]
        flop, formula = out.elements * n, f"n^2 per right-hand side, n = {n}"
    elif "potrf" in target:
        n = out.dims[-1]
        flop, formula = out.elements * n / 3.0, f"n^3/3, n = {n}"
    else:
        m, n = out.dims[-2:]
        small, large = min(m, n), max(m, n)
        flop = math.prod(out.dims[:-2]) * (large * small**2 - small**3 / 3.0)
        formula = f"M N^2 - N^3/3, {m} x {n}"
    dtype = {"c64": "f32", "c128": "f64"}.get(out.dtype, dtype_name(out.dtype))
    _add(count, dtype, flop * (4.0 if out.dtype in ("c64", "c128") else 1.0), formula)
