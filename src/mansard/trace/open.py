"""Open a recorded profile of any format: the content says which reader, never the name of the file."""

from __future__ import annotations

import importlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from mansard.core.errors import InputError, UsageError
from mansard.trace.readers import ncu_text, rocprofv3_csv
from mansard.trace.timeline import Kind, Timeline

#: Format -> module whose `read(path, *, kinds, memory_limit, progress) -> Timeline` reads it. A new format is one line here.
READERS: dict[str, str] = {
    "nsys": "mansard.trace.readers.nsys",
    "chrome": "mansard.trace.readers.chrome",  # Kineto, and XLA's trace.json
    "xplane": "mansard.trace.readers.xplane_timeline",
    "rocprofv3_json": "mansard.trace.readers.rocprofv3",
    "rocprofv3_csv": "mansard.trace.readers.rocprofv3",
    "ncu_csv": "mansard.trace.readers.ncu",
    "rocprof_compute": "mansard.trace.readers.rocprof_compute",
    "recording": "mansard.trace.readers.recording",
}
_WITH_LAUNCH_SHAPES = ("nsys", "chrome", "rocprofv3_json", "rocprofv3_csv")
Reader = Callable[..., Timeline]

_HEAD = 1 << 16
_OURS = re.compile(rb'"schema"\s*:\s*"([a-z][a-z_-]*/\d+)"')
_SQLITE = b"SQLite format 3\x00"
_NCU_SUMMARY = (b'"Process ID","Process Name"', b'"Kernel Name","Invocations"', b'"Device","Invocations"')
_REPORTS = (".nsys-rep", ".qdrep", ".ncu-rep")


def open_trace(
    path: str | Path,
    *,
    categories: Iterable[Kind] | None = None,
    memory_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    launch_shapes: bool = False,
) -> Timeline:
    """Read a recorded profile.

    Nothing is written beside the file, no network is used, and what is damaged is named in `Timeline.damage`.

    Args:
        path: A file (gzip or not), or the folder of a rocprof-compute workload or of a recording of `mansard run`.
        categories: Kinds of event that are needed; None takes all. Others may be left out to save time.
        memory_limit: Bytes the reader may hold at once [B]; beyond it, it refuses instead of filling the machine.
        progress: Called with what is read and the share that is done.
        launch_shapes: Whether blocks, threads, registers and shared memory of each kernel are wanted too (`device_facts`).

    Raises:
        InputError: It cannot be read, or is no profile; the message says what it is as far as its content tells.
        UsageError: The memory limit is not positive.
    """
    if memory_limit is not None and memory_limit <= 0:
        raise UsageError(f"the memory limit is {memory_limit} bytes, expected a positive number")
    where = Path(path)
    kinds = None if categories is None else frozenset(categories)
    name = recognise(where)
    reader = cast(Reader, importlib.import_module(READERS[name]).read)
    more = {"launch_shapes": True} if launch_shapes and name in _WITH_LAUNCH_SHAPES else {}
    return reader(where, kinds=kinds, memory_limit=memory_limit, progress=progress, **more)


