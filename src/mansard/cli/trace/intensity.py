"""`mansard trace intensity`: FLOP per byte of a device in a window, against its ridge point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mansard.cli.trace.common import file_options

if TYPE_CHECKING:
    from mansard.core.unknown import Unknown
    from mansard.trace.run import Finding
    from mansard.trace.timeline import Timeline


@click.command("intensity", short_help="FLOP per byte of a window against the ridge point.")
@file_options
@click.option(
    "--flops", "--theoretical-flops", "flops", metavar="X", help='FLOP on this device: "100 TFLOP", or plain FLOP.'
)
@click.option(
    "--bytes",
    "--bytes-moved",
    "moved",
    metavar="X",
    help='Bytes to and from its main memory: "500 GB", or plain bytes.',
)
@click.option(
    "--flops-of",
    type=click.Choice(["window", "profile"]),
    help="With --trim: what --flops and --bytes count; those of the whole profile are scaled by kernel time.",
)
@click.option("--dtype", help="Element type of the matrix work, such as bf16.")
@click.option("--peak", metavar="RATE", help='Dense peak, "989 TFLOP/s"; wins over the catalogue.')
@click.option("--peak-tflops", type=float, help="The same as a plain number of TFLOP/s.")
@click.option("--bandwidth", metavar="RATE", help='Memory bandwidth, "3.35 TB/s"; wins over the catalogue.')
@click.option("--hbm-bw-gbps", type=float, help="The same as a plain number of GB/s.")
@click.option("--hardware", metavar="NAME", help="The product, where the file does not tell.")
def command(**options: Any) -> int:
    """Arithmetic intensity of one device of FILE. Without bytes there is no class.

    Exit code 3 where the bound is undetermined or a share is above 1.

    \b
      mansard trace intensity profile.sqlite --device 0 --flops 1e14 --bytes 5e11 --peak "989 TFLOP/s" --bandwidth "3.35 TB/s"
    """  # fmt: skip
    from mansard.cli.trace.common import amount, deliver, device_index, read
    from mansard.cli.trace.mfu import peak_of
    from mansard.core.errors import UndecidedError, UsageError
    from mansard.core.unknown import Implausible
    from mansard.diagnose.peaks import compute_peak, identify, memory_bandwidth
    from mansard.diagnose.utilisation import intensity
    from mansard.report.trace_document import intensity_document, no_kernel_findings
    from mansard.report.trace_text import intensity_lines

    if options["bandwidth"] is not None and options["hbm_bw_gbps"] is not None:
        raise UsageError("--bandwidth and --hbm-bw-gbps are the same thing", hint="give one of them")
    given = amount(options["bandwidth"], "bytes_per_s", "--bandwidth")
    if options["hbm_bw_gbps"] is not None:
        given = amount(str(options["hbm_bw_gbps"]), "bytes_per_s", "--hbm-bw-gbps", scale=1e9)
    peak = peak_of(options)
    timeline = read(options)
    empty = no_kernel_findings(timeline)
    if empty:
        raise UndecidedError(empty[0].text, hint="choose another --trim" if options["trim"] else "", code="no_kernels")
    device = _device(timeline, device_index(timeline, options["device"]))
    flop, moved, findings = _amounts(timeline, options, device)
    chip = identify([timeline.devices[device]], hardware=options["hardware"])
    found = intensity(
        timeline, device=device, flop=flop, moved_bytes=moved,
        peak=compute_peak(chip, given_flop_per_s=peak, dtype=options["dtype"]),
        bandwidth=memory_bandwidth(chip, given_bytes_per_s=given), findings=findings,
    )  # fmt: skip
    scope = f"window {options['trim'][0]} to {options['trim'][1]}" if options["trim"] else "whole profile"
    document = intensity_document(timeline, found, timeline.devices[device], chip, scope)
    deliver(document, intensity_lines, as_json=options["as_json"])
    above = isinstance(found.share_of_ceiling, Implausible) or isinstance(found.compute_share, Implausible)
    return 3 if above or found.bound.value == "undetermined" or document["status"] != "complete" else 0


def _device(timeline: Timeline, chosen: int | None) -> int:
    """Return the device to judge; several are never taken together."""
    from mansard.core.errors import UsageError

    if chosen is not None:
        return chosen
    used = timeline.used_devices
    if len(used) == 1:
        return used[0]
    shown = ", ".join(timeline.devices[d].shown for d in used)
    raise UsageError(
        f"the profile has work on devices {shown}",
        hint="choose one with --device; devices are never merged",
        code="which_device",
    )


def _amounts(
    timeline: Timeline, options: Mapping[str, Any], device: int
) -> tuple[float | Unknown, float | Unknown, list[Finding]]:
    """Return FLOP and bytes of what is judged; those of a whole profile are scaled to a window, never left whole."""
    from mansard.cli.trace.common import amount
    from mansard.core.errors import UsageError
    from mansard.core.unknown import Unknown
    from mansard.trace.run import Finding

    flop, moved = amount(options["flops"], "flop", "--flops"), amount(options["moved"], "bytes", "--bytes")
    findings: list[Finding] = []
    share = 1.0
    if options["trim"] and (flop is not None or moved is not None):
        if options["flops_of"] is None:
            raise UsageError(
                "with --trim it must be said whether --flops and --bytes are those of the window or of the whole profile",
                hint="--flops-of window, or --flops-of profile to scale them by kernel time",
                code="scope_of_flop",
            )
        if options["flops_of"] == "profile":
            share = _window_share(timeline, options, device)
            text = f"FLOP and bytes of the whole profile are scaled by the window's share of kernel time, {share:.4f}; assumed: the work is alike everywhere"
            findings.append(Finding(code="scaled_to_window", text=text))
    elif options["flops_of"] is not None and not options["trim"]:
        raise UsageError("--flops-of belongs to --trim")
    return (
        flop * share if flop is not None else Unknown("the FLOP are not given", ("--flops",)),
        moved * share
        if moved is not None
        else Unknown("the bytes are not given", ("--bytes", "an Nsight Compute report")),
        findings,
    )


def _window_share(window: Timeline, options: Mapping[str, Any], device: int) -> float:
    """Return the window's share of the device's summed kernel time."""
    from mansard.cli.trace.common import read
    from mansard.trace.timeline import Kind

    whole = read({**options, "trim": None}, kinds=(Kind.KERNEL,))
    kernels, part = whole.of(Kind.KERNEL), window.of(Kind.KERNEL)
    number = window.devices[device].number
    mask = [whole.devices[d].number == number for d in range(len(whole.devices))]
    total = sum(int(kernels.duration_ns[kernels.device == d].sum()) for d, hit in enumerate(mask) if hit)
    return int(part.duration_ns[part.device == device].sum()) / total
