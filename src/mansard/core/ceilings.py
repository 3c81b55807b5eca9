"""How fast each resource of a machine can be consumed, each figure with its kind, scope and source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mansard.core.document import damage_named, read_document
from mansard.core.evidence import Grade
from mansard.core.unknown import Unknown


class Area(StrEnum):
    """What a resource belongs to; also the word for a bound, with `undetermined` beside it."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    HOST = "host"
    LATENCY = "latency"


class Kind(StrEnum):
    """Where a ceiling comes from, in the order in which one is preferred for a share."""

    MEASURED = "measured"
    DERIVED = "derived"
    DECLARED = "declared"

    @property
    def grade(self) -> Grade:
        """The evidence grade of a figure of this kind."""
        return {"measured": Grade.MEASURED, "derived": Grade.MODELLED, "declared": Grade.DECLARED}[self.value]


_NOTHING = Unknown("no ceiling of the device is known", ("--hardware NAME, or ceilings that were measured on it",))
_USUAL_ACCUMULATE = {"f": "f32", "b": "f32", "t": "f32", "i": "i32", "u": "i32"}
SCOPES = ("core", "die", "device", "node", "cluster")
_PREFERENCE = (Kind.MEASURED, Kind.DERIVED, Kind.DECLARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One thing that work can use up. Only the fields of its area are set, and they are texts.

    Args:
        area: Compute, memory, network, host link or latency.
        dtype, accumulate, engine: For compute; engine is `matrix`, `vector`, `scalar` or `special` (exp, tanh, ...).
        level: For memory: `l1`, `l2`, `l3`, `dram`, `hbm`, ...
        mix: For memory: `read`, `write`, `copy`, `scale`, `add`, `triad`, `in_place`, `fresh` (into new pages).
        page, store: For memory: page size (`4k`, `huge`) and store type (`regular`, `streaming`).
        link: For network and host: the name of the link.
        backend: For latency: whose dispatch, such as `torch`, `jax`, `numpy`.
    """

    area: Area
    dtype: str | None = None
    accumulate: str | None = None
    engine: str | None = None
    level: str | None = None
    mix: str | None = None
    page: str | None = None
    store: str | None = None
    link: str | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} of a resource is {value!r:.60}, expected a text")

    @property
    def label(self) -> str:
        """The resource in words.

        >>> Resource(area=Area.COMPUTE, dtype="bf16", accumulate="f32", engine="matrix").label
        'bf16 matrix'
        >>> Resource(area=Area.MEMORY, level="dram", mix="triad").label
        'DRAM triad bandwidth'
        """
        if self.area is Area.COMPUTE:
            kept = f" into {self.accumulate}" if self.accumulate not in (None, self.dtype, "f32", "i32") else ""
            word = {"special": "special functions"}.get(self.engine or "", self.engine or "compute")
            return f"{self.dtype} {word}{kept}"
        if self.area is Area.MEMORY:
            return " ".join(w for w in ((self.level or "memory").upper(), self.mix, "bandwidth") if w)
        if self.area is Area.LATENCY:
            return f"{self.backend or 'dispatch'} fixed cost"
        return f"{self.link or self.area.value} link"

    def to_json(self) -> dict[str, str]:
        """Return the fields that are set."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: str(value) for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """How fast one resource can be consumed.

    Args:
        resource: What is consumed.
        value: The rate [FLOP/s, B/s or evaluations/s], or the fixed cost of one launch [s] for latency.
        unit: The SI unit of `value`.
        kind: Measured, derived or declared.
        scope: `core`, `die`, `device`, `node` or `cluster`; scopes are never mixed.
        ci95: The 95 % interval of `value`, where it was measured.
        conditions: What belongs to the figure: threads, call, array size, foreign load, ...
        source: Where the figure comes from.
    """

    resource: Resource
    value: float
    unit: str
    kind: Kind
    scope: str = "node"
    ci95: tuple[float, float] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.value < float("inf"):
            raise ValueError(f"a ceiling must be positive and finite: {self.resource.label} = {self.value!r}")
        if self.scope not in SCOPES:
            raise ValueError(f"unknown scope {self.scope!r}; expected one of {', '.join(SCOPES)}")

    @property
    def uncertainty_ratio(self) -> float:
        """Half of the interval's width over the value; 0 where no interval is known."""
        return (self.ci95[1] - self.ci95[0]) / 2.0 / self.value if self.ci95 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the element of `ceilings` in `ceilings.json`."""
        return {
            "resource": self.resource.to_json(),
            "value": self.value,
            "unit": self.unit,
            "kind": self.kind.value,
            "scope": self.scope,
            "ci95": list(self.ci95) if self.ci95 else None,
            "conditions": dict(self.conditions),
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """One level of the memory hierarchy.

    Args:
        level: `l1`, `l2`, `l3`, `dram`, ... from the nearest to the farthest.
        capacity_bytes: Capacity of one instance [B].
        instances: How many instances the node has.
    """

    level: str
    capacity_bytes: float
    instances: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.level, str):
            raise TypeError(f"level is {self.level!r:.60}, expected a text")
        for name in ("capacity_bytes", "instances"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise TypeError(f"{name} of {self.level} is {value!r:.60}, expected a number")
            if not value > 0:  # NaN is not; one level that holds everything is
                raise ValueError(f"{name} of {self.level} is {value!r}, expected a positive number")

    def capacity(self, scope: str) -> float:
        """Capacity that `scope` can use [B]: one instance for a core, all of them for a node."""
        return self.capacity_bytes * (1 if scope == "core" else self.instances)


# Share of traffic that is reads, by access mix; the envelope is interpolated over it.
MIX_READ_RATIO: dict[str, float] = {
    "read": 1.0, "add": 2 / 3, "triad": 2 / 3, "copy": 0.5, "scale": 0.5, "in_place": 0.5, "write": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """All ceilings of one machine, with the queries that verdicts make.

    Every query returns a `Ceiling`, or `Unknown` with what to supply. Nothing is ever taken from another element
    type, scope or device.
    """

    ceilings: tuple[Ceiling, ...]
    levels: tuple[MemoryLevel, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    fits: Sequence[Mapping[str, Any]] = ()
    curves: Sequence[Mapping[str, Any]] = ()
    source: str = ""

    def find(self, *, scope: str, **fields: Any) -> list[Ceiling]:
        """Return the ceilings of `scope` whose resource has every one of `fields`, the preferred kind first."""
        hits = [
            c
            for c in self.ceilings
            if c.scope == scope and all(getattr(c.resource, name) == value for name, value in fields.items())
        ]
        return sorted(hits, key=lambda c: (_PREFERENCE.index(c.kind), -c.value))

    def peak(
        self, dtype: str, *, accumulate: str | None = None, engine: str = "matrix", scope: str = "node"
    ) -> Ceiling | Unknown:
        """Return the compute ceiling of `(dtype, accumulate, engine)` [FLOP/s, dense].

        The best measured call counts; where nothing was measured, the derived, then the declared figure. Without
        `accumulate` the usual one is meant (f32 for narrower floats, i32 for integers), where the machine has it: on
        some cards the rate with a narrower accumulator is twice as high and no model runs at it.
        """
        hits = self.find(scope=scope, area=Area.COMPUTE, dtype=dtype, engine=engine)
        if accumulate is not None:
            hits = [c for c in hits if c.resource.accumulate in (accumulate, None)]
        else:
            usual = _USUAL_ACCUMULATE.get(dtype[0], dtype) if dtype != "f64" else "f64"
            hits = [c for c in hits if c.resource.accumulate in (usual, None)] or hits
        if hits:
            return hits[0]
        if not self.ceilings:
            return _NOTHING
        wanted = f"{dtype} {engine}" + (f" accumulating in {accumulate}" if accumulate else "")
        return Unknown(f"no {wanted} ceiling for one {scope}", (f"mansard measure, or a hardware file with {wanted}",))

    def level_for(self, working_set_bytes: float, *, scope: str = "node") -> MemoryLevel | Unknown:
        """Return the nearest memory level that holds `working_set_bytes` [B]."""
        for level in self.levels:
            if working_set_bytes <= level.capacity(scope):
                return level
        return (
            Unknown("the machine has no memory levels on record", ("mansard measure",)) if self.ceilings else _NOTHING
        )

    def bandwidth(self, level: str, *, read_ratio: float | None = None, scope: str = "node") -> Ceiling | Unknown:
        """Return the bandwidth ceiling of a memory level [B/s] for traffic of which `read_ratio` is reads.

        The ceiling is an envelope: the best figure over page size and store type for each access mix, and between
        two mixes the better of them, since real traffic is not one of the probes. `None` asks for the best mix.
        """
        hits = [c for c in self.find(scope=scope, area=Area.MEMORY, level=level) if c.resource.mix != "fresh"]
        if not hits:
            return (
                Unknown(f"no {level} bandwidth ceiling for one {scope}", ("mansard measure",))
                if self.ceilings
                else _NOTHING
            )
        kind = hits[0].kind
        best = max((c for c in hits if c.kind is kind), key=lambda c: c.value)
        if read_ratio is None:
            return best
        known = [
            (MIX_READ_RATIO[c.resource.mix], c) for c in hits if c.kind is kind and c.resource.mix in MIX_READ_RATIO
        ]
        if not known:
            return best
        below = [r for r, _ in known if r <= read_ratio + 1e-9]
        above = [r for r, _ in known if r >= read_ratio - 1e-9]
        edges = {max(below) if below else min(above), min(above) if above else max(below)}
        return max((c for r, c in known if r in edges), key=lambda c: c.value)

    def fixed_cost(self, backend: str) -> Ceiling | Unknown:
        """Return what one dispatch of `backend` costs [s]."""
        hits = [c for c in self.ceilings if c.resource.area is Area.LATENCY and c.resource.backend == backend]
        hits.sort(key=lambda c: (_PREFERENCE.index(c.kind), c.value))
        if hits:
            return hits[0]
        return Unknown(
            f"the dispatch cost of {backend} was not measured", (f"mansard measure with {backend} installed",)
        )

    def link(self, name: str, *, scope: str = "device") -> Ceiling | Unknown:
        """Return the one-way bandwidth of a link [B/s]."""
        hits = [c for c in self.find(scope=scope, link=name) if c.resource.area in (Area.NETWORK, Area.HOST)]
        return (
            hits[0]
            if hits
            else Unknown(f"no ceiling for the link {name!r}", ("--hardware NAME, or ceilings measured there",))
        )

    def merged(self, other: Iterable[Ceiling]) -> Ceilings:
        """Return these ceilings with `other` added."""
        return Ceilings(
            ceilings=(*self.ceilings, *other),
            levels=self.levels,
            machine=self.machine,
            fits=self.fits,
            curves=self.curves,
            source=self.source,
        )


def ceiling_from_json(item: Mapping[str, Any]) -> Ceiling:
    """Return the `Ceiling` of one element of `ceilings.json`."""
    resource = dict(item["resource"])
    return Ceiling(
        resource=Resource(area=Area(resource.pop("area")), **resource),
        value=float(item["value"]),
        unit=str(item["unit"]),
        kind=Kind(item["kind"]),
        scope=str(item["scope"]),
        ci95=(float(item["ci95"][0]), float(item["ci95"][1])) if item.get("ci95") else None,
        conditions=_mapping(item, "conditions"),
        source=str(item.get("source", "")),
    )


def _mapping(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key, {})
    if not isinstance(found, Mapping):
        raise TypeError(f"{key} is {found!r:.60}, expected an object")
    return found


def _mappings(item: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    found = item.get(key, ())
    if not isinstance(found, list | tuple) or not all(isinstance(f, Mapping) for f in found):
        raise TypeError(f"{key} is {found!r:.60}, expected a list of objects")
    return found


def ceilings_from_json(document: Mapping[str, Any], *, source: str = "") -> Ceilings:
    """Return the `Ceilings` of a `ceilings.json` document."""
    return Ceilings(
        ceilings=tuple(ceiling_from_json(item) for item in document["ceilings"]),
        levels=tuple(MemoryLevel(**level) for level in document.get("levels", ())),
        machine=_mapping(document, "environment"),
        fits=_mappings(document, "fits"),
        curves=_mappings(document, "curves"),
        source=source,
    )


def read_ceilings(path: Path) -> Ceilings:
    """Return the `Ceilings` of a `ceilings.json` file.

    Raises:
        InputError: it is missing, of another kind, or damaged.
    """
    document = read_document(path, "ceilings/1")
    with damage_named(f"{path} is a damaged ceilings document", hint="write it again: mansard measure -o FOLDER"):
        return ceilings_from_json(document, source=str(path))
