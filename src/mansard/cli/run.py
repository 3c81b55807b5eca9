"""`mansard run`: run a program as a guest, then say what bounds it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.core.errors import InputError, UndecidedError, UsageError
from mansard.core.outputs import may_write, replace_folder

if TYPE_CHECKING:
    from mansard.core import Ceilings
    from mansard.diagnose.records import Diagnosis
    from mansard.trace.run import RunTrace


@click.command(
    "run",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    },
)
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module name, as with `python -m`.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the document alone on stdout; the program's stdout goes to stderr."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the JSON document to a file.")
@click.option("--report", type=click.Path(path_type=Path), help="Write a self-contained HTML report to a file.")
@click.option("--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Judge against this ceilings.json.")
@click.option(
    "--network-rate", metavar="RATE", help="What the network between processes carries one way, such as '10 Gbit/s'."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the recording in this new directory.")
@click.option("--force", is_flag=True, help="Overwrite existing output files.")
@click.option("-v", "--verbose", is_flag=True, help="Show every operator, all evidence and the whole receipt.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the program's own output and errors.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    as_module: bool,
    as_json: bool,
    output: Path | None,
    report: Path | None,
    ceilings_file: Path | None,
    network_rate: str | None,
    keep: Path | None,
    force: bool,
    verbose: bool,
    quiet: bool,
    program: str,
    args: tuple[str, ...],
) -> int:
    """Run PROGRAM with ARGS, unmodified, and name its bottleneck.

    The program keeps its arguments, standard input, output, working directory and exit code; the diagnosis follows on
    stderr. Options for mansard go before PROGRAM.

    Exit code: the program's own where that is not 0, else 3 where no judgement is possible. In a job of several ranks
    (torchrun, Slurm, MPI, ...) it is the program's own whatever the verdict is, or the launcher would end the other ranks.
    There {rank} in -o, --report and --keep is the rank; without it, -rankN is added before the suffix.

    \b
    Examples:
      mansard run train.py --epochs 3
      mansard run --report out.html -m my_package.train
    """
    from mansard.cli.run_job import launch_of, of_rank, with_rank

    launch = launch_of()
    asked = [p for p in (output, report, keep) if p is not None]
    output, report, keep = (of_rank(p, launch) for p in (output, report, keep))
    may_write(output, force=force)
    may_write(report, force=force, option="--report")
    _may_keep(keep, force=force)
    if output is not None and output == report:
        raise UsageError(f"-o and --report both name {output}", hint="give each a file of its own")
    if program.startswith("-") and not Path(program).exists():
        _no_option(program)
    if not as_module and not Path(program).exists():
        raise UsageError(f"no such program: {program}", hint="give a Python file, or -m with a module name")

    def talk(text: str) -> None:
        if not quiet:
            click.echo(f"mansard: {text}", err=True)

    named = [p for p in (output, report, keep) if p is not None]
    if launch is not None and named != asked:
        talk(f"rank {launch.rank} of {launch.world} writes {', '.join(str(p) for p in named)}")
    _stated(network_rate)  # refused before anything is measured
    ceilings = _with_network(_ceilings(ceilings_file, talk), network_rate)
    before = _probe(ceilings) if ceilings_file is None else None
    exit_code, trace, failed = _recorded([program, *args], as_module, as_json, keep, talk, in_job=launch is not None)
    if trace is None:
        return _unless_failed(failed, exit_code)
    line = shlex.join((["-m"] if as_module else []) + [program, *args])
    ceilings = _with_network(_for_threads(ceilings, trace.threads, ceilings_file, talk), network_rate)
    diagnosis = with_rank(_diagnosed(trace, ceilings, before, line), launch)
    if ceilings_file is not None:
        diagnosis = _with_origin(diagnosis, ceilings.machine, str(ceilings_file))

    def show() -> None:
        if not (as_json or quiet):
            _print(diagnosis, verbose)
            if verbose:
                _print_numbers(diagnosis, trace)

    try:
        _deliver(diagnosis, trace, show, as_json=as_json, output=output, report=report, force=force, talk=talk)
    except InputError as error:
        _unless_failed(failed, 0)
        return _unless_failed(error, exit_code)
    return _unless_failed(failed, exit_code) or (0 if launch is not None else _own_exit_code(diagnosis))


def _no_option(word: str) -> None:
    """Refuse a word before the program that looks like an option of mansard."""
    import difflib

    known = [o for p in command.params for o in p.opts if o.startswith("--")]
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.7)
    raise UsageError(
        f"mansard run has no option {word.partition('=')[0]}" + (f"; did you mean {near[0]}?" if near else ""),
        hint="options of the program go after it: mansard run train.py --epochs 3",
    )


def _unless_failed(failed: InputError | None, exit_code: int) -> int:
    """Return the program's exit code; where it is 0 and something could not be written, that is the error."""
    if failed is None:
        return exit_code
    click.echo(f"mansard: {failed.message}", err=True)
    if failed.hint:
        click.echo(f"  hint: {failed.hint}", err=True)
    return exit_code or failed.exit_code


