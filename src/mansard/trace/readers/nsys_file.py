"""An Nsight Systems export as a file: opened without leaving a trace, its tables and columns found whatever the version."""

from __future__ import annotations

import gzip
import itertools
import mmap
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import InputError
from mansard.trace.readers import sqlite_leaves
from mansard.trace.readers.memory_need import refuse, room
from mansard.trace.run import Finding
from mansard.trace.timeline import Damage

_FEW_ROWS = 2000  # below this a cursor is quicker than looking for the leaves
_ROWS_AT_ONCE = 200_000
_WORK_PER_ROW = 48  # what joining, sorting and merging take beside the columns; measured on five million kernels [B]


class NsysFile:
    """A database opened read-only; use it as a context manager.

    Args:
        path: The `.sqlite` file, or that file packed with gzip.
        memory_limit: Bytes that may be held at once [B], or None.
        progress: Called with what is read and the share that is done.

    Raises:
        InputError: It cannot be opened, or is another kind of database.
    """

    def __init__(
        self, path: Path, *, memory_limit: int | None = None, progress: Callable[[str, float], None] | None = None
    ) -> None:
        self.path = path
        self.damage: list[Damage] = []
        self.memory_limit = memory_limit
        self._progress = progress
        self._held = 0
        self._doubled: dict[str, list[str]] = {}
        self._most_rows = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._map: mmap.mmap | None = None
        self._descriptor: int | None = None
        self._leaves: Any = None
        self._cut = False  # whether pages are missing; then SQLite gives up where the pages themselves do not
        place = self._place(path)
        try:
            self._db = sqlite3.connect(f"{place.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # SQLite refuses a file shorter than its header says unless a repair may follow; this file is open read-only.
            self._db.execute("PRAGMA writable_schema = ON")
            self.tables = self._read_schema()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise InputError(
                f"{path} is an SQLite database that cannot be read: {error}",
                hint="export it again with nsys export, or copy it again",
                code="damaged_database",
            ) from None
        self._open_leaves(place)

    def __enter__(self) -> NsysFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file and remove the unpacked copy, where there was one."""
        if getattr(self, "_db", None) is not None:
            self._db.close()
        self._leaves = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # an array still looks at it; it goes when that goes
                self._map = None
        if self._folder is not None:
            self._folder.cleanup()

    def _place(self, path: Path) -> Path:
        """Return a file that SQLite can open without writing beside the input: the input, or a copy in the temp folder."""
        try:
            with path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}", code="unreadable") from None
        journals = [Path(f"{path}{end}") for end in ("-wal", "-journal")]
        pending = [j for j in journals if j.exists() and j.stat().st_size]
        if not packed and not pending:
            return path
        self._folder = tempfile.TemporaryDirectory(prefix="mansard-")
        copy = Path(self._folder.name) / "profile.sqlite"
        if packed:
            self._unpack(path, copy)
            return copy
        shutil.copyfile(path, copy)
        for journal in pending:
            shutil.copyfile(journal, f"{copy}{journal.name.removeprefix(path.name)}")
        with sqlite3.connect(copy) as db:  # lets SQLite apply what was still under way, to the copy
            db.execute("PRAGMA journal_mode=DELETE")
        db.close()
        self.damage.append(Damage(code="unfinished_writes", text="the database has unfinished writes beside it; a copy "
                                  "with them applied was read"))  # fmt: skip
        return copy

    def _unpack(self, path: Path, copy: Path) -> None:
        try:
            with gzip.open(path, "rb") as packed, copy.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
        except (EOFError, zlib.error, OSError) as error:
            text = f"the gzip file is cut short or damaged ({error}); what could be unpacked was read"
            self.damage.append(Damage(code="truncated", text=text, incomplete=True))

    def _open_leaves(self, place: Path) -> None:
        """Map the file for reading columns from its pages, where it is plain."""
        with place.open("rb") as file:
            size = file.seek(0, 2)
            if size < 4096:
                return
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._descriptor = os.dup(file.fileno()) if hasattr(os, "pread") else None
        try:
            self._leaves = sqlite_leaves.open_file(np.frombuffer(self._map, dtype=np.uint8), self._descriptor)
        except sqlite_leaves.NotPlainError:
            self._leaves = None
            return
        named = int.from_bytes(self._map[28:32], "big")
        if named > self._leaves.pages:
            self._cut = True
            lost = named - self._leaves.pages
            text = f"the file ends early: {lost} of {named} pages are missing"
            self.damage.append(Damage(code="truncated", text=text, count=lost, incomplete=True))

    def _read_schema(self) -> dict[str, dict[str, Any]]:
        """Return for each table its columns in order, its root page and whether it is plain."""
        found: dict[str, dict[str, Any]] = {}
        query = "SELECT name, rootpage, sql, type FROM sqlite_master WHERE type IN ('table', 'view')"
        for name, root, sql, kind in self._db.execute(query).fetchall():
            try:
                info = self._db.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self._note(str(name), error)
                continue
            plain = kind == "table" and "without rowid" not in (sql or "").lower() and all(row[6] == 0 for row in info)
            keys = [row for row in info if row[5]]
            alias = keys[0][0] if len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER" else None
            defaults = any(row[4] is not None for row in info)
            found[name] = {
                "columns": [row[1] for row in info],
                "types": {row[1]: str(row[2]).upper() for row in info},
                "root": root,
                "plain": plain and not defaults,
                "alias": alias,
            }
        return found

    # -- finding -------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> str | None:
        """Return the name of a table in this file; a version suffix such as `_V3` is the same table."""
        candidates = [t for t in self.tables if re.fullmatch(rf"{re.escape(name)}(_V\d+)?", t)]
        if len(candidates) > 1:
            filled = [t for t in candidates if self.last_rowid(t)]
            candidates = filled or candidates
        if name in candidates:  # the documented name is the exporter's own
            if len(candidates) > 1:
                self._doubled[name] = sorted(set(candidates) - {name})
            return name
        return max(candidates, key=lambda t: (len(t), t)) if candidates else None

    def several_tables(self) -> list[Finding]:
        """Return what to say of tables that stand beside one of the same content and were not read."""
        return [
            Finding(
                code="several_tables",
                text=f"beside {name} there is {', '.join(others)} with rows; {name} alone was read",
            )
            for name, others in self._doubled.items()
        ]

    def has_column(self, table: str, column: str) -> bool:
        """Return whether a table has a column."""
        return column in self.tables[table]["columns"]

    def last_rowid(self, table: str) -> int:
        """Return the largest rowid, an upper bound of the number of rows that costs nothing to find; of a view, the rows."""
        counted = "max(rowid)" if self.tables[table]["root"] else "count(*)"
        try:
            row = self._db.execute(f'SELECT {counted} FROM "{table}"').fetchone()
        except sqlite3.Error:
            return 0
        return int(row[0] or 0)

    def holds_fractions(self, table: str, column: str) -> bool:
        """Return whether a column is declared for, and holds, numbers that are not whole."""
        if "INT" in self.tables[table]["types"].get(column, ""):
            return False
        query = f'SELECT 1 FROM "{table}" WHERE "{column}" <> CAST("{column}" AS INTEGER) LIMIT 1'
        try:
            return self._db.execute(query).fetchone() is not None
        except sqlite3.Error:
            return False

    # -- reading -------------------------------------------------------------------------------------------------------

    def rows(self, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return all rows of a small table as dictionaries; damage ends the reading and is noted."""
        wanted = [c for c in (columns or self.tables[table]["columns"]) if self.has_column(table, c)]
        text = ", ".join(f'"{c}"' for c in wanted)
        found = []
        try:
            for row in self._db.execute(f'SELECT {text} FROM "{table}"'):
                found.append(dict(zip(wanted, row, strict=True)))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(table, error)
        return found

    def column_arrays(
        self,
        table: str,
        columns: Sequence[tuple[str, Any]],
        *,
        text: str | None = None,
        thousandths: Sequence[str] = (),
    ) -> tuple[dict[str, npt.NDArray[Any]], list[str | None] | sqlite_leaves.Text | None]:
        """Return integer columns as arrays, NULL as -1, and a text column where one is asked for.

        Args:
            table: The table.
            columns: Names and element types; those that the table has not are left out.
            text: A text column.
            thousandths: Columns of fractions, returned in whole thousandths.
        """
        wanted = [(c, d) for c, d in columns if self.has_column(table, c)]
        self._reserve(table, wanted, text)
        text = text if text is not None and self.has_column(table, text) else None
        fast = None if thousandths else self._from_leaves(table, wanted, text)
        if fast is not None:
            return fast
        return self._from_cursor(table, wanted, text, thousandths)

    def integers(self, source: str, terms: Sequence[str], *, table: str) -> list[npt.NDArray[np.int64]]:
        """Return terms of a query as whole numbers, NULL as -1; one array for each term.

        Args:
            source: The query from its FROM on.
            terms: What to select.
            table: The table that the rows are of, for messages and the memory limit.
        """
        self._hold(table, 8 * len(terms))
        selected = ", ".join(f"ifnull(CAST({term} AS INTEGER), -1)" for term in terms)
        blocks = list(self._blocks(f"SELECT {selected} {source}", len(terms), table))
        found = np.concatenate(blocks) if blocks else np.zeros((0, len(terms)), dtype=np.int64)
        return [np.ascontiguousarray(found[:, i]) for i in range(len(terms))]

    def _reserve(self, table: str, columns: Sequence[tuple[str, Any]], text: str | None) -> None:
        """Refuse, before reading, what would go beyond the memory limit."""
        self._hold(table, sum(np.dtype(d).itemsize for _, d in columns) + (24 if text else 0))

    def _hold(self, table: str, each: int) -> None:
        """Count the rows of a table, of so many bytes each, against the memory limit."""
        rows = self.last_rowid(table)
        self._held += rows * each
        self._most_rows = max(self._most_rows, rows)
        needed = self._held + _WORK_PER_ROW * self._most_rows
        if self.memory_limit is not None and needed > room(self.memory_limit):
            hint = "raise --memory-limit, or export a part of the capture (nsys export --ts-normalize, --times)"
            raise refuse(self.path.name, needed, self.memory_limit, hint)

    def _from_leaves(
        self, table: str, columns: Sequence[tuple[str, Any]], text: str | None
    ) -> tuple[dict[str, npt.NDArray[Any]], sqlite_leaves.Text | None] | None:
        facts = self.tables[table]
        if self._leaves is None or not facts["plain"]:
            return None
        if not self._cut and self.last_rowid(table) < _FEW_ROWS:
            return None
        names = facts["columns"]
        order = [(names.index(c), d) for c, d in columns]
        report = None if self._progress is None else (lambda share: self._progress(table, share))  # type: ignore[misc]
        try:
            arrays, place, missing = sqlite_leaves.read_columns(
                self._leaves, facts["root"], order, alias=facts["alias"],
                text=names.index(text) if text is not None else None, width=len(names), progress=report,
            )  # fmt: skip
        except (sqlite_leaves.NotPlainError, IndexError, OverflowError):
            return None
        self._release()
        if missing:
            text_ = f"{missing} pages of {table} lie beyond the end of the file; their rows are lost"
            self.damage.append(Damage(code="truncated", text=text_, count=missing, incomplete=True))
        elif not self._agrees(table, columns, arrays):
            return None
        return dict(zip([c for c, _ in columns], arrays, strict=True)), place

    def _release(self) -> None:
        """Give back the pages of the mapped file; what is read again comes from the file cache."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _agrees(self, table: str, columns: Sequence[tuple[str, Any]], arrays: Sequence[npt.NDArray[Any]]) -> bool:
        """Return whether SQLite gives the same first and last rows."""
        names = ", ".join(f'"{c}"' for c, _ in columns)
        if not arrays or not arrays[0].size:
            return False
        for direction, index in (("ASC", 0), ("DESC", -1)):
            query = f'SELECT {names} FROM "{table}" ORDER BY rowid {direction} LIMIT 1'
            try:
                row = self._db.execute(query).fetchone()
            except sqlite3.Error:
                return True  # SQLite cannot read there at all; the pages can
            if [(-1 if v is None else v) for v in row] != [int(a[index]) for a in arrays]:
                return False
        return True

    def _from_cursor(
        self, table: str, columns: Sequence[tuple[str, Any]], text: str | None, thousandths: Sequence[str] = ()
    ) -> tuple[dict[str, npt.NDArray[Any]], list[str | None] | None]:
        # Text where an integer belongs becomes a number or NULL here, never a stray object in an array.
        terms = [f'round(1000.0 * "{c}")' if c in thousandths else f'"{c}"' for c, _ in columns]
        selected = ", ".join([f"ifnull(CAST({term} AS INTEGER), -1)" for term in terms])
        words: list[str | None] = []
        try:
            if text is not None:
                words = [
                    None if row[0] is None else _text(row[0])
                    for row in self._db.execute(f'SELECT "{text}" FROM "{table}"')
                ]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(table, error)
        blocks = list(self._blocks(f'SELECT {selected} FROM "{table}"', len(columns), table)) if columns else []
        found = np.concatenate(blocks) if blocks else np.zeros((0, len(columns)), dtype=np.int64)
        arrays = {c: np.ascontiguousarray(found[:, i]).astype(d) for i, (c, d) in enumerate(columns)}
        if text is not None:
            words = (words + [None] * len(found))[: len(found)]
        return arrays, words if text is not None else None

    def _blocks(self, query: str, width: int, table: str) -> Iterator[npt.NDArray[np.int64]]:
        try:
            cursor = self._db.execute(query)
            while True:
                rows = cursor.fetchmany(_ROWS_AT_ONCE)
                if not rows:
                    return
                yield np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width).reshape(
                    -1, width
                )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(table, error)

    def _note(self, table: str, error: Exception) -> None:
        text = f"{table} could be read only in part: {error}"
        if not any(d.text == text for d in self.damage):
            self.damage.append(Damage(code="damaged_table", text=text, incomplete=True))

    def bytes_map(self) -> npt.NDArray[np.uint8]:
        """The file as bytes, for text columns."""
        data: npt.NDArray[np.uint8] = self._leaves.data
        return data

    def strings(self, used: npt.NDArray[Any]) -> dict[int, str]:
        """Return the strings of these ids; an id without a string is left out."""
        table = self.table("StringIds")
        wanted = set(used.tolist())
        if table is None or not wanted:
            return {}
        found: dict[int, str] = {}
        try:
            for key, value in self._db.execute(f'SELECT id, value FROM "{table}"'):
                if key in wanted:
                    found[key] = _text(value)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._note(table, error)
        return found


def _text(value: object) -> str:
    """Return a value of a text column as text; a damaged file may hold bytes or numbers there."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
