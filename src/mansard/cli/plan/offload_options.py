"""From the options of `mansard plan offload` to a link, a host, a routing and cache sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.core import Unknown, short_dtype
from mansard.core.errors import InputError, UsageError
from mansard.core.units import parse_quantity

if TYPE_CHECKING:
    from mansard.plan.link_use import LinkUse
    from mansard.plan.offload import Bank, Rest, Routing

#: A recorded routing larger than this is read in parts by its owner.
LARGEST_TRACE_BYTES = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link as it is used: effective bandwidth [B/s], where it comes from, and what would fill it."""

    rate: float
    source: str
    use: LinkUse | None
    notes: tuple[str, ...] = ()


def link_of(options: Mapping[str, Any], bank: Bank | None) -> Link:
    """Return the effective bandwidth of the link: what was observed, else what it does when full.

    Raises:
        UsageError: no link, or half of an observation.
    """
    from mansard.plan.link_use import link_use, observed_bytes_per_s

    limit, source = limit_of(options)
    observed = _rate(options["observed_rate"])
    if (options["observed_misses"] is None) != (options["observed_time"] is None):
        raise UsageError("counted misses need their time", hint="--observed-misses N with --observed-time TIME")
    if options["observed_misses"] is not None:
        if observed is not None:
            raise UsageError("the bandwidth was observed twice", hint="--observed-rate, or misses and time")
        unit = bank.unit_bytes if bank else None
        if unit is None:
            if options["unit_bytes"] is None:
                raise UsageError("misses have no size", hint="name a MODEL, or add --unit-bytes SIZE")
            unit = parse_quantity(options["unit_bytes"], "bytes")
        observed = observed_bytes_per_s(
            misses=options["observed_misses"], unit_bytes=unit, time_s=parse_quantity(options["observed_time"], "s")
        )
    flight = _in_flight(options)
    if flight is not None and observed is None:
        raise UsageError("bytes in flight say nothing without the bandwidth they gave", hint="add --observed-rate")
    if observed is None:
        return Link(rate=limit, source=source, use=None, notes=(f"the link is taken to run at its ceiling, {source}",))
    if flight is None:
        if observed > limit * 1.03:
            raise UsageError(
                f"{observed / 1e9:.3g} GB/s were observed on a link of {limit / 1e9:.3g} GB/s ({source})",
                hint="check misses, bytes and time; hits do not cross the link",
            )
        return Link(rate=observed, source="observed", use=None)
    use = link_use(in_flight_bytes=flight, observed_bytes_per_s=observed, limit_bytes_per_s=limit)
    return Link(rate=observed, source="observed", use=use)


def limit_of(options: Mapping[str, Any]) -> tuple[float, str]:
    """Bandwidth of the full link, and where it comes from."""
    given = _rate(options["link_rate"])
    if given is not None:
        return given, "given"
    if options["on"] is None:
        raise UsageError("no link was described", hint='add --on DEVICE, or --link-rate "31 GB/s"')
    name = options["on"]
    if name.endswith(".json"):
        raise UsageError(f"{name} does not say which link goes to the host", hint='add --link-rate "31 GB/s"')
    from mansard.hardware.catalogue import load

    sku = load(name)
    wanted = options["link_name"]
    links = [k for k in sku.links if (k.name == wanted if wanted else k.role == "host")]
    if not links:
        known = ", ".join(k.name for k in sku.links) or "none"
        raise UsageError(
            f"{sku.name} has no {wanted or 'host link'} on record (links: {known})", hint='add --link-rate "31 GB/s"'
        )
    return links[0].bytes_per_s / sku.package.devices, f"{links[0].name}, declared by the vendor"


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    value = parse_quantity(text, "bytes_per_s")
    if value <= 0:
        raise UsageError(f"a bandwidth is {text}, expected one above zero")
    return value


def _in_flight(options: Mapping[str, Any]) -> float | None:
    threads, each = options["threads"], options["bytes_per_thread"]
    if (threads is None) != (each is None):
        raise UsageError("--threads and --bytes-per-thread belong together")
    if threads is not None and options["in_flight"] is not None:
        raise UsageError("bytes in flight were given twice", hint="--in-flight, or threads and their bytes")
    if threads is not None:
        return float(threads) * float(each)
    return None if options["in_flight"] is None else parse_quantity(options["in_flight"], "bytes")


