"""A model of which only the size is known: what its weights alone ask of a machine.

Without a configuration there are no layers, so cache, activations and messages are unknown; they are said to be, and
every time here is a floor that reads weights and multiplies with them and does nothing else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mansard.core import Unknown, least_time_s
from mansard.core.dtypes import dtype_bytes, element_dtype
from mansard.core.errors import UsageError
from mansard.predict.bound import Machine
from mansard.workload.storage import stored_bits

_COUNT = re.compile(r"(\d+\.?\d*|\.\d+)(?:[eE](\d+))?\s*([KMBT]?)")
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

NO_CONFIG = Unknown("only the number of parameters was given", ("the model's config.json",))


def parse_count(text: str, option: str = "--params") -> float:
    """Return a number of parameters.

    Args:
        text: Such as `1T`, `32B`, `405e9`; K, M, B and T are thousand to trillion.
        option: Where it was typed.

    Raises:
        UsageError: no such number, or not above zero.

    >>> parse_count("1T"), parse_count("32B"), parse_count("405e9")
    (1000000000000.0, 32000000000.0, 405000000000.0)
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cannot read {option} {text!r} as a number of parameters", hint="such as 1T, 32B or 405e9")
    value = float(match[1]) * 10.0 ** min(int(match[2] or 0), 30) * _SCALE[match[3]]
    if not 0.0 < value <= 1e18:
        raise UsageError(f"{option} is {text}, expected a number of parameters above zero and up to 1e18")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """A size instead of a model.

    Args:
        total: Parameters.
        active: Parameters that one token uses.
        dtype: Element type they are stored and multiplied in.
    """

    total: float
    active: float
    dtype: str

    def __post_init__(self) -> None:
        stored_bits(self.dtype)
        if not 0.0 < self.active <= self.total:
            raise UsageError(f"{self.active:g} active parameters of {self.total:g}", hint="active is at most the total")

    @property
    def name(self) -> str:
        """Such as `1T bf16` or `1T, 32B active, bf16`."""
        active = f", {_short(self.active)} active," if self.active < self.total else ""
        return f"{_short(self.total)}{active} {self._stored}"

    @property
    def _stored(self) -> str:
        """The short name of an element type; a format by its own."""
        element = self.element
        plain = not isinstance(element, Unknown) and 8.0 * dtype_bytes(element) == self.bits
        return str(element) if plain else self.dtype

    @property
    def bits(self) -> float:
        """Bits of one element, with the scales of a format that has them."""
        return stored_bits(self.dtype)

    @property
    def element(self) -> str | Unknown:
        """Element type that is multiplied."""
        name = self.dtype.partition(":")[0]
        try:
            return element_dtype(name)
        except UsageError:
            return Unknown(f"what weights in {name} are multiplied in is not said", ("a MODEL with --activations",))

    @property
    def storage_notes(self) -> tuple[str, ...]:
        """What the bytes of narrow weights hold."""
        element = self.element
        if isinstance(element, Unknown) or 8.0 * dtype_bytes(element) != self.bits:
            return (f"{self.bits:g} bits a weight, scales included",)
        return (f"weights in {element} alone: their scales are not counted",) if self.bits <= 8.0 else ()

    @property
    def weight_bytes(self) -> float:
        """All weights [B]."""
        return self.total * self.bits / 8.0

    @property
    def active_bytes(self) -> float:
        """The weights that one token reads [B]."""
        return self.active * self.bits / 8.0


def _short(count: float) -> str:
    for letter in ("T", "B", "M", "K"):
        if count >= _SCALE[letter]:
            return f"{count / _SCALE[letter]:.4g}{letter}"
    return f"{count:.4g}"


def parse_params(text: str, *, active: str | None, dtype: str | None) -> Params:
    """Return a size: `1T`, or `1T/32B` with what is active.

    Raises:
        UsageError: not readable, or without an element type.
    """
    if dtype is None:
        raise UsageError("a number of parameters has no element type", hint="add --dtype bf16 or --dtype fp8")
    total, slash, inline = text.partition("/")
    if slash and active is not None:
        raise UsageError(f"--params {text} already says how many are active", hint="leave --active out")
    chosen = inline if slash else active
    whole = parse_count(total)
    return Params(total=whole, active=whole if chosen is None else parse_count(chosen, "--active"), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFloor:
    """What the weights alone ask of a machine.

    Args:
        devices: Devices that hold the weights.
        device_bytes: Weights on each of them [B].
        time_s: Floor of one decode step [s].
        bound: `memory` or `compute`; `undetermined` where the peak is on no record.
        tokens_per_s: Ceiling, all devices [token/s].
        one_device_s: One device reading what a token uses, were it large enough [s].
        all_s: The devices reading all weights, which large batches approach [s].
    """

    devices: int
    device_bytes: float
    time_s: float | Unknown
    bound: str
    tokens_per_s: float | Unknown
    one_device_s: float | Unknown
    all_s: float | Unknown


def weights_floor(
    params: Params, machine: Machine, *, concurrency: int = 1, devices: int | None = None, fraction: float = 1.0
) -> WeightsFloor | Unknown:
    """Return how many devices the weights fill, and how fast they can be read and multiplied there.

    Args:
        params: The size.
        machine: One device.
        concurrency: Sequences of a decode step.
        devices: Devices to use; None takes as many as the weights fill.
        fraction: Share of the memory that may be used.

    Formula: time = max(active bytes / (n x bandwidth), 2 x active x concurrency / (n x peak)).

    Assumes: the weights and the work divide evenly, messages cost nothing. A batch of a mixture reads at least what one
        token reads; how many experts it touches is not known without their number.
    """
    bandwidth = machine.ceilings.bandwidth(machine.memory_level, read_ratio=1.0, scope=machine.scope)
    if isinstance(bandwidth, Unknown):
        return bandwidth
    if devices is None:
        if isinstance(machine.memory_bytes, Unknown):
            return machine.memory_bytes
        devices = math.ceil(params.weight_bytes / (machine.memory_bytes * fraction))
    rate = bandwidth.value
    element = params.element
    peak = element if isinstance(element, Unknown) else machine.ceilings.peak(element, scope=machine.scope)
    read_s = params.active_bytes / rate / devices
    time_s: float | Unknown
    if not isinstance(peak, Unknown):
        multiply_s = 2.0 * params.active * concurrency / peak.value / devices
        time_s, bound = float(least_time_s([read_s, multiply_s])), "memory" if read_s >= multiply_s else "compute"
    elif concurrency == 1:
        # One token multiplies each weight once; a machine without that peak on record still has to read them.
        time_s, bound = float(least_time_s([read_s])), "undetermined"
    else:
        time_s, bound = peak, "undetermined"
    return WeightsFloor(
        devices=devices,
        device_bytes=params.weight_bytes / devices,
        time_s=time_s,
        bound=bound,
        tokens_per_s=time_s if isinstance(time_s, Unknown) else concurrency / time_s,
        one_device_s=float(least_time_s([params.active_bytes / rate])),
        all_s=float(least_time_s([params.weight_bytes / rate / devices])),
    )
