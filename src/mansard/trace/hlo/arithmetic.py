"""What one HLO instruction computes: matrix FLOP, vector FLOP and special functions, from its shapes.

Conventions: a MAC is 2 FLOP; `flop` is matrix work. Elementwise arithmetic counts one FLOP per result element,
a reduction one application of its reducer per element that disappears. Integer scalars (loop counters, addresses)
and logical operations on masks are not counted.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mansard.core import Unknown
from mansard.trace.hlo.shapes import Shape, dtype_name
from mansard.trace.hlo.text import Computation, Instruction

_ELEMENTWISE = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "abs",
        "negate",
        "sign",
        "floor",
        "ceil",
        "round-nearest-afz",
        "round-nearest-even",
        "clamp",
        "remainder",
        "compare",
        "select",
        "and",
        "or",
        "xor",
        "not",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "is-finite",
        "popcnt",
        "count-leading-zeros",
        "sqrt",
        "rsqrt",
    ]
)
# A square root is an ordinary vector operation here, as in `mansard.operators`; XLA counts it as transcendental.
_SPECIAL = frozenset(
    [
        "exponential",
        "exponential-minus-one",
        "log",
        "log-plus-one",
        "logistic",
        "power",
        "cbrt",
        "sine",
        "cosine",
        "tan",
        "tanh",
        "atan2",
        "erf",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atanh",
        "cosh",
        "sinh",
    ]
)
_MOVES = frozenset(
    [
        "parameter",
        "constant",
        "broadcast",
        "convert",
        "bitcast",
        "bitcast-convert",
        "copy",
        "copy-start",
        "copy-done",
        "reshape",
        "transpose",
        "slice",
        "dynamic-slice",
        "dynamic-update-slice",
        "concatenate",
        "pad",
        "reverse",
        "gather",
        "iota",
        "tuple",
        "get-tuple-element",
        "real",
        "imag",
        "complex",
        "reduce-precision",
        "after-all",
        "opt-barrier",
        "optimization-barrier",
        "partition-id",
        "replica-id",
        "add-dependency",
        "get-dimension-size",
        "set-dimension-size",
        "stochastic-convert",
        "rng-get-and-update-state",
        "domain",
        "infeed",
        "outfeed",
        "send",
        "send-done",
        "recv",
        "recv-done",
        "dynamic-reshape",
    ]
)
_REAL = {"c64": "f32", "c128": "f64"}


@dataclass(slots=True)
class Arithmetic:
    """A running count: FLOP by (dtype, accumulate), vector FLOP and special functions by dtype, and what is left out."""

    flop: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    vector: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    special: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    formulas: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    unknown: Unknown | None = None

    def add(self, other: Arithmetic, times: float = 1.0) -> None:
        """Add `other`, `times` times."""
        for key, value in other.flop.items():
            self.flop[key] += value * times
        for name, value in other.vector.items():
            self.vector[name] += value * times
        for name, value in other.special.items():
            self.special[name] += value * times
        self.formulas += [f for f in other.formulas if f not in self.formulas]
        self.uncounted += [u for u in other.uncounted if u not in self.uncounted]
        self.unknown = self.unknown or other.unknown


def accumulate_dtype(dtype: str) -> str:
    """The type that products of `dtype` are summed in by the matrix units: f32 for short floats, i32 for short integers.

    >>> accumulate_dtype("bf16"), accumulate_dtype("i8"), accumulate_dtype("f64")
    ('f32', 'i32', 'f64')
    """
    if dtype in ("f16", "bf16", "tf32") or dtype.startswith(("f8", "f4")):
        return "f32"
    if dtype[:1] in "iu" and dtype[1:] in ("4", "8", "16"):
        return "i32"
    return dtype


def dot_flop(lhs: Shape, out: Shape, contracting: tuple[int, ...]) -> tuple[float, str]:
    """Matrix FLOP of a dot and its formula.

    Args:
        lhs: Left operand.
        out: Result; its elements are batch x m x n.
        contracting: Contracted dimensions of the left operand.

    Source: StableHLO specification, dot_general: every result element is a sum of products over the contracted extents.

    >>> from mansard.trace.hlo.shapes import parse_shape
    >>> dot_flop(parse_shape("f32[8,64,128]"), parse_shape("f32[8,64,32]"), (2,))
    (4194304.0, '2 x 16384 results x 128 contracted')
    """
    k = float(math.prod(lhs.dims[d] for d in contracting))
    factor = 8.0 if lhs.dtype in _REAL else 2.0
    return factor * out.elements * k, f"{factor:.0f} x {out.elements:.0f} results x {k:.0f} contracted"


def window_of(text: str) -> dict[str, list[tuple[int, ...]]]:
    """Parse `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=2x2}` into integers per dimension."""
    found = {}
    for key, value in re.findall(r"(\w+)=([\d_x-]+)", text):
        found[key] = [tuple(int(n) for n in re.findall(r"-?\d+", part)) for part in value.split("x")]
    return found


def convolution_taps(window: Mapping[str, list[tuple[int, ...]]], out_spatial: list[int]) -> float:
    """Products per result channel and input channel, over all spatial positions; holes of a dilated input excluded.

    A position in the padding counts, as in the usual formula out x kernel; the zeros between the elements of a dilated input
    (the gradient of a strided convolution) do not, so that a gradient counts as much as its forward.

    >>> convolution_taps(window_of("size=3x3 stride=2x2 pad=0_1x0_1"), [16, 16])
    2304.0
    >>> convolution_taps(window_of("size=3x3 pad=1_2x1_2 lhs_dilate=2x2"), [32, 32])
    2304.0
    """
    total = 1.0
    for d, size in enumerate(window.get("size", [])):
        stride = window["stride"][d][0] if "stride" in window else 1
        low = window["pad"][d][0] if "pad" in window else 0
        hole = window["lhs_dilate"][d][0] if "lhs_dilate" in window else 1
        spread = window["rhs_dilate"][d][0] if "rhs_dilate" in window else 1
        if hole == 1:
            total *= out_spatial[d] * size[0]
        else:
            at = np.arange(out_spatial[d])[:, None] * stride + np.arange(size[0])[None, :] * spread - low
            total *= float(np.count_nonzero(at % hole == 0))
    return total


def convolution_flop(instruction: Instruction, lhs: Shape, rhs: Shape) -> tuple[float, str] | Unknown:
    """Matrix FLOP of a convolution: 2 x batch x output channels x taps x input channels per group.

    Source: StableHLO specification, convolution; the kernel's input-feature extent is already per group.
    """
    labels = instruction.attributes.get("dim_labels", "")
    match = re.fullmatch(r"(\w+)_(\w+)->(\w+)", labels)
    out = instruction.shape if instruction.shape.dtype != "tuple" else instruction.shape.parts[0]
    if match is None or len(match.group(3)) != len(out.dims):
        return Unknown(f"convolution with dim_labels {labels!r}", ("a reader that knows these labels",))
    window = window_of(instruction.attributes.get("window", ""))
    spatial = [out.dims[match.group(3).index(str(d))] for d in range(len(window.get("size", [])))]
    batch = out.dims[match.group(3).index("b")]
    features = out.dims[match.group(3).index("f")]
    channels = rhs.dims[match.group(2).index("i")]
    taps = convolution_taps(window, spatial)
    factor = 8.0 if lhs.dtype in _REAL else 2.0
    return factor * batch * features * taps * channels, (
        f"{factor:.0f} x {batch} batch x {features} output channels x {taps:.0f} positions x taps x {channels} input channels"
    )


def arithmetic_of(instruction: Instruction, computation: Computation, inner: Mapping[str, Arithmetic]) -> Arithmetic:
    """Count what `instruction` computes, without what it calls through control flow.

    Args:
        instruction: Any instruction but control flow, fusion, custom call and collective.
        computation: Where its operands are defined.
        inner: Counts of one execution of computations it applies (reducers, comparators), by name.
    """
    count = Arithmetic()
    op, out = instruction.opcode, instruction.shape
    operands = [computation.instructions[o].shape for o in instruction.operands if o in computation.instructions]
    if op in _MOVES:
        return count
    if out.any_dynamic or any(s.any_dynamic for s in operands):
        count.unknown = Unknown(f"{op} with a dynamic dimension", ("the extent at run time",))
    elif op == "dot":
        flop, formula = dot_flop(operands[0], out, instruction.ints("lhs_contracting_dims"))
        _matrix(count, flop, formula, operands[0], operands[1])
    elif op == "convolution":
        result = convolution_flop(instruction, operands[0], operands[1])
        if isinstance(result, Unknown):
            count.unknown = result
        else:
            _matrix(count, result[0], result[1], operands[0], operands[1])
    elif op in _SPECIAL:
        kind = vector_dtype(out.dtype)
        if kind is None:
            count.uncounted.append("special functions of complex numbers")
        else:
            count.special[kind] += out.elements
    elif op in _ELEMENTWISE:
        _elementwise(count, op, out, operands)
    elif op == "map":
        count.add(_applied(instruction, inner), out.elements)
    elif op == "reduce":
        inputs = operands[: len(operands) // 2]
        count.add(_applied(instruction, inner), max(0.0, inputs[0].elements - out.leaves[0].elements))
    elif op == "reduce-window":
        taps = math.prod(s[0] for s in window_of(instruction.attributes.get("window", "")).get("size", []))
        count.add(_applied(instruction, inner), out.leaves[0].elements * max(0, taps - 1))
    elif op == "select-and-scatter":
        taps = math.prod(s[0] for s in window_of(instruction.attributes.get("window", "")).get("size", []))
        count.add(_applied(instruction, inner, "select"), operands[1].elements * max(0, taps - 1))
        count.add(_applied(instruction, inner, "scatter"), operands[1].elements)
    elif op == "scatter":
        count.add(_applied(instruction, inner), operands[-1].elements)
    elif op == "sort":
        _sort(count, instruction, operands, inner)
    elif op == "fft":
        _fft(count, instruction, operands[0], out)
    elif op == "cholesky":
        n = out.dims[-1]
        _matrix(count, out.elements * n / 3.0, f"n^3/3, n = {n}", out, out)
    elif op == "triangular-solve":
        n = operands[0].dims[-1]
        _matrix(count, out.elements * n, f"n^2 per right-hand side, n = {n}", out, out)
    elif op in ("rng", "rng-bit-generator"):
        count.uncounted.append("arithmetic of the random generator")
    else:
        count.unknown = Unknown(f"the cost of the HLO instruction {op!r} is not known", (f"a cost of {op}",))
    return count


def _matrix(count: Arithmetic, flop: float, formula: str, lhs: Shape, rhs: Shape) -> None:
    wide = lhs if lhs.size_bytes * rhs.elements >= rhs.size_bytes * lhs.elements else rhs
    dtype = dtype_name(_REAL.get(wide.dtype, wide.dtype))
    count.flop[(dtype, accumulate_dtype(dtype))] += flop
    count.formulas.append(formula)


def _elementwise(count: Arithmetic, op: str, out: Shape, operands: list[Shape]) -> None:
    worked = operands[0] if op == "compare" else (operands[1] if op == "select" else out)
    if op in ("and", "or", "xor", "not") and worked.dtype == "pred":
        count.uncounted.append("logical operations on masks")
        return
    _vector(count, worked.dtype, out.elements * (2 if op == "clamp" else 1))


def _vector(count: Arithmetic, hlo_dtype: str, amount: float) -> None:
    """Add vector work in the type that it is computed in; integer and complex element arithmetic is named, not counted."""
    kind = vector_dtype(hlo_dtype)
    if kind is not None:
        count.vector[kind] += amount
    elif amount > 1:
        count.uncounted.append("complex element arithmetic" if hlo_dtype in _REAL else "integer element arithmetic")


def vector_dtype(hlo_dtype: str) -> str | None:
    """Return the type that element arithmetic happens in: f32 for short floats; None for integers and complex numbers.

    >>> vector_dtype("bf16"), vector_dtype("f64"), vector_dtype("s32")
    ('f32', 'f64', None)
    """
    name = dtype_name(hlo_dtype)
    if hlo_dtype in _REAL or name == "bool" or name[:1] in "iu":
        return None
    return "f64" if name == "f64" else "f32"


def _applied(instruction: Instruction, inner: Mapping[str, Arithmetic], key: str = "to_apply") -> Arithmetic:
    called = instruction.called.get(key, ())
    missing = Arithmetic(unknown=Unknown(f"{instruction.opcode} names no computation {key!r}"))
    return inner.get(called[0], missing) if called else missing


def _sort(count: Arithmetic, instruction: Instruction, operands: list[Shape], inner: Mapping[str, Arithmetic]) -> None:
    """N log2 n comparisons, n the extent of the sorted dimension, N all elements."""
    dim = instruction.ints("dimensions")
    n = operands[0].dims[dim[0]] if dim and operands[0].dims else 1
    compares = operands[0].elements * math.log2(n) if n > 1 else 0.0
    _vector(count, operands[0].dtype, compares)
    count.formulas.append(f"{operands[0].elements:.0f} elements x log2({n}) comparisons")
    applied = _applied(instruction, inner)
    count.unknown = count.unknown or applied.unknown


def _fft(count: Arithmetic, instruction: Instruction, lhs: Shape, out: Shape) -> None:
    """5 N log2 n for complex data, half of it for real. Source: FFTW, benchFFT, the customary operation count."""
    n = math.prod(instruction.ints("fft_length"))
    real = any(t in instruction.attributes.get("fft_type", "") for t in ("RFFT", "IRFFT"))
    wide = lhs if lhs.dtype in _REAL else out
    total = max(lhs.elements, out.elements)
    dtype = dtype_name(_REAL.get(wide.dtype, wide.dtype))
    count.vector[dtype] += (2.5 if real else 5.0) * total * math.log2(max(n, 1))
    count.formulas.append(f"{'2.5' if real else '5'} x {total:.0f} log2({n})")
