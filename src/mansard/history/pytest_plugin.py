"""The pytest plugin: the fixture `mansard`. It is loaded by every test run of an environment, so it imports nothing until it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mansard.history.testing import Gate

_GATE: pytest.StashKey[Gate] = pytest.StashKey()


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
    group.addoption(
        "--mansard-save", metavar="FILE", default=None, help="Write the samples of all assertions, for `mansard baseline add NAME FILE`."
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a file that could not be written before a test is run for it."""
    if config.getoption("--mansard-save") is None:
        return
    from mansard.core.errors import MansardError
    from mansard.core.outputs import may_write

    try:
        may_write(_place(config), force=True, option="--mansard-save")
    except MansardError as error:
        raise pytest.UsageError(f"{error.message}; {error.hint}") from None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the samples that the tests took, whatever came of them."""
    gate = session.config.stash.get(_GATE, None)
    if session.config.getoption("--mansard-save") is None or gate is None or not gate.taken:
        return
    import json

    from mansard.core.outputs import write_whole

    write_whole(_place(session.config), json.dumps(gate.document(), indent=1) + "\n", force=True)


def _place(config: pytest.Config) -> Path:
    """Return the file of the samples; each worker of pytest-xdist has one of its own."""
    path, worker = Path(config.getoption("--mansard-save")), getattr(config, "workerinput", {}).get("workerid", "")
    return path.with_name(f"{path.stem}-{worker}{path.suffix}") if worker else path


@pytest.fixture
def mansard(request: pytest.FixtureRequest) -> Gate:
    """Performance assertions: `assert_share`, `assert_ratio`, `assert_no_regression`."""
    from mansard.history.testing import Gate

    config = request.config
    if _GATE not in config.stash:
        config.stash[_GATE] = Gate(
            result=config.getoption("--mansard-result"),
            baseline=config.getoption("--mansard-baseline"),
            store=config.getoption("--mansard-store"),
        )
    return config.stash[_GATE]
