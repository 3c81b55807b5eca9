"""The history: results that were added, and the baselines they stand for.

A result is acknowledged when `add` returns: its raw document and its row are then on the disk. Whatever dies before leaves the
store as it was, except perhaps for a document without a row, which nothing reads.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mansard.core.errors import InputError, UsageError
from mansard.core.unknown import Unknown
from mansard.history.connection import connect, sqlite_path, store_url, translated, writing
from mansard.history.contents import Contents, FolderContents, TableContents
from mansard.history.documents import read_bytes
from mansard.history.fingerprint import merged_fingerprint
from mansard.history.records import Record

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

STATES = ("accepted", "pending", "retired")
LONGEST_NAME = 200  # what the column of the schema holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A row of the history.

    Args:
        number: Its number in this store.
        sha256: Digest of the raw document.
        source, schema, created, added: Where it came from, what it is, and when.
        labels: What was stated when it was added.
        form: How it is read: `auto`, or the program that was named as its writer.
        figures: The figures that the record holds, by metric; one that is not known is `Unknown`.
    """

    number: int
    sha256: str
    source: str
    schema: str
    created: str
    added: str
    labels: Mapping[str, Mapping[str, str]]
    form: str
    figures: Mapping[str, float | Unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A result in a baseline.

    Args:
        state: `accepted`, `pending` or `retired`.
        reason: Why it is in that state.
        added: When it came in.
        stored: The row.
        record: What it says.
    """

    state: str
    reason: str
    added: str
    stored: Stored
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A name and its results, the oldest first."""

    name: str
    entries: tuple[Entry, ...]

    def records(self, state: str = "accepted") -> list[Record]:
        """Return the results of a state."""
        return [e.record for e in self.entries if e.state == state]

    def timed(self) -> list[tuple[str, Record]]:
        """Return all results with the time each was made, whatever their state."""
        return [(e.record.created, e.record) for e in self.entries]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A line of `baseline list`.

    Args:
        name: The baseline.
        states: How many results it has in each state.
        last: When the last one came in.
    """

    name: str
    states: Mapping[str, int]
    last: str


class Store:
    """A history in a database; see `open_store`.

    Args:
        engine: A database whose schema is up to date.
        url: Its URL.
        contents: Where raw documents are.
    """

    def __init__(self, engine: Engine, url: str, contents: Contents) -> None:
        self._engine = engine
        self.url = url
        self._contents = contents

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def add(
        self, raw: bytes, *, source: str, form: str = "auto", labels: Mapping[str, Mapping[str, str]] | None = None
    ) -> Stored:
        """Keep a result; when this returns, it is on the disk. A document that is there already stays one row.

        Args:
            raw: The document.
            source: Its file name.
            form: As in `documents.read`.
            labels: What the document does not tell of its environment.

        Raises:
            InputError: a damaged document, or the store cannot be written.
        """
        record = read_bytes(raw, source=source, labels=labels, form=form)
        with translated(self.url), writing(self._engine) as connection:
            number = self._insert(connection, raw, record, form, labels or {})
            return self._stored(connection, number)

    def put(
        self, baseline: str, raw: bytes, *, source: str, state: str, reason: str, form: str = "auto",
        labels: Mapping[str, Mapping[str, str]] | None = None, promote: bool = False, added: str = "",
    ) -> None:  # fmt: skip
        """Keep a result as part of a baseline, in one transaction.

        Args:
            baseline: Its name.
            raw, source, form, labels: As in `add`.
            state: One of `STATES`.
            reason: Why.
            promote: Accepted results retire, and pending ones are accepted with this one: the baseline advances.
            added: When it came in, for an import: a document that does not tell when it was made keeps that time; now by default.
        """
        from sqlalchemy import delete, insert, update

        from mansard.history.tables import ENTRY

        if state not in STATES:
            raise UsageError(f"unknown state {state!r}", hint=f"one of {', '.join(STATES)}")
        _must_be_a_name(baseline)
        record = read_bytes(raw, source=source, labels=labels, form=form)
        with translated(self.url), writing(self._engine) as connection:
            number = self._insert(connection, raw, record, form, labels or {}, added)
            here = ENTRY.c.baseline == baseline
            if promote:
                for old, new in (("accepted", "retired"), ("pending", "accepted")):
                    connection.execute(update(ENTRY).where(here, ENTRY.c.state == old).values(state=new, reason=reason))
            connection.execute(delete(ENTRY).where(here, ENTRY.c.record_id == number))
            row = {
                "baseline": baseline,
                "record_id": number,
                "state": state,
                "reason": reason,
                "added": added or _now(),
            }
            connection.execute(insert(ENTRY).values(row))

    def replace(self, baseline: str, raw: bytes, *, source: str, reason: str, form: str = "auto",
                labels: Mapping[str, Mapping[str, str]] | None = None) -> None:  # fmt: skip
        """Make one result the baseline: what was accepted retires, what was pending is dropped."""
        from sqlalchemy import delete, insert, update

        from mansard.history.tables import ENTRY

        _must_be_a_name(baseline)
        record = read_bytes(raw, source=source, labels=labels, form=form)
        with translated(self.url), writing(self._engine) as connection:
            number = self._insert(connection, raw, record, form, labels or {})
            here = ENTRY.c.baseline == baseline
            connection.execute(delete(ENTRY).where(here, (ENTRY.c.state == "pending") | (ENTRY.c.record_id == number)))
            connection.execute(update(ENTRY).where(here, ENTRY.c.state == "accepted").values(state="retired"))
            row = {"baseline": baseline, "record_id": number, "state": "accepted", "reason": reason, "added": _now()}
            connection.execute(insert(ENTRY).values(row))

    def records(self, limit: int | None = None) -> list[Stored]:
        """Return the results that were added, the newest first."""
        from sqlalchemy import select

        from mansard.history.tables import RECORD

        with translated(self.url), self._engine.connect() as connection:
            rows = connection.execute(select(RECORD).order_by(RECORD.c.id.desc()).limit(limit)).mappings()
            return [_row(dict(r)) for r in rows]

    def timed_records(self) -> list[tuple[str, Record]]:
        """Return all results with the time each was made, or added where it does not tell."""
        from sqlalchemy import select

        from mansard.history.tables import RECORD

        with translated(self.url), self._engine.connect() as connection:
            rows = connection.execute(select(RECORD).order_by(RECORD.c.id)).mappings().all()
            entries = [self._entry(connection, {**r, "state": "", "reason": "", "entered": r["added"]}) for r in rows]
        return [(e.record.created, e.record) for e in entries]

    def baselines(self) -> list[Summary]:
        """Return the baselines by name."""
        from sqlalchemy import func, select

        from mansard.history.tables import ENTRY

        with translated(self.url), self._engine.connect() as connection:
            query = select(ENTRY.c.baseline, ENTRY.c.state, func.count(), func.max(ENTRY.c.added))
            rows = connection.execute(query.group_by(ENTRY.c.baseline, ENTRY.c.state)).all()
        names = sorted({r[0] for r in rows})
        return [
            Summary(
                name=n, states={s: next((r[2] for r in rows if r[0] == n and r[1] == s), 0) for s in STATES},
                last=max(r[3] for r in rows if r[0] == n),
            )
            for n in names
        ]  # fmt: skip

    def baseline(self, name: str) -> Baseline:
        """Return a baseline with everything it holds.

        Raises:
            InputError: there is none of this name, or a document is lost or changed.
        """
        from sqlalchemy import select

        from mansard.history.tables import ENTRY, RECORD

        with translated(self.url), self._engine.connect() as connection:
            query = select(ENTRY.c.state, ENTRY.c.reason, ENTRY.c.added.label("entered"), RECORD)
            rows = connection.execute(
                query.join(RECORD, RECORD.c.id == ENTRY.c.record_id).where(ENTRY.c.baseline == name).order_by(ENTRY.c.id)
            ).mappings()  # fmt: skip
            entries = tuple(self._entry(connection, dict(r)) for r in rows)
        if not entries:
            known = [s.name for s in self.baselines()]
            hint = f"there is {', '.join(known)}" if known else f"mansard baseline add {name} FILE"
            raise InputError(f"no baseline {name!r} in the store", hint=hint)
        return Baseline(name=name, entries=entries)

    def raw(self, sha256: str) -> bytes:
        """Return a raw document."""
        with translated(self.url), self._engine.connect() as connection:
            return self._contents.get(sha256, connection)

    def remove(self, name: str) -> int:
        """Forget a baseline and return how many results it named; the results stay in the history."""
        from sqlalchemy import delete

        from mansard.history.tables import ENTRY

        with translated(self.url), writing(self._engine) as connection:
            return int(connection.execute(delete(ENTRY).where(ENTRY.c.baseline == name)).rowcount)

    # --- inside a transaction -----------------------------------------------------------------------------------------

    def _insert(
        self, connection: Connection, raw: bytes, record: Record, form: str, labels: Mapping[str, Mapping[str, str]], added: str = "",
    ) -> int:  # fmt: skip
        from sqlalchemy import insert, select

        from mansard.history.tables import FIGURES, MEASUREMENT, RECORD

        sha256 = self._contents.put(raw, connection)
        said = json.dumps(labels, sort_keys=True)
        row: dict[str, Any] = {
            "sha256": sha256, "source": record.source, "form": form, "schema": record.schema, "created": record.created,
            "added": added or _now(), "labels": said,
            "fingerprint": json.dumps({k: dict(v) for k, v in merged_fingerprint(record.measurements).parts.items()}, sort_keys=True),
            **{name: record.headline(name) for name in FIGURES},
        }  # fmt: skip
        if connection.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert as upsert
        else:
            from sqlalchemy.dialects.sqlite import insert as upsert  # type: ignore[assignment]
        # The number comes back where the row is new. Counts of rows do not tell: drivers answer -1 where they do not know.
        fresh = connection.execute(upsert(RECORD).values(row).on_conflict_do_nothing().returning(RECORD.c.id)).scalar()
        number = int(
            connection.execute(
                select(RECORD.c.id).where(RECORD.c.sha256 == sha256, RECORD.c.labels == said)
            ).scalar_one()
        )
        if fresh is not None and record.measurements:
            rows = [
                {
                    "record_id": number, "benchmark": m.benchmark, "metric": m.metric, "is_primary": m.primary,
                    "value": None if isinstance(m.value, Unknown) else m.value, "content": json.dumps(m.to_json()),
                }
                for m in record.measurements
            ]  # fmt: skip
            connection.execute(insert(MEASUREMENT), rows)
        return number

    def _stored(self, connection: Connection, number: int) -> Stored:
        from sqlalchemy import select

        from mansard.history.tables import RECORD

        return _row(dict(connection.execute(select(RECORD).where(RECORD.c.id == number)).mappings().one()))

    def _entry(self, connection: Connection, row: dict[str, Any]) -> Entry:
        from sqlalchemy import select

        from mansard.history.records import measurement_from_json
        from mansard.history.tables import MEASUREMENT

        stored = _row(row)
        contents = connection.execute(
            select(MEASUREMENT.c.content).where(MEASUREMENT.c.record_id == stored.number).order_by(MEASUREMENT.c.id)
        ).scalars()
        found = tuple(measurement_from_json(json.loads(c)) for c in contents)
        empty = "" if any(not m.absent for m in found) else "the document holds no figure to compare"
        record = Record(
            source=stored.source, schema=stored.schema, created=stored.created or row["entered"], sha256=stored.sha256,
            measurements=found, empty=empty,
        )  # fmt: skip
        return Entry(state=row["state"], reason=row["reason"], added=row["entered"], stored=stored, record=record)


def _row(row: Mapping[str, Any]) -> Stored:
    from mansard.history.tables import FIGURES

    missing = Unknown("the document does not tell it, or tells several")
    return Stored(
        number=row["id"], sha256=row["sha256"], source=row["source"], schema=row["schema"], created=row["created"],
        added=row["added"], labels=json.loads(row["labels"]), form=row["form"],
        figures={n: missing if row[n] is None else float(row[n]) for n in FIGURES},
    )  # fmt: skip


def _must_be_a_name(name: str) -> None:
    """Refuse what cannot be typed and told apart as the name of a baseline.

    Raises:
        UsageError: it is empty, too long, or holds what is not printed.
    """
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise UsageError(
            f"{shown!r} is no name of a baseline, expected 1 to {LONGEST_NAME} printed characters", hint="main"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def open_store(url: str | None = None, *, make: bool = True) -> Store:
    """Open a store, and make it where there is none.

    Args:
        url: A SQLite file or a `postgresql://` URL; None takes `MANSARD_STORE`, else the user's data folder.
        make: Whether one that is missing is made; who only reads makes none.

    Raises:
        InputError: it cannot be opened, or is missing and not to be made (code `no_store`).
        UsageError: another kind of database.
    """
    where = store_url(url)
    path = sqlite_path(where)
    engine = connect(where, make=make)
    contents = TableContents() if path is None else FolderContents(path.parent / f"{path.stem}-documents")
    return Store(engine, where, contents)


def read_file(path: Path) -> bytes:
    """Return the bytes of a result file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        hint = f"name its files: {path}/*.json" if path.is_dir() else "check the path"
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint=hint) from None


def all_figures(records: Sequence[Stored]) -> list[str]:
    """Return the metrics that any of the records knows."""
    return [
        n
        for n in (records[0].figures if records else ())
        if any(not isinstance(r.figures[n], Unknown) for r in records)
    ]
