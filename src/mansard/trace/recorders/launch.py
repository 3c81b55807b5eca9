"""Script that the recorder starts in place of the program; it hands over to `guest` and leaves no trace.

It runs as `__main__`, so it keeps out of the way: nothing of it stays in the namespace, which becomes the program's.
"""

import sys

if sys.path and not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file; the program's own entry is put in its place


def _guest() -> object:
    """Import the guest; where the package is not installed for this interpreter, from the folder of this file."""
    import importlib
    import os

    try:
        return importlib.import_module("mansard.trace.recorders.guest")
    except ImportError:
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
        sys.path.insert(0, root)
        try:
            return importlib.import_module("mansard.trace.recorders.guest")
        finally:
            sys.path.remove(root)


if __name__ == "__main__":
    _guest().run(sys.argv[1:])  # type: ignore[attr-defined]
