"""The rules of a gate: YAML with a few keys and no expressions, so that a rule file can never run anything.

A rule names figures by a glob over `benchmark/metric` (`*` is any text, `?` one character, brackets stand for themselves) and says one
thing about them: `at_least`, `at_most`, `between`, or `max_regression` against the baseline.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.core.errors import UsageError
from mansard.core.units import parse_quantity
from mansard.history.compare import Limits
from mansard.history.fingerprint import COMPONENTS
from mansard.history.records import METRICS

CONDITIONS = ("at_least", "at_most", "between", "max_regression")
_TOP = ("version", "defaults", "rules")
_RULE = ("name", "metric", *CONDITIONS, "required", "floor", "reason")
_DEFAULTS = ("tolerance", "resolution", "floor", "run_spread", "level", "allow", "require")
_DIMENSIONS = {"s": "s", "B/s": "bytes_per_s", "FLOP/s": "flop_per_s", "B": "bytes"}
_MOST_SHOWN = 8
_LONGEST_TOLD = 200
_PERCENT = re.compile(r"^\s*([0-9.eE+-]+)\s*%\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        name: For reading.
        metric: Glob over `benchmark/metric`.
        condition: One of `CONDITIONS`.
        low, high: Limits of an absolute rule as they are written; None where there is none.
        regression_ratio: The largest worsening against the baseline, relative, for `max_regression`.
        floor_s: The smallest difference of a time that counts [s]; None takes the default.
        required: Whether a rule that matches nothing leaves the gate undecided.
        primary: Whether it is about the figures that `compare` looks at alone, instead of every one that matches.
    """

    name: str
    metric: str
    condition: str
    low: str | float | None = None
    high: str | float | None = None
    regression_ratio: float | None = None
    floor_s: float | None = None
    required: bool = True
    primary: bool = False

    def matches(self, name: str) -> bool:
        """Return whether the rule is about a figure."""
        return glob_matches(self.metric, name)

    def bounds(self, metric: str) -> tuple[float | None, float | None]:
        """Return the absolute limits in the SI unit of a metric.

        Raises:
            UsageError: a limit has another unit.
        """
        return _in_unit(self.low, metric, self.name), _in_unit(self.high, metric, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A rule file.

    Args:
        rules: In the order of the file.
        limits: What counts as a change, for the relative rules.
    """

    rules: tuple[Rule, ...]
    limits: Limits = field(default_factory=Limits)


def built_in_rules() -> Rules:
    """Return the gate where no rules are given: nothing is `slower` than the baseline, as `compare` says it, and something was measured.

    >>> built_in_rules().rules[0].regression_ratio
    0.02
    """
    limits = Limits()
    rule = Rule(
        name="not slower than the baseline", metric="*", condition="max_regression",
        regression_ratio=limits.tolerance_ratio, primary=True,
    )  # fmt: skip
    return Rules(rules=(rule,), limits=limits)


def glob_matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a glob of `*` and `?`.

    >>> glob_matches("gemm[*] m=?/time_s", "gemm[jax] m=1/time_s"), glob_matches("*/mfu_ratio", "step/step_time_s")
    (True, False)
    """
    parts = ["".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)]
    return re.fullmatch(parts[0], name, re.DOTALL) is not None


def read_rules(path: Path) -> Rules:
    """Read a rule file.

    Raises:
        UsageError: it cannot be read, or says something that is no rule: every message names the place.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the rules {path}: {getattr(error, 'strerror', None) or error}") from None
    except RecursionError:
        raise UsageError(f"{path} is not valid YAML: it is nested too deeply", hint="mansard check --help") from None
    except YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {_told(error)}") from None
    return rules_of(content, str(path))


def _told(error: Exception) -> str:
    """Return what is wrong with YAML, and where."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    said = str(problem or str(error).splitlines()[0])
    said = said if len(said) <= _LONGEST_TOLD else said[:_LONGEST_TOLD] + "..."
    return said if mark is None else f"{said} (line {mark.line + 1}, column {mark.column + 1})"


def rules_of(content: Any, where: str = "rules") -> Rules:
    """Return the rules of a parsed file.

    >>> r = rules_of({"rules": [{"metric": "*/step_time_s", "max_regression": "3 %"}]}).rules[0]
    >>> r.condition, r.regression_ratio
    ('max_regression', 0.03)
    """
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} is not a mapping, expected the keys {', '.join(_TOP)}")
    _keys(content, _TOP, where)
    if content.get("version", 1) != 1:
        raise UsageError(f"{where}: version {content['version']!r}, this program knows 1", hint="update mansard")
    limits = _limits(content.get("defaults") or {}, f"{where}: defaults")
    rows = content.get("rules")
    if not isinstance(rows, list) or not rows:
        raise UsageError(
            f"{where} holds no rules: an empty gate passes everything", hint="rules: [{metric: ..., at_least: 0.6}]"
        )
    return Rules(rules=tuple(_rule(r, f"{where}: rule {i + 1}") for i, r in enumerate(rows)), limits=limits)


