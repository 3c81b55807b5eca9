"""What an entry of a configuration says, in one form for both versions of the published suite's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mansard.core.errors import UsageError
from mansard.measure.config.csvshapes import read_shapes
from mansard.measure.config.flags import variables
from mansard.measure.config.published import V1_KEYS, V1_OUTPUTS
from mansard.measure.config.sweeps import RANGE_KEYS, SweepError, range_values
from mansard.measure.config.typed import typed_option
from mansard.measure.config.yamlfile import Place, Value, config_error, shown, table_of, unknown_name

#: Keys of a v2 entry that are no parameters.
V2_KEYS = ("name", "sweep", "model", "csv_shapes", "env")


class Notes:
    """What a reader of a plan must know, each sentence once with the lines it belongs to."""

    def __init__(self) -> None:
        self._places: dict[str, list[Place]] = {}

    def add(self, text: str, place: Place | None = None) -> None:
        """Add a sentence; the same one from another line only adds the line."""
        places = self._places.setdefault(text, [])
        if place is not None and place not in places:
            places.append(place)

    def texts(self) -> tuple[str, ...]:
        """Return the sentences with their places."""
        return tuple(self._one(text, places) for text, places in self._places.items())

    @staticmethod
    def _one(text: str, places: list[Place]) -> str:
        if not places:
            return text
        more = len(places) - 1
        return f"{places[0]}{f' and {more} more' if more else ''}: {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The values of one swept parameter, and where they stand."""

    values: tuple[Any, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One set of parameters with the axes that are swept over it.

    Args:
        params: Fixed parameters as `(value, place)`.
        row: Those of a CSV row, which come before `params` and after nothing but the axes.
        axes: Swept parameters, the last one fastest.
        place: Where the block stands.
    """

    params: Mapping[str, tuple[Any, Place]] = field(default_factory=dict)
    row: Mapping[str, tuple[Any, Place]] = field(default_factory=dict)
    axes: Mapping[str, Axis] = field(default_factory=dict)
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One entry of `benchmarks`.

    Args:
        name: Benchmark name as written.
        place: Where the name stands.
        blocks: Its sets of parameters.
        model: Model preset or path, with its place.
        env: Environment variables of its own.
        version: 1 or 2, the form of the suite's files it is in.
    """

    name: str
    place: Place
    blocks: tuple[Block, ...]
    model: tuple[str, Place] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    version: int = 2


def read_entry(entry: Value, notes: Notes) -> Written:
    """Return one entry of `benchmarks`, in either form.

    Raises:
        UsageError: no name, keys of both forms, a key that is none, or a sweep that has no end.
    """
    keys = table_of(entry, "an entry of benchmarks")
    if "benchmark_name" in keys and "name" in keys:
        raise config_error(keys["name"].at, "has both name and benchmark_name; keep one")
    if "benchmark_name" in keys:
        return _read_v1(keys, notes)
    if "name" not in keys:
        raise config_error(entry.place, "an entry has no name", hint="write `name: hbm_bandwidth`, or another one")
    return _read_v2(keys, notes)


def text_of(value: Value, what: str) -> str:
    """Return a value that must be text.

    Raises:
        UsageError: it is not, or it is empty.
    """
    if not isinstance(value.data, str) or not value.data.strip():
        raise config_error(value.at, f"{what} must be text, got {shown(value)}")
    return value.data.strip()


def axis_of(key: str, value: Value, notes: Notes) -> Axis:
    """Return the values of a sweep form: a list, one value, or a range.

    Raises:
        UsageError: an empty list, a nested one, a key that no range has, or a range without an end.
    """
    if value.is_list:
        if not value.data:
            raise config_error(value.at, f"the sweep of {key} has no values")
        for item in value.data:
            if item.is_table or item.is_list:
                raise config_error(item.at, f"the sweep of {key} holds {shown(item)}; expected single values")
        return Axis(values=tuple(item.data for item in value.data), place=value.at)
    if not value.is_table:
        return Axis(values=(value.data,), place=value.at)
    for name, item in value.data.items():
        if name not in RANGE_KEYS:
            raise unknown_name(item.at, "key", name, RANGE_KEYS, within=f"the range of {key}")
    for name in ("start", "end"):
        if name not in value.data:
            raise config_error(value.at, f"the range of {key} has no {name}")
    parts = {name: item.data for name, item in value.data.items()}
    return range_axis(key, parts, value.at, notes)


def range_axis(key: str, parts: Mapping[str, Any], place: Place, notes: Notes) -> Axis:
    """Return the values of a range given by its parts.

    Raises:
        UsageError: it has no step, no end or no values.
    """
    try:
        values, added = range_values(
            parts["start"], parts["end"],
            multiplier=parts.get("multiplier"), increase_by=parts.get("increase_by"),
        )  # fmt: skip
    except SweepError as error:
        raise config_error(
            place, f"the range of {key} {error}", hint="write {start: 1, end: 8, multiplier: 2}, or increase_by: 1",
            code="sweep",
        ) from error  # fmt: skip
    if added:
        notes.add(
            f"{key} ends at {values[-1]}, which its steps do not meet; the published suite stops at {values[-2]}", place
        )
    return Axis(values=values, place=place)


def _read_v2(keys: Mapping[str, Value], notes: Notes) -> Written:
    name = text_of(keys["name"], "name")
    place = keys["name"].at
    params = {k: _fixed(k, v) for k, v in keys.items() if k not in V2_KEYS}
    axes: dict[str, Axis] = {}
    if "sweep" in keys:
        sweep = table_of(keys["sweep"], "sweep")
        if not sweep:
            raise config_error(keys["sweep"].at, "sweep names no parameter")
        axes = {key: axis_of(key, value, notes) for key, value in sweep.items()}
    blocks = [Block(params=params, axes=axes, place=place)]
    if "csv_shapes" in keys:
        at = keys["csv_shapes"].at
        table = read_shapes(text_of(keys["csv_shapes"], "csv_shapes"), at)
        for note in table.notes:
            notes.add(note)
        blocks = [
            Block(params=params, row={k: (v, row.place) for k, v in row.params.items()}, axes=axes, place=row.place)
            for row in table.rows
        ]
    model = (text_of(keys["model"], "model"), keys["model"].at) if "model" in keys else None
    env = variables(keys["env"]) if "env" in keys else {}
    return Written(name=name, place=place, blocks=tuple(blocks), model=model, env=env)


def _fixed(key: str, value: Value) -> tuple[Any, Place]:
    """Return a parameter outside of a sweep; `impl` may be a list, which is compared side by side."""
    if key in ("impl", "implementation") and value.is_list:
        return [item.data for item in value.data], value.at
    if value.is_table or value.is_list:
        raise config_error(
            value.at,
            f"{key} is {shown(value)}, outside of a sweep",
            hint=f"several values belong under `sweep: {{{key}: ...}}`",
        )
    return value.data, value.at


def _read_v1(keys: Mapping[str, Value], notes: Notes) -> Written:
    name = text_of(keys["benchmark_name"], "benchmark_name")
    place = keys["benchmark_name"].at
    for key, value in keys.items():
        if key not in V1_KEYS:
            raise unknown_name(value.at, "key", key, V1_KEYS, within=f"{name}, an entry of the suite's first version")
        if key in V1_OUTPUTS:
            notes.add(f"{key} is accepted; {V1_OUTPUTS[key]}", value.at)
    shared = {k: _fixed(k, keys[k]) for k in ("num_runs", "warmup_tries") if k in keys}
    blocks = [
        Block(params={**shared, **{k: _fixed(k, v) for k, v in table_of(item, "an item").items()}}, place=item.place)
        for item in _items(keys, "benchmark_params")
    ]
    for item in _items(keys, "benchmark_sweep_params"):
        axes = _v1_axes(item, notes)
        blocks.append(Block(params={k: v for k, v in shared.items() if k not in axes}, axes=axes, place=item.place))
    if not blocks:
        # The suite's first version runs nothing here; a benchmark without parameters of its own is one point.
        blocks = [Block(params=shared, place=place)]
    return Written(name=name, place=place, blocks=tuple(blocks), version=1)


def _items(keys: Mapping[str, Value], key: str) -> tuple[Value, ...]:
    if key not in keys:
        return ()
    value = keys[key]
    if value.is_table and key == "benchmark_sweep_params":
        return (value,)
    if not value.is_list:
        raise config_error(value.at, f"{key} must be a list of tables, got {shown(value)}")
    items: tuple[Value, ...] = value.data
    return items


def _v1_axes(item: Value, notes: Notes) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    for key, value in table_of(item, "an item of benchmark_sweep_params").items():
        name = key
        for suffix in ("_range", "_list"):
            name = name.removesuffix(suffix)
        if name in axes:
            raise config_error(value.at, f"{name} is given twice, as {key} and on line {axes[name].place.line}")
        axes[name] = axis_of(name, value, notes)
    return axes


def same_as(params: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return `params` with every `SAME_AS_x` replaced by the value of `x`.

    Raises:
        UsageError: there is no `x`, or it refers back.

    >>> same_as({"m": 8, "k": "SAME_AS_m", "n": "SAME_AS_k"}, Place(file="a.yaml"))
    {'m': 8, 'k': 8, 'n': 8}
    """
    return {key: _followed(key, params, place) for key in params}


def _followed(key: str, params: Mapping[str, Any], place: Place) -> Any:
    seen = [key]
    value = params[key]
    while isinstance(value, str) and value.startswith("SAME_AS_"):
        target = value.removeprefix("SAME_AS_")
        if target not in params:
            raise unknown_name(place, "parameter", target, params, within=f"{key}: {value}")
        if target in seen:
            raise config_error(place, f"{' -> '.join([*seen, target])} refers to itself")
        seen.append(target)
        value = params[target]
    return value


def from_command_line(name: str, params: Mapping[str, Any], notes: Notes) -> Written:
    """Return the entry of a benchmark named on the command line; several values with commas and ranges are swept.

    A range is `1024..8192x2` or `1024..8192+1024`.

    Raises:
        UsageError: a range that has no end.
    """

    place = Place(file="command line")
    fixed: dict[str, tuple[Any, Place]] = {}
    axes: dict[str, Axis] = {}
    model: tuple[str, Place] | None = None
    for key, raw in params.items():
        word = key.lstrip("-").replace("-", "_")
        if word == "model":
            model = (str(raw), place)
            continue
        try:
            value = typed_option(raw)
        except SweepError as error:
            raise UsageError(f"--{word}: {error}", hint="a range is 1024..8192x2 or 1024..8192+1024") from error
        if isinstance(value, dict):
            axes[word] = range_axis(word, value, place, notes)
        elif isinstance(value, list):
            axes[word] = Axis(values=tuple(value), place=place)
        else:
            fixed[word] = (value, place)
    return Written(name=name, place=place, blocks=(Block(params=fixed, axes=axes, place=place),), model=model)
