"""`mansard hardware`: the catalogue, which product is this, and peaks from units x width x clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mansard.cli import options as shared

if TYPE_CHECKING:
    from mansard.hardware.systems import System

F = TypeVar("F", bound=Callable[..., Any])


def _common(function: F) -> F:
    """Add the options every subcommand has."""
    folder = click.option(
        "--hardware-dir", "folders", multiple=True, type=click.Path(path_type=Path),
        help="A hardware file or a folder of them; may be repeated. MANSARD_HARDWARE_PATH names more.",
    )  # fmt: skip
    as_json = shared.as_json
    return folder(as_json(function))


@click.group(
    "hardware",
    short_help="What a machine should do on paper.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """What a machine should do on paper, and which one it is.

    \b
      mansard hardware list
      mansard hardware show h100-sxm
      mansard hardware match "NVIDIA H100 80GB HBM3"
      mansard hardware peak h100-sxm --clock "1.98 GHz"
    """


def _print(schema: str, document: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    if as_json:
        from mansard.core.document import dumps, header

        click.echo(dumps({**header(schema, {}), **document}), nl=False)
    else:
        for line in lines:
            click.echo(line)


@command.command("list", short_help="Every product on record.")
@click.option(
    "--kind", type=click.Choice(["gpu", "tpu", "accelerator", "cpu", "cpu-family"]), help="Of this kind alone."
)
@_common
def list_(kind: str | None, folders: tuple[Path, ...], as_json: bool) -> None:
    """List every product on record, the user's own first; figures are of one device as the runtime shows it.

    \b
      mansard hardware list --kind tpu
    """
    from mansard.cli.outputs import stdout_width
    from mansard.hardware.catalogue import entries
    from mansard.hardware.describe import show_document
    from mansard.report.hardware_text import list_lines

    skus = [e.sku() for e in entries(folders) if kind in (None, e.kind)]
    shown = [(s, show_document(s)) for s in skus]
    document = {"hardware": [{**s.to_json(), "aliases": d["aliases"], "package": d["package"], "peaks": d["peaks"],
                              "memory": d["memory"]} for s, d in shown]}  # fmt: skip
    _print("hardware_list/1", document, list_lines(shown, width=stdout_width()), as_json)


@command.command("show", short_help="One product, with the receipt of each number.")
@click.argument("name")
@_common
def show(name: str, folders: tuple[Path, ...], as_json: bool) -> None:
    """Show NAME (short name, exact product name, or a hardware file) with source, date and certainty of each number.

    \b
      mansard hardware show h200
      mansard hardware show mi250x --json
    """
    from mansard.cli.outputs import stdout_width
    from mansard.hardware.catalogue import load
    from mansard.hardware.describe import show_document
    from mansard.report.hardware_text import show_lines

    document = show_document(load(name, directories=folders))
    _print("hardware_show/1", document, show_lines(document, width=stdout_width()), as_json)


@command.command("match", short_help="Which product is this?")
@click.argument("name", required=False)
@click.option("--memory", help='Memory the driver reports, "80 GiB"; a check.')
@click.option("--bandwidth", help='Memory bandwidth a profile states, "4.8 TB/s"; a check.')
@click.option("--multiprocessors", type=click.IntRange(min=1), help="SMs or compute units of the device; a check.")
@click.option("--pci", help="PCI id, 10de:2330 or 0x233010DE.")
@_common
def match_(
    name: str | None,
    memory: str | None,
    bandwidth: str | None,
    multiprocessors: int | None,
    pci: str | None,
    folders: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Say which product NAME is; without NAME and --pci, which products this machine has.

    Only exact identity decides. Exit code 3 where a name is ambiguous or unknown.

    \b
      mansard hardware match
      mansard hardware match "NVIDIA H100 80GB HBM3" --memory "79.6 GiB"
      mansard hardware match --pci 10de:20b2
      mansard hardware match tpu7x-8
      mansard hardware match "DGX H100"
    """
    from mansard.cli.outputs import stdout_width
    from mansard.core.units import parse_quantity
    from mansard.hardware.detect import detect
    from mansard.hardware.matching import match
    from mansard.hardware.slices import tpu_slice
    from mansard.hardware.systems import system
    from mansard.report.hardware_text import device_lines, match_lines

    if name is None and pci is None:
        found = detect(directories=folders)
        document: dict[str, Any] = {
            "devices": [d.to_json() for d in found.devices],
            "not_asked": [n.to_json() for n in found.notes],
        }
        _print("hardware_match/1", document, device_lines(found, width=stdout_width()), as_json)
        return 0
    part = tpu_slice(name or "", directories=folders)
    if part is not None:
        slice_ = {"chips": part.chips, "devices": part.devices}
        reason = f"{part.reason}: {part.chips} chips, {part.devices} devices"
        document = {"name": name, "status": "exact", "matched": part.sku.slug, "product": part.sku.name, "candidates": [],
                    "reason": reason, "needs": [], "slice": slice_}  # fmt: skip
        _print("hardware_match/1", document, [f"{name!r} is a slice of {part.sku.slug}", f"  {reason}"], as_json)
        return 0
    whole = system(name) if name and pci is None else None
    if whole is not None:
        return _whole_system(whole, name or "", as_json)
    answer = match(
        name or "",
        memory_bytes=parse_quantity(memory, "bytes") if memory else None,
        memory_bytes_per_s=parse_quantity(bandwidth, "bytes_per_s") if bandwidth else None,
        multiprocessors=multiprocessors,
        pci_device_id=pci,
        directories=folders,
    )
    shown = name if name is not None else f"PCI {pci}"
    _print("hardware_match/1", {"name": shown, **answer.to_json()}, match_lines(shown, answer), as_json)
    return 0 if answer.status == "exact" else 3


