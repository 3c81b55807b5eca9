"""Training FLOP per token under the conventions that public tools use, and which one a published report used.

A number without its convention is not a number. Divide the TFLOP/s that a report states by its tokens per second: the
closed forms below differ in the first digits, so the quotient says which was used, and one count converts to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.workload.batch import training_batch
from mansard.workload.counts import count_params
from mansard.workload.kernel import Types
from mansard.workload.phases import Phase, Setting, train
from mansard.workload.records import Mlp, Model, Moe
from mansard.workload.storage import storage_of

#: What each convention counts; the first is ours.
MEANING: dict[str, str] = {
    "causal": "exact keys that the mask shows, (s+1)/2 per query when causal; windows and chunks as they are",
    "full": "every query against every key, masks and windows ignored",
    "causal_mtp": "causal, with multi-token-prediction layers and their heads",
    "full_mtp": "full, with multi-token-prediction layers and their heads",
    "6N_matmul": "6 x matrix parameters that a token uses, no attention core",
    "6N_active": "6 x all parameters that a token uses, embedding table included, no attention core",
    "6N_total": "6 x all parameters, no attention core",
    "6N_total+full": "6 x all parameters + full attention, as PaLM, nanoGPT and llm-foundry count",
    "two_matrix_mlp": "a gated MLP counted as two matrices, windows ignored, halved, no routers (Megatron-Bridge 25.11 to 26.04.01)",
}
_RECOMPUTED = "with_recompute"
MEANING |= {
    f"causal_{_RECOMPUTED}": "causal x 4/3: one whole recomputed forward (an HFU numerator)",
    f"full_{_RECOMPUTED}": "full x 4/3: one whole recomputed forward, as Narayanan 2021 counts (an HFU numerator)",
}

#: A reported quotient this near to a closed form is that form; logs round to about this.
TOLERANCE_RATIO = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionTable:
    """Training FLOP per token of one model at one sequence length.

    Args:
        model: Its name.
        seq: Tokens per sequence.
        flop_per_token: By convention [FLOP/token]; see `MEANING`.
    """

    model: str
    seq: int
    flop_per_token: dict[str, float]

    def convert(self, value: float, *, source: str, target: str) -> float:
        """Return a rate or ratio that was counted as `source`, counted as `target`.

        Args:
            value: TFLOP/s, MFU, or anything proportional to the FLOP count.
            source, target: Names of conventions.

        Raises:
            UsageError: a convention that this model does not have.
        """
        for name in (source, target):
            if name not in self.flop_per_token:
                raise UsageError(
                    f"no convention {name!r} for {self.model}", hint=f"one of {', '.join(self.flop_per_token)}"
                )
        return value * self.flop_per_token[target] / self.flop_per_token[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Which convention a report used.

    Args:
        flop_per_token: What the report implies [FLOP/token].
        convention: The one that explains it; `Unknown` where none or several do.
        candidates: Conventions and their relative difference from the report, the nearest first.
    """

    flop_per_token: float
    convention: str | Unknown
    candidates: tuple[tuple[str, float], ...]


def convention_table(model: Model, *, seq: int, dtype: str = "bf16") -> ConventionTable:
    """Return the training FLOP per token of a model under every convention.

    Args:
        model: The model.
        seq: Tokens per sequence.
        dtype: Any element type; FLOP do not depend on it.
    """
    setting = Setting(
        model=model, storage=storage_of(model, dtype=dtype, weights=dtype), types=Types(activation=dtype, cache=dtype)
    )
    batch = training_batch(sequences=1, seq=seq)
    main = train(setting, batch)
    params = count_params(model)
    core_full = _core(main) / seq
    full, causal = float(main.full_flop) / seq, float(main.model_flop) / seq
    table = {
        "causal": causal,
        "full": full,
        "6N_matmul": 6.0 * params.matmul_active,
        "6N_active": 6.0 * params.active,
        "6N_total": 6.0 * params.total,
        "6N_total+full": 6.0 * params.total + core_full,
        f"causal_{_RECOMPUTED}": causal * 4.0 / 3.0,
        f"full_{_RECOMPUTED}": full * 4.0 / 3.0,
    }
    gated = _third_matrices(model)
    if gated:
        table["two_matrix_mlp"] = full - core_full / 2.0 - 6.0 * (gated + _routers(model))
    if model.mtp is not None:
        deeper = train(setting, batch, mtp=True)
        table["causal_mtp"] = float(deeper.model_flop) / seq
        table["full_mtp"] = float(deeper.full_flop) / seq
    return ConventionTable(model=model.name, seq=seq, flop_per_token=table)


def _core(phase: Phase) -> float:
    """Full-square FLOP of attention cores in a training step."""
    return float(sum(k.full_flop * k.count for k in phase.kernels if k.kind == "attention" and k.area == "attention"))


def _third_matrices(model: Model) -> int:
    """Parameters per token of the third matrix of gated feed-forward blocks and experts."""
    total = 0
    for group in model.text.groups:
        for block in group.layer.blocks:
            if isinstance(block, Mlp) and block.gated:
                total += block.hidden * block.width * group.count
            elif isinstance(block, Moe) and block.gated:
                total += block.expert_hidden * block.width * block.top_k * group.count
                total += block.hidden * block.shared_width * group.count if block.shared_gated else 0
    return total


def _routers(model: Model) -> int:
    """Matrix parameters of routers."""
    weights = ((w, g.count) for g in model.text.groups for w in g.layer.weights())
    return sum(w.elements * count for w, count in weights if w.block == "router" and w.role == "matmul")


def detect(table: ConventionTable, *, flop_per_s: float, tokens_per_s: float) -> Detection:
    """Return which convention a report of FLOP/s and tokens per second used.

    Args:
        table: The candidates, see `convention_table`.
        flop_per_s: Reported rate, of one device or of all [FLOP/s].
        tokens_per_s: Tokens per second of the same devices [token/s].

    Raises:
        UsageError: a rate that is not positive.
    """
    for name, value in (("flop_per_s", flop_per_s), ("tokens_per_s", tokens_per_s)):
        if not 0.0 < value < float("inf"):
            raise UsageError(f"{name} is {value}, expected a positive number")
    implied = flop_per_s / tokens_per_s
    ranked = sorted(
        ((name, implied / flop - 1.0) for name, flop in table.flop_per_token.items()), key=lambda item: abs(item[1])
    )
    near = [name for name, error in ranked if abs(error) <= TOLERANCE_RATIO]
    if not near:
        answer: str | Unknown = Unknown(
            f"{implied / 1e9:.2f} GFLOP per token is none of the known counts of {table.model} at {table.seq} tokens; "
            f"the nearest is {ranked[0][0]} at {ranked[0][1]:+.1%}",
            ("the sequence length, and what else was counted",),
        )
    elif len(near) > 1 and abs(ranked[1][1]) < 2.0 * abs(ranked[0][1]) + 1e-4:
        answer = Unknown(f"{' and '.join(near)} are too close to tell apart here", ("a longer sequence",))
    else:
        answer = near[0]
    return Detection(flop_per_token=implied, convention=answer, candidates=tuple(ranked))
