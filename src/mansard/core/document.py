"""JSON documents: the header every one of them starts with, and the way records become JSON."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from mansard import __version__
from mansard.core.errors import InputError

TOOL_VERSION = __version__


def header(schema: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first keys of every document: `schema`, `tool_version`, `created`, `environment`.

    Args:
        schema: Name and major version, such as `run/1`.
        environment: What the numbers belong to.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"schema": schema, "tool_version": TOOL_VERSION, "created": now, "environment": dict(environment)}


def to_jsonable(value: Any) -> Any:
    """Return `value` as plain JSON types; records become objects, NaN and infinity are refused.

    >>> to_jsonable({"a": np.float64(1.5), "b": (1, None)})
    {'a': 1.5, 'b': [1, None]}
    """
    if hasattr(value, "to_json"):
        return to_jsonable(value.to_json())
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k.value if isinstance(k, Enum) else k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(v) for v in value]
    if isinstance(value, np.ndarray):
        return [to_jsonable(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        return to_jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a document never holds NaN or infinity; use Unknown")
    if isinstance(value, Path):
        return str(value)
    return value


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text with a final newline."""
    return json.dumps(to_jsonable(document), indent=2, allow_nan=False) + "\n"


#: What reading a document of the right kind and the wrong content runs into.
DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def parse_json(text: str, name: str, *, hint: str = "") -> Any:
    """Return the content of JSON text, whose numbers are finite and fit into a float.

    Args:
        text: The text.
        name: What it is called in an error: a path, or stdin.
        hint: The next step a person can take.

    Raises:
        InputError: it is no JSON, is nested without end, or holds NaN, Infinity or a number that no float holds.

    >>> parse_json('{"a": 1e3}', "x.json")
    {'a': 1000.0}
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except json.JSONDecodeError as error:
        what = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        what = "it is nested too deeply"
    except ValueError as error:
        what = str(error)
    raise InputError(f"{name} is not valid JSON: {what}", hint=hint)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


@contextmanager
def damage_named(what: str, *, hint: str = "the file may be cut short") -> Iterator[None]:
    """Turn what a document with wrong content does to its reader into one error that names the document.

    Args:
        what: The document in words, such as `a.json is a damaged run/1 document`.
        hint: The next step a person can take.

    Raises:
        InputError: the body met a missing key, or a value of another type or size.
    """
    try:
        yield
    except DAMAGE as error:
        raise InputError(f"{what}: {damage_in_words(error)}", hint=hint) from None


def damage_in_words(error: Exception) -> str:
    """Return what is wrong with a document, from what its reader ran into.

    >>> damage_in_words(KeyError("value"))
    "it lacks the key 'value'"
    """
    if isinstance(error, KeyError):
        return f"it lacks the key {str(error)[:120]}"
    if isinstance(error, IndexError):
        return "a list in it is too short"
    if isinstance(error, AttributeError | TypeError):
        return f"it has a value of the wrong type: {str(error)[:200]}"
    return f"it has a value that cannot be: {str(error)[:200]}"


def read_document(path: Path, schema: str) -> dict[str, Any]:
    """Read a document and check that it is a `schema` of a major version this program knows.

    Args:
        path: The file.
        schema: The expected name and newest major version, such as `ceilings/1`.

    Raises:
        InputError: missing, not JSON, another kind of document, or a newer major version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text, expected a {schema} document") from None
    document = parse_json(text, str(path))
    name, major = schema.split("/")
    got = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(got, str) or got.split("/")[0] != name:
        raise InputError(
            f"{path} is not a {name} document (schema {got!r})", hint=f"expected a JSON object with schema {schema!r}"
        )
    version = got.partition("/")[2]
    if not (version.isascii() and version.isdigit() and len(version) < 10) or not int(major) - 1 <= int(version) <= int(
        major
    ):
        raise InputError(f"{path} has schema {got!r}, this version reads up to {schema!r}", hint="update mansard")
    return dict(document)