def recognise(path: Path) -> str:
    """Return the format of a file or folder, a key of `READERS`.

    Raises:
        InputError: It cannot be read, or is no profile, with what it is.
    """
    if path.is_dir():
        return _folder(path)
    head = _head(path)
    if head.startswith(_SQLITE):
        return "nsys"
    if head.startswith(b"version https://git-lfs"):
        raise InputError(
            f"{path} is a git-LFS pointer, not the file itself: its first line is 'version https://git-lfs...'",
            hint="fetch the file with `git lfs pull`",
            code="git_lfs_pointer",
        )
    if path.suffix in _REPORTS:
        raise InputError(_report(path), hint=_report_hint(path), code="needs_export")
    if not head.strip():
        raise InputError(f"{path} is empty", code="empty_file")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and ncu_text.header_at(ncu_text.decoded(head)) < 0:
        raise InputError(
            f"{path} is text in UTF-16, as PowerShell writes it with >; profiles are UTF-8",
            hint=f"iconv -f UTF-16 -t UTF-8 {path.name} > utf8_{path.name}, then open that",
            code="utf_16",
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in b"{[":
        return _json(path, text)
    if text.startswith((b"==PROF==", b"==WARNING==")) or ncu_text.header_at(ncu_text.decoded(head)) >= 0:
        return "ncu_csv"
    if rocprofv3_csv.looks_like(text):
        return "rocprofv3_csv"
    if text.startswith(_NCU_SUMMARY):
        raise InputError(
            f"{path} is a summary of Nsight Compute (--print-summary): least, largest and mean of several kernels, not the kernels",
            hint="export again without --print-summary: ncu --import REPORT.ncu-rep --csv --page raw",
            code="not_a_profile",
        )
    if _looks_like_xspace(head):
        return "xplane"
    raise InputError(
        f"{path} is no profile that is known: it starts with {head[:24]!r}",
        hint="expected an Nsight Systems .sqlite, a Kineto or Chrome .json(.gz), an .xplane.pb, a rocprofv3 file, or an "
        "Nsight Compute CSV",
        code="not_a_profile",
    )


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked if it is gzip."""
    try:
        with path.open("rb") as file:
            raw = file.read(_HEAD)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", hint="check the path", code="unreadable"
        ) from None
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return zlib.decompressobj(wbits=31).decompress(raw, _HEAD)
    except zlib.error as error:
        raise InputError(f"{path} starts like gzip but cannot be unpacked: {error}", code="damaged_gzip") from None


def _folder(path: Path) -> str:
    if (path / "sysinfo.csv").is_file() or (path / "pmc_perf.csv").is_file():
        return "rocprof_compute"
    if (path / "meta.json").is_file():
        return "recording"
    if rocprofv3_csv.in_folder(path) is not None:
        return "rocprofv3_csv"
    depths = (
        "*",
        "*/*",
        "*/*/*",
        "*/*/*/*",
    )  # FOLDER/plugins/profile/DATE/HOST.xplane.pb, as JAX and TensorFlow write it
    deeper = sorted(f for depth in depths for f in path.glob(f"{depth}.xplane.pb"))
    raise InputError(
        f"{path} is a folder without a known profile in it",
        hint="name the profile file itself" + (f", such as {deeper[-1]}" if deeper else ""),
        code="not_a_profile",
    )


def _json(path: Path, text: bytes) -> str:
    """Return the format of JSON text, from what stands at its beginning."""
    start = text[:4096]
    _no_result(path, start)
    if b'"rocprofiler-sdk-tool"' in start:
        return "rocprofv3_json"
    if b'"traceEvents"' in text or b'"ph"' in text or b'"deviceProperties"' in start or b'"distributedInfo"' in start:
        return "chrome"
    kind = _other_json(text)
    if kind:
        raise InputError(
            f"{path} is {kind}, not a profile with events and times",
            hint="record with torch.profiler.profile(...).export_chrome_trace(...)",
            code="not_a_profile",
        )
    return "chrome"


def result_schema(path: Path) -> str:
    """Return the kind of document that a file of Mansard is, such as `run/1`; nothing for any other file.

    Args:
        path: The file.

    Raises:
        InputError: it cannot be read.
    """
    return "" if path.is_dir() else _schema_in(_head(path)[:4096])


def _schema_in(start: bytes) -> str:
    found = _OURS.search(start)
    return found.group(1).decode() if found and b'"tool_version"' in start else ""


def _no_result(path: Path, start: bytes) -> None:
    """Refuse what Mansard itself wrote, with what reads it.

    Raises:
        InputError: it is a result and no profile.
    """
    schema = _schema_in(start)
    if not schema:
        return
    report = f"mansard report {path.name} -o page.html shows it"
    hint = (
        f"{report}; mansard trace ranks compares the documents of all ranks of a job, without profiles among them; "
        "mansard run --keep FOLDER keeps the profile itself"
        if schema == "run/1"
        else report
    )
    raise InputError(
        f"{path} is a result of Mansard ({schema}), not a profile with events and times",
        hint=hint,
        code="not_a_profile",
    )


def _other_json(text: bytes) -> str:
    """Return what a JSON file is that is no trace, or nothing where it may still be one."""
    if b'"nodes"' in text and b'"schema"' in text[:4096]:
        return "a PyTorch execution trace (`nodes`)"
    compact = text[:2048].translate(None, b" \r\n\t")
    if compact.startswith((b"[[-1,", b"[[0,", b"[[1,", b"[[[")) and b'"' not in compact[:64]:
        return "a PyTorch memory timeline"
    if b'"batch_size"' in compact and b'"file"' in compact:
        return "the execution_details.json of a graph capture"
    if compact.startswith(b'{"aten::') or (compact.startswith(b'{"') and b'":["' in compact[:256]):
        return "a map from operators to kernel names"
    return ""


def _looks_like_xspace(head: bytes) -> bool:
    """Whether the bytes begin like an XSpace message: field 1 (a plane), a length, then a field of XPlane."""
    if head[:1] != b"\x0a":
        return False
    index = 1
    while index < min(len(head), 11) and head[index] & 0x80:
        index += 1
    return index + 1 < len(head) and head[index + 1] in (0x08, 0x12, 0x1A, 0x22, 0x2A, 0x32)


def _report(path: Path) -> str:
    """Say why a report of NVIDIA's tools is not read."""
    tool = "ncu" if path.suffix == ".ncu-rep" else "nsys"
    found = shutil.which(tool)
    state = f"{tool} is installed ({found})" if found else f"{tool} is not installed here"
    return f"{path} is a report in NVIDIA's own form, which only NVIDIA's {tool} can export; {state}"


def _report_hint(path: Path) -> str:
    if path.suffix == ".ncu-rep":
        return f"ncu --import {path.name} --csv --page raw > {path.stem}.csv"
    return f"nsys export --type sqlite --output {path.stem}.sqlite {path.name}, then open the .sqlite"
