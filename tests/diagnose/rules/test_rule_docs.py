"""The page about the rules is what their docstrings say."""

from __future__ import annotations

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


def test_every_rule_has_a_test_of_its_own() -> None:
    texts = "".join(p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("test_*_rules.py"))
    texts += (Path(__file__).parents[1] / "test_rules.py").read_text(encoding="utf-8")
    assert not [name for name in rule_names() if f'"{name}"' not in texts]
