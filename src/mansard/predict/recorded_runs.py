"""Recorded runs in a CSV file, each bounded by an estimate, so that predictions can be held against them."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mansard.core import Unknown
from mansard.core.errors import InputError, MansardError, UsageError
from mansard.predict.bound import Machine
from mansard.predict.calibration import kind_of
from mansard.predict.estimate import PHASES, Request, estimate
from mansard.predict.machines import load_machine
from mansard.predict.validation import Case
from mansard.workload.model.load import load_model
from mansard.workload.parallel import Plan
from mansard.workload.records import Model
from mansard.workload.training import Recipe

PLAN = ("tp", "pp", "dp", "ep", "cp", "zero")
NUMBERS = ("batch", "context", "seq", "cached", "chunk", "prompts", "micro_batch", "accumulation")
WORDS = ("dtype", "weights", "activations", "kv", "overlap")
NEEDED = ("model", "on", "phase")
MEASURED = ("time_s", "tokens_per_s")
COLUMNS = ("name", "group", *NEEDED, *NUMBERS, *PLAN, *WORDS, "recompute", "lora_rank", *MEASURED)


def read_runs(path: Path) -> tuple[list[Case], list[dict[str, str]]]:
    """Return the runs of a CSV file as cases, and those that cannot be bounded, each with the reason.

    A row has `model` (a shipped name, or a config.json relative to the file), `on` (see `machines.load_machine`), `phase`, the
    fields of `estimate.Request` that the phase needs, and what was measured: `time_s` of the phase (a step, a prompt, one token of
    every sequence), or `tokens_per_s` of all devices. `group` names what it has in common with others; without it, the model.

    Raises:
        InputError: no such file, no rows, a column that is not known, or one that is missing.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = [c.strip() for c in reader.fieldnames or ()]
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}", hint="a CSV file with a header line") from None
    for name in columns:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"columns: {', '.join(COLUMNS)}"
            raise InputError(f"{path}: no such column {name!r}", hint=hint)
    missing = [name for name in NEEDED if name not in columns]
    if missing or not any(name in columns for name in MEASURED):
        raise InputError(
            f"{path}: no column {missing[0] if missing else ' or '.join(MEASURED)}",
            hint=f"every row needs {', '.join(NEEDED)} and {' or '.join(MEASURED)}",
        )
    if not rows:
        raise InputError(f"{path} has no rows")
    cases: list[Case] = []
    refused: list[dict[str, str]] = []
    for number, row in enumerate(rows, start=2):  # the header is line 1
        filled = {k.strip(): v.strip() for k, v in row.items() if k and isinstance(v, str) and v.strip()}
        name = filled.get("name") or f"line {number}"
        try:
            if None in row:
                raise UsageError("more cells than the header has columns")
            cases.append(_case(name, filled, path.parent))
        except MansardError as error:
            refused.append({"name": name, "reason": f"line {number}: {error.message}"})
    return cases, refused


def _case(name: str, row: Mapping[str, str], folder: Path) -> Case:
    lost = [key for key in NEEDED if key not in row]
    if lost:
        raise UsageError(f"no {lost[0]}")
    given = [key for key in MEASURED if key in row]
    if len(given) != 1:
        raise UsageError(f"{len(given)} of {' and '.join(MEASURED)} are given, expected one")
    value = _positive(given[0], row[given[0]])
    result = estimate(_model(row["model"], folder), _request(row), _machine(row["on"], folder))
    bound = result.bound
    if isinstance(bound, Unknown) or isinstance(bound.time_s, Unknown):
        reason = bound if isinstance(bound, Unknown) else bound.time_s
        assert isinstance(reason, Unknown)
        raise UsageError(f"no bound: {reason.reason}")
    kind = kind_of(result)
    if kind is None:
        raise UsageError(f"runs of phase {row['phase']} are of no kind that is compared")
    bound_s = float(bound.time_s)
    if given[0] == "tokens_per_s":
        if isinstance(result.tokens_per_s, Unknown):
            raise UsageError(f"no rate: {result.tokens_per_s.reason}")
        measured_s = bound_s * result.tokens_per_s / value
    else:
        measured_s = value
    about = ", ".join(f"{key} {row[key]}" for key in ("on", "phase", "batch", "context", "seq", *PLAN) if key in row)
    return Case(
        name=name,
        group=row.get("group") or row["model"],
        kind=kind,
        bound_s=bound_s,
        measured_s=measured_s,
        about=about,
    )


def _request(row: Mapping[str, str]) -> Request:
    if row["phase"] not in PHASES:
        raise UsageError(f"phase {row['phase']!r}, expected one of {', '.join(PHASES)}")
    if row.get("overlap", "full") not in ("full", "none"):
        raise UsageError(f"overlap {row['overlap']!r}, expected full or none")
    fields: dict[str, Any] = {key: _whole(key, row[key]) for key in NUMBERS if key in row}
    fields |= {key: row[key] for key in WORDS if key in row}
    recipe: dict[str, Any] = {"recompute": row["recompute"]} if "recompute" in row else {}
    if "lora_rank" in row:
        recipe["lora_rank"] = _whole("lora_rank", row["lora_rank"])
    return Request(
        phase=row["phase"],
        plan=Plan(**{key: _whole(key, row[key]) for key in PLAN if key in row}),
        recipe=Recipe(**recipe),
        **fields,
    )


def _whole(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{key} is {text!r}, expected a whole number") from None


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise UsageError(f"{key} is {text!r}, expected a number above zero")
    return value


@lru_cache(maxsize=64)
def _model(name: str, folder: Path) -> Model:
    beside = folder / name
    return load_model(str(beside) if beside.exists() else name)


@lru_cache(maxsize=64)
def _machine(name: str, folder: Path) -> Machine:
    beside = folder / name
    return load_machine(str(beside) if beside.is_file() else name)
