"""The page about the rules is what their docstrings say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from mansard.diagnose import rule_docs
from mansard.diagnose.facts import Facts
from mansard.diagnose.rules import load_rules, rule_names

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == rule_docs.rules_page(), "make docs/rules.md again, as it says"


def test_every_fact_has_a_source_and_every_fact_that_is_asked_for_is_one() -> None:
    assert set(rule_docs.FACT_SOURCES) == {f.name for f in fields(Facts)}
    assert {fact for name in rule_names() for fact in rule_docs.facts_asked(name)} <= set(rule_docs.FACT_SOURCES)


@pytest.mark.parametrize("name", rule_names())
def test_every_rule_says_what_it_needs_promises_and_where_from(name: str) -> None:
    text = rule_docs.rule_text(name)
    assert text.title.endswith(".")
    assert min(len(text.needs), len(text.promises), len(text.source)) > 10


def test_every_rule_is_named_as_its_module() -> None:
    assert [rule.__name__ for rule in load_rules()] == rule_names()


def _fixtures(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each rule that a test file makes speak (True) or expects to be silent (False)."""
    names = set(rule_names())
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        of_parameters = {
            n.value for d in function.decorator_list for n in ast.walk(d) if isinstance(n, ast.Constant)
        } & names
        silent = {
            id(n) for a in ast.walk(function) if isinstance(a, ast.Assert) and _denies(a.test) for n in ast.walk(a)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "said":
                first = node.args[0]
                told = {first.value} if isinstance(first, ast.Constant) else of_parameters
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
                told = {node.left.value}  # "rule" in rules(...)
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "rule":
                told = {c.value for c in node.comparators if isinstance(c, ast.Constant)}
            else:
                continue
            yield from ((name, id(node) not in silent) for name in told & names)


def _denies(test: ast.expr) -> bool:
    """Whether an assertion expects nothing: `is None`, `not in`, `not [...]`, or a list of None."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    if not isinstance(test, ast.Compare):
        return False
    last = test.comparators[-1]
    if isinstance(last, ast.List) and all(isinstance(e, ast.Constant) and e.value is None for e in last.elts):
        return True
    nothing = isinstance(last, ast.Constant) and last.value is None
    return isinstance(test.ops[-1], ast.NotIn) or (nothing and isinstance(test.ops[-1], ast.Is | ast.Eq))


def test_every_rule_has_a_case_where_it_speaks_and_one_where_it_is_silent() -> None:
    here = Path(__file__)
    files = [*here.parent.glob("test_*_rules.py"), here.parents[1] / "test_rules.py"]
    seen = {fixture for path in files for fixture in _fixtures(path)}
    assert not [name for name in rule_names() if (name, True) not in seen], "no case where it speaks"
    assert not [name for name in rule_names() if (name, False) not in seen], "no case where it is silent"
