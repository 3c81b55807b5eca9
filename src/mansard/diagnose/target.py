"""`--target`: a figure of a diagnosis against a limit, such as `share >= 0.6` or `step <= 12 ms`; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mansard.core import Implausible, Unknown
from mansard.core.errors import UsageError
from mansard.core.units import format_ratio, format_s, parse_quantity
from mansard.diagnose.measured import MeasuredDiagnosis
from mansard.diagnose.records import SHARE_KINDS, Diagnosis

Value = float | Unknown | Implausible
_FORM = re.compile(r"^\s*(?P<name>[A-Za-z_]+)\s*(?P<op>>=|<=|==|>|<)\s*(?P<value>\S.*?)\s*$")
_TESTS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, "<": lambda a, b: a < b,
    "==": lambda a, b: abs(a - b) <= 1e-9 * max(abs(a), abs(b)),
}  # fmt: skip
_RATIOS = ("share", "mfu", "hfu", "attributed", *SHARE_KINDS)
_TIMES = ("step", "headroom")
_HINT = 'such as "share >= 0.6", "mfu >= 40 %", "step <= 12 ms", "network < 10 %"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit for one figure.

    Args:
        name: share, mfu, hfu, attributed, a kind of time share, step or headroom.
        op: How the figure is compared.
        value: The limit, a ratio or seconds.
        text: As it was written.
    """

    name: str
    op: str
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """Whether a target was met; `met` is Unknown where the figure is not known or cannot be true."""

    target: Target
    value: Value
    met: bool | Unknown

    @property
    def line(self) -> str:
        """The result in one line."""
        write = format_s if self.target.name in _TIMES else format_ratio
        if isinstance(self.value, Unknown):
            return f"target {self.target.text}: cannot be judged: {self.value.reason}"
        if isinstance(self.value, Implausible):
            return f"target {self.target.text}: cannot be judged: {write(self.value.value)} cannot be true"
        return f"target {self.target.text}: {'met' if self.met is True else 'MISSED'}, it is {write(self.value)}"


def parse_target(text: str) -> Target:
    """Return the target that was written.

    Raises:
        UsageError: It is no comparison of a known figure with a number.

    >>> parse_target("share >= 0.6").value, parse_target("mfu>40 %").value, parse_target("step <= 12 ms").value
    (0.6, 0.4, 0.012)
    """
    found = _FORM.match(text)
    if found is None:
        raise UsageError(f"cannot read the target {text!r}", hint=_HINT)
    name, written = found["name"].lower(), found["value"]
    if name not in (*_RATIOS, *_TIMES):
        raise UsageError(f"a target cannot be about {name!r}", hint=f"one of {', '.join((*_RATIOS, *_TIMES))}")
    if name in _TIMES:
        value = parse_quantity(written, "s")
    else:
        scale = 0.01 if written.endswith("%") else 1.0
        try:
            value = float(written.removesuffix("%")) * scale
        except ValueError:
            raise UsageError(f"cannot read {written!r} of the target {text!r}", hint=_HINT) from None
    if not 0.0 <= value < float("inf") or (name in _RATIOS and value > 1.0):
        expected = "a ratio from 0 to 1, or a percentage" if name in _RATIOS else "a time"
        raise UsageError(f"the limit of the target {text!r} is {value:g}, expected {expected}", hint=_HINT)
    return Target(name=name, op=found["op"], value=value, text=text.strip())


def check_target(target: Target, diagnosis: Diagnosis | MeasuredDiagnosis) -> TargetResult:
    """Return whether a diagnosis meets a target; of measured points the one with the lowest share must.

    Raises:
        UsageError: The target is about a run, and measured points alone are given.
    """
    value = (
        _of_points(target, diagnosis) if isinstance(diagnosis, MeasuredDiagnosis) else _value(target.name, diagnosis)
    )
    if isinstance(value, Unknown):
        return TargetResult(target=target, value=value, met=value)
    if isinstance(value, Implausible):
        return TargetResult(target=target, value=value, met=Unknown("the figure cannot be true", value.suspects[:3]))
    return TargetResult(target=target, value=value, met=bool(_TESTS[target.op](float(value), target.value)))


def _of_points(target: Target, found: MeasuredDiagnosis) -> Value:
    if target.name != "share":
        raise UsageError(
            f"the target {target.text!r} is about a run, and measured points alone are given",
            hint='their target is about "share"',
        )
    return found.share_of_ceiling


def _value(name: str, d: Diagnosis) -> Value:
    if name in SHARE_KINDS:
        return d.time_shares[name]
    return {
        "share": d.verdict.share_of_ceiling, "mfu": d.mfu_ratio, "hfu": d.hfu_ratio, "attributed": d.attributed_ratio,
        "step": d.step.median_s, "headroom": d.verdict.headroom_s,
    }[name]  # fmt: skip
