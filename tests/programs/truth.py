"""What is true of the programs in this folder: the bottleneck by construction and the FLOP counted by hand.

Conventions. A multiply-add is 2 FLOP; a product (m x k)(k x n) is 2mnk; FLOP are matrix work only (products, convolutions,
the attention core). Training costs three times the forward product, except where an input needs no gradient: then the
product costs twice. `flop` counts a causal attention core with exactly (s + 1)/2 keys per query and its backward at twice
its forward; `flop_full` counts the full square; `flop_executed` is what the kernel that runs really does, where it differs.

Shares. `phases` says to which area each phase of the program's own clock belongs (`--phases FILE`, written in a run without
any tool). `shares` are shares known without a clock. Areas are those of `time_shares`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One way to start a program, and what must be found."""

    name: str
    framework: str
    folder: Path
    command: tuple[str, ...]  # PROGRAM [ARGS], or -m MODULE [ARGS]
    bounds: tuple[str, ...]  # verdicts that are right; empty where none is known by construction
    flop: float  # per step
    step: str  # what one step is
    steps: int
    group: str = (
        "variant"  # main: the ten; variant: the same in other clothes; real: not written for a profiler; example
    )
    flop_full: float | None = None
    flop_executed: float | None = None
    flop_range: tuple[float, float] | None = None  # where the count changes from step to step
    shares: dict[str, float] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)  # phase -> area
    stdin: bool = False
    why: str = ""


def dense(rows: int, *widths: int) -> int:
    """Return the forward FLOP of a chain of dense layers.

    >>> dense(2, 3, 5, 7)  # 2*2*(3*5 + 5*7)
    200
    """
    return sum(2 * rows * n_in * n_out for n_in, n_out in itertools.pairwise(widths))


def dense_training(rows: int, *widths: int) -> int:
    """Return forward + backward FLOP; the first layer's input is data and needs no gradient."""
    return 3 * dense(rows, *widths) - dense(rows, *widths[:2])


# The two products of large_gemm: (2048 x 1536)(1536 x 1792), then (2048 x 1792)(1792 x 1536).
# 2*2048*1536*1792 = 11,274,289,152 each.
GEMM = dense(2048, 1536, 1792, 1536)
assert GEMM == 2 * 11_274_289_152

# mlp_trainer, batch 1024: forward 2*1024*(768*3072 + 3072*3072 + 3072*256) = 25,769,803,776;
# three times that, less the input gradient of the first layer, 2*1024*768*3072 = 4,831,838,208.
MLP = dense_training(1024, 768, 3072, 3072, 256)
assert MLP == 3 * 25_769_803_776 - 4_831_838_208 == 72_477_573_120

# slow_loader, batch 128: 784 -> 512 -> 10. Forward 2*128*(784*512 + 512*10) = 104,071,168;
# three times that, less 2*128*784*512 = 102,760,448.
LOADER = dense_training(128, 784, 512, 10)
assert LOADER == 3 * 104_071_168 - 102_760_448 == 209_453_056

# tiny_ops: per time step (4 x 16)(16 x 32) + (4 x 32)(32 x 32) = 4,096 + 8,192 FLOP.
CELL_X, CELL_H = dense(4, 16, 32), dense(4, 32, 32)
assert (CELL_X, CELL_H) == (4_096, 8_192)
# Training, T = 800: x is data (twice), h needs a gradient (three times) but for the first h, a constant (twice).
TINY_TRAIN = 800 * 2 * CELL_X + 799 * 3 * CELL_H + 2 * CELL_H
assert TINY_TRAIN == 26_206_208

# mix: two products of n x n matrices; n = 1408 in torch, 1792 in JAX.
MIX_TORCH, MIX_JAX = 2 * dense(1408, 1408, 1408), 2 * dense(1792, 1792, 1792)

LATENCY = ("operators", "latency"), ("interpreter", "host")
LOADING = {
    "load": "host",
    "train": "compute",
}  # the training part is below 5 % of a step, so its own split does not matter
MIXED = {"gemm": "compute", "elementwise": "memory", "host": "host", "latency": "latency"}

WHY_COMPUTE = "All time is in products of 1536 to 2048 rows and columns: about 290 FLOP per byte in float32."
WHY_MEMORY = (
    "Arrays of 96 MiB beside a 32 MiB last-level cache, at most a few FLOP per byte, no transcendental function. The time"
    " per element falls several times when the arrays fit a cache. Results in new memory also pay page faults inside the"
    " operator and, in eager code, unmapping when the array is dropped between two operators (about a fifth of the time"
    " of relu and drop together): both are the cost of memory, both vanish when buffers are reused; neither is Python."
)
WHY_LATENCY = "Operators on 128 elements: the time is the same for 4 and for 128 elements, so it is paid per call."
WHY_HOST = "Parsing and augmenting text in pure Python takes over 90 % of a step; the framework waits."
WHY_MIX = "Four phases one after the other; the program's own clock gives the proportions."


