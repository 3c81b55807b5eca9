"""Compiled kernels for the vector peak, the clock and the memory levels, written as LLVM vector code through numba.

Plain numba loops are turned into scalar FMA chains, so the loops are emitted as explicit vectors. Every kernel is
one function without the interpreter lock that meets the other threads at a spin barrier before each sample, reads
the clock inside the compiled code, and writes its own start and end: the start skew of Python threads never enters
a figure. Results are returned and checked by the callers, so that nothing can be removed as dead code.

numba is imported inside the builders; `available()` says whether it is there.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return"
# numba ships no types; everything it decorates is Any.

from __future__ import annotations

import functools
import importlib.util
import platform
from collections.abc import Callable
from typing import Any

BLOCK_BYTES = 1024  # arrays are a multiple of this, the largest unrolled loop body
ALIGN_BYTES = 64  # of every array
# (bytes of one vector, vectors per array in one loop body), the first for streaming stores; ordinary stores try all. A single read stream must not be spread over many load instructions, or the prefetchers, which go by
# the address of the load, lose it; two half-line stores fill a missing line faster than one whole-line store on Zen 5.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "read": ((64, 8), (32, 4)),
    "write": ((64, 8), (32, 4)),
    "copy": ((64, 16), (32, 4), (64, 4)),
    "scale": ((64, 16), (32, 4), (64, 4)),
    "add": ((64, 16), (32, 4), (64, 4)),
    "triad": ((64, 16), (32, 4), (64, 4)),
    "in_place": ((64, 2), (32, 4), (64, 8)),
}
BARRIER_LIMIT_NS = 5_000_000_000
ELEMENT_BITS = {"f32": 32, "f64": 64}

# mix -> (arrays read, arrays written); STREAM counting: bytes = touched arrays x size, write-allocate not counted.
MIXES: dict[str, tuple[int, int]] = {
    "read": (1, 0),
    "write": (0, 1),
    "copy": (1, 1),
    "scale": (1, 1),
    "add": (2, 1),
    "triad": (2, 1),
    "in_place": (1, 1),
}
STREAMING_MIXES = ("write", "copy", "scale", "add", "triad")

Kernel = Callable[..., Any]


def available() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def arrays_of(mix: str) -> int:
    """Return how many distinct arrays a mix walks through; `a = s*a` walks through one.

    >>> arrays_of("triad"), arrays_of("copy"), arrays_of("in_place")
    (3, 2, 1)
    """
    reads, writes = MIXES[mix]
    return 1 if mix == "in_place" else reads + writes


def counted_bytes(mix: str, array_bytes: float) -> float:
    """Return the bytes one sweep counts in STREAM's convention [B].

    Args:
        mix: One of `MIXES`.
        array_bytes: Size of one array [B].

    Assumes: each operand once; the read of a line before it is written (write-allocate) is not counted.
    Source: J. McCalpin, STREAM: copy and scale 2N, add and triad 3N.

    >>> counted_bytes("triad", 100.0), counted_bytes("copy", 100.0), counted_bytes("in_place", 100.0)
    (300.0, 200.0, 200.0)
    """
    return float(sum(MIXES[mix])) * array_bytes


def vector_shapes(dtype: str, machine: str | None = None) -> tuple[tuple[int, int], ...]:
    """Return the (lanes, accumulators) pairs worth trying for the FMA peak of this instruction set.

    Two pipes of four cycles need 8 independent accumulators, four pipes of four cycles (Arm) 16; x and y need two
    registers more, so 12 fit the 16 registers of AVX2 and 24 the 32 of Arm.

    >>> vector_shapes("f64", "x86_64")
    ((4, 12), (8, 12))
    >>> vector_shapes("f32", "aarch64")
    ((4, 24), (8, 12))
    """
    per_128 = 128 // ELEMENT_BITS[dtype]
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        return ((2 * per_128, 12), (4 * per_128, 12))
    return ((per_128, 24), (2 * per_128, 12))


@functools.cache
def _tools() -> Any:
    """The small pieces all kernels share: clock, barrier, fence."""
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    i32, i64 = ir.IntType(32), ir.IntType(64)

    @intrinsic
    def now_ns(_context: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, _args: Any) -> Any:
            pair = ir.LiteralStructType([i64, i64])
            slot = cgutils.alloca_once(b, pair)
            kind = ir.FunctionType(i32, [i32, slot.type])
            call = cgutils.get_or_insert_function(b.module, kind, "clock_gettime")
            b.call(call, [ir.Constant(i32, 1), slot])  # 1 = CLOCK_MONOTONIC on Linux
            whole = b.load(slot, typ=pair)
            seconds, nanos = b.extract_value(whole, 0), b.extract_value(whole, 1)
            return b.add(b.mul(seconds, ir.Constant(i64, 1_000_000_000)), nanos)

        return types.int64(), codegen

    @intrinsic
    def arrive(_context: Any, _address: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            return b.atomic_rmw("add", b.inttoptr(args[0], i64.as_pointer()), ir.Constant(i64, 1), "seq_cst")

        return types.int64(types.int64), codegen

    @intrinsic
    def look(_context: Any, _address: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            return b.load_atomic(b.inttoptr(args[0], i64.as_pointer()), "seq_cst", 8, typ=i64)

        return types.int64(types.int64), codegen

    @intrinsic
    def fence(_context: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, _args: Any) -> Any:
            b.fence("seq_cst")  # also drains the write-combining buffers of non-temporal stores
            return ir.Constant(i64, 0)

        return types.int64(), codegen

    limit = BARRIER_LIMIT_NS

    @njit(nogil=True)
    def meet(address: int, target: int) -> bool:
        arrive(address)
        start = now_ns()
        while look(address) < target:
            if now_ns() - start > limit:
                return False
        return True

    return now_ns, fence, meet


def _loop(
    b: Any, ir: Any, count: Any, phis: list[tuple[Any, Any]], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit `for i in range(count)` (at least once) with loop-carried vectors, and return their last values."""
    i64 = ir.IntType(64)
    entry, block = b.block, b.append_basic_block("sweep")
    done = b.append_basic_block("done")
    b.branch(block)
    b.position_at_end(block)
    index = b.phi(i64)
    index.add_incoming(ir.Constant(i64, 0), entry)
    carried = []
    for kind, first in phis:
        node = b.phi(kind)
        node.add_incoming(first, entry)
        carried.append(node)
    after = body(index, carried)
    # An empty statement with a memory clobber, for any instruction set: nothing moves across it, and LLVM does not
    # unroll a loop that holds one. Unrolling further spreads one stream over so many loads that the prefetchers,
    # which go by the address of the load, lose it (L2 reads at half speed on Zen 5).
    b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
    following = b.add(index, ir.Constant(i64, 1))
    latch = b.block  # another block than `block` where the body holds a loop of its own
    index.add_incoming(following, latch)
    for node, value in zip(carried, after, strict=True):
        node.add_incoming(value, latch)
    b.cbranch(b.icmp_unsigned("<", following, count), block, done)
    b.position_at_end(done)
    return after


