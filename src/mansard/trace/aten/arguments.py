"""Reading the recorded arguments of a call: tensors, lists, values; and what the result of an operator looks like."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard.core import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.operators.counting import Elements
from mansard.trace.aten.call import AtenCall, Dims

#: Numbers of c10::ScalarType as they appear among the values. Source: c10/core/ScalarType.h.
SCALAR_TYPES = {
    0: "u8", 1: "i8", 2: "i16", 3: "i32", 4: "i64", 5: "f16", 6: "f32", 7: "f64", 9: "c64", 10: "c128", 11: "bool", 12: "i8",
    13: "u8", 14: "i32", 15: "bf16", 23: "f8_e5m2", 24: "f8_e4m3", 25: "f8_e5m2", 26: "f8_e4m3", 27: "u16", 28: "u32", 29: "u64",
}  # fmt: skip
_NOT_TENSORS = {"", "Scalar", "ScalarList", "GenericList", "Str", "String", "Device", "Generator", "Optional"}
_QUANTISED = {"c10::qint8": "i8", "c10::quint8": "u8", "c10::qint32": "i32"}
_LIST = re.compile(r"TensorList(?:\[(.*)\])?$")
_CATEGORY = {
    "bool": 0,
    "u8": 1,
    "i8": 1,
    "i16": 1,
    "i32": 1,
    "i64": 1,
    "u16": 1,
    "u32": 1,
    "u64": 1,
    "c64": 3,
    "c128": 3,
}
_SIGNED = ("i8", "i16", "i32", "i64")


class NotRecordedError(Exception):
    """Something that the cost depends on is not in the record; becomes an `Unknown` demand."""

    def __init__(self, reason: str, *needs: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.needs = needs


def element_type(name: str) -> str:
    """Return the short name of a recorded element type, such as `c10::BFloat16`.

    >>> element_type("c10::BFloat16"), element_type("c10::Float8_e4m3fn"), element_type("c10::quint8")
    ('bf16', 'f8_e4m3', 'u8')
    """
    if name in _QUANTISED:
        return _QUANTISED[name]
    for candidate in (name, name.removeprefix("c10::")):
        try:
            return short_dtype(candidate)
        except UsageError:
            continue
    raise NotRecordedError(f"the element type {name!r} is not known", "its size")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One recorded tensor.

    Args:
        shape: Its dimensions.
        dtype: Short name of its element type.
        strides: Its strides [elements], empty where they were not recorded.

    >>> Tensor((4, 8), "f32", (0, 1)).stored
    8.0
    """

    shape: Dims
    dtype: str
    strides: Dims = ()

    @property
    def elements(self) -> float:
        """How many elements it shows."""
        return float(math.prod(self.shape))

    @property
    def stored(self) -> float:
        """How many distinct elements lie behind it: an expanded dimension (stride 0) counts once, overlaps too."""
        if len(self.strides) != len(self.shape) or not self.elements:
            return self.elements
        distinct = math.prod(d for d, s in zip(self.shape, self.strides, strict=True) if s != 0)
        extent = 1 + sum((d - 1) * abs(s) for d, s in zip(self.shape, self.strides, strict=True))
        return float(min(distinct, extent))

    @property
    def operand(self) -> Elements:
        """Distinct elements and type, as cost functions take them."""
        return (self.stored, self.dtype)

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie in order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return bool(self.strides) or not self.shape


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call.

    Args:
        call: The record.
        inner: The calls recorded directly beneath it, where they are known.
    """

    call: AtenCall
    inner: Sequence[AtenCall] | None = None
    base: str = field(default="")

    @property
    def in_place(self) -> bool:
        """Whether the operator changes its first argument."""
        name = self.call.name.rpartition("::")[2]
        return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")

    @property
    def count(self) -> int:
        """How many arguments were recorded."""
        return max(len(self.call.shapes), len(self.call.dtypes))

    def kind(self, i: int) -> str:
        """Return the recorded type of argument `i`, empty if there is none."""
        return self.call.dtypes[i] if i < len(self.call.dtypes) else ""

    def is_tensor(self, i: int) -> bool:
        """Return whether argument `i` is a tensor."""
        kind = self.kind(i)
        return kind not in _NOT_TENSORS and not kind.startswith("TensorList")

    def is_list(self, i: int) -> bool:
        """Return whether argument `i` is a list of tensors."""
        return self.kind(i).startswith("TensorList")

    def tensor(self, i: int) -> Tensor:
        """Return tensor `i`; raise `NotRecordedError` if it is not there."""
        if not self.is_tensor(i):
            raise NotRecordedError(f"{self.call.name}: tensor argument {i} was not recorded", "record_shapes=True")
        shape = self.call.shapes[i] if i < len(self.call.shapes) else ()
        strides = self.call.strides[i] if i < len(self.call.strides) else ()
        return Tensor(_flat(shape), element_type(self.kind(i)), _flat(strides))

    def maybe(self, i: int) -> Tensor | None:
        """Return tensor `i`, or None where the argument is something else or absent."""
        return self.tensor(i) if self.is_tensor(i) else None

    def tensors(self, start: int = 0, stop: int | None = None) -> list[Tensor]:
        """Return the tensors among arguments `start` to `stop`."""
        end = self.count if stop is None else min(stop, self.count)
        return [self.tensor(i) for i in range(start, end) if self.is_tensor(i)]

    def result_given(self, after: int) -> Tensor | None:
        """Return the last tensor at or after position `after`: the `out=` argument of this variant."""
        given = self.tensors(after)
        return given[-1] if given else None

    def list_shapes(self, i: int) -> list[Dims]:
        """Return the dimensions of each tensor of list `i`; raise `NotRecordedError` where none are recorded.

        The profiler's JSON writes a list of more than 30 tensors as an empty one, so an empty list tells nothing.
        """
        entry = self.call.shapes[i] if i < len(self.call.shapes) else ()
        if not entry:
            raise NotRecordedError(
                f"{self.call.name}: a list of tensors was not recorded; the profile leaves out lists of more than 30",
                "the profiler's event tree, which has them",
            )
        return [tuple(dims) if isinstance(dims, tuple) else (int(dims),) for dims in entry]

    def list_of(self, i: int) -> list[Tensor]:
        """Return the tensors of list `i`; raise `NotRecordedError` where their element types were not recorded."""
        shapes = self.list_shapes(i)
        match = _LIST.match(self.kind(i))
        names = [n for n in (match.group(1) or "").split(",") if n.strip()] if match else []
        if not names:
            names = self._inner_types()
        if len(set(names)) == 1:
            names = names[:1] * len(shapes)
        if len(names) != len(shapes):
            raise NotRecordedError(
                f"{self.call.name}: the profile does not record the element types of a list of tensors",
                "the profiler's event tree, which has them",
            )
        entry = self.call.strides[i] if i < len(self.call.strides) else ()
        strides = [_flat(s) if isinstance(s, tuple) else () for s in entry] or [()] * len(shapes)
        return [
            Tensor(d, element_type(n.strip()), s if len(s) == len(d) else ())
            for d, n, s in zip(shapes, names, strides, strict=True)
        ]

    def _inner_types(self) -> list[str]:
        """The one element type that the calls beneath work on, if they agree on one."""
        kinds = {c.dtypes[0] for c in self.inner or () if c.dtypes and c.dtypes[0] not in _NOT_TENSORS}
        kinds = {k for k in kinds if not k.startswith("TensorList")}
        return list(kinds) if len(kinds) == 1 else []

    def text(self, i: int) -> str:
        """Return the recorded value of argument `i`, empty if none."""
        return self.call.values[i].strip() if i < len(self.call.values) else ""

    def number(self, i: int) -> float:
        """Return value `i` as a number."""
        text = self.text(i)
        try:
            return float(text)
        except ValueError:
            raise NotRecordedError(f"{self.call.name}: the value of argument {i} was not recorded") from None

    def integer(self, i: int) -> int:
        """Return value `i` as a whole number."""
        return int(self.number(i))

    def flag(self, i: int) -> bool:
        """Return value `i` as a truth value."""
        text = self.text(i)
        if text not in ("True", "False", "0", "1"):
            raise NotRecordedError(f"{self.call.name}: the flag at argument {i} was not recorded")
        return text in ("True", "1")

    def numbers(self, i: int) -> list[float]:
        """Return value `i` as a list of numbers; a single number is a list of one."""
        text = self.text(i)
        if not text:
            raise NotRecordedError(f"{self.call.name}: the list at argument {i} was not recorded")
        parts = [p for p in text.strip("[]()").split(",") if p.strip()]
        try:
            return [float(p) for p in parts]
        except ValueError:
            raise NotRecordedError(f"{self.call.name}: argument {i} is not a list of numbers: {text}") from None

    def integers(self, i: int) -> tuple[int, ...]:
        """Return value `i` as a tuple of whole numbers."""
        return tuple(int(x) for x in self.numbers(i))

    def flags(self, i: int) -> tuple[bool, ...]:
        """Return value `i` as a tuple of truth values."""
        parts = [p.strip() for p in self.text(i).strip("[]()").split(",")]
        if not all(p in ("True", "False", "0", "1") for p in parts):
            raise NotRecordedError(f"{self.call.name}: the mask at argument {i} was not recorded")
        return tuple(p in ("True", "1") for p in parts)

    def scalar_type(self, i: int) -> str | None:
        """Return the element type that argument `i` names, or None where it names none."""
        text = self.text(i)
        if not text.isdigit():
            return None
        code = int(text)
        if code not in SCALAR_TYPES:
            raise NotRecordedError(f"{self.call.name}: the element type number {code} is not known")
        return SCALAR_TYPES[code]

    def scalar_category(self, i: int) -> int | None:
        """Return 0, 1, 2 or 3 for a Boolean, whole, real or complex Python number at `i`; None if there is none."""
        if self.kind(i) != "Scalar":
            return None
        text = self.text(i)
        if text in ("True", "False"):
            return 0
        if re.fullmatch(r"[+-]?\d+", text):
            return 1
        return 3 if "j" in text else 2


def _flat(entry: Sequence[object]) -> Dims:
    return tuple(int(x) for x in entry if isinstance(x, int))


def category(dtype: str) -> int:
    """Return 0, 1, 2 or 3 for a Boolean, integer, real or complex element type."""
    return _CATEGORY.get(dtype, 2)


def promote(a: str, b: str) -> str:
    """Return the type PyTorch gives to an operation on elements of `a` and `b`.

    Source: PyTorch documentation, Tensor Attributes, type promotion.

    >>> promote("f16", "bf16"), promote("i64", "f16"), promote("u8", "i8"), promote("bool", "i32")
    ('f32', 'f16', 'i16', 'i32')
    """
    if a == b:
        return a
    low, high = sorted((a, b), key=category)
    if category(low) != category(high):
        return "c128" if high == "c64" and low == "f64" else high
    if category(a) == 3:
        return "c128"
    if category(a) == 2:
        if {a, b} == {"f16", "bf16"}:
            return "f32"
        return max(a, b, key=dtype_bytes)
    if "u8" in (a, b):
        other = b if a == "u8" else a
        return "i16" if other == "i8" else other
    return max(a, b, key=dtype_bytes)


def result_type(args: Arguments, positions: Sequence[int]) -> str:
    """Return the type of an operation on the arguments at `positions`.

    Tensors with dimensions decide; zero-dimensional ones and Python numbers only where their category is higher.

    Source: PyTorch documentation, Tensor Attributes, type promotion.
    """
    sized: str | None = None
    single: str | None = None
    scalar = -1
    for i in positions:
        tensor = args.maybe(i)
        if tensor is None:
            found = args.scalar_category(i)
            scalar = scalar if found is None else max(scalar, found)
        elif tensor.shape:
            sized = tensor.dtype if sized is None else promote(sized, tensor.dtype)
        elif single is None:
            single = tensor.dtype
        else:
            single = single if category(single) >= category(tensor.dtype) else tensor.dtype
    if sized is None and single is None:
        raise NotRecordedError(f"{args.call.name}: no tensor was recorded", "record_shapes=True")
    best = sized if sized is not None else single
    assert best is not None
    if single is not None and category(single) > category(best):
        if single in ("f64", "c128"):
            raise NotRecordedError(
                f"{args.call.name}: whole numbers with a real one take the default type, which is not recorded",
                "torch.get_default_dtype()",
            )
        best = promote(best, single)
    if scalar > category(best):
        if scalar >= 2:
            raise NotRecordedError(
                f"{args.call.name}: whole numbers with a real one take the default type, which is not recorded",
                "torch.get_default_dtype()",
            )
        best = "i64" if scalar == 1 else best
    return best


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """Return the shape of an operation on operands of `shapes`.

    Source: PyTorch documentation, Broadcasting semantics.

    >>> broadcast([(4, 1, 3), (5, 1), ()])
    (4, 5, 3)
    """
    out: list[int] = []
    for k in range(1, max((len(s) for s in shapes), default=0) + 1):
        sizes = {s[-k] for s in shapes if len(s) >= k} - {1}
        if len(sizes) > 1:
            raise NotRecordedError(f"recorded shapes do not broadcast: {list(shapes)}")
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))
