"""From what an entry says to points: values merged in order, kinds checked, sweeps multiplied out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.measure.config.common import COMMON, COMMON_NAMES, IMPL, TIMING, coerced, default_of
from mansard.measure.config.flags import Environment, flags_for, merged
from mansard.measure.config.names import filled, find_benchmark, known_words, meaning_of, point_name
from mansard.measure.config.presets import PresetError, as_parameters, preset
from mansard.measure.config.published import canonical, missing
from mansard.measure.config.sweeps import product, product_size
from mansard.measure.config.written import Block, Notes, Written, same_as
from mansard.measure.config.yamlfile import Place, config_error, unknown_name
from mansard.measure.points.benchmark import Benchmark, NeedsFlags, Parameter, Sweeps, Waived, Where
from mansard.measure.points.result import Point

Placed = tuple[Any, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A sweep that was multiplied out.

    Args:
        benchmark: Name as written.
        origin: Where it stands.
        axes: Swept parameters with the number of their values, the last one fastest.
        size: Points it makes.
    """

    benchmark: str
    origin: str
    axes: Mapping[str, int]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an entry stands in.

    Args:
        shared: Values of `global`.
        overrides: Values of the command line: several of them are swept.
        flags: Environment by benchmark name, from `op_flags`.
        where: What a backend runs on; None plans without a machine.
        folder: Where relative paths start.
    """

    shared: Mapping[str, Placed] = field(default_factory=dict)
    overrides: Mapping[str, tuple[tuple[Any, ...], Place]] = field(default_factory=dict)
    flags: Mapping[str, Environment] = field(default_factory=dict)
    where: Callable[[str], Where | Waived] | None = None
    folder: Path = field(default_factory=Path)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The points that were made so far, with the reason of those that are waived."""

    points: list[tuple[Point, Waived | None]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Values of one block by the name of their parameter: fixed ones, and axes."""

    fixed: dict[str, Placed]
    axes: dict[str, tuple[tuple[Any, ...], Place]]


def points_of(entry: Written, around: Surroundings, notes: Notes, outcome: Outcome) -> None:
    """Add the points of one entry to `outcome`.

    Raises:
        UsageError: an unknown name, a value of another kind, a required parameter that is not given, ...
    """
    benchmark = find_benchmark(entry.name, entry.place)
    if benchmark is not None and entry.name != benchmark.name:
        notes.add(f"{entry.name} is another name of {benchmark.name}, under which its results stand", entry.place)
    dimensions = _dimensions(entry, around)
    for block in entry.blocks:
        if benchmark is None:
            _points_not_here(entry, block, around, outcome)
        else:
            layers = _layers(entry, block, benchmark, around, dimensions, notes)
            _expand(entry, block, benchmark, layers, around, notes, outcome)


def _dimensions(entry: Written, around: Surroundings) -> dict[str, tuple[Any, str]]:
    if entry.model is None:
        return {}
    name, place = entry.model
    try:
        return as_parameters(preset(name, around.folder))
    except PresetError as error:
        raise config_error(place, str(error), code="unknown_model") from error


def _layers(
    entry: Written, block: Block, benchmark: Benchmark, around: Surroundings,
    dimensions: Mapping[str, tuple[Any, str]], notes: Notes,
) -> _Layers:  # fmt: skip
    fixed: dict[str, Placed] = {}
    axes: dict[str, tuple[tuple[Any, ...], Place]] = {}
    for word, (value, place) in around.shared.items():
        meaning = meaning_of(word, benchmark, entry.name)
        if meaning is not None and meaning.parameter is not None:
            fixed[meaning.parameter.name] = (value, place)
        elif word == "dtype":
            own = [p.name for p in benchmark.parameters if p.kind == "dtype"]
            has = f"has {' and '.join(own)}" if own else "has no element type"
            notes.add(f"the global dtype is not one of {entry.name}, which {has}", place)
    _add_preset(entry, benchmark, fixed, dimensions, notes)
    for layer in (block.params, block.row):
        seen: dict[str, str] = {}
        for word, (value, place) in layer.items():
            name = _parameter_name(word, place, benchmark, entry, notes)
            if name is None:
                continue
            _once(name, word, seen, place, entry)
            axes.pop(name, None)
            if isinstance(value, list):
                axes[name] = (tuple(value), place)
            else:
                fixed[name] = (value, place)
    seen = {}
    for word, axis in block.axes.items():
        name = _parameter_name(word, axis.place, benchmark, entry, notes)
        if name is not None:
            _once(name, word, seen, axis.place, entry)
            fixed.pop(name, None)
            axes[name] = (axis.values, axis.place)
    for word, (values, place) in around.overrides.items():
        meaning = meaning_of(word, benchmark, entry.name)
        if meaning is None or meaning.parameter is None:
            notes.add(f"--{word} is no parameter of {entry.name}, whose points stay as they are written")
            continue
        name = meaning.parameter.name
        if name == IMPL.name:
            here = tuple(v for v in values if v in benchmark.implementations)
            if len(here) < len(values):
                lacking = ", ".join(str(v) for v in values if v not in here)
                notes.add(
                    f"{entry.name} has no implementation {lacking}" + ("" if here else "; it stays as it is written")
                )
            if not here:
                continue
            values = here
        fixed.pop(name, None)
        axes.pop(name, None)
        if len(values) == 1:
            fixed[name] = (values[0], place)
        else:
            axes[name] = (values, place)
    _say_default_result(benchmark, entry, {**fixed, **axes}, notes)
    return _Layers(fixed=fixed, axes=_impl_last(axes, fixed, in_sweep=IMPL.name in block.axes))


def _say_default_result(
    benchmark: Benchmark, entry: Written, given: Mapping[str, tuple[Any, Place | None]], notes: Notes
) -> None:
    """Say which type the result has where an entry tells that of the operands alone."""
    if "in_dtype" not in given or "out_dtype" in given:
        return
    default = next((p.default for p in benchmark.parameters if p.name == "out_dtype"), None)
    value, place = given["in_dtype"]
    if default is not None and value != default:
        told = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        notes.add(
            f"{entry.name} has in_dtype {told} and its default out_dtype {default}: say out_dtype for another", place
        )


def _impl_last(
    axes: dict[str, tuple[tuple[Any, ...], Place]], fixed: dict[str, Placed], *, in_sweep: bool
) -> dict[str, tuple[tuple[Any, ...], Place]]:
    """Turn `impl: a,b` into an axis; implementations of one shape stand side by side, so it is the fastest one."""
    if IMPL.name in fixed and isinstance(fixed[IMPL.name][0], str) and "," in fixed[IMPL.name][0]:
        value, place = fixed.pop(IMPL.name)
        axes[IMPL.name] = (tuple(word.strip() for word in value.split(",") if word.strip()), place)
    if IMPL.name in axes and not in_sweep:
        axes[IMPL.name] = axes.pop(IMPL.name)
    return axes


def _once(name: str, word: str, seen: dict[str, str], place: Place, entry: Written) -> None:
    if name in seen:
        raise config_error(place, f"{seen[name]} and {word} are the same parameter of {entry.name}; keep one")
    seen[name] = word


def _parameter_name(word: str, place: Place, benchmark: Benchmark, entry: Written, notes: Notes) -> str | None:
    meaning = meaning_of(word, benchmark, entry.name)
    own = [p.name for p in benchmark.parameters if p.kind == "dtype"]
    if meaning is None and word == "dtype" and own:
        raise config_error(
            place, f"{entry.name} has no parameter 'dtype', because its operands and its result may differ",
            hint=f"say {', '.join(own)}; a dtype under `global` is for the benchmarks that have one", code="unknown_name",
        )  # fmt: skip
    if meaning is None:
        raise unknown_name(place, "parameter", word, known_words(benchmark, entry.name), within=entry.name)
    if meaning.parameter is None:
        notes.add(f"{word} of {entry.name} is accepted without effect: {meaning.why}", place)
        return None
    return meaning.parameter.name


def _add_preset(
    entry: Written, benchmark: Benchmark, fixed: dict[str, Placed], dimensions: Mapping[str, tuple[Any, str]],
    notes: Notes,
) -> None:  # fmt: skip
    """Add the dimensions of a model that are parameters of the benchmark, and say which they are."""
    if entry.model is None:
        return
    name, place = entry.model
    own = {word for p in benchmark.parameters for word in (p.name, *p.aliases)}
    taken: dict[str, str] = {}
    for parameter in benchmark.parameters:
        for word in (parameter.name, *parameter.aliases):
            value, source = dimensions.get(word, (None, ""))
            # Another word for a field counts only where the field itself is none: kv_seq_len follows seq_len.
            if value is None or (source != word and source in own):
                continue
            fixed[parameter.name] = (value, place)
            taken[source] = f"{parameter.name}={value}" + (f" ({source})" if source != parameter.name else "")
            break
    left = [source for source in dict.fromkeys(s for _, s in dimensions.values()) if source not in taken]
    said = "gives " + ", ".join(taken.values()) if taken else "names none of its parameters; nothing is taken from it"
    if taken and left:
        said += f"; not its parameters: {', '.join(left)}"
    notes.add(f"model {name} of {entry.name} {said}", place)


def _expand(
    entry: Written, block: Block, benchmark: Benchmark, layers: _Layers, around: Surroundings, notes: Notes,
    outcome: Outcome,
) -> None:  # fmt: skip
    by_name = {p.name: p for p in benchmark.parameters}
    _settings(entry, layers, by_name, notes, outcome)
    values = {name: [(v, place) for v in axis] for name, (axis, place) in layers.axes.items()}
    before = len(outcome.points)
    for combination in product(values):
        placed = {**layers.fixed, **combination}
        raw = same_as({name: value for name, (value, _) in placed.items()}, block.place)
        given = {
            name: coerced(by_name[name], raw[name], placed[name][1], within=entry.name)
            for name in raw if name in by_name
        }  # fmt: skip
        params, lacking = filled(benchmark, given)
        if lacking:
            raise config_error(
                block.place, f"{entry.name} needs {', '.join(lacking)}", hint="give it in the entry, a sweep or global"
            )
        timing = {
            p.name: coerced(p, raw[p.name], placed[p.name][1], within=entry.name) if p.name in raw else default_of(p)
            for p in TIMING if p.name not in by_name
        }  # fmt: skip
        impl = _implementation(benchmark, raw, placed, entry)
        for one in _several(entry, benchmark, params, block.place):
            _add(entry, benchmark, impl, {**timing, **one}, block.place, around, outcome)
    made = len(outcome.points) - before
    axes = {name: len(axis) for name, axis in values.items()}
    if made != product_size(values):
        axes["sizes of its own"] = made // product_size(values)
    if axes:
        outcome.products.append(Product(benchmark=entry.name, origin=str(block.place), axes=axes, size=made))


def _several(
    entry: Written, benchmark: Benchmark, params: Mapping[str, Any], place: Place
) -> Sequence[Mapping[str, Any]]:
    """Return the parameters of each point that one set of them stands for."""
    if not isinstance(benchmark, Sweeps):
        return [params]
    try:
        return benchmark.expand(params)
    except UsageError as error:
        raise config_error(place, f"{entry.name}: {error.message}", hint=error.hint) from error


def _settings(
    entry: Written, layers: _Layers, by_name: Mapping[str, Parameter], notes: Notes, outcome: Outcome
) -> None:
    """Check what an entry says beside the parameters of its benchmark, and say what comes of it."""
    common = {p.name: p for p in COMMON if p.name not in by_name}
    for name, (_, place) in layers.axes.items():
        if name in common and name not in (IMPL.name, *(p.name for p in TIMING)):
            raise config_error(place, f"{name} changes nothing of a point, so it cannot be swept")
    for name, (value, place) in layers.fixed.items():
        if name in common and not (isinstance(value, str) and value.startswith("SAME_AS_")):
            _note_setting(name, coerced(common[name], value, place, within=entry.name), place, notes, outcome)


def _note_setting(name: str, value: Any, place: Place, notes: Notes, outcome: Outcome) -> None:
    if name == "xprof_timing" and value is True:
        notes.add(
            "xprof_timing is accepted; times are wall times with the dispatch floor and the slope beside them", place
        )
    elif name == "use_trace_roofline" and value is True:
        notes.add("use_trace_roofline is accepted; every point is checked against the compiler's count anyway", place)
    elif name == "xprof_dir" and value is not None:
        notes.add("xprof_dir is accepted; no profile is written", place)
    elif name == "system" and value is not None:
        outcome.system = str(value)


def _implementation(benchmark: Benchmark, raw: Mapping[str, Any], placed: Mapping[str, Placed], entry: Written) -> str:
    named = raw.get(IMPL.name)
    if named is None:
        return next(iter(benchmark.implementations))
    if named not in benchmark.implementations:
        raise unknown_name(
            placed[IMPL.name][1], "implementation", str(named), benchmark.implementations, within=entry.name
        )
    return str(named)


def _add(
    entry: Written, benchmark: Benchmark, impl: str, params: Mapping[str, Any], place: Place, around: Surroundings,
    outcome: Outcome,
) -> None:  # fmt: skip
    backend = benchmark.implementations[impl]
    found = around.where(backend) if around.where is not None else None
    try:
        needed = benchmark.flags(params, impl) if isinstance(benchmark, NeedsFlags) else {}
        waived = benchmark.waived(params, impl, found) if isinstance(found, Where) else found
    except UsageError as error:
        # A benchmark knows what its parameters mean together; where they stand is known here.
        raise config_error(place, f"{entry.name}: {error.message}", hint=error.hint) from error
    names = (entry.name, canonical(entry.name), benchmark.name, *benchmark.aliases)
    point = Point(
        benchmark=benchmark.name,
        impl=impl,
        backend=backend,
        params={**params, IMPL.name: impl},
        name=point_name(benchmark, impl, params),
        origin=str(place),
        flags=merged(flags_for(names, around.flags), needed, entry.env),
    )
    outcome.points.append((point, waived))


def _points_not_here(entry: Written, block: Block, around: Surroundings, outcome: Outcome) -> None:
    """Add the points of a name of the published suite that has no benchmark here; its parameters are checked by name."""
    name = canonical(entry.name)
    known = known_words(None, name)
    for word, place in [*((w, p) for w, (_, p) in {**block.params, **block.row}.items()),
                        *((w, axis.place) for w, axis in block.axes.items())]:  # fmt: skip
        if word not in known:
            raise unknown_name(place, "parameter", word, known, within=entry.name)
    axes: dict[str, tuple[Any, ...]] = {word: axis.values for word, axis in block.axes.items()}
    fixed = {word: value for word, (value, _) in {**block.params, **block.row}.items() if word not in axes}
    for word, (values, _) in around.overrides.items():
        if word in known:
            fixed.pop(word, None)
            axes[word] = values
    why = missing(name)
    reason = why.reason if why is not None else f"there is no benchmark {name}"
    if axes:
        outcome.products.append(
            Product(
                benchmark=entry.name, origin=str(block.place), axes={k: len(v) for k, v in axes.items()},
                size=product_size(axes),
            )
        )  # fmt: skip
    for combination in product(axes):
        params = same_as({**fixed, **combination}, block.place)
        shape = {word: value for word, value in params.items() if word not in COMMON_NAMES or word == "dtype"}
        words = " ".join(f"{word}={value}" for word, value in shape.items())
        point = Point(
            benchmark=name, impl="", backend="", params=params, name=f"{name} {words}".strip(),
            origin=str(block.place),
        )  # fmt: skip
        outcome.points.append((point, Waived(reason=reason, missing="implementation")))