def cpu_of(options: Mapping[str, Any]) -> tuple[float | Unknown, float | Unknown]:
    """Return memory bandwidth and peak of the host [B/s, FLOP/s]."""
    none = Unknown("no host processor was given", ("--host", "--cpu-bandwidth"))
    bandwidth: float | Unknown = none
    peak: float | Unknown = Unknown("no peak of the host was given", ("--host", "--cpu-peak"))
    if options["host"] is not None:
        from mansard.predict.machines import load_machine

        machine = load_machine(options["host"])
        found = machine.ceilings.bandwidth(machine.memory_level, read_ratio=1.0, scope=machine.scope)
        bandwidth = found if isinstance(found, Unknown) else found.value
        dtype = options["dtype"]
        if dtype is not None:
            engines = [
                machine.ceilings.peak(short_dtype(dtype), engine=e, scope=machine.scope) for e in ("matrix", "vector")
            ]
            known = [e.value for e in engines if not isinstance(e, Unknown)]
            peak = max(known) if known else Unknown(f"no {dtype} peak of {machine.name} is on record", ("--cpu-peak",))
        else:
            peak = Unknown("the type the host would multiply in is not given", ("--dtype", "--cpu-peak"))
    if options["cpu_bandwidth"] is not None:
        bandwidth = _rate(options["cpu_bandwidth"]) or none
    if options["cpu_peak"] is not None:
        peak = parse_quantity(options["cpu_peak"], "flop_per_s")
        if peak <= 0:
            raise UsageError(f"--cpu-peak is {options['cpu_peak']}, expected one above zero")
    return bandwidth, peak


def sizes_of(options: Mapping[str, Any], bank: Bank, rest: Rest) -> tuple[int, ...]:
    """Return the cache sizes to look at."""
    from mansard.plan.offload import sizes

    text = options["cache"]
    if text is None:
        return sizes(bank, rest)
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdigit() for p in parts):
        raise UsageError(f"cannot read --cache {text!r}", hint="whole numbers of units per layer, such as 16,32,64")
    return sizes(bank, rest, [int(p) for p in parts])


def routing_of(options: Mapping[str, Any], bank: Bank) -> Routing:
    """Return how units are asked for.

    Raises:
        UsageError: no such distribution.
        InputError: a trace that cannot be read.
    """
    from mansard.plan.expert_cache import inclusion, zipf
    from mansard.plan.offload import Routing

    text = options["routing"]
    if bank.unit == "layer":
        if text is not None:
            raise UsageError("layers are walked through in order, so --routing has no meaning")
        return Routing(name="in order")
    if text is None:
        raise UsageError(
            "which experts are asked for is not known", hint="add --routing uniform, zipf:1.0 or trace:FILE"
        )
    kind, _, value = text.partition(":")
    if kind == "uniform" and not value:
        return Routing(name="uniform", token=inclusion([1.0] * bank.items, bank.per_token))
    if kind == "zipf":
        try:
            exponent = float(value)
        except ValueError:
            raise UsageError(f"cannot read --routing {text!r}", hint="such as zipf:1.0") from None
        return Routing(name=f"zipf {exponent:g}", token=inclusion(zipf(bank.items, exponent), bank.per_token))
    if kind == "trace" and value:
        return Routing(name=f"trace {value}", replays=_replays(Path(value), bank, options["batch"]))
    raise UsageError(f"unknown routing {text!r}", hint="uniform, zipf:EXPONENT or trace:FILE")


def _replays(path: Path, bank: Bank, batch: int) -> tuple[Any, ...]:
    """Replay each recorded layer, `batch` tokens in a step."""
    from mansard.plan.expert_cache import replay

    layers = read_trace(path)
    found = []
    for tokens in layers:
        steps = [[e for token in tokens[i : i + batch] for e in token] for i in range(0, len(tokens), batch)]
        found.append(replay(steps, items=bank.items))
    return tuple(found)


def read_trace(path: Path) -> list[list[list[int]]]:
    """Return the experts of each token of each layer of a recorded routing.

    Args:
        path: JSON: a list of tokens, each a list of expert numbers (one layer), or an object with such a list for each
            layer; or text, one token on a line, its experts separated by spaces or commas.

    Raises:
        InputError: it is none of these.
    """
    try:
        if path.stat().st_size > LARGEST_TRACE_BYTES:
            raise InputError(f"{path} is larger than {LARGEST_TRACE_BYTES:,} bytes", hint="record fewer tokens")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text, expected a recorded routing") from None
    wrong = InputError(
        f"{path} is no recorded routing",
        hint="a JSON list of tokens, each a list of expert numbers, or one token a line",
    )
    if text.lstrip()[:1] in ("[", "{"):
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{path} is not valid JSON: {error}") from None
        layers = list(data.values()) if isinstance(data, dict) else [data]
    else:
        rows = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
        if not all(word.isdigit() for row in rows for word in row):
            raise wrong
        layers = [[[int(word) for word in row] for row in rows]]
    for layer in layers:
        if not isinstance(layer, list) or not layer or not all(_is_token(token) for token in layer):
            raise wrong
    if not layers:
        raise wrong
    return layers


def _is_token(token: Any) -> bool:
    return isinstance(token, list) and all(type(e) is int and e >= 0 for e in token)
