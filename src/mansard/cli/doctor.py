"""`mansard doctor`: what this machine is, and what can and cannot be measured on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mansard.cli import options as shared

#: Long enough for the 10 ms ticks of /proc/stat to say something.
WINDOW_S = 1.0
#: Load of others above which a measurement is only a lower bound.
QUIET_RATIO = 0.08


@click.command("doctor", short_help="What this machine is, and what can and cannot be measured on it.")
@click.option("--hardware", "explicit", help="What it is: short name, exact product name, or a hardware file; wins.")
@click.option(
    "--hardware-dir", "folders", multiple=True, type=click.Path(path_type=Path),
    help="A hardware file or a folder of them; may be repeated.",
)  # fmt: skip
@click.option("--window", type=click.FloatRange(0.1, 60.0), default=WINDOW_S, show_default=True,
              help="Seconds to watch the load of others.")  # fmt: skip
@shared.as_json
def command(explicit: str | None, folders: tuple[Path, ...], window: float, as_json: bool) -> int:
    """Say which devices, clocks, caches, backends and launchers there are, how noisy the machine is, and what follows.

    Nothing is started and nothing is changed; it takes about a second, to watch the load.

    \b
      mansard doctor
      mansard doctor --hardware h100-sxm
    """
    from mansard.cli.outputs import stdout_width
    from mansard.core.document import dumps, header
    from mansard.hardware.detect import detect
    from mansard.hardware.surroundings import abilities, surroundings
    from mansard.report.doctor_text import doctor_lines

    found = detect(explicit=explicit, directories=folders)
    facts = surroundings()
    able = abilities(facts)
    noise, kept = _noise(window), _kept()
    if as_json:
        document = {
            "devices": [d.to_json() for d in found.devices],
            "named_by_user": found.explicit,
            "not_asked": [n.to_json() for n in found.notes],
            "noise": noise,
            "kept_ceilings": kept,
            "abilities": [a.to_json() for a in able],
        }
        click.echo(dumps({**header("doctor/1", facts), **document}), nl=False)
    else:
        for line in doctor_lines(found, facts, able, noise, kept, width=stdout_width()):
            click.echo(line)
    return 0


def _noise(window: float) -> dict[str, Any]:
    """Return how much of the machine others use, over `window` seconds."""
    import time

    from mansard.measure.load import LoadWindow

    try:
        with LoadWindow() as load:
            time.sleep(window)
    except OSError as error:
        return {"foreign_load_ratio": None, "steal_ratio": None, "quiet": None, "why": f"cannot read the load: {error}"}
    quiet = load.foreign_ratio < QUIET_RATIO
    return {
        "foreign_load_ratio": load.foreign_ratio,
        "steal_ratio": load.steal_ratio,
        "quiet": quiet,
        "window_s": window,
    }


def _kept() -> str:
    """Return whether ceilings of this machine were measured before."""
    from mansard.measure.store import load_cached, nearest_kept

    kept = load_cached()
    if kept is None:
        near = nearest_kept()
        why = f"; those on record differ: {near[1]}" if near else ""
        return f"none measured yet for this machine and state: mansard measure{why}"
    return f"{len(kept.ceilings)} measured before and kept"
