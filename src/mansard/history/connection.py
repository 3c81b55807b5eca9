"""Opening the database of a store: where it is, how it is made durable, and its schema brought up to date."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core.errors import InputError, UsageError, install

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

VARIABLE = "MANSARD_STORE"
NO_STORE = "no_store"
_SQLITE = b"SQLite format 3\0"  # what such a file begins with; source: sqlite.org/fileformat.html
#: Where such a file says that its writers keep a log beside it, so that readers never stop them, and how.
_WAL_AT, _WAL = slice(18, 20), b"\2\2"
_WAIT_S = 60.0
#: Any number: the lock of PostgreSQL under which one process migrates.
_LOCK = 0x6D616E73
_WRITES = "mansard_writes"
_ROOM = "free space, and do it again: of what failed nothing was stored, and what was acknowledged before is kept"
_LEAST_ROOM_BYTES = (
    64 << 10
)  # the file that readers and writers of SQLite share has 32 KiB; source: sqlite.org/walformat.html


def store_url(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the URL of the store: given, else `MANSARD_STORE`, else SQLite in the user's data folder.

    Args:
        given: A URL, or the path of a SQLite file.
        environ: The environment; None takes that of the process.

    Raises:
        UsageError: another database than SQLite and PostgreSQL.

    >>> store_url("postgresql://db/bench"), store_url("team.db").startswith("sqlite:////")
    ('postgresql+psycopg://db/bench', True)
    """
    env = os.environ if environ is None else environ
    text = given or env.get(VARIABLE, "")
    if not text:
        import platformdirs

        text = str(Path(platformdirs.user_data_dir("mansard")) / "history.db")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return f"sqlite:///{Path(text).expanduser().absolute()}"
    if scheme == "sqlite":
        return f"sqlite:///{Path(rest.removeprefix('/')).expanduser().absolute()}"
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return f"postgresql+psycopg://{rest}"
    raise UsageError(f"a store cannot be on {scheme!r}", hint="a file for SQLite, or postgresql://user@host/database")


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite store, else None."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None


def connect(url: str, *, make: bool = True) -> Engine:
    """Return the engine of a store whose schema is up to date.

    Args:
        url: What `store_url` returned.
        make: Whether a store is made where there is none.

    Raises:
        InputError: SQLAlchemy or a driver is missing, the database cannot be reached or written, it is newer than this program, it is
            that of another program, or there is no store (code `no_store`).
    """
    try:
        import sqlalchemy
    except ImportError:
        raise InputError("the store needs SQLAlchemy and Alembic", hint=install("history")) from None
    path = sqlite_path(url)
    with translated(url):
        if path is None:
            engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
            with engine.begin() as connection:
                if _revision(connection, url, make=make) != _head():
                    connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                    _migrate(connection, url)
            return engine
        if not make and (not path.exists() or (path.is_file() and path.stat().st_size == 0)):
            raise _none_at(url)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {path.parent}: {error.strerror or error}", hint=f"set {VARIABLE}") from None
        in_log_mode = _must_be_a_store(path)
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": _WAIT_S})
        _durable(engine)
        if in_log_mode:  # only then a look at it cannot stop another process that makes it
            with engine.connect() as connection:
                if _revision(connection, url, make=make) == _head():
                    return engine
        with _file_lock(path.with_name(path.name + ".lock")):
            with engine.connect() as connection:
                _revision(connection, url, make=make)  # what is no store is not touched
                mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
            if mode != "wal":
                raw = engine.raw_connection()
                raw.cursor().execute("PRAGMA journal_mode=WAL")
                raw.close()
            with writing(engine) as connection:
                if _revision(connection, url, make=make) != _head():
                    _migrate(connection, url)
    return engine


def _none_at(url: str) -> InputError:
    path = sqlite_path(url)
    return InputError(
        f"there is no store {f'in {shown(url)}' if path is None else f'at {path}'}: nothing was added yet",
        hint=f"mansard baseline add NAME FILE makes it; --store or {VARIABLE} names another", code=NO_STORE,
    )  # fmt: skip


