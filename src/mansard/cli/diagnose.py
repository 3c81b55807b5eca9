"""`mansard diagnose`: a recorded profile, ceilings and a model -> verdict, evidence, advice."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli.trace.common import file_options

if TYPE_CHECKING:
    from mansard.core.ceilings import Ceilings
    from mansard.diagnose.profile import DeviceDiagnosis, Question

_MATCHES = ("auto", "exact", "contains", "startswith", "glob", "regex")


@click.command("diagnose", short_help="Name the bottleneck of a recorded profile.")
@file_options
@click.option("--region", metavar="NAME", help="One range instead of the whole profile.")
@click.option("--occurrence", type=int, default=1, show_default=True, help="Which one, from 1.")
@click.option("--match", type=click.Choice(_MATCHES), default="auto", show_default=True, help="How NAME is compared.")
@click.option("--all-threads", is_flag=True, help="Count work that other threads launched during the region.")
@click.option("--marker", metavar="NAME", help="The range that marks a step.")
@click.option("--hardware", "--on", "hardware", metavar="NAME", help="The product, where the file does not tell.")
@click.option("--ceilings", "ceilings_file", type=click.Path(path_type=Path), help="Measured ceilings.json.")
@click.option("--network-rate", metavar="RATE", help='One-way rate of one device between nodes, "400 Gbit/s".')
@click.option("--node-devices", type=click.IntRange(min=1), help="Devices of one node.")
@click.option("-v", "--verbose", is_flag=True, help="Every operator, finding and receipt line.")
def command(**options: Any) -> int:
    """Say what bounds a recorded run, how far it is below its ceiling, and what to change first.

    Exit code 3 where the verdict is undetermined.

    \b
      mansard diagnose profile.sqlite
      mansard diagnose trace.json.gz --hardware h100-sxm --region forward --occurrence 2
      mansard diagnose rank3.json.gz --node-devices 8 --network-rate "400 Gbit/s"
    """
    from mansard.cli.trace.common import device_index, read
    from mansard.core import Bound
    from mansard.diagnose.profile import diagnose_profile
    from mansard.report.diagnose_document import diagnose_document

    timeline = read(options)
    question = question_of(options, device_index(timeline, options["device"]))
    found = diagnose_profile(timeline, question)
    if options["as_json"]:
        from mansard.core.document import dumps

        click.echo(dumps(diagnose_document(found)), nl=False)
    else:
        _print(found, verbose=options["verbose"])
    return 3 if found[0].diagnosis.verdict.bound is Bound.UNDETERMINED else 0


def question_of(options: dict[str, Any], device: int | None) -> Question:
    """Return what was asked on the command line."""
    from mansard.cli.trace.common import amount
    from mansard.diagnose.profile import Question

    return Question(
        device=device,
        ceilings=_ceilings(options["ceilings_file"]),
        network_bytes_per_s=amount(options["network_rate"], "bytes_per_s", "--network-rate"),
        **{
            name: options[name]
            for name in ("region", "occurrence", "match", "all_threads", "marker", "hardware", "node_devices")
        },
    )


def _ceilings(path: Path | None) -> Ceilings | None:
    from mansard.core.ceilings import ceilings_from_json
    from mansard.core.document import read_document
    from mansard.core.errors import InputError

    if path is None:
        return None
    document = read_document(path, "ceilings/1")
    try:
        return ceilings_from_json(document, source=str(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is a damaged ceilings document: {error}", hint="mansard measure -o FOLDER") from None


def _print(found: tuple[DeviceDiagnosis, ...], *, verbose: bool) -> None:
    from mansard.report.terminal import render

    width = max(60, min(160, shutil.get_terminal_size((80, 24)).columns))
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    encoding = sys.stdout.encoding or "utf-8"
    for one in found if verbose else found[:1]:
        click.echo(render(one.diagnosis, width=width, color=color, verbose=verbose, encoding=encoding), nl=False)
    if len(found) > 1 and not verbose:
        for other in found[1:]:
            click.echo(f"device {other.label}: {other.diagnosis.verdict.sentence}")