def _whole_system(whole: System, name: str, as_json: bool) -> int:
    """Say what a system holds; its name does not always tell which product."""
    only = whole.devices[0] if len(whole.devices) == 1 else None
    document = {"name": name, "status": "exact" if only else "ambiguous", "matched": only, "product": None,
                "candidates": list(whole.devices), "reason": f"a system that holds {whole.text}", "needs": [],
                "system": whole.to_json()}  # fmt: skip
    lines = [f"{name!r} is a system, not a device: it holds {whole.text}", f"  source: {whole.source}"]
    _print("hardware_match/1", document, lines, as_json)
    return 0 if only else 3


@command.command("peak", short_help="Peaks from units x width x clock, beside what the vendor declares.")
@click.argument("name", required=False)
@click.option("--dtype", help="Element type, such as bf16; needed for a share.")
@click.option("--accumulate", help="Accumulate type, such as f32.")
@click.option("--engine", type=click.Choice(["matrix", "vector"]), help="Matrix or vector units alone.")
@click.option("--scope", type=click.Choice(["core", "die", "device", "node"]), default="device", show_default=True,
              help="How much of it; a device is what the runtime shows.")  # fmt: skip
@click.option("--devices", type=click.IntRange(min=1), help="Devices of a node.")
@click.option("--cores", type=click.IntRange(min=1), help="So many cores or SMs, instead of a scope.")
@click.option("--clock", help='The observed clock, "1.98 GHz".')
@click.option("--units", type=float, help="Without NAME: how many units.")
@click.option("--width", type=float, help="Without NAME: multiply-adds of one unit per cycle.")
@click.option("--mix", help='Peak of work in several types, by shares of the FLOP: "bf16=0.25,fp8=0.75".')
@click.option("--achieved", help='A rate to compare, "400 TFLOP/s" or "3.0 TB/s".')
@click.option("--peak", "peak", help='What to compare with, "2250 TFLOP/s"; wins over the catalogue.')
@click.option(
    "--of", "of", help="The memory level or link that bytes per second are compared with.  [default: the main memory]"
)
@click.option("--gemm", "gemm_size", type=click.IntRange(min=1), help="Bound a square product of this size.")
@click.option("--fixed-cost", help='Size that hides this cost of a call, "12 us".')
@click.option("--latency", help='Bytes under way that fill each memory and link, "1 us".')
@click.option("--in-flight", help='With --latency: bandwidth that so many bytes under way give, "9.4 MB".')
@_common
def peak_(name: str | None, folders: tuple[Path, ...], as_json: bool, **given: Any) -> int:
    """Derive the peaks of NAME, or of so many units of a width at a clock.

    FLOP/s = units x width x 2 x clock; a multiply-add is 2 FLOP. Derived stands beside declared, with their ratio and what
    it implies. Exit code 3 where a share was asked for and the peak is unknown, or the share is above 1.

    \b
      mansard hardware peak grace --cores 1
      mansard hardware peak h100-sxm --clock "1.6 GHz" --dtype tf32 \\
        --achieved "399 TFLOP/s"
      mansard hardware peak zen5 --cores 8 --clock "4.2 GHz"
      mansard hardware peak gh200-96gb --gemm 512 --fixed-cost "12.1 us"
      mansard hardware peak h100-sxm --mix bf16=0.25,fp8=0.75 \\
        --achieved "600 TFLOP/s"
      mansard hardware peak h200 --achieved "4.1 TB/s"
      mansard hardware peak h100-sxm --of nvlink --achieved "360 GB/s"
      mansard hardware peak --units 288 --width 4 --clock "3.1 GHz"
    """
    if _is_bandwidth(given["achieved"]):
        return _bandwidth(name, folders, as_json, given)
    if given["of"] is not None:
        from mansard.core.errors import UsageError

        raise UsageError("--of says what bytes per second are compared with", hint='add --achieved "3.0 TB/s"')
    return _peak(name, folders, as_json, given)


