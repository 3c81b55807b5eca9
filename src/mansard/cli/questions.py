"""A group of commands, each in a module that is imported when its question is asked."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


def once(command: click.Command) -> click.Command:
    """Return a command that refuses an option given twice, of which the last value would win in silence."""
    if isinstance(command, click.Group) and not isinstance(command, Questions):
        for inner in command.commands.values():
            once(inner)
    make = command.make_parser

    def make_parser(ctx: click.Context) -> Any:
        parser = make(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            options, rest, order = parse(args)
            for param in order:
                single = isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
                if single and order.count(param) > 1:
                    name = max(param.opts, key=len)
                    raise click.UsageError(f"{name} is given {order.count(param)} times, expected one value", ctx)
            return options, rest, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    if not getattr(command, "refuses_twice", False):
        command.make_parser = make_parser  # type: ignore[method-assign]
        command.refuses_twice = True  # type: ignore[attr-defined]
    return command


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
        return once(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name, with a suggestion for a misspelt one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.questions:
            import difflib

            near = difflib.get_close_matches(name, self.questions, n=1)
            options = [o for p in self.get_params(ctx) for o in p.opts]
            if f"--{name}" in options:
                near = [f"--{name}" if ctx.parent is None or name != "help" else f"{ctx.command_path} --help"]
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(self.questions)}"
            ctx.fail(f"no such {self.noun} {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without importing the questions."""
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(name, text) for name, (_, text) in self.questions.items()])
