"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real profiles, configuration files and cases; tests that need it skip where it is absent."""
    named = os.environ.get("MANSARD_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared data: set MANSARD_SHARED, looked in {folder}")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, unless it asks for a warm one through MANSARD_TEST_CACHE."""
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
