"""Results of nccl-tests (text, and JSON of `-J`) and nvbandwidth (text and JSON of `-j`), read into measurements in SI units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.errors import InputError
from mansard.history.fingerprint import fingerprint_of
from mansard.history.records import Fingerprint, Measurement


def number(cell: Any) -> float | None:
    """Return a cell as a finite float, else None.

    >>> number("3.5"), number("N/A"), number("nan")
    (3.5, None, None)
    """
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


# --- nccl-tests ------------------------------------------------------------------------------------------------------

#: Launchers put a tag before a line ("[1,0]<stdout>:", "0: "), so nothing is looked for at its start.
_NCCL_HEADER = re.compile(r"#\s*(size\s+count\s.*\balgbw\s+busbw\b.*)$")
_NCCL_NAME = re.compile(
    r"Collective test starting:\s*(\w+?)(?:_perf(?:_mpi)?)?\s*$|(?:^|[/\s])(\w+?)_perf(?:_mpi)?(?:\s|$)"
)
_NCCL_RANK = re.compile(r"#\s+Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_NCCL_VERSION = re.compile(r"\bnccl-library=(\d+)|\b[NR]CCL version\s*:?\s+(\S+)")
_NCCL_ROW = re.compile(r"(?:^|[\s:>])(\d+)\s+(\d+)\s+((?:u?int|half|float|double|bfloat|f8|fp8)\w*)\s+(\S.*)$")
_NCCL_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_NCCL_METRICS = (("time_s", 1e-6), ("algbw_bytes_per_s", 1e9), ("busbw_bytes_per_s", 1e9))
_NO_DIGITS = "it is printed as 0, less than its digits can show"


@dataclass(slots=True)
class _Columns:
    """What stands behind the size, count and type of a row: the figures of one placement, once or twice.

    Args:
        names: Of one placement, in their order.
        after: Words behind the last placement, those of a time stamp.
        cpu: Whether the time is that of the CPU.
    """

    names: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
    after: int = 0
    cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Figures of one size in one placement: time [us], algorithm and bus bandwidth [GB/s], and how many results were wrong."""

    name: str
    figures: tuple[float | None, float | None, float | None]
    wrong: float


@dataclass(slots=True, kw_only=True)
class _Block:
    """What stands under one header."""

    columns: _Columns
    test: str
    rows: list[_Row] = field(default_factory=list)
    out_of_bounds: str = ""


