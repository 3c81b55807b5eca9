"""A second held-out set, written without sight of the rules and asked about blind once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from corpus.alone import EIGHT, INTER, MIB, rails, ring
from corpus.cases import Case, Recipe, one_step, pageable, recipe_case, tiny_kernel
from corpus.machines import A100, H100, H200, MI300X, Machine
from corpus.program import Program
from corpus.work import F32, Work, all_to_all, gemm, gemm_f32, gemm_fp8, gemv, host_copy, pointwise, softmax

NODE = {"node_devices": 8}
Body = Callable[[Program, int], None]
VAGUE: dict[str, Any] = {"headroom": False, "shares": False}


def _case(
    name: str, m: Machine, truth: str, body: Body, *, steps: int = 6, program: dict[str, Any] | None = None, **more: Any
) -> Case:
    def build(seed: int) -> list[Program]:
        made = Program(m, seed=seed, **(program or {}))
        for i in range(steps):
            with made.step():
                body(made, i)
                made.wait()
        return [made]

    return Case(name=f"held-out2/{name}", build=build, truth=truth, **more)


def _many(program: Program, work: Work, times: int, **more: Any) -> None:
    for _ in range(times):
        program.launch(work, **more)


def _save(m: Machine, share: float, mib: int, *, pinned: bool) -> Work:
    """A copy to the host."""
    to = "Pinned" if pinned else "Pageable"
    return replace(host_copy(m, share, mib * MIB, pinned=pinned), kernel=f"Memcpy DtoH (Device -> {to})")


def held_out2_cases() -> list[Case]:
    """All of them."""
    return [*_overlap(), *_now_and_then(), *_kinds(), *_waits(), *_links()]


def _overlap() -> list[Case]:
    product, stream = gemm(H100, 0.8, 8192, 8192, 8192), pointwise(H100, 0.3, "add", 16 * MIB)
    part, most = _save(H100, 0.8, 64, pinned=True), _save(H100, 0.8, 512, pinned=True)
    small = gemm(H200, 0.75, 4096, 4096, 4096)

    def hidden(p: Program, _: int) -> None:
        for _i in range(10):
            run = p.launch(product)
            p.launch(stream, stream=13, after=run.start_ns + 50_000)

    def tail(copy: Work) -> Body:
        def body(p: Program, _: int) -> None:
            _many(p, product, 8)
            p.launch(copy, stream=14, after=p.free[0, 7] - copy.duration_ns // 2)

        return body

    def python(p: Program, _: int) -> None:
        _many(p, small, 80)
        p.python(6e6)

    def load(p: Program, _: int) -> None:
        _many(p, small, 80)
        p.load(6e6)

    return [
        _case("memory-under-gemm", H100, "compute", hidden, must_not=("memory", "host"), **VAGUE),
        _case("d2h-half-hidden", H100, "compute", tail(part), must_not=("host", "memory")),
        _case("d2h-leads", H100, "host", tail(replace(most, duration_ns=4 * most.duration_ns))),
        _case("python-hidden", H200, "compute", python, must_not=("host", "latency")),
        _case("input-hidden", H200, "compute", load, must_not=("host", "latency")),
    ]


def _now_and_then() -> list[Case]:
    product, stream = gemm(H100, 0.75, 4096, 4096, 4096), pointwise(A100, 0.8, "add", 32 * MIB)
    reduce, save = ring(H100, 0.7, "all_reduce", 512), _save(A100, 0.1, 512, pinned=False)

    def accumulate(p: Program, _: int) -> None:
        _many(p, product, 160)
        p.launch(reduce, stream=20, alone=True)

    def fourth(p: Program, i: int) -> None:
        _many(p, product, 30)
        if i % 4 == 3:
            p.launch(reduce, stream=20, alone=True)

    def checkpoint(p: Program, i: int) -> None:
        _many(p, stream, 60)
        if i % 4 == 3:
            p.copy_and_wait(save)

    def collect(p: Program, i: int) -> None:
        _many(p, stream, 40)
        p.wait()
        if i % 2:
            p.python(40e6)

    more = {"program": {"world": 8}, "options": NODE}
    return [
        _case("accumulate-eight", H100, "compute", accumulate, must_not=("network",), **more),
        _case("reduce-every-fourth", H100, "compute", fourth, steps=8, must_not=("network", "host"), **more),
        _case("checkpoint-every-fourth", A100, "host", checkpoint, steps=8, must_not=("compute", "network")),
        _case("collector-pauses", A100, "host", collect, steps=8, must_not=("compute", "network")),
    ]


def _kinds() -> list[Case]:
    cells: list[tuple[str, Machine, str, Recipe]] = [
        (
            "softmax-f32-chain",
            H200,
            "memory",
            Recipe(memory=[softmax(H200, s, 32768, 4096) for s in (0.8, 0.7)], memory_s=15e-3),
        ),
        (
            "prefill-over-decode",
            H100,
            "compute",
            Recipe(
                compute=[gemm(H100, 0.7, 4096, 4096, 14336)],
                compute_s=12e-3,
                memory=[gemv(H100, 0.75, 4096, 14336)],
                memory_s=7e-3,
            ),
        ),
        (
            "decode-over-prefill",
            A100,
            "memory",
            Recipe(
                compute=[gemm(A100, 0.7, 2048, 4096, 11008)],
                compute_s=6e-3,
                memory=[gemv(A100, 0.75, 4096, 11008)],
                memory_s=13e-3,
            ),
        ),
        (
            "f32-leads-bf16",
            A100,
            "compute",
            Recipe(compute=[gemm(A100, 0.7, 4096, 4096, 4096), gemm_f32(A100, 0.8, 2048, 2048, 2048)], compute_s=20e-3),
        ),
        (
            "fp8-under-casts",
            H100,
            "memory",
            Recipe(
                compute=[gemm_fp8(H100, 0.6, 8192, 8192, 8192)],
                compute_s=8e-3,
                memory=[pointwise(H100, 0.8, "mul", 32 * MIB, dtype=F32)],
                memory_s=12e-3,
            ),
        ),
        ("memory-throttled", H100, "memory", Recipe(memory=[pointwise(H100, 0.42, "gelu", 64 * MIB)], memory_s=15e-3)),
        (
            "memory-mi300x-copy",
            MI300X,
            "memory",
            Recipe(memory=[pointwise(MI300X, 0.65, "copy_", 256 * MIB)], memory_s=15e-3),
        ),
    ]
    out = [recipe_case(f"held-out2/{n}", m, t, r, must_not=("host", "network")) for n, m, t, r in cells]
    slow = Recipe(memory=[pointwise(H100, 0.04, "add", 8 * MIB)], memory_s=15e-3)
    out.append(
        recipe_case(
            "held-out2/one-multiprocessor",
            H100,
            "undetermined",
            slow,
            must_not=("compute", "host", "latency"),
            **VAGUE,
            note="4 % of the bandwidth, no counters: the cause is not in the file",
        )
    )
    return out


def _waits() -> list[Case]:
    product, stream = gemm(H100, 0.8, 8192, 8192, 8192), pointwise(H200, 0.8, "add", 64 * MIB)
    tiny, little = tiny_kernel(A100), pointwise(H100, 0.5, "gelu", 2 * MIB)

    def each(p: Program, _: int) -> None:
        for _i in range(12):
            p.launch(product)
            p.wait()

    def decode(p: Program, _: int) -> None:
        _many(p, tiny, 300, host_ns=9_000)
        p.wait(item=True)

    def slow_launch(p: Program, _: int) -> None:
        _many(p, little, 200, host_ns=40_000)

    def lead(seed: int) -> list[Program]:
        made = Program(H200, seed=seed)
        made.python(4e9)
        for _i in range(6):
            with made.step():
                one_step(made, Recipe(memory=[stream], memory_s=12e-3))
        return [made]

    def unmarked(p: Program, _: int) -> None:
        _many(p, stream, 40)

    return [
        _case("wait-after-each-gemm", H100, "compute", each, must_not=("host", "latency")),
        _case("decode-launches", A100, "latency", decode, steps=10, must_not=("compute", "memory")),
        _case("slow-launches", H100, "latency", slow_launch, must_not=("compute", "memory")),
        Case(name="held-out2/idle-lead-in", build=lead, truth="memory", must_not=("host", "latency")),
        _case("unmarked", H200, "memory", unmarked, program={"marks": False}, must_not=("host", "latency"), **VAGUE),
    ]


def _links() -> list[Case]:
    product = gemm(H100, 0.75, 4096, 4096, 4096)
    both = Recipe(
        compute=[product],
        compute_s=5e-3,
        network=[ring(H100, 0.7, "all_gather", 256), rails(0.8, "all_reduce", 64, 4)],
        network_s=16e-3,
    )
    experts = [gemm(H100, 0.7, n, 4096, 14336) for n in (4096, 1024, 512)]
    spread = all_to_all(0.45, 96 * MIB, EIGHT, link_bytes_per_s=H100.nvlink_bytes_per_s)
    near = Recipe(compute=experts, compute_s=8e-3, network=[spread], network_s=11e-3)
    fast = Recipe(compute=[product], compute_s=4e-3, copy=host_copy(H100, 0.88, 256 * MIB, pinned=True), copies=3)
    slow = Recipe(
        compute=[gemm(A100, 0.7, 4096, 4096, 4096)], compute_s=12e-3, copy=pageable(A100, 64 * MIB, 9e9), copies=1
    )
    return [
        recipe_case("held-out2/nvlink-and-adapters", H100, "network", both, program={"world": 32}, options=INTER),
        recipe_case("held-out2/experts-all-to-all", H100, "network", near, program={"world": 8}, options=NODE),
        recipe_case("held-out2/h2d-at-the-link", H100, "host", fast, must_not=("compute", "memory")),
        recipe_case("held-out2/h2d-pageable-second", A100, "compute", slow, must_not=("memory", "host")),
    ]
