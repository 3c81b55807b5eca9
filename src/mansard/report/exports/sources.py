"""What the files of an export hold, told apart by their content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceilings, ceilings_from_json
from mansard.core.document import DAMAGE, damage_in_words
from mansard.core.errors import InputError, UsageError
from mansard.diagnose.profile import Question, diagnose_profile
from mansard.diagnose.records import Diagnosis
from mansard.report.document import SCHEMAS, from_document
from mansard.report.frames import (
    TABLES,
    Table,
    advice_table,
    ceilings_table,
    joined,
    operators_table,
    parts_table,
    points_table,
)
from mansard.report.material import content_of
from mansard.trace.open import open_trace


@dataclass(slots=True, kw_only=True)
class Sources:
    """The content of the files, by kind; every list keeps the order of the files.

    Args:
        diagnoses: Name of the file or device, diagnosis, and the document it is from (empty for a profile).
        points: Name and elements of `detailed.json`.
        ceilings: Name, ceilings and document of a machine.
        checks: Name and document of `mansard check --json`.
        profiles: Recorded profiles and recordings of `mansard run --keep`, not diagnosed.
    """

    diagnoses: list[tuple[str, Diagnosis, Mapping[str, Any]]] = field(default_factory=list)
    points: list[tuple[str, list[Mapping[str, Any]]]] = field(default_factory=list)
    ceilings: list[tuple[str, Ceilings, Mapping[str, Any]]] = field(default_factory=list)
    checks: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    profiles: list[Path] = field(default_factory=list)

    @property
    def kinds(self) -> str:
        """What there is, for a message."""
        words = {"runs": self.diagnoses, "points": self.points, "ceilings": self.ceilings, "checks": self.checks,
                 "profiles": self.profiles}  # fmt: skip
        return ", ".join(word for word, found in words.items() if found) or "nothing"


def read_sources(paths: Sequence[Path], question: Question | None = None, *, diagnose: bool = True) -> Sources:
    """Return what some files hold.

    Args:
        paths: Documents of `mansard` and recorded profiles, in any mix.
        question: What is asked of profiles.
        diagnose: Diagnose profiles; without it they are only listed.

    Raises:
        InputError: a file is damaged or of no kind that can be exported.
    """
    out = Sources()
    for path in paths:
        content = content_of(path, None)
        if content is None:
            out.profiles.append(path)
            if diagnose:
                found = diagnose_profile(open_trace(path), question or Question())
                name = path.name
                out.diagnoses += [(name if len(found) == 1 else f"{name}:{d.label}", d.diagnosis, {}) for d in found]
        elif isinstance(content, list):
            _points(content, path.name, out)
        else:
            _document(content, path.name, out)
    return out


def _points(content: list[Any], name: str, out: Sources) -> None:
    if not content or not all(isinstance(e, dict) and e.get("schema") == "detailed/1" for e in content):
        raise InputError(
            f"{name} is a list, but not one of detailed/1 points", hint="expected detailed.json of mansard measure"
        )
    for at, e in enumerate(content):
        meta = e.get("metadata")
        texts = ("benchmark", "test_name", "impl")
        if not isinstance(meta, dict) or not all(isinstance(meta.get(t, ""), str) for t in texts):
            raise InputError(f"{name} has a damaged point: metadata of number {at} is no object", hint="measure again")
        if not isinstance(e.get("metrics"), dict) or not isinstance(e.get("state"), str):
            raise InputError(
                f"{name} has a damaged point: number {at} has no metrics or no state", hint="measure again"
            )
    out.points.append((name, content))


def _document(document: dict[str, Any], name: str, out: Sources) -> None:
    schema = document.get("schema")
    try:
        if schema in SCHEMAS:
            rest = document.get("other_devices") or []
            label = f"{name}:{document['device']}" if rest else name
            out.diagnoses.append((label, from_document(document), document))
            out.diagnoses += [(f"{name}:{d['device']}", from_document(d), d) for d in rest]
        elif schema == "ceilings/1":
            out.ceilings.append((name, ceilings_from_json(document, source=name), document))
        elif schema == "check/1":
            out.checks.append((name, {"outcome": document["outcome"], **document}))
        else:
            known = ", ".join((*SCHEMAS, "ceilings/1", "check/1"))
            raise InputError(
                f"{name} cannot be exported (schema {schema!r:.60})", hint=f"known: {known}, detailed.json, profiles"
            )
    except InputError as error:
        raise error if name in error.message else InputError(f"{name}: {error.message}", hint=error.hint) from None
    except DAMAGE as error:
        raise InputError(
            f"{name} is a damaged {schema} document: {damage_in_words(error)}", hint="the file may be cut short"
        ) from None


def tables_of(sources: Sources) -> dict[str, Table]:
    """Return every table that some sources have, by name, rows of several files below each other."""
    found: dict[str, list[Table]] = {}
    for name, diagnosis, _ in sources.diagnoses:
        for make in (operators_table, parts_table, advice_table):
            table = make(diagnosis, source=name)
            found.setdefault(table.name, []).append(table)
    own = [(name, c.ceilings) for name, c, _ in sources.ceilings]
    for name, ceilings in own or [(name, d.ceilings) for name, d, _ in sources.diagnoses]:
        found.setdefault("ceilings", []).append(ceilings_table(ceilings, source=name))
    for name, elements in sources.points:
        found.setdefault("points", []).append(points_table(elements, source=name))
    return {name: joined(found[name]) for name in TABLES if name in found}


def one_table(sources: Sources, wanted: str | None) -> Table:
    """Return the table that was asked for, or the one that the files are about.

    Raises:
        UsageError: there is none, or the files are about several and none was named.
    """
    found = tables_of(sources)
    if wanted is not None:
        if wanted not in found:
            raise UsageError(
                f"there is no table {wanted!r} in {sources.kinds}", hint=f"there are: {', '.join(found) or 'none'}"
            )
        return found[wanted]
    about = {"operators": sources.diagnoses, "points": sources.points, "ceilings": sources.ceilings}
    names = [name for name, some in about.items() if some]
    if len(names) != 1:
        hint = (
            f"--table {names[0]}"
            if names
            else "give run or diagnose documents, detailed.json, ceilings.json or a profile"
        )
        raise UsageError(f"one table is written, and the files hold {sources.kinds}", hint=hint)
    return found[names[0]]
