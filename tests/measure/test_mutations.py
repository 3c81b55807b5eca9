"""Benchmarks broken on purpose: the audit catches every one of them, and passes the sound ones they were made from."""

from __future__ import annotations

import importlib.util
import math
import time
from typing import Any

import numpy as np
import pytest

from mansard.core import Demand
from mansard.core.unknown import Unknown
from mansard.measure.points import worker
from mansard.measure.points.benchmark import Check, CompilerCount, Operand, Prepared, Work
from mansard.measure.points.result import PointVerdict, Result

N = 192
MIB = 2**20
NO_COMPILER = Unknown("NumPy is not compiled")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def codes(result: Result) -> set[str]:
    return {f.code for f in result.findings}


def fatal(result: Result) -> set[str]:
    return {f.code for f in result.findings if f.fatal}


def gemm_work(n: int = N, *, flop: float | None = None, size: float | None = None, **more: Any) -> Work:
    # 2 n^3 FLOP; three matrices of f32: A and B read, C written
    exact, one = 2.0 * n**3 if flop is None else flop, 4.0 * n * n if size is None else size / 3.0
    demand = Demand(flop={("f32", "f32"): exact}, read_bytes=2.0 * one, write_bytes=one)
    return Work(demand=demand, **{"peak": ("f32", "f32", "matrix"), **more})


def operands(**arrays: Any) -> list[Operand]:
    roles = {"out": "output"}
    return [
        Operand(name=k, role=roles.get(k, "input"), bytes=v.nbytes, values=v.ravel()[:512], address=v.ctypes.data)
        for k, v in arrays.items()
    ]


def numpy_gemm(n: int = N, *, a: Any = None, out: Any = None, run: Any = None, facts: Any = None) -> Prepared:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, n), dtype=np.float32) if a is None else a
    y = rng.standard_normal((n, n), dtype=np.float32)
    c = np.empty((n, n), np.float32) if out is None else out

    def product(count: int) -> None:
        for _ in range(count):
            np.matmul(x, y, out=c)

    def verify() -> Check:
        error = np.abs(c.astype(np.float64) - x.astype(np.float64) @ y.astype(np.float64)).max()
        return Check(error_ratio=float(error / (2e-5 * math.sqrt(n))), against="the product in f64")

    return Prepared(
        run=run(product) if run else product, verify=verify, count_by_compiler=lambda: NO_COMPILER, facts=facts or {},
        operands=lambda: operands(a=x, b=y, out=c),
    )  # fmt: skip


# --- sound ------------------------------------------------------------------------------------------------------------


def test_a_sound_product_passes(measured):
    result = measured(gemm_work(), lambda *_: numpy_gemm())
    assert codes(result) == set()
    # 2 x 192^3 FLOP in the millisecond of the fixture are 14.2 GFLOP/s of the machine's 10^13
    assert result.metrics["flop_per_s"] == pytest.approx(14155776.0 / 1e-3)
    assert result.verdict is PointVerdict.LOW


@needs_jax
def test_a_sound_compiled_product_passes(measured):
    result = measured(gemm_work(), lambda *_: jax_gemm(), backend="jax")
    assert codes(result) == set()
    assert result.audit["flop_counted"] == 2.0 * N**3


@needs_jax
def test_a_sound_scale_passes(measured):
    result = measured(scale_work(), lambda *_: jax_scale(lambda jnp, x, s: x * s), backend="jax")
    assert codes(result) == set()


# --- the work is not there --------------------------------------------------------------------------------------------


def jax_call(fn: Any, args: Any, expected: tuple[str, ...], verify: Any, **more: Any) -> Prepared:
    from mansard.measure.points import with_jax

    call = with_jax.compiled(fn, args, expected=expected)
    return Prepared(run=call.run, verify=lambda: verify(call), count_by_compiler=call.counts, **more)


def jax_inputs(n: int = N) -> tuple[Any, Any]:
    from mansard.measure.points import with_jax

    return with_jax.array((n, n), "f32", seed=1), with_jax.array((n, n), "f32", seed=2)


