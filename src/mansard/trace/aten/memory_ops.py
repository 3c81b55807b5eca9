"""Costs of recorded copies, casts, new tensors, concatenation, padding and random numbers."""

from __future__ import annotations

import math

from mansard.operators.counting import Elements, number
from mansard.operators.counting import demand as make_demand
from mansard.operators.movement import concatenate, copy, fft, fill, random, triangle
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor, promote
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, Scope, by_grain, free, names, work, wrapper


def copy_into(args: Arguments) -> AtenCost:
    """copy_(self, source): the source is read, self written."""
    target, source = args.tensor(0), args.tensor(1)
    scope = by_grain(target.elements)
    if _transposes(target, source):
        scope = "core"
    wanted = copy(elements=target.elements, dtype=source.dtype, output=target.dtype, stored=source.stored)
    return work("copy", wanted, scope=scope, formula=f"{source.dtype} to {target.dtype}")


def _transposes(target: Tensor, source: Tensor) -> bool:
    """Whether this is PyTorch's own transposing copy, which runs on one thread.

    Source: aten/src/ATen/native/Copy.cpp, copy_transpose_valid: same type, two dimensions, at least 60 x 60.
    """
    return (
        target.dtype == source.dtype == "f32"
        and target.contiguous
        and len(source.shape) == 2
        and source.elements >= 3600
        and source.strides == (1, source.shape[0])
    )


def duplicate(args: Arguments) -> AtenCost:
    """clone and copies that allocate (self, ...)."""
    x = args.tensor(0)
    scope = by_grain(x.elements)
    if (
        len(x.shape) == 2
        and x.dtype == "f32"
        and x.elements >= 3600
        and x.strides == (1, x.shape[0])
        and args.text(1) == "0"
    ):
        scope = "core"
    wanted = copy(elements=x.elements, dtype=x.dtype, stored=x.stored)
    return work(
        "copy", wanted, fresh=((x.elements, x.dtype),), scope=scope, formula=f"{x.elements:.0f} elements copied"
    )


def cast(args: Arguments) -> AtenCost:
    """_to_copy(self, dtype, ...)."""
    x = args.tensor(0)
    dtype = args.scalar_type(1) or x.dtype
    wanted = copy(elements=x.elements, dtype=x.dtype, output=dtype, stored=x.stored)
    return work(
        "copy", wanted, fresh=((x.elements, dtype),), scope=by_grain(x.elements), formula=f"{x.dtype} to {dtype}"
    )


def fill_in(args: Arguments) -> AtenCost:
    """fill_ and zero_; `fill` makes a new tensor."""
    x = args.tensor(0)
    fresh = () if args.in_place else ((x.elements, x.dtype),)
    stored = x.stored if args.in_place else x.elements
    return work(
        "copy", fill(elements=stored, dtype=x.dtype), fresh=fresh, scope=by_grain(x.elements), formula="written once"
    )


def _made(shape: tuple[int, ...], dtype: str | None) -> AtenCost:
    """A new tensor filled with a constant; without a recorded type the calls beneath, which have it, are counted."""
    if dtype is None:
        return wrapper("copy")
    elements = float(math.prod(shape))
    return work(
        "copy",
        fill(elements=elements, dtype=dtype),
        fresh=((elements, dtype),),
        scope=by_grain(elements),
        formula="written once",
    )


def constant(args: Arguments) -> AtenCost:
    """zeros(size, dtype, ...), ones(size, dtype, ...), full(size, value, dtype, ...)."""
    if args.kind(0) != "ScalarList":
        return wrapper("copy")
    given = args.result_given(1)
    if given is not None:
        return work(
            "copy",
            fill(elements=given.elements, dtype=given.dtype),
            scope=by_grain(given.elements),
            formula="written once",
        )
    shape = args.integers(0) if args.text(0) not in ("", "[]") else ()
    return _made(shape, args.scalar_type(2 if args.base == "full" else 1))


def constant_like(args: Arguments) -> AtenCost:
    """zeros_like(self, dtype, ...), ones_like, full_like(self, value, dtype, ...)."""
    x = args.tensor(0)
    return _made(x.shape, args.scalar_type(2 if args.base == "full_like" else 1) or x.dtype)


def constant_new(args: Arguments) -> AtenCost:
    """new_zeros(self, size, dtype, ...), new_ones, new_full(self, size, value, dtype, ...)."""
    x = args.tensor(0)
    shape = args.integers(1) if args.text(1) != "[]" else ()
    return _made(shape, args.scalar_type(3 if args.base == "new_full" else 2) or x.dtype)


def sequence(args: Arguments) -> AtenCost:
    """arange and linspace into a given tensor; the forms without one call that form."""
    given = args.result_given(1)
    if given is None:
        return wrapper("copy")
    if args.base == "arange" and args.count >= 4:
        start, end, step = (args.number(i) for i in range(3))
        elements = float(max(0, math.ceil((end - start) / step)))
    elif args.base == "arange":
        elements = float(max(0, math.ceil(args.number(0))))
    elif args.base in ("linspace", "logspace"):
        elements = args.number(2)
    else:
        elements = given.elements
    return work(
        "copy", fill(elements=elements, dtype=given.dtype), scope=by_grain(elements), formula=f"{elements:.0f} written"
    )