def programs(framework: str) -> list[Truth]:
    """Return the five programs of a framework, then their variants."""
    folder = HERE / framework
    is_torch = framework == "torch"
    chain = {"bounds": ("memory",), "flop": 0, "shares": {"memory": 1.0}, "why": WHY_MEMORY}
    gemm = {"bounds": ("compute",), "shares": {"compute": 1.0}, "why": WHY_COMPUTE, "step": "one inner iteration"}
    tiny = {"bounds": ("latency",), "why": WHY_LATENCY, "phases": dict(LATENCY), "step": "one sequence"}
    loader = {"bounds": ("host",), "flop": LOADER, "why": WHY_HOST, "phases": LOADING, "step": "one batch"}
    length = 800 if is_torch else 400

    def truth(name: str, *command: str, **facts: object) -> Truth:
        return Truth(name=f"{framework}/{name}", framework=framework, folder=folder, command=command, **facts)  # type: ignore[arg-type]

    found = [
        truth("large_gemm", "large_gemm.py", group="main", flop=GEMM, steps=80, **gemm),
        truth(
            "elementwise_chain",
            "elementwise_chain.py",
            group="main",
            steps=50 if is_torch else 60,
            step="one call of chain" if is_torch else "two rounds of smooth and blend",
            **chain,
        ),
        truth(
            "tiny_ops",
            "tiny_ops.py",
            group="main",
            flop=length * (CELL_X + CELL_H),
            steps=800 if is_torch else 300,
            **tiny,
        ),
        truth("slow_loader", "slow_loader.py", group="main", steps=100, **loader),
        truth(
            "mix",
            "mix.py",
            group="main",
            bounds=("compute",),
            flop=MIX_TORCH if is_torch else MIX_JAX,
            steps=60,
            step="one round of the four phases",
            phases=MIXED,
            why=WHY_MIX,
        ),
        truth(
            "large_gemm bf16", "large_gemm.py", "--dtype", "bfloat16", "--batches", "40", flop=GEMM, steps=160, **gemm
        ),
        truth(
            "mlp_trainer",
            "-m",
            "mlp_trainer",
            bounds=("compute",),
            flop=MLP,
            steps=36,
            step="one batch",
            why="Products of 1024 rows; the update of 12.6 million weights is under a tenth of the step.",
        ),
        truth("slow_loader stdin", "slow_loader.py", "--rows", "-", "--steps", "60", stdin=True, steps=60, **loader),
    ]
    return found + (torch_variants(truth, chain, tiny, loader) if is_torch else jax_variants(truth, chain, gemm, tiny))


def torch_variants(truth, chain, tiny, loader) -> list[Truth]:  # type: ignore[no-untyped-def]
    """Return the variants that only the torch programs have."""
    return [
        truth(
            "elementwise_chain in place",
            "elementwise_chain.py",
            "--in-place",
            "--steps",
            "250",
            steps=250,
            step="one call",
            **chain,
        ),
        truth("tiny_ops train", "tiny_ops.py", "--train", "--steps", "150", flop=TINY_TRAIN, steps=150, **tiny),
        truth("slow_loader generator", "slow_loader.py", "--generator", steps=100, **loader),
        truth(
            "mlp_trainer bf16",
            "-m",
            "mlp_trainer",
            "--bf16",
            "--batches",
            "20",
            bounds=("compute",),
            flop=MLP,
            steps=60,
            step="one batch",
            why="The same products under autocast; the casts of weights and gradients are memory traffic.",
        ),
    ]


def jax_variants(truth, chain, gemm, tiny) -> list[Truth]:  # type: ignore[no-untyped-def]
    """Return the variants that only the JAX programs have."""
    return [
        truth(
            "elementwise_chain donated",
            "elementwise_chain.py",
            "--donate",
            "--steps",
            "200",
            steps=200,
            step="two rounds",
            **chain,
        ),
        truth(
            "elementwise_chain eager",
            "elementwise_chain.py",
            "--eager",
            "--elements",
            "12582912",
            "--steps",
            "30",
            steps=30,
            step="two rounds",
            **chain,
        ),
        # The compiled loop runs the two products 4 times; a counter that ignores the trip count is 4 times too low.
        truth("large_gemm loop", "large_gemm.py", "--rounds", "4", "--batches", "10", flop=4 * GEMM, steps=40, **gemm),
        truth(
            "tiny_ops scan",
            "tiny_ops.py",
            "--scan",
            "--length",
            "2000",
            flop=2000 * (CELL_X + CELL_H),
            steps=300,
            **tiny,
        ),
    ]


