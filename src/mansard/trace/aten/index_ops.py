"""Costs of recorded gathers, scatters, embeddings, sorts and searches."""

from __future__ import annotations

import math

from mansard.operators.counting import Elements, bytes_of
from mansard.operators.counting import demand as make_demand
from mansard.operators.indexing import embedding_backward, gather, scatter, search_sorted, sort, topk
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor, element_type
from mansard.trace.aten.call import AtenCall, AtenCost
from mansard.trace.aten.making import GRAIN_SIZE, Handler, by_grain, not_known, work, wrapper


def index_select(args: Arguments) -> AtenCost:
    """index_select(self, dim, index)."""
    x, index = args.tensor(0), args.tensor(2)
    size = x.shape[args.integer(1)] if x.shape else 1
    elements = x.elements / size * index.elements if size else 0.0
    return _gathered(args, x, elements, [index.operand], 3)


def _gathered(args: Arguments, x: Tensor, elements: float, indices: list[Elements], after: int) -> AtenCost:
    wanted = gather(elements=elements, dtype=x.dtype, indices=indices, table=x.stored)
    fresh = () if args.result_given(after) is not None else ((elements, x.dtype),)
    return work(
        "gather", wanted, fresh=fresh, scope=by_grain(elements), formula=f"{elements:.0f} elements and the indices read"
    )


def embedding(args: Arguments) -> AtenCost:
    """embedding(weight, indices, ...)."""
    table, index = args.tensor(0), args.tensor(1)
    return _gathered(args, table, index.elements * table.shape[-1], [index.operand], 9)


def embedding_gradient(args: Arguments) -> AtenCost:
    """embedding_dense_backward(grad, indices, rows, ...)."""
    grad, index = args.tensor(0), args.tensor(1)
    rows, width = args.integer(2), grad.shape[-1]
    wanted = embedding_backward(tokens=index.elements, width=width, rows=rows, dtype=grad.dtype, indices=index.dtype)
    return work(
        "scatter", wanted, fresh=((float(rows * width), grad.dtype),), scope=by_grain(rows, 1000),
        formula=f"{rows} rows of {width} zeroed, {index.elements:.0f} rows added",
    )  # fmt: skip


def embedding_bag(args: Arguments) -> AtenCost:
    """_embedding_bag(weight, indices, offsets, ...)."""
    table, index, offsets = (args.tensor(i) for i in range(3))
    width = table.shape[-1]
    results = offsets.elements * width
    moved = index.elements * width
    wanted = make_demand(
        reads=[(min(moved, table.stored), table.dtype), index.operand, offsets.operand],
        writes=[(results, table.dtype)],
        vector=(moved, table.dtype),
    )
    return work(
        "gather",
        wanted,
        fresh=((results, table.dtype),),
        scope=by_grain(results),
        formula=f"{index.elements:.0f} rows of {width} summed",
    )


def gather_along(args: Arguments) -> AtenCost:
    """gather(self, dim, index) and take_along_dim."""
    x, index = args.tensor(0), args.tensor(2)
    return _gathered(args, x, index.elements, [index.operand], 4)


def take(args: Arguments) -> AtenCost:
    """take(self, index)."""
    x, index = args.tensor(0), args.tensor(1)
    return _gathered(args, x, index.elements, [index.operand], 2)


def scatter_along(args: Arguments) -> AtenCost:
    """scatter, scatter_add, scatter_reduce (self, dim, index, source, ...)."""
    index = args.tensor(2)
    adds = args.base != "scatter"
    source = args.maybe(3)
    read = (index.elements, source.dtype) if source is not None and source.shape else None
    return _scattered(args, index.elements, [index.operand], read, accumulate=adds)


def index_along(args: Arguments) -> AtenCost:
    """index_add, index_copy, index_fill, index_reduce (self, dim, index, source, ...)."""
    x, index = args.tensor(0), args.tensor(2)
    size = x.shape[args.integer(1)] if x.shape else 1
    elements = x.elements / size * index.elements if size else 0.0
    source = args.maybe(3)
    read = (elements, source.dtype) if source is not None and source.shape else None
    return _scattered(args, elements, [index.operand], read, accumulate=args.base in ("index_add", "index_reduce"))


