"""What the command line itself refuses, in the form of all other errors: what, where, got, expected, and the next step."""

from __future__ import annotations

import difflib
import re
from typing import Any

import click

from mansard.core.errors import UsageError

_WORDS = {
    "integer": "a whole number",
    "integer range": "a whole number",
    "float": "a number",
    "float range": "a number",
}
_WRONG_TYPE = re.compile(r"^(?P<got>'.*'|\S+) is not a valid (?P<what>[\w ]+)\.$", re.DOTALL)
_WRONG_CHOICE = re.compile(r"^(?P<got>'.*?'|\S+) is not one of .*\.$", re.DOTALL)
_OUTSIDE = re.compile(r"^(?P<got>\S+) is not in the range .*\.$")


def in_our_form(error: click.ClickException) -> UsageError:
    """Return what is wrong with a command line as one of our errors; its hint is the help of the verb, with its usage where words are missing."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    found = UsageError(_message(error), hint=_hint(error, context))
    found.exit_code = error.exit_code
    return found


def _hint(error: click.ClickException, context: click.Context | None) -> str:
    if context is None:
        return "mansard --help"
    see = f"{context.command_path} --help"
    words_are_wrong = isinstance(error, click.MissingParameter) or "argument" in error.format_message()
    usage = " ".join(context.command.get_usage(context).removeprefix("Usage:").split())
    return f"{usage}; {see} says more" if words_are_wrong else see


def _message(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        near = " or ".join(sorted(error.possibilities or ())[:3])
        return f"no such option {error.option_name}" + (f"; did you mean {near}?" if near else "")
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)} is missing{_of_choice(error.param, '')}"
    if isinstance(error, click.BadParameter):
        return _bad_value(error, _name(error))
    return _plain(error.format_message())


def _name(error: click.BadParameter) -> str:
    """Return what an option or an argument is called."""
    if error.param is None:
        hint = error.param_hint
        return " ".join(hint) if isinstance(hint, list | tuple) else str(hint or "a word").strip("'")
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    return error.param.human_readable_name.strip("[].").upper()


def _bad_value(error: click.BadParameter, name: str) -> str:
    said, kind = error.message, getattr(error.param, "type", None)
    if found := _WRONG_CHOICE.match(said):
        return f"{name} is {found['got']}{_of_choice(error.param, found['got'])}"
    if (found := _OUTSIDE.match(said)) and isinstance(kind, click.IntRange | click.FloatRange):
        return f"{name} is {found['got']}, expected {_range(kind)}"
    if (found := _WRONG_TYPE.match(said)) and found["what"] in _WORDS:
        return f"{name} is {found['got']}, expected {_WORDS[found['what']]}"
    return f"{name}: {_plain(said)}"


def _of_choice(param: Any, got: str) -> str:
    """Return what was expected where only some words are possible, the nearest one first."""
    kind = getattr(param, "type", None)
    if not isinstance(kind, click.Choice):
        return ""
    choices = [str(c) for c in kind.choices]
    near = difflib.get_close_matches(got.strip("'"), choices, n=1)
    return f", expected one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")


def _range(kind: Any) -> str:
    """Return the range of a number in words.

    >>> _range(click.IntRange(min=1)), _range(click.FloatRange(min=0.0, min_open=True)), _range(click.IntRange(0, 3))
    ('1 or more', 'more than 0', '0 to 3')
    """
    low, high = (None if x is None else f"{x:g}" for x in (kind.min, kind.max))
    above = "" if low is None else f"more than {low}" if kind.min_open else f"{low} or more"
    below = "" if high is None else f"less than {high}" if kind.max_open else f"{high} or less"
    if low is not None and high is not None and not (kind.min_open or kind.max_open):
        return f"{low} to {high}"
    return " and ".join(w for w in (above, below) if w)


def _plain(text: str) -> str:
    """Return a sentence as our messages are written.

    >>> _plain("Got unexpected extra argument (b)."), _plain("No such command 'x'. Did you mean 'y'?")
    ('got unexpected extra argument (b)', "no such command 'x'; did you mean 'y'?")
    """
    parts = [part[:1].lower() + part[1:] for part in re.split(r"(?<=[.?])\s+", text.strip())]
    return "; ".join(part.rstrip(".") for part in parts if part)
