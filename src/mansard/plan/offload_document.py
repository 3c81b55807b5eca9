"""The `plan offload` document: caches of several sizes, the link, and the host beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mansard.core import Unknown, is_known
from mansard.core.document import header
from mansard.diagnose.economics import DevicePrice
from mansard.plan.choice import best, pareto
from mansard.plan.link_use import CpuOrLink, LinkUse
from mansard.plan.offload import Bank, Hosts, Offload, Rest

#: Factors of the bytes in flight that are shown.
FACTORS = (1.0, 2.0, 4.0)


def link_document(use: LinkUse, blocks: int | None) -> dict[str, Any]:
    """Return what fills a link.

    Args:
        use: The link as it was seen.
        blocks: Blocks (or queue entries) that had the bytes in flight; None: not told.
    """
    return {
        **asdict(use),
        "latency_is": "at most: the link is full and bytes queue" if use.full else "of each byte, by Little's law",
        "blocks": blocks,
        "blocks_needed": None if blocks is None else -int(-(blocks * use.more_ratio) // 1),
        "with_more": [
            {
                "factor": f, "in_flight_bytes": use.in_flight_bytes * f, "bytes_per_s": use.at(f),
                "blocks": None if blocks is None else round(blocks * f),
            }
            for f in FACTORS
        ],
    }  # fmt: skip


def offload_document(
    environment: dict[str, Any], *, bank: Bank | None, routing: str, rows: Sequence[Offload], rest: Rest | None,
    host: Hosts | None, cpu: CpuOrLink | None, link: dict[str, Any] | None, link_source: str, batch: int,
    price: DevicePrice | Unknown, replay: dict[str, Any] | None, notes: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the document; parts that were not asked about are null."""
    candidates = [_candidate(r, batch, price) for r in rows]
    serial = all(is_known(r.serial_s) for r in rows)
    key = "serial_s" if serial else "time_s"
    ranked = candidates if rows and is_known(rows[0].memory_bytes) else [c | {"fits": True} for c in candidates]
    memory = "memory_bytes" if rows and is_known(rows[0].memory_bytes) else "cached_units"
    return {
        **header("plan-offload/1", environment),
        "bank": None if bank is None else {**asdict(bank), "total_bytes": bank.total_bytes},
        "routing": routing,
        "batch": batch,
        "candidates": candidates,
        "best": best(ranked, (key, memory)),
        "pareto": pareto(ranked, (memory, key)),
        "pareto_of": [memory, key],
        "rest": None if rest is None
        else {"step_s": rest.step_s, "resident_bytes": rest.resident_bytes, "budget_bytes": rest.budget_bytes},
        "host": None if host is None
        else {**{k: getattr(host, k) for k in host.__slots__}, "link_bytes_per_s_is": link_source},
        "cpu": None if cpu is None else {k: getattr(cpu, k) for k in cpu.__slots__},
        "link": link,
        "replay": replay,
        "time_is": "floor of a decode step where fetching hides behind the rest; serial_s: where each miss waits",
        "cost_is": "USD of a million output tokens where each miss waits",
        "notes": list(notes),
    }  # fmt: skip


def _candidate(row: Offload, batch: int, price: DevicePrice | Unknown) -> dict[str, Any]:
    rate = price if isinstance(price, Unknown) else price.usd_per_s
    serial, cpu = row.serial_s, row.cpu_serial_s
    return {
        "policy": row.policy,
        "cached_units": row.capacity,
        "fits": row.fits,
        "time_s": row.floor_s,
        "serial_s": serial,
        "cpu_serial_s": cpu,
        "link_s": row.link_s,
        "cost": serial * rate / batch * 1e6,
        "memory_bytes": row.memory_bytes,
        "why_not": row.why_not,
        "hit_ratio": row.hit_ratio,
        "simulated_hit_ratio": row.simulated_hit_ratio,
        "requests_per_step": row.requests_per_step,
        "misses_per_step": row.misses_per_step,
        "miss_bytes_per_step": row.miss_bytes_per_step,
        "tokens_per_s_at_most": batch / row.floor_s if row.floor_s else Unknown("a step without misses and without the rest"),
        "tokens_per_s_serial": batch / serial if is_known(serial) and serial else serial,
    }  # fmt: skip
