"""Read whole columns of an SQLite table straight from its b-tree leaves, with array arithmetic instead of a cursor.

A cursor makes one Python object per value; on millions of rows that is most of the time. Here a leaf page is bytes: the cell
pointers, the record headers and the values of many rows are decoded at once. Only plain tables qualify (rowid tables whose
wanted columns hold integers, NULL or short text, no overflow pages); for everything else the answer is None, and the caller
asks SQLite. Source: the file format, https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

NULL = np.iinfo(np.int64).min  # stands for NULL while decoding
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], dtype=np.int32)
_CHUNK_PAGES = 256  # what fits the cache of one core
_SPREAD = 6  # up to so many times the wanted pages are read in one piece


class NotPlainError(Exception):
    """The table cannot be read this way; a cursor can."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text column: where each value lies in the file; length -1 is NULL."""

    offset: Int64Array
    length: Int64Array


@dataclass(frozen=True, slots=True)
class _File:
    data: Bytes
    page_bytes: int
    usable: int
    pages: int
    descriptor: int | None


def open_file(data: Bytes, descriptor: int | None = None) -> _File:
    """Return the layout of a database that lies in `data`.

    Args:
        data: The file, such as a mapping of it.
        descriptor: The same file opened for reading. Pages are then read, not mapped: a page fault for every few of them
            costs more than copying them, and mapped pages count as memory of the process.

    Raises:
        NotPlainError: It is too short, or its header says nothing usable.
    """
    if data.size < 512 or bytes(data[:16]) != b"SQLite format 3\x00":
        raise NotPlainError("no SQLite header")
    page = int(data[16]) << 8 | int(data[17])
    page = 65536 if page == 1 else page
    if page < 512 or page & (page - 1) or data[18] > 2 or data[19] > 2:
        raise NotPlainError("an unknown page size or version")
    return _File(
        data=data, page_bytes=page, usable=page - int(data[20]), pages=data.size // page, descriptor=descriptor
    )


def read_columns(
    file: _File,
    root: int,
    columns: Sequence[tuple[int, Any]],
    *,
    alias: int | None = None,
    text: int | None = None,
    width: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[list[npt.NDArray[Any]], Text | None, int]:
    """Return columns of a table in rowid order.

    Args:
        file: The database.
        root: Root page of the table.
        columns: Index in the table and element type of each wanted integer column; NULL becomes -1.
        alias: Index of the INTEGER PRIMARY KEY column, whose value is the rowid, or None.
        text: Index of a text column that is wanted too.
        width: How many columns the table has; rows whose storage types all take one byte are then read more quickly.
        progress: Called with the share that is done.

    Returns:
        The columns, the text column, and how many leaf pages lie beyond the end of the file.

    Raises:
        NotPlainError: The table cannot be read this way.
    """
    leaves, counts, missing = _leaf_pages(file, root)
    first = np.concatenate([[0], np.cumsum(counts)])
    total = int(first[-1])
    out = [np.empty(total, dtype=dtype) for _, dtype in columns]
    places = Text(np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)) if text is not None else None
    order = [index for index, _ in columns]

    def work(start: int) -> None:
        part = slice(start, start + _CHUNK_PAGES)
        rows = slice(int(first[start]), int(first[min(start + _CHUNK_PAGES, leaves.size)]))
        values, place = _decode(file, leaves[part], counts[part], order, alias, text, width)
        for target, value in zip(out, values, strict=True):
            value[value == NULL] = -1
            target[rows] = value
        if places is not None and place is not None:
            places.offset[rows], places.length[rows] = place.offset, place.length
        if progress is not None:
            progress(min(1.0, (start + _CHUNK_PAGES) / max(1, leaves.size)))

    starts = range(0, leaves.size, _CHUNK_PAGES)
    if len(starts) > 1:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, starts))
    else:
        for start in starts:
            work(start)
    return out, places, missing


def _ragged(counts: Int64Array) -> Int64Array:
    """Return 0..n-1 for each n of `counts`, one after the other."""
    ends = np.cumsum(counts)
    index = np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    return index - np.repeat(ends - counts, counts)


