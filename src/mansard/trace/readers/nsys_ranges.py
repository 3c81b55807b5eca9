"""NVTX ranges of an Nsight Systems export: names, domains, open ends and the threads they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.trace.readers import sqlite_leaves
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.run import Finding
from mansard.trace.timeline import NONE, Damage, Events, Names, events, sound

PUSH_POP, START_END = 0, 1
_STYLES = {59: PUSH_POP, 70: PUSH_POP, 60: START_END, 71: START_END}
_MARKS = (34, 65)
_DOMAIN_CREATE = 75
_PID = 0xFFFFFF
_COLUMNS = (
    ("start", np.int64), ("end", np.int64), ("eventType", np.int16), ("textId", np.int64), ("domainId", np.int64),
    ("globalTid", np.int64), ("endGlobalTid", np.int64), ("category", np.int32), ("rangeId", np.int64),
)  # fmt: skip


def read_ranges(
    file: NsysFile, names: Names, threads: Any, findings: list[Finding], damage: list[Damage]
) -> tuple[Events, int] | None:
    """Return the ranges and how many marks there are, or None where the export has no NVTX table.

    Args:
        file: The export.
        names: Table of names, extended.
        threads: Turns global thread ids into (process, thread) indices.
        findings, damage: Extended.
    """
    table = file.table("NVTX_EVENTS")
    if table is None:
        return None
    arrays, words = file.column_arrays(table, _COLUMNS, text="text")
    if "start" not in arrays or "eventType" not in arrays:
        text = f"the table {table} has no start or no eventType, so its ranges cannot be read"
        damage.append(Damage(code="missing_columns", text=text, incomplete=True))
        return None
    count = arrays["start"].size
    for name, dtype in _COLUMNS:
        arrays.setdefault(name, np.full(count, NONE, dtype=dtype))
    kind = arrays["eventType"]
    chosen = np.flatnonzero(np.isin(kind, list(_STYLES)))
    marks = int(np.isin(kind, _MARKS).sum())
    codes = _names(file, names, arrays, words, chosen, findings)
    start, end = arrays["start"][chosen], arrays["end"][chosen]
    open_end = end < 0
    if open_end.any():
        # The tool itself closes what is open at the end of the capture: at the last time any NVTX row has.
        end[open_end] = max(int(arrays["start"].max()), int(arrays["end"].max()))
        text = f"{int(open_end.sum())} NVTX ranges never end; they run to the last NVTX time of the capture"
        findings.append(Finding(code="open_ranges", text=text))
    tid, end_tid = arrays["globalTid"][chosen], arrays["endGlobalTid"][chosen]
    process, thread = threads(tid)
    crosses = (end_tid > 0) & (end_tid != tid)
    if crosses.any():
        # It belongs to no thread, so no call can be inside it.
        thread = np.where(crosses, NONE, thread)
        text = f"{int(crosses.sum())} NVTX ranges end on another thread than they start on; they own no launches"
        findings.append(Finding(code="cross_thread_ranges", text=text))
    style = np.where(np.isin(kind[chosen], (60, 71)), START_END, PUSH_POP).astype(np.int8)
    found = events(
        start_ns=start,
        end_ns=end,
        name=codes,
        process=process.astype(np.int32),
        thread=thread.astype(np.int32),
        extras={"range_style": style},
    )
    found, wrong = sound(found, what="NVTX ranges")
    damage += [d for d in wrong if d.code != "zero_duration"]
    return found, marks


def _names(
    file: NsysFile,
    names: Names,
    arrays: dict[str, npt.NDArray[Any]],
    words: list[str | None] | sqlite_leaves.Text | None,
    chosen: npt.NDArray[np.int64],
    findings: list[Finding],
) -> npt.NDArray[np.int32]:
    """Return the code of `domain:name` of each chosen row; the registered string wins over the text beside it."""
    domains = _domains(file, arrays, words)
    text_id = arrays["textId"][chosen]
    strings = file.strings(np.unique(text_id[text_id >= 0]))
    plain: dict[str, int] = {}
    local = _local_codes(file, words, chosen, text_id, strings, plain)
    unnamed = int((local < 0).sum())
    if unnamed:
        text = f"{unnamed} NVTX ranges have neither a text nor a registered string; they are shown as (unnamed)"
        findings.append(Finding(code="unnamed_ranges", text=text))
        local[local < 0] = plain.setdefault("(unnamed)", len(plain))
    domain = arrays["domainId"][chosen].astype(np.int64)
    pid = arrays["globalTid"][chosen] >> 24 & _PID
    prefix = np.zeros(chosen.size, dtype=np.int64)
    prefixes = [""]
    for (of_pid, of_domain), label in domains.items():
        mask = (domain == of_domain) & (pid == of_pid)
        if label and mask.any():
            prefix[mask] = len(prefixes)
            prefixes.append(f"{label}:")
    table = list(plain)
    joint = prefix * max(1, len(table)) + local
    pairs, inverse = _distinct(joint, len(prefixes) * max(1, len(table)))
    codes = np.array(
        [names.code(prefixes[p // max(1, len(table))] + table[p % max(1, len(table))]) for p in pairs.tolist()],
        dtype=np.int32,
    )
    result: npt.NDArray[np.int32] = codes[inverse] if codes.size else np.zeros(0, dtype=np.int32)
    return result


def _distinct(values: npt.NDArray[np.int64], limit: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct values below `limit` and where each value stands among them, without sorting."""
    if limit > 50_000_000:
        found, where = np.unique(values, return_inverse=True)
        return found, where
    seen = np.zeros(limit, dtype=np.bool_)
    seen[values] = True
    found = np.flatnonzero(seen)
    where = np.zeros(limit, dtype=np.int64)
    where[found] = np.arange(found.size)
    return found, where[values]


