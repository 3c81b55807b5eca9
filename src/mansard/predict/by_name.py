"""`mansard.estimate(...)`: a model by name, a machine by name, and a phase, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.predict.bound import Machine
from mansard.predict.estimate import Estimate, Request
from mansard.predict.estimate import estimate as _estimate
from mansard.predict.machines import load_machine
from mansard.workload.parallel import Plan
from mansard.workload.records import Model


def estimate(
    model: Model | str | Path,
    *,
    on: Machine | str | Path | None = None,
    plan: Plan | Mapping[str, int] | None = None,
    phase: str | None = None,
    scope: str | None = None,
    **request: Any,
) -> Estimate:
    """Return what a model must consume, and how fast a machine can let it.

    Args:
        model: A model, its config.json, a folder that holds one, or a shipped name.
        on: A machine, a product of the catalogue, a hardware file, or a measured `ceilings.json`; None counts alone.
        plan: How the work is divided: a `Plan`, or its fields (`{"tp": 8}`).
        phase: `train`, `prefill`, `decode`, `mixed` or `verify`; None takes decode with a context, prefill with `seq`.
        scope: The scope that is one device; None takes the device, or the node of measured ceilings.
        request: The other fields of `predict.estimate.Request`, such as `batch`, `context`, `seq`.

    Raises:
        UsageError: The phase cannot be told, or a field of the request is missing or unknown.
        InputError: The model or the machine cannot be read.

    >>> e = estimate("llama-3.1-8b", on="h100-sxm", context=4096)
    >>> e.request.phase, e.params.total
    ('decode', 8030261248)
    """
    from mansard.workload.model.load import load_model

    if phase is None:
        decode = request.get("context") is not None or request.get("contexts") is not None
        phase = "decode" if decode else "prefill" if request.get("seq") is not None else None
    if phase is None:
        raise UsageError("a bound needs a phase", hint="context=N, seq=N, or phase='train' with seq=N")
    known = set(Request.__dataclass_fields__)
    if unknown := sorted(set(request) - known):
        raise UsageError(f"estimate knows no {', '.join(unknown)}", hint="one of " + ", ".join(sorted(known)))
    if not isinstance(plan, Plan):
        plan = Plan(**(plan or {}))
    machine = on if on is None or isinstance(on, Machine) else load_machine(str(on), scope=scope)
    loaded = model if isinstance(model, Model) else load_model(str(model))
    return _estimate(loaded, Request(phase=phase, plan=plan, **request), machine)
