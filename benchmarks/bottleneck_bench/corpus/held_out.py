"""Cases of kinds that the rest of the corpus lacks, written without sight of the rules and asked about blind first."""

from __future__ import annotations

from dataclasses import replace

from corpus.alone import EIGHT, INTER, MIB, rails, ring
from corpus.cases import STEPS, Case, Recipe, one_step, recipe_case, steps_of, tiny_kernel
from corpus.machines import A100, A100_40, A100_PCIE, H100, H200, MI300X, Machine
from corpus.program import Program, Span
from corpus.work import Work, all_to_all, gemm, gemm_f32, gemm_fp8, gemv, host_copy, layer_norm, pointwise

NODE = {"node_devices": 8}


def held_out_cases() -> list[Case]:
    """All of them."""
    return [*_threads(), *_boards(), *_types(), *_network(), *_streams(), *_decoding(), *_steps(), *_mixed(), *_odd()]


def _backward(program: Program, works: list[Work], name: str, host_ns: int = 10_000) -> None:
    """Launch the backward pass from the second thread, each operator inside the node of the graph it belongs to."""
    program.thread = 1
    for work in works:
        start = program.now
        program.launch(work, host_ns=host_ns)
        for depth, label in enumerate((f"autograd::engine::evaluate_function: {name}", name)):
            span = Span(name=label, category="cpu_op", start_ns=start - 200 + 50 * depth, end_ns=program.now + 10)
            span.args, span.thread = {"External id": 0, "Fwd thread id": 1, "Sequence number": 7}, 1
            program.spans.append(span)
        program.now += 400
        program.activity.append((program.now - 400, program.now, "launch"))
    program.thread = 0


