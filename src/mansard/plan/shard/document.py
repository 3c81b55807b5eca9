"""The `plan shard` document: plans under the keys that others rely on, what was asked, and what the answer hangs on."""

from __future__ import annotations

from typing import Any

from mansard.core import Unknown
from mansard.core.document import header
from mansard.plan.shard.job import OVERLAP, Where
from mansard.plan.shard.search import Candidate, Found, Shift


def shard_document(found: Found, *, shapes: dict[int, str]) -> dict[str, Any]:
    """Return the document of a search.

    Args:
        found: The answer.
        shapes: Number of devices -> shape of their network, as people write it.
    """
    plans: list[Candidate] = list(found.top)
    plans += [c for c in found.front if c not in plans]
    front = [plans.index(c) for c in found.front]
    work, where = found.work, found.where
    return {
        **header("plan-shard/1", {"model": found.model.name, "machine": where.machine.name}),
        "job": {
            "phase": work.phase, "seq": work.seq, "batch": work.batch, "prompt": work.prompt, "context": work.context,
            "optimizer": work.recipe.optimizer, "objective": found.aim.objective, "ttft_s": found.aim.ttft_s,
            "tpot_s": found.aim.tpot_s, "memory_fraction": work.memory_fraction, "imbalance": work.imbalance,
            "shapes": {str(n): s for n, s in shapes.items()},
        },
        "overlap": {"policy": work.overlap, "means": OVERLAP[work.overlap]},
        "efficiency": {
            "name": where.efficiency.name, "matmul": dict(where.efficiency.matmul),
            "memory_ratio": where.efficiency.memory_ratio, "link_ratio": where.efficiency.link_ratio,
            "network_ratio": where.efficiency.network_ratio, "short_kernels": where.efficiency.curves,
            "message_s": where.efficiency.alpha_s, "sources": list(where.efficiency.sources),
        },
        "levels": {str(n): _levels(found, n) for n in where.fabrics},
        "plans": {"listed": found.plans, "fitting": found.fitting, "within_limits": found.eligible},
        "budget_bytes": Unknown("the memory of the device is on no record", ("a hardware file",))
        if found.budget_bytes is None else found.budget_bytes,
        "candidates": [candidate(c, found) for c in plans],
        "best": found.best if isinstance(found.best, Unknown) else {"candidate": plans.index(found.best)},
        "runner_up": None if found.runner_up is None
        else {"candidate": plans.index(found.runner_up), "margin_ratio": found.margin_ratio},
        "verdict": found.verdict,
        "tie": {"ratio": found.aim.tie_ratio, "plans": found.tied, "layouts": found.tied_layouts},
        "top": list(range(len(found.top))),
        "pareto": front,
        "pareto_of": ["time_s", "memory_bytes", "cost"],
        "sensitivity": [_shift(s, found) for s in found.shifts],
        "uncertain_ratio": found.aim.uncertain_ratio,
        "refused": [{"reason": r, "divisions": n} for r, n in sorted(found.refusals.items(), key=lambda i: (-i[1], i[0]))],
        "price": where.price,
        "cost_is": "USD of a million tokens of the step" if work.phase == "train" else "USD of a million output tokens",
        "notes": list(dict.fromkeys([*found.assumed, *_unlatent(found), *_not_used(where)])),
    }  # fmt: skip


def _not_used(where: Where) -> list[str]:
    """Options of a network that a shape has no part for."""
    return [note for fabric in where.fabrics.values() for note in fabric.notes if note.startswith("not used")]


def _levels(found: Found, devices: int) -> list[dict[str, Any]]:
    return [
        {"name": v.name, "kind": v.kind, "lengths": [a.length for a in v.axes], "bytes_per_s": v.bytes_per_s,
         "hop_s": v.hop_s, "source": v.source}
        for v in found.where.fabrics[devices].levels
    ]  # fmt: skip


def _unlatent(found: Found) -> list[str]:
    """Levels whose shortest message is on no record, and what it costs here."""
    names = list(
        dict.fromkeys(
            v.name
            for f in found.where.fabrics.values()
            for v in f.levels
            if isinstance(v.hop_s, Unknown) and v.units > 1
        )
    )
    if not names:
        return []
    where, alpha = " and ".join(names), found.where.efficiency.alpha_s
    if alpha is None:
        return [f"the latency of {where} is on no record: messages cost their bytes alone (--hop, --network-hop)"]
    return [f"the shortest message over {where} takes {alpha * 1e6:g} us, as among 8 H100 (--hop, --network-hop)"]


def candidate(c: Candidate, found: Found) -> dict[str, Any]:
    """Return the element of `candidates`: every plan here fits and keeps the limits."""
    return {
        "layout": c.layout, "devices": c.devices,
        **{name: getattr(c, name) for name in (
            "tp", "pp", "dp", "cp", "ep", "precision", "micro_batch", "accumulation", "chunks", "zero", "recompute",
            "sequences", "time_s", "ttft_s", "tokens_per_s", "mfu_ratio",
        )},
        "fits": True if found.budget_bytes is not None
        else Unknown("the memory of the device is on no record", ("a hardware file",)),
        "cost": c.usd_per_mtoken, "memory_bytes": c.memory_bytes, "why_not": None, "parts": dict(c.parts),
        "messages_s": c.messages_s, "memory": dict(c.held),
    }  # fmt: skip


def _shift(s: Shift, found: Found) -> dict[str, Any]:
    return {
        "ceiling": s.ceiling, "ratio": s.ratio, "stays": s.stays, "time_s": s.time_s, "regret_ratio": s.regret_ratio,
        "best": None if s.best is None else candidate(s.best, found),
    }  # fmt: skip
