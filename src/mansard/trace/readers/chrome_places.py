"""Processes, threads and devices of a Chrome trace: its pid and tid mean a host thread, or a device and its stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.unknown import Unknown
from mansard.trace.launch_shape import UnitLimits
from mansard.trace.readers.chrome_columns import Columns, hashable
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    DEVICE_WORK,
    NONE,
    Device,
    Events,
    Kind,
    Process,
    Thread,
    constant,
)

Int32Array = npt.NDArray[np.int32]
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_ON_DEVICE = (*DEVICE_WORK, Kind.DEVICE_ANNOTATION, Kind.SYNC)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)(?!\d)", re.IGNORECASE)


def _number(value: Any) -> int:
    """Return a device or stream from a pid or tid: the number itself, or the last one in a text.

    >>> _number(7), _number("stream 7"), _number("Device 0"), _number("Spans")
    (7, 7, 0, -1)
    """
    if isinstance(value, int):
        return value if 0 <= value < 2**31 else NONE
    found = _LAST_NUMBER.search(str(value))
    return int(found.group(1)) if found and len(found.group(1)) < 10 else NONE


class Places:
    """What each (pid, tid) of the file is.

    Args:
        columns: What was read.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.keys = [(hashable(p), hashable(t)) for p, t in columns.places]
        host = self._host_places()
        pids = list(dict.fromkeys(self.keys[i][0] for i in sorted(host)))
        self._process_of = {pid: i for i, pid in enumerate(pids)}
        self._threads: dict[tuple[Any, Any], int] = {}
        count = len(self.keys)
        self._process = np.full(count + 1, NONE, dtype=np.int32)
        self._thread = np.full(count + 1, NONE, dtype=np.int32)
        self._device = np.full(count + 1, NONE, dtype=np.int64)
        self._stream = np.full(count + 1, NONE, dtype=np.int64)
        for i, (pid, tid) in enumerate(self.keys):
            if i in host:
                self._process[i] = self._process_of[pid]
                self._thread[i] = self._threads.setdefault((pid, tid), len(self._threads))
            self._device[i], self._stream[i] = _number(pid), _number(tid)

    def _host_places(self) -> set[int]:
        out: set[int] = set()
        for kind, rows in self.columns.rows.items():
            if kind not in _ON_DEVICE:
                out |= set(np.unique(np.concatenate(rows.parts["place"])).tolist())
        return out

    def on_host(self, place: Int32Array) -> dict[str, npt.NDArray[Any]]:
        """Return process and thread of host events."""
        return {"process": self._process[place], "thread": self._thread[place]}

    def on_device(self, place: Int32Array) -> dict[str, npt.NDArray[Any]]:
        """Return device and stream of device events, where their arguments do not say them."""
        return {"device": self._device[place], "stream": self._stream[place]}

    def owners(self, tables: Mapping[Kind, Events]) -> tuple[dict[Kind, Events], tuple[Finding, ...]]:
        """Give device events the process that launched them.

        A file of one process is that process. In a file of several, correlations start afresh in each: an event whose
        correlation only one process knows belongs to it, and with it its whole device where no other process claims it.
        """
        out = dict(tables)
        calls = tables.get(Kind.RUNTIME)
        working = [k for k in _ON_DEVICE if k in tables]
        if not working:
            return out, ()
        launching = np.unique(calls.process) if calls is not None and len(calls) else np.zeros(0, np.int32)
        hosts = np.unique(np.concatenate([t.process for k, t in tables.items() if k not in _ON_DEVICE] or [launching]))
        one = launching if launching.size == 1 else hosts[hosts >= 0]
        if one.size == 1:
            for kind in working:
                out[kind] = replace(out[kind], process=constant(int(one[0]), len(out[kind])))
            return out, ()
        if calls is None or not launching.size:
            return out, (_unowned(sum(len(tables[k]) for k in working), "no runtime calls are recorded"),)
        owner, by_device = _claims(calls, [tables[k] for k in working])
        lost = 0
        for kind in working:
            table = out[kind]
            process = owner(table.correlation)
            single = np.array([by_device.get(int(d), NONE) for d in table.device], dtype=np.int32)
            process = np.where(process == NONE, single, process).astype(np.int32)
            lost += int(np.count_nonzero(process == NONE)) if kind in DEVICE_WORK else 0
            out[kind] = replace(table, process=process)
        return out, (_unowned(lost, "several processes use their correlations"),) if lost else ()

    def numbered(self, table: Events, devices: tuple[Device, ...]) -> Events:
        """Turn the device numbers of a table into indices of the devices."""
        if not len(table) or table.device.strides == (0,):
            index = {d.number: i for i, d in enumerate(devices)}
            if len(table) and int(table.device[0]) in index:
                return replace(table, device=constant(index[int(table.device[0])], len(table)))
            return table
        known, inverse = np.unique(table.device, return_inverse=True)
        index = {d.number: i for i, d in enumerate(devices)}
        codes = np.array([index.get(int(k), NONE) for k in known], dtype=np.int32)
        return replace(table, device=codes[inverse.reshape(-1)])

    def processes(self, head: Mapping[str, Any]) -> tuple[Process, ...]:
        """Return the processes; the rank is what `distributedInfo` states."""
        rank = stated_rank(head)
        single = len(self._process_of) == 1
        launching = self._launching()
        return tuple(
            Process(
                pid=pid,
                name=self.columns.process_names.get(pid, ""),
                rank=rank if single or i == launching else None,
            )
            for pid, i in self._process_of.items()
        )

    def _launching(self) -> int:
        """Return the only process with runtime calls or operators, -1 where there are several."""
        for kind in (Kind.RUNTIME, Kind.CPU_OP, Kind.ANNOTATION):
            if kind in self.columns.rows:
                places = np.unique(np.concatenate(self.columns.rows[kind].parts["place"]))
                found = set(self._process[places].tolist())
                if len(found) == 1:
                    return int(found.pop())
        return NONE

    def threads(self) -> tuple[Thread, ...]:
        """Return the host threads."""
        names = self.columns.thread_names
        return tuple(
            Thread(process=self._process_of[pid], tid=tid, name=names.get((pid, tid), "")) for pid, tid in self._threads
        )


