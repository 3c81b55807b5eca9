"""A number that is not known, and a number that cannot be true.

`Unknown` stands where a number would stand. It is never 0.0, None or NaN, and arithmetic with it gives
`Unknown` again, so a missing fact cannot turn into a wrong figure further down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard


@dataclass(frozen=True, slots=True)
class Unknown:
    """A quantity that is not known, with the reason and what would make it known.

    Args:
        reason: Why the number is missing.
        needs: What to supply or measure, in the order to try.

    >>> Unknown("no bytes were recorded", ("--bytes",)) / 3.0
    Unknown(reason='no bytes were recorded', needs=('--bytes',))
    >>> Unknown("a", ("x",)) + Unknown("b", ("y",))
    Unknown(reason='a; b', needs=('x', 'y'))
    """

    reason: str
    needs: tuple[str, ...] = field(default=())

    def _join(self, other: Any) -> Unknown:
        if isinstance(other, Unknown) and other != self:
            needs = self.needs + tuple(n for n in other.needs if n not in self.needs)
            return Unknown(f"{self.reason}; {other.reason}", needs)
        return self

    def __add__(self, other: Any) -> Unknown:
        return self._join(other)

    def __radd__(self, _other: Any) -> Unknown:
        return self

    def __sub__(self, other: Any) -> Unknown:
        return self._join(other)

    def __rsub__(self, _other: Any) -> Unknown:
        return self

    def __mul__(self, other: Any) -> Unknown:
        return self._join(other)

    def __rmul__(self, _other: Any) -> Unknown:
        return self

    def __truediv__(self, other: Any) -> Unknown:
        return self._join(other)

    def __rtruediv__(self, _other: Any) -> Unknown:
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unknown quantity has no truth value: {self.reason}; test with is_known()")

    def to_json(self) -> dict[str, Any]:
        """Return `{"unknown": reason, "needs": [...]}`."""
        return {"unknown": self.reason, "needs": list(self.needs)}


@dataclass(frozen=True, slots=True)
class Implausible:
    """A share above 1 beyond its uncertainty: a finding about the inputs, never a good result.

    Args:
        value: The ratio that came out.
        suspects: Likely reasons, the most likely first.
    """

    value: float
    suspects: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return `{"implausible": value, "suspects": [...]}`."""
        return {"implausible": self.value, "suspects": list(self.suspects)}


MaybeFloat = float | Unknown


def is_known(value: float | Unknown | Implausible | None) -> TypeGuard[float]:
    """Return whether `value` is a number that may be used.

    >>> is_known(1.5), is_known(Unknown("no clock")), is_known(None)
    (True, False, False)
    """
    return value is not None and not isinstance(value, Unknown | Implausible)
