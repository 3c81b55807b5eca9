"""`mansard plan scale`: T(N) from its parts or from measured points, and the N where it stops paying."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.plan.scale import ScaleModel

_PARTS = ("serial", "parallel", "parallel_share", "message", "link_rate", "alpha")


@click.command("scale", short_help="How far a job scales: serial part, efficiency, and the N where it stops paying.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--point", "points", multiple=True, metavar="N:T", help='Measured: devices and time, such as 8:"17 ms".')
@click.option(
    "--scaling", type=click.Choice(["strong", "weak"]), help="What was measured: the same work, or N times it."
)
@click.option("--serial", metavar="TIME", help="From parts: serial time of a step.")
@click.option("--parallel", metavar="TIME", help="From parts: time that N devices divide.")
@click.option("--parallel-share", type=float, metavar="P", help="From parts: the share that is divided, such as 0.95.")
@click.option("--message", metavar="SIZE", help="Buffer that is all-reduced in a step.")
@click.option("--link-rate", metavar="RATE", help="Link of one device, one way.")
@click.option("--alpha", metavar="TIME", help="Latency of one step of the ring.")
@click.option("--most", type=int, default=1024, show_default=True, help="Largest N of the table.")
@click.option("--at", "at", metavar="N,N", help="These N instead of the powers of two.")
@click.option("--efficiency", type=float, default=0.5, show_default=True, help="Name the last N above this.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII alone.")
@shared.as_json
def command(file: Path | None, **options: Any) -> int:
    """Fit measured points, or add up parts, and say how far more devices help.

    FILE is a CSV with the columns n and time_s, one row per measurement.

    \b
      mansard plan scale --scaling strong --point 1:100 --point 2:53 \\
        --point 4:29 --point 8:17
      mansard plan scale steps.csv --scaling weak
      mansard plan scale --parallel-share 0.95
      mansard plan scale --serial "20 ms" --parallel "4 s" --message "16 GB" \\
        --link-rate "50 GB/s" --alpha "10 us"
    """
    from mansard.core.document import dumps, to_jsonable
    from mansard.core.errors import UsageError
    from mansard.plan.scale_document import fit_document, model_document
    from mansard.plan.scale_fit import fit_scaling
    from mansard.plan.scale_points import parse_points, read_points

    found = [*(read_points(file) if file is not None else []), *parse_points(options["points"])]
    given = [name for name in _PARTS if options[name] is not None]
    at = _at(options["at"], options["most"])
    if found:
        if given:
            names = ", ".join("--" + g.replace("_", "-") for g in given)
            raise UsageError(f"points were measured, so the parts are fitted: leave {names} out")
        if options["scaling"] is None:
            raise UsageError(
                "whether the same work or N times the work was measured cannot be told from times",
                hint="add --scaling strong or --scaling weak",
            )
        document = fit_document(fit_scaling(found, options["scaling"]), at=at, efficiency_ratio=options["efficiency"])
    else:
        if options["scaling"] is not None:
            raise UsageError("--scaling says what was measured, and no point was given", hint="add --point 8:17")
        document = model_document(_model(options), at=at, efficiency_ratio=options["efficiency"],
                                  relative=options["parallel_share"] is not None)  # fmt: skip
    if options["as_json"]:
        click.echo(dumps(document), nl=False)
        return 0
    from mansard.report.scale_text import scale_text

    click.echo(scale_text(to_jsonable(document), ascii_only=options["ascii_only"]))
    return 0


def _at(text: str | None, most: int) -> list[int]:
    """The N of the table."""
    from mansard.core.errors import UsageError

    if text is not None:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdigit() and 0 < int(part) <= 10**9 for part in parts):
            raise UsageError(f"cannot read --at {text!r}", hint="numbers of devices, such as 8,24,96")
        return sorted({int(part) for part in parts})
    if not 1 <= most <= 10**9:
        raise UsageError(f"--most is {most}, expected a number of devices up to a billion")
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _model(options: Mapping[str, Any]) -> ScaleModel:
    """The parts that were given."""
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.plan.scale import ScaleModel

    def amount(name: str, dimension: str) -> float | None:
        return None if options[name] is None else parse_quantity(options[name], dimension)

    serial, parallel, share = amount("serial", "s"), amount("parallel", "s"), options["parallel_share"]
    if share is not None:
        if serial is not None or parallel is not None:
            raise UsageError("--parallel-share is instead of --serial and --parallel")
        if options["message"] is not None or options["alpha"] is not None or options["link_rate"] is not None:
            raise UsageError("messages take seconds: give --serial and --parallel beside them, not a share")
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"--parallel-share is {share}, expected a number from 0 to 1")
        serial, parallel = 1.0 - share, share
    if parallel is None:
        raise UsageError(
            "nothing to scale: no points and no parts",
            hint="add --point N:T with --scaling, or --serial and --parallel, or --parallel-share 0.95",
        )
    if serial is None:
        raise UsageError(
            "the serial time was not given", hint='add --serial "20 ms", or --serial "0 s" to leave it out'
        )
    return ScaleModel(
        serial_s=serial, parallel_s=parallel, message_bytes=amount("message", "bytes") or 0.0,
        link_bytes_per_s=amount("link_rate", "bytes_per_s"), alpha_s=amount("alpha", "s") or 0.0,
    )  # fmt: skip
