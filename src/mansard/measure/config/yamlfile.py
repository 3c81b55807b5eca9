"""YAML 1.2 with the file and line of every value, so that an error can say where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import InputError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something was written.

    Args:
        file: Name of the file as it was given, or `command line`.
        line: Line, from 1; 0 where there is none.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a configuration with its place.

    Args:
        data: A scalar, a tuple of `Value`, or a dict of name to `Value`.
        place: Where the value stands.
        key_place: Where its key stands; None in a list.
    """

    data: Any
    place: Place
    key_place: Place | None = None

    @property
    def at(self) -> Place:
        """Where to point: at the key, if there is one."""
        return self.key_place or self.place

    @property
    def is_table(self) -> bool:
        """Whether it is a mapping of names."""
        return isinstance(self.data, dict)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.data, tuple)

    def plain(self) -> Any:
        """Return the value without places: dicts, lists and scalars."""
        if isinstance(self.data, dict):
            return {name: item.plain() for name, item in self.data.items()}
        if isinstance(self.data, tuple):
            return [item.plain() for item in self.data]
        return self.data


def config_error(place: Place | None, message: str, *, hint: str = "", code: str = "config") -> UsageError:
    """Return the error of a configuration: place, what is wrong, and the next step (exit 2)."""
    return UsageError(f"{place}: {message}" if place else message, hint=hint, code=code)


def nearest(name: str, known: Iterable[str], count: int = 1) -> tuple[str, ...]:
    """Return the names of `known` that are closest to `name`, the closest first.

    >>> nearest("warmup_trys", ["num_runs", "warmup_tries"])
    ('warmup_tries',)
    """
    by_folded = {item.lower().replace("-", "_"): item for item in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=count, cutoff=0.5)
    return tuple(by_folded[item] for item in found)


MOST_NAMES = 40  # a longer list hides the nearest name


def unknown_name(place: Place | None, what: str, name: str, known: Iterable[str], *, within: str = "") -> UsageError:
    """Return the error of a name that is not known, with the nearest ones and, where it can be read, the whole list."""
    names = sorted(set(known))
    near = nearest(name, names)
    message = f"unknown {what} {name!r}" + (f" of {within}" if within else "")
    if near:
        message += f"; the nearest is {near[0]!r}"
    hint = "known: " + ", ".join(names) if len(names) <= MOST_NAMES else "`mansard measure --list` names them all"
    return config_error(place, message, hint=hint, code="unknown_name")


def read_yaml(path: Path) -> Value:
    """Return the document of a YAML file, each value with its place.

    Numbers follow YAML 1.2: `1e15` is a number, `no` is text, `12:30` is text.

    Raises:
        InputError: the file cannot be read (exit 4).
        UsageError: it is not YAML, a key is written twice or is not text, or a value has a tag (exit 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", hint="give the path of a YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise config_error(
            Place(file=str(path)), f"is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}"
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Value:
    """Return the document of YAML text; `name` stands for the file in errors.

    Raises:
        UsageError: as `read_yaml`.

    >>> v = parse_yaml("global:\\n  num_runs: 5\\n", "a.yaml")
    >>> v.plain(), str(v.data["global"].data["num_runs"].at)
    ({'global': {'num_runs': 5}}, 'a.yaml:2')
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        nodes = list(yaml.compose_all(text)) if "\n---" in text or text.startswith("---") else [yaml.compose(text)]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file=name, line=mark.line + 1 if mark else 0)
        raise config_error(
            place, f"is not YAML: {error.problem or error}", hint="check indentation, colons and quotes"
        ) from error
    except RecursionError:
        raise config_error(Place(file=name), "is nested too deeply") from None
    except YAMLError as error:
        raise config_error(Place(file=name), f"is not YAML: {error}") from error
    if len(nodes) > 1:
        raise config_error(
            Place(file=name, line=nodes[1].start_mark.line + 1), "holds a second document; one is expected"
        )
    if not nodes or nodes[0] is None:
        raise config_error(Place(file=name), "is empty; expected a table with `benchmarks`")
    return _Reader(name, yaml.constructor).value(nodes[0], None)


class _Reader:
    def __init__(self, name: str, constructor: Any) -> None:
        self.name = name
        self.constructor = constructor
        self.open: set[int] = set()

    def place(self, node: Any) -> Place:
        return Place(file=self.name, line=node.start_mark.line + 1)

    def value(self, node: Any, key_place: Place | None) -> Value:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        place = self.place(node)
        if id(node) in self.open:
            raise config_error(place, "an alias refers to the value that holds it")
        if isinstance(node, MappingNode | SequenceNode):
            self.open.add(id(node))
            data: Any = self.table(node) if isinstance(node, MappingNode) else tuple(
                self.value(item, None) for item in node.value
            )  # fmt: skip
            self.open.discard(id(node))
            return Value(data=data, place=place, key_place=key_place)
        return Value(data=self.scalar(node, place), place=place, key_place=key_place)

    def scalar(self, node: Any, place: Place) -> Any:
        kind = str(node.tag).rpartition(":")[2]
        if kind not in ("str", "timestamp", "int", "float", "bool", "null"):
            raise config_error(place, f"a value of type {kind!r} is not read here; write it as text in quotes")
        construct = self.constructor
        try:
            if kind == "int":
                return int(construct.construct_yaml_int(node))
            if kind == "float":
                return float(construct.construct_yaml_float(node))
            if kind == "bool":
                return bool(construct.construct_yaml_bool(node))
        except ValueError as error:
            raise config_error(place, f"cannot read {node.value!r}: {error}") from error
        return None if kind == "null" else str(node.value)

    def table(self, node: Any) -> dict[str, Value]:
        merged: dict[str, Value] = {}
        own: dict[str, Value] = {}
        for key, item in node.value:
            where = self.place(key)
            if str(key.tag).endswith(":merge"):
                for base in self.bases(item):
                    merged = {**self.table(base), **merged}
                continue
            word = key.value if isinstance(key.value, str) else None
            if word is None:
                raise config_error(where, "a key must be a word")
            if word in own:
                raise config_error(where, f"{word!r} is written twice; the first is on line {own[word].at.line}")
            own[word] = self.value(item, where)
        return {**merged, **own}

    def bases(self, node: Any) -> Iterator[Any]:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        nodes = node.value if isinstance(node, SequenceNode) else [node]
        for base in nodes:
            if not isinstance(base, MappingNode):
                raise config_error(self.place(base), "`<<` merges tables only")
            yield base


def table_of(value: Value, what: str) -> Mapping[str, Value]:
    """Return the entries of a table.

    Raises:
        UsageError: `value` is not a table.
    """
    if not value.is_table:
        raise config_error(value.at, f"{what} must be a table of names and values, got {shown(value)}")
    entries: Mapping[str, Value] = value.data
    return entries


def shown(value: Value) -> str:
    """Return a value in words for an error."""
    if value.is_table:
        return "a table"
    if value.is_list:
        return f"a list of {len(value.data)}"
    return "nothing" if value.data is None else repr(value.data)
