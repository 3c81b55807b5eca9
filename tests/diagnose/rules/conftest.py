"""Makes the hand-made runs of the room and the cases built from them importable by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).parent
for _name, _path in (("build", _HERE.parent / "build.py"), ("rule_cases", _HERE / "rule_cases.py")):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, _path)
        assert _spec is not None
        assert _spec.loader is not None
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
