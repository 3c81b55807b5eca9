"""FLOP of one operation or one block from its dimensions alone, as exact integers with the formula.

This is the form people type when they have no model at hand: an operation, a hidden size, a sequence length. It takes
the names of the `theoretical_flops` skill of nsys-ai and gives the same results; what a real model has beyond that
(grouped-query heads, a gated MLP, a causal mask, an output head) is asked for by name and never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.core.errors import UsageError

#: Operations that have a hidden size and a sequence length, and the parts each is made of.
PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "qkv_proj": ("qkv_proj",),
    "output_proj": ("output_proj",),
    "mlp": ("mlp",),
    "full_layer": ("attention", "qkv_proj", "output_proj", "mlp"),
    "full_model": ("attention", "qkv_proj", "output_proj", "mlp"),
}
OPERATIONS = (*PARTS, "linear")

#: Larger dimensions than this are typing errors.
LARGEST = 10**12

#: What the work is multiplied by, and what the product is called.
MULTIPLIERS = {
    1: "forward",
    3: "forward and backward (model FLOP, the numerator of MFU)",
    4: "forward, backward and one whole recomputed forward (executed FLOP, the numerator of HFU, not of MFU); partial "
    "checkpointing recomputes less than a whole forward",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFlop:
    """The FLOP of an operation, with what they are made of.

    Args:
        operation: The operation.
        flop: All of it [FLOP], exact.
        parts: FLOP of each part in one layer, one sequence, forward [FLOP], exact.
        times: What the sum of the parts is multiplied by: layers, batch, multiplier.
        formula: The formula in symbols and in numbers.
        convention: `full` or `causal`: which keys a query is counted against; None where there is no attention.
        other_convention_flop: The same work under the other convention [FLOP]; None where there is no attention.
        numerator: What the multiplier makes of the figure.
        assumed: What was not given and how it was taken.
    """

    operation: str
    flop: int
    parts: Mapping[str, int]
    times: Mapping[str, int]
    formula: str
    convention: str | None
    other_convention_flop: int | None
    numerator: str
    assumed: tuple[str, ...] = ()


def operation_flop(
    operation: str,
    *,
    hidden_dim: int | None = None,
    seq_len: int | None = None,
    num_layers: int = 1,
    ffn_dim: int | None = None,
    batch_size: int = 1,
    multiplier: int = 1,
    M: int | None = None,
    N: int | None = None,
    K: int | None = None,
    causal: bool = False,
    gated: bool = False,
    heads: int | None = None,
    kv_heads: int | None = None,
    vocab: int | None = None,
) -> OperationFlop:
    """Return the FLOP of an operation from its dimensions.

    Args:
        operation: `attention`, `qkv_proj`, `output_proj`, `mlp`, `full_layer`, `full_model` or `linear`.
        hidden_dim: Hidden size h; every operation but `linear` needs it.
        seq_len: Tokens per sequence s; every operation but `linear` needs it.
        num_layers: Layers.
        ffn_dim: Feed-forward width f; 4 h where it is not given.
        batch_size: Sequences.
        multiplier: 1 forward, 3 with backward, 4 with full recomputation.
        M, N, K: Dimensions of `linear`.
        causal: Count the keys that a causal mask shows, (s+1)/2 per query, instead of all s.
        gated: The MLP has three matrices (SwiGLU, GeGLU) and not two.
        heads, kv_heads: With both, K and V are `kv_heads / heads` as wide as Q (grouped-query attention).
        vocab: With `full_model`, the output head of this many rows is counted once.

    Returns:
        Attention 4 s^2 h, query, key and value 6 s h^2, output 2 s h^2, MLP 4 s h f, linear 2 M N K; a MAC is 2 FLOP.

    Raises:
        UsageError: an unknown operation, a multiplier that is not 1, 3 or 4, a dimension that is missing, not positive or
            has no meaning for the operation.

    Source: Narayanan et al., arXiv:2104.04473, appendix (24 B s h^2 + 4 B s^2 h per layer).

    4 * 8192^2 * 4096 and 2 * 8944 * 2816 * 1024:

    >>> operation_flop("attention", hidden_dim=4096, seq_len=8192).flop
    1099511627776
    >>> operation_flop("linear", M=8944, N=2816, K=1024).flop
    51581550592
    """
    if operation not in OPERATIONS:
        raise UsageError(
            f"unknown operation {operation!r}", hint=f"one of {', '.join(OPERATIONS)}", code="unknown_operation"
        )
    if multiplier not in MULTIPLIERS:
        raise UsageError(
            f"multiplier {multiplier} has no meaning, expected 1, 3 or 4",
            hint="; ".join(f"{n}: {text.split(';')[0]}" for n, text in MULTIPLIERS.items()),
        )
    given = {
        "hidden_dim": hidden_dim, "seq_len": seq_len, "num_layers": num_layers, "ffn_dim": ffn_dim,
        "batch_size": batch_size, "M": M, "N": N, "K": K, "heads": heads, "kv_heads": kv_heads, "vocab": vocab,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UsageError(f"{name} is {value}, expected a positive number", code="not_positive")
        if value is not None and value > LARGEST:
            raise UsageError(f"{name} is larger than {LARGEST:,}, which no dimension is")
    if operation == "linear":
        return _linear(given, multiplier, (causal, gated))
    stray = [name for name in ("M", "N", "K") if given[name] is not None]
    if stray:
        raise UsageError(f"{operation} has no dimension {stray[0]}", hint="M, N and K belong to the operation linear")
    h, s = _needed(operation, "hidden_dim", hidden_dim), _needed(operation, "seq_len", seq_len)
    return _block(operation, h, s, given, multiplier, causal=causal, gated=gated)


def _needed(operation: str, name: str, value: int | None) -> int:
    if value is None:
        raise UsageError(f"{operation} needs {name}, which was not given", hint=f"add --{name.replace('_', '-')}")
    return value


def _linear(given: Mapping[str, int | None], multiplier: int, flags: tuple[bool, bool]) -> OperationFlop:
    """FLOP of one matrix product."""
    stray = [n for n in ("hidden_dim", "seq_len", "ffn_dim", "heads", "kv_heads", "vocab") if given[n] is not None]
    stray += [n for n, on in zip(("causal", "gated"), flags, strict=True) if on]
    stray += ["num_layers"] if given["num_layers"] != 1 else []
    if stray:
        raise UsageError(f"linear has no {stray[0]}", hint="linear takes M, N, K, batch_size and multiplier")
    m, n, k = (_needed("linear", name, given[name]) for name in ("M", "N", "K"))
    batch = given["batch_size"] or 1
    one = 2 * m * n * k
    return OperationFlop(
        operation="linear",
        flop=one * batch * multiplier,
        parts={"linear": one},
        times={"batch": batch, "multiplier": multiplier},
        formula=f"2 M N K x batch x multiplier = 2 x {m} x {n} x {k} x {batch} x {multiplier}",
        convention=None,
        other_convention_flop=None,
        numerator=MULTIPLIERS[multiplier],
    )


def _block(
    operation: str, h: int, s: int, given: Mapping[str, int | None], multiplier: int, *, causal: bool, gated: bool
) -> OperationFlop:
    """FLOP of the parts of a transformer layer."""
    wanted = PARTS[operation]
    assumed: list[str] = []
    ffn = given["ffn_dim"]
    if "mlp" in wanted and ffn is None:
        assumed.append(f"ffn_dim = 4 hidden_dim = {4 * h}")
    f = 4 * h if ffn is None else ffn
    _check_stray(operation, given, causal=causal, gated=gated)
    kv_width = _kv_width(h, given["heads"], given["kv_heads"])
    matrices = 3 if gated else 2
    full, half = 4 * s * s * h, 2 * s * (s + 1) * h
    every = {
        "attention": half if causal else full,
        "qkv_proj": 2 * s * h * (h + 2 * kv_width),
        "output_proj": 2 * s * h * h,
        "mlp": 2 * matrices * s * h * f,
    }
    parts = {name: every[name] for name in wanted}
    layers, batch, vocab = given["num_layers"] or 1, given["batch_size"] or 1, given["vocab"]
    head = 2 * s * h * vocab if vocab is not None else 0

    def whole(attention: int) -> int:
        layer = sum(attention if name == "attention" else flop for name, flop in parts.items())
        return (layer * layers + head) * batch * multiplier

    symbols = {
        "attention": "2 s (s+1) h" if causal else "4 s^2 h",
        "qkv_proj": "6 s h^2" if kv_width == h else "2 s h (h + 2 h kv_heads/heads)",
        "output_proj": "2 s h^2",
        "mlp": f"{2 * matrices} s h f",
    }
    text = " + ".join(symbols[name] for name in wanted)
    formula = f"({text}) x layers" + (" + 2 s h vocab" if head else "")
    numbers = f"h = {h}, s = {s}" + (f", f = {f}" if "mlp" in wanted else "") + (f", vocab = {vocab}" if vocab else "")
    shown = dict(parts) | ({"output_head_once": head} if head else {})
    has_attention = "attention" in wanted
    return OperationFlop(
        operation=operation,
        flop=whole(every["attention"]),
        parts=shown,
        times={"layers": layers, "batch": batch, "multiplier": multiplier},
        formula=f"({formula}) x batch x multiplier with {numbers}, layers = {layers}, batch = {batch}, multiplier = {multiplier}",
        convention=("causal" if causal else "full") if has_attention else None,
        other_convention_flop=whole(full if causal else half) if has_attention else None,
        numerator=MULTIPLIERS[multiplier],
        assumed=tuple(assumed),
    )


def _kv_width(h: int, heads: int | None, kv_heads: int | None) -> int:
    """Width of K and of V."""
    if (heads is None) != (kv_heads is None):
        raise UsageError("heads and kv_heads belong together", hint="give both, or neither for multi-head attention")
    if heads is None or kv_heads is None:
        return h
    if heads % kv_heads:
        raise UsageError(f"{heads} heads cannot share {kv_heads} kv_heads: not a multiple")
    if h * kv_heads % heads:
        raise UsageError(f"hidden_dim {h} is not a multiple of {heads} heads")
    return h * kv_heads // heads


def _check_stray(operation: str, given: Mapping[str, int | None], *, causal: bool, gated: bool) -> None:
    """Refuse what has no meaning for the operation; nothing is dropped in silence."""
    wanted = PARTS[operation]
    if causal and "attention" not in wanted:
        raise UsageError(f"{operation} has no attention core, so --causal has no meaning")
    if (gated or given["ffn_dim"] is not None) and "mlp" not in wanted:
        raise UsageError(f"{operation} has no MLP, so ffn_dim and gated have no meaning")
    if given["heads"] is not None and "qkv_proj" not in wanted:
        raise UsageError(f"{operation} has no K and V projection, so heads and kv_heads have no meaning")
    if given["vocab"] is not None and operation != "full_model":
        raise UsageError(f"{operation} has no output head", hint="vocab belongs to full_model")
