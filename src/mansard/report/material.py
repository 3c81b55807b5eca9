"""What a page is made of: each file told apart by its content, read, and turned into diagnoses and sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.core.ceilings import Ceilings, ceilings_from_json
from mansard.core.document import damage_named, parse_json, to_jsonable
from mansard.core.errors import InputError, MansardError
from mansard.diagnose.profile import Question, diagnose_profile
from mansard.diagnose.records import Diagnosis
from mansard.measure.points.conclusions import in_words
from mansard.report.document import SCHEMAS, from_document
from mansard.report.ranks_document import ranks_document
from mansard.report.sections import kinds, machine, others, points, points_words, profile, trends
from mansard.report.sections import timeline as pictures
from mansard.report.sections.blocks import Prose, Section
from mansard.report.sections.timeline import TimelineBlock
from mansard.trace.open import open_trace
from mansard.trace.ranks import compare_ranks
from mansard.trace.timeline import Timeline

#: Kinds of document that a page can show, beside points and recorded profiles.
KNOWN = (*SCHEMAS, "ceilings/1", *kinds.KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows.

    Args:
        diagnoses: Runs by name, the one that heads the page first.
        sections: Sections after those of the first run, in order.
        headlines: What each file comes to, where there is no run.
        title: Name of the page.
        first: What to look at first where there is no run, a sentence each.
        mixed: Made of more than one run, so it may be larger.
    """

    diagnoses: tuple[tuple[str, Diagnosis], ...]
    sections: tuple[Section, ...]
    headlines: tuple[str, ...]
    title: str
    first: tuple[str, ...] = ()
    mixed: bool = False


def read(paths: Sequence[Path], stdin: str | None = None, question: Question | None = None) -> Page:
    """Return the page of some files.

    Args:
        paths: Documents of `mansard` and recorded profiles, in any mix; `-` is `stdin`.
        stdin: Text of the standard input.
        question: What is asked of recorded profiles.

    Raises:
        InputError: a file is damaged or of no kind that a page can show.
    """
    reader = _Reader(question or Question())
    names = _names(paths)
    for path, name in zip(paths, names, strict=True):
        reader.file(path, name, stdin if str(path) == "-" else None)
    return reader.page()