def jax_gemm(fn: Any = None, *, n: int = N, args: Any = None, **more: Any) -> Prepared:
    import jax

    x, y = jax_inputs(n)
    exact = np.asarray(x, np.float64) @ np.asarray(y, np.float64)

    def verify(call: Any) -> Check:
        got = np.asarray(call.result, np.float64)
        error = np.abs(got - exact).max() if got.shape == exact.shape else math.inf
        return Check(error_ratio=float(error) / (2e-5 * math.sqrt(n)), against="the product in f64")

    return jax_call(
        fn or (lambda a, b: jax.lax.dot(a, b, precision="highest")), [x, y] if args is None else args,
        ("dot", "__cublas$gemm"), verify, **more,
    )  # fmt: skip


@needs_jax
def test_dead_code_is_caught(measured):
    def unused(a: Any, b: Any) -> Any:
        _ = a @ b  # nothing depends on it
        return a + b

    result = measured(gemm_work(), lambda *_: jax_gemm(unused), backend="jax")
    assert {"operation_missing", "flop_mismatch", "wrong_result"} <= fatal(result)
    assert result.verdict is PointVerdict.IMPLAUSIBLE


@needs_jax
def test_a_result_that_is_only_partly_used_is_caught(measured):
    # one row of the product is computed, 1/N of the FLOP
    result = measured(gemm_work(), lambda *_: jax_gemm(lambda a, b: a[:1] @ b), backend="jax")
    assert "flop_mismatch" in fatal(result)


@needs_jax
def test_folded_constants_are_caught(measured):
    x, y = jax_inputs()
    result = measured(gemm_work(), lambda *_: jax_gemm(lambda: x @ y, args=[]), backend="jax")
    assert "constant_inputs" in fatal(result)


@needs_jax
def test_one_captured_input_is_caught(measured):
    x, y = jax_inputs()
    result = measured(gemm_work(), lambda *_: jax_gemm(lambda a: a @ y, args=[x]), backend="jax")
    assert "constant_inputs" in fatal(result)  # 147 KB of constant: half of what is read


def test_declared_constants_are_caught(measured):
    def make(*_: Any) -> Prepared:
        sound = numpy_gemm()
        return Prepared(
            run=sound.run, verify=sound.verify, count_by_compiler=sound.count_by_compiler, inputs_are_constant=True
        )

    assert "constant_inputs" in fatal(measured(gemm_work(), make))


def scale_work(n: int = N * N) -> Work:
    # one f32 array read, one written: 8 bytes and one product per element
    demand = Demand(vector_flop={"f32": float(n)}, read_bytes=4.0 * n, write_bytes=4.0 * n)
    return Work(demand=demand, headline="bytes", peak=None)


def jax_scale(fn: Any, n: int = N * N) -> Prepared:
    import jax.numpy as jnp

    from mansard.measure.points import with_jax

    x = with_jax.array((n,), "f32", seed=1)
    factor = jnp.float32(1.0)

    def verify(call: Any) -> Check:
        return Check(error_ratio=float(np.abs(np.asarray(call.result) - np.asarray(x)).max()) * 1e6, against="x")

    return jax_call(lambda a, s: fn(jnp, a, s), [x, factor], ("multiply", "fusion"), verify)


@needs_jax
def test_algebraic_simplification_is_caught(measured):
    # x * 1.0 with a literal becomes a copy: the multiplications that are claimed are not done
    result = measured(scale_work(), lambda *_: jax_scale(lambda jnp, x, s: x * 1.0), backend="jax")
    assert {"flop_mismatch", "operation_missing"} & fatal(result)


def test_a_result_kept_from_the_first_call_is_above_its_ceiling(measured):
    def once(product: Any) -> Any:
        done: list[bool] = []

        def run(count: int) -> None:
            if not done:
                product(1)
                done.append(True)

        return run

    # 10^15 FLOP in no time: the right result of the first call is read again and again
    result = measured(gemm_work(flop=1e15), lambda *_: numpy_gemm(run=once), live=True)
    assert "above_ceiling" in fatal(result)
    assert result.verdict is PointVerdict.IMPLAUSIBLE


# --- the time is not there --------------------------------------------------------------------------------------------


def test_a_missing_wait_is_caught(measured):
    result = measured(gemm_work(), lambda *_: waits_only_when_read(), live=True)
    assert "not_synchronised" in fatal(result)


