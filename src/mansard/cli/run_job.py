"""One rank among several: `mansard run` behind a launcher names its files by the rank and leaves the exit code to the program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mansard.core.errors import UsageError

if TYPE_CHECKING:
    from mansard.diagnose.records import Diagnosis
    from mansard.measure.launch import Launch

RANK = "{rank}"


def launch_of(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the place of this process in a job of more than one rank; None where no launcher tells.

    Nobody is called here, so that a launcher which does not say where rank 0 is says enough.

    Args:
        environ: The environment; None for that of this process.
    """
    from mansard.measure.launch import detect_launch

    try:
        return detect_launch(coordinator="localhost:1", environ=environ)
    except UsageError:  # no launcher, or one whose variables do not fit together: a run needs neither
        return None


def of_rank(path: Path | None, launch: Launch | None) -> Path | None:
    """Return the file of this rank: `{rank}` replaced, else `-rankN` before the suffix in a job of several ranks.

    >>> of_rank(Path("out/r-{rank}.json"), None)
    PosixPath('out/r-0.json')
    """
    if path is None:
        return None
    rank = 0 if launch is None else launch.rank
    if RANK in str(path):
        return Path(str(path).replace(RANK, str(rank)))
    if launch is None or (path.exists() and not (path.is_file() or path.is_dir())):  # a device or a pipe has its name
        return path
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}")


def with_rank(diagnosis: Diagnosis, launch: Launch | None) -> Diagnosis:
    """Return the diagnosis with the rank, the number of ranks and the launcher in its program and its receipt."""
    if launch is None:
        return diagnosis
    job = {"rank": launch.rank, "world": launch.world, "launcher": launch.launcher, "host": os.uname().nodename}
    return replace(
        diagnosis,
        program=f"rank {launch.rank} of {launch.world}: {diagnosis.program}",
        receipt={**diagnosis.receipt, "job": job},
    )
