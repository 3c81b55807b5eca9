"""The text of an Nsight Compute CSV: where its table begins, and which sign its numbers use for decimals."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_MOST_LINES = 10_000  # of a program's own output, before the table
_SIGNS = re.compile(r'^"?ID"?([,;])')
#: Columns that say which kernel a row is of; what stands in them is no measured number.
IDENTITY = frozenset(
    (
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
    )
)
_COMMA = re.compile(r"^[+-]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d+,(?:\d{1,2}|\d{4,}))$")  # no reading but a decimal comma
_POINT = re.compile(r"^[+-]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d+\.(?:\d{1,2}|\d{4,}))$")
_NUMBER = re.compile(r"^[+-]?[\d.,]*\d[\d.,]*$")


def decoded(data: bytes) -> str:
    """Return the text of a file; PowerShell writes what a program prints in UTF-16."""
    return data.decode("utf-16", "replace") if data.startswith(_UTF_16) else data.decode("utf-8-sig", "replace")


def header_at(text: str) -> int:
    """Return where the line of column names starts, -1 where there is none.

    `ncu --csv` prints its own messages and those of the program before it.

    >>> header_at('epoch 1\\n==PROF== Connected\\n"ID","Process ID","Kernel Name"\\n')
    27
    """
    at = 0
    for line in text.splitlines(keepends=True)[:_MOST_LINES]:
        if _SIGNS.match(line) and "Kernel Name" in line:
            return at
        at += len(line)
    return -1


def rows_of(text: str, at: int) -> list[list[str]]:
    """Return the rows from a place on, without the messages among them.

    Raises:
        csv.Error: They are no CSV.
    """
    signs = _SIGNS.match(text[at : at + 8])
    body = text[at:].replace("\0", "")
    rows = list(csv.reader(io.StringIO(body, newline=""), delimiter=signs[1] if signs else ","))
    return [r for r in rows if r and not (len(r) == 1 and r[0].startswith("=="))]


def with_points(rows: list[list[str]]) -> tuple[list[list[str]], bool]:
    """Return rows with decimal points, and whether they had decimal commas, as some systems' settings make Nsight Compute write.

    The whole file decides: `1,234` alone could be either. Where no number tells, or numbers contradict each other, nothing is changed.

    >>> with_points([["ID", "Metric Value"], ["0", "1.234,5"], ["0", "12.000"]])
    ([['ID', 'Metric Value'], ['0', '1234.5'], ['0', '12000']], True)
    >>> with_points([["ID", "Metric Value"], ["0", "1,234.5"], ["0", "12,000"]])[1]
    False
    """
    long = "Metric Value" in rows[0]  # one row a metric; beside the value stand rules in words
    measured = [i for i, name in enumerate(rows[0]) if (name == "Metric Value" if long else name not in IDENTITY)]
    cells = {r[i].strip() for r in rows[1:] for i in measured if i < len(r)}
    if not _told(cells, _COMMA) or _told(cells, _POINT):
        return rows, False
    chosen = frozenset(measured)
    turned = [[_turned(c) if i in chosen else c for i, c in enumerate(row)] for row in rows[1:]]
    return [rows[0], *turned], True


def _told(cells: Iterable[str], form: re.Pattern[str]) -> bool:
    return any(form.match(c) for c in cells)


def _turned(cell: str) -> str:
    text = cell.strip()
    return text.replace(".", "").replace(",", ".") if _NUMBER.match(text) else cell