def waits_only_when_read() -> Prepared:
    """A call that returns at once; its work, 0.1 s of it, is waited for by whoever reads the result."""
    state = {"work": 0.0}

    def run(count: int) -> None:
        state["work"] = 0.1

    def verify() -> Check:
        time.sleep(state["work"])
        state["work"] = 0.0
        return Check(error_ratio=0.0, against="nothing")

    return Prepared(run=run, verify=verify, count_by_compiler=lambda: NO_COMPILER)


def test_a_call_that_waits_is_not_accused():
    # a clock of our own: the call takes 10 ms and has finished, the check takes 1 ms at any time
    clock = [0.0]

    def spend(seconds: float) -> None:
        clock[0] += seconds

    def verify() -> Check:
        spend(1e-3)
        return Check(error_ratio=0.0, against="nothing")

    prepared = Prepared(run=lambda count: spend(10e-3 * count), verify=verify, count_by_compiler=lambda: NO_COMPILER)
    lag = worker.unwaited_s(prepared, now=lambda: clock[0])
    assert lag["check_s"] == pytest.approx(lag["check_at_rest_s"]) == pytest.approx(1e-3)
    assert lag["run_s"] == pytest.approx(10e-3)
    assert clock[0] == pytest.approx(12e-3)  # two checks and one call: what waits is not called again


def test_another_program_in_one_check_is_no_missing_wait():
    # the check takes 0.6 s at rest, and once, after a call, 3 s because somebody else had the processor
    clock, checks = [0.0], iter([0.6, 3.0, 0.6, 0.6])

    def verify() -> Check:
        clock[0] += next(checks)
        return Check(error_ratio=0.0, against="nothing")

    def run(count: int) -> None:
        clock[0] += 0.1 * count

    prepared = Prepared(run=run, verify=verify, count_by_compiler=lambda: NO_COMPILER)
    lag = worker.unwaited_s(prepared, now=lambda: clock[0])
    assert lag["check_s"] == pytest.approx(lag["check_at_rest_s"]) == pytest.approx(0.6)
    assert list(checks) == []  # the second pair agreed, so a slow check is not made a third time


# --- the data is not there --------------------------------------------------------------------------------------------


def test_zeros_are_caught(measured):
    result = measured(gemm_work(), lambda *_: numpy_gemm(a=np.zeros((N, N), np.float32)))
    assert "zero_inputs" in fatal(result)


def test_constant_data_is_caught(measured):
    result = measured(gemm_work(), lambda *_: numpy_gemm(a=np.ones((N, N), np.float32)))
    assert "constant_data" in fatal(result)


def test_a_result_that_is_not_finite_is_caught(measured):
    a = np.full((N, N), 1e38, np.float32)
    a[::2] = 3e38
    with np.errstate(all="ignore"):
        result = measured(gemm_work(), lambda *_: numpy_gemm(a=a))
    assert "not_finite" in fatal(result)


def test_denormals_are_said(measured):
    a = np.random.default_rng(1).standard_normal((N, N)).astype(np.float32) * np.float32(1e-40)
    assert "denormals" in codes(measured(gemm_work(), lambda *_: numpy_gemm(a=a)))


def test_an_alias_is_caught(measured):
    source = np.random.default_rng(1).standard_normal(MIB).astype(np.float32)
    moved = source[:]  # the "copy" is the same memory

    def make(*_: Any) -> Prepared:
        def verify() -> Check:
            return Check(error_ratio=float(np.abs(moved - source).max()), against="the source")

        return Prepared(
            run=lambda count: None, verify=verify, count_by_compiler=lambda: NO_COMPILER,
            operands=lambda: operands(source=source, out=moved),
        )  # fmt: skip

    work = Work(demand=Demand(read_bytes=4.0 * MIB, write_bytes=4.0 * MIB), headline="bytes")
    result = measured(work, make, ceilings=None)
    assert "aliased" in fatal(result)


def test_memory_in_place_on_purpose_is_no_alias(measured):
    x = np.random.default_rng(1).standard_normal(MIB).astype(np.float32)

    def make(*_: Any) -> Prepared:
        def run(count: int) -> None:
            for _ in range(count):
                np.negative(x, out=x)

        shown = [Operand(name="x", role="in_place", bytes=x.nbytes, values=x[:512], address=x.ctypes.data)]
        return Prepared(
            run=run, verify=lambda: Check(error_ratio=0.0, against="itself"),
            count_by_compiler=lambda: NO_COMPILER, operands=lambda: shown,
        )  # fmt: skip

    # read and written once each: 8 bytes per element
    work = Work(demand=Demand(read_bytes=4.0 * MIB, write_bytes=4.0 * MIB), headline="bytes")
    assert codes(measured(work, make)) == set()


