"""Every extra that a hint, a page of the documentation or a template names is one that pyproject.toml has."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from mansard.core.errors import install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: `mansard[a,b]`, `.[a]`, and a folder in a variable, "$SOURCE[a]".
NAMED = re.compile(r"(?:\bmansard|['\" ]\.|\$\w+)\[([a-z]+(?:,[a-z]+)*)\]")


def test_every_extra_that_is_named_exists() -> None:
    files = [ROOT / "README.md", *(p for d in ("src", "docs", "examples") for p in (ROOT / d).rglob("*"))]
    texts = {p: p.read_text(errors="replace") for p in files if p.suffix in (".md", ".py", ".yml", ".yaml", ".j2")}
    named = {(p.name, e) for p, text in texts.items() for found in NAMED.findall(text) for e in found.split(",")}
    assert {e for _, e in named} > {"history", "postgresql", "cpu", "perfetto"}  # the search finds what is there
    assert {(where, e) for where, e in named if e not in EXTRAS} == set()


def test_hints_name_extras_that_exist_in_one_form() -> None:
    asked: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("install", "needs"):
                asked |= {a.value for a in node.args[-1:] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    assert {"history", "postgresql", "plan", "ray", "nvml", "cpu"} <= asked
    assert asked <= set(EXTRAS)
    assert install("history") == "pip install 'mansard[history]'"
