"""Which GPU is which in an Nsight Systems export, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mansard.core.unknown import Unknown
from mansard.trace.launch_shape import UnitLimits
from mansard.trace.readers.nsys_file import NsysFile
from mansard.trace.timeline import NONE, Device

_ASSUMED = "assumed: the file does not map CUDA ordinals to GPUs; CUDA_VISIBLE_DEVICES would change the order"


class Devices:
    """Maps (process id, CUDA ordinal) to a device, and keeps the table of devices.

    Args:
        file: The export.
    """

    def __init__(self, file: NsysFile) -> None:
        self.listed = _listed(file)
        self._map = _ordinals(file)
        self.table: list[Device] = []
        self._index: dict[tuple[str, int], int] = {}
        numbered = [(self._number_of(facts, position), facts) for position, facts in enumerate(self.listed)]
        for number, facts in sorted(numbered, key=lambda pair: pair[0]):
            self._add(facts, number)

    def _number_of(self, facts: Mapping[str, Any], position: int) -> int:
        """Return the number people know a listed GPU by: its CUDA ordinal where all processes agree on one."""
        ordinals = {c for (_, c), g in self._map.items() if g == facts["id"]}
        if len(ordinals) == 1:
            return ordinals.pop()
        if self._map:
            return int(facts["id"])
        return int(facts["ordinal"]) if facts["ordinal"] is not None else position

    def _add(self, facts: Mapping[str, Any], number: int) -> int:
        index = len(self.table)
        alike = len({(f["name"], f["sms"], f["bandwidth"]) for f in self.listed}) == 1
        mapped = bool(self._map) or len(self.listed) == 1
        sure = "stated" if mapped else "assumed: which of several equal GPUs" if alike else _ASSUMED
        self.table.append(
            Device(
                number=number,
                name=facts["name"] or Unknown("the file lists this GPU without a name", ("--peak", "--hardware")),
                chip=facts["chip"],
                multiprocessors=_or_unknown(facts["sms"], "the number of SMs"),
                memory_bytes=_or_unknown(facts["memory"], "the memory size"),
                memory_bytes_per_s=_or_unknown(facts["bandwidth"], "the memory bandwidth"),
                clock_hz=_or_unknown(facts["clock"], "a clock"),
                compute_capability=facts["capability"],
                uuid=facts["uuid"],
                limits=facts["limits"],
                certainty=sure,
            )
        )
        self._index["listed", int(facts["id"])] = index
        self._index.setdefault(("number", number), index)
        return index

    def index(self, pid: int, ordinal: int) -> int:
        """Return the index of the device that a process calls `ordinal`, adding it where the file does not list it."""
        gpu = self._map.get((pid, ordinal))
        key = ("listed", gpu) if gpu is not None else ("number", ordinal)
        if key in self._index:
            return self._index[key]
        self._index[key] = len(self.table)
        reason = "the file lists no GPUs" if not self.listed else f"the file lists no GPU number {ordinal}"
        self.table.append(
            Device(number=ordinal, name=Unknown(reason, ("--peak", "--hardware")), certainty="not in the file")
        )
        return self._index[key]

    def listed_index(self, gpu: int) -> int:
        """Return the index of the device with this id in the list of GPUs, -1 where the file does not list it."""
        return self._index.get(("listed", gpu), NONE)


def _or_unknown(value: int | float | None, what: str) -> Any:
    return Unknown(f"{what} is not in the file") if value is None else value


def _ordinals(file: NsysFile) -> dict[tuple[int, int], int]:
    """Return GPU ids by (process id, CUDA ordinal); from 2025.1 the file states them."""
    table = file.table("TARGET_INFO_CUDA_DEVICE")
    if table is None:
        return {}
    names = ("pid", "cudaId", "gpuId")
    rows = [tuple(whole(r.get(n)) for n in names) for r in file.rows(table, names)]
    return {(pid, cuda): gpu for pid, cuda, gpu in rows if NONE not in (pid, cuda, gpu)}


def _listed(file: NsysFile) -> list[dict[str, Any]]:
    """Return the GPUs of the machine in the order of their ids."""
    table = file.table("TARGET_INFO_GPU")
    rows = file.rows(table) if table is not None else []
    found: list[dict[str, Any]] = []
    older = {r["deviceId"]: r for r in _older(file)}
    for row in rows:
        key = row.get("id", row.get("deviceId"))
        number = whole(key)
        if number == NONE:
            continue
        old = older.get(key, {})
        # 2020 and 2021: kB/s that wrapped for large boards, so that bandwidth says nothing; memory in bytes or in MiB.
        memory = _positive(row.get("totalMemory") or old.get("globalMemorySize"))
        if memory is not None and memory < 1 << 22:
            memory *= 1 << 20
        major = row.get("computeMajor", old.get("computeCapabilityMajor"))
        minor = row.get("computeMinor", old.get("computeCapabilityMinor"))
        clock = row.get("clockRate") or (_positive(old.get("coreClockRate")) or 0) * 1000
        found.append(
            {
                "id": number,
                "name": _word(row.get("name") or old.get("name")),
                "chip": _word(row.get("chipName")),
                "sms": _positive(row.get("smCount", old.get("numMultiprocessors"))),
                "memory": memory,
                "bandwidth": _positive(row.get("memoryBandwidth")),
                "clock": _positive(clock),
                "capability": f"{major}.{minor}" if major is not None and minor is not None else "",
                "uuid": _word(row.get("uuid") or row.get("busLocation")),
                "ordinal": None if whole(row.get("cuDevice")) == NONE else row["cuDevice"],
                "limits": _limits(row),
            }
        )
    found.sort(key=lambda f: f["id"])
    ordinals = [f["ordinal"] for f in found]
    if None in ordinals or len(set(ordinals)) != len(ordinals):
        for facts in found:
            facts["ordinal"] = None
    return found


def _limits(row: Mapping[str, Any]) -> UnitLimits | Unknown:
    """Return what a multiprocessor holds, from 2022 on."""
    names = ("maxWarpsPerSm", "threadsPerWarp", "maxRegistersPerSm", "maxShmemPerSm", "maxBlocksPerSm", "computeMajor")
    found = [_positive(row.get(n)) for n in names]
    whole = [v for v in found if isinstance(v, int)]
    if len(whole) < len(names):
        return Unknown("the file does not state what a multiprocessor of this device holds")
    warps, warp, registers, shared, blocks, major = whole
    return UnitLimits(
        capability=f"{major}.{row.get('computeMinor') or 0}", threads=warps * warp, registers=registers, shared_bytes=shared,
        blocks=blocks, warp=warp,
    )  # fmt: skip


def _older(file: NsysFile) -> Iterable[dict[str, Any]]:
    table = file.table("TARGET_INFO_CUDA_GPU")
    return [r for r in file.rows(table) if r.get("deviceId") is not None] if table is not None else []


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole(value: Any, otherwise: int = NONE) -> int:
    """Return a whole number of a small table; a damaged file may hold anything there."""
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _positive(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and 0 < value < float("inf") else None