def _recorded(
    program: list[str], as_module: bool, as_json: bool, keep: Path | None, talk: Any, *, in_job: bool = False
) -> tuple[int, RunTrace | None, InputError | None]:
    """Run the program; return its exit code, what it did, and why that could not be kept.

    What it did is None where it failed before anything was recorded. One rank of a job of which nothing was recorded is no
    error: its launcher would end the other ranks.
    """
    from mansard.trace.load import load_run
    from mansard.trace.recorders.record import record

    scratch = Path(tempfile.mkdtemp(prefix="mansard-"))
    failed: InputError | None = None
    try:
        recording = record(program, module=as_module, directory=scratch, stdout=sys.stderr if as_json else None)
        if keep is not None:
            try:
                replace_folder(scratch, keep)
            except InputError as error:  # the run may have taken hours: its recording stays where it is
                failed = InputError(error.message, hint=f"{error.hint}; the recording is in {scratch}")
        if recording.exit_code != 0:
            talk(f"the program ended with exit code {recording.exit_code}")
        try:
            return recording.exit_code, load_run(scratch), failed
        except UndecidedError as error:
            if recording.exit_code == 0 and not in_job:
                raise
            # What to run instead is no help to a program that failed.
            hint = "" if recording.exit_code != 0 else error.hint
            talk(f"{error.message} {hint}".strip())
            if as_json:  # the exit code is the program's; what there is to say of it is a document all the same
                click.echo(json.dumps(error.to_dict()))
            return recording.exit_code, None, failed
    finally:
        if failed is None:
            shutil.rmtree(scratch, ignore_errors=True)


def _diagnosed(trace: RunTrace, ceilings: Ceilings, before: dict[str, float] | None, line: str) -> Diagnosis:
    """Judge the run against the ceilings, in the regime that the probes around it saw."""
    from mansard.diagnose.analyse import diagnose_run
    from mansard.diagnose.facts import Facts, clock_of_probes, cores_busy_of

    cores = cores_busy_of(trace)
    after = None if before is None else _probe(ceilings)
    if before is None or after is None:
        return diagnose_run(trace, ceilings, program=line, facts=Facts(cores_busy=cores))
    from mansard.diagnose.regime import seen_regime
    from mansard.measure import reference

    ceilings, drift = seen_regime(ceilings, before, after, reference(ceilings))
    facts = Facts(clock=clock_of_probes(drift, ceilings.machine), cores_busy=cores)
    return diagnose_run(trace, ceilings, program=line, drift=drift, facts=facts)


