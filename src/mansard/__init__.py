"""Mansard finds the bottleneck of ML and HPC programs by measurement.

The library mirrors the command line; each call returns records and prints nothing:

- `mansard.measure()`: what this machine can do, as `Ceilings`;
- `mansard.estimate("llama-3.1-8b", on="h100-sxm", context=4096)`: what a model must consume;
- `mansard.open_trace("profile.sqlite")`: a recorded profile as a `Timeline`;
- `mansard.diagnose("profile.sqlite", "ceilings.json")`: the bottleneck, from any files and options of the verb;
- `mansard.hardware.match("NVIDIA H200")`: which product a name is;
- `mansard.show(record)`, `mansard.to_polars(record)`, `to_pandas`, `to_arrow`: a record for display, and as a frame.

In a notebook records display themselves.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mansard import hardware as hardware
    from mansard.diagnose import diagnose as diagnose
    from mansard.measure import measure as measure
    from mansard.predict.by_name import estimate as estimate
    from mansard.report.frames import to_arrow as to_arrow
    from mansard.report.frames import to_pandas as to_pandas
    from mansard.report.frames import to_polars as to_polars
    from mansard.report.notebook import show as show
    from mansard.trace.open import open_trace as open_trace

#: Public name -> module that has it; None is a room of its own, some of which can be called.
_PUBLIC: dict[str, str | None] = {
    "measure": None,
    "diagnose": None,
    "hardware": None,
    "estimate": "mansard.predict.by_name",
    "open_trace": "mansard.trace.open",
    "show": "mansard.report.notebook",
    "to_polars": "mansard.report.frames",
    "to_pandas": "mansard.report.frames",
    "to_arrow": "mansard.report.frames",
}


def __getattr__(name: str) -> Any:
    """Import what is used, when it is used: the base install and `mansard --help` stay light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mansard' has no attribute {name!r}")
    module = _PUBLIC[name]
    _join_notebook()
    return (
        importlib.import_module(f"mansard.{name}") if module is None else getattr(importlib.import_module(module), name)
    )


def load_ipython_extension(shell: Any) -> None:
    """Let records display themselves in an IPython shell; `%load_ext mansard` calls this."""
    importlib.import_module("mansard.report.notebook").register(shell.display_formatter)


def _join_notebook() -> None:
    """Let records display themselves where a notebook or IPython is already running; IPython is never imported for it."""
    running = sys.modules.get("IPython")
    shell = running.get_ipython() if running is not None and hasattr(running, "get_ipython") else None
    if getattr(shell, "display_formatter", None) is not None:
        load_ipython_extension(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
