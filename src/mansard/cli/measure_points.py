"""The part of `mansard measure` that runs configured points: plan, dry run, progress, files, table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mansard.measure.config.plan import Plan
    from mansard.measure.points.session import Session

SUITES = Path(__file__).resolve().parent.parent / "data" / "suites"
SUITE_BUDGET_S = {"standard": 900.0}  # of a shipped suite, where none is given [s]
LINE_EVERY_S = 30.0  # between two lines of progress where no terminal looks on
LEAST_SHARE_TOLD = 0.03  # done, from which on the time left can be told
PROCESS_S = 1.0  # about what a point costs in each process beside its samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Args:
        config: A configuration file, or None.
        run: One benchmark by name, or None.
        params: Its parameters, or overrides of those of the file.
        suite: Effort; without `config` and `run` also which shipped file.
        impls: Implementations to compare, separated by commas; None takes what the file says.
        threads, seed, budget_s, hardware, ceilings_file, output: As the options say.
        dry_run, resume, force, as_json, quiet: Flags.
        spread_s: Time to spread the processes of each point over [s]; None lets them follow each other.
    """

    config: Path | None
    run: str | None
    params: Mapping[str, Any]
    suite: str
    impls: str | None
    threads: int | None
    seed: int
    budget_s: float | None
    hardware: str | None
    ceilings_file: Path | None
    output: Path | None
    dry_run: bool
    resume: bool
    force: bool
    as_json: bool
    quiet: bool
    spread_s: float | None = None


def parameters_from(words: Sequence[str]) -> dict[str, str]:
    """Return `--name value` and `--name=value` pairs as parameters.

    Raises:
        UsageError: a word that is no option, or an option without a value.

    >>> parameters_from(["--m", "512", "--dtype=f32"])
    {'m': '512', 'dtype': 'f32'}
    """
    from mansard.core.errors import UsageError

    found: dict[str, str] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise UsageError(f"{word!r} is no parameter", hint="write --name value, such as --m 4096")
        if not equals:
            if not queue or (queue[0].startswith("--") and len(queue[0]) > 2):
                raise UsageError(f"--{name} has no value", hint=f"write --{name} VALUE")
            value = queue.pop(0)
        found[name.replace("-", "_")] = value
    return found


def plan_of(wanted: Wanted) -> Plan:
    """Return the plan of a file, of one benchmark, or of a shipped suite."""
    from mansard.measure.config.plan import load_plan, plan_from_command_line

    params = dict(wanted.params)
    if wanted.impls:
        params["impl"] = wanted.impls
    if wanted.run is not None:
        return plan_from_command_line(wanted.run, params)
    path = wanted.config if wanted.config is not None else SUITES / f"{wanted.suite}.yaml"
    return load_plan(path, overrides=params)


def run_points(wanted: Wanted, *, more: Callable[[list[dict[str, Any]]], None] | None = None) -> int:
    """Plan and measure points, write the files, print the table, and return the exit code.

    Args:
        wanted: What the command line asks for.
        more: Prints what follows the table.
    """
    from mansard.core.errors import UsageError
    from mansard.measure.points.effort import EFFORTS, spread
    from mansard.measure.points.output import DETAILED
    from mansard.measure.points.session import Session, exit_code
    from mansard.report import points_text

    plan = plan_of(wanted)
    if wanted.output is not None and not (wanted.force or wanted.resume) and not wanted.dry_run:
        taken = wanted.output / DETAILED
        if taken.exists():
            raise UsageError(f"{taken} exists", hint="--resume goes on with it, --force replaces it", code="exists")
    if wanted.resume and wanted.output is None:
        raise UsageError("--resume needs the folder of the run that was cut short", hint="-o FOLDER")
    if wanted.output is not None and not wanted.dry_run:
        _must_be_writable(wanted.output)
    progress, close = progress_bar(wanted.quiet)
    shipped = wanted.config is None and wanted.run is None
    budget_s = wanted.budget_s or (SUITE_BUDGET_S.get(wanted.suite) if shipped else None)
    effort = EFFORTS[wanted.suite]
    session = Session(
        effort=spread(effort, wanted.spread_s) if wanted.spread_s else effort, folder=wanted.output, threads=wanted.threads, seed=wanted.seed,
        budget_s=budget_s, hardware=wanted.hardware or plan.hardware, declared=plan.ceilings,
        ceilings_file=wanted.ceilings_file, progress=progress,
    )  # fmt: skip
    if not wanted.quiet:
        for note in (*plan.notes, *session.notes):
            click.echo(f"note: {note}", err=True)
    if shipped and not wanted.dry_run:
        _refresh(session, wanted)
    waived = [(w.point, f"{w.waived.reason} (missing: {w.waived.missing})") for w in plan.waived]
    if wanted.dry_run:
        if wanted.spread_s and not wanted.quiet:
            click.echo(
                f"note: the points take turns over {wanted.spread_s:g} s, or longer where they need it", err=True
            )
        points_text.show_plan(plan, session.survey(plan.points), waived, as_json=wanted.as_json)
        return 0
    if not wanted.as_json:
        _say_size(plan, wanted, session)
    try:
        elements = session.run(plan.points, waived, resume=wanted.resume)
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a scheduler's signal
        kept = (
            f"what is finished is in {wanted.output}; --resume goes on" if wanted.output else "nothing was kept: no -o"
        )
        click.echo(f"interrupted; {kept}", err=True)
        raise
    finally:
        close()
    if wanted.as_json:
        click.echo(points_text.document_text(elements), nl=False)
    else:
        points_text.show(elements)
        if more is not None:
            more(elements)
    if wanted.output is not None and not wanted.quiet:
        click.echo(f"wrote {', '.join(str(p) for p in sorted(wanted.output.iterdir()) if p.is_file())}", err=True)
    return exit_code(elements)


