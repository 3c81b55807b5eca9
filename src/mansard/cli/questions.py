"""A group of commands, each in a module that is imported when its question is asked."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class Questions(click.Group):
    """A group whose commands are imported when they are called.

    Args:
        questions: Name to the module with a click command named `command`, and the line shown in the overview.
        noun: What one of them is called, as in "no such question".
        args: See `click.Group`.
        kwargs: See `click.Group`.
    """

    def __init__(
        self, *args: Any, questions: Mapping[str, tuple[str, str]], noun: str = "question", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.questions = questions
        self.noun = noun

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the questions in the order of the table."""
        return list(self.questions)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a question."""
        if cmd_name not in self.questions:
            return None
        command: click.Command = importlib.import_module(self.questions[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name, with a suggestion for a misspelt one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.questions:
            import difflib

            near = difflib.get_close_matches(name, self.questions, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(self.questions)}"
            ctx.fail(f"no such {self.noun} {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without importing the questions."""
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(name, text) for name, (_, text) in self.questions.items()])
