"""Two matrix products of our own: a blocked vector kernel, and three plain loops.

`native` shows what blocking and vectors alone reach without a library: a panel of B packed for the caches, a tile of
the result in registers, one fused multiply-add for each step. `naive` is one dot product after the other on one core,
scalar, the loop that a library is compared with.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return"
# numba ships no types; everything it decorates is Any.

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from mansard.core.unknown import Unknown
from mansard.measure import kernels
from mansard.measure.benchmarks.gemm_calls import facts_of, host_inputs, numpy_operands, verified
from mansard.measure.benchmarks.gemm_product import Product
from mansard.measure.points import inputs
from mansard.measure.points.benchmark import Prepared, Where
from mansard.measure.team import Team, split_evenly

TILE_ROWS = 6  # 6 rows x 2 vectors are 12 sums in registers, enough for two FMA pipes of four cycles
TILE_VECTORS = 2
DEPTH = 256  # steps of k between two passes over the result: the packed tile of B stays in the first cache


@functools.cache
def naive_kernel() -> Any:
    """Return `run(flag, threads, times, a, b, c, repeats)`: three loops, row by column, on one thread."""
    from numba import njit

    now_ns, fence, meet = kernels._tools()

    @njit(nogil=True)
    def run(flag: int, threads: int, times: Any, a: Any, b: Any, c: Any, repeats: int) -> None:
        for sample in range(times.shape[0]):
            if not meet(flag, (sample + 1) * threads):
                return
            times[sample, 0] = now_ns()
            for _ in range(repeats):
                for i in range(a.shape[0]):
                    for j in range(b.shape[1]):
                        total = a[i, 0] * b[0, j]
                        for p in range(1, a.shape[1]):
                            total += a[i, p] * b[p, j]
                        c[i, j] = total
            fence()
            times[sample, 1] = now_ns()

    return run


def lanes_of(dtype: str) -> int:
    """Return the elements of one vector: the widest of the instruction set that is worth it.

    >>> lanes_of("f64") * 2 == lanes_of("f32")
    True
    """
    return max(lanes for lanes, _ in kernels.vector_shapes(dtype))


@functools.cache
def tile_kernel(dtype: str) -> Any:
    """Return `tile(a, a_step, b, c, c_step, depth)` over addresses: C[6, 2 vectors] += A[6, depth] B[depth, 2 vectors].

    `b` is packed: the two vectors of one step of depth lie behind each other.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    lanes = lanes_of(dtype)
    scalar = ir.FloatType() if dtype == "f32" else ir.DoubleType()
    size = 4 if dtype == "f32" else 8
    vector, i64, byte = ir.VectorType(scalar, lanes), ir.IntType(64), ir.IntType(8)

    @intrinsic
    def tile(_context: Any, _a: Any, _a_step: Any, _b: Any, _c: Any, _c_step: Any, _depth: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            a_base, a_step, b_base, c_base, c_step, depth = args
            fma = cgutils.get_or_insert_function(
                b.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}{dtype}"
            )

            def place(base: Any, offset: Any, kind: Any) -> Any:
                pointer = b.inttoptr(base, byte.as_pointer())
                return b.bitcast(b.gep(pointer, [offset], source_etype=byte), kind.as_pointer())

            def result(row: int, part: int) -> Any:
                offset = b.add(b.mul(c_step, ir.Constant(i64, row)), ir.Constant(i64, part * lanes * size))
                return place(c_base, offset, vector)

            def body(step: Any, sums: list[Any]) -> list[Any]:
                offset = b.mul(step, ir.Constant(i64, TILE_VECTORS * lanes * size))
                parts = [
                    b.load(place(b_base, b.add(offset, ir.Constant(i64, v * lanes * size)), vector), align=size)
                    for v in range(TILE_VECTORS)
                ]
                after = []
                for row in range(TILE_ROWS):
                    where = b.add(b.mul(a_step, ir.Constant(i64, row)), b.mul(step, ir.Constant(i64, size)))
                    x = kernels._splat(b, ir, vector, b.load(place(a_base, where, scalar)))
                    after += [b.call(fma, [x, parts[v], sums[row * TILE_VECTORS + v]]) for v in range(TILE_VECTORS)]
                return after

            places = [result(row, part) for row in range(TILE_ROWS) for part in range(TILE_VECTORS)]
            first = [(vector, b.load(p, align=size)) for p in places]
            last = kernels._loop(b, ir, depth, first, body)
            for value, target in zip(last, places, strict=True):
                b.store(value, target, align=size)
            return ir.Constant(i64, 0)

        return types.int64(*[types.int64] * 6), codegen

    return tile