def attention(batch: int, queries: int, keys: float, width: int) -> float:
    """Return the forward FLOP of an attention core: QK^T and PV, 2 * queries * keys * width each."""
    return 4 * batch * queries * keys * width


def gpt2() -> list[Truth]:
    """Return GPT-2: width 384, 4 layers, 6 heads, 8192 tokens, batch 4 x 256 = 1024 rows.

    Forward, per layer: qkv 384x1152, out 384x384, up 384x1536, down 1536x384 = 12*384^2 = 1,769,472 weights,
    so 2*1024*1,769,472 = 3,623,878,656; head 2*1024*384*8192 = 6,442,450,944 (tied to the embedding; every position).
    Every product needs both gradients (the embedding below the first layer is trained), so training is exactly 3x.
    Core, per layer: full 4*4*256*256*384 = 402,653,184; causal * 257/512. As executed: the CPU flash kernel recomputes QK^T in
    its backward (5 products against 2: 3.5x the forward, where the model says 3x). With dropout the math path runs full
    squares as bmm, 3x.
    """
    layers, rows, width, vocabulary = 4, 1024, 384, 8192
    linear = 3 * (layers * dense(rows, width, 1) * 12 * width + dense(rows, width, vocabulary))
    full = layers * attention(4, 256, 256, width)
    causal = layers * attention(4, 256, 257 / 2, width)
    facts = {
        "framework": "torch",
        "folder": HERE / "real",
        "bounds": (),
        "group": "real",
        "flop": linear + 3 * causal,
        "flop_full": linear + 3 * full,
        "step": "forward, backward, AdamW",
    }
    return [
        Truth(name="real/gpt2", command=("gpt2_train.py",), steps=36, flop_executed=linear + 3.5 * full, **facts),  # type: ignore[arg-type]
        Truth(
            name="real/gpt2 dropout",
            command=("gpt2_train.py", "--dropout", "0.1", "--steps", "30"),
            steps=30,
            flop_executed=linear + 3 * full,
            **facts,  # type: ignore[arg-type]
        ),
    ]


def mixtral() -> list[Truth]:
    """Return Mixtral: width 256, 4 layers, 8 heads of 32, 2 key-value heads, 2 of 8 experts of width 512, 4096 tokens.

    Weights met by one token, per layer: q and o 256x256 each, k and v 256x64 each = 163,840; router 256x8 = 2,048;
    two experts of 3*256*512 = 393,216 each. Head 256x4096 = 1,048,576. No token is dropped, so experts see exactly 2 rows per
    token whatever the routing; a grouped product costs the sum over its groups.
    Training, 4 x 128 = 512 rows: everything 3x. Core per layer: 4*4*128*keys*256, keys = 129/2 causal, 128 full.
    generate(): one step is one new token for 4 sequences at context c: 4 rows, head on the last position only, core
    4*4*1*c*256 per layer. The prompt has 128 tokens and gives the first new token; 400 tokens mean decode steps
    c = 129 ... 527 (399 of them), mean 328.
    """
    layers, width = 4, 256
    weights = layers * (163_840 + 2_048 + 2 * 393_216) + 1_048_576
    rows = 512
    full, causal = (layers * attention(4, 128, keys, width) for keys in (128, 129 / 2))
    linear = 3 * 2 * rows * weights
    facts = {"framework": "torch", "folder": HERE / "real", "bounds": (), "group": "real"}
    train = {"flop": linear + 3 * causal, "flop_full": linear + 3 * full, "step": "forward, backward, AdamW"}

    def decode(context: float) -> float:
        return 2 * 4 * weights + layers * attention(4, 1, context, width)

    return [
        Truth(
            name="real/mixtral train",
            command=("mixtral.py", "train"),
            steps=40,
            flop_executed=linear + 3.5 * full,
            **train,  # type: ignore[arg-type]
            **facts,  # type: ignore[arg-type]
        ),
        Truth(
            name="real/mixtral eager experts",
            command=("mixtral.py", "train", "--experts-implementation", "eager", "--steps", "30"),
            steps=30,
            flop_executed=linear + 3.5 * full,
            **train,  # type: ignore[arg-type]
            **facts,  # type: ignore[arg-type]
        ),
        Truth(
            name="real/mixtral generate",
            command=("mixtral.py", "generate"),
            steps=399,
            flop=decode(328),
            flop_range=(decode(129), decode(527)),
            step="one new token for each of 4 sequences, key-value cache",
            **facts,  # type: ignore[arg-type]
        ),
    ]