def _leaf_pages(file: _File, root: int) -> tuple[Int64Array, Int64Array, int]:
    """Return the leaf pages of a table in rowid order, their row counts, and how many pages lie beyond the end of the file."""
    level = np.array([root], dtype=np.int64)
    missing = 0
    for _ in range(20):
        present = (level >= 1) & (level <= file.pages)
        missing += int(np.count_nonzero(~present))
        level = level[present]
        kind, counts = _heads(file, level)
        if level.size == 0 or (kind == 0x0D).all():
            if np.unique(level).size != level.size:
                raise NotPlainError("a page is named twice")
            if (np.where(level == 1, 108, 8) + 2 * counts > file.page_bytes).any():
                raise NotPlainError("a page names more cells than it can hold")
            return level, counts, missing
        if not (kind == 0x05).all():
            raise NotPlainError("the tree is not of one depth, or no table")
        level = _children(file, level, counts)
    raise NotPlainError("the tree is too deep")


def _children(file: _File, level: Int64Array, counts: Int64Array) -> Int64Array:
    base = (level - 1) * file.page_bytes
    head = base + np.where(level == 1, 100, 0)
    if (head + 12 + 2 * counts > base + file.page_bytes).any():
        raise NotPlainError("a page names more cells than it can hold")
    cells = np.repeat(base, counts) + _be16(file, np.repeat(head + 12, counts) + 2 * _ragged(counts))
    left = _be32(file, _inside(file, cells))
    right = _be32(file, head + 8)
    merged = np.empty(left.size + right.size, dtype=np.int64)
    last = np.cumsum(counts + 1) - 1
    mask = np.ones(merged.size, dtype=np.bool_)
    mask[last] = False
    merged[last], merged[mask] = right, left
    return merged


def _be16(file: _File, at: Int64Array) -> Int64Array:
    return file.data[at].astype(np.int64) << 8 | file.data[at + 1]


def _be32(file: _File, at: Int64Array) -> Int64Array:
    return _be16(file, at) << 16 | _be16(file, at + 2)


def _inside(file: _File, at: Int64Array) -> Int64Array:
    if at.size and int(at.max()) + 8 > file.data.size:
        raise NotPlainError("a cell lies beyond the end of the file")
    return at


def _heads(file: _File, level: Int64Array) -> tuple[Bytes, Int64Array]:
    """Return the kind of each page of a tree and how many cells it has."""
    at = (level - 1) * file.page_bytes + np.where(level == 1, 100, 0)
    if file.descriptor is None:
        return file.data[at], _be16(file, at + 3)
    # Eight bytes of each page: reading whole pages for them would take three times as long.
    descriptor = file.descriptor
    raw = b"".join([os.pread(descriptor, 8, place) for place in at.tolist()])
    if len(raw) != 8 * level.size:
        raise NotPlainError("the file became shorter while it was read")
    heads = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 8)
    return heads[:, 0], heads[:, 3].astype(np.int64) << 8 | heads[:, 4]


def _pages(file: _File, leaves: Int64Array) -> Iterator[tuple[Bytes, Int64Array]]:
    """Yield arrays of pages, and which of their rows are the wanted pages, in their order."""
    low, high = int(leaves.min()), int(leaves.max())
    count = high - low + 1
    if file.descriptor is None:
        yield file.data[: file.pages * file.page_bytes].reshape(file.pages, file.page_bytes), leaves - 1
    elif count <= _SPREAD * leaves.size:
        yield _read(file, low, count), leaves - low
    else:
        edges = np.flatnonzero(np.diff(leaves) != 1) + 1
        for run in np.split(leaves, edges):
            yield _read(file, int(run[0]), run.size), np.arange(run.size)


