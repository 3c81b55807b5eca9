"""The `estimate` document: records of an estimate under the keys that others rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.core import Area, Unknown, is_known
from mansard.core.document import header
from mansard.core.errors import UsageError
from mansard.predict.bound import Machine, PhaseBound, WeightsOnce, counted_tokens
from mansard.predict.calibration import Share, prediction_of
from mansard.predict.estimate import Estimate
from mansard.predict.utilisation import six_nd, utilisation
from mansard.workload.conventions import MEANING, convention_table, detect
from mansard.workload.forward import is_causal
from mansard.workload.memory import Fit

#: Why the two methods differ, for people.
METHODS = (
    "method 1 sums max(FLOP/peak, bytes/bandwidth) over the kernels and adds cache, activations that leave the chip, "
    "messages and launches; method 2 reads every active parameter once: the whole token table, of which a step reads a row "
    "per token, and nothing but weights"
)


def estimate_document(
    result: Estimate,
    machine: Machine | None,
    *,
    measured_s: float | None = None,
    reported: tuple[float, float] | None = None,
    shares: Mapping[str, Share] | None = None,
) -> dict[str, Any]:
    """Return the document of one estimate.

    Args:
        result: The estimate.
        machine: The machine it was made for.
        measured_s: A measured time of the phase, for MFU and HFU [s].
        reported: FLOP/s and tokens per second of a report, to tell its convention [FLOP/s, token/s].
        shares: What runs of each kind reached, see `calibration.prediction_of`; None takes those of public runs.
    """
    environment: dict[str, Any] = {"model": result.model.source, "machine": machine.name if machine else None}
    return {
        **header("estimate/1", environment),
        "model": {"name": result.model.name, **result.params.to_json()},
        "phase": result.phase.name,
        "plan": _plan(result),
        "types": {
            "activations": result.types.activation,
            "products_with_quantised_weights": result.types.product or result.types.activation,
            "cache": result.types.cache,
            "state": result.types.state,
        },
        "totals": _totals(result),
        "per_device": _per_device(result),
        "weights_once": _once(result.once),
        "kernels": _kernels(result),
        "kernels_are": "one device, all executions of a kernel together",
        "memory": _memory(result),
        "convention": "causal" if is_causal(result.model) else "full",
        "convention_is": "a MAC is 2 FLOP; attention counts the keys its mask shows, exactly; every key: totals.flop_full_attention",
        "assumed": [*result.assumed, *_machine_notes(result, machine)],
        "prediction": prediction_of(result, shares).to_json(),
        "views": _views(result, machine, measured_s, shares) | _reported(result, reported),
        "receipt": _receipt(result, machine),
        "derived": [{"key": d.key, "value": d.value, "from": list(d.from_keys)} for d in result.model.derived],
        "defaults": [{"key": a.key, "value": a.value, "source": a.source} for a in result.model.assumed],
        "notes": list(result.model.notes),
    }


def _plan(result: Estimate) -> dict[str, int]:
    plan = result.request.plan
    return {
        "tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep, "cp": plan.cp, "zero": plan.zero, "devices": plan.devices,
    }  # fmt: skip


def _totals(result: Estimate) -> dict[str, Any]:
    phase, bound = result.phase, result.bound
    return {
        "flop": float(phase.model_flop),
        "flop_full_attention": float(phase.full_flop),
        "executed_flop": float(phase.executed_flop),
        "bytes": total_bytes(result),
        "tokens": float(phase.tokens),
        "flop_per_token": float(phase.model_flop) / float(phase.tokens),
        "flop_per_byte": float(phase.executed_flop) / total_bytes(result) if total_bytes(result) else None,
        "time_bound_s": bound.time_s if isinstance(bound, PhaseBound) else bound,
        "bound": bound.bound.value if isinstance(bound, PhaseBound) else "undetermined",
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_s_counts": "emitted tokens" if phase.name in ("decode", "verify") else "processed tokens",
    }


def total_bytes(result: Estimate) -> float:
    """Return the traffic of all devices with their main memories [B]; without a machine, activations apart."""
    bound = result.bound
    one = bound.bytes if isinstance(bound, PhaseBound) else float(result.phase.device_bytes)
    return one * result.phase.plan.devices / chain(result)


def chain(result: Estimate) -> int:
    """Return the pipeline stages that the kernel list walks through one after the other."""
    return 1 if result.phase.name == "train" else result.phase.plan.pp


def _per_device(result: Estimate) -> dict[str, float]:
    stages = chain(result)
    one = result.bound.bytes if isinstance(result.bound, PhaseBound) else float(result.phase.device_bytes)
    sent = sum(float(sum(k.demand.link_bytes.values())) * k.count for k in result.phase.kernels if k.demand.link_bytes)
    return {
        "flop": float(result.phase.device_flop) / stages,
        "bytes": one / stages,
        "activation_traffic_bytes": float(result.phase.device_local_bytes) / stages,
        "sent_bytes": sent / stages,
    }


def _once(once: WeightsOnce | Unknown) -> dict[str, Any] | Unknown:
    if isinstance(once, Unknown):
        return once
    return {
        "bytes": once.bytes,
        "bytes_that_multiply": once.matmul_bytes,
        "time_s": once.time_s,
        "all_weights_bytes": once.all_bytes,
        "all_weights_time_s": once.all_time_s,
        "difference": METHODS,
    }


def _kernels(result: Estimate) -> list[dict[str, Any]]:
    bound = result.bound
    if isinstance(bound, PhaseBound):
        return [
            {
                "name": row.kernel.name,
                "pass": row.kernel.in_pass,
                "area": row.kernel.area,
                "count": row.kernel.count,
                "flop": float(row.demand.total_flop) * row.kernel.count,
                "bytes": float(row.demand.bytes) * row.kernel.count,
                "sent_bytes": float(sum(row.demand.link_bytes.values())) * row.kernel.count,
                "time_bound_s": row.time_s,
                "bound": row.bound.value,
            }
            for row in bound.kernels
        ]
    return [
        {
            "name": k.name,
            "pass": k.in_pass,
            "area": k.area,
            "count": k.count,
            "flop": float(k.demand.total_flop) * k.count,
            "bytes": float(k.demand.bytes) * k.count,
            "sent_bytes": float(sum(k.demand.link_bytes.values())) * k.count,
            "time_bound_s": bound,
            "bound": "undetermined",
        }
        for k in result.phase.kernels
    ]


def _memory(result: Estimate) -> dict[str, Any]:
    m, room = result.memory, result.fit
    out: dict[str, Any] = {
        "weight_bytes": m.weight_bytes,
        "kv_cache_bytes": m.kv_cache_bytes,
        "kv_cache_bytes_all_kept": m.kv_cache_bytes_all_kept,
        "kv_bytes_per_token": m.kv_bytes_per_token,
        "kv_growing_bytes_per_token": m.kv_growing_bytes_per_token,
        "activation_bytes": m.activation_bytes,
        "gradient_bytes": m.gradient_bytes,
        "optimizer_bytes": m.optimizer_bytes,
        "total_bytes": m.total_bytes,
        "whole_model_weight_bytes": m.whole_weight_bytes,
        "are": "one device",
        "notes": list(m.notes),
    }
    if isinstance(room, Unknown):
        return out | {"fits": room}
    return out | {
        "fits": room.fits,
        "budget_bytes": room.budget_bytes,
        "devices_at_least": room.devices_at_least,
        "sequences_that_fit": _resident(result, room),
    }


def _resident(result: Estimate, room: Fit) -> int | None:
    """Sequences of this length whose cache and activations fit beside the weights, on all devices; None without a cache.

    Activations of one pass grow with its sequences, as the cache does.
    """
    memory = result.memory
    if memory.kv_cache_bytes <= 0:
        return None
    each = memory.kv_cache_bytes + memory.activation_bytes
    left = room.budget_bytes - (memory.total_bytes - each)
    return max(0, int(left / each * float(result.phase.sequences)))


def _reported(result: Estimate, reported: tuple[float, float] | None) -> dict[str, Any]:
    """Which convention a report used, from its FLOP/s and tokens per second."""
    if reported is None:
        return {}
    if result.phase.name != "train" or result.request.seq is None:
        raise UsageError("the convention of a report is told for a training step", hint="add --phase train --seq N")
    table = convention_table(result.model, seq=result.request.seq)
    found = detect(table, flop_per_s=reported[0], tokens_per_s=reported[1])
    near = [
        {"convention": name, "difference_ratio": error, "means": MEANING[name]} for name, error in found.candidates[:4]
    ]
    return {"reported": {"flop_per_token": found.flop_per_token, "convention": found.convention, "nearest": near}}


def _views(
    result: Estimate, machine: Machine | None, measured_s: float | None, shares: Mapping[str, Share] | None
) -> dict[str, Any]:
    """Numbers people quote: TTFT, TPOT, 6ND, MFU and HFU."""
    bound = result.bound
    time_s = bound.time_s if isinstance(bound, PhaseBound) else bound
    prediction = prediction_of(result, shares).to_json()
    views: dict[str, Any] = {}
    if result.phase.name == "decode":
        views["tpot"] = {
            **prediction,
            "is": "one decode step: (latency - TTFT) / (tokens - 1) at this batch and context",
        }
    if result.phase.name == "prefill":
        views["ttft"] = {**prediction, "is": "the prompt alone: no queueing, no tokenising, no network"}
    if result.phase.name == "train":
        shorthand = six_nd(
            params=result.params.matmul_active,
            tokens=float(result.phase.tokens),
            counted_flop=float(result.phase.model_flop),
        )
        views["six_nd"] = {
            "flop": shorthand.flop,
            "params": result.params.matmul_active,
            "error_ratio": shorthand.error_ratio,
            "why": shorthand.why,
        }
    if measured_s is not None:
        views["measured"] = _measured(result, machine, measured_s, time_s)
    return views


def _measured(
    result: Estimate, machine: Machine | None, measured_s: float, time_s: float | Unknown
) -> Mapping[str, Any]:
    """MFU, HFU and the share of the bound from a measured time."""
    from mansard.core import share_of

    peak: float | Unknown = Unknown("no machine was given", ("--on",))
    if machine is not None:
        ceiling = machine.ceilings.peak(result.types.product or result.types.activation, scope=machine.scope)
        peak = ceiling if isinstance(ceiling, Unknown) else ceiling.value
    used = utilisation(
        model_flop=float(result.phase.model_flop),
        executed_flop=float(result.phase.executed_flop),
        wall_s=measured_s,
        devices=result.request.plan.devices,
        peak_flop_per_s=peak,
    )
    return {
        "time_s": measured_s,
        "tokens_per_s": float(counted_tokens(result.phase)) / measured_s,
        "mfu_ratio": used.mfu_ratio,
        "hfu_ratio": used.hfu_ratio,
        "achieved_flop_per_s": used.achieved_flop_per_s,
        "peak_flop_per_s": peak,
        "share_of_bound": share_of(time_s, measured_s) if is_known(time_s) else time_s,
    }


def _machine_notes(result: Estimate, machine: Machine | None) -> list[str]:
    """What the bound takes for granted about the machine."""
    if machine is None or isinstance(result.bound, Unknown):
        return []
    notes: list[str] = []
    if isinstance(machine.on_chip_bytes, Unknown):
        notes.append("activations stay on the chip: no cache is on record, so their traffic is left out")
    if result.request.plan.devices > 1:
        notes.append(
            "messages hide behind kernels"
            if result.bound.overlap == "full"
            else "each message waits for the kernel before it"
        )
        link, latency = machine.peer_link, machine.link_latency_s
        if isinstance(link, str) and machine.ceilings.find(scope=machine.scope, area=Area.HOST, link=link):
            notes.append(f"messages pass {link}: {machine.name} has no link of its own to other devices on record")
        if isinstance(latency, Unknown):
            notes.append(f"messages cost bandwidth alone: {latency.reason}")
    if result.request.launch_s is None:
        notes.append("launches cost nothing (--launch-cost)")
    return notes


def _receipt(result: Estimate, machine: Machine | None) -> dict[str, Any]:
    """Every ceiling that was used, and what had none."""
    if machine is None or not isinstance(result.bound, PhaseBound):
        return {}
    used = {id(t.ceiling): t.ceiling for row in result.bound.kernels for t in row.least.terms}
    return {
        "machine": machine.name,
        "scope": machine.scope,
        "memory_level": machine.memory_level,
        "memory_capacity_bytes": machine.memory_bytes,
        "on_chip_bytes": machine.on_chip_bytes,
        "overlap": result.bound.overlap,
        "ceilings": [c.to_json() for c in used.values()],
        "without_ceiling": list(result.bound.unknown),
        "time_by_bound_s": dict(result.bound.shares),
        "kernels_s": result.bound.compute_s,
        "messages_s": result.bound.messages_s,
        "launches_s": result.bound.fixed_s,
    }