def page_of_run(diagnosis: Diagnosis, timeline: TimelineBlock | None = None) -> Page:
    """Return the page of one run.

    Args:
        diagnosis: The run.
        timeline: One step of it over time, where that is known.
    """
    reader = _Reader(Question())
    reader.run(diagnosis, timeline, "run")
    return reader.page()


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the file names, with as much of their folders as tells them apart.

    >>> _names([Path("a/run.json"), Path("b/run.json"), Path("x.json")])
    ['a/run.json', 'b/run.json', 'x.json']
    """
    names = [p.name if str(p) != "-" else "stdin" for p in paths]
    return [
        n if names.count(n) == 1 else "/".join(p.parts[-2:]) if len(p.parts) > 1 else n
        for n, p in zip(names, paths, strict=True)
    ]


class _Reader:
    """Collects what files hold."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.diagnoses: list[tuple[str, Diagnosis]] = []
        self.points: list[tuple[str, str, list[dict[str, Any]]]] = []
        self.ceilings: list[tuple[str, str, Ceilings, Mapping[str, Any]]] = []
        self.sections: list[Section] = []
        self.files: list[tuple[str, str, str]] = []
        self.environments: list[tuple[str, str, Mapping[str, Any]]] = []
        self.headlines: list[str] = []
        self.first: list[str] = []
        self.profiles = 0
        self.of_ranks: list[Timeline] = []

    @property
    def key(self) -> str:
        """An identifier that no other file of this page has."""
        return f"f{len(self.files)}"

    def file(self, path: Path, name: str, stdin: str | None) -> None:
        """Read one file."""
        content = content_of(path, stdin)
        if content is None:
            self._profile(path, name)
        elif isinstance(content, list):
            self._points(content, name)
        else:
            self._document(content, name)

    def _profile(self, path: Path, name: str) -> None:
        timeline = open_trace(path, launch_shapes=True)
        self.profiles += 1
        if timeline.distributed.get("rank") is not None:
            self.of_ranks.append(timeline)
        found = diagnose_profile(timeline, self.question)
        self.diagnoses.append((name, found[0].diagnosis))
        self.sections += profile.sections(timeline, found, key=self.key, name=name)
        self.environments.append((name, "profile", dict(timeline.environment)))
        events = sum(len(t) for t in timeline.tables.values())
        damage = "".join(f"; damaged: {d.text}" for d in timeline.damage)
        self.files.append((name, f"profile ({timeline.format})", f"{events} events on {len(found)} devices{damage}"))

    def _points(self, content: list[Any], name: str) -> None:
        ok = all(
            isinstance(e, dict) and e.get("schema") == "detailed/1" and isinstance(e.get("metadata"), dict)
            and isinstance(e.get("metrics"), dict) and "state" in e for e in content
        )  # fmt: skip
        if not content or not ok:
            what = "holds no points" if not content else "is a list, but not one of detailed/1 points"
            raise InputError(
                f"{name} is not a run document and {what}", hint="expected the detailed.json of mansard measure"
            )
        self.points.append((self.key, name, content))
        self.environments.append((name, "points", content[0].get("environment") or {}))
        with damage_named(f"{name} has a damaged point", hint="measure again"):
            headline = points_words.headline(content)
            self.first += points_words.first(content)
        self.headlines.append(headline)
        self.files.append((name, "points (detailed.json)", headline))

    def _document(self, document: dict[str, Any], name: str) -> None:
        schema = document.get("schema")
        with damage_named(f"{name} is a damaged {schema} document"):
            if schema in SCHEMAS:
                self._diagnosis(document, name)
            elif schema == "ceilings/1":
                found = ceilings_from_json(document, source=name)
                self.ceilings.append((self.key, name, found, document))
                self.headlines.append(f"{len(found.ceilings)} ceilings of one machine.")
                self.files.append((name, "ceilings", f"{len(found.ceilings)} ceilings"))
            else:
                self._other(document, name)
        environment = _environment_of(document, name)
        if len(self.diagnoses) == 1 and schema in SCHEMAS:
            return  # the receipt of the run that heads the page has it
        self.environments.append((name, str(schema), environment))

    def _other(self, document: Mapping[str, Any], name: str) -> None:
        """Read a document of a kind that has sections of its own, or say why no page shows it."""
        schema = document.get("schema")
        how = kinds.shown(document)
        if how is None:
            message, hint = _foreign(schema, name)
            raise InputError(message, hint=hint)
        section, headline = how.build(document, key=self.key, name=name), how.headline(document)
        self.sections.append(section)
        self.headlines.append(headline)
        self.first += trends.first(document) if schema == "trend/1" else []
        self.files.append((name, str(schema).partition("/")[0].replace("_", " "), headline))

    def run(self, diagnosis: Diagnosis, timeline: TimelineBlock | None, name: str) -> None:
        """Add a run and what it did over time."""
        self.diagnoses.append((name, diagnosis))
        if timeline is not None:
            small = f"{name}: {timeline.title}"
            self.sections.append(Section(key=f"{self.key}-time", title="Timeline", small=small, blocks=(timeline,)))

    def _diagnosis(self, document: Mapping[str, Any], name: str) -> None:
        diagnosis = from_document(document)
        kept = document.get("timeline")
        self.run(diagnosis, pictures.from_document(kept) if isinstance(kept, Mapping) else None, name)
        rest = [(str(d["device"]), from_document(d)) for d in document.get("other_devices") or ()]
        section = others.devices(document, diagnosis, rest, key=f"{self.key}-devices", name=name)
        self.sections += [section] if section is not None else []
        self.files.append((name, str(document["schema"]).partition("/")[0], diagnosis.program))

    def _ranks(self) -> list[Section]:
        """Return the view of ranks where several profiles say which rank of a job they are."""
        if len(self.of_ranks) < 2:
            return []
        try:
            document = ranks_document(self.of_ranks, compare_ranks(self.of_ranks))
        except MansardError as error:
            lines = [f"The profiles state ranks, but are not compared: {error.message}. {error.hint}"]
            return [Section(key="ranks", title="Ranks", blocks=(Prose(lines=lines),))]
        return [others.ranks(to_jsonable(document), key="ranks", name=f"{len(self.of_ranks)} profiles of one job")]

    def page(self) -> Page:
        """Return everything in the order in which it is read."""
        out: list[Section] = []
        both = others.runs(self.diagnoses)
        out += [both] if both is not None else []
        head = self.diagnoses[0][1] if self.diagnoses else None
        if head is not None:
            out += [s for s in (others.areas(head), others.shares(head)) if s is not None]
        out += [*self._ranks(), *self.sections]
        known = self.ceilings[0][2] if self.ceilings else None
        for key, name, elements in self.points:
            with damage_named(f"{name} has a damaged point", hint="measure again"):
                out += points.sections(elements, known, key=key, name=name)
        for key, name, found, document in self.ceilings:
            out += machine.sections(found, document, key=key, name=name)
        if head is not None and not self.ceilings:
            kinds = machine.kinds(head.ceilings, key="ceil", name="of the first run")
            out += [kinds] if kinds is not None and len({c.kind for c in head.ceilings}) > 1 else []
        out += [others.run(d, key=f"run{i}", name=n) for i, (n, d) in enumerate(self.diagnoses[1:21], 2)]
        environment = others.environment(self.environments)
        out += [environment] if environment is not None else []
        if len(self.files) > 1:
            out.append(others.files(self.files))
        title = head.program if head is not None else ", ".join(n for n, *_ in self.files[:3])
        return Page(diagnoses=tuple(self.diagnoses), sections=tuple(out), headlines=tuple(self.headlines), title=title, first=tuple(self.first),
                    mixed=len(self.files) > 1 or self.profiles > 0)  # fmt: skip


