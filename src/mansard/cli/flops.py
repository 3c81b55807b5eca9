"""`mansard flops`: FLOP of one operation or block from its dimensions, with the formula."""

from __future__ import annotations

import click

from mansard.cli import options as shared

_DIMENSIONS = (
    ("hidden_dim", "Hidden size h."),
    ("seq_len", "Tokens per sequence s."),
    ("num_layers", "Layers.  [default: 1]"),
    ("ffn_dim", "Feed-forward width f.  [default: 4 h, and said so]"),
    ("batch_size", "Sequences.  [default: 1]"),
    ("heads", "Query heads; with --kv-heads, K and V are narrower (GQA)."),
    ("kv_heads", "Key and value heads."),
    ("vocab", "Rows of the output head, for full_model.  [default: no head]"),
)


def _dimension_options(command: click.Command) -> click.Command:
    """Add one option per dimension; both `--hidden-dim` and `--hidden_dim` are taken."""
    options = [
        click.Option(
            [f"--{name.replace('_', '-')}", *([f"--{name}"] if "_" in name else []), name], type=int, help=text
        )
        for name, text in _DIMENSIONS
    ]
    options += [
        click.Option(
            [f"--{letter.lower()}", f"-{letter}", f"--{letter}", letter], type=int, help=f"{letter} of linear."
        )
        for letter in "MNK"
    ]
    command.params[1:1] = options
    return command


@click.command("flops", short_help="FLOP of one operation or block from its dimensions.")
@click.argument("operation")
@click.option(
    "--multiplier", type=int, default=1, show_default=True,
    help="1 forward, 3 with backward, 4 with full recomputation (an HFU numerator).",
)  # fmt: skip
@click.option("--causal", is_flag=True, help="Count the keys a causal mask shows, (s+1)/2 per query, instead of s.")
@click.option("--gated", is_flag=True, help="The MLP has three matrices (SwiGLU, GeGLU).")
@shared.as_json
def command(
    operation: str, multiplier: int, *, causal: bool, gated: bool, as_json: bool, **dimensions: int | None
) -> None:
    """Print the FLOP of OPERATION: attention, qkv_proj, output_proj, mlp, full_layer, full_model or linear.

    A multiply-accumulate is 2 FLOP. For a model with a config.json, `mansard estimate` counts everything it has.

    \b
      mansard flops attention --hidden-dim 4096 --seq-len 8192
      mansard flops full_model --hidden-dim 4096 --seq-len 8192 --num-layers 32 \\
        --ffn-dim 16384 --multiplier 3
      mansard flops linear -M 8944 -N 2816 -K 1024
    """
    from mansard.workload.dimensions import OperationFlop, operation_flop

    given = {name: value for name, value in dimensions.items() if value is not None}
    result: OperationFlop = operation_flop(operation, multiplier=multiplier, causal=causal, gated=gated, **given)
    if as_json:
        from mansard.core.document import dumps

        click.echo(dumps(_document(result)), nl=False)
    else:
        click.echo(_text(result))


def _document(result: object) -> dict[str, object]:
    """Return the `flops` document."""
    from mansard.core.document import header
    from mansard.workload.dimensions import OperationFlop

    assert isinstance(result, OperationFlop)
    return {
        **header("flops/1", {}),
        "operation": result.operation,
        "flop": result.flop,
        "parts": dict(result.parts),
        "parts_are": "one layer, one sequence, forward",
        "times": dict(result.times),
        "formula": result.formula,
        "numerator": result.numerator,
        "convention": result.convention,
        "other_convention_flop": result.other_convention_flop,
        "assumed": list(result.assumed),
    }


def _text(result: object) -> str:
    """Return the answer for reading."""
    from mansard.core.units import format_flop
    from mansard.workload.dimensions import OperationFlop

    assert isinstance(result, OperationFlop)
    lines = [f"{result.operation}: {result.flop:,} FLOP ({format_flop(result.flop)})", f"  {result.formula}"]
    if len(result.parts) > 1:
        lines.append("  per layer, one sequence, forward:")
        lines += [f"    {name:<18}{flop:>26,}" for name, flop in result.parts.items()]
    lines.append(f"  counts: {result.numerator}")
    if result.convention is not None and result.other_convention_flop is not None:
        other = "causal" if result.convention == "full" else "full"
        lines.append(f"  attention: {result.convention}; {other}, it would be {result.other_convention_flop:,} FLOP")
    lines += [f"  assumed: {text}" for text in result.assumed]
    return "\n".join(lines)


command = _dimension_options(command)
