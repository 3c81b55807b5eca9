"""Parameters that every benchmark has, and how a written value becomes one of its kind."""

from __future__ import annotations

import math
from typing import Any

from mansard.core.dtypes import DTYPE_BYTES, short_dtype
from mansard.core.errors import UsageError
from mansard.measure.config.yamlfile import Place, config_error, nearest
from mansard.measure.points.benchmark import REQUIRED, Parameter

WARMUP_TRIES = Parameter(
    name="warmup_tries", kind="int", default=10, minimum=0,
    text="least calls before the ones that count; more are made until they are steady, within a bound",
)  # fmt: skip
NUM_RUNS = Parameter(
    name="num_runs", kind="int", default=10, minimum=1, aliases=("n_repeats",),
    text="least samples; more are taken until the interval of the median is narrow or the time is used up",
)  # fmt: skip
MIN_DURATION_S = Parameter(
    name="min_duration_s", kind="float", default=0.0, minimum=0.0, text="least time of taking samples [s]"
)
MAX_DURATION_S = Parameter(
    name="max_duration_s", kind="float", default=None, minimum=0.0,
    text="no new sample after this time, once num_runs are there [s]; empty leaves it to the suite",
)  # fmt: skip
CACHE = Parameter(
    name="cache", kind="str", default="hot", choices=("hot", "cold"),
    text="hot: a call follows an equal call; cold: all caches are emptied before each call, outside of what is timed",
)  # fmt: skip
IMPL = Parameter(
    name="impl", kind="str", default=None, aliases=("implementation",),
    text="implementation, or several with commas to compare them; empty is the benchmark's first",
)  # fmt: skip
DTYPE = Parameter(
    name="dtype", kind="dtype", default=None, text="element type, of benchmarks that have one of that name"
)
SYSTEM = Parameter(
    name="system", kind="str", default=None, aliases=("hw",), text="hardware by its catalogue name, matched exactly"
)
XPROF_TIMING = Parameter(
    name="xprof_timing", kind="bool", default=False,
    text="accepted; times are wall times with the dispatch floor beside them, which a note says",
)  # fmt: skip
XPROF_DIR = Parameter(name="xprof_dir", kind="str", default=None, text="accepted; no profile is written")
TRACE_ROOFLINE = Parameter(
    name="use_trace_roofline", kind="bool", default=False,
    text="accepted; every point is checked against the compiler's count in any case",
)  # fmt: skip

#: What every point carries in its parameters beside those of its benchmark.
TIMING = (WARMUP_TRIES, NUM_RUNS, MIN_DURATION_S, MAX_DURATION_S, CACHE)
#: What an entry may say that is not a parameter of the work.
COMMON = (*TIMING, IMPL, DTYPE, SYSTEM, XPROF_TIMING, XPROF_DIR, TRACE_ROOFLINE)
COMMON_NAMES = frozenset(name for p in COMMON for name in (p.name, *p.aliases))

#: Words of the published suite's first version for types that have several forms.
SUITE_DTYPES = {"float8": "f8_e4m3", "float4": "f4_e2m1"}

_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "dtype": "an element type",
}  # fmt: skip


def coerced(parameter: Parameter, value: Any, place: Place | None, *, within: str = "") -> Any:
    """Return `value` as one of `parameter`'s kind; nothing is rounded and no type replaced by another.

    Args:
        parameter: What it is for.
        value: As YAML reads it; numbers of a table or command line come through `typed` first.
        place: Where it stands, for the error.
        within: Name of the benchmark, for the error.

    Raises:
        UsageError: another kind, below the minimum, or none of the choices.

    >>> coerced(NUM_RUNS, 1e3, None), coerced(DTYPE, "bfloat16", None)
    (1000, 'bf16')
    """
    if value is None:
        if parameter.default is None:
            return None
        raise config_error(place, f"{_name(parameter, within)} is empty; expected {_WORDS[parameter.kind]}")
    got = _of_kind(parameter, value, place, within)
    if parameter.minimum is not None and got < parameter.minimum:
        raise config_error(place, f"{_name(parameter, within)} is {got}; the least is {parameter.minimum:g}")
    choices = parameter.choices
    if parameter.kind == "dtype":
        choices = tuple(short_dtype(str(c)) for c in choices)
    if choices and got not in choices:
        raise _not_a_choice(parameter, got, choices, place, within)
    return got


def _not_a_choice(
    parameter: Parameter, got: Any, choices: tuple[Any, ...], place: Place | None, within: str
) -> UsageError:
    near = nearest(str(got), [str(c) for c in choices])
    message = f"{_name(parameter, within)} is {got!r}" + (f"; the nearest choice is {near[0]!r}" if near else "")
    return config_error(place, message, hint="one of: " + ", ".join(str(c) for c in choices), code="not_a_choice")


def _of_kind(parameter: Parameter, value: Any, place: Place | None, within: str) -> Any:
    kind = parameter.kind
    if kind == "dtype" and isinstance(value, str):
        try:
            return SUITE_DTYPES.get(value.strip().lower()) or short_dtype(value)
        except UsageError as error:
            near = nearest(value, [*DTYPE_BYTES, *SUITE_DTYPES])
            more = f"; the nearest is {near[0]!r}" if near else ""
            raise config_error(place, f"{_name(parameter, within)}: {error.message}{more}", hint=error.hint) from error
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    if kind in ("int", "float") and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and (kind == "float" or value == int(value)):
            return float(value) if kind == "float" else int(value)
        raise config_error(place, f"{_name(parameter, within)} is {value!r}; expected {_WORDS[kind]}")
    shape = "a list" if isinstance(value, list | tuple) else "a table" if isinstance(value, dict) else repr(value)
    hint = "several values belong under `sweep:`" if isinstance(value, list | tuple | dict) else ""
    raise config_error(place, f"{_name(parameter, within)} is {shape}; expected {_WORDS[kind]}", hint=hint)


def _name(parameter: Parameter, within: str) -> str:
    return f"{parameter.name} of {within}" if within else parameter.name


def default_of(parameter: Parameter) -> Any:
    """Return the default of a parameter as one of its kind; `REQUIRED` where there is none."""
    if parameter.default is REQUIRED or parameter.default is None:
        return parameter.default
    return coerced(parameter, parameter.default, None)
