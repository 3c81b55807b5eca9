"""Profiles that look like one thing and are another, or of which nothing can be said."""

from __future__ import annotations

from dataclasses import replace

from corpus.alone import EIGHT, MIB, ring
from corpus.cases import STEPS, Case, Recipe, one_step, pageable, recipe_case, steps_of, tiny_kernel
from corpus.machines import A100, H100, H200, Machine
from corpus.program import Program, Span
from corpus.work import Work, collective, gemm, host_copy, pointwise


def decoy_cases() -> list[Case]:
    """All of them."""
    return [*_overlap(), *_queue(), *_cached(), *_clock(), *_shapeless(), *_scope(), *_graphs(), *_ranks(), *_others()]


def _overlap() -> list[Case]:
    """Collectives that compute hides; they lengthen the union of nothing."""
    out = []
    for m, ratio in ((H100, 0.6), (A100, 0.9)):
        product = gemm(m, 0.75, 4096, 4096, 4096)
        reduce = ring(m, 0.7, "all_reduce", 128)

        def build(
            seed: int, m: Machine = m, product: Work = product, reduce: Work = reduce, ratio: float = ratio
        ) -> list[Program]:
            program = Program(m, seed=seed, world=8)
            for _ in range(STEPS):
                with program.step():
                    covered = 0.0
                    for i in range(80):
                        run = program.launch(product)
                        if i > 0 and covered < ratio * i * product.duration_ns and i < 72:
                            last = program.launch(reduce, stream=20, after=run.start_ns)
                            covered += last.end_ns - last.start_ns
                    program.wait()
            return [program]

        out.append(
            Case(
                name=f"decoy/overlapped-nccl-{m.slug}",
                build=build,
                truth="compute",
                must_not=("network", "memory"),
                options={"node_devices": 8},
                note="every collective runs under products: no exposed communication",
            )
        )
    recipe = Recipe(
        compute=[gemm(H100, 0.8, 4096, 4096, 4096)],
        compute_s=7e-3,
        network=[ring(H100, 0.7, "all_gather", 64)],
        network_s=13e-3,
    )
    out.append(
        recipe_case(
            "decoy/nccl-in-the-union",
            H100,
            "network",
            recipe,
            program={"world": 8},
            options={"node_devices": 8},
            must_not=("compute", "memory"),
            note="the union of kernels is 99 % of the step, and two thirds of it is communication",
        )
    )
    return out


def _queue() -> list[Case]:
    """A deep launch queue in front of a busy device: long launch-to-start delays, and nothing to gain from graphs."""
    out = []
    for m in (H100, A100):
        work = pointwise(m, 0.8, "add", 16 * MIB)

        def build(seed: int, m: Machine = m, work: Work = work) -> list[Program]:
            program = Program(m, seed=seed)
            for _ in range(STEPS):
                with program.step():
                    for _ in range(400):
                        program.launch(work, host_ns=5_000)
                    program.wait()
            return [program]

        out.append(
            Case(
                name=f"decoy/deep-queue-{m.slug}", build=build, truth="memory", must_not=("latency", "host", "compute")
            )
        )
    return out


