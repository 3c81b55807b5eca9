"""The help of every verb: it fits 80 columns, its examples are command lines that are taken, and it names its exit codes."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mansard.cli.main import cli

FOLDER = Path(__file__).parents[2] / "src" / "mansard" / "cli"


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, click.Context(inner, info_name=name, parent=context, terminal_width=80))


@pytest.fixture(scope="module")
def every() -> list[tuple[click.Command, click.Context]]:
    return list(commands(cli, click.Context(cli, info_name="mansard", terminal_width=80)))


def test_help_fits_a_terminal_of_80_columns(every: list[tuple[click.Command, click.Context]]) -> None:
    for command, context in every:
        wide = [line for line in command.get_help(context).splitlines() if len(line) > 80]
        assert wide == [], context.command_path


def test_examples_are_command_lines_that_are_taken(
    every: list[tuple[click.Command, click.Context]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tried = 0
    for command, _ in every:
        text = re.sub(r"\\\n\s*", "", (command.help or "").replace("\b", ""))
        for line in re.findall(r"^ +(mansard .*)$", text, re.MULTILINE):
            words = shlex.split(re.split(r"   +| \| ", line)[0])[1:]
            place, context = cli, click.Context(cli, info_name="mansard")
            while isinstance(place, click.Group) and words:
                found = place.get_command(context, words[0])
                assert found is not None, line
                place, words = found, words[1:]
            place.make_context(place.name, list(words))  # raises where an option or an argument is wrong
            tried += 1
    assert tried > 60
    assert os.listdir(tmp_path) == []


def decorated(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("command(" in ast.unparse(d) for d in node.decorator_list):
            yield node


def test_a_verb_that_ends_with_1_or_3_says_when() -> None:
    for path in FOLDER.rglob("*.py"):
        for function in decorated(ast.parse(path.read_text())):
            returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
            if all(isinstance(v, ast.Constant) and v.value == 0 for v in returned):
                continue
            assert "xit code" in (ast.get_docstring(function) or ""), f"{path.name}: {function.name}"


def test_no_option_is_written_twice() -> None:
    found = Counter(
        ast.unparse(node)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option"
    )
    assert len(found) > 100
    assert [text for text, count in found.items() if count > 1] == []
