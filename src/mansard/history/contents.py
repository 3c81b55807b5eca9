"""Raw documents by the hash of their content: written before the row that names them, and never changed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mansard.core.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Contents(Protocol):
    """Where raw documents are."""

    def put(self, raw: bytes, connection: Connection) -> str:
        """Keep a document and return its SHA-256; it is on the disk before the transaction of `connection` commits."""

    def get(self, sha256: str, connection: Connection) -> bytes:
        """Return a document, checked against its hash."""


def _checked(raw: bytes, sha256: str, where: str) -> bytes:
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise InputError(f"the document {sha256[:12]} in {where} was changed", hint="restore it, or remove its record")
    return raw


class FolderContents:
    """One file per document in a folder beside the database.

    Args:
        folder: The folder; made when needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sha256: str) -> Path:
        """Return the file of a document."""
        return self.folder / sha256[:2] / f"{sha256[2:]}.json"

    def put(self, raw: bytes, connection: Connection) -> str:  # noqa: ARG002
        """Write the file at once: complete and flushed to the disk under another name, then renamed, then the folder flushed."""
        sha256 = hashlib.sha256(raw).hexdigest()
        path = self.path(sha256)
        if path.exists() and path.read_bytes() == raw:
            return sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fchmod(stream.fileno(), 0o644)
                os.fsync(stream.fileno())
            os.replace(temporary, path)
            for folder in (path.parent, self.folder, self.folder.parent):
                _sync_folder(folder)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        return sha256

    def get(self, sha256: str, connection: Connection) -> bytes:  # noqa: ARG002
        """Return a document, checked against its hash."""
        path = self.path(sha256)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"the document {sha256[:12]} cannot be read from {self.folder}: {error.strerror or error}"
            ) from None
        return _checked(raw, sha256, str(self.folder))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class TableContents:
    """One row per document in the database itself: a shared database has no folder that all its users see."""

    def put(self, raw: bytes, connection: Connection) -> str:
        """Insert the document in the transaction of its record."""
        from sqlalchemy.dialects.postgresql import insert

        from mansard.history.tables import CONTENT

        sha256 = hashlib.sha256(raw).hexdigest()
        row = {"sha256": sha256, "size_bytes": len(raw), "zlib": zlib.compress(raw, 6)}
        connection.execute(insert(CONTENT).values(row).on_conflict_do_nothing())
        return sha256

    def get(self, sha256: str, connection: Connection) -> bytes:
        """Return a document, checked against its hash."""
        from sqlalchemy import select

        from mansard.history.tables import CONTENT

        packed = connection.execute(select(CONTENT.c.zlib).where(CONTENT.c.sha256 == sha256)).scalar()
        if packed is None:
            raise InputError(f"the document {sha256[:12]} is not in the database")
        return _checked(zlib.decompress(packed), sha256, "the database")
