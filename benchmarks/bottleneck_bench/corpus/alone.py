"""Each class alone, and pairs at known shares."""

from __future__ import annotations

from corpus.cases import Case, Recipe, pageable, recipe_case
from corpus.machines import A100, H100, H200, Machine
from corpus.program import Program
from corpus.work import F32, Work, bmm, collective, device_copy, flash, gemm, layer_norm, pointwise, softmax

EIGHT = list(range(8))
MIB = 2**20
INTER = {"network_rate": "400 Gbit/s", "node_devices": 8}
NIC = 50e9  # 400 Gbit/s


def ring(m: Machine, share: float, op: str, mib: int, ranks: list[int] | None = None) -> Work:
    """A collective inside one node, S in MiB."""
    n = ranks or EIGHT
    elements = mib * MIB // 2 // len(n) * len(n)
    return collective(share, op, elements, n, link_bytes_per_s=m.nvlink_bytes_per_s)


def rails(share: float, op: str, mib: int, nodes: int) -> Work:
    """A collective over one device of each node: every hop goes through that device's own adapter."""
    ranks = [8 * i for i in range(nodes)]
    return collective(share, op, mib * MIB // 2 // nodes * nodes, ranks, link_bytes_per_s=NIC)


def compute_cases() -> list[Case]:
    """Large products at 60 to 90 % of the tensor-core peak."""
    cells: list[tuple[str, Machine, list[Work]]] = [
        ("h100-mm-4096-90", H100, [gemm(H100, 0.9, 4096, 4096, 4096)]),
        ("h100-mm-8192-80", H100, [gemm(H100, 0.8, 8192, 8192, 8192)]),
        (
            "h200-linear-70",
            H200,
            [gemm(H200, 0.7, 8192, 4096, 4096, op="addmm"), gemm(H200, 0.7, 8192, 4096, 16384, op="addmm")],
        ),
        ("a100-mm-75", A100, [gemm(A100, 0.75, 4096, 4096, 4096), gemm(A100, 0.75, 4096, 4096, 11008)]),
        ("a100-bmm-72", A100, [bmm(A100, 0.72, 16, 2048, 2048, 2048)]),
        ("h100-tf32-70", H100, [gemm(H100, 0.7, 4096, 4096, 4096, tf32=True)]),
        ("a100-f16-78", A100, [gemm(A100, 0.78, 4096, 4096, 4096, half=True)]),
        ("h100-flash-60", H100, [flash(H100, 0.6, 4, 16, 4096, 128)]),
    ]
    return [
        recipe_case(
            f"compute/{name}", m, "compute", Recipe(compute=works, compute_s=20e-3), must_not=("memory", "host")
        )
        for name, m, works in cells
    ]


def memory_cases() -> list[Case]:
    """Streams of memory-bound kernels at 60 to 92 % of HBM."""
    big = 64 * MIB
    cells: list[tuple[str, Machine, list[Work]]] = [
        ("h100-add-90", H100, [pointwise(H100, 0.90, "add", big)]),
        ("h100-add-60", H100, [pointwise(H100, 0.60, "add", big)]),
        ("h200-mul-f32-75", H200, [pointwise(H200, 0.75, "mul", big, dtype=F32)]),
        ("a100-silu-85", A100, [pointwise(A100, 0.85, "silu", big)]),
        ("h100-copy-88", H100, [pointwise(H100, 0.88, "copy_", big)]),
        ("h100-layernorm-70", H100, [layer_norm(H100, 0.70, 32768, 4096)]),
        ("a100-softmax-80", A100, [softmax(A100, 0.80, 65536, 2048)]),
        ("h200-dtod-92", H200, [device_copy(H200, 0.92, 256 * MIB)]),
        ("h100-decode-gemm-72", H100, [gemm(H100, 0.72, 8, 4096, 14336), gemm(H100, 0.72, 8, 14336, 4096)]),
        (
            "a100-blend-76",
            A100,
            [pointwise(A100, 0.8, "add", big), layer_norm(A100, 0.7, 32768, 4096), pointwise(A100, 0.78, "gelu", big)],
        ),
    ]
    return [
        recipe_case(f"memory/{name}", m, "memory", Recipe(memory=works, memory_s=15e-3), must_not=("compute", "host"))
        for name, m, works in cells
    ]


def network_cases() -> list[Case]:
    """Collectives that nothing overlaps: within a node, then between nodes."""
    four = [0, 1, 2, 3]
    intra: list[tuple[str, Machine, list[Work], int]] = [
        ("h100-allreduce-80", H100, [ring(H100, 0.8, "all_reduce", 512)], 8),
        ("h100-allreduce-50", H100, [ring(H100, 0.5, "all_reduce", 64)], 8),
        ("h200-allgather-75", H200, [ring(H200, 0.75, "all_gather", 512)], 8),
        ("a100-reducescatter-70", A100, [ring(A100, 0.7, "reduce_scatter", 512)], 8),
        ("a100-allreduce-4-65", A100, [ring(A100, 0.65, "all_reduce", 256, four)], 4),
        ("h100-fsdp-72", H100, [ring(H100, 0.72, "all_gather", 256), ring(H100, 0.72, "reduce_scatter", 256)], 8),
    ]
    out = [
        recipe_case(
            f"network-intra/{name}",
            m,
            "network",
            Recipe(network=works, network_s=15e-3),
            program={"world": world},
            options={"node_devices": 8},
            must_not=("compute", "memory", "host"),
        )
        for name, m, works, world in intra
    ]
    inter: list[tuple[str, Machine, list[Work], int]] = [
        ("h100-allreduce-4n-80", H100, [rails(0.8, "all_reduce", 128, 4)], 32),
        ("h200-allgather-8n-60", H200, [rails(0.6, "all_gather", 256, 8)], 64),
        ("a100-reducescatter-2n-70", A100, [rails(0.7, "reduce_scatter", 256, 2)], 16),
    ]
    out += [
        recipe_case(
            f"network-inter/{name}",
            m,
            "network",
            Recipe(network=works, network_s=30e-3),
            program={"world": world},
            options=INTER,
            must_not=("compute", "memory", "host"),
        )
        for name, m, works, world in inter
    ]
    sixteen = collective(0.6, "all_reduce", 512 * MIB // 2, list(range(16)), link_bytes_per_s=8 * NIC)
    out.append(
        recipe_case(
            "network-inter/h100-allreduce-2x8",
            H100,
            "network",
            Recipe(network=[sixteen], network_s=30e-3),
            program={"world": 16},
            options=INTER,
            must_not=("compute", "memory", "host"),
            headroom=False,
            note="whole nodes: the least time depends on how it crosses them, so the headroom is not compared",
        )
    )
    return out


def host_cases() -> list[Case]:
    """The device waits: for input, for a read-back, for Python, for a copy from pageable memory."""
    out = []
    for m, load, work, form in (
        (H100, 18e-3, 8e-3, "kineto"),
        (A100, 30e-3, 6e-3, "kineto"),
        (H200, 12e-3, 8e-3, "kineto"),
        (H100, 20e-3, 9e-3, "nsys"),
    ):
        recipe = Recipe(compute=[gemm(m, 0.8, 4096, 4096, 4096)], compute_s=work, load_s=load)
        out.append(
            recipe_case(
                f"host-input/{m.slug}-{form}-{round(load * 1e3)}ms",
                m,
                "host",
                recipe,
                file_format=form,
                must_say=(r"input|data.?load",),
                must_not=("compute", "memory", "network", "latency"),
                memory_known=form == "kineto",
                shares=form == "kineto",
            )
        )
    for m, piece, form in (
        (H100, 300e-6, "kineto"),
        (A100, 500e-6, "kineto"),
        (H200, 250e-6, "kineto"),
        (H100, 400e-6, "nsys"),
    ):
        recipe = Recipe(
            memory=[pointwise(m, 0.8, "add", 32 * 2**20)], memory_s=5e-3, think_s=12e-3, think_piece_s=piece
        )
        out.append(
            recipe_case(
                f"host-sync/{m.slug}-{form}-{round(piece * 1e6)}us",
                m,
                "host",
                recipe,
                file_format=form,
                must_say=(r"synchron|read.?back|item",),
                must_not=("compute", "memory", "network"),
                memory_known=form == "kineto",
                shares=form == "kineto",
            )
        )
    for m, pause, stacks, form in (
        (H100, 90e-6, True, "kineto"),
        (A100, 120e-6, False, "kineto"),
        (H200, 60e-6, True, "kineto"),
        (H100, 100e-6, False, "nsys"),
    ):
        out.append(_python_case(m, pause, stacks, form))
    for m, mib, rate, form in ((H100, 64, 6e9, "kineto"), (A100, 48, 4e9, "kineto"), (H100, 96, 9e9, "nsys")):
        recipe = Recipe(
            compute=[gemm(m, 0.8, 4096, 4096, 4096)], compute_s=6e-3, copy=pageable(m, mib * MIB, rate), copies=2
        )
        out.append(
            recipe_case(
                f"host-h2d/{m.slug}-{form}-{mib}mib",
                m,
                "host",
                recipe,
                file_format=form,
                must_say=(r"pageable|pinned",),
                must_not=("compute", "memory"),
                memory_known=form == "kineto",
                shares=form == "kineto",
            )
        )
    return out


def _python_case(m: Machine, pause: float, stacks: bool, form: str) -> Case:
    work = pointwise(m, 0.75, "add", 8 * 2**20)

    def build(seed: int) -> list[Program]:
        program = Program(m, seed=seed, stacks=stacks)
        for _ in range(5):
            with program.step():
                for _ in range(120):
                    program.python(pause * 1e9)
                    program.launch(work)
                program.wait()
        return [program]

    return Case(
        name=f"host-python/{m.slug}-{form}-{round(pause * 1e6)}us",
        build=build,
        truth="host",
        file_format=form,
        must_say=(r"python|host|between",),
        must_not=("compute", "memory", "network"),
        memory_known=form == "kineto",
        shares=form == "kineto",
    )


def latency_cases() -> list[Case]:
    """Thousands of kernels of about 2 us whose launch lasts longer than they do."""
    out = []
    for m, elements, host_ns, form in (
        (H100, 4096, 7_000, "kineto"),
        (A100, 16384, 9_000, "kineto"),
        (H200, 1024, 5_500, "kineto"),
        (H100, 4096, 6_500, "nsys"),
        (A100, 4096, 10_000, "nsys"),
    ):
        out.append(_tiny_case(m, elements, host_ns, form))
    return out


def _tiny_case(m: Machine, elements: int, host_ns: int, form: str) -> Case:
    works = [
        pointwise(m, 1.0, op, elements, duration_ns=ns, area="latency")
        for op, ns in (("add", 2_000), ("mul", 1_900), ("silu", 2_100))
    ]

    def build(seed: int) -> list[Program]:
        program = Program(m, seed=seed)
        for _ in range(5):
            with program.step():
                for i in range(400):
                    program.launch(works[i % 3], host_ns=host_ns)
                program.wait()
        return [program]

    return Case(
        name=f"latency/{m.slug}-{form}-{elements}",
        build=build,
        truth="latency",
        file_format=form,
        must_say=(r"launch|small|graph|fus",),
        must_not=("compute", "memory", "network"),
        memory_known=form == "kineto",
        headroom=form == "kineto",
        shares=form == "kineto",
        note=""
        if form == "kineto"
        else "without shapes nobody knows what the kernels themselves need: only the class is compared",
    )


def mixed_cases() -> list[Case]:
    """Two or three areas in one step."""
    m = H100
    products = [gemm(m, 0.78, 4096, 4096, 4096)]
    streams = [pointwise(m, 0.8, "add", 32 * MIB), layer_norm(m, 0.7, 16384, 4096)]
    rings = [ring(m, 0.75, "all_reduce", 128)]
    inter = [rails(0.75, "all_reduce", 32, 4)]
    total = 20e-3

    def share(**shares: float) -> Recipe:
        times = {f"{name}_s": value * total for name, value in shares.items()}
        return Recipe(compute=products, memory=streams, network=rings, **times)

    cells: list[tuple[str, str, Recipe]] = [
        ("compute60-memory40", "compute", share(compute=0.6, memory=0.4)),
        ("compute40-memory60", "memory", share(compute=0.4, memory=0.6)),
        ("compute70-memory30", "compute", share(compute=0.7, memory=0.3)),
        ("compute30-memory70", "memory", share(compute=0.3, memory=0.7)),
        ("compute60-network40", "compute", share(compute=0.6, network=0.4)),
        ("compute40-network60", "network", share(compute=0.4, network=0.6)),
        ("memory70-network30", "memory", share(memory=0.7, network=0.3)),
        ("memory30-network70", "network", share(memory=0.3, network=0.7)),
        ("compute60-input40", "compute", share(compute=0.6, load=0.4)),
        ("compute30-input70", "host", share(compute=0.3, load=0.7)),
        ("memory65-sync35", "memory", share(memory=0.65, think=0.35)),
        ("memory35-sync65", "host", share(memory=0.35, think=0.65)),
        ("memory40-latency60", "latency", share(memory=0.4, tiny=0.6)),
        ("compute65-latency35", "compute", share(compute=0.65, tiny=0.35)),
        ("network35-input65", "host", share(network=0.35, load=0.65)),
        ("compute50-memory30-network20", "compute", share(compute=0.5, memory=0.3, network=0.2)),
        ("compute25-memory25-input50", "host", share(compute=0.25, memory=0.25, load=0.5)),
    ]
    out = [
        recipe_case(
            f"mixed/{name}",
            m,
            truth,
            recipe,
            program={"world": 8} if recipe.network_s else {},
            options={"node_devices": 8} if recipe.network_s else {},
        )
        for name, truth, recipe in cells
    ]
    recipe = Recipe(compute=products, compute_s=0.35 * total, network=inter, network_s=0.65 * total)
    out.append(recipe_case("mixed/compute35-internode65", m, "network", recipe, program={"world": 32}, options=INTER))
    return out
