"""Where hardware files are, and how one is found: the shipped folder, the user's folders, or a path."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.errors import InputError, UsageError
from mansard.hardware.names import normalise
from mansard.hardware.records import Sku
from mansard.hardware.schema import parse_toml, sku_from_toml

SHIPPED = Path(__file__).resolve().parent.parent / "data" / "hardware"
#: Files or folders of the user, separated like PATH.
VARIABLE = "MANSARD_HARDWARE_PATH"
#: A hardware file is a page or two; what is larger is something else.
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a search needs of one file.

    Args:
        slug: Short name.
        path: The file.
        shipped: Whether it came with the package.
        name, vendor, kind, chip, architecture: As in the file.
        keys: Normalised exact names.
        pci, cpuid: Identities.
    """

    slug: str
    path: Path
    shipped: bool
    name: str
    vendor: str
    kind: str
    chip: str
    architecture: str
    keys: frozenset[str]
    pci: tuple[str, ...]
    cpuid: tuple[str, ...]

    @property
    def words(self) -> tuple[frozenset[str], ...]:
        """The words of every exact name, of all names together last."""
        each = tuple(frozenset(k.split()) for k in self.keys)
        return (*each, frozenset().union(*each))

    def sku(self) -> Sku:
        """Return the whole product."""
        return read_file(self.path, shipped=self.shipped)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read {_short(str(path))}: {reason}", hint="check the path") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_FILE_BYTES} bytes, which no hardware file is", hint="check the path"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text, expected a hardware file in TOML", hint="see docs/hardware.md") from None


def read_file(path: Path, *, shipped: bool = False) -> Sku:
    """Return the product that a hardware file describes.

    Raises:
        InputError: the file cannot be read, or breaks the schema; the message names the place.
    """
    return sku_from_toml(_read(path), where=f"catalogue file {path.name}" if shipped else str(path))


def _entry(data: Mapping[str, Any], path: Path, *, shipped: bool) -> Entry:
    identity = data["identity"]
    slug, name = str(data["slug"]), str(data["name"])
    keys = frozenset(normalise(n) for n in (slug, name, *identity.get("names", ())))
    return Entry(
        slug=slug,
        path=path,
        shipped=shipped,
        name=name,
        vendor=str(data["vendor"]),
        kind=str(data["kind"]),
        chip=str(data.get("chip", "")),
        architecture=str(data.get("architecture", "")),
        keys=keys,
        pci=tuple(identity.get("pci", ())),
        cpuid=tuple(identity.get("cpuid", ())),
    )


@functools.cache
def shipped_entries() -> tuple[Entry, ...]:
    """Return what is in the shipped folder, by slug.

    Only the part of each file before its first array of tables is read, which holds names and identities: reading all
    of every file would make each command a third of a second slower. A test holds this order.
    """
    return tuple(
        _entry(parse_toml(_read(path).partition("\n[[")[0], path.name), path, shipped=True)
        for path in sorted(SHIPPED.glob("*.toml"))
    )


def user_places(directories: Iterable[str | Path] = (), environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the files and folders the user named: the arguments first, then the environment."""
    named = (os.environ if environ is None else environ).get(VARIABLE, "")
    return (*(Path(d) for d in directories), *(Path(p) for p in named.split(os.pathsep) if p))


def user_entries(directories: Iterable[str | Path] = ()) -> tuple[Entry, ...]:
    """Return what is in the user's files and folders; the first of two files with one slug counts.

    Raises:
        UsageError: a place does not exist.
        InputError: a file breaks the schema.
    """
    found: dict[str, Entry] = {}
    for place in user_places(directories):
        if place.is_dir():
            files = sorted(place.glob("*.toml"))
        elif place.is_file():
            files = [place]
        else:
            raise UsageError(
                f"no such hardware file or folder: {str(place)[:300]}", hint=f"check --hardware-dir and {VARIABLE}"
            )
        for path in files:
            data = parse_toml(_read(path), str(path))
            read_file(path)
            entry = _entry(data, path, shipped=False)
            found.setdefault(entry.slug, entry)
    return tuple(found.values())


def entries(directories: Iterable[str | Path] = ()) -> tuple[Entry, ...]:
    """Return all entries; a user's file takes the place of a shipped one with the same slug."""
    own = user_entries(directories)
    slugs = {e.slug for e in own}
    return (*own, *(e for e in shipped_entries() if e.slug not in slugs))


def _is_path(text: str) -> bool:
    """Return whether a text is meant as a path; product names may contain a slash too."""
    if text.endswith(".toml") or text.startswith((".", os.sep)):
        return text not in (".", "..")
    return os.sep in text and "\0" not in text and len(text) < 4096 and os.path.exists(text)


def load(name_or_path: str | Path, *, directories: Sequence[str | Path] = ()) -> Sku:
    """Return a product by slug, by exact product name, or from a user's hardware file.

    Args:
        name_or_path: Such as `h100-sxm`, `NVIDIA H100 80GB HBM3`, or `mine.toml`.
        directories: More folders or files to search, before those of MANSARD_HARDWARE_PATH and the shipped ones.

    Raises:
        UsageError: ambiguous or unknown; the message lists the candidates or the nearest names.
        InputError: the file cannot be read or breaks the schema.

    >>> load("h100-sxm").name
    'NVIDIA H100 SXM5 80GB'
    """
    text = str(name_or_path)
    if _is_path(text):
        return read_file(Path(text))
    own = user_entries(directories)
    for entry in own:
        if entry.slug == text:
            return entry.sku()
    shipped = SHIPPED / f"{text}.toml"
    if "\0" not in text and len(text) <= 64 and text not in ("", ".", "..") and shipped.is_file():
        return read_file(shipped, shipped=True)
    from mansard.hardware.matching import match

    found = match(text, directories=directories)
    if found.sku is not None:
        return found.sku
    listed = ", ".join(found.candidates) or "none is near"
    word = "could be" if found.status == "ambiguous" else "nearest"
    raise UsageError(
        f"no hardware {_short(text)!r}: {found.reason}; {word}: {listed}",
        hint="; ".join(found.needs) or "mansard hardware list",
        code=f"hardware_{found.status}",
    )


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