def test_a_cache_resident_working_set_is_labelled(measured):
    def work(size: float) -> Work:
        return Work(
            demand=Demand(read_bytes=size / 2, write_bytes=size / 2, working_set_bytes=size), headline="bytes",
            level="dram",
        )  # fmt: skip

    # the machine has 16 MiB of L3: 8 MiB lives in it, 128 MiB is 8 times it, 192 MiB is 12 times and DRAM
    small = measured(work(8.0 * MIB), lambda *_: idle())
    assert "cache_resident" in codes(small)
    assert small.metrics["level"] == "l3"
    assert "partly_cached" in codes(measured(work(128.0 * MIB), lambda *_: idle()))
    large = measured(work(192.0 * MIB), lambda *_: idle())
    assert not {"cache_resident", "partly_cached"} & codes(large)
    assert large.metrics["level"] == "dram"


def idle() -> Prepared:
    return Prepared(
        run=lambda count: time.sleep(1e-3), verify=lambda: Check(error_ratio=0.0, against="nothing"),
        count_by_compiler=lambda: NO_COMPILER,
    )  # fmt: skip


def test_fresh_outputs_are_seen_by_their_page_faults(measured):
    import mmap

    size = 8 * MIB

    def make(*_: Any) -> Prepared:
        def run(count: int) -> None:
            for _ in range(count):
                with mmap.mmap(-1, size) as fresh:  # new pages in every call, as an allocating kernel has them
                    for page in range(0, size, mmap.PAGESIZE):
                        fresh[page] = 1

        return Prepared(
            run=run, verify=lambda: Check(error_ratio=0.0, against="nothing"), count_by_compiler=lambda: NO_COMPILER,
            output_is_fresh=True,
        )  # fmt: skip

    work = Work(demand=Demand(write_bytes=float(size)), headline="bytes")
    result = measured(work, make)
    assert "page_faults" in codes(result)
    # the machine of round numbers is far faster than 8 MiB in a millisecond, and the reason that is given is the right one
    assert result.verdict is PointVerdict.LOW
    assert "page faults" in result.verdict_reason


# --- the claim is wrong -----------------------------------------------------------------------------------------------


@needs_jax
@pytest.mark.parametrize(("factor", "code"), [(2.0, "flop_mismatch"), (0.5, "flop_above_claim")])
def test_a_wrong_flop_count_is_caught(measured, factor, code):
    result = measured(gemm_work(flop=factor * 2.0 * N**3), lambda *_: jax_gemm(), backend="jax")
    assert code in codes(result)


@needs_jax
@pytest.mark.parametrize(("factor", "code"), [(2.0, "bytes_mismatch"), (0.5, "bytes_above_claim")])
def test_a_wrong_byte_count_is_caught_by_the_compiler(measured, factor, code):
    # three f32 matrices: 12 N^2 bytes
    work = gemm_work(size=factor * 12.0 * N * N, headline="bytes")
    assert code in codes(measured(work, lambda *_: jax_gemm(), backend="jax"))


@pytest.mark.parametrize(("factor", "code"), [(2.0, "bytes_mismatch"), (0.5, "bytes_above_claim")])
def test_a_wrong_byte_count_is_caught_by_the_arrays(measured, factor, code):
    work = gemm_work(size=factor * 12.0 * N * N, headline="bytes")
    assert code in codes(measured(work, lambda *_: numpy_gemm()))