def _with_origin(diagnosis: Diagnosis, machine: Mapping[str, Any], name: str) -> Diagnosis:
    """Say so where the ceilings that were given are of another processor or another number of cores."""
    from dataclasses import replace

    from mansard.diagnose.records import Note
    from mansard.measure.machine import choose_cpus, describe

    here = describe(choose_cpus(None))
    words = {"cpu_model": "processor", "architecture": "architecture", "threads": "threads"}
    other = [
        f"{word} {machine[key]} there, {here[key]} here"
        for key, word in words.items()
        if machine.get(key) not in (None, "", here[key])
    ]
    if not other:
        return diagnosis
    text = (
        f"the ceilings of {name} are those of another machine ({'; '.join(other)}): every share is against that machine, "
        "not against what this one can do"
    )
    return replace(diagnosis, findings=(Note(code="other_machine", text=text), *diagnosis.findings))


def _deliver(
    diagnosis: Diagnosis,
    trace: RunTrace,
    show: Callable[[], None],
    *,
    as_json: bool,
    output: Path | None,
    report: Path | None,
    force: bool,
    talk: Any,
) -> None:
    """Write the documents that were asked for, and show the diagnosis."""
    if not as_json and output is None and report is None:
        show()
        return
    from mansard.cli.outputs import deliver
    from mansard.core.document import dumps, to_jsonable
    from mansard.diagnose.fixed_cost import fixed_costs_of_trace
    from mansard.diagnose.metrics import run_metrics
    from mansard.diagnose.occupied import of_run as occupied_of
    from mansard.report.document import to_document
    from mansard.report.sections.timeline import of_run

    picture = of_run(trace)
    kept = {} if picture is None else {"timeline": picture.document()}
    numbers = {"metrics": run_metrics(diagnosis, occupied_of(trace)), "fixed_costs": fixed_costs_of_trace(trace)}
    document = dumps({**to_document(diagnosis), **dict(to_jsonable(numbers)), **kept})

    def page() -> str:
        from mansard.report.html import render as render_html

        return render_html(diagnosis, picture)

    def shown() -> None:
        if as_json:
            sys.stdout.write(document)
            sys.stdout.flush()
        show()

    deliver(shown, [(output, lambda: document), (report, page)], force=force, say=talk)


def _may_keep(path: Path | None, *, force: bool) -> None:
    """Refuse a place for the recording before the program runs, where it could not be written after it.

    `--force` replaces a file, and a directory that holds a recording; it never takes away another directory.
    """
    if path is None:
        return
    if path.is_dir():
        if not force:
            raise UsageError(f"{path} exists", hint="give --force to replace it")
        if not (path / "meta.json").is_file() and any(path.iterdir()):
            raise UsageError(f"--keep {path} is not a recording and is not replaced", hint="give a new directory")
        path = Path(os.path.realpath(path)).with_name(f".{path.name}.new")  # made beside the old one
    elif path.exists():
        raise UsageError(f"--keep {path} is not a recording and is not replaced", hint="give a new directory")
    may_write(path, force=False, option="--keep")


def _own_exit_code(diagnosis: Diagnosis) -> int:
    """Return 3 where no judgement was possible, else 0."""
    from mansard.core import Bound

    return 3 if diagnosis.verdict.bound is Bound.UNDETERMINED else 0


def _print(diagnosis: Diagnosis, verbose: bool) -> None:
    from mansard.report.terminal import render

    width = max(40, min(160, _columns()))
    color = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(render(diagnosis, width=width, color=color, verbose=verbose, encoding=encoding))
    sys.stderr.flush()


def _print_numbers(diagnosis: Diagnosis, trace: RunTrace) -> None:
    """Print the metrics of the run with their definitions, and what it tells of fixed cost."""
    from mansard.diagnose.fixed_cost import fixed_costs_of_trace
    from mansard.diagnose.metrics import run_metrics
    from mansard.diagnose.occupied import of_run
    from mansard.report.metrics_text import number_lines

    width = max(40, min(160, _columns()))
    for line in number_lines(run_metrics(diagnosis, of_run(trace)), fixed_costs_of_trace(trace), width=width):
        click.echo(line, err=True)