def _shown(value: Any) -> str:
    """Return a value as it stands in a rule file.

    >>> _shown(["80 ms", "120 ms"]), _shown(None), _shown(0.6)
    ('[80 ms, 120 ms]', 'nothing', '0.6')
    """
    if isinstance(value, list):
        # What stands in a list is not opened: with aliases a few lines of YAML are a list of a thousand million words.
        words = ["..." if isinstance(v, list | dict) else _shown(v) for v in value[:_MOST_SHOWN]]
        return f"[{', '.join(words + ['...'] * (len(value) > _MOST_SHOWN))}]"
    if isinstance(value, dict):
        return "a mapping"
    return "nothing" if value is None else str(value)


def _keys(mapping: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in mapping:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise UsageError(
                f"{where}: unknown key {key!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}",
            )


def _limits(d: Any, where: str) -> Limits:
    if not isinstance(d, Mapping):
        raise UsageError(f"{where} is not a mapping")
    _keys(d, _DEFAULTS, where)
    kept: dict[str, Any] = {}
    for key, name in (
        ("tolerance", "tolerance_ratio"),
        ("resolution", "resolution_ratio"),
        ("run_spread", "run_ratio"),
        ("level", "level"),
    ):
        if key in d:
            kept[name] = ratio_of(d[key], f"{where}: {key}")
    if "run_ratio" in kept:
        kept["unseen_ratio"] = kept["run_ratio"]  # who states what the machine does needs no assumption
    if "floor" in d:
        kept["floor_s"] = _seconds(d["floor"], f"{where}: floor")
    for key in ("allow", "require"):
        names = d.get(key) or []
        if not isinstance(names, list) or any(n not in COMPONENTS for n in names):
            raise UsageError(
                f"{where}: {key} is {_shown(names)}, expected a list of components", hint=", ".join(COMPONENTS)
            )
        kept[key] = tuple(names)
    try:
        return Limits(**kept)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def ratio_of(value: Any, where: str) -> float:
    """Return a share that is written as a number or in percent.

    >>> ratio_of("2.5 %", "x"), ratio_of(0.03, "x")
    (0.025, 0.03)
    """
    match = _PERCENT.match(value) if isinstance(value, str) else None
    try:
        number = float(match.group(1)) / 100.0 if match else float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UsageError(f"{where} is {value!r}, expected a finite share that is not negative", hint='0.03 or "3 %"')
    return number


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, str):
        return parse_quantity(value, "s")
    raise UsageError(f"{where} is {value!r}, expected a time with its unit", hint='"1 us"')


def _rule(d: Any, where: str) -> Rule:
    if not isinstance(d, Mapping):
        raise UsageError(f"{where} is not a mapping")
    _keys(d, _RULE, where)
    metric = d.get("metric")
    if not isinstance(metric, str) or not metric:
        raise UsageError(
            f"{where}: metric is {metric!r}, expected a glob over benchmark/metric", hint='"*/step_time_s"'
        )
    last = metric.rpartition("/")[2]
    if not any(glob_matches(last, m) for m in METRICS):
        raise UsageError(f"{where}: no metric is named like {last!r}", hint=f"one of {', '.join(METRICS)}")
    said = [c for c in CONDITIONS if c in d]
    if len(said) != 1:
        raise UsageError(
            f"{where}: {len(said)} conditions, expected exactly one", hint=f"one of {', '.join(CONDITIONS)}"
        )
    condition, value = said[0], d[said[0]]
    # A key without its value is a limit that somebody forgot; it would pass everything.
    if value is None or (isinstance(value, list) and None in value):
        raise UsageError(
            f"{where}: {condition} is {_shown(value)}, expected a limit", hint=f"{condition}: 25 ms, or a share"
        )
    required = d.get("required", True)
    if not isinstance(required, bool):
        raise UsageError(f"{where}: required is {required!r}, expected true or false")
    name = str(d.get("name") or f"{metric} {condition} {_shown(value)}")
    floor = _seconds(d["floor"], f"{where}: floor") if "floor" in d else None
    common: dict[str, Any] = {
        "name": name,
        "metric": metric,
        "condition": condition,
        "required": required,
        "floor_s": floor,
    }
    if condition == "max_regression":
        return Rule(regression_ratio=ratio_of(value, f"{where}: max_regression"), **common)
    if condition == "between":
        if not isinstance(value, list) or len(value) != 2:
            raise UsageError(f"{where}: between is {_shown(value)}, expected two limits", hint="between: [0.6, 1.0]")
        rule = Rule(low=value[0], high=value[1], **common)
    else:
        rule = Rule(
            low=value if condition == "at_least" else None, high=value if condition == "at_most" else None, **common
        )
    for candidate in (m for m in METRICS if glob_matches(last, m)) if last in METRICS else ():
        low, high = rule.bounds(candidate)
        if low is not None and high is not None and low > high:
            raise UsageError(f"{where}: between has its lower limit above its upper one")
    return rule


def _in_unit(value: str | float | None, metric: str, rule: str) -> float | None:
    """Return a limit in the SI unit of a metric; a bare number is only read for shares, where there is no unit to forget."""
    if value is None:
        return None
    unit = METRICS[metric][0]
    if unit == "1":
        return ratio_of(value, rule)
    if unit in _DIMENSIONS:
        if not isinstance(value, str):
            raise UsageError(
                f"rule {rule!r}: {value!r} has no unit, {metric} is in {unit}", hint="write the unit, like 25 ms"
            )
        return parse_quantity(value, _DIMENSIONS[unit])
    return _plain_number(value, rule)


def _plain_number(value: str | float, rule: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"rule {rule!r}: {value!r} is not a finite number")
    return number