@needs_jax
def test_a_wrong_layout_is_caught(measured):
    # the published suite hands (B, H, S, D) to a call that takes (B, T, N, D): it attends over heads. For B=1, H=4,
    # S=128, D=32 the truth is 4*B*H*S*S*D = 8,388,608 FLOP, and the program does 4*B*S*H*H*D = 262,144: 32 times fewer.
    import jax

    from mansard.measure.points import with_jax

    B, H, S, D = 1, 4, 128, 32
    q, k, v = (with_jax.array((B, H, S, D), "f32", seed=i) for i in range(3))

    def exact() -> Any:
        x, y, z = (np.asarray(a, np.float64) for a in (q, k, v))
        scores = np.einsum("bhsd,bhtd->bhst", x, y) / math.sqrt(D)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhst,bhtd->bhsd", weights / weights.sum(-1, keepdims=True), z)

    def verify(call: Any) -> Check:
        error = np.abs(np.asarray(call.result, np.float64) - exact()).max()
        return Check(error_ratio=float(error) / 1e-4, against="softmax(Q K^T) V in f64")

    def right(x: Any, y: Any, z: Any) -> Any:
        a, b, c = (t.transpose(0, 2, 1, 3) for t in (x, y, z))
        return jax.nn.dot_product_attention(a, b, c).transpose(0, 2, 1, 3)

    size = 4.0 * B * H * S * D
    demand = Demand(flop={("f32", "f32"): 4.0 * B * H * S * S * D}, read_bytes=3 * size, write_bytes=size)
    work = Work(demand=demand, peak=("f32", "f32", "matrix"))
    assert work.demand.total_flop == 8388608.0
    dots = ("dot",)
    wrong = measured(work, lambda *_: jax_call(jax.nn.dot_product_attention, [q, k, v], dots, verify), backend="jax")
    assert {"wrong_result", "flop_mismatch"} <= fatal(wrong)
    sound = measured(work, lambda *_: jax_call(right, [q, k, v], dots, verify), backend="jax")
    assert not fatal(sound)


def test_the_peak_of_another_type_is_caught(measured):
    work = gemm_work(peak=("bf16", "f32", "matrix"))
    result = measured(work, lambda *_: numpy_gemm())
    assert "peak_mismatch" in fatal(result)


def test_a_narrower_type_inside_is_caught(measured):
    result = measured(gemm_work(), lambda *_: numpy_gemm(facts={"computed_in": "bf16"}))
    assert "narrower_dtype" in fatal(result)


def test_a_narrower_type_that_nobody_names_is_caught_by_its_result(measured):
    def rounded(product: Any) -> Any:
        return product

    def make(*_: Any) -> Prepared:
        rng = np.random.default_rng(1)
        x, y = (rng.standard_normal((N, N), dtype=np.float32) for _ in range(2))
        c = np.empty((N, N), np.float32)

        def short(a: Any) -> Any:  # to bf16: the upper half of an f32
            return (a.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

        def run(count: int) -> None:
            for _ in range(count):
                np.matmul(short(x), short(y), out=c)

        def verify() -> Check:
            error = np.abs(c.astype(np.float64) - x.astype(np.float64) @ y.astype(np.float64)).max()
            return Check(error_ratio=float(error / (2e-5 * math.sqrt(N))), against="the product in f64")

        return Prepared(run=rounded(run), verify=verify, count_by_compiler=lambda: NO_COMPILER)

    assert "wrong_result" in fatal(measured(gemm_work(), make))


def test_a_wider_type_inside_is_said(measured):
    work = Work(demand=Demand(flop={("bf16", "f32"): 2.0 * N**3}, read_bytes=1.0), peak=("bf16", "f32", "matrix"))
    result = measured(work, lambda *_: numpy_gemm(facts={"computed_in": "f32"}))
    assert "wider_dtype" in codes(result)
    assert "wider_dtype" not in fatal(result)


def test_a_wrong_result_is_caught(measured):
    def transposed(product: Any) -> Any:
        return product

    def make(*_: Any) -> Prepared:
        sound = numpy_gemm(run=transposed)
        return Prepared(
            run=sound.run, verify=lambda: Check(error_ratio=7.0, against="the product"),
            count_by_compiler=lambda: NO_COMPILER,
        )  # fmt: skip

    assert "wrong_result" in fatal(measured(gemm_work(), make))


def test_a_compiled_program_without_the_operation_is_caught(measured):
    def make(*_: Any) -> Prepared:
        sound = numpy_gemm()
        count = CompilerCount(
            flop=2.0 * N**3, bytes=12.0 * N * N, operations=("copy",), expected=("dot",), source="a compiler"
        )
        return Prepared(run=sound.run, verify=sound.verify, count_by_compiler=lambda: count)

    assert "operation_missing" in fatal(measured(gemm_work(), make))
