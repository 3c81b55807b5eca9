"""`mansard measure`: what this machine can do, as ceilings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mansard.core.ceilings import Ceilings
    from mansard.measure.launch import Launch

GROUPS = ("vector", "memory", "matrix", "special", "latency")
SUITES = ("quick", "standard", "full")
FILE_NAME = "ceilings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given, by the names of their parameters, and the words that are none of them."""

    words: tuple[str, ...]
    config: Path | None
    run_name: str | None
    suite: str | None
    impls: str | None
    against: str | None
    dry_run: bool
    resume: bool
    search: bool
    schema: bool
    list_all: bool
    seed: int
    budget: float | None
    spread: float | None
    hardware: str | None
    ceilings_file: Path | None
    threads: int | None
    only: tuple[str, ...]
    coordinator: str | None
    rank: int | None
    world: int | None
    output: Path | None
    force: bool
    as_json: bool
    quiet: bool

    @property
    def points(self) -> bool:
        """Whether points are wanted, and not the ceilings alone."""
        return self.config is not None or self.run_name is not None or self.suite in ("standard", "full")


@click.command(
    "measure",
    short_help="Measure what this machine can do, and keep it as ceilings.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--run", "run_name", metavar="NAME", help="Measure one benchmark; its parameters follow as --name value.")
