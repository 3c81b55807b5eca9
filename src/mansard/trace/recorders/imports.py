"""Notice the moment at which the program has finished importing a framework."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

FRAMEWORKS = ("torch", "jax")


class _Finder(importlib.abc.MetaPathFinder):
    """First finder of the import system: asks the others, and adds a call after the module has run."""

    def __init__(self, done: Callable[[str], None]) -> None:
        self._done = done
        self._open = set(FRAMEWORKS) - set(sys.modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._open:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._wrap(fullname, spec.loader)
                return spec
        return None

    def _wrap(self, name: str, loader: object) -> None:
        """Shadow the loader's `exec_module` on the instance, for this one import."""
        run = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            run(module)
            self._open.discard(name)
            if not self._open and self in sys.meta_path:
                sys.meta_path.remove(self)
            self._done(name)

        try:
            loader.exec_module = exec_module  # type: ignore[attr-defined]
        except AttributeError:  # a loader without instance attributes: leave this import alone
            return


def watch(done: Callable[[str], None]) -> None:
    """Call `done("torch")` or `done("jax")` when the program has imported it; at once for what is imported already."""
    finder = _Finder(done)
    sys.meta_path.insert(0, finder)
    for name in FRAMEWORKS:
        if name in sys.modules:
            done(name)
