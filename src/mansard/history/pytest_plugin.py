"""The pytest plugin: the fixture `mansard`. It is loaded by every test run of an environment, so it imports nothing until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mansard.history.testing import Gate


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture."""
    group = parser.getgroup("mansard", "performance gates")
    group.addoption(
        "--mansard-result", metavar="FILE", default=None, help="Result that the fixture `mansard` speaks about."
    )
    group.addoption(
        "--mansard-baseline", metavar="NAME", default=None, help="Baseline of the store that it compares with."
    )
    group.addoption("--mansard-store", metavar="URL", default=None, help="The store; MANSARD_STORE by default.")


@pytest.fixture
def mansard(request: pytest.FixtureRequest) -> Gate:
    """Performance assertions: `assert_share`, `assert_ratio`, `assert_no_regression`."""
    from mansard.history.testing import Gate

    config = request.config
    return Gate(
        result=config.getoption("--mansard-result"),
        baseline=config.getoption("--mansard-baseline"),
        store=config.getoption("--mansard-store"),
    )
