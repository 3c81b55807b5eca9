"""Files that people asked for: refused before the work, written whole or not at all.

A reader sees the old content or the new, never a part; what was there before stays where the new cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from mansard.core.errors import InputError, UsageError


def may_write(path: Path | None, *, force: bool, sources: Iterable[Path] = (), option: str = "-o") -> None:
    """Refuse an output that could not be written, before any work is done for it.

    Args:
        path: The file; None asks for none.
        force: Whether a file that exists may be replaced.
        sources: Files that are read for it.
        option: The option that named it.

    Raises:
        UsageError: it is a directory, its folder is missing, it exists without `force`, or it is an input itself.
        InputError: the rights to write there are missing.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(
            f"{option} {path} is a directory, expected a file", hint=f"name a file in it: {option} {path / 'FILE'}"
        )
    if path.exists() and any(s.exists() and path.samefile(s) for s in sources):
        raise UsageError(f"the output {path} is an input itself", hint=f"choose another {option}")
    if _is_special(path):
        return
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint=f"add --force to replace it, or choose another {option}", code="exists")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {folder}", hint="make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot write {path}: permission denied in {folder}",
            hint=f"choose another {option}, or give yourself rights",
        )


def write_whole(path: Path, content: str | bytes | Iterable[bytes], *, force: bool = True) -> None:
    """Write a file at once: complete and flushed under another name in its folder, then renamed.

    A link keeps pointing where it does, a file keeps its rights, and a device or a pipe is written as it is.

    Args:
        path: The file.
        content: What it shall hold; text is UTF-8, pieces are written as they come and are never together in memory.
        force: Whether a file that exists by now is replaced.

    Raises:
        InputError: it cannot be written; what was there is as it was.
    """
    raw = content.encode("utf-8", errors="backslashreplace") if isinstance(content, str) else content
    pieces = [raw] if isinstance(raw, bytes) else raw
    try:
        if _is_special(path):
            with path.open("wb") as stream:
                stream.writelines(pieces)
            return
        target = Path(os.path.realpath(path))
        part = _part(target, pieces)
        try:
            _rename(part, target, force=force)
        except FileExistsError:
            kept = target.with_name(f"{target.stem}-{secrets.token_hex(4)}{target.suffix}")
            os.replace(part, kept)
            raise InputError(
                f"{path} was written by another process meanwhile and is left as it is",
                hint=f"this result is in {kept}",
            ) from None
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _flush_folder(target.parent)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}", hint="nothing was changed there; choose another place"
        ) from None


def replace_folder(source: Path, target: Path) -> None:
    """Copy a folder to where another may be; the other goes only when the copy is whole.

    Raises:
        InputError: it cannot be copied; what was there is as it was.
    """
    place = Path(os.path.realpath(target))
    token = secrets.token_hex(6)
    copy, old = (place.with_name(f".mansard-{token}.{word}") for word in ("part", "old"))
    try:
        try:
            shutil.copytree(source, copy)
            if place.exists():
                place.rename(old)
            try:
                copy.rename(place)
            except BaseException:
                if old.exists():
                    old.rename(place)
                raise
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:  # copytree gathers what failed in a list, without a message of its own
        first = _reason(error.args[0][0][2]) if isinstance(error, shutil.Error) else error.strerror or error
        raise InputError(
            f"cannot write {target}: {first}", hint="nothing was changed there; choose another place"
        ) from None


def _reason(text: str) -> str:
    """Return the reason of `[Errno 28] No space left on device: 'a' -> 'b'`."""
    return re.sub(r"^\[Errno \d+\] ", "", text).partition(": '")[0]


def _is_special(path: Path) -> bool:
    """Return whether this is a device, a pipe or a socket, which holds nothing that could be lost."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _part(target: Path, pieces: Iterable[bytes]) -> Path:
    """Write the content beside its place, with the rights of what it replaces, and return that file."""
    if target.is_dir():
        raise IsADirectoryError(21, "it is a directory")
    part = target.with_name(f".mansard-{secrets.token_hex(6)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(stream.fileno(), stat.S_IMODE(target.stat().st_mode))
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _rename(part: Path, target: Path, *, force: bool) -> None:
    """Give the file its name; without `force` only where nothing has it."""
    if not force:
        try:
            os.link(part, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if target.exists():
                raise FileExistsError(17, "it exists") from None
        else:
            part.unlink()
            return
    os.replace(part, target)


def _flush_folder(folder: Path) -> None:
    """Make a new name last; where a file system cannot, the name is there all the same."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
