"""The `ceilings.json` document, and the cache of measured ceilings per machine fingerprint."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

from mansard.core.ceilings import Ceilings, ceilings_from_json
from mansard.core.document import dumps, header, read_document, to_jsonable
from mansard.core.errors import InputError
from mansard.core.outputs import write_whole
from mansard.measure.machine import FINGERPRINT_KEYS, choose_cpus, describe, fingerprint

SCHEMA = "ceilings/1"
BUSY_RATIO = 0.08  # foreign load above which a figure is only a lower bound
DIRECTORY_VARIABLE = "MANSARD_CACHE_DIR"
MOST_COMPARED = 16  # kept files that are looked at to say why none of them is used
_WORDS = {
    "cpus_allowed": "CPUs allowed",
    "cpus_used": "CPUs used",
    "cgroup_cpus": "CPUs of the control group",
    "memory_bytes": "memory",
}


def document(ceilings: Ceilings) -> dict[str, Any]:
    """Return the `ceilings.json` document; `core.ceilings.ceilings_from_json` gives the same `Ceilings` back."""
    body = header(SCHEMA, ceilings.machine)
    body["ceilings"] = [c.to_json() for c in ceilings.ceilings]
    body["levels"] = [
        {"level": v.level, "capacity_bytes": v.capacity_bytes, "instances": v.instances} for v in ceilings.levels
    ]
    body["fits"] = list(ceilings.fits)
    body["curves"] = list(ceilings.curves)
    plain: dict[str, Any] = to_jsonable(body)
    return plain


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return where measured ceilings are kept: `MANSARD_CACHE_DIR`, else the user's cache folder."""
    env = os.environ if environ is None else environ
    chosen = env.get(DIRECTORY_VARIABLE, "")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("mansard"))


def cache_path(environment: Mapping[str, Any], directory: Path | None = None) -> Path:
    """Return the cache file of a machine in a state; the thread count is part of its name."""
    folder = cache_directory() if directory is None else directory
    return folder / f"ceilings-{fingerprint(environment)}-{environment['threads']}t.json"


def write_text(path: Path, text: str) -> None:
    """Write a file at once: readers see the old content or the new, never a part.

    Raises:
        InputError: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except (OSError, InputError) as error:
        reason = error.message if isinstance(error, InputError) else f"cannot write {path}: {error.strerror or error}"
        raise InputError(
            reason,
            hint=f"give a folder of yours: -o for results, {DIRECTORY_VARIABLE} for what is kept",
        ) from None


@contextmanager
def one_at_a_time(directory: Path | None = None) -> Iterator[None]:
    """Let one process of this cache measure while the others wait; the lock dies with its process.

    The processes of one job start together, and each that measured beside the others would keep its share of the machine as
    the ceiling. Where the folder cannot be written or locked nothing can be kept either, and nobody waits.

    Args:
        directory: The cache folder, as in `save`.
    """
    import fcntl

    folder = cache_directory() if directory is None else directory
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / "measuring.lock").open("a")
    except OSError:
        yield
        return
    with stream:
        with suppress(OSError):  # a network file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def save(ceilings: Ceilings, *, directory: Path | None = None) -> Path:
    """Keep measured ceilings for later runs on this machine and return the file.

    Args:
        ceilings: What `measure` returned.
        directory: The cache folder; None takes `MANSARD_CACHE_DIR` or the user's cache folder.
    """
    path = cache_path(ceilings.machine, directory)
    write_text(path, dumps(document(ceilings)))
    return path


def foreign_load(ceilings: Ceilings) -> float:
    """Return the highest foreign load of any group while these ceilings were measured [ratio]."""
    return max((float(x) for x in ceilings.machine.get("foreign_load", {}).values()), default=0.0)


def worth_keeping(new: Ceilings, old: Ceilings | None) -> bool:
    """Return whether new ceilings should take the place of the kept ones.

    Figures taken on a busy machine are lower bounds; they never replace quieter ones.
    """
    return old is None or foreign_load(new) <= max(BUSY_RATIO, foreign_load(old))


def load_cached(*, threads: int | None = None, directory: Path | None = None) -> Ceilings | None:
    """Return the kept ceilings of this machine as it is now, or None.

    A file of another processor, affinity mask, kernel, framework version or tuning variable is never used, and
    neither is one that cannot be read.

    Args:
        threads: Threads of the team; None takes all the affinity mask and the quota allow.
        directory: The cache folder, as in `save`.
    """
    now = describe(choose_cpus(threads))
    path = cache_path(now, directory)
    if not path.exists():
        return None
    try:
        body = read_document(path, SCHEMA)
        if fingerprint(body["environment"]) != fingerprint(now):
            return None
        return ceilings_from_json(body)
    except (InputError, KeyError, TypeError, ValueError):
        return None


def nearest_kept(*, threads: int | None = None, directory: Path | None = None) -> tuple[Path, str] | None:
    """Return the kept ceilings of this processor that differ least from the machine as it is now, and in what they do.

    Args:
        threads: As in `load_cached`.
        directory: The cache folder, as in `save`.
    """
    now = describe(choose_cpus(threads))
    folder = cache_directory() if directory is None else directory
    best: tuple[int, Path, str] | None = None
    for path in sorted(folder.glob(f"ceilings-*-{now['threads']}t.json"), key=_age, reverse=True)[:MOST_COMPARED]:
        try:
            then = read_document(path, SCHEMA)["environment"]
            if any(then[key] != now[key] for key in ("cpu_model", "architecture")):
                continue
            found = differences(now, then)
        except (InputError, KeyError, TypeError, AttributeError):
            continue
        if found and (best is None or len(found) < best[0]):
            best = (len(found), path, "; ".join(found))
    return None if best is None else best[1:]


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return in words what a kept measurement depends on and has otherwise, environment variables first.

    Args:
        here: The machine as it is, as `describe` gives it.
        there: As it was.

    >>> differences({"tuning_variables": {"OMP_NUM_THREADS": "1"}, "kernel": "6.1"}, {"tuning_variables": {}, "kernel": "6.1"})
    ['OMP_NUM_THREADS is 1 here and not set there']
    """
    found = []
    for key, verb in (("tuning_variables", "not set"), ("versions", "not installed")):
        mine, theirs = here.get(key) or {}, there.get(key) or {}
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                a, b = (str(x.get(name, verb)) for x in (mine, theirs))
                found.append(f"{name} is {_short(a)} here and {_short(b)} there")
    for key in FINGERPRINT_KEYS:
        mine, theirs = to_jsonable(here.get(key)), there.get(key)
        if key not in ("tuning_variables", "versions") and mine != theirs:
            name = _WORDS.get(key, key.replace("_", " "))
            found.append(f"{name}: {_short(str(mine))} here and {_short(str(theirs))} there")
    return found


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
