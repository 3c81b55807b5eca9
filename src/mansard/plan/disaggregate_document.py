"""The `plan disaggregate` document: splits, the engines beside them, and what the limits force."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mansard.core import Unknown, is_known
from mansard.core.document import header
from mansard.diagnose.economics import DevicePrice
from mansard.plan.choice import pareto
from mansard.plan.disaggregate import PAYS, Comparison, Split, Together
from mansard.plan.workers import Job
from mansard.workload.parallel import Plan

_LOCKSTEP = (
    "each data-parallel rank of a prefill worker has a queue of its own, its share of the requests; ranks that share experts "
    "begin their passes together, which can add up to one pass to the TTFT",
)


def disaggregate_document(
    environment: dict[str, Any], found: Comparison, job: Job, *, rate_per_s: float | None, devices: int | None,
    worker_most: int, price: DevicePrice | Unknown, kv_source: str, notes: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the document.

    Args:
        environment: Model and machine as typed.
        found: Both ways to serve.
        job: What was asked.
        rate_per_s, devices: What was fixed; neither: the best ratio was looked for.
        worker_most: Devices of a worker at most.
        price: Of one device.
        kv_source: Where the bandwidth between workers comes from.
        notes: What else to know.
    """
    rows = [_split(s, job, price) for s in found.splits]
    if isinstance(found.together, Together):
        rows.append(_together(found.together, job, price))
    gain = found.gain
    best: int | None = 0 if found.splits else None
    if is_known(gain) and gain < PAYS:
        best = len(rows) - 1
    elif not found.splits and rows:
        best = 0
    return {
        **header("plan-disaggregate/1", environment),
        "job": asdict(job),
        "rate_per_s": rate_per_s,
        "devices": devices,
        "worker_devices_most": worker_most,
        "kv_link_bytes_per_s": job.kv_bytes_per_s,
        "kv_link_is": kv_source,
        "candidates": rows,
        "best": best,
        "best_by": "goodput per device",
        "pareto": pareto([{**r, "slow": -r["goodput_per_device"]} for r in rows], ("slow", "time_s")),
        "pareto_of": ["-goodput_per_device", "time_s"],
        "gain_ratio": gain,
        "pays": gain >= PAYS if is_known(gain) else bool(found.splits),
        "pays_from": PAYS,
        "engine": found.together if isinstance(found.together, Unknown) else len(rows) - 1,
        "refused": found.refused,
        "fastest_prompt_s": found.fastest_prompt_s,
        "fastest_step_s": found.fastest_step_s,
        "time_is": "mean time per output token after the first",
        "notes": [
            *notes,
            "passes at their bounds, divided by the shares reached: goodput is a ceiling where the shares are 1",
            "means, not percentiles: arrivals at random, prompts and answers of equal length",
            "a prefill worker reads one prompt at a time on each data-parallel rank; its cache is sent when it is read, not "
            "layer by layer",
            *(_LOCKSTEP if any(s.prefiller.plan.dp > 1 for s in found.splits) else ()),
            "memory holds every sequence at its full length; steps see the mean context",
            "no pipeline stages in a worker; messages within one at the speed of the link within a node",
        ],
    }  # fmt: skip


def _plan(plan: Plan) -> dict[str, int]:
    return {"tp": plan.tp, "dp": plan.dp, "ep": plan.ep, "devices": plan.devices}


def _usd(price: DevicePrice | Unknown, goodput: float, output: int) -> float | Unknown:
    """USD per million output tokens."""
    if isinstance(price, Unknown):
        return price
    return price.usd_per_hour / 3600.0 / (goodput * output) * 1e6


def _split(s: Split, job: Job, price: DevicePrice | Unknown) -> dict[str, Any]:
    p, d = s.prefiller, s.decoder
    busy = s.rate_per_s * p.service_s / s.prefillers / p.plan.dp
    return {
        "name": f"{s.prefillers}P{s.decoders}D", "kind": "disaggregated", "fits": True, "why_not": None,
        "time_s": s.tpot_s, "ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "cost": _usd(price, s.goodput, job.output),
        "memory_bytes": max(p.memory_bytes, d.memory_bytes), "devices": s.devices, "rate_per_s": s.rate_per_s,
        "goodput_per_device": s.goodput, "limited_by": s.limited_by,
        "prefill": {
            "workers": s.prefillers, "plan": _plan(p.plan), "prompt_s": p.service_s, "rate_per_s": p.rate_per_s,
            "busy_ratio": busy, "memory_bytes": p.memory_bytes,
        },
        "decode": {
            "workers": s.decoders, "plan": _plan(d.plan), "step_s": d.tpot_s, "rate_per_s": d.rate_per_s,
            "batch": d.batch, "batch_that_fits": d.most, "batch_limited_by": d.limited_by, "memory_bytes": d.memory_bytes,
        },
        "kv": {
            "bytes": s.kv_bytes, "transfer_s": s.transfer_s, "sent_bytes": p.sent_bytes, "received_bytes": d.received_bytes,
        },
    }  # fmt: skip


def _together(t: Together, job: Job, price: DevicePrice | Unknown) -> dict[str, Any]:
    e = t.engine
    return {
        "name": f"{t.engines}x", "kind": "aggregated", "fits": True, "why_not": None, "time_s": e.tpot_s,
        "ttft_s": e.ttft_s, "tpot_s": e.tpot_s, "cost": _usd(price, t.goodput, job.output),
        "memory_bytes": e.memory_bytes, "devices": t.devices, "rate_per_s": t.rate_per_s,
        "goodput_per_device": t.goodput, "limited_by": e.limited_by, "engines": t.engines, "plan": _plan(e.plan),
        "batch": e.batch, "chunk": e.chunk,
    }  # fmt: skip
