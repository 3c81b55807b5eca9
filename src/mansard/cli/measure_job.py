"""The part of `mansard measure` for a run over the processes of a job: rank 0 measures and prints, the others are silent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mansard.measure.launch import Launch

NETWORK_SUITE = Path(__file__).resolve().parent.parent / "data" / "suites" / "network.yaml"


def show_network(elements: Sequence[Mapping[str, Any]]) -> None:
    """Print links and ranks, under the table of points."""
    from mansard.report.network_text import network_lines

    click.echo("\n".join(network_lines(elements)))


def _write_plainly(launch: Launch) -> None:
    """Write without colours where the terminal is not the reader's: Open MPI gives each rank one of its own, of no size."""
    if launch.launcher == "openmpi" and "FORCE_COLOR" not in os.environ:
        os.environ["TERM"] = "dumb"
        os.environ.setdefault("COLUMNS", "120")
        os.environ.setdefault("LINES", "25")  # of a terminal without colours the width counts with the height alone


def as_one_of(launch: Launch, measure: Callable[[], int], *, quiet: bool) -> int:
    """Measure as rank 0 with the other ranks, or take part in what rank 0 measures; return the exit code of the run.

    Args:
        launch: Place of this process.
        measure: Measures, on rank 0.
        quiet: Whether rank 0 says nothing of who is there.
    """
    from mansard.measure.links.follow import follow
    from mansard.measure.links.job import leading

    if launch.rank > 0:
        return follow(launch)
    _write_plainly(launch)

    def say(text: str) -> None:
        if not quiet:
            click.echo(f"{text} ({launch.launcher})", err=True)

    with leading(launch, say) as job:
        job.code = measure()
        lost = job.hub.lost()
        if lost:
            click.echo(f"{lost}; what was measured before is kept", err=True)
            job.code = 1
        return job.code