@click.option(
    "--suite", type=click.Choice(SUITES), help="How thorough; without CONFIG also which shipped set. [default: quick]"
)
@click.option("--impl", "impls", metavar="A,B", help="Implementations to compare.")
@click.option("--against", metavar="OTHER", help="Measure points in turn with another python, environment or commit.")
@click.option("--dry-run", is_flag=True, help="Show the plan, what is waived and the expected time; measure nothing.")
@click.option("--resume", is_flag=True, help="Go on with a run of the same plan that was cut short in this folder.")
@click.option(
    "--search", is_flag=True, help="Narrow a sweep to its fastest point by FLOP/s instead of measuring all of it."
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of configuration files, for editors.")
@click.option("--list", "list_all", is_flag=True, help="List the benchmarks with their parameters.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order in which points are measured.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Wall time of the run in seconds; what no longer fits is left out by name. [default: 900 for --suite standard]",
)
@click.option(
    "--spread",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="Measure every point in many short turns over this long, for figures that hold on a machine that drifts.",
)
@click.option("--hw", "hardware", metavar="SLUG", help="Accelerator by its catalogue name, for declared ceilings.")
@click.option(
    "--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Judge points against this ceilings.json."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the team; default: all this process may use.")
@click.option("--only", type=click.Choice(GROUPS), multiple=True, help="Measure this group alone; may be repeated.")
@click.option("--coordinator", metavar="HOST:PORT", help="Where rank 0 listens, for a run over several processes.")
@click.option("--rank", type=click.IntRange(min=0), help="Which process this is; default: as a launcher says.")
@click.option("--world", type=click.IntRange(min=1), help="How many processes; default: as a launcher says.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Also write the files into this folder."
)
@click.option("--force", is_flag=True, help="Replace the files that are there, and the ceilings that are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print one document alone: the ceilings, or the points.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no closing lines.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Measure peaks, bandwidths and fixed costs of this machine in about a minute, or the points of a configuration.

    Without CONFIG the ceilings are measured and kept per machine and state (processor, limits, versions), where
    `mansard run` finds them. With CONFIG, --run NAME, or --suite standard or full, configured points are measured, each
    with its audit and verdict, into detailed.json, summary.csv and ceilings.json. Run it on an idle machine: what
    others use is missing from the figures, and is reported beside them.

    Exit code 1 where a point failed, 3 where one is implausible or nothing was measured; with --against 1 slower, 3 not
    decided.

    \b
    The ceilings of this machine, or a part of them:
      mansard measure
      mansard measure --only memory --threads 1
      mansard measure --json | jq '.ceilings[] | select(.scope == "node")'
    Points, from the command line or a file; lists and start..endxfactor sweep:
      mansard measure --run gemm_generalized --m 4096 --n 4096 --k 4096 \\
        --in-dtype f32 --out-dtype f32 --impl numpy,jax
      mansard measure --run gemm_generalized --m 512..4096x2 --n 512..4096x2 \\
        --k 1024 --in-dtype f32 --search
      mansard measure sweep.yaml --dry-run
      mansard measure sweep.yaml -o results --budget 600
      mansard measure sweep.yaml -o results --resume
      mansard measure sweep.yaml -o results --spread 600
    The same points with another environment or commit, in turn, for a machine
    that is never quiet:
      mansard measure sweep.yaml --against ../old-venv
      mansard measure --run rmsnorm --impl torch --against main
    The areas of the machine in about 5 minutes; a network of several processes:
      mansard measure --suite standard -o results
      torchrun --nproc-per-node 4 -m mansard measure -o network
    """
    asked = Asked(words=tuple(ctx.args), **given)
    if asked.list_all:
        from mansard.cli.measure_points import list_benchmarks

        return list_benchmarks(asked.as_json)
    if asked.schema:
        return _print_schema()
    if asked.config is not None and str(asked.config).startswith("--"):  # a parameter's name is not a file
        asked = replace(asked, words=(str(asked.config), *asked.words), config=None)
    from mansard.measure.launch import detect_launch

    launch = detect_launch(coordinator=asked.coordinator, rank=asked.rank, world=asked.world)
    if launch is not None and not asked.points and asked.suite in (None, "quick") and not asked.only:
        from mansard.cli.measure_job import NETWORK_SUITE

        asked = replace(asked, config=NETWORK_SUITE, suite="quick")
    if asked.points:
        return _points(asked, launch)
    if asked.words:
        ctx.fail(f"no such option or argument: {asked.words[0]}")
    for name, wanted in (("--dry-run", asked.dry_run), ("--resume", asked.resume), ("--impl", asked.impls),
                         ("--budget", asked.budget), ("--search", asked.search), ("--spread", asked.spread),
                         ("--against", asked.against)):  # fmt: skip
        if wanted:
            ctx.fail(f"{name} needs a configuration file, --run, or --suite standard")
    return _quick(asked.threads, asked.only, asked.output, force=asked.force, as_json=asked.as_json, quiet=asked.quiet)


def _points(asked: Asked, launch: Launch | None) -> int:
    """Measure the points of a file, of one benchmark or of a suite, alone or as one of several processes."""
    from mansard.cli.measure_points import Wanted, parameters_from, run_points

    if asked.config is not None and asked.run_name is not None:
        raise click.UsageError("give a configuration file or --run, not both")
    if asked.only:
        raise click.UsageError("--only belongs to the quick suite of ceilings")
    wanted = Wanted(
        config=asked.config, run=asked.run_name, params=parameters_from(asked.words), suite=asked.suite or "standard",
        impls=asked.impls, threads=asked.threads, seed=asked.seed, budget_s=asked.budget, hardware=asked.hardware,
        ceilings_file=asked.ceilings_file, output=asked.output, dry_run=asked.dry_run, resume=asked.resume,
        force=asked.force, as_json=asked.as_json, quiet=asked.quiet, spread_s=asked.spread,
    )  # fmt: skip
    if asked.spread is not None and (asked.against is not None or asked.search):
        raise click.UsageError("--spread is neither for --against nor for --search: both take turns already")
    if asked.against is not None:
        from mansard.cli.measure_against import run_against

        if asked.search or launch is not None:
            raise click.UsageError("--against measures the points of one process, without --search")
        return run_against(wanted, asked.against)
    if asked.search:
        from mansard.cli.measure_search import run_search

        return run_search(wanted)
    if launch is None:
        return run_points(wanted)
    from mansard.cli.measure_job import as_one_of, show_network

    return as_one_of(launch, lambda: run_points(wanted, more=show_network), quiet=asked.quiet)


def _print_schema() -> int:
    """Print the JSON Schema of configuration files."""
    import json

    from mansard.measure.config.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
    return 0


def _quick(
    threads: int | None, only: tuple[str, ...], output: Path | None, *, force: bool, as_json: bool, quiet: bool
) -> int:
    """Measure the ceilings, keep them and show them."""
    from mansard.core.document import dumps
    from mansard.core.errors import UndecidedError, UsageError, install
    from mansard.measure import document, load_cached, measure, save
    from mansard.measure.store import worth_keeping, write_text
    from mansard.report.ceilings_table import show

    target = output / FILE_NAME if output is not None else None
    if target is not None and target.exists() and not force:
        raise UsageError(f"{target} exists", hint="--force replaces it", code="exists")
    ceilings = measure("quick", threads=threads, only=only or None, progress=_progress(quiet))
    if not ceilings.ceilings:
        _findings(ceilings)
        raise UndecidedError("nothing could be measured", hint=f"see the findings above; {install('cpu')}")
    text = dumps(document(ceilings))
    if target is not None:
        write_text(target, text)
    # A partial or disturbed measurement must not hide a better one that `run` would find.
    old = None if only or force else load_cached(threads=threads)
    if only:
        kept = "not kept for `mansard run`: --only measures a part; leave it out for that"
    elif worth_keeping(ceilings, old):
        kept = f"kept as {save(ceilings)}"
    else:
        kept = "not kept: the figures kept before were taken with less foreign load; --force replaces them"
    if as_json:
        click.echo(text, nl=False)
    else:
        show(ceilings)
    if not quiet:
        _findings(ceilings)
        if target is not None:
            click.echo(f"wrote {target}", err=True)
        click.echo(kept, err=True)
    return 0


def _progress(quiet: bool) -> Callable[[str, float], None] | None:
    if quiet or not sys.stderr.isatty():
        return None

    def say(text: str, share: float) -> None:
        line = f"\r\033[K{share:4.0%}  {text}" if share < 1.0 else "\r\033[K"
        click.echo(line, err=True, nl=False)

    return say


def _findings(ceilings: Ceilings) -> None:
    for finding in ceilings.machine.get("findings", ()):
        click.echo(f"note: {finding['text']}", err=True)
