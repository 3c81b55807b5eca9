"""What the questions of `mansard trace` share: their options, opening and trimming, printing."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.trace.many import Progress as FilesProgress
    from mansard.trace.timeline import Kind, Timeline

F = TypeVar("F", bound=Callable[..., Any])


def file_options(function: F) -> F:
    """Add FILE, --trim, --device, --memory-limit and --json."""
    for decorate in reversed((
        click.argument("file", type=click.Path(path_type=Path)),
        shared.trim,
        shared.device,
        click.option("--memory-limit", metavar="SIZE", help='Leave out host events, or refuse, what needs more memory, such as "8 GB".'),
        shared.as_json,
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
    from mansard.trace.prepare import cut

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
    return cut(timeline, options["trim"])


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
        from mansard.trace.prepare import with_counters

        return with_counters(timeline, options.get("ncu"))

    return prepare


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


@contextlib.contextmanager
def watched() -> Iterator[Callable[[str, float], None]]:
    """Show on a terminal how much of a file is read."""
    with _Progress() as progress:
        yield progress.show


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
