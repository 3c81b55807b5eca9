"""Read Nsight Compute CSV (`ncu --csv --page raw` or `--page details`): measured FLOP and bytes of each kernel.

Durations are per kernel, by default at a locked base clock and with caches flushed before each replay: not the time of a free run.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mansard.core.errors import InputError
from mansard.core.unknown import Unknown, is_known
from mansard.trace.readers.ncu_metrics import Measured, measured
from mansard.trace.readers.ncu_text import decoded, header_at, rows_of, with_points
from mansard.trace.readers.ncu_units import number, to_base
from mansard.trace.readers.numbers import natural
from mansard.trace.run import Finding
from mansard.trace.timeline import (
    LONGEST_NS,
    Clock,
    Damage,
    Device,
    Events,
    Kind,
    Names,
    Process,
    Timeline,
    events,
)

_FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size", "Grid Size",
          "Device", "CC")  # fmt: skip
_DETAIL_COLUMNS = ("ID", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
_HINT = "export with: ncu --import REPORT.ncu-rep --csv --page raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledKernel:
    """One kernel of a report.

    Args:
        number: Its ID in the report.
        name: Its name.
        process, process_name: Process it ran in.
        context, stream, device: As the report numbers them.
        grid, block: Launch dimensions as written.
        compute_capability: Such as `9.0`.
        device_name: Product name where the raw page has it.
        values: Every metric in base units (second, byte, cycle, hertz, instruction), where it is a number.
        texts: Metrics that are no numbers.
    """

    number: str
    name: str
    process: str
    process_name: str
    context: str
    stream: str
    device: str
    grid: str
    block: str
    compute_capability: str
    device_name: str
    values: Mapping[str, float]
    texts: Mapping[str, str]

    @property
    def measured(self) -> Measured:
        """FLOP, bytes by level, and peaks at the clocks of the measurement, each a number or an Unknown."""
        return measured(self.values, self.compute_capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Kernels of one CSV file.

    Args:
        page: `raw` or `details`.
        kernels: In the order of the file.
        rules: Advice of the tool, as (kernel ID, rule, text).
        damage: What is wrong with the file.
        units: Unit of each metric as the file writes it.
    """

    page: str
    kernels: tuple[ProfiledKernel, ...]
    rules: tuple[tuple[str, str, str], ...] = ()
    damage: tuple[Damage, ...] = ()
    units: Mapping[str, str]


def read_report(path: Path) -> Report:
    """Return the kernels of a CSV file.

    Raises:
        InputError: It cannot be read, or is no CSV of Nsight Compute.
    """
    rows, damage = _rows(Path(path))
    header = rows[0]
    if "Metric Name" in header and "Metric Value" in header:
        missing = [c for c in _DETAIL_COLUMNS if c not in header]
        if missing:
            raise InputError(
                f"{path} is a details page without the columns {', '.join(missing)}", hint=_HINT, code="damaged_csv"
            )
        return _on_one_device(_details(rows, damage))
    return _on_one_device(_raw(Path(path), rows, damage))


def _on_one_device(report: Report) -> Report:
    """Return a report whose kernels have a device: before 2022 the pages did not say which."""
    if not report.kernels or any(k.device.strip() for k in report.kernels):
        return report
    text = "the file does not say on which device kernels ran; they are taken to be of one"
    kernels = tuple(replace(k, device="0") for k in report.kernels)
    return replace(report, kernels=kernels, damage=(*report.damage, Damage(code="no_device_column", text=text)))