def _is_bandwidth(text: str | None) -> bool:
    """Return whether a rate is one of bytes; what cannot be read is left to its reader."""
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity

    if text is None:
        return False
    try:
        parse_quantity(text, "bytes_per_s")
    except UsageError:
        return False
    return True


def _bandwidth(name: str | None, folders: tuple[Path, ...], as_json: bool, given: Mapping[str, Any]) -> int:
    """Say which share of a memory level or link a rate of bytes is."""
    from mansard.core.errors import UsageError
    from mansard.core.units import format_bytes_per_s, format_ratio, parse_quantity
    from mansard.core.unknown import Implausible, Unknown
    from mansard.hardware.rates import bandwidth_share

    stray = [k for k in ("dtype", "accumulate", "engine", "mix", "units", "width", "clock", "cores", "gemm_size", "fixed_cost",
                         "latency", "in_flight", "devices") if given[k] is not None]  # fmt: skip
    if stray:
        raise UsageError(f"--{stray[0].replace('_', '-')} has no meaning for bytes per second", hint="leave it out")
    achieved = parse_quantity(given["achieved"], "bytes_per_s")
    ceiling = None if given["peak"] is None else parse_quantity(given["peak"], "bytes_per_s")
    if achieved <= 0 or ceiling == 0:
        raise UsageError("--achieved and --peak must be above 0")
    if name is None and ceiling is None:
        raise UsageError("a share needs NAME or --peak", hint="mansard hardware list shows the names")
    sku, missing = (None, "") if name is None else _known(name, folders, wanted=True)
    found = bandwidth_share(achieved, sku=sku, of=given["of"], scope=given["scope"], ceiling_bytes_per_s=ceiling,
                            missing=missing)  # fmt: skip
    share = found["share"]
    lines = [f"achieved {format_bytes_per_s(achieved)}"]
    if isinstance(share, Unknown):
        lines += [f"share unknown: {share.reason}", *(f"  needs: {n}" for n in share.needs)]
    else:
        way = ", one way" if found["one_way"] else ""
        lines.append(
            f"{found['of'] or 'ceiling'} {format_bytes_per_s(found['ceiling_bytes_per_s'])}{way}: {found['ceiling_from']}"
        )
        if sku is not None and ceiling is None and given["scope"] == "device" and sku.package.devices > 1:
            lines.append(f"  of one device; a package holds {sku.package.devices}")
        lines += (
            [f"implausible: {share.value:.2f} times that", *(f"  suspect: {s}" for s in share.suspects)]
            if isinstance(share, Implausible)
            else [f"share of it {format_ratio(share)}"]
        )
    _print("hardware_peak/1", {"name": name, "achieved": found}, lines, as_json)
    return 0 if isinstance(share, float) else 3