@functools.cache
def blocked_kernel(dtype: str) -> Any:
    """Return `run(flag, threads, times, a, b, c, packed, first, rows, repeats)`: rows `first` to `first + rows` of C = A B.

    `a`, `b`, `c` are padded: their rows to a multiple of TILE_ROWS, their columns to whole tiles.
    """
    from numba import njit

    now_ns, fence, meet = kernels._tools()
    tile = tile_kernel(dtype)
    size = 4 if dtype == "f32" else 8
    width = lanes_of(dtype) * TILE_VECTORS

    @njit(nogil=True)
    def run(
        flag: int, threads: int, times: Any, a: Any, b: Any, c: Any, packed: Any, first: int, rows: int, repeats: int
    ) -> None:
        depth_all, columns = b.shape
        a_step, c_step = a.shape[1] * size, c.shape[1] * size
        for sample in range(times.shape[0]):
            if not meet(flag, (sample + 1) * threads):
                return
            times[sample, 0] = now_ns()
            for _ in range(repeats):
                c[first : first + rows, :] = 0.0
                for k0 in range(0, depth_all, DEPTH):
                    depth = min(DEPTH, depth_all - k0)
                    for j0 in range(0, columns, width):
                        for p in range(depth):
                            for j in range(width):
                                packed[p * width + j] = b[k0 + p, j0 + j]
                        for i0 in range(first, first + rows, TILE_ROWS):
                            tile(
                                a.ctypes.data + i0 * a_step + k0 * size, a_step, packed.ctypes.data,
                                c.ctypes.data + i0 * c_step + j0 * size, c_step, depth,
                            )  # fmt: skip
            fence()
            times[sample, 1] = now_ns()

    return run


def _padded(x: Any, rows: int, columns: int) -> Any:
    whole = np.zeros((-(-x.shape[0] // rows) * rows, -(-x.shape[1] // columns) * columns), x.dtype)
    whole[: x.shape[0], : x.shape[1]] = x
    return whole


def prepare_native(p: Product, impl: str, where: Where, seed: int) -> Prepared:
    """Return a product by one of our own kernels; padding is part of the preparation and not timed."""
    held = host_inputs(p, seed)
    naive = impl == "naive"
    cpus = where.cpus[:1] if naive else where.cpus
    width = 1 if naive else lanes_of(p.dtype) * TILE_VECTORS
    rows = 1 if naive else TILE_ROWS
    a, b = _padded(held["a"], rows, 1), _padded(held["b"], 1, width)
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    team = Team(cpus)
    kernel = naive_kernel() if naive else blocked_kernel(p.dtype)
    pieces = split_evenly(a.shape[0] // rows, len(team))
    packed = [np.zeros(DEPTH * width, a.dtype) for _ in pieces]

    def timed(count: int) -> float:
        def arguments(index: int) -> tuple[Any, ...]:
            if naive:
                return (a, b, c, count)
            start, length = pieces[index]
            return (a, b, c, packed[index], start * rows, length * rows, count)

        wall_s, _ = team.sample(kernel, arguments, 1)
        return float(wall_s[0])

    def run(count: int) -> None:
        timed(count)

    run(1)  # numba compiles at the first call
    text = "three loops, one dot product after the other" if naive else "blocked kernel in LLVM vector code"
    facts = facts_of(
        p, text, computed_in=p.dtype, threads=len(team), repeats_inside=True, padded_to=[*a.shape, b.shape[1]]
    )
    return Prepared(
        run=run,
        verify=lambda: verified(p, held, c[: p.m, : p.n], inputs.widened),
        count_by_compiler=lambda: Unknown("LLVM code of our own; nothing counts it but its own result"),
        facts=facts,
        timed=timed,
        empty=lambda: None,  # the clock is read behind the barrier: waking the threads is not in the time
        operands=lambda: numpy_operands(held, c),
        close=lambda: team.__exit__(None, None, None),
    )