def _local_codes(
    file: NsysFile,
    words: list[str | None] | sqlite_leaves.Text | None,
    chosen: npt.NDArray[np.int64],
    text_id: npt.NDArray[Any],
    strings: dict[int, str],
    plain: dict[str, int],
) -> npt.NDArray[np.int64]:
    """Return the code of each row's own name, -1 where it has none; `plain` becomes the table of them."""
    local = np.full(chosen.size, NONE, dtype=np.int64)
    if strings:
        ids = np.array(sorted(strings), dtype=np.int64)
        code_of = np.array([plain.setdefault(strings[i], len(plain)) for i in ids.tolist()], dtype=np.int64)
        place = np.minimum(np.searchsorted(ids, text_id), ids.size - 1)
        known = ids[place] == text_id
        local[known] = code_of[place[known]]
    rest = np.flatnonzero(local < 0)
    if isinstance(words, list):
        for row in rest.tolist():
            word = words[int(chosen[row])]
            if word is not None:
                local[row] = plain.setdefault(word, len(plain))
    elif isinstance(words, sqlite_leaves.Text):
        rest = rest[words.length[chosen[rest]] >= 0]
        known_bytes: dict[bytes, int] = {}

        def add(raw: bytes) -> int:
            code = known_bytes[raw] = plain.setdefault(raw.decode("utf-8", "replace"), len(plain))
            return code

        local[rest] = sqlite_leaves.texts(file.bytes_map(), words, chosen[rest], known_bytes, add)
    return local


def _domains(
    file: NsysFile, arrays: dict[str, npt.NDArray[Any]], words: list[str | None] | sqlite_leaves.Text | None
) -> dict[tuple[int, int], str]:
    """Return the name of each domain by (process id, domain id)."""
    rows = np.flatnonzero(arrays["eventType"] == _DOMAIN_CREATE)
    strings = file.strings(np.unique(arrays["textId"][rows]))
    found = {}
    for row in rows.tolist():
        name = strings.get(int(arrays["textId"][row]))
        if name is None and isinstance(words, list):
            name = words[row]
        elif name is None and isinstance(words, sqlite_leaves.Text) and words.length[row] >= 0:
            begin = int(words.offset[row])
            name = bytes(file.bytes_map()[begin : begin + int(words.length[row])]).decode("utf-8", "replace")
        if name is not None:
            found[int(arrays["globalTid"][row]) >> 24 & _PID, int(arrays["domainId"][row])] = name
    return found
