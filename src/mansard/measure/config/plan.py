"""The plan of a run: every point of a configuration, those that cannot run here with the reason, and the notes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceiling
from mansard.hardware import match
from mansard.measure.config.common import COMMON, COMMON_NAMES, IMPL, coerced
from mansard.measure.config.declared import Curve, Declared, read_hardware
from mansard.measure.config.flags import read_op_flags
from mansard.measure.config.names import find_benchmark, known_words
from mansard.measure.config.resolve import Outcome, Product, Surroundings, points_of
from mansard.measure.config.written import Notes, Written, from_command_line, read_entry, text_of
from mansard.measure.config.yamlfile import Place, Value, config_error, read_yaml, shown, table_of, unknown_name
from mansard.measure.points.benchmark import Waived, Where
from mansard.measure.points.result import Point

TOP_KEYS = ("global", "hardware", "benchmarks", "op_flags")
#: In which order values are merged, the later one wins; `--dry-run` prints it.
ORDER = "default < global < model preset < entry < CSV row < sweep < command line"

Machine = Mapping[str, Where | Waived] | Callable[[str], Where | Waived] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaivedPoint:
    """A point that is not run, and why."""

    point: Point
    waived: Waived


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a configuration asks for on a machine.

    Args:
        points: Points to run, in the order of the file.
        waived: Points that cannot run here, each with the reason.
        notes: What a reader must know of how the file was read.
        ceilings: Declared ceilings of its `hardware` block.
        curve: Declared memory bandwidth over size, if one was given.
        products: The sweeps with their sizes; none is ever cut.
        settings: Global values that are no parameters of a benchmark: `system`, `xprof_timing`, ...
        hardware: Catalogue name of `system`; None where none is given or it is not on record, which a note says.
        source: The file, or the command line.
        order: How values are merged.
    """

    points: tuple[Point, ...]
    waived: tuple[WaivedPoint, ...] = ()
    notes: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    curve: Curve | None = None
    products: tuple[Product, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware: str | None = None
    source: str = ""
    order: str = ORDER

    @property
    def size(self) -> int:
        """How many points the configuration has, waived ones counted."""
        return len(self.points) + len(self.waived)


def load_plan(path: str | Path, *, overrides: Mapping[str, Any] | None = None, where: Machine = None) -> Plan:
    """Return the plan of a configuration file.

    Args:
        path: A YAML file in either form of the published suite, or ours.
        overrides: Parameters from the command line; they come before everything in the file, sweeps included.
        where: What each backend runs on, by its name; None plans without a machine and waives only what is not there
            at all.

    Raises:
        InputError: the file cannot be read (exit 4).
        UsageError: anything in it is wrong, with file and line (exit 2).
    """
    notes = Notes()
    document = table_of(read_yaml(Path(path)), str(path))
    for key, value in document.items():
        if key not in TOP_KEYS:
            raise unknown_name(value.at, "key", key, TOP_KEYS, within="the file")
    if "benchmarks" not in document:
        raise config_error(Place(file=str(path)), "has no `benchmarks`", hint="benchmarks: [{name: hbm_bandwidth}]")
    listed = document["benchmarks"]
    if not listed.is_list or not listed.data:
        raise config_error(listed.at, f"benchmarks must be a list of entries, got {shown(listed)}")
    entries = [read_entry(item, notes) for item in listed.data]
    shared, settings = _read_global(document.get("global"), entries)
    flags = read_op_flags(_beside(path, document["op_flags"])) if "op_flags" in document else {}
    surroundings = Surroundings(
        shared=shared, overrides=_overrides(overrides or {}, entries, notes), flags=flags, where=_lookup(where),
        folder=Path(path).resolve().parent,
    )  # fmt: skip
    return _planned(
        entries, surroundings, notes, hardware=document.get("hardware"), settings=settings, source=str(path)
    )


def plan_from_command_line(name: str, params: Mapping[str, Any], *, where: Machine = None) -> Plan:
    """Return the plan of one benchmark named on the command line.

    Args:
        name: Benchmark name.
        params: Its parameters, as text or values; `a,b` and `1024..8192x2` are swept, in the order given.
        where: As in `load_plan`.

    Raises:
        UsageError: an unknown name or parameter, or a value of another kind.
    """
    notes = Notes()
    entry = from_command_line(name, params, notes)
    surroundings = Surroundings(where=_lookup(where), folder=Path.cwd())
    return _planned([entry], surroundings, notes, hardware=None, settings={}, source="command line")


def _planned(
    entries: list[Written], surroundings: Surroundings, notes: Notes, *, hardware: Value | None,
    settings: Mapping[str, Any], source: str,
) -> Plan:  # fmt: skip
    outcome = Outcome()
    for entry in entries:
        points_of(entry, surroundings, notes, outcome)
    platform = _platform(outcome, surroundings)
    declared = Declared()
    if hardware is not None:
        declared = read_hardware(hardware, dtype=settings.get("dtype"), platform=platform)
        for note in declared.notes:
            notes.add(note)
    points = _unique(outcome, notes)
    running = tuple(p for p, w in points if w is None)
    waived = tuple(WaivedPoint(point=p, waived=w) for p, w in points if w is not None)
    system = _system(settings.get("system") or outcome.system, platform, notes)
    return Plan(
        points=running, waived=waived, notes=notes.texts(), ceilings=declared.ceilings, curve=declared.curve,
        products=tuple(outcome.products), settings=settings, hardware=system, source=source,
    )  # fmt: skip


def _read_global(block: Value | None, entries: list[Written]) -> tuple[dict[str, tuple[Any, Place]], dict[str, Any]]:
    """Return the values merged into every entry, and the settings."""
    if block is None:
        return {}, {}
    known: set[str] = set(COMMON_NAMES)
    for entry in entries:
        known.update(known_words(find_benchmark(entry.name, entry.place), entry.name))
    shared: dict[str, tuple[Any, Place]] = {}
    settings: dict[str, Any] = {}
    by_name = {word: p for p in COMMON for word in (p.name, *p.aliases)}
    for key, value in table_of(block, "global").items():
        if key not in known:
            raise unknown_name(value.at, "key", key, known, within="global")
        if value.is_table or value.is_list:
            raise config_error(value.at, f"global.{key} is {shown(value)}; expected one value")
        shared[key] = (value.data, value.at)
        if key in by_name:
            settings[by_name[key].name] = coerced(by_name[key], value.data, value.at, within="global")
    return shared, settings


def _overrides(
    given: Mapping[str, Any], entries: list[Written], notes: Notes
) -> dict[str, tuple[tuple[Any, ...], Place]]:
    """Return the overrides, checked to mean something to at least one entry."""
    written = from_command_line("", given, notes).blocks[0]
    known = set(COMMON_NAMES)
    for entry in entries:
        known.update(known_words(find_benchmark(entry.name, entry.place), entry.name))
    out: dict[str, tuple[tuple[Any, ...], Place]] = {key: ((v,), at) for key, (v, at) in written.params.items()}
    out.update({key: (axis.values, axis.place) for key, axis in written.axes.items()})
    for key, (values, at) in out.items():
        if key not in known:
            raise unknown_name(
                at, "parameter", f"--{key}", [f"--{k}" for k in known], within="any benchmark of the file"
            )
        if key in (IMPL.name, *IMPL.aliases):
            _some_implementation(values, at, entries)
    return out


def _some_implementation(values: tuple[Any, ...], at: Place, entries: list[Written]) -> None:
    """Check that each implementation named on the command line is one of some benchmark of the file."""
    benchmarks = [find_benchmark(entry.name, entry.place) for entry in entries]
    known = {impl for b in benchmarks if b is not None for impl in b.implementations}
    for value in values:
        if value not in known:
            raise unknown_name(at, "implementation", str(value), known, within="any benchmark of the file")


def _unique(outcome: Outcome, notes: Notes) -> list[tuple[Point, Waived | None]]:
    """Return the points with names that occur once: a repeated point keeps its name with `#2` behind it."""
    seen: dict[str, int] = {}
    out: list[tuple[Point, Waived | None]] = []
    for point, waived in outcome.points:
        count = seen[point.name] = seen.get(point.name, 0) + 1
        if count > 1:
            place = Place(file=point.origin.rpartition(":")[0] or point.origin, line=_line(point.origin))
            notes.add("a point is the same as an earlier one and is measured again, marked with #", place)
            point = replace(point, name=f"{point.name} #{count}")
        out.append((point, waived))
    return out


def _line(origin: str) -> int:
    tail = origin.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0


def _lookup(where: Machine) -> Callable[[str], Where | Waived] | None:
    """Return a function that asks once for each backend."""
    if where is None:
        return None
    ask: Callable[[str], Where | Waived | None] = where if callable(where) else where.get

    @functools.cache
    def found(backend: str) -> Where | Waived:
        return ask(backend) or Waived(reason=f"the backend {backend} is not here", missing="backend")

    return found


def _platform(outcome: Outcome, surroundings: Surroundings) -> str | None:
    """Return what the points run on: an accelerator if any of them does, else `cpu`; None without a machine."""
    if surroundings.where is None:
        return None
    backends = dict.fromkeys(point.backend for point, _ in outcome.points if point.backend)
    found = [surroundings.where(backend) for backend in backends]
    platforms = [w.platform for w in found if isinstance(w, Where)]
    return next((p for p in platforms if p != "cpu"), "cpu" if platforms else None)


def _system(name: Any, platform: str | None, notes: Notes) -> str | None:
    """Return the catalogue name of `system`; whether it is what is here is said in a note."""
    if not name:
        return None
    found = match(str(name))
    if found.sku is None:
        near = f"; the nearest are {', '.join(found.candidates)}" if found.candidates else ""
        notes.add(f"system {name!r} is not in the hardware catalogue{near}; no declared peak is taken from it")
        return None
    if platform == "cpu" and not found.sku.kind.startswith("cpu"):
        notes.add(f"system {name!r} is {found.sku.name}; this runs on a CPU, so none of its peaks is used")
    elif platform is None:
        notes.add(f"system {name!r} is {found.sku.name}; its peaks count for points on such a device alone")
    return found.sku.slug


def _beside(path: str | Path, value: Value) -> Path:
    written = Path(text_of(value, "op_flags")).expanduser()
    beside = Path(path).resolve().parent / written
    for candidate in (beside, written):
        if candidate.is_file():
            return candidate
    raise config_error(value.at, f"op_flags: no file {str(written)!r}", hint="relative to the configuration file")