def _read(file: _File, first: int, count: int) -> Bytes:
    """Return consecutive pages from the file."""
    assert file.descriptor is not None
    raw = os.pread(file.descriptor, count * file.page_bytes, (first - 1) * file.page_bytes)
    if len(raw) != count * file.page_bytes:
        raise NotPlainError("the file became shorter while it was read")
    return np.frombuffer(raw, dtype=np.uint8).reshape(count, file.page_bytes)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some leaf pages, copied side by side so that their bytes stay in the cache of a core.

    `words` has the eight bytes that start at each place as one number, in the byte order of this machine.
    """

    data: Bytes
    words: npt.NDArray[Any]


def _chunk(file: _File, leaves: Int64Array) -> _Chunk:
    data = np.empty(leaves.size * file.page_bytes + 8, dtype=np.uint8)
    rows = data[:-8].reshape(leaves.size, file.page_bytes)
    at = 0
    for pages, wanted in _pages(file, leaves):
        np.take(
            pages, wanted, axis=0, out=rows[at : at + wanted.size], mode="clip"
        )  # each lies inside; a check would copy
        at += wanted.size
    data[-8:] = 0
    return _Chunk(data=data, words=np.ndarray(shape=(data.size - 7,), dtype=np.uint64, buffer=data.data, strides=(1,)))


def _word(chunk: _Chunk, at: Int32Array) -> npt.NDArray[np.uint64]:
    """Return the eight bytes at each place as one big-endian number."""
    word: npt.NDArray[np.uint64] = chunk.words[at]
    return word.byteswap(inplace=True) if sys.byteorder == "little" else word


def _varint(chunk: _Chunk, at: Int32Array) -> tuple[Int64Array, Int32Array]:
    """Return the variable-length integers at these places and the places after them."""
    top = chunk.data[at]
    if not (top & 0x80).any():
        return top.astype(np.int64), at + 1
    word = _word(chunk, at)
    value = np.zeros(at.size, dtype=np.int64)
    length = np.zeros(at.size, dtype=np.int32)
    going = np.ones(at.size, dtype=np.bool_)
    for index in range(8):
        byte = ((word >> np.uint64(56 - 8 * index)) & np.uint64(0xFF)).astype(np.int64)
        value = np.where(going, value << 7 | (byte & 0x7F), value)
        length += going
        going &= byte >= 0x80
        if not going.any():
            return value, at + length
    raise NotPlainError("a number of nine bytes")


def _decode(
    file: _File,
    leaves: Int64Array,
    counts: Int64Array,
    order: Sequence[int],
    alias: int | None,
    text: int | None,
    width: int | None,
) -> tuple[list[Int64Array], Text | None]:
    """Return the wanted columns of the rows on some leaf pages."""
    chunk = _chunk(file, leaves)
    base = (np.arange(leaves.size) * file.page_bytes).astype(np.int32)
    page = np.repeat(base, counts)
    at_pointer = (
        page + np.repeat(np.where(leaves == 1, 108, 8).astype(np.int32), counts) + 2 * _ragged(counts).astype(np.int32)
    )
    pointer = chunk.data[at_pointer].astype(np.int32) << 8 | chunk.data[at_pointer + 1]
    if pointer.size and int(pointer.max()) >= file.usable:
        raise NotPlainError("a cell lies outside its page")
    payload, at = _varint(chunk, page + pointer)
    if payload.size and int(payload.max()) > file.usable - 35:
        raise NotPlainError("a row overflows its page")
    rowid, at = _varint(chunk, at)
    header, cursor = _varint(chunk, at)
    stop = at + header.astype(np.int32)
    if stop.size and int((stop - page).max()) > file.page_bytes:
        raise NotPlainError("a header lies outside its page")
    if text is None and width is not None and width < 127 and header.size and (header == width + 1).all():
        quick = _one_byte_types(chunk, cursor, stop, page + file.page_bytes, order)
        if quick is not None:
            return [(rowid if i == alias else quick[i]).copy() for i in order], None
    body = stop
    values: dict[int, Int64Array] = {}
    place: Text | None = None
    wanted = {*order, *([text] if text is not None else [])}
    for index in range(max(wanted, default=-1) + 1):
        serial, cursor = _serial(chunk, cursor, stop)
        big = serial >= 12
        many = bool(big.any())
        size = np.where(big, (serial - 12) // 2, _SIZES[np.minimum(serial, 11)]) if many else _SIZES[serial]
        if index == text:
            if (serial[serial != 0] < 13).any() or (big & (serial % 2 == 0)).any():
                raise NotPlainError("a text column holds something else")
            shift = np.repeat((leaves - 1) * file.page_bytes - base, counts)
            place = Text(body.astype(np.int64) + shift, np.where(serial == 0, -1, size).astype(np.int64))
        elif index in wanted:
            values[index] = rowid if index == alias else _integers(chunk, body, serial, size)
        body = body + size.astype(np.int32)
        if body.size and int((body - page).max()) > file.page_bytes:
            raise NotPlainError("a row lies outside its page")
    return [values[i].copy() for i in order], place


def _one_byte_types(
    chunk: _Chunk, cursor: Int32Array, body: Int32Array, end: Int32Array, order: Sequence[int]
) -> dict[int, Int64Array] | None:
    """Return the wanted columns of rows whose storage types take one byte each; None where a column holds text.

    A header of one byte per column and one for itself has no longer type in it. Then each type lies at a known place, columns
    of one type are stepped over at once, and a column that is NULL in all rows is known without its place.

    Args:
        chunk: Some leaf pages.
        cursor: Where the types of each row begin.
        body: Where the values of each row begin.
        end: Where the page of each row ends.
        order: Wanted columns.
    """
    wanted = set(order)
    found: dict[int, Int64Array] = {}
    types: dict[int, npt.NDArray[np.uint8]] = {}
    for index in wanted:
        types[index] = serial = chunk.data[cursor + np.int32(index)]
        if int(serial.min()) == int(serial.max()) and int(serial[0]) in (0, 8, 9):
            found[index] = _integers(chunk, body, serial, serial)
    at = body.copy()
    for index in range(max(wanted - set(found), default=-1) + 1):
        serial = types[index] if index in types else chunk.data[cursor + np.int32(index)]
        low, high = int(serial.min()), int(serial.max())
        if high > 11:
            return None
        size = _SIZES[low : low + 1] if low == high else _SIZES[serial]
        if index in wanted and index not in found:
            found[index] = _integers(chunk, at, serial, size)
        at += size if low != high else size[0]
    if (at > end).any():
        raise NotPlainError("a row lies outside its page")
    return found


def _serial(chunk: _Chunk, cursor: Int32Array, stop: Int32Array) -> tuple[npt.NDArray[Any], Int32Array]:
    """Return the storage types at the cursors and the places after them; NULL for rows older than the column."""
    present = cursor < stop
    whole = bool(present.all())
    at = cursor if whole else np.where(present, cursor, chunk.data.size - 8)  # where zeros lie
    serial: npt.NDArray[Any] = chunk.data[at]
    after = cursor + 1
    if (serial & 0x80).any():
        serial, behind = _varint(chunk, at)
        after = cursor + (behind - at)
    elif (serial >= 12).any():
        serial = serial.astype(np.int64)
    if not whole:
        after = np.where(present, after, cursor)
    return serial, after


def _integers(chunk: _Chunk, body: Int32Array, serial: npt.NDArray[Any], size: npt.NDArray[Any]) -> Int64Array:
    """Return the integers of one column from their storage types."""
    if serial.size == 0:
        return np.zeros(0, dtype=np.int64)
    low, high = int(serial.min()), int(serial.max())
    if high > 9 or (serial == 7).any():
        raise NotPlainError("an integer column holds something else")
    if low == high and low in (0, 8, 9):
        return np.full(serial.size, {0: NULL, 8: 0, 9: 1}[low], dtype=np.int64)
    if low == high == 1:
        return chunk.data[body].view(np.int8).astype(np.int64)
    # The word that starts at the value, shifted so that the value's sign bit leads, then back down.
    result = _word(chunk, body).view(np.int64)
    result >>= 64 - 8 * int(size[0]) if low == high else np.where(size > 0, 64 - 8 * size.astype(np.int64), 0)
    if low == 0 or high > 6:
        result[serial == 0] = NULL
        result[serial == 8] = 0
        result[serial == 9] = 1
    return result


def texts(
    data: Bytes, place: Text, chosen: Int64Array, known: Mapping[bytes, int], add: Callable[[bytes], int]
) -> npt.NDArray[np.int32]:
    """Return the code of each chosen text, adding what is not known yet.

    Args:
        data: The file.
        place: The text column.
        chosen: Rows.
        known: Codes of texts seen before.
        add: Makes the code of a new text and keeps it in `known`.
    """
    raw = memoryview(data)  # type: ignore[arg-type]
    out = np.empty(chosen.size, dtype=np.int32)
    offsets, lengths = place.offset[chosen].tolist(), place.length[chosen].tolist()
    for row, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        word = bytes(raw[offset : offset + length])
        code = known.get(word)
        out[row] = add(word) if code is None else code
    return out