def single(args: Arguments) -> AtenCost:
    """scalar_tensor(value, dtype, ...): one element."""
    return _made((), args.scalar_type(1))


def read_one(args: Arguments) -> AtenCost:
    """item and _local_scalar_dense: one element comes back to the host, which waits for it."""
    x = args.tensor(0)
    return work("copy", make_demand(reads=[(1.0, x.dtype)]), scope="core", formula="one element read by the host")


def _joined(args: Arguments, i: int) -> AtenCost:
    given = args.result_given(i + 2)
    parts = args.list_of(i)
    if not parts:
        raise NotRecordedError(f"{args.call.name}: no tensors in the list")
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = promote(dtype, part.dtype)
    elements = sum(p.elements for p in parts)
    wanted = make_demand(reads=[p.operand for p in parts], writes=[(elements, dtype)])
    if all(p.stored == p.elements for p in parts):
        wanted = concatenate(inputs=[p.operand for p in parts], output=dtype)
    return work(
        "copy",
        wanted,
        fresh=() if given is not None else ((elements, dtype),),
        scope=by_grain(elements),
        formula=f"{len(parts)} tensors joined",
    )


def join(args: Arguments) -> AtenCost:
    """cat and stack."""
    return _joined(args, 0)


def repeat(args: Arguments) -> AtenCost:
    """repeat(self, repeats)."""
    x = args.tensor(0)
    elements = x.elements * math.prod(args.integers(1))
    wanted = copy(elements=elements, dtype=x.dtype, stored=x.stored)
    return work(
        "copy", wanted, fresh=((elements, x.dtype),), scope=by_grain(elements), formula="read once, written repeatedly"
    )