def stated_rank(head: Mapping[str, Any]) -> int | None:
    """Return the rank that `distributedInfo` states, None where it does not."""
    info = head.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def _unowned(count: int, why: str) -> Finding:
    return Finding(
        code="unknown_process",
        text=f"{count} device events belong to no known process ({why}): they are in no range and have no launch.",
    )


def _claims(calls: Events, working: list[Events]) -> tuple[Any, dict[int, int]]:
    """Return the owner of a correlation that one process alone knows, and devices that one process alone uses."""
    order = np.lexsort((calls.process, calls.correlation))
    correlation, process = calls.correlation[order], calls.process[order]
    first = np.searchsorted(correlation, correlation, side="left")
    shared = np.zeros(correlation.size, dtype=np.bool_)
    np.logical_or.at(shared, first, process != process[first])

    def owner(wanted: npt.NDArray[np.int64]) -> Int32Array:
        at = np.minimum(np.searchsorted(correlation, wanted, side="left"), max(correlation.size - 1, 0))
        found = (correlation[at] == wanted) & ~shared[at] & (wanted != NONE)
        return np.where(found, process[at], NONE).astype(np.int32)

    by_device: dict[int, set[int]] = {}
    for table in working:
        owners = owner(table.correlation)
        for device, who in np.unique(np.stack([table.device.astype(np.int64), owners]), axis=1).T.tolist():
            if who != NONE:
                by_device.setdefault(device, set()).add(who)
    return owner, {d: next(iter(w)) for d, w in by_device.items() if len(w) == 1}


def devices_of(
    head: Mapping[str, Any], tables: Mapping[Kind, Events], places: Places
) -> tuple[tuple[Device, ...], tuple[Finding, ...]]:
    """Return the devices the file describes and those that only its events name."""
    described = head.get("deviceProperties")
    found: dict[int, Device] = {}
    for item in described if isinstance(described, list) else []:
        if isinstance(item, dict) and isinstance(item.get("id"), int):
            found[item["id"]] = _device(item)
    planes = {_number(p): n for p, n in places.columns.process_names.items() if n.startswith("/device:")}
    for kind in _ON_DEVICE:
        if kind not in tables or not len(tables[kind]):
            continue
        for number in np.unique(tables[kind].device).tolist():
            if number >= 0 and number not in found:
                reason = "the file does not describe its devices"
                found[number] = Device(
                    number=number, name=Unknown(reason, ("the product name",)), label=planes.get(number, "")
                )
    findings = []
    unnamed = [d.number for d in found.values() if isinstance(d.name, Unknown)]
    if described and unnamed:
        text = f"Devices {', '.join(map(str, sorted(unnamed)))} have no name in the file: which product they are is unknown."
        findings.append(Finding(code="unnamed_device", text=text))
    return tuple(found[n] for n in sorted(found)), tuple(findings)


def _device(item: Mapping[str, Any]) -> Device:
    """Return a device from its properties as Kineto writes them."""
    name = str(item.get("name") or "").strip()
    unknown = Unknown("not in the file")

    def whole(key: str) -> int | Unknown:
        value = item.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else unknown

    major, minor = item.get("computeMajor"), item.get("computeMinor")
    return Device(
        number=item["id"],
        name=name or Unknown("the file leaves the name of the device empty", ("the product name",)),
        multiprocessors=whole("numSms"),
        memory_bytes=whole("totalGlobalMem"),
        compute_capability=f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else "",
        limits=_limits(item),
    )


def _limits(item: Mapping[str, Any]) -> UnitLimits | Unknown:
    """Return what a multiprocessor holds; AMD's properties have the same names and mean other things."""
    keys = (
        "maxThreadsPerMultiprocessor",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
        "warpSize",
        "computeMajor",
        "computeMinor",
    )
    found = [item.get(k) for k in keys]
    whole = [v for v in found if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
    if len(whole) < len(keys) or whole[3] != 32 or 0 in whole[:3]:
        return Unknown("the file does not state what a multiprocessor of this device holds")
    return UnitLimits(
        capability=f"{whole[4]}.{whole[5]}", threads=whole[0], registers=whole[1], shared_bytes=whole[2], warp=whole[3]
    )


def rank_in_file_name(path: Path) -> int | None:
    """Return the rank that the name of a file suggests; a weak hint, never a statement.

    >>> rank_in_file_name(Path("trace_rank12.json.gz")), rank_in_file_name(Path("worker.json"))
    (12, None)
    """
    found = _RANK_IN_NAME.search(path.name)
    return int(found.group(1)) if found else None