def _must_be_a_store(path: Path) -> bool:
    """Refuse what is no SQLite file before anything is made beside it, and return whether it is one in the mode of a store.

    Raises:
        InputError: a folder, or a file of another kind.
    """
    if path.exists() and not path.is_file():
        what, hint = ("a folder", str(path / "history.db")) if path.is_dir() else ("no file", "name a new file")
        raise InputError(f"{path} is {what}, expected the file of a store", hint=hint)
    try:
        with path.open("rb") as file:
            start = file.read(100)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if start and not start.startswith(_SQLITE):
        raise InputError(f"{path} is no store: it is not a SQLite file", hint="name a new file, or the one of a store")
    return start[_WAL_AT] == _WAL


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that writes: when the block ends without an error, it is on the disk."""
    with engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
        yield connection


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn errors of the database into errors with a next step."""
    import sqlite3

    from sqlalchemy.exc import DBAPIError, NoSuchModuleError

    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        said = (cause.strerror if isinstance(cause, OSError) else "") or str(cause).strip() or str(error)
        full = _no_room(cause, said, sqlite_path(url))
        hint = _ROOM if full else _rights(sqlite_path(url)) or f"check --store or {VARIABLE}"
        raise InputError(f"the store {shown(url)} failed: {said.splitlines()[0]}", hint=hint) from None
    except UnicodeEncodeError as error:
        raise InputError(f"the store keeps text, and {error.object[:60]!r} is none", hint="use Unicode") from None
    except (NoSuchModuleError, ImportError) as error:
        raise InputError(f"no driver for {shown(url)}: {error}", hint=install("postgresql")) from None


def _rights(path: Path | None) -> str:
    """Return what to do where this user may not write the file of a store or beside it; empty where they may."""
    if path is None or not path.parent.is_dir():
        return ""
    if os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK)):
        return ""
    return f"SQLite writes beside a store even to read it: get rights to {path.parent}, or copy the store"


def _no_room(cause: object, said: str, path: Path | None) -> bool:
    """Return whether an error is that of a full disk.

    Where SQLite cannot make the files beside its own, in which readers and writers meet, it says "disk I/O error" and no more.
    """
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if "full" in said or "No space left" in said:
        return True
    return "I/O error" in said and path is not None and shutil.disk_usage(path.parent).free < _LEAST_ROOM_BYTES


def shown(url: str) -> str:
    """Return a URL without its password.

    >>> shown("postgresql+psycopg://me:secret@db/bench")
    'postgresql+psycopg://me:***@db/bench'
    """
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{place}"


def _durable(engine: Engine) -> None:
    """Make every connection of SQLite flush at each commit, and let writers wait for each other."""
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = (
            None  # the driver's own BEGIN comes too late: a reader that then writes would fail, not wait
        )
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={int(_WAIT_S * 1000)}"):
            raw.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        kind = "IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "DEFERRED"
        connection.exec_driver_sql(f"BEGIN {kind}")


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Let one process at a time make the database; the lock dies with its process."""
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _head() -> str:
    from mansard.history.tables import HEAD

    return HEAD


def _revision(connection: Connection, url: str, *, make: bool) -> str | None:
    """Return the revision of the schema; None where there is none yet, which only who makes a store may find.

    Raises:
        InputError: no store, and none is to be made, or a SQLite file that another program made: it is left as it is.
    """
    from sqlalchemy import inspect

    tables = set(inspect(connection).get_table_names())
    if "alembic_version" in tables:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        if found is not None:
            return str(found)
    if sqlite_path(url) is not None and tables - {"alembic_version"}:
        raise InputError(
            f"{sqlite_path(url)} is no store: it holds tables of another program ({', '.join(sorted(tables)[:3])})",
            hint="name a new file, or the one of a store",
        )
    if not make:
        raise _none_at(url)
    return None


def _migrate(connection: Connection, url: str) -> None:
    """Bring the schema to the newest revision, in the transaction of `connection`."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise InputError(f"the store {shown(url)} has another schema: {error}", hint="update mansard") from None
