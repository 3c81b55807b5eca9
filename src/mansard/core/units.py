"""The one place that knows prefixes: text to SI base units and back.

Inside the program every number is a float in an SI base unit with the unit in its name. Percent, TFLOP/s,
GB/s (1e9) and GiB exist only where text is read or printed, and that happens here.
"""

from __future__ import annotations

import math
import re

from mansard.core.errors import UsageError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")
_UNIT = re.compile(
    r"(?P<prefix>Ki|Mi|Gi|Ti|Pi|[kKMGTPEmunp]?)"
    r"(?P<base>FLOP/s|FLOPS|FLOP|OP/s|bytes/s|bytes|byte/s|byte|bit/s|bit|B/s|B|Hz|s|W|J)$"
)
#: The micro sign and the Greek letter, both in use.
_MICRO = {0x00B5: "u", 0x03BC: "u"}
_AMBIGUOUS = {
    "gbps": ("400 Gbit/s (bits)", "50 GB/s (bytes)"),
    "mbps": ("100 Mbit/s (bits)", "12.5 MB/s (bytes)"),
    "tbps": ("3.2 Tbit/s (bits)", "400 GB/s (bytes)"),
    "kbps": ("64 kbit/s (bits)", "8 kB/s (bytes)"),
    "flops": ("989 TFLOP/s (a rate)", "989 TFLOP (an amount)"),
    "gb/sec": ("50 GB/s (bytes)", "50 Gbit/s (bits)"),
}
# base unit -> (dimension, factor, accepts binary prefixes, accepts small prefixes)
_BASES: dict[str, tuple[str, float, bool, bool]] = {
    "FLOP": ("flop", 1.0, False, False),
    "FLOP/s": ("flop_per_s", 1.0, False, False),
    "OP/s": ("flop_per_s", 1.0, False, False),
    "B": ("bytes", 1.0, True, False),
    "byte": ("bytes", 1.0, True, False),
    "bytes": ("bytes", 1.0, True, False),
    "B/s": ("bytes_per_s", 1.0, True, False),
    "byte/s": ("bytes_per_s", 1.0, True, False),
    "bytes/s": ("bytes_per_s", 1.0, True, False),
    "bit": ("bytes", 0.125, True, False),
    "bit/s": ("bytes_per_s", 0.125, True, False),
    "Hz": ("hz", 1.0, False, False),
    "s": ("s", 1.0, False, True),
    "W": ("w", 1.0, False, True),
    "J": ("j", 1.0, False, True),
}


def parse_quantity(text: str, dimension: str) -> float:
    """Return `text` as a float in the SI base unit of `dimension`.

    Args:
        text: A number and a unit, such as `"4.8 TB/s"`, `"989 TFLOP/s"`, `"80 GiB"`, `"400 Gbit/s"`.
        dimension: One of `flop`, `flop_per_s`, `bytes`, `bytes_per_s`, `hz`, `s`, `w`, `j`.

    Raises:
        UsageError: no number, an unknown or ambiguous unit, another dimension, negative or not finite.

    >>> parse_quantity("4.8 TB/s", "bytes_per_s") == 4.8e12
    True
    >>> parse_quantity("400 Gbit/s", "bytes_per_s")
    50000000000.0
    >>> parse_quantity("80 GiB", "bytes")
    85899345920.0
    >>> parse_quantity("2 \N{MICRO SIGN}s", "s")
    2e-06
    """
    match = _NUMBER.match(text)
    if match is None:
        raise UsageError(
            f"cannot read {text!r} as {_words(dimension)}: no number", hint=f"write it like {_example(dimension)}"
        )
    number, unit = float(match.group(1)), match.group(2)
    stripped = unit.lower()
    for word, readings in _AMBIGUOUS.items():
        if stripped.endswith(word) and not (word == "flops" and "/" in stripped):
            raise UsageError(
                f"the unit {unit!r} in {text!r} is ambiguous: it is written both for {readings[0]} and for {readings[1]}",
                hint="write Gbit/s for bits, GB/s for bytes, TFLOP/s for a rate, TFLOP for an amount",
                code="ambiguous_unit",
            )
    parsed = _UNIT.match(unit.translate(_MICRO))
    if parsed is None:
        what = f"unknown unit {unit!r} in {text!r}" if unit else f"{text!r} has no unit, expected {_words(dimension)}"
        raise UsageError(what, hint=f"write it like {_example(dimension)}")
    prefix, base = parsed.group("prefix"), parsed.group("base")
    got, factor, binary, small = _BASES[base]
    if got != dimension:
        raise UsageError(f"{text!r} is {_words(got)}, expected {_words(dimension)}", hint=f"like {_example(dimension)}")
    if prefix in _BINARY and binary:
        scale = _BINARY[prefix]
    elif prefix in _SMALL and (small or prefix == ""):
        scale = _SMALL[prefix]
    elif prefix in _DECIMAL and (prefix == "" or base != "s"):
        scale = _DECIMAL[prefix]
    else:
        raise UsageError(f"the prefix {prefix!r} does not fit the unit {base!r} in {text!r}")
    value = number * scale * factor
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{text!r} must be finite and not negative")
    return value


