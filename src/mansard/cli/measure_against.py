"""`mansard measure --against`: the same points with another environment or commit, in turn with this one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

from mansard.cli.measure_points import Wanted, plan_of, progress_bar

if TYPE_CHECKING:
    from mansard.history.against import Paired

FILE_NAME = "against.json"


def run_against(wanted: Wanted, other: str) -> int:
    """Measure points in turn with `other` as the baseline and this program as the candidate, and return the exit code.

    Args:
        wanted: What the command line asks for.
        other: Another python, its environment, a checkout, or a commit of the checkout here.

    Exit code 0 same or faster than `other`, 1 slower, 3 not decided.
    """
    from mansard.core.document import dumps
    from mansard.core.errors import UsageError
    from mansard.history.against import Budget, compared, measure_in_turn
    from mansard.history.compare import Limits
    from mansard.history.sides import this_version, version_at
    from mansard.measure.machine import choose_cpus
    from mansard.report.history_text import comparison_document, comparison_text

    for name, given in (("--dry-run", wanted.dry_run), ("--resume", wanted.resume)):
        if given:
            raise UsageError(f"{name} does not go with --against", hint="leave one of them out")
    target = wanted.output / FILE_NAME if wanted.output is not None else None
    if target is not None and target.exists() and not wanted.force:
        raise UsageError(f"{target} exists", hint="--force replaces it", code="exists")
    plan = plan_of(wanted)
    points = list(plan.points)
    budget = Budget() if wanted.budget_s is None else Budget(point_s=wanted.budget_s / max(1, len(points)))
    progress, close = progress_bar(wanted.quiet)
    cpus = choose_cpus(wanted.threads)
    try:
        with version_at(other) as theirs:
            versions = theirs, this_version()
            found = measure_in_turn(
                points, versions, cpus=cpus, budget=budget, seed=wanted.seed, progress=progress
            )  # fmt: skip
    finally:
        close()
    limits = Limits(interleaved=True, seed=wanted.seed)
    comparison = compared(found, versions, limits)
    document = {**comparison_document(comparison, [other], ["here"]), "in_turn": [_raw(p) for p in found]}
    if target is not None:
        from mansard.measure.store import write_text

        write_text(target, dumps(document))
    if wanted.as_json:
        click.echo(dumps(document), nl=False)
    else:
        click.echo(comparison_text(comparison, shutil.get_terminal_size((80, 24)).columns), nl=False)
        if not wanted.quiet:
            rounds = sum(len(p.orders) for p in found)
            click.echo(f"in turn, in random order: {rounds} rounds of {len(points)} points; baseline {other}", err=True)
    if target is not None and not wanted.quiet:
        click.echo(f"wrote {target}", err=True)
    return comparison.exit_code


def _raw(p: Paired) -> dict[str, Any]:
    """Return what was measured of a point: a round after the other, by the pair of processes."""
    return {
        "name": p.point.name, "baseline_s": p.groups[0], "candidate_s": p.groups[1], "first": ["candidate" if f else "baseline" for f in p.orders],
        "failures": p.failures, "waived": p.waived,
    }  # fmt: skip