def _splat(b: Any, ir: Any, vector: Any, scalar: Any) -> Any:
    i32 = ir.IntType(32)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(i32, 0))
    mask = ir.Constant(ir.VectorType(i32, vector.count), [0] * vector.count)
    return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _total(b: Any, ir: Any, vectors: list[Any], lanes: int) -> Any:
    """Add vectors and lanes into one scalar."""
    whole = vectors[0]
    for v in vectors[1:]:
        whole = b.fadd(whole, v)
    scalar = b.extract_element(whole, ir.Constant(ir.IntType(32), 0))
    for lane in range(1, lanes):
        scalar = b.fadd(scalar, b.extract_element(whole, ir.Constant(ir.IntType(32), lane)))
    return scalar


@functools.cache
def fma_kernel(dtype: str, lanes: int, accumulators: int) -> Kernel:
    """Return `run(flag, threads, times, n, x, y)`: `accumulators` independent chains `p = p*x + y`, `n` steps each.

    Every accumulator starts at its index (0, 1, ...) in every lane, so the result can be worked out by hand:
    after n steps of p -> x*p + y, p_n = x^n p_0 + y (1 - x^n)/(1 - x). The kernel returns the sum over all
    accumulators and lanes. FLOP = 2 x lanes x accumulators x n per sample and thread.
    """
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    now_ns, fence, meet = _tools()
    scalar = ir.FloatType() if dtype == "f32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    number = types.float32 if dtype == "f32" else types.float64

    @intrinsic
    def chain(_context: Any, _n: Any, _x: Any, _y: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * 3)
            fma = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{lanes}{dtype}")
            xv, yv = _splat(b, ir, vector, args[1]), _splat(b, ir, vector, args[2])
            phis = [(vector, ir.Constant(vector, [float(k)] * lanes)) for k in range(accumulators)]
            last = _loop(b, ir, args[0], phis, lambda _i, ps: [b.call(fma, [p, xv, yv]) for p in ps])
            return _total(b, ir, last, lanes)

        return number(types.int64, number, number), codegen

    @njit(nogil=True)
    def run(flag: int, threads: int, times: Any, n: int, x: float, y: float) -> float:
        total = number(0.0)
        for k in range(times.shape[0]):
            if not meet(flag, (k + 1) * threads):
                return total
            start = now_ns()
            total = chain(n, x, y)
            fence()
            times[k, 0] = start
            times[k, 1] = now_ns()
        return total

    return run


CLOCK_STEPS = 128  # dependent one-cycle operations in one loop body of the clock chain