def _columns() -> int:
    """Return the width of the page: COLUMNS, else that of the terminal on stderr, else 80."""
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _ceilings(path: Path | None, talk: Any) -> Ceilings:
    """Return the ceilings given, the cached ones, or measure the few that a run needs."""
    from mansard.core.ceilings import read_ceilings
    from mansard.measure import load_cached

    if path is not None:
        return read_ceilings(path)
    cached = load_cached()
    return cached if cached is not None else _measured_or_none(None, talk)


def _measured_or_none(threads: int | None, talk: Any) -> Ceilings:
    """Return ceilings measured now; where that fails none, since a guest does not keep its host from running.

    In a job the rank that ended here would take all others with it.
    """
    from mansard.core import Ceilings
    from mansard.measure.machine import choose_cpus, describe

    try:
        return _measure_now(threads, talk)
    except UndecidedError as error:
        talk(
            f"the ceilings could not be measured: {error.message} ({error.hint}); the program runs all the same, and its shares of "
            "the ceilings stay unknown: mansard measure, then run it again"
        )
        return Ceilings(ceilings=(), machine=describe(choose_cpus(threads)))


def _measure_now(threads: int | None, talk: Any) -> Ceilings:
    from mansard.measure import load_cached, measure, nearest_kept, one_at_a_time, save

    many = f" at {threads} threads" if threads else ""
    with one_at_a_time():
        found = load_cached(threads=threads)  # another process of the job measured while this one waited
        if found is not None:
            return found
        near = nearest_kept(threads=threads)
        if near is None:
            talk(
                f"no ceilings on record for this machine{many}: measuring them first (about a minute, kept for the next run)"
            )
        else:
            talk(
                f"the ceilings on record{many} are of another state of this machine: {near[1]}. Measuring new ones (about a "
                f"minute, kept for the next run in this state); to judge against the old ones: --ceilings {near[0]}"
            )
        ceilings = measure("quick", threads=threads)
        try:
            save(ceilings)
        except InputError as error:  # the run does not depend on it
            talk(f"the ceilings are not kept for the next run: {error.message}; {error.hint}")
    return ceilings


def _stated(rate: str | None) -> float | None:
    """Return the rate of the network that was stated [B/s]."""
    from mansard.core.units import parse_quantity

    value = None if rate is None else parse_quantity(rate, "bytes_per_s")
    if value == 0.0:
        raise UsageError(
            f"--network-rate is {rate}, expected a positive rate", hint="leave it out where there is no network"
        )
    return value


def _with_network(ceilings: Ceilings, rate: str | None) -> Ceilings:
    """Return the ceilings with the stated rate of the network; what was stated comes before what was measured."""
    from dataclasses import replace

    from mansard.core.ceilings import Area, Ceiling, Kind, Resource

    value = _stated(rate)
    if value is None:
        return ceilings
    stated = Ceiling(
        resource=Resource(area=Area.NETWORK, link="network"), value=value, unit="B/s",
        kind=Kind.DECLARED, scope="device", source="--network-rate",
    )  # fmt: skip
    others = tuple(c for c in ceilings.ceilings if c.source != stated.source)
    return replace(ceilings, ceilings=(stated, *others))


def _for_threads(ceilings: Ceilings, threads: int, path: Path | None, talk: Any) -> Ceilings:
    """Return ceilings at the number of threads that the program computed with."""
    from mansard.measure import load_cached

    known = ceilings.machine.get("threads")
    if path is not None or threads <= 1 or known is None or threads == known:
        return ceilings
    cached = load_cached(threads=threads)
    return cached if cached is not None else _measured_or_none(threads, talk)


def _probe(ceilings: Ceilings) -> dict[str, float] | None:
    """Return a second look at the ceilings; None where there are none, or too little of the machine is free for it."""
    from mansard.measure import probe

    try:
        return probe(ceilings) if ceilings.ceilings else None
    except UndecidedError:
        return None
