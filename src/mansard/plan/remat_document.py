"""The `plan remat` document: policies by time and memory, the chosen one in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.core import Unknown, is_known
from mansard.core.document import header
from mansard.core.units import format_bytes
from mansard.plan.choice import pareto
from mansard.plan.remat import INPUT, Copies, Policy, RematPlan, as_json, recomputed
from mansard.plan.remat_code import WHERE, Names, jax_code, torch_code
from mansard.plan.remat_graph import Step

NO_COST = Unknown("a policy has no price of its own", ("plan size --run-tokens",))


def names_of(step: Step, policy: Policy) -> tuple[Names, ...]:
    """Return what becomes of the activations of each kind of layer, by name.

    Only what a gradient needs, or what something that is made again is made from, is named.
    """
    out = []
    for kind, choices in zip(step.kinds, policy.kinds, strict=True):
        again = recomputed(kind, choices)
        by = {
            choice: tuple(n.name for n, own in zip(kind.nodes, choices, strict=True) if own == choice)
            for choice in ("keep", "offload")
        }
        out.append(
            Names(
                kept=by["keep"], offloaded=by["offload"],
                again=tuple(n.name for n, makes in zip(kind.nodes, again, strict=True) if makes),
                input_offloaded=policy.layer_input == "offload",
            )
        )  # fmt: skip
    return tuple(out)


def remat_document(
    environment: dict[str, Any], step: Step, copies: Copies, plans: Sequence[RematPlan], *, chosen: RematPlan | None,
    budget_bytes: float | Unknown, frameworks: Sequence[str], link_source: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the document.

    Args:
        environment: Model and machine as typed.
        step: The step without rematerialisation.
        copies: How activations reach the host.
        plans: From the fastest to the smallest; none beats another.
        chosen: The fastest that fits, or the fastest where nobody says what may be held.
        budget_bytes: What a device may hold [B].
        frameworks: For which the policy is written: `jax`, `torch`.
        link_source: Where the bandwidth comes from.
    """
    best = None if chosen is None else plans.index(chosen)
    rows = [_row(step, plan, budget_bytes) for plan in plans]
    return {
        **header("plan-remat/1", environment),
        "step": {
            "layers": step.layers, "layer_input_bytes": step.input_bytes, "fixed_bytes": step.fixed_bytes,
            "forward_s": step.forward_s, "backward_s": step.backward_s, "forward_messages_s": step.forward_messages_s,
            "backward_messages_s": step.backward_messages_s, "once_s": step.once_s, "micro_batches": step.passes,
            "tokens": step.tokens, "devices": step.devices,
        },
        "activations": [
            {
                "layers": kind.count,
                "made": [
                    {
                        "name": n.name, "is": WHERE.get(n.name, n.name), "bytes": n.size_bytes, "recompute_s": n.compute_s,
                        "recompute_messages_s": n.message_s, "from": [kind.nodes[p].name for p in n.parents] or [INPUT],
                        "needed": n.needed,
                    }
                    for n in kind.nodes
                ],
            }
            for kind in step.kinds
        ],
        "budget_bytes": budget_bytes,
        "host_link_bytes_per_s": copies.bytes_per_s,
        "host_link_is": link_source,
        "overlap": copies.overlap,
        "candidates": rows,
        "best": best,
        "best_by": "time",
        "pareto": pareto([{**r, "fits": True} for r in rows], ("time_s", "memory_bytes")),
        "pareto_of": ["time_s", "memory_bytes"],
        "policy": None if chosen is None else _policy(step, chosen, frameworks),
        "notes": [
            "times are floors: every kernel at its ceiling, what is made again too",
            "attention is fused: its backward pass needs queries, keys, values and the result, never the scores",
            "gradients that flow back and what a library takes for itself are not in the memory",
            *(["what experts are given is gathered again from the norm before them"] if _experts(step) else []),
            *(note for note in step.assumed if not note.startswith("recompute ")),
        ],
    }  # fmt: skip


def _experts(step: Step) -> bool:
    return any(n.name.startswith("experts_") for kind in step.kinds for n in kind.nodes)


def _row(step: Step, plan: RematPlan, budget: float | Unknown) -> dict[str, Any]:
    fits: bool | Unknown = budget if isinstance(budget, Unknown) else plan.memory_bytes <= budget
    why = None
    if fits is False and is_known(budget):
        why = f"one device needs {format_bytes(plan.memory_bytes)} and may hold {format_bytes(budget)}"
    return {
        **as_json(plan), "cost": NO_COST, "fits": fits, "why_not": why, "tokens_per_s": step.tokens / plan.time_s,
        "policies": _by_kind(step, plan.policy),
    }  # fmt: skip


def _by_kind(step: Step, policy: Policy) -> list[dict[str, Any]]:
    return [
        {
            "layers": kind.count, "keep": list(names.kept), "offload": list(names.offloaded),
            "recompute": list(names.again), "layer_input": policy.layer_input,
        }
        for kind, names in zip(step.kinds, names_of(step, policy), strict=True)
    ]  # fmt: skip


def _policy(step: Step, plan: RematPlan, frameworks: Sequence[str]) -> list[dict[str, Any]]:
    """The code for each kind of layer; kinds that need the same are one."""
    layers: dict[Names, float] = {}
    for kind, names in zip(step.kinds, names_of(step, plan.policy), strict=True):
        layers[names] = layers.get(names, 0.0) + kind.count
    write = {"jax": jax_code, "torch": torch_code}
    return [{"layers": many, "code": {f: write[f](names) for f in frameworks}} for names, many in layers.items()]