def positive_amount(given: str | float | None, dimension: str, name: str, *, scale: float = 1.0) -> float | None:
    """Return a positive amount in the SI base unit; None where none was given.

    Args:
        given: A plain number in the base unit (times `scale`), also as text, or a number with a unit.
        dimension: As `parse_quantity` takes it.
        name: Of the option, for messages.
        scale: What a plain number counts.

    Raises:
        UsageError: it cannot be read, or it is not finite and above zero.

    >>> positive_amount("400 Gbit/s", "bytes_per_s", "--network-rate"), positive_amount(2, "flop", "--flops", scale=1e12)
    (50000000000.0, 2000000000000.0)
    """
    if given is None:
        return None
    try:
        value = float(given) * scale
    except ValueError:
        value = parse_quantity(str(given), dimension)
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} is {given}, expected a positive number")
    return value


def _words(dimension: str) -> str:
    return {
        "flop": "an amount of work (FLOP)",
        "flop_per_s": "a compute rate (FLOP/s)",
        "bytes": "a size (bytes)",
        "bytes_per_s": "a bandwidth (bytes/s)",
        "hz": "a frequency (Hz)",
        "s": "a time (s)",
        "w": "a power (W)",
        "j": "an energy (J)",
    }[dimension]


def _example(dimension: str) -> str:
    return {
        "flop": '"132 TFLOP"',
        "flop_per_s": '"989 TFLOP/s"',
        "bytes": '"141 GB" or "80 GiB"',
        "bytes_per_s": '"4.8 TB/s" or "400 Gbit/s"',
        "hz": '"1.98 GHz"',
        "s": '"12.5 us"',
        "w": '"700 W"',
        "j": '"3 J"',
    }[dimension]


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {steps[-1][1]}"
    for factor, name in steps:
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)} {name}"
    factor, name = steps[-1]
    return f"{_three(value / factor)} {name}"


def _three(x: float) -> str:
    """Three significant digits without an exponent for the magnitudes that occur in tables."""
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else str(x)
    x = float(f"{x:.3g}")
    magnitude = math.floor(math.log10(abs(x)) + 1e-12)
    return f"{x:.{min(max(0, 2 - magnitude), 6)}f}"


def format_s(seconds: float) -> str:
    """Return a time for reading.

    >>> format_s(0.0016215), format_s(12.5), format_s(3e-9)
    ('1.62 ms', '12.5 s', '3.00 ns')
    """
    return _scaled(seconds, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_moment(seconds: float) -> str:
    """Return a moment for reading, to the microsecond: moments of one profile must be told apart, however late they are.

    >>> format_moment(155.923412345), format_moment(0.0)
    ('155.923412 s', '0.000000 s')
    """
    return f"{seconds:.6f} s"


def format_flop(flop: float) -> str:
    """Return an amount of work for reading.

    >>> format_flop(5514536717248)
    '5.51 TFLOP'
    """
    return _scaled(flop, [(1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"),
                          (1e3, "kFLOP"), (1.0, "FLOP")])  # fmt: skip


def format_flop_per_s(rate: float) -> str:
    """Return a compute rate for reading.

    >>> format_flop_per_s(989.4e12)
    '989 TFLOP/s'
    """
    return _scaled(rate, [(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s")])


def format_bytes(size: float) -> str:
    """Return a size for reading, in decimal units.

    >>> format_bytes(6.486e9)
    '6.49 GB'
    """
    return _scaled(size, [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])


def format_binary_bytes(size: float) -> str:
    """Return the capacity of a memory for reading, in the binary units it is built in.

    >>> format_binary_bytes(80 * 2**30), format_binary_bytes(50 * 2**20), format_binary_bytes(27.5 * 2**20)
    ('80 GiB', '50 MiB', '27.5 MiB')
    """
    steps = [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")]
    number, _, unit = _scaled(size, steps).partition(" ")
    return f"{float(number):g} {unit}"


def format_bytes_per_s(rate: float) -> str:
    """Return a bandwidth for reading, in decimal units.

    >>> format_bytes_per_s(3.35e12)
    '3.35 TB/s'
    """
    return _scaled(rate, [(1e15, "PB/s"), (1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])


def format_hz(frequency: float) -> str:
    """Return a frequency for reading.

    >>> format_hz(3.68e9)
    '3.68 GHz'
    """
    return _scaled(frequency, [(1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")])


def format_ratio(ratio: float) -> str:
    """Return a share as percent for reading.

    >>> format_ratio(0.4043), format_ratio(0.004)
    ('40 %', '0.4 %')
    """
    percent = ratio * 100.0
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"