def _peak(name: str | None, folders: tuple[Path, ...], as_json: bool, given: Mapping[str, Any]) -> int:
    from mansard.cli.outputs import stdout_width
    from mansard.core.errors import UsageError
    from mansard.core.units import parse_quantity
    from mansard.core.unknown import is_known
    from mansard.hardware.describe import mixed, no_peak, peak_document, utilisation
    from mansard.report.hardware_text import mix_lines, peak_lines, share_lines

    def read(key: str, dimension: str) -> float | None:
        return parse_quantity(given[key], dimension) if given[key] is not None else None

    achieved, peak = read("achieved", "flop_per_s"), read("peak", "flop_per_s")
    for word, value in (("--achieved", achieved), ("--peak", peak)):
        if value is not None and value <= 0:
            raise UsageError(f"{word} must be above 0")
    if peak is not None and achieved is None:
        raise UsageError("--peak is the peak to compare with", hint='add --achieved "400 TFLOP/s"')
    if name is None:
        if given["units"] is None and peak is not None and achieved is not None:
            document: dict[str, Any] = utilisation(achieved, rows=None, peak_flop_per_s=peak, dtype=None)
            _print("hardware_peak/1", {"achieved": document}, share_lines(document), as_json)
            return 0 if is_known(document["share"]) else 3
        return _bare(given, read("clock", "hz"), as_json)
    if given["units"] is not None or given["width"] is not None:
        raise UsageError(
            "--units and --width are for a peak without NAME", hint="leave out NAME, or write a hardware file"
        )
    sku, missing = _known(name, folders, wanted=achieved is not None)
    lines: list[str] = []
    mix_peak: float | None = None
    document = {"name": name}
    if sku is not None:
        document = peak_document(sku, _question(given, read))
        asked = _dtype(given["dtype"])
        none = [r for r in document["rows"] if r["dtype"] == asked] == [] and document["unit_peaks"] == []
        if asked is not None and none and achieved is None:
            kind = [given["engine"], f"into {given['accumulate']}" if given["accumulate"] else None]
            document["no_peak"] = no_peak(" ".join([asked, *(k for k in kind if k)]))
        lines = peak_lines(document, width=stdout_width())
        if given["mix"] is not None:
            document["mix"] = mixed(document["rows"], _mix(given))
            lines = [*lines, "", *mix_lines(document["mix"])]
            mix_peak = document["mix"]["flop_per_s"]
    code = 0
    if achieved is not None:
        rows = document["rows"] if sku is not None else None
        dtype = _dtype(given["dtype"])
        shared = utilisation(achieved, rows=rows, peak_flop_per_s=peak or mix_peak, dtype=dtype, missing=missing)
        if mix_peak is not None and peak is None:
            shared["peak_from"] = f"the mix {given['mix']}"
        document["achieved"] = shared
        lines = [*lines, *([""] if lines else []), *share_lines(shared)]
        code = 0 if is_known(shared["share"]) else 3
    _print("hardware_peak/1", document, lines, as_json)
    return code


def _dtype(name: str | None) -> str | None:
    """Return the short name of the element type that was asked for."""
    from mansard.hardware.describe import checked_dtype

    return checked_dtype(name)


def _mix(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of a mix by element type."""
    from mansard.core.errors import UsageError

    if given["dtype"] is not None or given["engine"] is not None:
        raise UsageError("--mix names its own element types", hint="leave out --dtype and --engine")
    found: dict[str, float] = {}
    for part in given["mix"].split(","):
        name, _, text = part.partition("=")
        dtype = _dtype(name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0) or dtype is None or dtype in found:
            raise UsageError(f"cannot read {part!r} in --mix {given['mix']!r}", hint='like "bf16=0.25,fp8=0.75"')
        found[dtype] = value
    return found


def _known(name: str, folders: tuple[Path, ...], *, wanted: bool) -> tuple[Any, str]:
    """Return the product, or why it is not known where a rate is still to be shown."""
    from mansard.core.errors import UsageError
    from mansard.hardware.catalogue import load

    try:
        return load(name, directories=folders), ""
    except UsageError as error:
        if not wanted or not error.code.startswith("hardware_"):
            raise
        return None, error.message


def _question(given: Mapping[str, Any], read: Callable[[str, str], float | None]) -> Any:
    from mansard.core.errors import UsageError
    from mansard.hardware.describe import Question

    latency = read("latency", "s")
    if given["in_flight"] is not None and latency is None:
        raise UsageError("--in-flight needs --latency", hint='--latency "1 us"')
    return Question(
        scope=given["scope"],
        devices=given["devices"],
        clock_hz=read("clock", "hz"),
        cores=given["cores"],
        dtype=_dtype(given["dtype"]),
        accumulate=_dtype(given["accumulate"]),
        engine=given["engine"],
        gemm_size=given["gemm_size"],
        fixed_s=read("fixed_cost", "s"),
        latency_s=latency,
        in_flight_bytes=read("in_flight", "bytes"),
    )


def _bare(given: Mapping[str, Any], clock_hz: float | None, as_json: bool) -> int:
    """Derive the peak of numbers alone."""
    from mansard.core.errors import UsageError
    from mansard.core.units import format_flop_per_s, format_hz
    from mansard.hardware.derive import derive_peak

    units, width = given["units"], given["width"]
    if units is None or width is None or clock_hz is None:
        raise UsageError(
            "a peak needs NAME, or --units, --width and --clock", hint="mansard hardware list shows the names"
        )
    rate = derive_peak(units=units, width=width, clock_hz=clock_hz)
    text = f"{units:g} units x {width:g} x 2 x {format_hz(clock_hz)} = {format_flop_per_s(rate)}"
    document = {"units": units, "width": width, "clock_hz": clock_hz, "flop_per_s": rate, "formula": text}
    _print("hardware_peak/1", document, [text], as_json)
    return 0
