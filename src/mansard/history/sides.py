"""The other side of `measure --against`: another environment, or another commit, as a command that starts its worker."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mansard.core.errors import InputError, UsageError

#: Versions that are asked of an environment: what a difference of it is usually about.
PACKAGES = ("torch", "jax", "jaxlib", "numpy", "numba", "mansard")
_WORKER = "mansard.measure.points.worker"
_ASK = (
    "import importlib.metadata as m, json, platform\n"
    "found = {'python': platform.python_version()}\n"
    "for n in %r:\n"
    "    try: found[n] = m.version(n)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))"
)
_GIT_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One side of an interleaved comparison.

    Args:
        name: What it is called in reports.
        command: What starts its worker.
        environment: What is known of it: versions, and the commit.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def this_version() -> Version:
    """Return the side of the program that runs."""
    command = (sys.executable, "-m", _WORKER)
    return Version(name="here", command=command, environment=_versions(sys.executable))


@contextlib.contextmanager
def version_at(text: str, *, folder: Path | None = None) -> Iterator[Version]:
    """Give a side: the python of another environment, its folder, a checkout, or a commit of the checkout in `folder`.

    Args:
        text: Path of a python or of a virtual environment (its packages, this program), path of a checkout of this program, or
            anything that git resolves to a commit.
        folder: Where git looks for the commit; None takes the current folder.

    A commit is unpacked into a temporary folder, which is removed at the end; nothing of the checkout is touched.

    Raises:
        UsageError: neither a path of that kind nor a commit, or its source holds no mansard.
        InputError: git or the other python fails.
    """
    path = Path(text).expanduser()
    python = _python_at(path)
    if python is not None:
        yield Version(name=text, command=(str(python), "-m", _WORKER), environment=_versions(str(python)))
        return
    if path.is_dir():
        yield _from_source(text, path, {})
        return
    here = folder or Path.cwd()
    wrong = f"{text!r} is neither a python, a virtual environment, nor a commit of the checkout in {here}"
    if text.startswith("-"):
        raise UsageError(wrong)
    commit = _git(here, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}", wrong=wrong).decode().strip()
    where = Path(_git(here, "rev-parse", "--show-toplevel", wrong=f"{here} has no files").decode().strip())
    with tempfile.TemporaryDirectory(prefix="mansard-against-") as outer:
        tree = Path(outer)
        _unpack(where, commit, tree)
        yield _from_source(text, tree, {"commit": commit})


def _unpack(where: Path, commit: str, tree: Path) -> None:
    """Write the files of a commit into a folder; the checkout itself is left as it is."""
    packed = _git(where, "archive", "--format=tar", commit, wrong=f"{commit[:12]} cannot be read")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")


def _python_at(path: Path) -> Path | None:
    """Return the python that a path means: itself, or that of a virtual environment."""
    if path.is_file():
        return path.absolute()
    found = path / "bin" / "python"
    return found.absolute() if found.is_file() else None


def _from_source(name: str, tree: Path, environment: Mapping[str, str]) -> Version:
    """Return the side of a source tree that is run by this python, before whatever is installed."""
    source = next((p for p in (tree / "src", tree) if (p / "mansard" / "__init__.py").is_file()), None)
    if source is None:
        raise UsageError(
            f"{name!r} holds no mansard package, expected src/mansard or mansard in it",
            hint="programs of your own: mansard compare --run-a COMMAND --run-b COMMAND",
        )
    start = f"import sys, runpy; sys.path.insert(0, {str(source.absolute())!r}); runpy.run_module({_WORKER!r}, run_name='__main__')"
    return Version(
        name=name, command=(sys.executable, "-c", start), environment={**_versions(sys.executable), **environment}
    )


def _versions(python: str) -> dict[str, str]:
    """Return the versions that another python tells.

    Raises:
        InputError: it cannot be started.
    """
    try:
        done = subprocess.run(
            [python, "-c", _ASK % (PACKAGES,)], capture_output=True, text=True, timeout=60, check=True
        )
        return {str(k): str(v) for k, v in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{python} does not answer: {lines[-1]}", hint="name a python of version 3.11 or newer with numpy"
        ) from None


def _git(where: Path, *words: str, wrong: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, timeout=_GIT_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"git cannot be run: {error}", hint="install git, or name an environment") from None
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise UsageError(wrong + (f": {last}" if last else ""), hint="git rev-parse --verify COMMIT in the checkout")
    return done.stdout
