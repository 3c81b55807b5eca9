"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Everything in these rooms measures the machine it runs on, or starts programs that do.
LIVE_ROOMS = {"measure", "network", "programs", "cli"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Repeat a failed live test up to twice: a shared machine may stop for minutes in the middle of one.

    A live test asserts only what holds on any state of the machine; one that is wrong fails three times. The summary names
    what was repeated.
    """
    root = Path(__file__).parent
    for item in items:
        inside = item.path.relative_to(root).parts if item.path.is_relative_to(root) else ()
        if inside and inside[0] in LIVE_ROOMS:
            item.add_marker(pytest.mark.live)
        if item.get_closest_marker("live") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))


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


@pytest.fixture(autouse=True, scope="module")
def narrow_jax() -> Iterator[None]:
    """What a measurement of f64 switches on for its process does not reach the tests of another module."""
    before = bool(sys.modules["jax"].config.jax_enable_x64) if "jax" in sys.modules else False
    yield
    jax = sys.modules.get("jax")
    if jax is not None and bool(jax.config.jax_enable_x64) != before:
        jax.config.update("jax_enable_x64", before)