def padded(args: Arguments) -> AtenCost:
    """constant_pad_nd and the reflecting and replicating ones (self, pad, ...): pairs from the last dimension on."""
    x = args.tensor(0)
    pad = args.integers(1)
    shape = list(x.shape)
    for k in range(len(pad) // 2):
        shape[-1 - k] += pad[2 * k] + pad[2 * k + 1]
    elements = float(math.prod(shape))
    read = min(x.stored, elements)
    wanted = copy(elements=elements, dtype=x.dtype, stored=read)
    return work("copy", wanted, fresh=((elements, x.dtype),), scope=by_grain(elements), formula=f"to {shape}")


def padded_gradient(args: Arguments) -> AtenCost:
    """Gradients of the reflecting and replicating paddings (grad, self, pad)."""
    grad, x = args.tensor(0), args.tensor(1)
    wanted = make_demand(reads=[grad.operand], writes=[(x.elements, x.dtype)], vector=(grad.elements, x.dtype))
    return work("copy", wanted, fresh=((x.elements, x.dtype),), scope=by_grain(grad.elements), formula="added back")


def half(args: Arguments) -> AtenCost:
    """tril and triu (self, diagonal)."""
    x = args.tensor(0)
    if len(x.shape) < 2:
        raise NotRecordedError(f"{args.call.name}: a triangle needs two dimensions, got {list(x.shape)}")
    rows, columns, diagonal = x.shape[-2], x.shape[-1], args.integer(1) if args.text(1) else 0
    lower = sum(min(max(i + diagonal + 1, 0), columns) for i in range(rows))
    if args.base == "triu":
        lower = rows * columns - sum(min(max(i + diagonal, 0), columns) for i in range(rows))
    batch = float(math.prod(x.shape[:-2]))
    given = args.result_given(2)
    wanted = triangle(rows=rows, columns=columns, kept=lower, dtype=x.dtype, in_place=args.in_place, batch=batch)
    fresh = () if args.in_place or given is not None else ((x.elements, x.dtype),)
    return work("copy", wanted, fresh=fresh, scope=by_grain(x.elements), formula=f"{lower} of {rows * columns} kept")


#: Random fills that run on one thread, and their special functions per number.
#: Source: measured with two threads on torch 2.13 (time ratio 0.99 to 1.00); aten/src/ATen/native/cpu/DistributionTemplates.h.
RANDOM = {
    "uniform": 0.0, "normal": 2.0, "bernoulli": 0.0, "exponential": 1.0, "random": 0.0, "geometric": 1.0, "cauchy": 1.0, "log_normal": 3.0,
    "randperm": 0.0, "poisson": 1.0, "_standard_gamma": 2.0, "binomial": 1.0,
}  # fmt: skip


def drawn(args: Arguments) -> AtenCost:
    """Random numbers into self, or a new tensor of its shape."""
    if not args.is_tensor(0):
        given = args.result_given(1)
        if given is None:
            return wrapper("random")
        elements = args.number(0) if args.base == "randperm" else given.elements
        return _random(args, Tensor((int(elements),), given.dtype), [], fresh=False)
    x = args.tensor(0)
    inputs: list[Elements] = [t.operand for t in args.tensors(1)]
    if not args.in_place:
        inputs = [x.operand, *inputs]
    return _random(args, x, inputs, fresh=not args.in_place)


def _random(args: Arguments, x: Tensor, inputs: list[Elements], *, fresh: bool) -> AtenCost:
    wanted = random(elements=x.elements, dtype=x.dtype, transcendental_per_element=RANDOM[args.base], inputs=inputs)
    scope: Scope = "core"
    return work(
        "random", wanted, fresh=((x.elements, x.dtype),) if fresh else (), scope=scope,
        formula=f"{x.elements:.0f} numbers written; the generator runs on one thread and its integer work is not counted",
    )  # fmt: skip


def multinomial(args: Arguments) -> AtenCost:
    """multinomial(self, samples, replacement): every probability read, scaled and compared."""
    x = args.tensor(0)
    rows = x.elements / x.shape[-1] if x.shape and x.shape[-1] else 0.0
    samples = rows * args.integer(1)
    wanted = make_demand(
        reads=[x.operand], writes=[(samples, "i64")], vector=(2.0 * x.elements, x.dtype), transcendental=(x.elements, x.dtype),
        uncounted=("random numbers",),
    )  # fmt: skip
    return work(
        "random", wanted, fresh=((samples, "i64"),), scope="core", formula=f"{rows:.0f} rows, {samples:.0f} samples"
    )


_REAL_OF = {"c64": "f32", "c128": "f64"}
_COMPLEX_OF = {"f32": "c64", "f64": "c128"}


def transform(args: Arguments) -> AtenCost:
    """_fft_r2c(self, dims, norm, onesided), _fft_c2r(self, dims, norm, last size), _fft_c2c(self, dims, norm, forward)."""
    x = args.tensor(0)
    dims = [d % len(x.shape) for d in args.integers(1)]
    shape = list(x.shape)
    real = _REAL_OF.get(x.dtype, x.dtype)
    out = x.dtype
    if args.base == "_fft_r2c":
        out = _COMPLEX_OF.get(x.dtype, "")
        if args.flag(3):
            shape[dims[-1]] = x.shape[dims[-1]] // 2 + 1
        length = math.prod(x.shape[d] for d in dims)
        transforms = x.elements / length if length else 0.0
    elif args.base == "_fft_c2r":
        out = real
        shape[dims[-1]] = args.integer(3)
        length = math.prod(shape[d] for d in dims)
        transforms = math.prod(shape) / length if length else 0.0
    else:
        length = math.prod(x.shape[d] for d in dims)
        transforms = x.elements / length if length else 0.0
    if not out or real not in _COMPLEX_OF:
        raise NotRecordedError(f"{args.call.name}: no transform of {x.dtype} is known")
    elements = float(math.prod(shape))
    wanted = fft(
        transforms=transforms,
        length=length,
        dtype=real,
        real=args.base != "_fft_c2c",
        reads=[x.operand],
        writes=[(elements, out)],
    )
    return work(
        "other",
        wanted,
        fresh=((elements, out),),
        formula=f"{'5' if args.base == '_fft_c2c' else '2.5'} n log2 n vector FLOP, n={length}, {transforms:.0f} transforms",
    )


def allocation(args: Arguments) -> AtenCost:
    """A tensor whose content is not written."""
    del args
    return free("allocation")


def pairwise_distance(args: Arguments) -> AtenCost:
    """_cdist_forward(x1, x2, p, mode): subtraction, power and sum per pair and coordinate."""
    a, b = args.tensor(0), args.tensor(1)
    rows, columns, width = a.shape[-2], b.shape[-2], a.shape[-1]
    results = number(math.prod(a.shape[:-2])) * rows * columns
    wanted = make_demand(
        reads=[a.operand, b.operand], writes=[(results, a.dtype)], vector=(results * (3.0 * width + 1.0), a.dtype)
    )
    return work(
        "elementwise",
        wanted,
        fresh=((results, a.dtype),),
        formula=f"3 vector FLOP per pair and coordinate, {rows} x {columns} x {width}",
    )


HANDLERS: dict[str, Handler] = {
    "copy_": copy_into,
    **dict.fromkeys(("clone", "roll", "flip", "pixel_shuffle", "pixel_unshuffle", "_pin_memory", "channel_shuffle", "native_channel_shuffle"), duplicate),
    "_to_copy": cast,
    **dict.fromkeys(("fill", "zero"), fill_in),
    **dict.fromkeys(("zeros", "ones", "full"), constant),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), constant_like),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), constant_new),
    **dict.fromkeys(("arange", "linspace", "logspace", "eye", "range"), sequence),
    "scalar_tensor": single,
    **dict.fromkeys(("item", "_local_scalar_dense"), read_one),
    **dict.fromkeys(("cat", "stack", "_stack"), join),
    "repeat": repeat,
    **dict.fromkeys(
        names("constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"), padded),
    **dict.fromkeys(
        names("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
              "replication_pad2d_backward replication_pad3d_backward"), padded_gradient),
    **dict.fromkeys(("tril", "triu"), half),
    **dict.fromkeys(RANDOM, drawn),
    "multinomial": multinomial,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), transform),
    "_cdist_forward": pairwise_distance,
}  # fmt: skip
