"""One recorded call of a PyTorch dispatcher operator, and what is said about its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mansard.core import Demand, Unknown

Dims = tuple[int, ...]
#: The dimensions of one argument: a tensor's, or one tuple per tensor of a list, or empty for anything else.
ArgDims = Dims | tuple[Dims, ...]
Kind = Literal["work", "wrapper", "free", "unknown"]


def _nested(entry: Any) -> ArgDims:
    if not isinstance(entry, list | tuple):
        return ()
    if entry and isinstance(entry[0], list | tuple):
        return tuple(tuple(int(x) for x in dims) for dims in entry)
    return tuple(int(x) for x in entry)


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One call, as the profiler records it with `record_shapes=True`: inputs only, in the order of the schema.

    Args:
        name: The operator, such as `aten::mm`.
        shapes: Dimensions per argument; one tuple per tensor for a list of tensors; empty for scalars, None and
            zero-dimensional tensors (`dtypes` tells them apart).
        dtypes: Recorded type per argument, such as `float`, `c10::BFloat16`, `long int`, `Scalar`, `TensorList`, or empty.
            The JSON file says only `TensorList` for a list; where its element types are known (the profiler's event
            tree has them under the same id) write `TensorList[float,float]`, else the bytes of a list stay unknown.
        strides: Strides per argument in the layout of `shapes` [elements]; may be empty.
        values: Recorded scalar values per argument as text, empty text where none was recorded; may be empty.
    """

    name: str
    shapes: tuple[ArgDims, ...] = ()
    dtypes: tuple[str, ...] = ()
    strides: tuple[ArgDims, ...] = ()
    values: tuple[str, ...] = ()

    @classmethod
    def from_record(cls, name: str, args: Mapping[str, Any], lists: Mapping[str, Any] | None = None) -> AtenCall:
        """Return the call of a Kineto JSON event.

        Args:
            name: The event's name.
            args: The event's `args`: `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`.
            lists: What `tensor_lists` says about this event: the lists of tensors that the JSON leaves incomplete.

        >>> AtenCall.from_record("aten::mm", {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}).shapes
        ((2, 3), (3, 4))
        >>> cat = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]}
        >>> AtenCall.from_record("aten::cat", cat, {"0": [[[2, 3], [3, 1], "float32"]] * 31}).dtypes[0][:26]
        'TensorList[float32,float32'
        """
        shapes = [_nested(x) for x in args.get("Input Dims", ())]
        kinds = [str(x) for x in args.get("Input type", ())]
        strides = [_nested(x) for x in args.get("Input Strides", ())]
        for position, tensors in (lists or {}).items():
            i = int(position)
            if i < len(kinds) and i < len(shapes) and kinds[i] == "TensorList" and tensors:
                shapes[i] = tuple(tuple(int(d) for d in dims) for dims, _, _ in tensors)
                kinds[i] = f"TensorList[{','.join(dtype for _, _, dtype in tensors)}]"
                if i < len(strides):
                    strides[i] = tuple(tuple(int(s) for s in steps) for _, steps, _ in tensors)
        return cls(
            name=name,
            shapes=tuple(shapes),
            dtypes=tuple(kinds),
            strides=tuple(strides),
            values=tuple("" if isinstance(x, list | tuple) else str(x) for x in args.get("Concrete Inputs", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenCost:
    """What one call consumes, and how it counts in a tree of recorded calls.

    Args:
        kind: `work`: its demand covers everything it calls, so what it calls is not counted again; `wrapper`: it only
            calls other recorded operators, and its own time is dispatch; `free`: a view, metadata or an allocation,
            its demand is nothing; `unknown`: not in the table.
        category: gemm, attention, convolution, elementwise, reduction, softmax, norm, copy, gather, scatter, random,
            sort, collective, optimizer, view, allocation or other.
        demand: What the call must consume, or `Unknown` with the reason.
        fresh_bytes: Bytes of results that go into newly allocated memory [B].
        scope: `core` where PyTorch runs the operator on one thread, else `node`.
        formula: How it was counted, in words.
        full_square_flop: FLOP if a causal attention were counted in full; None where that does not apply.
    """

    kind: Kind
    category: str
    demand: Demand | Unknown
    fresh_bytes: float = 0.0
    scope: Literal["core", "node"] = "node"
    formula: str = ""
    full_square_flop: float | None = None
