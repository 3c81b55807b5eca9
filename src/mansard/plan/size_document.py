"""The `plan size` document: sizings under the keys that others rely on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mansard.core import Unknown
from mansard.core.document import header
from mansard.plan.choice import best, pareto
from mansard.plan.size import Job, Range, Sizing

#: What `--by` sorts by, ties by the rest.
ORDER: dict[str, tuple[str, ...]] = {
    "devices": ("devices", "time_s"), "time": ("time_s", "devices"), "cost": ("cost", "time_s"),
}  # fmt: skip


def size_document(
    sizings: Sequence[Sizing], job: Job, *, by: str = "devices", left_out: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the document of some models on some devices.

    Args:
        sizings: One for each model and device.
        job: What was asked.
        by: What the best one is best by: `devices`, `time` or `cost`.
        left_out: Devices that were not judged, each with the reason.
    """
    rows = [candidate(s) for s in sizings]
    models = list(dict.fromkeys(s.model for s in sizings))
    winners: list[dict[str, Any]] = []
    front: list[int] = []
    for model in models:
        own = [i for i, s in enumerate(sizings) if s.model == model]
        mine = [rows[i] for i in own]
        found = best(mine, ORDER[by])
        if found is not None:
            winners.append({"model": model, "device": mine[found]["device"], "candidate": own[found]})
        front += [own[i] for i in pareto(mine, ("devices", "time_s"))]
    return {
        **header("plan-size/1", {"models": models, "devices": list(dict.fromkeys(s.device for s in sizings))}),
        "job": asdict(job),
        "candidates": rows,
        "best": winners[0] if len(winners) == 1 else winners,
        "best_by": by,
        "pareto": front,
        "pareto_of": ["devices", "time_s"],
        "side_by_side": _side_by_side(sizings, models),
        "left_out": [{"device": name, "reason": reason} for name, reason in left_out],
        "cost_is": _cost_is(job),
        "division_is": _division_is(job),
        "time_is": {
            "train": "the floor of one optimizer step", "prefill": "the floor of one prompt",
        }.get(job.phase, "the floor of one decode step"),
    }  # fmt: skip


def _cost_is(job: Job) -> str:
    if job.phase == "train":
        return "USD of the training run at the floor of its steps: it costs no less"
    tokens = "prompt tokens" if job.phase == "prefill" else "output tokens, prompts not counted"
    return f"USD of a million {tokens}, at the floor of the time: they cost no less"


def _division_is(job: Job) -> str:
    """What the division assumes, and which verb to ask for one to build."""
    if job.phase == "train":
        assumed = "ZeRO 3 over data-parallel ranks, tensor parallel within the node"
    elif job.devices is not None:
        assumed = "the fastest floor on the devices that were asked for"
    else:
        assumed = "tensor parallel within the node where that holds it, stages beyond"
    return (
        f"{assumed}; at full rates. To choose a division believe plan shard: it compares all of them at published rates"
    )


def candidate(s: Sizing) -> dict[str, Any]:
    """Return the element of `candidates`."""
    plan = s.plan
    return {
        "model": s.model,
        "device": s.device,
        "devices": s.devices,
        "plan": None if plan is None
        else {name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "zero", "devices")},
        "fits": s.fits,
        "time_s": s.time_s,
        "cost": s.usd,
        "cost_expected": s.usd_expected,
        "price": s.price,
        "memory_bytes": s.memory_bytes,
        "budget_bytes": s.budget_bytes,
        "memory": s.parts,
        "one_device_bytes": s.one_device_bytes,
        "one_device_short_bytes": s.short_bytes,
        "why_not": s.why_not,
        "bound": s.bound,
        "tokens_per_s": s.tokens_per_s,
        "tpot": _range(s.tpot),
        "ttft": _range(s.ttft),
        "step": _range(s.step),
        "one_device_weights_time_s": s.one_device_weights_s,
        "all_weights_time_s": s.all_weights_s,
        "notes": list(s.notes),
    }  # fmt: skip


def _range(r: Range | None) -> dict[str, Any] | None:
    return None if r is None else {"low_s": r.low_s, "expected_s": r.expected_s, "high_s": r.high_s, "basis": r.basis}


def _side_by_side(sizings: Sequence[Sizing], models: Sequence[str]) -> list[dict[str, Any]]:
    """For each device, the later models against the first one."""
    rows: list[dict[str, Any]] = []
    for s in sizings:
        first = next(f for f in sizings if f.model == models[0] and f.device == s.device)
        if s is first:
            continue
        one: float | Unknown = s.one_device_weights_s
        rows.append(
            {
                "device": s.device,
                "model": s.model,
                "against": first.model,
                "one_device_weights_ratio": _ratio(one, first.one_device_weights_s),
                "time_ratio": _ratio(s.time_s, first.time_s),
                "devices_ratio": _ratio(s.devices, first.devices),
                "memory_ratio": _ratio(s.one_device_bytes, first.one_device_bytes),
            }
        )
    return rows


def _ratio(a: float | Unknown, b: float | Unknown) -> float | Unknown:
    return a / b
