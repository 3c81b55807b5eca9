"""What reading a profile and answering from it takes, held against `--memory-limit`."""

from __future__ import annotations

from mansard.core.errors import InputError

#: The program itself and the pieces of text it works on; measured on files of 1 KB [B].
PROGRAM_BYTES = 100_000_000


def room(limit_bytes: int) -> float:
    """Return what of a limit the events may take [B]; of a limit near the size of the program itself, half.

    >>> room(1_000_000_000), room(120_000_000)
    (900000000.0, 60000000.0)
    """
    return float(limit_bytes - min(PROGRAM_BYTES, limit_bytes / 2))


def refuse(name: str, events_bytes: float, limit_bytes: int, hint: str, *, read: float | None = None) -> InputError:
    """Return the error for a profile that needs more than the limit.

    Args:
        name: Of the file.
        events_bytes: What its events take [B].
        limit_bytes: The limit [B].
        hint: What to do.
        read: Share of the file that was read to know it; None where the file states it.
    """
    need = (PROGRAM_BYTES + events_bytes) / 1e9
    known = "" if read is None else f", by the first {max(read, 0.01):.0%} of it"
    return InputError(
        f"reading {name} needs about {need:.2f} GB{known}, more than the memory limit of {limit_bytes / 1e9:.2f} GB",
        hint=hint,
        code="memory_limit",
    )