def _scattered(
    args: Arguments, elements: float, indices: list[Elements], source: Elements | None, *, accumulate: bool
) -> AtenCost:
    x = args.tensor(0)
    copied = 0.0 if args.in_place else x.elements
    wanted = scatter(
        elements=elements, dtype=x.dtype, indices=indices, accumulate=accumulate, source=source, copied=copied
    )
    fresh = () if args.in_place else ((x.elements, x.dtype),)
    return work(
        "scatter",
        wanted,
        fresh=fresh,
        scope=by_grain(elements),
        formula=f"{elements:.0f} elements {'added' if accumulate else 'written'}",
    )


def index(args: Arguments) -> AtenCost:
    """x[i, ...]: the profiler leaves the index tensors out, the calls beneath show them."""
    x = args.tensor(0)
    elements, indices = _indexed(args, x)
    return _gathered(args, x, elements, indices, 9)


def index_put(args: Arguments) -> AtenCost:
    """x[i, ...] = values, and the gradient of x[i, ...], which adds."""
    x, values = args.tensor(0), args.tensor(2)
    accumulate = args.text(3) == "True"
    try:
        elements, indices = _indexed(args, x)
    except NotRecordedError:
        gradient = args.base == "_index_put_impl" and args.text(4) == "True"
        if not gradient:
            raise
        elements, indices = values.elements, []
    source = (min(values.stored, elements), values.dtype) if values.shape else None
    return _scattered(args, elements, indices, source, accumulate=accumulate)


def _indexed(args: Arguments, x: Tensor) -> tuple[float, list[Elements]]:
    """Elements that an index picks, and the index tensors, from the calls beneath.

    PyTorch views the indexed tensor with `as_strided` in the shape of the result, stride 0 where an index replaces a
    dimension, and reshapes each index tensor. Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex.
    """
    calls = list(args.inner or ())
    reshaped = [c for c in calls if c.name == "aten::reshape" and c.dtypes[:1] in (("long int",), ("int",))]
    views = [
        c
        for c in calls
        if c.name == "aten::as_strided"
        and c.dtypes[:1] == args.call.dtypes[:1]
        and 0 in _numbers(c, 2)
        and _size(c) == x.elements
    ]
    if not reshaped or not views:
        raise NotRecordedError(
            f"{args.call.name}: the profiler does not record index tensors",
            "the calls beneath it, or the size of the result",
        )
    indices: list[Elements] = [(_size(c), element_type(c.dtypes[0])) for c in reshaped]
    return float(math.prod(_numbers(views[-1], 1))), indices


def _numbers(call: AtenCall, i: int) -> tuple[int, ...]:
    text = call.values[i] if i < len(call.values) else ""
    return tuple(int(v) for v in text.strip("[]").split(",") if v.strip())


def _size(call: AtenCall) -> float:
    dims = tuple(v for v in call.shapes[0] if isinstance(v, int))
    strides = tuple(v for v in call.strides[0] if isinstance(v, int)) if call.strides else ()
    return Tensor(dims, "i64", strides).stored if call.name == "aten::reshape" else float(math.prod(dims))


