"""Shapes as HLO text writes them: `f32[2,3]{1,0:T(8,128)}`, tuples, dynamic bounds, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mansard.core import InputError
from mansard.core.dtypes import DTYPE_BYTES, short_dtype
from mansard.core.errors import UsageError

# Bits of an element of every HLO primitive type. Source: xla/xla_data.proto, PrimitiveType.
_BITS: dict[str, float] = {
    "pred": 8, "s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64, "u1": 1, "u2": 2, "u4": 4, "u8": 8,
    "u16": 16, "u32": 32, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "f8e5m2": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e3m4": 8, "f8e5m2fnuz": 8, "f8e4m3fnuz": 8,
    "f8e8m0fnu": 8, "f4e2m1fn": 4, "token": 0, "opaque": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An array, a tuple, a token or an opaque value.

    Args:
        dtype: HLO element type, such as `f32`; `tuple` for a tuple.
        dims: Extents of an array; the upper bound where a dimension is dynamic.
        parts: Elements of a tuple.
        dynamic: Whether a dimension is known only at run time.
        layout: Text between the braces, empty if none.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    dynamic: bool = False
    layout: str = ""

    @property
    def elements(self) -> float:
        """Number of elements; a tuple counts those of its parts."""
        return sum(p.elements for p in self.parts) if self.dtype == "tuple" else float(prod(self.dims))

    @property
    def size_bytes(self) -> float:
        """Bytes of the value [B]; a tuple counts those of its parts.

        >>> parse_shape("(bf16[4,8]{1,0}, f32[])").size_bytes
        68.0
        """
        if self.dtype == "tuple":
            return sum(p.size_bytes for p in self.parts)
        return float(prod(self.dims)) * _BITS[self.dtype] / 8.0 if _BITS[self.dtype] else 0.0

    @property
    def any_dynamic(self) -> bool:
        """Whether this or a part of it has a dynamic dimension."""
        return self.dynamic or any(p.any_dynamic for p in self.parts)

    @property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays in it."""
        return tuple(leaf for p in self.parts for leaf in p.leaves) if self.dtype == "tuple" else (self,)

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return "(" + ", ".join(str(p) for p in self.parts) + ")"
        return f"{self.dtype}[{','.join(str(d) for d in self.dims)}]"


def dtype_name(hlo_dtype: str) -> str:
    """Return the project's short name of an HLO element type; a type without one keeps its own name.

    >>> dtype_name("s8"), dtype_name("f8e4m3fn"), dtype_name("f8e3m4")
    ('i8', 'f8_e4m3', 'f8e3m4')
    """
    if hlo_dtype in DTYPE_BYTES and hlo_dtype not in ("c64", "c128"):
        return hlo_dtype
    try:
        return short_dtype(hlo_dtype)
    except UsageError:
        return hlo_dtype


def parse_shape(text: str) -> Shape:
    """Return the shape at the start of `text`, which must hold nothing else.

    Raises:
        InputError: not a shape.

    >>> str(parse_shape("(s32[], f32[256,512]{1,0:T(8,128)S(1)})"))
    '(s32[], f32[256,512])'
    """
    shape, end = scan_shape(text, 0)
    if text[end:].strip():
        raise InputError(f"not an HLO shape: {text!r}, the rest {text[end:]!r} was not expected", code="hlo_syntax")
    return shape


def scan_shape(text: str, at: int) -> tuple[Shape, int]:
    """Return the shape that starts at `text[at]` and the position after it."""
    at = _skip(text, at)
    if text.startswith("(", at):
        parts: list[Shape] = []
        at = _skip(text, at + 1)
        while not text.startswith(")", at):
            part, at = scan_shape(text, at)
            parts.append(part)
            at = _skip(text, at)
            if text.startswith(",", at):
                at = _skip(text, at + 1)
            elif not text.startswith(")", at):
                raise InputError(f"not an HLO tuple shape: {text[:80]!r}", code="hlo_syntax")
        return Shape(dtype="tuple", parts=tuple(parts)), at + 1
    bracket = text.find("[", at)
    dtype = text[at:bracket].strip()
    close = text.find("]", bracket)
    if bracket < 0 or close < 0 or dtype not in _BITS:
        raise InputError(
            f"not an HLO shape: {text[at : at + 60]!r}", hint="an element type may be new", code="hlo_syntax"
        )
    inside = [d.strip() for d in text[bracket + 1 : close].split(",") if d.strip()]
    dynamic = any(d.startswith("<=") or d == "?" for d in inside)
    dims = tuple(int(d.removeprefix("<=")) if d != "?" else 0 for d in inside)
    at, layout = close + 1, ""
    if text.startswith("{", at):
        end = text.index("}", at)
        layout, at = text[at + 1 : end], end + 1
    return Shape(dtype=dtype, dims=dims, dynamic=dynamic, layout=layout), at


def _skip(text: str, at: int) -> int:
    """Skip blanks and `/*index=5*/` comments."""
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
        else:
            break
    return at