def _threads() -> list[Case]:
    """A forward pass from the main thread, a backward pass twice as long from autograd's."""
    product, stream = gemm(H100, 0.75, 4096, 4096, 4096), pointwise(A100, 0.8, "gelu", 32 * MIB)

    def compute(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                with program.range("forward"):
                    for _ in range(30):
                        program.launch(product)
                _backward(program, [product] * 60, "MmBackward0")
                program.wait()
        return [program]

    def memory(seed: int) -> list[Program]:
        program = Program(A100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for _ in range(30):
                    program.launch(stream)
                _backward(program, [stream] * 60, "GeluBackward0")
                program.wait()
        return [program]

    def small(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for _ in range(100):
                    program.launch(tiny_kernel(H100), host_ns=7_000)
                _backward(program, [tiny_kernel(H100)] * 300, "AddBackward0", host_ns=9_000)
                program.wait()
        return [program]

    more = {"must_not": ("host", "network")}
    return [
        Case(name="held-out/backward-thread-compute", build=compute, truth="compute", **more),
        Case(name="held-out/backward-thread-memory", build=memory, truth="memory", **more),
        Case(name="held-out/backward-thread-launches", build=small, truth="latency", must_not=("compute", "memory")),
        Case(
            name="held-out/backward-thread-nsys",
            build=small,
            truth="latency",
            file_format="nsys",
            memory_known=False,
            headroom=False,
            shares=False,
            must_not=("compute", "memory", "network"),
        ),
    ]


def _boards() -> list[Case]:
    """AMD, and boards of one chip that differ in bandwidth: 0.95 of the smaller is 0.72 of the larger."""
    big = 64 * MIB
    out = []
    for m, share in ((A100_40, 0.95), (A100_PCIE, 0.88), (MI300X, 0.7)):
        recipe = Recipe(memory=[pointwise(m, share, "add", big), layer_norm(m, share, 32768, 4096)], memory_s=15e-3)
        out.append(
            recipe_case(f"held-out/memory-{m.slug}", m, "memory", recipe, must_not=("compute", "host", "network"))
        )
    m = MI300X
    products = Recipe(compute=[gemm(m, 0.6, 8192, 8192, 8192), gemm(m, 0.5, 4096, 4096, 4096)], compute_s=20e-3)
    out.append(recipe_case("held-out/compute-mi300x", m, "compute", products, must_not=("memory", "host")))
    generic = replace(
        ring(m, 0.6, "all_reduce", 256), kernel="ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"
    )
    both = Recipe(compute=[gemm(m, 0.6, 8192, 8192, 8192)], compute_s=6e-3, network=[generic], network_s=12e-3)
    out.append(
        recipe_case(
            "held-out/network-mi300x", m, "network", both, program={"world": 8}, options=NODE, must_not=("host",)
        )
    )
    tiny = Recipe(tiny_s=12e-3, compute=[gemm(m, 0.6, 4096, 4096, 4096)], compute_s=2e-3)
    out.append(recipe_case("held-out/latency-mi300x", m, "latency", tiny, must_not=("compute", "memory")))
    return out


def _types() -> list[Case]:
    """Float32 with and without tensor cores, 8-bit products, and a clock above the one that the peak is given for."""
    cells: list[tuple[str, Machine, list[Work]]] = [
        ("f32-a100", A100, [gemm_f32(A100, 0.85, 2048, 2048, 2048)]),
        ("f32-h100", H100, [gemm_f32(H100, 0.7, 4096, 4096, 4096)]),
        ("tf32-a100", A100, [gemm(A100, 0.8, 4096, 4096, 4096, tf32=True)]),
        ("fp8-h100", H100, [gemm_fp8(H100, 0.65, 8192, 8192, 8192)]),
    ]
    out = [
        recipe_case(f"held-out/{name}", m, "compute", Recipe(compute=works, compute_s=20e-3), must_not=("memory",))
        for name, m, works in cells
    ]
    boost = Recipe(compute=[gemm(H100, 1.06, 8192, 8192, 8192)], compute_s=20e-3)
    out.append(
        recipe_case(
            "held-out/boost-clock-106",
            H100,
            "compute",
            boost,
            accept=("undetermined",),
            headroom=False,
            must_not=("memory", "host", "latency"),
            must_say=(r"clock|boost",),
            note="989 TFLOP/s are given for 1,830 MHz, and the clock may reach 1,980: 1.08 of it is possible",
        )
    )
    return out


def _network() -> list[Case]:
    """All-to-all, experts of different size, a pipeline's bubble seen as a waiting receive and as an empty device."""
    exchange = all_to_all(0.6, 64 * MIB, EIGHT, link_bytes_per_s=H100.nvlink_bytes_per_s)
    product = gemm(H100, 0.75, 4096, 4096, 4096)
    fields = {"program": {"world": 8}, "options": NODE, "must_not": ("memory", "host")}
    out = [
        recipe_case(
            "held-out/all-to-all",
            H100,
            "network",
            Recipe(compute=[product], compute_s=6e-3, network=[exchange], network_s=12e-3),
            **fields,
        )
    ]
    far = all_to_all(0.7, 16 * MIB, [8 * i for i in range(4)], link_bytes_per_s=50e9)
    out.append(
        recipe_case(
            "held-out/all-to-all-internode",
            H100,
            "network",
            Recipe(compute=[product], compute_s=8e-3, network=[far], network_s=14e-3),
            program={"world": 32},
            options=INTER,
            must_not=("memory", "host"),
        )
    )
    experts = [gemm(H100, s, n, 4096, 14336) for n, s in ((8192, 0.75), (3072, 0.7), (1024, 0.6), (64, 0.7), (16, 0.7))]

    def unbalanced(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for _ in range(8):
                    for work in experts:
                        program.launch(work)
                program.wait()
        return [program]

    out.append(Case(name="held-out/expert-imbalance", build=unbalanced, truth="compute", must_not=("memory", "host")))

    def bubble(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for micro in range(4):
                    for i in range(10):
                        # what a stage waits for is an event of another process: the kernel is queued, the device empty
                        late = program.free.get((0, 7), program.now) + 4_000_000 if i == 0 and micro else 0
                        program.launch(product, after=late)
                program.wait()
        return [program]

    out.append(
        Case(
            name="held-out/pipeline-bubble",
            build=bubble,
            truth="undetermined",
            accept=("network",),
            headroom=False,
            shares=False,
            must_not=("host", "memory", "latency"),
            note="two thirds of the step the device is empty with work queued: nothing the host could do better",
        )
    )
    return out


def _streams() -> list[Case]:
    """Two streams that share the device, and a large prefetch under compute."""
    product, copy = gemm(H100, 0.36, 4096, 4096, 4096), host_copy(H200, 0.85, 64 * MIB, pinned=True)
    stream = pointwise(H200, 0.8, "add", 64 * MIB)

    def pair(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for _ in range(30):
                    program.launch(product, stream=7)
                    program.launch(product, stream=13)
                program.wait()
        return [program]

    def prefetch(seed: int) -> list[Program]:
        program = Program(H200, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for i in range(120):
                    run = program.launch(stream)
                    if i % 14 == 1:
                        program.launch(copy, stream=14, after=run.start_ns)
                program.wait()
        return [program]

    return [
        Case(
            name="held-out/two-streams",
            build=pair,
            truth="compute",
            must_not=("memory", "host", "latency"),
            note="each product has half of the device: 0.72 of the peak together",
        ),
        Case(
            name="held-out/h2d-under-memory",
            build=prefetch,
            truth="memory",
            must_not=("host", "network", "latency"),
            note="copies run for 60 % of the step, all of it under kernels",
        ),
    ]


def _decoding() -> list[Case]:
    """Tokens of a decoder: each weight moves once for one row; with a fast and with a slow launch."""
    out = []
    for m, wide in ((H100, 14336), (A100, 11008)):
        weights = [gemv(m, 0.75, 4096, 4096)] * 4 + [gemv(m, 0.8, 4096, wide)] * 2 + [gemv(m, 0.8, wide, 4096)]

        def build(seed: int, m: Machine = m, weights: list[Work] = weights) -> list[Program]:
            program = Program(m, seed=seed)
            for _ in range(12):
                with program.step():
                    for _ in range(16):
                        for work in weights:
                            program.launch(work, host_ns=6_000)
                        program.launch(tiny_kernel(m), host_ns=4_000)
                    program.wait(item=True)
            return [program]

        out.append(
            Case(name=f"held-out/decode-gemv-{m.slug}", build=build, truth="memory", must_not=("compute", "host"))
        )
    return out


def _steps() -> list[Case]:
    """Steps of very different length, and a profile that began in the middle of one."""
    product, stream = gemm(H100, 0.8, 4096, 4096, 4096), pointwise(H100, 0.8, "add", 64 * MIB)

    def uneven(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for i in range(8):
            with program.step():
                for _ in range(240 if i % 4 == 3 else 24):
                    program.launch(product)
                for _ in range(8):
                    program.launch(stream)
                program.wait()
        return [program]

    def cut(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        recipe = Recipe(compute=[product], compute_s=6e-3, memory=[stream], memory_s=12e-3)
        steps_of(program, recipe, steps=6)
        middle = sum(program.steps[0]) // 2
        program.spans = [s for s in program.spans if s.start_ns >= middle]
        program.calls = [c for c in program.calls if c.start_ns >= middle]
        program.runs = [r for r in program.runs if r.end_ns > middle]
        return [program]

    def truncated(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for i in range(7):
            with program.step():
                one_step(program, Recipe(load_s=14e-3 if i else 2.5, compute=[product], compute_s=6e-3))
        return [program]

    return [
        Case(
            name="held-out/uneven-steps",
            build=uneven,
            truth="compute",
            must_not=("host", "latency"),
            note="every fourth step accumulates ten times as much; shares and headroom are of the mean step",
        ),
        Case(name="held-out/starts-mid-step", build=cut, truth="memory", skip=1, must_not=("host", "latency")),
        Case(
            name="held-out/slow-first-input",
            build=truncated,
            truth="host",
            skip=1,
            must_not=("compute", "memory"),
            note="the first input takes 2.5 s, the others 14 ms: a start-up, and no part of a steady step",
        ),
    ]


def _mixed() -> list[Case]:
    """Three areas at once."""
    m, total = H100, 24e-3
    products = [gemm(m, 0.7, 4096, 4096, 11008)]
    streams = [pointwise(m, 0.75, "silu", 64 * MIB)]
    cells: list[tuple[str, str, Recipe, dict[str, object]]] = [
        (
            "compute40-network35-input25",
            "compute",
            Recipe(
                compute=products,
                compute_s=0.4 * total,
                network=[ring(m, 0.6, "reduce_scatter", 256)],
                network_s=0.35 * total,
                load_s=0.25 * total,
            ),
            {"program": {"world": 8}, "options": NODE},
        ),
        (
            "memory30-internode45-sync25",
            "network",
            Recipe(
                memory=streams,
                memory_s=0.3 * total,
                network=[rails(0.7, "all_gather", 32, 4)],
                network_s=0.45 * total,
                think_s=0.25 * total,
            ),
            {"program": {"world": 32}, "options": INTER},
        ),
        (
            "latency45-compute30-memory25",
            "latency",
            Recipe(tiny_s=0.45 * total, compute=products, compute_s=0.3 * total, memory=streams, memory_s=0.25 * total),
            {},
        ),
    ]
    return [
        recipe_case(f"held-out/{name}", m, truth, recipe, **more)  # type: ignore[arg-type]
        for name, truth, recipe, more in cells
    ]


def _odd() -> list[Case]:
    """Ranges alone, and one kernel that is the whole step."""

    def ranges(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(400):
            with program.step():
                for part in ("load", "forward", "backward", "optimizer"):
                    with program.range(part):
                        program.python(3e6)
        return [program]

    def single(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                program.launch(gemm(H100, 0.8, 32768, 32768, 16384))
                program.wait()
        return [program]

    return [
        Case(
            name="held-out/ranges-alone-nsys",
            build=ranges,
            truth="undetermined",
            accept=("none",),
            file_format="nsys",
            memory_known=False,
            headroom=False,
            shares=False,
            must_not=("compute", "memory", "network", "host", "latency"),
            note="no kernel was recorded: what the device did is not in the file",
        ),
        Case(name="held-out/one-kernel", build=single, truth="compute", must_not=("memory", "host", "latency")),
    ]