@dataclass(slots=True)
class _Table:
    """Figures by benchmark and metric in the order of the file, and what is wrong with a benchmark."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    flaws: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, figures: Sequence[float | None]) -> None:
        for (metric, scale), value in zip(_NCCL_METRICS, figures, strict=True):
            self.values.setdefault((name, metric), []).append(math.nan if value is None else value * scale)

    def measurements(self, base: Fingerprint) -> Iterator[Measurement]:
        for (name, metric), values in self.values.items():
            whole = all(v > 0 for v in values)
            yield Measurement(
                benchmark=name, metric=metric, groups=(tuple(values),) if whole else (), primary=metric == "time_s",
                fingerprint=base, flaw=self.flaws.get(name, ""), absent="" if whole else _NO_DIGITS,
                single=True,
            )  # fmt: skip


def is_nccl_text(text: str) -> bool:
    """Return whether a text holds a table of nccl-tests."""
    return any(_NCCL_HEADER.search(line) for line in text.splitlines())


def nccl_text(text: str) -> list[Measurement]:
    """Read the tables of nccl-tests: sizes in B, times in us, bandwidths in GB/s (1e9).

    Args:
        text: What one or several tests printed, with or without the tags of a launcher.
    """
    blocks: list[_Block] = []
    # Each test of a file lists its ranks anew.
    ranks: dict[str, tuple[str, str]] = {}
    test, nccl = "", ""
    for line in text.splitlines():
        if found := _NCCL_RANK.search(line):
            ranks[found.group(1)] = found.group(2), found.group(3)
        elif found := _NCCL_HEADER.search(line):
            blocks.append(_Block(columns=_columns(found.group(1).split()), test=test))
        elif found := _NCCL_NAME.search(line):
            test = found.group(1) or found.group(2)
        elif found := _NCCL_ROW.search(line):
            if not blocks:  # the end of a log, read because its form was named
                blocks.append(_Block(columns=_Columns(), test=test))
            blocks[-1].rows += _rows(found, blocks[-1].columns)
        elif blocks and (found := _NCCL_BOUNDS.search(line)) and int(found.group(1)):
            blocks[-1].out_of_bounds = found.group(1)
        if found := _NCCL_VERSION.search(line):
            nccl = nccl or next(g for g in found.groups() if g)
    table = _Table()
    for block in blocks:
        _tabulate(table, block, len(ranks))
    return list(table.measurements(_nccl_base(list(ranks.values()), nccl, any(b.columns.cpu for b in blocks))))


def _tabulate(table: _Table, block: _Block, ranks: int) -> None:
    test = block.test or _unnamed(block, ranks)
    names = [f"{test} {row.name}" for row in block.rows]
    for name, row in zip(names, block.rows, strict=True):
        table.add(name, row.figures)
        if row.wrong:
            table.flaws[name] = f"{row.wrong:.0f} results were wrong"
    # Older tests print a deviation and no number of wrong results: which of them were wrong is not told, so none is believed.
    if block.out_of_bounds and not any(n in table.flaws for n in names):
        table.flaws.update(dict.fromkeys(names, f"{block.out_of_bounds} results of the test were out of bounds"))


def _unnamed(block: _Block, ranks: int) -> str:
    """Return what to call a test that does not tell its name: by bus over algorithm bandwidth, so that unlike ones are not compared.

    Older versions print no name. The factor is 2 (n - 1) / n of an all-reduce, (n - 1) / n of a gather, a reduce-scatter and an
    all-to-all, 1 of a broadcast, a reduce and a pair that sends and receives.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    pairs = [(row.figures[1] or 0.0, row.figures[2] or 0.0) for row in block.rows]
    algbw, busbw = max(pairs, key=lambda p: p[1], default=(0.0, 0.0))
    if ranks < 2 or algbw < 1.0 or busbw < 1.0:  # two decimals are printed: less has not enough digits
        return "nccl"
    factors = (1.0, (ranks - 1) / ranks, 2 * (ranks - 1) / ranks)
    near = min(factors, key=lambda f: abs(busbw / algbw - f))
    return f"nccl[busbw {near:.4g} algbw]" if abs(busbw / algbw - near) < 0.02 * near else "nccl"


def _columns(header: Sequence[str]) -> _Columns:
    """Return what a header says: what comes between the first time and the second one is repeated for the other placement."""
    starts = [i for i, w in enumerate(header) if w in ("time", "cputime")]
    if not starts:
        return _Columns()
    stamp = header[-1] == "timestamp"
    end = starts[1] if len(starts) > 1 else len(header) - stamp
    # A time stamp is one word of the header, and a day and an hour in the rows.
    return _Columns(names=tuple(header[starts[0] : end]), after=2 if stamp else 0, cpu=header[starts[0]] == "cputime")


def _rows(found: re.Match[str], columns: _Columns) -> list[_Row]:
    """Return the figures of a line, once or for both placements."""
    size, _, kind, rest = found.groups()
    words = rest.split()
    if columns.after and len(words) > columns.after and ":" in words[-1]:
        words = words[: -columns.after]
    width = len(columns.names)
    # In front are operation and root, which some tests leave blank. A replay has the figures of one placement, in place.
    both = len(words) >= 2 * width
    if len(words) < width:
        return []
    figures = words[-2 * width :] if both else words[-width:]
    label = " ".join([kind, *words[: len(words) - len(figures)]])
    rows = []
    for place, at in (("out-of-place", 0), ("in-place", width)) if both else (("in-place", 0),):
        cells = dict(zip(columns.names, figures[at : at + width], strict=True))
        time = number(cells.get("time", cells.get("cputime")))
        rows.append(
            _Row(
                name=f"{size} B {label} {place}",
                figures=(time, number(cells["algbw"]), number(cells["busbw"])),
                wrong=number(cells.get("#wrong")) or 0.0,
            )
        )
    return rows