def jax_real() -> list[Truth]:
    """Return the Flax and the Equinox example.

    Flax CNN, batch 128: conv1 3x3, 1 -> 32 on 28x28; conv2 3x3, 32 -> 64 on 14x14; 3136 -> 256 -> 10. Convolutions as
    2 * out positions * out channels * in channels * 9, padded positions counted (as torch and papers do; XLA's cost
    analysis leaves out products with padding: (82/84)^2 of conv1, (40/42)^2 of conv2). The image needs no gradient, so conv1 is 2x, the rest 3x.

    Equinox GRU, batch 64, 64 time steps, hidden 128: per time step and row 2*3*128*2 for the input (data: 2x) and
    2*3*128*128 for the state (3x; a reverse scan also computes the gradient of the first, constant state). Read-out 2*128, 3x.
    """
    batch = 128
    conv1, conv2 = 2 * batch * 28 * 28 * 32 * 1 * 9, 2 * batch * 14 * 14 * 64 * 32 * 9
    cnn = 2 * conv1 + 3 * (conv2 + dense(batch, 3136, 256, 10))
    unpadded = 2 * conv1 * (82 / 84) ** 2 + 3 * (conv2 * (40 / 42) ** 2 + dense(batch, 3136, 256, 10))
    gru = 64 * (2 * dense(64, 2, 3 * 128) + 3 * dense(64, 128, 3 * 128)) + 3 * dense(64, 128, 1)
    facts = {"framework": "jax", "folder": HERE / "real", "bounds": (), "group": "real"}
    return [
        Truth(
            name="real/flax_cnn",
            command=("flax_cnn.py",),
            steps=100,
            flop=cnn,
            flop_executed=unpadded,
            step="train_step",
            **facts,  # type: ignore[arg-type]
        ),
        Truth(name="real/equinox_rnn", command=("equinox_rnn.py",), steps=150, flop=gru, step="make_step", **facts),  # type: ignore[arg-type]
    ]


def examples() -> list[Truth]:
    """Return the examples with a FLOP count.

    GPT, both frameworks: width 256, 4 layers, 1024 tokens in the vocabulary, 8 x 256 = 2048 rows; 12*256^2 weights per
    layer and a head of 256x1024, 3x; core per layer 4*8*256*keys*256. Torch runs the flash kernel (3.5x the full square);
    JAX's default attention runs full squares, 3x.
    Decode: width 1024, 12 layers, 16384 tokens: 12*1024^2 weights per layer and the head, one row. Torch attends to the
    tokens so far (1 ... 300), JAX to all 300 places of its cache, masked.
    """
    linear = 3 * (4 * dense(2048, 256, 1) * 12 * 256 + dense(2048, 256, 1024))
    full, causal = (4 * attention(8, 256, keys, 256) for keys in (256, 257 / 2))
    gpt = {"bounds": ("compute",), "flop": linear + 3 * causal, "flop_full": linear + 3 * full, "step": "one batch"}
    weights = 12 * 12 * 1024**2 + 1024 * 16384
    one = 12 * attention(1, 1, 1, 1024)
    decode = {"bounds": ("memory",), "step": "one token", "steps": 300}
    common = {"folder": EXAMPLES, "group": "example"}
    rows = [
        ("torch", "gpt_train_torch.py", {**gpt, "steps": 40, "flop_executed": linear + 3.5 * full}),
        ("jax", "gpt_train_jax.py", {**gpt, "steps": 30, "flop_executed": linear + 3 * full}),
        (
            "torch",
            "decode_torch.py",
            {**decode, "flop": 2 * weights + 150.5 * one, "flop_range": (2 * weights + one, 2 * weights + 300 * one)},
        ),
        (
            "jax",
            "decode_jax.py",
            {**decode, "flop": 2 * weights + 150.5 * one, "flop_executed": 2 * weights + 300 * one},
        ),
    ]
    return [
        Truth(name=f"example/{program[:-3]}", framework=framework, command=(program,), **facts, **common)  # type: ignore[arg-type]
        for framework, program, facts in rows
    ]


def all_truths() -> list[Truth]:
    """Return every program with its truth, the ten main ones first."""
    found = programs("torch") + programs("jax") + gpt2() + mixtral() + jax_real() + examples()
    order = ["main", "variant", "real", "example"]
    return sorted(found, key=lambda truth: order.index(truth.group))


def stdin_rows(count: int = 1024, features: int = 784) -> str:
    """Return rows of text for a program that reads them from standard input."""
    return "\n".join(
        ",".join([str(i % 10)] + [f"{(i * 31 + j * 17) % 1000 / 1000:.3f}" for j in range(features)])
        for i in range(count)
    )
