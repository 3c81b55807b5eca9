"""The plans of a search: every division that a model and a number of devices allow, and why the others are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UsageError
from mansard.workload.records import GqaAttention, MlaAttention, Mlp, Model, Moe

Ints = npt.NDArray[np.int64]
RECOMPUTE = ("none", "selective", "full")
#: Numbers of layers chunks on a stage that are tried.
VIRTUAL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
MICRO = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may vary; None is every value that is possible.

    Args:
        devices: Numbers of devices.
        tp, pp, cp, ep: Ranks. `dp` is what they leave of the devices.
        micro: Sequences of a micro-batch (training).
        virtual: Layer chunks of a pipeline stage, interleaved (training).
        zero: What data ranks shard (training).
        recompute: Policies (training).
        precision: Element types of products: `bf16`, `fp8`, ...
        concurrency: Sequences served at once, of all devices (serving).
        uneven: Layers need not divide over the stages.
    """

    devices: tuple[int, ...]
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    micro: tuple[int, ...] = MICRO
    virtual: tuple[int, ...] = VIRTUAL
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[str, ...] = RECOMPUTE
    precision: tuple[str, ...] = ("bf16",)
    concurrency: tuple[int, ...] = ()
    uneven: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "tp", "pp", "cp", "ep", "micro", "virtual", "concurrency"):
            for value in getattr(self, name) or ():
                if not 1 <= value <= 10**6:
                    raise UsageError(f"{name} is {value}, expected a number from 1 to 1,000,000")
        for zero in self.zero:
            if zero not in (0, 1, 2, 3):
                raise UsageError(f"zero is {zero}, expected 0, 1, 2 or 3")
        for policy in self.recompute:
            if policy not in RECOMPUTE:
                raise UsageError(f"unknown recompute policy {policy!r}", hint=f"one of {', '.join(RECOMPUTE)}")
        for name in ("devices", "micro", "virtual", "zero", "recompute", "precision"):
            if not getattr(self, name):
                raise UsageError(f"no value of {name} was left to try")


@dataclass(slots=True, kw_only=True)
class Refusals:
    """Reasons, each with how many divisions it ruled out."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1) -> None:
        """Count a reason."""
        self.counts[reason] = self.counts.get(reason, 0) + count


def divisors(n: int) -> list[int]:
    """Return the divisors of a number in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def tensor_reasons(model: Model, tp: int) -> list[str]:
    """Return why matrices cannot be divided over `tp` ranks; empty where they can."""
    out = []
    for block in (b for g in model.text.groups for b in g.layer.blocks):
        if isinstance(block, GqaAttention | MlaAttention) and block.heads % tp:
            out.append(f"tp {tp} does not divide {block.heads} query heads")
        if isinstance(block, GqaAttention) and block.kv_heads % tp and tp % block.kv_heads:
            out.append(f"tp {tp} does not divide {block.kv_heads} KV heads and is no multiple of them")
        if isinstance(block, Mlp) and block.width % tp:
            out.append(f"tp {tp} does not divide {block.width:,} feed-forward columns")
        if isinstance(block, Moe) and block.shared_width and block.shared_width % tp:
            out.append(f"tp {tp} does not divide {block.shared_width:,} columns of the shared experts")
    return list(dict.fromkeys(out))


