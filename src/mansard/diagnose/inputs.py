"""What the files on a command line are, by their content: profiles, ceilings, measured points, diagnoses, a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceilings, read_ceilings
from mansard.core.document import parse_json, read_document
from mansard.core.errors import InputError, UsageError

_HEAD = 1 << 16
_SCHEMA = re.compile(r'"schema"\s*:\s*"([a-z_]+)/\d+"')
_MODEL_KEYS = ('"model_type"', '"architectures"', '"num_hidden_layers"', '"n_layer"')
_DIAGNOSES = ("run", "diagnose")


@dataclass(slots=True, kw_only=True)
class Inputs:
    """Files by what they are.

    Args:
        profiles: Recorded profiles; several are ranks of one job.
        counters: Nsight Compute reports beside a profile: measured FLOP and bytes of its kernels.
        ceilings: Measured ceilings.
        points: Elements of `detailed.json`.
        documents: Finished diagnoses.
        model: A model configuration.
        sources: What each file was taken for, in their order.
    """

    profiles: list[Path] = field(default_factory=list)
    counters: list[Path] = field(default_factory=list)
    ceilings: Ceilings | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)
    model: Path | None = None
    sources: list[tuple[str, str]] = field(default_factory=list)


def kind_of(path: Path) -> str:
    """Return what a file is: `ceilings`, `detailed`, `run`, `diagnose`, `model`, `results` (a folder) or `profile`."""
    if path.is_dir():
        if (path / "ceilings.json").is_file() or (path / "detailed.json").is_file():
            return "results"
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


def sort_inputs(paths: Sequence[Path]) -> Inputs:
    """Return the files by what they are.

    Raises:
        UsageError: Two of what there can be one of, or a document that no diagnosis is made of.
        InputError: A file that cannot be read.
    """
    found = Inputs()
    for path in paths:
        kind = kind_of(path)
        if kind == "results":
            for name in ("ceilings.json", "detailed.json"):
                if (path / name).is_file():
                    _add(found, path / name, "ceilings" if name == "ceilings.json" else "detailed")
        else:
            _add(found, path, kind)
    _set_counters_apart(found)
    return found


def _add(found: Inputs, path: Path, kind: str) -> None:
    if kind == "profile":
        found.profiles.append(path)
    elif kind == "ceilings":
        if found.ceilings is not None:
            raise UsageError(f"{path} is the second set of ceilings", hint="give those of one machine")
        found.ceilings = load_ceilings(path)
    elif kind == "detailed":
        found.points += _points(path)
    elif kind in _DIAGNOSES:
        found.documents.append(read_document(path, f"{kind}/1"))
    elif kind == "model":
        if found.model is not None:
            raise UsageError(f"{path} is the second model", hint="give one config.json")
        found.model = path
    else:
        raise UsageError(
            f"{path} is a {kind} document, and no diagnosis is made of that",
            hint="profiles, ceilings.json, detailed.json, run and diagnose documents, and a model's config.json are",
        )
    found.sources.append((str(path), kind))


def _set_counters_apart(found: Inputs) -> None:
    """Take Nsight Compute reports for counters where another profile is there to use them."""
    from mansard.trace.open import recognise

    if len(found.profiles) < 2:
        return
    counters = [p for p in found.profiles if p.suffix == ".csv" and recognise(p) == "ncu_csv"]
    if counters and len(counters) < len(found.profiles):
        found.counters = counters
        found.profiles = [p for p in found.profiles if p not in counters]


def load_ceilings(path: Path) -> Ceilings:
    """Return the ceilings of a document.

    Raises:
        InputError: It is damaged.
    """
    return read_ceilings(path)


def _points(path: Path) -> list[dict[str, Any]]:
    try:
        elements = parse_json(path.read_text(encoding="utf-8"), str(path), hint="mansard measure -o FOLDER")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no list of measured points: {error}", hint="mansard measure -o FOLDER") from None
    if not isinstance(elements, list) or not all(isinstance(e, dict) and "metadata" in e for e in elements):
        raise InputError(f"{path} is no list of measured points", hint="mansard measure -o FOLDER")
    return elements