def _nccl_base(ranks: Sequence[Sequence[str]], version: str, cpu: bool, variables: Sequence[str] = ()) -> Fingerprint:
    base = fingerprint_of({
        "gpu": ", ".join(sorted({name for _, name in ranks})) or None, "ranks": len(ranks) or None,
        "nodes": len({host for host, _ in ranks}) or None, "nccl": version or None,
    })  # fmt: skip
    config = {"timed_by": "cpu"} if cpu else {}
    config |= dict(v.split("=", 1) for v in sorted(variables))
    return base.merged({"config": config}) if config else base


def is_nccl_json(content: Mapping[str, Any]) -> bool:
    """Return whether a document is what nccl-tests write with `-J`."""
    return "nccl_version" in content and "results" in content


def nccl_json(content: Mapping[str, Any]) -> list[Measurement]:
    """Read the JSON of nccl-tests; each iteration alone, where they were timed so, is a figure of its own: they do not overlap."""
    config = content.get("config") or {}
    ranks = [(str(d.get("hostname")), str(d.get("device_info"))) for d in config.get("devices") or ()]
    variables = [v for v in content.get("env") or () if v.startswith("NCCL_") and "=" in v]
    program = str((content.get("args") or ["nccl"])[0]).rsplit("/", 1)[-1].removesuffix("_mpi").removesuffix("_perf")
    table, cpu = _Table(), False
    alone: dict[str, list[float]] = {}
    for row in content["results"]:
        label = " ".join(str(row.get(k, "")).strip() for k in ("type", "redop", "root")).strip()
        for place, key in (("out-of-place", "out_of_place"), ("in-place", "in_place")):
            figures = row.get(key)
            if not figures:
                continue
            name = f"{program} {row['size']} B {label} {place}"
            cpu = cpu or "cpu_time" in figures
            time_us = figures.get("time", figures.get("cpu_time"))
            table.add(name, [number(time_us), number(figures["alg_bw"]), number(figures["bus_bw"])])
            wrong = number(figures.get("nwrong"))
            if wrong:
                table.flaws[name] = f"{wrong:.0f} results were wrong"
            times = (row.get(f"{key}_per_iter") or {}).get("times_us") or ()
            alone.setdefault(name, []).extend(float(t) * 1e-6 for t in times)
    base = _nccl_base(ranks, str(content["nccl_version"]), cpu, variables)
    return list(table.measurements(base)) + [
        Measurement(benchmark=n, metric="latency_s", groups=(tuple(v),), fingerprint=base, flaw=table.flaws.get(n, ""), single=True)
        for n, v in alone.items() if v
    ]  # fmt: skip


# --- nvbandwidth -----------------------------------------------------------------------------------------------------

#: Unit in the description of a test case -> metric, and the factor to SI.
_NVB_UNITS = {"GB/s": ("bytes_per_s", 1e9), "ns": ("latency_s", 1e-9)}
#: On several nodes each process has a line: "Process 5 (node-1): device 1: HGX GB200 (00000009:01:00)".
_NVB_DEVICE = re.compile(
    r"^(?:Device \d+|Process \d+ \(.*\): device \d+): (.+?)(?: \([0-9a-fA-F:.]+\))?:?\s*$", re.MULTILINE
)
_NVB_UNIT = re.compile(r"\(([^()]*)\)\s*$")


def is_nvbandwidth_text(text: str) -> bool:
    """Return whether a text is what nvbandwidth prints."""
    return re.search(r"^nvbandwidth Version:", text, re.MULTILINE) is not None


