"""`mansard trace intensity`: FLOP per byte of a device in a window, against its ridge point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mansard.cli import options as shared
from mansard.cli.trace.common import file_options, ncu_option

if TYPE_CHECKING:
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
@ncu_option
@click.option("--kernel", metavar="NAME", help="Only kernels with this name; `*` and `?` are wildcards.")
@shared.work_dtype
@click.option("--peak", metavar="RATE", help='Dense peak, "989 TFLOP/s"; wins over the catalogue.')
@shared.peak_tflops
@click.option("--bandwidth", metavar="RATE", help='Memory bandwidth, "3.35 TB/s"; wins over the catalogue.')
@click.option("--hbm-bw-gbps", type=float, help="The same as a plain number of GB/s.")
@shared.hardware
def command(**options: Any) -> int:
    """Arithmetic intensity of one device of FILE. Without bytes there is no class.

    FLOP and bytes are given, or measured (--ncu, or FILE is such a report), or counted from recorded shapes or programs; then
    they are those of the kernels they are known for, whose share of kernel time is printed.
    Exit code 3 where the bound is undetermined or a share is above 1.

    \b
      mansard trace intensity profile.sqlite --device 0 --flops 1e14 \\
        --bytes 5e11 --peak "989 TFLOP/s" --bandwidth "3.35 TB/s"
      mansard trace intensity trace.json.gz --hardware h100-sxm
    """  # fmt: skip
    from mansard.cli.trace.amounts import amounts
    from mansard.cli.trace.common import deliver, read, with_demands
    from mansard.cli.trace.mfu import peak_of
    from mansard.core.errors import UndecidedError, UsageError
    from mansard.core.units import positive_amount as amount
    from mansard.core.unknown import Implausible
    from mansard.diagnose.intensity import intensity
    from mansard.diagnose.peaks import compute_peak, identify, memory_bandwidth, report_peaks
    from mansard.report.trace_document import intensity_document, no_kernel_findings
    from mansard.report.trace_text import intensity_lines
    from mansard.trace.prepare import device_index
    from mansard.trace.window import only_kernels

    if options["bandwidth"] is not None and options["hbm_bw_gbps"] is not None:
        raise UsageError("--bandwidth and --hbm-bw-gbps are the same thing", hint="give one of them")
    given = amount(options["bandwidth"], "bytes_per_s", "--bandwidth")
    if options["hbm_bw_gbps"] is not None:
        given = amount(str(options["hbm_bw_gbps"]), "bytes_per_s", "--hbm-bw-gbps", scale=1e9)
    peak = peak_of(options)
    timeline = read(options, prepare=with_demands(options))
    empty = no_kernel_findings(timeline)
    if empty:
        raise UndecidedError(empty[0].text, hint="choose another --trim" if options["trim"] else "", code="no_kernels")
    if options["kernel"] is not None:
        timeline = only_kernels(timeline, options["kernel"])
    device = _device(timeline, device_index(timeline, options["device"]))
    used = amounts(timeline, options, device)
    chip = identify([timeline.devices[device]], hardware=options["hardware"])
    compute = compute_peak(chip, given_flop_per_s=peak, dtype=used.dtype)
    bandwidth = memory_bandwidth(chip, given_bytes_per_s=given)
    own = report_peaks(timeline, used.dtype)
    if own is not None and peak is None and options["hardware"] is None:
        compute = own[0]
    if own is not None and given is None and options["hardware"] is None:
        bandwidth = own[1]
    found = intensity(
        timeline, device=device, flop=used.flop, moved_bytes=used.bytes, peak=compute, bandwidth=bandwidth,
        findings=used.findings, rows=used.rows,
    )  # fmt: skip
    scope = f"window {options['trim'][0]} to {options['trim'][1]}" if options["trim"] else "whole profile"
    if options["kernel"] is not None:
        scope += f", kernels {options['kernel']!r}"
    document = intensity_document(timeline, found, timeline.devices[device], chip, scope, used.evidence)
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
    shown = ", ".join(sorted((timeline.devices[d].shown for d in used), key=lambda name: (len(name), name)))
    raise UsageError(
        f"the profile has work on devices {shown}",
        hint="choose one with --device; devices are never merged",
        code="which_device",
    )
