"""Stores on SQLite and on a PostgreSQL of its own, in a folder that is thrown away."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name.split(".")[0]))
    return next((f for f in reversed(folders) if (f / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server that lives as long as the tests: on a socket in a temporary folder, no port, no password."""
    given = os.environ.get("MANSARD_TEST_POSTGRESQL")
    if given:
        yield given
        return
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: initdb is neither on the path nor in /usr/lib/postgresql")
    # The path of a socket is limited to about 100 characters, so the folder of pytest is too deep.
    folder = Path(tempfile.mkdtemp(prefix="mpg"))
    user: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        os.chown(folder, 65534, 65534)
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C"}

    def call(*command: str) -> None:
        done = subprocess.run(
            [*user, *command], env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            pytest.skip(f"PostgreSQL does not start here: {(done.stderr or done.stdout).strip()[-300:]}")

    data = folder / "data"
    try:
        call(str(binaries / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
        call(str(binaries / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://tester@/postgres?host={folder}"
        finally:
            subprocess.run(
                [*user, str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop"],
                env=environment, cwd=folder, capture_output=True, timeout=60, check=False,
            )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty store, once on each database."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    import sqlalchemy

    url = request.getfixturevalue("postgresql")
    engine = sqlalchemy.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    engine.dispose()
    return str(url)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's history."""
    monkeypatch.setenv("MANSARD_STORE", str(tmp_path / "default.db"))
