"""Lines of `mansard trace` for a page of a given width: prose is wrapped, tables shrink their names, then split."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby

from mansard.report.text import clean
from mansard.report.trace_names import apart

_GAP = 2
_LEAST_NAME = (
    22,
    14,
)  # the first column, and further ones of names, are not cut below this; the table is split instead
_TITLE = 14  # a title of the first column that is no longer stays on one line
_FIGURE = re.compile(r"^(-|\d|unknown\b|implausible\b)")
_HANG = re.compile(r"^(\s*\S.*?\s{2,})\S")
_MOST_HANG = 24


class TableLine(str):
    """One line of a table, as text at its natural width, that still knows its cells.

    Args:
        text: The line.
        cells: Its cells.
        table: Number that all lines of one table share, and no other table does.
    """

    __slots__ = ("cells", "table")

    cells: tuple[str, ...]
    table: int

    def __new__(cls, text: str, cells: Sequence[str], table: int) -> TableLine:
        """Return the line."""
        line = super().__new__(cls, text)
        line.cells = tuple(str(c) for c in cells)
        line.table = table
        return line


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows in columns; the first is left-aligned, the others right-aligned.

    >>> table(["name", "time"], [["a", "1 s"]])
    ['name  time', 'a      1 s']
    """
    if not rows:
        return []
    shown = [[clean(cell) for cell in row] for row in [head, *rows]]
    widths = _natural(shown)
    number = id(rows)
    return [TableLine(_line(row, widths), row, number) for row in shown]


def fitted(lines: Sequence[str], width: int) -> list[str]:
    """Return lines of at most `width` columns, in which no file or profile sends anything to the terminal.

    Only a word that is longer, such as a path, stays whole.

    Args:
        lines: Prose, and lines that `table` made.
        width: Columns, at least 40.

    >>> fitted(["  note: one two three four five six seven eight nine"], 40)
    ['  note: one two three four five six', '    seven eight nine']
    >>> for line in fitted(table(["name", "a b", "c"], [["x" * 40, "1", "2"]]), 40): print(line)
                                        a
    name                                b  c
    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...  1  2
    """
    width = max(40, width)
    out: list[str] = []
    for number, group in groupby(lines, key=lambda line: line.table if isinstance(line, TableLine) else None):
        for_one = list(group)
        if number is None:
            out += [piece for line in for_one for piece in _wrapped(clean(line), width)]
        else:
            out += _fitted_table([line.cells for line in for_one if isinstance(line, TableLine)], width)
    return out


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    lead = line[: len(line) - len(line.lstrip())]
    hang = _HANG.match(line)
    rest = " " * len(hang[1]) if hang and len(hang[1]) <= _MOST_HANG else lead + "  "
    return textwrap.wrap(
        line.lstrip(),
        width,
        initial_indent=lead,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _natural(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]


def _line(row: Sequence[str], widths: Sequence[int], gap: int = _GAP) -> str:
    cells = [str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
    return (" " * gap).join(cells).rstrip()


def _total(widths: Sequence[int], gap: int = _GAP) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _fitted_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    head, body = rows[0], rows[1:]
    widths = _natural(rows)
    if _total(widths) > width:
        # First titles of several words take several lines, then names are cut: figures never are.
        least = [_least_title(title, i) for i, title in enumerate(head)]
        widths = [max([least[i], *(len(row[i]) for row in body)]) for i in range(len(head))]
        widths = _with_flatter_titles(_with_shorter_names(widths, least, body, width), head, width)
    for gap in (_GAP, 1):
        if _total(widths, gap) <= width:
            return _drawn(head, body, widths, gap)
    most = 1
    while most + 1 < len(widths) and _total(widths[: most + 1]) <= width:
        most += 1
    if most < 2:  # nothing but the name has room: no table can be made of that
        return _drawn(head, body, widths, _GAP)
    left, right = (
        [[row[0], *part] for row in rows for part in [row[chosen]]] for chosen in (slice(1, most), slice(most, None))
    )
    return [*_fitted_table(left, width), "", *_fitted_table(right, width)]


def _least_title(title: str, column: int) -> int:
    """Return the width that a title needs when its words stand below each other."""
    word = max(map(len, title.split()), default=0)
    return max(word, len(title)) if column == 0 and len(title) <= _TITLE else word


def _with_shorter_names(
    widths: Sequence[int], titles: Sequence[int], body: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Return widths in which the widest columns of names give way, each down to a least width."""
    found = list(widths)
    names = [i for i in range(len(found)) if not any(_FIGURE.match(row[i]) for row in body) or i == 0]
    least = {i: max(_LEAST_NAME[min(i, 1)], titles[i]) for i in names}
    for _ in range(_total(found) - width):
        room = [i for i in names if found[i] > least[i]]
        if not room:
            break
        found[max(room, key=lambda i: (found[i] - least[i], -i))] -= 1
    return found


def _with_flatter_titles(widths: Sequence[int], head: Sequence[str], width: int) -> list[int]:
    """Return widths in which the titles of most lines take what room is left."""
    found = list(widths)
    for _ in range(width - _total(found)):
        lines = [len(_title(t, w)) for t, w in zip(head, found, strict=True)]
        if max(lines) == 1:
            break
        found[lines.index(max(lines))] += 1
    return found


def _title(title: str, width: int) -> list[str]:
    return textwrap.wrap(title, max(1, width), break_long_words=False) or [""]


def _drawn(head: Sequence[str], body: Sequence[Sequence[str]], widths: Sequence[int], gap: int) -> list[str]:
    titles = [_title(title, w) for title, w in zip(head, widths, strict=True)]
    deep = max(map(len, titles))
    above = [[""] * (deep - len(t)) + t for t in titles]
    lines = [_line([column[i] for column in above], widths, gap) for i in range(deep)]
    columns = [apart([row[i] for row in body], w) for i, w in enumerate(widths)]
    return lines + [_line(row, widths, gap) for row in zip(*columns, strict=True)]
