"""Which format a trace is written in: the name of the file says it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

from mansard.report.exports.tracks import Drawing

#: Endings of Perfetto's own format; every other name holds Chrome JSON.
NATIVE = (".pftrace", ".perfetto-trace")
_GZIP = 16 + zlib.MAX_WBITS


def writer_of(name: str) -> Callable[[Drawing], Iterator[bytes]]:
    """Return what writes a drawing into a file of this name, in pieces.

    Args:
        name: Name of the file; empty for stdout. A last `.gz` compresses.

    Raises:
        UsageError: the package that the format needs is missing.
    """
    lower = name.lower()
    plain = lower.removesuffix(".gz")
    write: Callable[[Drawing], Iterator[bytes]]
    if plain.endswith(NATIVE):
        from mansard.report.exports.perfetto import writer

        write = writer()
    else:
        from mansard.report.exports.chrome import to_chrome

        write = to_chrome
    return write if lower == plain else lambda drawing: compressed(write(drawing))


def compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces as gzip, without a time or a name in it: the same trace gives the same file."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        packed = packer.compress(piece)
        if packed:
            yield packed
    yield packer.flush()