@functools.cache
def clock_kernel() -> Kernel:
    """Return `run(flag, threads, times, n, x, y)`: a dependent chain of `CLOCK_STEPS` x n one-cycle integer operations.

    Xor and add alternate, which has no closed form the compiler could use; both take one cycle on every current core,
    so steps / time is the clock.
    """
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    now_ns, fence, meet = _tools()
    i64 = ir.IntType(64)

    @intrinsic
    def chain(_context: Any, _n: Any, _x: Any, _y: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            def body(_i: Any, ps: list[Any]) -> list[Any]:
                p = ps[0]
                for _ in range(CLOCK_STEPS // 2):
                    p = b.add(b.xor(p, args[1]), args[2])
                return [p]

            return _loop(b, ir, args[0], [(i64, args[1])], body)[0]

        return types.int64(types.int64, types.int64, types.int64), codegen

    @njit(nogil=True)
    def run(flag: int, threads: int, times: Any, n: int, x: int, y: int) -> int:
        total = 0
        for k in range(times.shape[0]):
            if not meet(flag, (k + 1) * threads):
                return total
            start = now_ns()
            total = chain(n, x, y)
            fence()
            times[k, 0] = start
            times[k, 1] = now_ns()
        return total

    return run


def _memory_body(
    b: Any, ir: Any, mix: str, shape: tuple[int, int], streaming: bool, pointers: list[Any], scale: Any, fma: Any
) -> Any:
    """Return the loop body of one memory mix: `shape` says the vector's bytes and how many of them per array."""
    vector_bytes, count = shape
    vector = ir.VectorType(ir.FloatType(), vector_bytes // 4)
    i64, byte = ir.IntType(64), ir.IntType(8)
    hint = b.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    dst, first, second = pointers

    def at(base: Any, index: Any, k: int) -> Any:
        offset = b.add(b.mul(index, ir.Constant(i64, count * vector_bytes)), ir.Constant(i64, k * vector_bytes))
        return b.bitcast(b.gep(base, [offset], source_etype=byte), vector.as_pointer())

    def load(base: Any, index: Any, k: int) -> Any:
        return b.load(at(base, index, k), align=vector_bytes)

    def store(value: Any, index: Any, k: int) -> None:
        written = b.store(value, at(dst, index, k), align=vector_bytes)
        if streaming:
            written.set_metadata("nontemporal", hint)

    def body(index: Any, sums: list[Any]) -> list[Any]:
        if mix == "read":
            return [b.fadd(s, load(first, index, k)) for k, s in enumerate(sums)]
        for k in range(count):
            if mix == "write":
                store(scale, index, k)
            elif mix == "copy":
                store(load(first, index, k), index, k)
            elif mix in ("scale", "in_place"):
                store(b.fmul(scale, load(dst if mix == "in_place" else first, index, k)), index, k)
            elif mix == "add":
                store(b.fadd(load(first, index, k), load(second, index, k)), index, k)
            else:
                store(b.call(fma, [scale, load(second, index, k), load(first, index, k)]), index, k)
        return []

    return body


@functools.cache
def memory_kernel(mix: str, store: str, shape: tuple[int, int] | None = None) -> Kernel:
    """Return `run(flag, threads, times, dst, a, b, blocks, repeats, scale)` for one access mix.

    `dst`, `a`, `b` are addresses aligned to 64 bytes of arrays of `blocks` x `BLOCK_BYTES` bytes of f32:
    read sums a; write dst = s; copy dst = a; scale dst = s*a; add dst = a + b; triad dst = a + s*b;
    in_place dst = s*dst. Each sample sweeps `repeats` times. The kernel returns the sum that `read` makes, else 0.

    Args:
        mix: One of `MIXES`.
        store: `regular`, or `streaming` for non-temporal stores.
        shape: Bytes of one vector and vectors per array in one loop body; None takes the first of `SHAPES`.
    """
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    now_ns, fence, meet = _tools()
    vector_bytes, turns = shape or SHAPES[mix][0]
    lanes = vector_bytes // 4
    vector = ir.VectorType(ir.FloatType(), lanes)
    per_block = BLOCK_BYTES // vector_bytes // turns

    @intrinsic
    def sweeps(_context: Any, _dst: Any, _a: Any, _b: Any, _blocks: Any, _repeats: Any, _s: Any) -> Any:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * 3)
            fma = cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{lanes}f32")
            pointers = [b.inttoptr(x, ir.IntType(8).as_pointer()) for x in args[:3]]
            body = _memory_body(
                b, ir, mix, (vector_bytes, turns), store == "streaming", pointers, _splat(b, ir, vector, args[5]), fma
            )
            zero = ir.Constant(vector, [0.0] * lanes)
            count = b.mul(args[3], ir.Constant(ir.IntType(64), per_block))
            sums = turns if mix == "read" else 0

            def one_sweep(_repeat: Any, carried: list[Any]) -> list[Any]:
                return _loop(b, ir, count, [(vector, node) for node in carried], body)

            last = _loop(b, ir, args[4], [(vector, zero)] * sums, one_sweep)
            return _total(b, ir, last, lanes) if last else ir.Constant(ir.FloatType(), 0.0)

        i = types.int64
        return types.float32(i, i, i, i, i, types.float32), codegen

    @njit(nogil=True)
    def run(
        flag: int, threads: int, times: Any, dst: int, a: int, b: int, blocks: int, repeats: int, s: float
    ) -> float:
        total = types.float32(0.0)
        for k in range(times.shape[0]):
            if not meet(flag, (k + 1) * threads):
                return total
            start = now_ns()
            total += sweeps(dst, a, b, blocks, repeats, s)
            fence()
            times[k, 0] = start
            times[k, 1] = now_ns()
        return total

    return run