def read(
    path: Path,
    *,
    kinds: frozenset[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Read a CSV file as a timeline of its kernels, one after the other: the tool records lengths, not when they ran.

    `extras["report"]` holds the `Report`, whose kernels give measured FLOP and bytes.

    Raises:
        InputError: It cannot be read, or is no CSV of Nsight Compute.
    """
    path = Path(path)
    if memory_limit is not None and path.stat().st_size * 8 > memory_limit:
        raise InputError(f"{path} does not fit the memory limit", hint="raise --memory-limit", code="memory_limit")
    report = read_report(path)
    if progress is not None:
        progress(f"reading {path.name}", 1.0)
    names = Names()
    wanted = kinds is None or Kind.KERNEL in kinds
    table, lost = _table(report.kernels, names)
    absent: dict[Kind, str] = {k: "Nsight Compute profiles kernels alone" for k in Kind if k is not Kind.KERNEL}
    if not wanted:
        absent[Kind.KERNEL] = "kernel events were not asked for"
    elif not report.kernels:
        absent[Kind.KERNEL] = "the page is empty: the report holds chosen metrics only; export the raw page"
    pids = list(dict.fromkeys((k.process, k.process_name) for k in report.kernels))
    damage = report.damage
    if lost:
        text = f"{lost} kernels have no gpu__time_duration: their time is unknown and they are not in the table"
        damage = (*damage, Damage(code="missing_duration", text=text, count=lost, incomplete=True))
    return Timeline(
        source=str(path),
        format="ncu",
        version=f"{report.page} page",
        tables={Kind.KERNEL: table} if wanted and report.kernels else {},
        names=names.table(),
        devices=_devices(report.kernels),
        processes=tuple(Process(pid=p if (number_of := natural(p)) is None else number_of, name=n) for p, n in pids),
        absent=absent,
        clock=Clock(domain="unknown", epoch_offset_ns=Unknown("Nsight Compute records no start times")),
        damage=damage,
        findings=(
            Finding(
                code="profiled_alone",
                text="Each kernel was measured alone, by default at the base clock and with cold caches: idle time, overlap and "
                "the order of starts are not in this file.",
            ),
        ),
        extras={"report": report},
    )


def _rows(path: Path) -> tuple[list[list[str]], tuple[Damage, ...]]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}", hint="check the path", code="unreadable") from None
    damage: list[Damage] = []
    text = decoded(data)
    if "\ufffd" in text and b"\xef\xbf\xbd" not in data:
        damage.append(Damage(code="bad_utf8", text="some bytes are not UTF-8, shown as \ufffd"))
    at = header_at(text)
    if at < 0:
        raise InputError(
            f"{path} is no CSV of Nsight Compute: it has no line with the columns ID, Kernel Name",
            hint=_HINT,
            code="not_a_profile",
        )
    try:
        rows = rows_of(text, at)
    except csv.Error as error:
        raise InputError(f"{path} is a damaged CSV: {error}", hint=_HINT, code="damaged_csv") from None
    rows, commas = with_points(rows)
    if commas:
        damage.append(Damage(code="decimal_comma", text="numbers are written with decimal commas; read as such"))
    if not text.endswith("\n") and rows:
        damage.append(Damage(code="truncated", text="the file ends in the middle of a line", incomplete=True))
    return rows, tuple(damage)


def _raw(path: Path, rows: list[list[str]], damage: tuple[Damage, ...]) -> Report:
    header = rows[0]
    index = {name: i for i, name in enumerate(header)}
    repeated = len(header) - len(index)
    if repeated:
        damage = (
            *damage,
            Damage(
                code="duplicate_columns",
                text=f"{repeated} columns are named twice; the last one counts",
                count=repeated,
            ),
        )
    body = rows[1:]
    units: dict[str, str] = {}
    if body and not body[0][0].strip():  # the row below the names holds the units
        units = {name: body[0][i].strip() if i < len(body[0]) else "" for name, i in index.items()}
        body = body[1:]
    elif body:
        raise InputError(
            f"{path} has no row of units below its column names: its numbers cannot be read safely",
            hint=_HINT + " --print-units base",
            code="no_units",
        )
    short = [r for r in body if len(r) < len(header)]
    if short:
        text = f"{len(short)} rows are shorter than the header and are left out"
        damage = (*damage, Damage(code="short_rows", text=text, count=len(short), incomplete=True))
    kernels = tuple(_kernel(r, index, units) for r in body if len(r) >= len(header))
    return Report(page="raw", kernels=kernels, damage=damage, units=units)


def _kernel(row: Sequence[str], index: Mapping[str, int], units: Mapping[str, str]) -> ProfiledKernel:
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, i in index.items():
        if name in _FIXED or not row[i]:
            continue
        value = number(row[i])
        base = to_base(value, units.get(name, "")) if value is not None else None
        if base is None:
            texts[name] = f"{row[i]} {units.get(name, '')}".strip()
        else:
            values[name] = base
    return _make(lambda name: row[index[name]] if name in index else "", values, texts)


def _make(field: Callable[[str], str], values: dict[str, float], texts: dict[str, str]) -> ProfiledKernel:
    return ProfiledKernel(
        number=field("ID"), name=field("Kernel Name"), process=field("Process ID"), process_name=field("Process Name"),
        context=field("Context"), stream=field("Stream"), device=field("Device"), grid=field("Grid Size"),
        block=field("Block Size"), compute_capability=field("CC"),
        device_name=texts.get("device__attribute_display_name", ""), values=values, texts=texts,
    )  # fmt: skip


#: Metric names of the details page -> the metric of the raw page with the same meaning.
_SAME = {
    ("GPU Speed Of Light Throughput", "Duration"): "gpu__time_duration.sum",
    ("GPU Speed Of Light", "Duration"): "gpu__time_duration.sum",  # 2019 to 2020
    ("GPU Speed Of Light Throughput", "SM Frequency"): "smsp__cycles_elapsed.avg.per_second",
    ("GPU Speed Of Light Throughput", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("Memory Workload Analysis", "Memory Throughput"): "dram__bytes.sum.per_second",
}


def _details(rows: list[list[str]], damage: tuple[Damage, ...]) -> Report:
    header = rows[0]
    index = {name: i for i, name in enumerate(header)}
    grouped: dict[tuple[str, str], tuple[list[str], dict[str, float], dict[str, str]]] = {}
    rules: list[tuple[str, str, str]] = []
    units: dict[str, str] = {}
    short = 0
    for row in rows[1:]:
        if len(row) <= index["Metric Value"]:
            short += 1
            continue
        key = (row[index["Process ID"]] if "Process ID" in index else "", row[index["ID"]])
        _, values, texts = grouped.setdefault(key, (row, {}, {}))
        section, metric = row[index["Section Name"]], row[index["Metric Name"]]
        if not metric:
            rule, said = (
                row[index[c]] if c in index and index[c] < len(row) else "" for c in ("Rule Name", "Rule Description")
            )
            if rule:
                rules.append((row[index["ID"]], rule, said))
            continue
        unit, text = row[index["Metric Unit"]], row[index["Metric Value"]]
        value = number(text)
        base = to_base(value, unit) if value is not None else None
        # Metrics that were asked for by name stand under it; those of a section have a title of their own.
        same = metric if "__" in metric else _SAME.get((section, metric), "")
        for name in (f"{section}: {metric}", same):
            if not name:
                continue
            units[name] = unit
            if base is None:
                texts[name] = f"{text} {unit}".strip()
            else:
                values[name] = base
    if short:
        text = f"{short} lines are incomplete and are left out"
        damage = (*damage, Damage(code="short_rows", text=text, count=short, incomplete=True))
    kernels = tuple(
        _make(lambda name, row=row: row[index[name]] if name in index else "", values, texts)  # type: ignore[misc]
        for row, values, texts in grouped.values()
    )
    return Report(page="details", kernels=kernels, rules=tuple(rules), damage=damage, units=units)


def _table(kernels: Sequence[ProfiledKernel], names: Names) -> tuple[Events, int]:
    """Return the kernels one after the other from time 0, and how many have no duration."""
    pids = {p: i for i, p in enumerate(dict.fromkeys((k.process, k.process_name) for k in kernels))}
    numbers = {n: i for i, n in enumerate(_numbers(kernels))}
    columns: dict[str, list[int]] = {
        n: [] for n in ("length", "name", "device", "context", "stream", "process", "detail_row")
    }
    lost = 0
    for row, k in enumerate(kernels):
        seconds = k.measured.duration_s
        if not is_known(seconds) or not 0 <= seconds * 1e9 <= LONGEST_NS:
            lost += 1
            continue
        columns["length"].append(round(seconds * 1e9))
        columns["name"].append(names.code(k.name))
        columns["device"].append(numbers.get(_small(k.device), -1))
        columns["context"].append(_small(k.context))
        columns["stream"].append(_small(k.stream))
        columns["process"].append(pids[k.process, k.process_name])
        columns["detail_row"].append(row)
    length = np.array(columns.pop("length"), dtype=np.int64)
    end = np.cumsum(length)
    rows = np.array(columns.pop("detail_row"), dtype=np.int64)
    return events(start_ns=end - length, end_ns=end, extras={"report_row": rows},
                  **{n: np.array(v, dtype=np.int64) for n, v in columns.items()}), lost  # fmt: skip


def _small(text: str) -> int:
    found = natural(text, below=2**31)
    return -1 if found is None else found


def _numbers(kernels: Sequence[ProfiledKernel]) -> list[int]:
    return sorted({_small(k.device) for k in kernels} - {-1})


def _devices(kernels: Sequence[ProfiledKernel]) -> tuple[Device, ...]:
    out = []
    for wanted in _numbers(kernels):
        k = next(k for k in kernels if _small(k.device) == wanted)
        count = k.values.get("device__attribute_multiprocessor_count")
        memory = k.values.get("device__attribute_total_memory")
        unknown = Unknown("not in the file")
        name = k.device_name or Unknown("the details page does not name the device", ("the raw page",))
        out.append(
            Device(
                number=wanted,
                name=name,
                compute_capability=k.compute_capability,
                multiprocessors=int(count) if count else unknown,
                memory_bytes=int(memory) if memory else unknown,
            )
        )
    return tuple(out)