def _cached() -> list[Case]:
    """Elementwise work on data that stays in the last-level cache, faster than device memory can be."""
    out = []
    for m, rate, mib in ((H100, 5.5e12, 12), (A100, 4.0e12, 9)):
        work = pointwise(m, 1.0, "add", mib * MIB // 6 // 1024 * 1024, rate=rate)

        def build(seed: int, m: Machine = m, work: Work = work) -> list[Program]:
            program = Program(m, seed=seed)
            for _ in range(STEPS):
                with program.step():
                    program.launch(gemm(m, 0.8, 4096, 4096, 4096))
                    for _ in range(600):
                        program.launch(work, host_ns=1_900)
                    program.wait()
            return [program]

        out.append(
            Case(
                name=f"decoy/cache-resident-{m.slug}",
                build=build,
                truth="memory",
                accept=("undetermined",),
                headroom=False,
                shares=False,
                must_not=("compute", "network"),
                must_say=(r"implausible|cache|L2",),
                note=f"{mib} MiB in all at {rate / 1e12} TB/s: no share above 1 without a word",
            )
        )
    return out


def _clock() -> list[Case]:
    """A throttled clock: every kernel takes 1.5 times as long."""
    out = []
    for m, share in ((H100, 0.78), (A100, 0.75)):
        works = [gemm(m, share / 1.5, 4096, 4096, 4096), gemm(m, share / 1.5, 8192, 4096, 4096)]
        out.append(
            recipe_case(
                f"decoy/throttled-{m.slug}",
                m,
                "compute",
                Recipe(compute=works, compute_s=20e-3),
                must_not=("memory", "host", "latency"),
                note="half of the peak, because the clock is low: still compute",
            )
        )
    return out


def _shapeless() -> list[Case]:
    """No shapes, so no bytes and no FLOP: nobody can say compute or memory."""
    out = []
    for form in ("kineto", "nsys"):
        recipe = Recipe(memory=[pointwise(H100, 0.8, "add", 32 * MIB)], memory_s=15e-3)
        products = Recipe(compute=[gemm(A100, 0.8, 4096, 4096, 4096)], compute_s=15e-3)
        for label, m, chosen in (("elementwise", H100, recipe), ("gemm", A100, products)):
            out.append(
                recipe_case(
                    f"decoy/no-shapes-{label}-{form}",
                    m,
                    "undetermined",
                    chosen,
                    program={"shapes": False},
                    file_format=form,
                    must_not=("memory", "compute"),
                    memory_known=False,
                    headroom=False,
                    shares=False,
                    must_say=(r"shape|bytes|FLOP",),
                )
            )
    slow = Recipe(compute=[gemm(H100, 0.05, 4096, 4096, 4096)], compute_s=15e-3)
    out.append(
        recipe_case(
            "decoy/low-mfu-no-shapes",
            H100,
            "undetermined",
            slow,
            program={"shapes": False},
            must_not=("memory", "compute"),
            memory_known=False,
            headroom=False,
            shares=False,
            note="5 % of the peak, if one knew: low utilisation alone is no memory verdict",
        )
    )
    far = Recipe(compute=[gemm(H100, 0.12, 4096, 4096, 4096)], compute_s=15e-3)
    out.append(
        recipe_case(
            "decoy/far-below-peak",
            H100,
            "undetermined",
            far,
            must_not=("memory", "host", "latency"),
            headroom=False,
            shares=False,
            note="products at 12 % of their ceiling, the device busy, no counters: the cause is not in the file",
        )
    )
    return out


def _scope() -> list[Case]:
    """FLOP of one forward pass over a region of five: marked, counted by its shapes, or told by its rhythm alone."""
    product, pointed = gemm(H100, 0.8, 4096, 4096, 4096), pointwise(H100, 0.8, "gelu", 16 * MIB)
    flop = str(40 * 2 * 4096**3)
    out = []
    for label, form, marks, shapes in (
        ("marked", "kineto", True, True),
        ("by-shapes", "kineto", False, True),
        ("marked-nsys", "nsys", True, False),
    ):

        def build(seed: int, marks: bool = marks, shapes: bool = shapes) -> list[Program]:
            program = Program(H100, seed=seed, marks=marks, shapes=shapes)
            with program.range("forward_all"):
                for _ in range(5):
                    with program.step():
                        program.load(20_000)
                        for _ in range(40):
                            program.launch(product)
                            program.launch(pointed)
                        program.wait()
            return [program]

        options = {"region": "forward_all", "flops": flop}
        out.append(
            Case(
                name=f"decoy/wrong-numerator-{label}",
                build=build,
                truth="five steps",
                verb="mfu",
                file_format=form,
                headroom=False,
                shares=False,
                options=options,
            )
        )
    return out


def _graphs() -> list[Case]:
    """CUDA graphs: opaque in Nsight Systems, without operators in Kineto."""
    graph = Work(
        operator="", kernel="graph", area="compute", least_s=0.0, duration_ns=4_000_000, kind="graph", known=False
    )
    out = []

    def opaque(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                for _ in range(4):
                    program.launch(graph, host_ns=20_000)
                program.wait()
        return [program]

    out.append(
        Case(
            name="decoy/graph-opaque-nsys",
            build=opaque,
            truth="undetermined",
            file_format="nsys",
            memory_known=False,
            headroom=False,
            shares=False,
            must_not=("memory", "compute", "network", "host", "latency"),
            must_say=(r"graph",),
        )
    )

    def replayed(seed: int) -> list[Program]:
        program = Program(H100, seed=seed, shapes=False)
        kernels = [gemm(H100, 0.8, 4096, 4096, 4096), pointwise(H100, 0.8, "add", 16 * MIB)]
        for _ in range(STEPS):
            with program.step():
                first = program.launch(replace(kernels[0], operator="graph", wrappers=()), host_ns=15_000)
                program.calls[-1].name = "cudaGraphLaunch"
                for i in range(60):
                    run = program.launch(kernels[(i + 1) % 2], host_ns=1)
                    program.calls.pop()
                    run.correlation = first.correlation
                program.wait()
        program.spans = [s for s in program.spans if s.category != "cpu_op"]
        for thing in (*program.calls, *program.runs):
            thing.external = 0
        return [program]

    out.append(
        Case(
            name="decoy/graph-replay-kineto",
            build=replayed,
            truth="undetermined",
            memory_known=False,
            headroom=False,
            shares=False,
            must_not=("memory", "compute", "host", "latency"),
        )
    )
    return out


def _ranks() -> list[Case]:
    """A straggler of four ranks, and two devices of one process with different bottlenecks."""

    def job(seed: int) -> list[Program]:
        ranks = [0, 1, 2, 3]
        slow = {0: 1.0, 1: 1.0, 2: 1.5, 3: 1.0}
        product = gemm(H100, 0.8, 4096, 4096, 4096)
        reduce = collective(0.75, "all_reduce", 64 * MIB // 2, ranks, link_bytes_per_s=H100.nvlink_bytes_per_s)
        programs = [Program(H100, seed=seed + r, rank=r, world=4, jitter=0.004) for r in ranks]
        for _ in range(STEPS):
            for p in programs:
                p.mark = p.now  # type: ignore[attr-defined]
            runs = []
            for r, p in enumerate(programs):
                for _ in range(60):
                    p.launch(product, slow=slow[r])
                runs.append(p.launch(reduce, stream=20, alone=True))
            end = max(x.start_ns for x in runs) + reduce.duration_ns
            for p, run in zip(programs, runs, strict=True):
                run.end_ns = end
                p.free = {(0, 7): end, (0, 20): end}
                p.wait()
                p.steps.append((p.mark, p.now))  # type: ignore[attr-defined]
                name = f"ProfilerStep#{len(p.steps) + 9}"
                p.spans.append(_step_span(name, *p.steps[-1]))
        return programs

    def fast(seed: int) -> list[Program]:
        return job(seed)[:1]

    def two(seed: int) -> list[Program]:
        program = Program(H100, seed=seed, devices=2)
        product, stream = gemm(H100, 0.8, 4096, 4096, 4096), pointwise(H100, 0.8, "add", 64 * MIB)
        for _ in range(STEPS):
            with program.step():
                for i in range(90):
                    program.launch(product, device=0)
                    program.launch(stream, device=1)
                    if i % 9 == 0:
                        program.launch(stream, device=1)
                program.wait()
        return [program]

    return [
        Case(name="decoy/straggler-ranks", build=job, truth="rank 2", verb="ranks", headroom=False, shares=False),
        Case(
            name="decoy/straggler-fast-rank",
            build=fast,
            truth="compute",
            options={"node_devices": 4},
            must_not=("memory", "host"),
            note="the fast rank waits in the all-reduce for a third of the step: compute leads",
        ),
        Case(name="decoy/two-devices-first", build=two, truth="compute", options={"device": 0}, must_not=("memory",)),
        Case(name="decoy/two-devices-second", build=two, truth="memory", options={"device": 1}, must_not=("compute",)),
    ]


def _step_span(name: str, start: int, end: int) -> Span:
    return Span(name=name, category="user_annotation", start_ns=start, end_ns=end)


def _others() -> list[Case]:
    """A low microbenchmark, hidden copies, recomputation, warm-up."""

    def hidden(seed: int) -> list[Program]:
        program = Program(H200, seed=seed)
        product, copy = gemm(H200, 0.8, 8192, 4096, 8192), host_copy(H200, 0.2, 24 * MIB, pinned=True)
        for _ in range(STEPS):
            with program.step():
                for i in range(36):
                    run = program.launch(product)
                    if i % 6 == 1:
                        program.launch(copy, stream=14, after=run.start_ns)
                program.wait()
        return [program]

    slow_link = {"ceilings": "low host_to_device"}

    def recompute(seed: int) -> list[Program]:
        program = Program(A100, seed=seed)
        product = gemm(A100, 0.75, 4096, 4096, 4096)
        for _ in range(STEPS):
            with program.step():
                for _ in range(20):  # forward
                    program.launch(product)
                    program.launch(pointwise(A100, 0.8, "gelu", 16 * MIB))
                for _ in range(20):  # backward: the forward of each layer again, then two products
                    program.launch(product)
                    program.launch(pointwise(A100, 0.8, "gelu", 16 * MIB))
                    program.launch(product)
                    program.launch(product)
                program.wait()
        return [program]

    def warm(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        recipe = Recipe(compute=[gemm(H100, 0.8, 4096, 4096, 4096)], compute_s=15e-3)
        for _ in range(2):
            with program.step():
                program.load(150e6)
                for _ in range(200):
                    program.launch(tiny_kernel(H100), host_ns=300_000)
                program.wait()
        return [steps_of(program, recipe, steps=8)]

    def growing(seed: int) -> list[Program]:
        program = Program(H100, seed=seed)
        for _ in range(STEPS):
            with program.step():
                one_step(program, Recipe(memory=[pointwise(H100, 0.8, "add", 64 * MIB)], memory_s=12e-3), slow=1.0)
                program.copy_and_wait(pageable(H100, 1024, 1e8))
        return [program]

    unnamed = replace(H100, product="NVIDIA Graphics Device")
    stream = Recipe(memory=[pointwise(H100, 0.8, "add", 64 * MIB)], memory_s=15e-3)

    def unmarked(seed: int) -> list[Program]:
        program = Program(A100, seed=seed, marks=False)
        return [steps_of(program, Recipe(compute=[gemm(A100, 0.8, 4096, 4096, 4096)], compute_s=15e-3))]

    return [
        recipe_case(
            "decoy/unknown-product",
            unnamed,
            "undetermined",
            stream,
            headroom=False,
            shares=False,
            must_not=("memory", "compute", "host", "latency"),
            note="no product, so no ceiling: no other device's value",
        ),
        Case(
            name="decoy/no-step-marks",
            build=unmarked,
            truth="compute",
            must_not=("memory", "host"),
            headroom=False,
            note="no ranges mark the steps, so that a headroom per step is not defined",
        ),
        Case(name="decoy/hidden-copies", build=hidden, truth="compute", must_not=("host", "memory", "network")),
        Case(
            name="decoy/low-microbenchmark",
            build=hidden,
            truth="compute",
            options=slow_link,
            must_not=("host", "memory", "network"),
            note="the link was measured at a tenth of its rate, and no step waits for it",
        ),
        Case(name="decoy/recompute", build=recompute, truth="compute", must_not=("memory",)),
        Case(name="decoy/warm-up", build=warm, truth="compute", skip=2, must_not=("host", "latency", "memory")),
        Case(name="decoy/tiny-copy", build=growing, truth="memory", must_not=("host", "network")),
        recipe_case(
            "decoy/unfinished-overlap",
            H100,
            "network",
            Recipe(
                compute=[gemm(H100, 0.8, 4096, 4096, 4096)],
                compute_s=6e-3,
                network=[ring(H100, 0.4, "all_gather", 128, EIGHT)],
                network_s=14e-3,
            ),
            program={"world": 8},
            options={"node_devices": 8},
            must_not=("compute", "memory"),
        ),
    ]
