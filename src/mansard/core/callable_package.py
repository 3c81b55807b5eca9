"""A package that can be called: `mansard.measure(...)`, while `mansard.measure.store` is still a module of it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A module whose call is a call of the function named in its `__calls__`."""

    __calls__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that this package is named after."""
        return getattr(self, self.__calls__)(*args, **kwargs)


def make_callable(package: str, function: str) -> None:
    """Make an imported package callable.

    The library mirrors the command line, and the room of a verb has the name of the verb. Python lets a module take a
    subclass of its type as its class; a docs/adr page says why this is used here and nowhere else.

    Args:
        package: Its full name.
        function: A name in it, looked up at the call.

    Source: The Python Language Reference, 3.3.2.1, Customizing module attribute access.
    """
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__dict__["__calls__"] = function