def _must_be_writable(folder: Path) -> None:
    """Make the folder of the results and write into it, before minutes are spent on what could not be kept."""
    from mansard.measure.store import write_text

    probe = folder / ".writable"
    write_text(probe, "")
    probe.unlink(missing_ok=True)


def _refresh(session: Session, wanted: Wanted) -> None:
    """Measure the ceilings of this machine first: a shipped suite judges its points against fresh ones and keeps them."""
    from mansard.measure import measure, save
    from mansard.measure.store import BUSY_RATIO, foreign_load, load_cached, worth_keeping

    if wanted.ceilings_file is not None:
        return
    kept = load_cached(threads=wanted.threads) if wanted.resume else None
    if kept is not None:  # they were measured at the start of the run that goes on
        session.judge_against(kept)
        return
    if not wanted.quiet:
        click.echo("measuring the ceilings first, about a minute", err=True)
    fresh = measure("quick", threads=wanted.threads, progress=lambda text, share: session.progress(share * 0.999, text))
    if worth_keeping(fresh, load_cached(threads=wanted.threads)):
        save(fresh)
        session.judge_against(fresh)
        if foreign_load(fresh) > BUSY_RATIO and not wanted.quiet:
            click.echo(
                f"note: others used up to {foreign_load(fresh):.0%} of the processors while the ceilings were measured: "
                "they are too low, and shares of them too high",
                err=True,
            )
    elif not wanted.quiet:
        click.echo("the ceilings kept before were taken with less foreign load: they stay", err=True)


def _say_size(plan: Plan, wanted: Wanted, session: Session) -> None:
    """Say how many points there are, about how long they take, and what bounds it."""
    from mansard.core.units import format_s

    if wanted.quiet:
        return
    effort = session.effort
    about_s = max(effort.spread_s, len(plan.points) * (effort.budget_s + effort.processes * PROCESS_S))
    within = f", at most {format_s(session.budget_s)}" if session.budget_s is not None else ""
    for product in plan.products:
        axes = " x ".join(f"{name} {count}" for name, count in product.axes.items())
        click.echo(f"sweep of {product.benchmark}: {axes} = {product.size} points", err=True)
    click.echo(
        f"{len(plan.points)} point{'' if len(plan.points) == 1 else 's'}, {len(plan.waived)} waived by the plan; about {format_s(about_s)}{within}",
        err=True,
    )


def progress_bar(quiet: bool) -> tuple[Callable[[float, str], None], Callable[[], None]]:
    """Return what to call with the share done, and what to call at the end; a line now and then without a terminal."""
    if quiet:
        return (lambda _share, _text: None), (lambda: None)
    if not sys.stderr.isatty():
        return lines_of_progress(lambda text: click.echo(text, err=True)), (lambda: None)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, refresh_per_second=2,
    )  # fmt: skip
    task = bar.add_task("starting", total=1.0)
    bar.start()

    def say(share: float, text: str) -> None:
        name = text if len(text) <= 60 else text[:57] + "..."
        bar.update(task, completed=share, description=name.replace("[", "\\["))

    return say, bar.stop


def lines_of_progress(
    echo: Callable[[str], None], now: Callable[[], float] = time.monotonic
) -> Callable[[float, str], None]:
    """Return what says the share done and the time left, at most every half minute.

    >>> clock = iter([0.0, 10.0, 60.0])
    >>> say = lines_of_progress(print, lambda: next(clock))
    >>> say(0.1, "gemm")
    >>> say(0.25, "copy")
    25 % done, about 180 s left: copy
    """
    from mansard.core.units import format_ratio, format_s

    begin = last = now()

    def say(share: float, text: str) -> None:
        nonlocal last
        at = now()
        if at - last < LINE_EVERY_S or not 0.0 < share < 1.0:
            return
        last = at
        left = (at - begin) * (1.0 - share) / share
        rest = f", about {format_s(left)} left" if share >= LEAST_SHARE_TOLD else ""
        echo(f"{format_ratio(share)} done{rest}: {text}")

    return say


def list_benchmarks(as_json: bool) -> int:
    """Print every benchmark with its parameters and implementations."""
    from mansard.report import points_text

    points_text.show_benchmarks(as_json=as_json)
    return 0