def _environment_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the environment of a document, what its points say together as sentences: their figures are in the curves."""
    found = document.get("environment")
    if not isinstance(found, Mapping):
        return {}
    together = found.get("conclusions")
    if not isinstance(together, list):
        return found
    with damage_named(f"{name} has a damaged conclusion", hint="measure again"):
        # A comparison of a file from before nobody won under load says a winner that the points themselves may not support.
        kept = [c for c in together if c["kind"] != "comparison" or "disturbed" in c]
        old = len(together) - len(kept)
        said = [f"{old} comparisons that did not look at the load of the machine are in the file"] if old else []
        return {**found, "conclusions": [*(in_words(c) for c in kept), *said]}


def content_of(path: Path, stdin: str | None) -> dict[str, Any] | list[Any] | None:
    """Return the content of a document of ours, None where the file is something else: a profile, to its readers.

    Only the first bytes of a file tell: our documents begin with `schema`, or with a list of objects that do.
    """
    if stdin is None and not _looks_ours(path):
        return None
    name = "stdin" if stdin is not None else str(path)
    try:
        text = stdin if stdin is not None else path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not valid JSON: {error}") from None
    content = parse_json(text, name)
    if not isinstance(content, dict | list):
        raise InputError(f"{name} is not a run document: expected a JSON object or a list of points")
    return content


def _looks_ours(path: Path) -> bool:
    """Whether a file begins like a document of ours, or is too short to be anything else."""
    if path.is_dir():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] not in (b"{", b"["):
        return False
    if b'"traceEvents"' in text or b'"ph"' in text or b'"deviceProperties"' in text:
        return False
    return (b'"schema"' in text[:400] and b'"schemaVersion"' not in text[:400]) or len(head) < 64


def _foreign(schema: object, name: str) -> tuple[str, str]:
    """Return what to say of a document that no page shows."""
    base = str(schema).partition("/")[0] if isinstance(schema, str) else ""
    if isinstance(schema, str) and schema in kinds.NOT_SHOWN:
        return (
            f"{name} is a {schema} document, which no page shows: {kinds.NOT_SHOWN[schema]}",
            "run mansard report --help",
        )
    for known in KNOWN:
        if base and known.partition("/")[0] == base:
            return f"{name} has schema {schema!r}, this version reads up to {known!r}", "update mansard"
    shown = ", ".join(k.partition("/")[0] for k in KNOWN)
    return (
        f"{name} is not a run document or any other that a page shows (schema {schema!r})",
        f"known: {shown}, detailed.json, recorded profiles; a document of mansard begins with schema, tool_version and created",
    )