def nvbandwidth_json(content: Mapping[str, Any]) -> list[Measurement]:
    """Read nvbandwidth's JSON: one figure per row and column, GB/s (1e9) or, of latencies, ns.

    Raises:
        InputError: it failed before its first test.
    """
    body = content["nvbandwidth"]
    if "testcases" not in body and body.get("error"):
        raise InputError(f"nvbandwidth failed: {body['error']}", hint="nothing was measured; run it again")
    base = _nvb_base(
        [re.sub(r"^\d+:\s*", "", str(g)).split("(")[0].strip() for g in body.get("GPU Device list", ())],
        body.get("Driver Version"), body.get("CUDA Runtime Version"),
    )  # fmt: skip
    found: dict[str, list[Measurement]] = {}
    for case in body["testcases"]:
        # A case that fails or is waived may be listed a second time, with its last status.
        status, name = str(case.get("status", "no status")), case["name"]
        if status.lower() != "passed" or "bandwidth_matrix" not in case:
            why = f"{status}: {case.get('error') or 'no figure'}"
            metric = "latency_s" if "latency" in name else "bytes_per_s"
            found[name] = [Measurement(benchmark=name, metric=metric, absent=why, fingerprint=base)]
        else:
            found[name] = _nvb_matrix(name, str(case.get("bandwidth_description", "")), case["bandwidth_matrix"], base)
    return [m for case in found.values() for m in case]


def _nvb_base(gpus: Sequence[str], driver: Any, runtime: Any) -> Fingerprint:
    return fingerprint_of({
        "gpu": ", ".join(sorted(set(gpus))) or None, "devices": len(gpus) or None, "driver": driver, "cuda": runtime,
    })  # fmt: skip


def _nvb_matrix(name: str, description: str, rows: Sequence[Sequence[Any]], base: Fingerprint) -> list[Measurement]:
    unit = _NVB_UNIT.search(description.strip())
    told = unit.group(1) if unit else ("ns" if "latency" in name else "GB/s")
    if told not in _NVB_UNITS:
        raise InputError(f"{name} of nvbandwidth is in {told!r}", hint=f"known: {', '.join(_NVB_UNITS)}")
    metric, scale = _NVB_UNITS[told]
    found = []
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            value = number(cell)
            common: dict[str, Any] = {"benchmark": f"{name} {i}->{j}", "metric": metric, "fingerprint": base}
            if value is not None and value > 0:
                found.append(Measurement(stated=(value * scale,) * 3, count=1, **common))
            elif value is not None:  # "N/A" is a pair that does not exist; a zero is one that did not work
                found.append(Measurement(absent=f"its figure is {cell}", **common))
    return found


def nvbandwidth_text(text: str) -> list[Measurement]:
    """Read what nvbandwidth prints: a block per test case, of its description, a row of column numbers, and rows of figures."""
    gpus = _NVB_DEVICE.findall(text)
    driver, runtime = (re.search(rf"^{w} Version: (\S+)", text, re.MULTILINE) for w in ("Driver", "CUDA Runtime"))
    base = _nvb_base(gpus, driver and driver.group(1), runtime and runtime.group(1))
    found: list[Measurement] = []
    for block in re.split(r"^Running (?=\S+\.\s*$)", text, flags=re.MULTILINE)[1:]:
        first, *lines = block.splitlines()
        name = first.strip().rstrip(".")
        kinds = [
            i
            for i, line in enumerate(lines)
            if (_NVB_UNIT.search(line.strip()) and "(row)" in line) or "(column)" in line
        ]
        rows = [line.split()[1:] for line in lines[kinds[0] + 2 :] if re.match(r"\s*\d+\s+\S", line)] if kinds else []
        if rows:
            found += _nvb_matrix(name, lines[kinds[0]], rows, base)
        else:
            said = next((line.strip() for line in lines if line.strip()), "no figure")
            metric = "latency_s" if "latency" in name else "bytes_per_s"
            found.append(Measurement(benchmark=name, metric=metric, absent=said, fingerprint=base))
    return found