def expert_reasons(model: Model, ep: int, tp: int) -> list[str]:
    """Return why experts cannot be divided over `ep` ranks."""
    blocks = [b for g in model.text.groups for b in g.layer.blocks if isinstance(b, Moe)]
    if ep == 1:
        return [f"tp {tp} does not divide {b.width:,} columns of an expert" for b in blocks[:1] if b.width % tp]
    if not blocks:
        return [f"ep {ep}: {model.name} has no experts"]
    if blocks[0].experts % ep:
        return [f"ep {ep} does not divide {blocks[0].experts} experts"]
    if ep % tp and tp % ep:
        return [f"ep {ep} and tp {tp}: one must be a multiple of the other"]
    if blocks[0].width % max(1, tp // ep):
        return [f"tp {tp} over ep {ep} does not divide {blocks[0].width:,} columns of an expert"]
    return []


@dataclass(frozen=True, slots=True)
class Stages:
    """How many layers the stages of a pipeline hold.

    Args:
        first, middle, last: Layers; with two stages there is no middle one, with one all are in each.
    """

    first: int
    middle: int
    last: int


def stages_of(depth: int, pp: int, chunks: int, *, uneven: bool) -> Stages | str:
    """Return the layers of the stages, or why they cannot be divided.

    Args:
        depth: Layers.
        pp: Stages.
        chunks: Interleaved chunks of each stage.
        uneven: Some stages may have one layer more.

    Layers divide evenly, or evenly with the token table and the head counted as a layer each.

    >>> stages_of(126, 16, 8, uneven=False)
    Stages(first=7, middle=8, last=7)
    >>> stages_of(80, 12, 1, uneven=False)
    '80 layers (or 82 with table and head) do not divide over pp 12'
    """
    over = f"pp {pp}" if chunks == 1 else f"pp {pp} x {chunks} chunks"
    if pp * chunks > depth + 2:
        return f"{depth} layers are fewer than {over}"
    if depth % (pp * chunks) == 0:
        return Stages(depth // pp, depth // pp, depth // pp)
    if pp > 1 and (depth + 2) % (pp * chunks) == 0:
        middle = (depth + 2) // pp
        return Stages(middle - 1, middle if pp > 2 else middle - 1, middle - 1)
    if uneven and pp > 1 and pp * chunks <= depth:
        low, rest = divmod(depth, pp)
        ends = low if rest <= pp - 2 else low + 1
        return Stages(ends, low + 1 if pp > 2 else ends, low)
    return f"{depth} layers (or {depth + 2} with table and head) do not divide over {over}"


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of one division of the devices."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int


def ranks_of(model: Model, space: Space, refusals: Refusals, *, seq: int | None) -> Iterator[Ranks]:
    """Yield every division of the devices that the model allows; reasons of the others are counted.

    Args:
        model: The model.
        space: Values to try.
        refusals: Receives the reasons.
        seq: Tokens of a sequence that context ranks divide; None where there are no context ranks.
    """
    experts = {b.experts for g in model.text.groups for b in g.layer.blocks if isinstance(b, Moe)}
    eps = space.ep or (tuple(divisors(max(experts))) if experts else (1,))
    for n in space.devices:
        for tp in space.tp or divisors(n):
            reasons = tensor_reasons(model, tp)
            if n % tp:
                reasons.append(f"tp {tp} does not divide {n:,} devices")
            if reasons:
                for reason in reasons:
                    refusals.add(reason)
                continue
            for pp in space.pp or divisors(n // tp):
                if (n // tp) % pp:
                    refusals.add(f"tp {tp} x pp {pp} does not divide {n:,} devices")
                    continue
                yield from _inner(model, space, refusals, seq, eps, (n, tp, pp))


def _inner(
    model: Model, space: Space, refusals: Refusals, seq: int | None, eps: Sequence[int], outer: tuple[int, int, int]
) -> Iterator[Ranks]:
    n, tp, pp = outer
    found = stages_of(model.text.depth, pp, 1, uneven=space.uneven)
    if isinstance(found, str):
        refusals.add(found)
        return
    rest = n // tp // pp
    for cp in space.cp or (divisors(rest) if seq is not None else (1,)):
        if rest % cp:
            refusals.add(f"tp {tp} x pp {pp} x cp {cp} does not divide {n:,} devices")
            continue
        if cp > 1 and (seq is None or seq % (2 * cp)):
            refusals.add(
                f"cp {cp} does not divide {seq:,} tokens into two parts for each rank" if seq else "no context ranks"
            )
            continue
        for ep in eps:
            reasons = expert_reasons(model, ep, tp)
            groups = max(1, ep // tp)
            if not reasons and ep > 1 and (rest % groups or ep > tp * rest):
                reasons = [f"ep {ep} does not divide the {tp * rest} ranks of a stage"]
            if reasons:
                for reason in reasons:
                    refusals.add(reason)
                continue
            yield Ranks(tp=tp, pp=pp, dp=rest // cp, cp=cp, ep=ep)
