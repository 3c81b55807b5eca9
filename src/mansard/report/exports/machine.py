"""A machine in numbers for simulators and planners: peaks, bandwidths, links, fixed costs, alpha-beta fits, curves.

The document is `machine/1`; its JSON Schema is `machine.schema.json` beside this module.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from mansard.core.ceilings import SCOPES, Area, Ceiling, Ceilings
from mansard.core.document import header, to_jsonable
from mansard.core.errors import InputError, UndecidedError, UsageError
from mansard.report.exports.sources import Sources

_RATES = {
    Area.COMPUTE: "peaks",
    Area.MEMORY: "bandwidths",
    Area.NETWORK: "links",
    Area.HOST: "links",
    Area.LATENCY: "fixed_costs",
}
#: How the value of a ceiling is called, by its unit.
_NAMES = {
    "FLOP/s": "flop_per_s",
    "B/s": "bytes_per_s",
    "s": "time_s",
    "evaluations/s": "evaluations_per_s",
    "1/s": "evaluations_per_s",
}
_FIT = ("alpha_s", "beta_bytes_per_s")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    text = files("mansard.report.exports").joinpath("machine.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def machine_document(ceilings: Ceilings, *, name: str) -> dict[str, Any]:
    """Return the machine description.

    Every figure keeps its kind (measured, derived, declared), its scope and its source, so that a simulator can choose; none is
    copied from another element type, scope or device. Of ceilings that differ only in their conditions (page size, store type,
    call) all are listed.

    Args:
        ceilings: The machine.
        name: What it is called.

    Raises:
        UndecidedError: nothing is known of it.
        InputError: a ceiling has a unit that the document has no name for.
    """
    if not ceilings.ceilings:
        raise UndecidedError(f"{name} holds no ceiling", hint="mansard measure")
    scopes: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for scope in SCOPES:
        own = [c for c in ceilings.ceilings if c.scope == scope]
        if own:
            groups: dict[str, list[dict[str, Any]]] = {g: [] for g in ("peaks", "bandwidths", "links", "fixed_costs")}
            for c in own:
                groups[_RATES[c.resource.area]].append(_figure(c))
            scopes[scope] = groups
    document: dict[str, Any] = to_jsonable({
        **header("machine/1", ceilings.machine), "name": name,
        "memory_levels": [
            {"level": m.level, "capacity_bytes": m.capacity_bytes, "instances": m.instances} for m in ceilings.levels
        ],
        "scopes": scopes, "alpha_beta": [_fit(f) for f in ceilings.fits], "curves": [_curve(c) for c in ceilings.curves],
    })  # fmt: skip
    return document


def _figure(c: Ceiling) -> dict[str, Any]:
    key = _NAMES.get(c.unit)
    if key is None:
        raise InputError(f"{c.resource.label} has the unit {c.unit!r}, expected one of {', '.join(_NAMES)}")
    resource = c.resource.to_json()
    out: dict[str, Any] = {key: c.value, **resource, "kind": c.kind.value}
    if c.resource.area is Area.COMPUTE:
        out["dense"] = True
    out["ci95"] = list(c.ci95) if c.ci95 else None
    out["conditions"] = {k: v for k, v in c.conditions.items() if isinstance(v, str | int | float | bool)}
    out["source"] = c.source
    return out


def _fit(fit: Mapping[str, Any]) -> dict[str, Any]:
    """Return t = alpha + bytes / beta of one transfer; everything else that the fit says stays beside it."""
    lacking = [k for k in _FIT if k not in fit]
    if lacking:
        raise InputError(f"a fit of the ceilings lacks {', '.join(lacking)}", hint="measure again")
    return dict(fit)


def _curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Return rate over size; the share of the ceiling is given where it was judged, and null elsewhere."""
    unit = str(curve.get("unit", "B/s"))
    points = []
    for p in curve.get("points", ()):
        rate = p.get("rate", p.get("bytes_per_s", p.get("flop_per_s")))
        if rate is None:
            raise InputError(f"a point of the curve {curve.get('name')!r} has no rate", hint="measure again")
        points.append({
            "working_set_bytes": p.get("working_set_bytes"), "flop": p.get("flop"), "bytes": p.get("bytes"),
            "size_bytes": p.get("size_bytes"), "rate": rate, "efficiency_ratio": p.get("share_of_ceiling"),
            "time_s": p.get("time_s"),
        })  # fmt: skip
    about = {k: curve.get(k) for k in ("scope", "mix", "page", "peak")}
    return {"name": str(curve.get("name", "")), "unit": unit, **about, "points": points}


def machine_of(sources: Sources) -> dict[str, Any]:
    """Return the description of the one machine that some files hold: a ceilings document, else the ceilings of a run.

    Raises:
        UsageError: none, or several.
    """
    found = [(name, c) for name, c, _ in sources.ceilings]
    if not found:
        for name, d, _ in sources.diagnoses:
            environment = d.receipt.get("environment", {})
            machine = environment if isinstance(environment, Mapping) else {}
            found.append((name, Ceilings(ceilings=d.ceilings, machine=machine, source=name)))
    if len(found) != 1:
        raise UsageError(
            f"a description is of one machine, the files hold {len(found)}",
            hint="give one ceilings.json of mansard measure",
        )
    return machine_document(found[0][1], name=found[0][0])


def to_json(document: Mapping[str, Any]) -> str:
    """Return the description as JSON."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return the description as YAML 1.2; text stays text, whatever it looks like."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 10_000
    yaml.allow_unicode = False  # lone surrogates cannot be written otherwise
    out = io.StringIO()
    yaml.dump(dict(document), out)
    return out.getvalue()
