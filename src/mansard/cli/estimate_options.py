"""From the options of `mansard estimate` to a request, and its documents to the terminal or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mansard.cli import outputs
from mansard.core.errors import UsageError

if TYPE_CHECKING:
    from mansard.predict.estimate import Request
    from mansard.workload.phases import Phase
    from mansard.workload.records import Model


def request_of(options: Mapping[str, Any]) -> Request | None:
    """Return what was asked, or None where no phase was named and nothing tells it."""
    from mansard.predict.estimate import Request
    from mansard.workload.parallel import Plan
    from mansard.workload.training import Recipe

    phase = options["phase"]
    if phase is None:
        given = options["context"] is not None or options["contexts"] is not None
        phase = "decode" if given else "prefill" if options["seq"] is not None else None
    if phase is None:
        return None
    return Request(
        phase=phase,
        plan=Plan(**{name: options[name] for name in ("tp", "pp", "dp", "ep", "cp", "zero")}),
        contexts=_contexts(options["contexts"]),
        lengths=_lengths(options["lengths"]),
        recipe=Recipe(
            optimizer=options["optimizer"], recompute=options["recompute"], lora_rank=options["lora_rank"]
        ),
        routing=_routing(options["routing"]),
        tower_tokens=tower_tokens_of(options["tower_tokens"]),
        launch_s=parse_time(options["launch_cost"], "--launch-cost"),
        **{
            name: options[name]
            for name in (
                "batch", "context", "seq", "cached", "chunk", "prompts", "drafted", "acceptance", "dtype", "weights",
                "activations", "kv", "micro_batch", "accumulation", "mtp", "launches_per_layer", "overlap",
                "memory_fraction",
            )
        },
    )  # fmt: skip


def parse_time(text: str | None, option: str) -> float | None:
    """Return a time in seconds."""
    if text is None:
        return None
    from mansard.core.units import parse_quantity

    value = parse_quantity(text, "s")
    if value <= 0:
        raise UsageError(f"{option} is {text}, expected a time above zero")
    return value


def measured_s_of(phase: Phase, options: Mapping[str, Any]) -> float | None:
    """Return the measured time of one phase [s], given as such or as tokens per second of all devices.

    Raises:
        UsageError: both were given, or one is not above zero.
    """
    from mansard.predict.bound import counted_tokens

    time_s, rate = parse_time(options["measured_time"], "--measured-time"), options["measured_tokens"]
    if rate is None:
        return time_s
    if time_s is not None:
        raise UsageError("--measured-time and --measured-tokens say the same", hint="give one of them")
    if not 0 < rate < float("inf"):
        raise UsageError(f"--measured-tokens is {rate:g}, expected a rate above zero")
    return float(counted_tokens(phase)) / float(rate)


def parse_reported(rate: str | None, tokens: float | None) -> tuple[float, float] | None:
    """Return a reported rate and its tokens per second."""
    if rate is None and tokens is None:
        return None
    if rate is None or tokens is None:
        raise UsageError("a report needs both --reported and --reported-tokens")
    from mansard.core.units import parse_quantity

    return parse_quantity(rate, "flop_per_s"), tokens


def _contexts(text: str | None) -> tuple[tuple[int, int], ...] | None:
    if text is None:
        return None
    pairs = []
    for part in text.split(","):
        length, colon, many = part.partition(":")
        if not colon or not length.strip().isdigit() or not many.strip().isdigit():
            raise UsageError(f"cannot read {part!r} of --contexts", hint="length:sequences, such as 1024:30,8192:2")
        pairs.append((int(length), int(many)))
    return tuple(pairs)


def _lengths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(p.strip().isdigit() for p in parts):
        raise UsageError(f"cannot read --lengths {text!r}", hint="whole numbers, such as 1024,700,324")
    return tuple(int(p) for p in parts)


def _routing(path: Path | None) -> tuple[float, ...] | None:
    if path is None:
        return None
    from mansard.core.errors import InputError

    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return tuple(float(v) for v in values)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a JSON list of numbers: {error}", hint="one number per expert") from None


def tower_tokens_of(texts: tuple[str, ...]) -> dict[str, int]:
    """Return tokens per sequence of towers, from texts such as `vision=1024`.

    Raises:
        UsageError: not readable.
    """
    out: dict[str, int] = {}
    for text in texts:
        name, equals, count = text.partition("=")
        if not equals or not count.strip().isdigit() or int(count) < 1:
            raise UsageError(f"cannot read --tower-tokens {text!r}", hint="NAME=N, such as vision=1024")
        out[name.strip()] = int(count)
    return out


def describe_only(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a model when no phase was asked for: its counts alone."""
    from mansard.core.document import header, to_jsonable
    from mansard.workload.counts import count_params

    if any(options[name] is not None for name in ("on", "measured_time", "measured_tokens", "reported")):
        raise UsageError(
            "a bound needs a phase",
            hint="add --context N for a decode step, --seq N for a prefill, or --phase train --seq N",
        )
    document = {
        **header("estimate/1", {"model": model.source, "machine": options["on"]}),
        "model": {"name": model.name, **count_params(model).to_json()},
        "phase": None,
        "next": "add --context N for a decode step, --seq N for a prefill, or --phase train --seq N",
    }
    plain: dict[str, Any] = to_jsonable(document)
    return plain


def deliver(document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Print a document in plain JSON types, as text or as JSON, and write it where asked."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    target: Path | None = options["output"]
    content = _csv(document) if target is not None and target.suffix == ".csv" and "rows" in document else text

    def show() -> None:
        click.echo(text if options["as_json"] else _text(document) + "\n", nl=False)

    outputs.deliver(show, [(target, lambda: content)], force=options["force"])


def _text(document: Mapping[str, Any]) -> str:
    from mansard.report.estimate_text import estimate_text, model_text, sweep_text

    if "rows" in document:
        return sweep_text(document["columns"], document["rows"])
    if document["phase"] is None:
        return model_text(document)
    return estimate_text(document)


def _csv(document: Mapping[str, Any]) -> str:
    """Return the rows of a sweep as CSV; what is not known stays empty, with its reason in the last column."""
    import csv
    import io

    numbers = ["flop", "bytes", "time_bound_s", "tokens_per_s", "bound", "memory_bytes", "fits"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(document["columns"])
    writer.writerow([*columns, *numbers, "note"])
    for row in document["rows"]:
        values = [row.get(n) for n in numbers]
        unknown = next((v["unknown"] for v in values if isinstance(v, Mapping) and "unknown" in v), "")
        note = row["error"]["message"] if "error" in row else unknown
        plain = ["" if v is None or isinstance(v, Mapping) else v for v in values]
        writer.writerow([*[row[c] for c in columns], *plain, note])
    return out.getvalue()
