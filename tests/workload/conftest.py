"""Hand-made models, so that phases are tested without configuration files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mansard.workload.kernel import Types
from mansard.workload.parallel import Plan
from mansard.workload.phases import Setting
from mansard.workload.records import (
    Embedding,
    GqaAttention,
    Layer,
    LayerGroup,
    Linear,
    Mlp,
    Model,
    Moe,
    Norm,
    Stack,
)
from mansard.workload.storage import storage_of


def decoder(
    *, hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, width=14336, vocab=128256, gated=True, experts=0,
    top_k=0, tied=False, qk_norm="none", window=None,
) -> Model:  # fmt: skip
    """A decoder with untied or tied head; with `experts`, every layer is a mixture."""
    attention = GqaAttention(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim, rotary_dim=head_dim,
        qk_norm=qk_norm, window=window,
    )  # fmt: skip
    if experts:
        feed = Moe(hidden=hidden, experts=experts, top_k=top_k, width=width, gated=gated, activation="silu")
    else:
        feed = Mlp(hidden=hidden, width=width, gated=gated, activation="silu")
    layer = Layer(
        blocks=(
            Norm(width=hidden, path="input_layernorm"), attention, Norm(width=hidden, path="post_attention_layernorm"), feed,
        )
    )  # fmt: skip
    return Model(
        name="hand-made", architecture="undeclared", model_type="", source="dict", hidden=hidden, vocab=vocab,
        text=Stack(
            name="text", hidden=hidden, path="model.layers.{}",
            groups=(LayerGroup(layer=layer, indices=tuple(range(layers))),),
            inputs=(Embedding(rows=vocab, width=hidden),), outputs=(Norm(width=hidden),),
        ),
        head=(Linear(out=vocab, into=hidden, path="lm_head", block="head", tied=tied),), tied=tied, dtype="bf16",
    )  # fmt: skip


#: The models of the cases, by name.
MODELS: dict[str, dict[str, object]] = {
    "llama-3.1-8b": {},
    "llama-2-7b": {"kv_heads": 32, "width": 11008, "vocab": 32000},
    "qwen3-0.6b": {
        "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "width": 3072, "vocab": 151936, "qk_norm": "head",
    },
    "mixtral-8x7b": {"vocab": 32000, "experts": 8, "top_k": 2},
    "qwen3-30b-a3b": {
        "hidden": 2048, "layers": 48, "heads": 32, "kv_heads": 4, "width": 768, "vocab": 151936, "experts": 128, "top_k": 8,
        "qk_norm": "head",
    },
    "small": {"hidden": 64, "layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 8, "width": 96, "vocab": 100},
}  # fmt: skip


def _setting(model: Model, plan: Plan | None = None, weights: str | None = None) -> Setting:
    return Setting(
        model=model,
        storage=storage_of(model, dtype="bf16", weights=weights),
        types=Types(activation="bf16", cache="bf16", gradient="bf16"),
        plan=plan or Plan(),
    )


@pytest.fixture(scope="session")
def build() -> Callable[..., Model]:
    """Return a hand-made decoder by name, with changes."""
    return lambda name, **changes: decoder(**{**MODELS[name], **changes})


@pytest.fixture(scope="session")
def setting() -> Callable[..., Setting]:
    """Return the setting of a model under a plan, everything in bf16."""
    return _setting
