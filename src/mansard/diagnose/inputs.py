"""What files are, by their content: profiles, ceilings, measured points, diagnoses, a model; and records in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceilings, read_ceilings
from mansard.core.document import parse_json, read_document
from mansard.core.errors import InputError, UsageError
from mansard.diagnose.document import from_document
from mansard.diagnose.records import Diagnosis
from mansard.trace.many import files_of
from mansard.trace.open import recognise
from mansard.trace.recorders.record import META_FILE
from mansard.trace.timeline import Timeline

_HEAD = 1 << 16
_SCHEMA = re.compile(r'"schema"\s*:\s*"([a-z_]+)/\d+"')
_MODEL_KEYS = ('"model_type"', '"architectures"', '"num_hidden_layers"', '"n_layer"')
_DIAGNOSES = ("run", "diagnose")
#: What one can give: the name of a file, or a record that was read or made before.
Source = str | Path | Timeline | Ceilings | Diagnosis


@dataclass(slots=True, kw_only=True)
class Inputs:
    """Files by what they are.

    Args:
        profiles: Recorded profiles; several are ranks of one job.
        counters: Nsight Compute reports beside a profile: measured FLOP and bytes of its kernels.
        ceilings: Measured ceilings.
        points: Elements of `detailed.json`.
        opened: Profiles that were opened already, beside or instead of files.
        recordings: Folders that `mansard run --keep` left.
        documents: Finished diagnoses.
        model: A model configuration.
        sources: What each file was taken for, in their order.
    """

    profiles: list[Path] = field(default_factory=list)
    opened: list[Timeline] = field(default_factory=list)
    counters: list[Path] = field(default_factory=list)
    ceilings: Ceilings | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    recordings: list[Path] = field(default_factory=list)
    documents: list[Diagnosis] = field(default_factory=list)
    model: Path | None = None
    sources: list[tuple[str, str]] = field(default_factory=list)


def kind_of(path: Path) -> str:
    """Return what a file is: `ceilings`, `detailed`, `run`, `diagnose`, `model`, `results`, `recording` (folders) or `profile`."""
    if path.is_dir():
        if (path / "ceilings.json").is_file() or (path / "detailed.json").is_file():
            return "results"
        if (path / META_FILE).is_file():
            return "recording"
        return "model" if (path / "config.json").is_file() else "profile"
    try:
        with path.open("rb") as file:
            text = file.read(_HEAD)
    except OSError:
        return "profile"  # its reader says what is wrong
    start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"["):
        return "profile"
    words = start.decode("utf-8", errors="replace")
    found = _SCHEMA.search(words[:4096])
    if found and not words.startswith("{") and found.group(1) != "detailed":
        return "profile"
    if found:
        return found.group(1)
    traced = '"traceEvents"' in words or '"ph"' in words or '"deviceProperties"' in words
    return "model" if not traced and start[:1] == b"{" and any(k in words for k in _MODEL_KEYS) else "profile"


def sort_inputs(given: Sequence[Source]) -> Inputs:
    """Return files and records by what they are; a folder or a pattern of profiles stands for the files in it.

    Raises:
        UsageError: Two of what there can be one of, or a document that no diagnosis is made of.
        InputError: A file that cannot be read, or a word that names none.
    """
    found = Inputs()
    for one in given:
        if isinstance(one, Timeline):
            found.opened.append(one)
            found.sources.append((one.source, "profile"))
        elif isinstance(one, Ceilings):
            _set_ceilings(found, one, one.source)
        elif isinstance(one, Diagnosis):
            found.documents.append(one)
            found.sources.append((one.program, "diagnose"))
        elif isinstance(one, str | Path):
            _add_named(found, Path(one))
        else:
            raise UsageError(
                f"{type(one).__name__} is nothing that a diagnosis is made of",
                hint="the name of a file, or an opened profile, ceilings, or a diagnosis",
            )
    _set_counters_apart(found)
    return found


def _add_named(found: Inputs, path: Path) -> None:
    """Add what a path is; a folder that is something by itself stays one."""
    kind = kind_of(path)
    if kind == "results":
        for name in ("ceilings.json", "detailed.json"):
            if (path / name).is_file():
                _add(found, path / name, "ceilings" if name == "ceilings.json" else "detailed")
    elif kind == "profile":
        for one in files_of([path]):
            if kind_of(one) == "profile":
                _add(found, one, "profile")
            else:
                _add_named(found, one)
    else:
        _add(found, path, kind)


def _add(found: Inputs, path: Path, kind: str) -> None:
    if kind == "profile":
        found.profiles.append(path)
    elif kind == "ceilings":
        _set_ceilings(found, read_ceilings(path), str(path))
        return
    elif kind == "detailed":
        found.points += _points(path)
    elif kind in _DIAGNOSES:
        found.documents.append(from_document(read_document(path, f"{kind}/1")))
    elif kind == "recording":
        found.recordings.append(path)
    elif kind == "model":
        if found.model is not None:
            raise UsageError(f"{path} is the second model", hint="give one config.json")
        found.model = path
    else:
        raise UsageError(
            f"{path} is a {kind} document, and no diagnosis is made of that",
            hint="profiles, ceilings.json, detailed.json, recordings, run and diagnose documents, and a model's config.json are",
        )
    found.sources.append((str(path), kind))


def _set_ceilings(found: Inputs, ceilings: Ceilings, name: str) -> None:
    if found.ceilings is not None:
        raise UsageError(f"{name} is the second set of ceilings", hint="give those of one machine")
    found.ceilings = ceilings
    found.sources.append((name, "ceilings"))


def _set_counters_apart(found: Inputs) -> None:
    """Take Nsight Compute reports for counters where another profile is there to use them."""
    if len(found.profiles) + len(found.opened) < 2:
        return
    counters = [p for p in found.profiles if p.suffix == ".csv" and recognise(p) == "ncu_csv"]
    if counters and (found.opened or len(counters) < len(found.profiles)):
        found.counters = counters
        found.profiles = [p for p in found.profiles if p not in counters]


def _points(path: Path) -> list[dict[str, Any]]:
    try:
        elements = parse_json(path.read_text(encoding="utf-8"), str(path), hint="mansard measure -o FOLDER")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no list of measured points: {error}", hint="mansard measure -o FOLDER") from None
    if not isinstance(elements, list) or not all(isinstance(e, dict) and "metadata" in e for e in elements):
        raise InputError(f"{path} is no list of measured points", hint="mansard measure -o FOLDER")
    return elements
