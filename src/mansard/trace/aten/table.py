"""The table of PyTorch operators: from a name to the function that knows its cost."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.core import Unknown
from mansard.trace.aten import (
    attention_ops,
    convolution_ops,
    index_ops,
    matrix_ops,
    memory_ops,
    normalisation_ops,
    optimizer_ops,
    pointwise_ops,
    reduction_ops,
    spatial_ops,
)
from mansard.trace.aten.arguments import Arguments, NotRecordedError
from mansard.trace.aten.call import AtenCall, AtenCost
from mansard.trace.aten.making import Handler, free, names, not_known, wrapper
from mansard.trace.aten.structure import (
    ALLOCATIONS,
    VIEWS,
    WRAPPERS,
    is_autograd,
    is_collective,
    is_compiled,
    is_range,
)

HANDLERS: dict[str, Handler] = {
    **pointwise_ops.HANDLERS,
    **reduction_ops.HANDLERS,
    **normalisation_ops.HANDLERS,
    **memory_ops.HANDLERS,
    **index_ops.HANDLERS,
    **spatial_ops.HANDLERS,
    **optimizer_ops.HANDLERS,
    **matrix_ops.HANDLERS,
    **convolution_ops.HANDLERS,
    **attention_ops.HANDLERS,
}
_NAMESPACES = ("aten", "mkldnn", "mkl", "onednn", "quantized", "prims", "flash_attn", "prim")
_CATEGORIES = {
    "pointwise_ops": "elementwise", "reduction_ops": "reduction", "normalisation_ops": "norm", "memory_ops": "copy",
    "index_ops": "gather", "spatial_ops": "reduction", "optimizer_ops": "optimizer", "matrix_ops": "gemm",
    "convolution_ops": "convolution", "attention_ops": "attention",
}  # fmt: skip


def cost(call: AtenCall, inner: Sequence[AtenCall] | None = None) -> AtenCost:
    """Return what `call` consumes.

    Args:
        call: One recorded call.
        inner: The calls recorded beneath it, at any depth and in order, where they are known. Some records are only
            complete with them, see `needs_inner`.

    Returns:
        The cost; an operator that is not in the table has kind `unknown`, one whose inputs were not recorded an `Unknown`
        demand with the reason. Nothing is ever assumed in place of a missing value.

    Source: PyTorch 2.13, aten/src/ATen/native/native_functions.yaml for the order of arguments.

    >>> mm = AtenCall("aten::mm", ((4, 6), (6, 5)), ("float", "float"))
    >>> cost(mm).demand.total_flop, cost(mm).fresh_bytes
    (240.0, 80.0)
    >>> cost(AtenCall("aten::mm")).demand.reason
    'aten::mm: tensor argument 0 was not recorded'
    """
    space, _, name = call.name.rpartition("::")
    if is_autograd(call.name):
        return wrapper()
    if is_compiled(call.name):
        return not_known(
            "other",
            f"{call.name}: what a compiled kernel contains is not in its name",
            "the graph it was compiled from",
        )
    if is_collective(call.name):
        return not_known(
            "collective", f"{call.name}: the traffic of a collective needs its algorithm and ranks", "the process group"
        )
    if name in VIEWS:
        return free("view")
    if is_range(call.name):
        return wrapper()
    if space not in _NAMESPACES:
        return _unknown(call)
    if name in ALLOCATIONS:
        return free("allocation")
    return _from_table(call, name, inner)


#: Operators whose record is completed by the calls beneath: the size of an indexing result, the element type of a list, the
#: rows of each group of a grouped product, whether a fused operator was made of others.
_COMPLETED_BENEATH = frozenset(names(
    "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put cat stack _grouped_mm _scaled_grouped_mm _fused_rms_norm "
    "_fused_rms_norm_backward max_pool1d"
))  # fmt: skip


def needs_inner(name: str) -> bool:
    """Return whether `cost` knows more about operator `name` when it is given the calls beneath it.

    >>> needs_inner("aten::index"), needs_inner("aten::mm")
    (True, False)
    """
    short = name.rpartition("::")[2]
    return short in _COMPLETED_BENEATH or short.startswith("_foreach_")


def _from_table(call: AtenCall, name: str, inner: Sequence[AtenCall] | None) -> AtenCost:
    """Find the function for `name`, with or without the underscore of in-place variants, and ask it."""
    base = name if name in HANDLERS else name.removesuffix("_")
    handler = HANDLERS.get(base)
    if call.name.startswith("quantized::"):
        if not name.startswith(("linear", "conv")):
            return _unknown(call)
        handler = matrix_ops.packed_weight
    if handler is None and name.startswith("_foreach_"):
        handler = optimizer_ops.foreach
    if handler is None:
        return wrapper() if name in WRAPPERS else _unknown(call)
    try:
        return handler(Arguments(call, inner, base))
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as misfit:
        reason = f"{call.name}: the record does not fit the operator ({type(misfit).__name__}: {misfit})"
        return AtenCost(kind="work", category=_category(handler), demand=Unknown(reason, ("a complete record",)))
    except NotRecordedError as missing:
        return AtenCost(kind="work", category=_category(handler), demand=Unknown(missing.reason, missing.needs))


def _category(handler: Handler) -> str:
    return _CATEGORIES.get(handler.__module__.rpartition(".")[2], "other")


def _unknown(call: AtenCall) -> AtenCost:
    return AtenCost(
        kind="unknown",
        category="other",
        demand=Unknown(f"{call.name} is not in the table of operators", ("a cost function for it",)),
    )
