"""From any document to a `Record`: the files of `measure`, `run`, `diagnose`, `estimate`, `trace mfu`, and samples of others."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.core.document import damage_in_words
from mansard.core.errors import InputError
from mansard.history import verb_documents
from mansard.history.detailed import measurements_of_point
from mansard.history.records import Measurement, Record
from mansard.history.samples import measurements_of_samples, samples_document, samples_of

_READERS = {**verb_documents.READERS, "samples": measurements_of_samples}
_MOST_BYTES = 256 << 20  # of a compressed document, once unpacked
_DAMAGE = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    ArithmeticError,
)  # the last: no time, or a number without end


def read(path: Path, *, labels: Mapping[str, Mapping[str, str]] | None = None, form: str = "auto") -> Record:
    """Read a result.

    Args:
        path: The file.
        labels: What the document does not tell, such as `{"zone": {"zone": "a"}}`; it is added to every fingerprint.
        form: `auto`, `mansard`, or a key of `imports.FORMS`.

    Raises:
        InputError: it cannot be read, is damaged, or is of no known kind.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    return read_bytes(raw, source=path.name, labels=labels, form=form)


def read_bytes(
    raw: bytes, *, source: str, labels: Mapping[str, Mapping[str, str]] | None = None, form: str = "auto"
) -> Record:
    """Read a result from its bytes; see `read`."""
    from mansard.history import imports

    source = source.encode("utf-8", "backslashreplace").decode()  # a file may be called by bytes that are no text
    if not raw.strip():
        raise InputError(f"{source} is empty, expected a result document", hint="measure again")
    try:
        text = _unpacked(raw, source).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{source} is not text, expected a result document", hint="give the JSON of a mansard verb"
        ) from None
    content = _json(text)
    asked = form
    if form == "auto":
        form = "mansard" if _is_ours(content) else imports.form_of(text, content, source)
    try:
        if form == "mansard":
            schema, created, found = _ours(content, source)
        else:
            schema, created, found = form, "", imports.read(form, text, content)
    except InputError as error:
        if re.search(rf"(?<!\w){re.escape(source)}(?!\w)", error.message):
            raise
        raise InputError(f"{source}: {error.message}", hint=error.hint, code=error.code) from None
    except _DAMAGE as error:
        if asked != "auto" and asked != (likely := _likely(text, content)):
            hint = (
                f"it looks like {likely}: leave the form out" if likely else "leave the form out to have it recognised"
            )
            raise InputError(f"{source} is no {form} document", hint=hint, code="other_kind") from None
        raise InputError(f"{source} is a damaged {form} document: {damage_in_words(error)}") from None
    found = [_finite_or_flawed(m) for m in found]
    if labels:
        found = [_labelled(m, labels) for m in found]
    for m in found:
        _must_be_text(m, source)
    twice = _twice(found)
    if twice:
        raise InputError(f"{source} names {twice!r} more than once", hint="one document is one run of each benchmark")
    return Record(
        source=source, schema=schema, created=created if _is_time(created) else "", sha256=hashlib.sha256(raw).hexdigest(),
        measurements=tuple(found), empty=_why_empty(found),
    )  # fmt: skip


def _must_be_text(m: Measurement, source: str) -> None:
    """Refuse names and conditions that no database keeps and no report shows: lone halves of a character, and NUL.

    Raises:
        InputError: there is such a one.
    """
    for words in (
        m.benchmark,
        m.flaw,
        m.absent,
        *(x for p in m.fingerprint.parts.values() for kv in p.items() for x in kv),
    ):
        if not isinstance(words, str):
            raise InputError(f"{source} is damaged: {words!r} stands where a text is expected")
        if "\0" in words or any("\ud800" <= c <= "\udfff" for c in words):
            raise InputError(
                f"{source} is damaged: {words[:60]!r} is no text", hint="write its names in Unicode, without NUL"
            )


def _is_time(text: str) -> bool:
    """Return whether a text is a time in ISO 8601; what is none does not tell when a document was made."""
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _likely(text: str, content: Any) -> str:
    """Return the kind of document that a text looks like; empty where it looks like none."""
    from mansard.history import imports

    if _is_ours(content):
        return "mansard"
    try:
        return imports.form_of(text, content, "the file")
    except InputError:
        return ""


def _unpacked(raw: bytes, source: str) -> bytes:
    """Return a document that may be compressed by gzip, as pyperf writes it where the name ends in .gz."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    import gzip
    import io
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
            text = packed.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{source} is damaged: {error}", hint="gzip --test says what is wrong") from None
    if len(text) > _MOST_BYTES:
        raise InputError(f"{source} holds more than {_MOST_BYTES >> 20} MiB, expected a result document")
    return text


def read_samples(
    benchmark: str, samples: Sequence[float], *, metric: str = "time_s", environment: Mapping[str, Any] | None = None, one_process: bool = False,
) -> Record:  # fmt: skip
    """Return the record of samples at hand.

    Args:
        benchmark: Its name.
        samples: Samples in the SI unit of the metric.
        metric: A key of `METRICS`.
        environment: What they depend on.
        one_process: Whether one process took all of them.

    >>> read_samples("copy", [1.0, 3.0, 2.0]).measurements[0].value
    2.0
    """
    document = samples_document([samples_of(benchmark, [samples], metric, environment, one_process=one_process)])
    return read_bytes(json.dumps(document).encode(), source=benchmark)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or nested without end
        return None


def _is_ours(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else content
    return isinstance(first, Mapping) and isinstance(first.get("schema"), str) and "/" in first["schema"]


def _ours(content: Any, source: str) -> tuple[str, str, list[Measurement]]:
    if isinstance(content, list):
        if not all(isinstance(e, Mapping) and e.get("schema") == "detailed/1" for e in content):
            raise InputError(f"{source} is a list, but not one of detailed/1 points")
        found = [m for element in content for m in measurements_of_point(element)]
        return "detailed/1", str(content[0].get("created", "")), found
    schema = content["schema"]
    name, _, major = schema.partition("/")
    if name not in _READERS or major != "1":
        raise InputError(
            f"{source} has schema {schema!r}, which holds nothing that a history compares",
            hint=f"expected detailed.json or one of {', '.join(f'{s}/1' for s in _READERS)}",
        )
    reader = _READERS[name]
    return schema, str(content.get("created", "")), reader(content)


def _labelled(m: Measurement, labels: Mapping[str, Mapping[str, str]]) -> Measurement:
    import dataclasses

    return dataclasses.replace(m, fingerprint=m.fingerprint.merged(labels))


def _finite_or_flawed(m: Measurement) -> Measurement:
    """Return a measurement whose figures are numbers: one with NaN or infinity among them keeps its name and loses its figures."""
    import dataclasses

    wrong = [x for x in (*m.samples, *(m.stated or ())) if not math.isfinite(x)]
    if not wrong:
        return m
    text = f"a sample is {wrong[0]}, which no document may hold"
    return dataclasses.replace(m, groups=(), stated=None, flaw=text, absent=text)


def _twice(found: Iterable[Measurement]) -> str:
    seen: set[str] = set()
    for m in found:
        if m.name in seen:
            return m.name
        seen.add(m.name)
    return ""


def _why_empty(found: Sequence[Measurement]) -> str:
    if not found:
        return "the document holds no figure to compare"
    if all(m.absent for m in found):
        return f"nothing was measured: {found[0].absent}"
    return ""
