"""`csv_shapes`: one row of a table is one set of parameters."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.measure.config.typed import typed
from mansard.measure.config.yamlfile import Place, config_error

#: What a shared table may hold; a file beyond it is not a list of shapes.
LARGEST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its parameters, those with an empty cell left out, and where it stands."""

    params: dict[str, Any]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a file, and what a reader must know of how it was found."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def read_shapes(written: str, at: Place) -> Table:
    """Return the rows of `csv_shapes: written`, which stands at `at`.

    A path is relative to the configuration file, else to one of the folders above it, else to the working directory.
    The suite writes its paths from the root of its repository, `configs/...`: where that folder has another name, the
    rest of the path is looked for in the folders above the file, and a note says so.

    Raises:
        UsageError: no such file, an address that does not answer, no rows, or a row that does not fit the header.
    """
    notes: tuple[str, ...] = ()
    if written.startswith(("http://", "https://")):
        text, name = _download(written, at), written
    else:
        path, notes = _find(written, at)
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise config_error(at, f"cannot read csv_shapes {written!r}: {error}") from error
    return Table(rows=parse_shapes(text, name), notes=notes)


def parse_shapes(text: str, name: str) -> tuple[Row, ...]:
    """Return the rows of CSV text; the header holds parameter names, an empty cell leaves the parameter out.

    Raises:
        UsageError: an empty or repeated header, a row of another length, or no rows.

    >>> [r.params for r in parse_shapes("m,k,dtype\\n512,1.5,bf16\\n64,,f32\\n", "a.csv")]
    [{'m': 512, 'k': 1.5, 'dtype': 'bf16'}, {'m': 64, 'dtype': 'f32'}]
    """
    reader = csv.reader(io.StringIO(text))
    header = [cell.strip() for cell in next(reader, [])]
    if not any(header):
        raise config_error(Place(file=name, line=1), "is empty; the first row must hold the parameter names")
    for index, word in enumerate(header):
        if not word or word in header[:index]:
            what = f"column {index + 1} has no name" if not word else f"the column {word!r} is there twice"
            raise config_error(Place(file=name, line=1), what)
    rows = []
    for cells in reader:
        place = Place(file=name, line=reader.line_num)
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise config_error(place, f"{len(cells)} cells under a header of {len(header)}")
        pairs = zip(header, (cell.strip() for cell in cells), strict=True)
        rows.append(Row(params={k: typed(v) for k, v in pairs if v}, place=place))
    if not rows:
        raise config_error(Place(file=name), "has no rows under its header")
    return tuple(rows)


def _find(written: str, at: Place) -> tuple[Path, tuple[str, ...]]:
    path = Path(written).expanduser()
    if path.is_absolute():
        if path.is_file():
            return path, ()
        raise config_error(at, f"csv_shapes: no file {written!r}")
    here = Path(at.file).resolve().parent if at.line else Path.cwd()
    folders = [here, *list(here.parents)[:3]]
    for folder in [*folders, Path.cwd()]:
        if (folder / path).is_file():
            return folder / path, ()
    rest = Path(*path.parts[1:]) if path.parts[:1] == ("configs",) and len(path.parts) > 1 else None
    for folder in folders if rest is not None else ():
        if rest is not None and (folder / rest).is_file():
            return folder / rest, (f"{at}: csv_shapes {written!r} was found as {rest} in {folder.name}/",)
    raise config_error(
        at,
        f"csv_shapes: no file {written!r} beside the configuration, above it or in the working directory",
        hint="a path is relative to the configuration file, then to the working directory",
    )


def _download(address: str, at: Place) -> str:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(address, timeout=30) as response:
            data = response.read(LARGEST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise config_error(at, f"csv_shapes: {address} does not answer: {error}") from error
    if len(data) > LARGEST_BYTES:
        raise config_error(at, f"csv_shapes: {address} holds more than {LARGEST_BYTES} bytes")
    try:
        return str(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise config_error(at, f"csv_shapes: {address} is not UTF-8 text") from error
