"""What the questions of `mansard trace` share: their options, opening and trimming, printing."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mansard.core.errors import UsageError

if TYPE_CHECKING:
    from mansard.trace.many import Progress as FilesProgress
    from mansard.trace.timeline import Kind, Timeline

F = TypeVar("F", bound=Callable[..., Any])


def file_options(function: F) -> F:
    """Add FILE, --trim, --device, --memory-limit and --json."""
    for decorate in reversed((
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--trim", nargs=2, metavar="A B", help='Window: seconds, or with a unit ("300 ms"); from the start of the capture.'),
        click.option("--device", "--device-id", "device", type=click.IntRange(min=0), help="This device alone."),
        click.option("--memory-limit", metavar="SIZE", help='Leave out host events, or refuse, what needs more memory, such as "8 GB".'),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    )):  # fmt: skip
        function = decorate(function)
    return function


ncu_option = click.option(
    "--ncu", type=click.Path(path_type=Path), metavar="REPORT.csv",
    help="Nsight Compute CSV of the same program: measured FLOP and bytes, joined by kernel name.",
)  # fmt: skip


def read(
    options: Mapping[str, Any],
    *,
    kinds: Iterable[Kind] | None = None,
    prepare: Callable[[Timeline], Timeline] | None = None,
    spare_host: bool = False,
    launch_shapes: bool = False,
) -> Timeline:
    """Open the profile and cut the window that was asked for.

    Args:
        options: Of the command.
        kinds: Kinds of event that are needed.
        prepare: What to do with the whole profile before a window is cut.
        launch_shapes: Whether how kernels were launched is wanted.
        spare_host: Leave out host events where the memory limit does not allow them, and say so, instead of refusing.
    """
    from mansard.core.errors import InputError
    from mansard.core.units import parse_quantity
    from mansard.trace.open import open_trace
    from mansard.trace.window import origin_ns, trim

    limit = int(parse_quantity(options["memory_limit"], "bytes")) if options["memory_limit"] else None
    with _Progress() as progress:
        try:
            timeline = open_trace(
                options["file"],
                categories=kinds,
                memory_limit=limit,
                progress=progress.show,
                launch_shapes=launch_shapes,
            )
        except InputError as error:
            if error.code != "memory_limit" or not spare_host:
                raise
            timeline = _device_alone(options["file"], limit, progress)
    if prepare is not None:
        timeline = prepare(timeline)
    if options["trim"]:
        zero = origin_ns(timeline)
        start, end = (zero + _time_ns(text) for text in options["trim"])
        timeline = trim(timeline, start, end)
    return timeline


def _device_alone(file: Path, limit: int | None, progress: _Progress) -> Timeline:
    """Open the device's events alone: a third of a profile, and enough for busy time, overlap and kernels."""
    from mansard.trace.open import open_trace
    from mansard.trace.run import Finding
    from mansard.trace.timeline import DEVICE_WORK

    timeline = open_trace(file, categories=DEVICE_WORK, memory_limit=limit, progress=progress.show)
    text = (
        "to stay within the memory limit, calls, waits and ranges of the host were left out: busy time, overlap and kernels are "
        "whole, but causes of idle time, launches and steps are unknown"
    )
    return timeline.with_findings([Finding(code="host_left_out", text=text)])


def with_demands(options: Mapping[str, Any]) -> Callable[[Timeline], Timeline]:
    """Return what gives the kernels of a profile their FLOP and bytes: an Nsight Compute report first, then the profile itself."""

    def prepare(timeline: Timeline) -> Timeline:
        from mansard.trace.kernel_demand import KernelDemand, recorded_demand, with_demand

        found: list[KernelDemand] = []
        if options.get("ncu") is not None:
            from mansard.trace.ncu_demand import demand_of_report
            from mansard.trace.readers.ncu import read_report

            found.append(demand_of_report(timeline, read_report(options["ncu"])))
        return with_demand(timeline, [*found, *recorded_demand(timeline)])

    return prepare


def _time_ns(text: str) -> int:
    """Return a time of --trim in ns: plain seconds, or a number with a unit."""
    from decimal import Decimal, InvalidOperation

    from mansard.core.units import parse_quantity

    try:
        value = Decimal(text)
        if value.is_finite() and value >= 0:
            return int((value * 10**9).to_integral_value())
        raise UsageError(f"--trim {text}: expected a time from 0 on")
    except InvalidOperation:
        return round(parse_quantity(text, "s") * 1e9)


def device_index(timeline: Timeline, number: int | None) -> int | None:
    """Return the index of the device that people know by a number.

    Raises:
        UsageError: The profile has none of that number, or several (of several ranks).
    """
    if number is None:
        return None
    hits = [i for i, d in enumerate(timeline.devices) if d.number == number and i in timeline.used_devices]
    if len(hits) == 1:
        return hits[0]
    used = ", ".join(timeline.devices[i].shown for i in timeline.used_devices) or "none"
    if not hits:
        raise UsageError(
            f"no device {number} did any work in this profile", hint=f"devices with work: {used}", code="no_such_device"
        )
    raise UsageError(
        f"several devices have the number {number}: {used}", hint="open one rank's file alone", code="ambiguous_device"
    )


def deliver(document: Mapping[str, Any], lines: Callable[[Mapping[str, Any]], list[str]], *, as_json: bool) -> None:
    """Print a document as JSON, or as text that fits the terminal: COLUMNS, else its width, else 80."""
    from mansard.core.document import dumps, to_jsonable
    from mansard.report.trace_layout import fitted

    if as_json:
        click.echo(dumps(document), nl=False)
        return
    for line in fitted(lines(to_jsonable(document)), shutil.get_terminal_size((80, 24)).columns):
        click.echo(line)


def exit_code(document: Mapping[str, Any]) -> int:
    """Return 3 where no kernels were recorded or the file is incomplete, so that nothing can be judged from it; else 0."""
    return 0 if document["status"] == "complete" else 3


def amount(text: str | None, dimension: str, option: str, *, scale: float = 1.0) -> float | None:
    """Return a positive amount: a plain number in the base unit (times `scale`), or a number with a unit.

    Args:
        text: What was typed.
        dimension: For `core.units.parse_quantity`.
        option: For messages.
        scale: What a plain number counts.
    """
    import math

    from mansard.core.units import parse_quantity

    if text is None:
        return None
    try:
        value = float(text) * scale
    except ValueError:
        value = parse_quantity(text, dimension)
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} is {text}, expected a positive number")
    return value


class _Progress:
    """One line on a terminal while reading; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = False

    def __enter__(self) -> _Progress:
        return self

    def show(self, what: str, share: float) -> None:
        """Show what is read and how much of it is done; the process that started this one shows it for all files."""
        if sys.stderr.isatty() and multiprocessing.parent_process() is None:
            self._shown = True
            click.echo(f"\r\x1b[Kreading {what} {share:.0%}", nl=False, err=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def files_progress(what: str) -> FilesProgress:
    """Return what says how many files are done; silent where no terminal looks on.

    Args:
        what: What is done with them, such as `reading`.
    """
    if not sys.stderr.isatty():
        return lambda _done, _all, _name: None

    def say(done: int, whole: int, name: str) -> None:
        text = f"\r\033[K{what} {done} of {whole}  {name[-60:]}" if done < whole else "\r\033[K"
        click.echo(text, err=True, nl=False)

    return say
