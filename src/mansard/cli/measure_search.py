"""The part of `mansard measure` that looks for the fastest point of a sweep instead of measuring all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mansard.cli.measure_points import Wanted, plan_of, progress_bar

if TYPE_CHECKING:
    from mansard.measure.search import SearchResult

FILE_NAME = "search.json"


def run_search(wanted: Wanted) -> int:
    """Narrow the points of a plan to the fastest, print the finalists, and return the exit code."""
    from mansard.core.document import dumps, header
    from mansard.core.errors import UsageError
    from mansard.measure.machine import choose_cpus, describe
    from mansard.measure.points.effort import EFFORTS
    from mansard.measure.search import FIRST_S, best_point, planned_s
    from mansard.measure.store import write_text

    if wanted.resume or wanted.budget_s is not None:
        raise UsageError("a search can neither be resumed nor given a budget", hint="give it fewer points")
    plan = plan_of(wanted)
    if not plan.points:
        raise UsageError("the search has no points", hint="`mansard measure --list` names benchmarks and parameters")
    first_s = FIRST_S * {"quick": 0.5, "standard": 1.0, "full": 4.0}[EFFORTS[wanted.suite].name]
    expected_s = planned_s(len(plan.points), first_s=first_s)
    if not wanted.quiet:
        for note in plan.notes:
            click.echo(f"note: {note}", err=True)
    if wanted.dry_run:
        click.echo(f"{len(plan.points)} candidates, about {expected_s:.0f} s of samples; compilation comes on top")
        return 0
    target = wanted.output / FILE_NAME if wanted.output is not None else None
    if target is not None and target.exists() and not wanted.force:
        raise UsageError(f"{target} exists", hint="--force replaces it", code="exists")
    if not wanted.quiet:
        click.echo(f"{len(plan.points)} candidates, about {expected_s:.0f} s of samples", err=True)
    cpus = choose_cpus(wanted.threads)
    progress, close = progress_bar(wanted.quiet)
    try:
        found = best_point(plan.points, cpus=cpus, first_s=first_s, seed=wanted.seed, progress=progress)
    finally:
        close()
    first = plan.points[0]
    text = dumps(
        {**header("search/1", describe(cpus)), "benchmark": first.benchmark, "impl": first.impl, **found.to_json()}
    )
    if target is not None:
        write_text(target, text)
        if not wanted.quiet:
            click.echo(f"wrote {target}", err=True)
    if wanted.as_json:
        click.echo(text, nl=False)
    else:
        _show(f"{first.benchmark}[{first.impl}]", found)
    return 0


def _show(name: str, found: SearchResult) -> None:
    """Print the finalists, best first, with ties as ties."""
    from mansard.core.units import format_flop_per_s, format_ratio, format_s
    from mansard.report.text import clean

    for f in found.finalists:
        shape = " ".join(f"{k}={v}" for k, v in f.params.items())
        half = (f.again.high - f.again.low) / 2.0 / f.again.median
        tied = "  tied with the first" if f.tied else ""
        click.echo(
            f"{clean(name)} {clean(shape)}  {format_flop_per_s(f.flop_per_s)} +-{format_ratio(half)}"
            f"  {format_s(f.again.median)}{tied}"
        )
    rounds = " -> ".join(str(n) for n in found.rounds)
    click.echo(
        f"candidates per round: {rounds}; the finalists were measured again in a new process. "
        f"{format_s(found.sampled_s)} of samples where all of them would have taken {format_s(found.brute_force_s)}"
    )
    for params, reason in found.failed:
        click.echo(f"could not run: {clean(' '.join(f'{k}={v}' for k, v in params.items()))}: {clean(reason)}")