def ordered(args: Arguments) -> AtenCost:
    """sort(self, dim, descending) and sort(self, stable, dim, descending)."""
    x = args.tensor(0)
    stable = args.text(1) in ("", "True", "False")
    columns = float(x.shape[args.integer(2 if stable else 1)]) if x.shape else 1.0
    rows = x.elements / columns if columns else 0.0
    fresh = () if args.result_given(3) is not None else ((x.elements, x.dtype), (x.elements, "i64"))
    return work(
        "sort", sort(rows=rows, columns=columns, dtype=x.dtype), fresh=fresh,
        scope=by_grain(rows, max(1.0, GRAIN_SIZE // max(columns, 1.0))), formula=f"n log2 n comparisons, {rows:.0f} rows of {columns:.0f}",
    )  # fmt: skip


def largest(args: Arguments) -> AtenCost:
    """topk(self, k, dim, ...)."""
    x, k = args.tensor(0), args.integer(1)
    columns = float(x.shape[args.integer(2)]) if x.shape else 1.0
    rows = x.elements / columns if columns else 0.0
    fresh = () if args.result_given(3) is not None else ((rows * k, x.dtype), (rows * k, "i64"))
    return work(
        "sort", topk(rows=rows, columns=columns, k=k, dtype=x.dtype), fresh=fresh,
        scope=by_grain(rows, max(1.0, GRAIN_SIZE // max(columns, 1.0))), formula=f"one comparison per element, {rows:.0f} rows of {columns:.0f}, k={k}",
    )  # fmt: skip


def search(args: Arguments) -> AtenCost:
    """searchsorted(sorted, self, ...) and bucketize(self, boundaries, ...)."""
    sequence, queries = (
        (args.maybe(0), args.maybe(1)) if args.base == "searchsorted" else (args.maybe(1), args.maybe(0))
    )
    if sequence is None:
        raise NotRecordedError(f"{args.call.name}: the sorted sequence was not recorded")
    count = queries.elements if queries is not None else 1.0
    dtype = "i32" if args.text(2) == "True" else "i64"
    wanted = search_sorted(queries=count, boundaries=sequence.shape[-1], dtype=sequence.dtype, output=dtype)
    return work(
        "sort", wanted, fresh=((count, dtype),), scope=by_grain(count, 200), formula="log2 comparisons per query"
    )


def histogram(args: Arguments) -> AtenCost:
    """histc(self, bins, ...)."""
    x = args.tensor(0)
    bins = float(args.integer(1))
    wanted = make_demand(reads=[x.operand], writes=[(bins, x.dtype)], vector=(3.0 * x.elements, x.dtype))
    return work(
        "reduction",
        wanted,
        fresh=((bins, x.dtype),),
        scope=by_grain(x.elements),
        formula=f"{x.elements:.0f} elements into {bins:.0f} bins",
    )


def open_ended(args: Arguments) -> AtenCost:
    """Operators whose result is as long as the data say."""
    read = sum((float(bytes_of(t.operand)) for t in args.tensors()), 0.0)
    return not_known(
        "gather",
        f"{args.call.name}: the length of the result depends on the data and is not recorded; {read:.0f} B are read",
        "the size of the result",
    )


def repeat_interleave(args: Arguments) -> AtenCost:
    """With a number of repeats a view and a copy; with a tensor the length depends on the data."""
    return open_ended(args) if args.count <= 2 and args.tensor(0).dtype in ("i64", "i32") else wrapper("copy")


def columns_of_patches(args: Arguments) -> AtenCost:
    """im2col(self, kernel, dilation, padding, stride)."""
    x = args.tensor(0)
    kernel, dilation, padding, stride = (args.integers(i) for i in range(1, 5))
    places = math.prod(
        (x.shape[-2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)
    )
    elements = x.elements / (x.shape[-1] * x.shape[-2]) * math.prod(kernel) * places
    wanted = make_demand(reads=[(min(x.stored, elements), x.dtype)], writes=[(elements, x.dtype)])
    return work("copy", wanted, fresh=((elements, x.dtype),), scope=by_grain(elements), formula=f"{places} patches")


def patches_back(args: Arguments) -> AtenCost:
    """col2im(self, output_size, kernel, ...)."""
    x = args.tensor(0)
    size, kernel = args.integers(1), args.integers(2)
    elements = x.elements / (math.prod(kernel) * x.shape[-1]) * math.prod(size)
    wanted = make_demand(reads=[x.operand], writes=[(elements, x.dtype)], vector=(x.elements, x.dtype))
    return work("copy", wanted, fresh=((elements, x.dtype),), scope=by_grain(elements), formula="patches added")


def masked_write(args: Arguments) -> AtenCost:
    """masked_scatter: how much of the source is read depends on the mask."""
    return open_ended(args)


HANDLERS: dict[str, Handler] = {
    "index_select": index_select, "embedding": embedding, "embedding_dense_backward": embedding_gradient, "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag,
    **dict.fromkeys(("gather", "take_along_dim"), gather_along), "take": take,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), scatter_along),
    **dict.fromkeys(("index_add", "index_copy", "index_fill", "index_reduce"), index_along),
    **dict.fromkeys(("index", "_unsafe_index"), index),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), index_put),
    "sort": ordered, "topk": largest, **dict.fromkeys(("searchsorted", "bucketize"), search), "histc": histogram,
    **dict.fromkeys(("nonzero", "masked_select", "_unique2", "_unique", "unique_consecutive", "unique_dim", "bincount", "nonzero_static"), open_ended),
    "masked_scatter": masked_write, "repeat_interleave": repeat_interleave, "im2col": columns_of_patches, "col2im": patches_back,
}  # fmt: skip
