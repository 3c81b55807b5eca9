"""Tables as CSV, Parquet and Excel files. Text from a profile is data there: it is never a formula and never hides."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from mansard.core.document import TOOL_VERSION
from mansard.core.errors import UndecidedError
from mansard.report.frames import Table, needs, to_arrow

#: A spreadsheet takes a cell that begins with one of these for a formula. Source: OWASP, CSV Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: Most rows of a sheet, its head included. Source: Excel specifications and limits.
SHEET_ROWS = 1_048_576
#: Most characters of a cell. Source: Excel specifications and limits.
CELL_CHARACTERS = 32_767


def to_csv(table: Table) -> str:
    """Return a table as CSV (RFC 4180, UTF-8): empty is not known, text that a spreadsheet would compute gets a leading `'`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([_inert(name) for name in table.columns])
    kinds = list(table.kinds.values())
    for row in table.rows():
        writer.writerow([_written(v, kind) for v, kind in zip(row, kinds, strict=True)])
    return out.getvalue()


def _written(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "flag":
        return "true" if value else "false"
    return _inert(value) if kind == "text" else repr(value)


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_parquet(table: Table) -> bytes:
    """Return a table as a Parquet file (zstd); its schema metadata say what wrote it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise needs("pyarrow", "frames") from None
    arrow = to_arrow(table).replace_schema_metadata({"table": table.name, "mansard": TOOL_VERSION, "units": "SI"})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(arrow, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def to_xlsx(tables: Sequence[Table]) -> bytes:
    """Return tables as an Excel workbook, one sheet each, the head frozen and filterable.

    Raises:
        UndecidedError: a table is longer than a sheet.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise needs("openpyxl", "xlsx") from None
    book = Workbook()
    book.remove(book.active)
    for table in tables:
        if len(table) + 1 > SHEET_ROWS:
            raise UndecidedError(
                f"the table {table.name} has {len(table)} rows, a sheet holds {SHEET_ROWS}",
                hint="export parquet or csv",
            )
        _sheet(book.create_sheet(table.name[:31]), table)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _sheet(sheet: Any, table: Table) -> None:
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter

    for column, (name, values) in enumerate(table.columns.items(), 1):
        head = sheet.cell(row=1, column=column)
        _put_text(head, name)
        head.font = Font(bold=True)
        for row, value in enumerate(values, 2):
            if value is None or value == "":
                continue
            cell = sheet.cell(row=row, column=column)
            if table.kinds[name] == "text":
                _put_text(cell, value)
            else:
                cell.value = value
        longest = max([len(name), *(len(str(v)) for v in values[:200] if v is not None)])
        sheet.column_dimensions[get_column_letter(column)].width = min(60, max(8, longest + 2))
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(table.columns))}{len(table) + 1}"


def _put_text(cell: Any, text: str) -> None:
    """Write text that stays text: a leading `=` is no formula, not even when someone edits the cell."""
    cell.value = text[:CELL_CHARACTERS]
    cell.data_type = "s"
    if text.startswith(_FORMULA):
        cell.quotePrefix = True
