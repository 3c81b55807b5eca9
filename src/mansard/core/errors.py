"""Errors a user can act on. Each says what, where, got, expected, and what to do next.

Expected failures print one line and a hint; anything else is a defect and keeps its traceback.
"""

from __future__ import annotations


class MansardError(Exception):
    """Root of the errors Mansard raises on purpose.

    Args:
        message: What happened, where, what was got and what was expected.
        hint: The next step a person can take.
        code: A stable identifier for scripts.
    """

    exit_code = 4
    default_code = "error"
    beside_output = False  # whether stdout has the result already, so that the error belongs on stderr

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code

    def to_dict(self) -> dict[str, dict[str, str]]:
        """Return the JSON form, `{"error": {"code", "message", "hint"}}`."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class CheckFailedError(MansardError):
    """A check was made and failed: a regression, a missed target, a failed benchmark (exit 1)."""

    exit_code = 1
    default_code = "check_failed"


class UsageError(MansardError):
    """The command line, a configuration or an argument is wrong (exit 2)."""

    exit_code = 2
    default_code = "usage"


class UndecidedError(MansardError):
    """No judgement is possible: nothing measured, implausible, or not comparable (exit 3)."""

    exit_code = 3
    default_code = "undecided"


class InputError(MansardError):
    """An input file or the environment cannot be used (exit 4)."""

    exit_code = 4
    default_code = "unusable_input"


def install(extra: str) -> str:
    """Return how to install what an extra of the package needs: the hint of every package that is missing.

    Args:
        extra: One of `project.optional-dependencies`.

    >>> install("plan")
    "pip install 'mansard[plan]'"
    """
    return f"pip install 'mansard[{extra}]'"
