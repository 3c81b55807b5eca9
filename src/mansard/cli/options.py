"""Options that several verbs have: each is defined here once, so that it reads and works the same everywhere.

A verb takes one as a decorator: `@shared.as_json`. A test holds that no option is written twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# --- the result ------------------------------------------------------------------------------------------------------

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
written_as_json = click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
output = click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the document.")
force = click.option("--force", is_flag=True, help="Replace the output if it exists.")
force_all = click.option("--force", is_flag=True, help="Replace outputs that exist.")
rows = click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="Rows of the text.")

# --- a model and what one step of it is ------------------------------------------------------------------------------

batch = click.option("--batch", type=int, default=1, show_default=True, help="Sequences of all devices.")
context = click.option("--context", type=int, help="Keys each new token of a decode step sees, itself included.")
seq = click.option("--seq", type=int, help="Tokens per sequence in training, per prompt in prefill.")
_RANKS = (
    click.option("--tp", type=int, default=1, help="Tensor-parallel ranks."),
    click.option("--pp", type=int, default=1, help="Pipeline ranks."),
    click.option("--dp", type=int, default=1, help="Data-parallel ranks."),
    click.option("--ep", type=int, default=1, help="Expert-parallel ranks, taken from tp, cp and dp."),
    click.option("--cp", type=int, default=1, help="Context-parallel ranks."),
    click.option("--zero", type=int, default=0, help="Training: what dp ranks shard (0 nothing .. 3 weights)."),
)
accumulation = click.option("--accumulation", type=int, help="Training: micro-batches per optimizer step.")
recompute = click.option(
    "--recompute", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True
)
optimizer = click.option(
    "--optimizer", type=click.Choice(["adamw", "sgd", "sgd_momentum"]), default="adamw", show_default=True
)
tower_tokens = click.option(
    "--tower-tokens", multiple=True, metavar="NAME=N", help="Tokens per sequence of a tower or encoder."
)
model_dtype = click.option("--dtype", help="Type of activations and of what is not quantised.  [default: the model's]")
weights = click.option("--weights", help="Type the matrices of the layers are stored in.  [default: as the checkpoint]")
activations = click.option("--activations", help="Type activations are cast to for products with quantised weights.")
kv = click.option("--kv", help="Type of the cache.  [default: the checkpoint's, else --dtype]")
launch_cost = click.option("--launch-cost", metavar="TIME", help='Fixed cost of one kernel, such as "3 us".')
overlap = click.option("--overlap", type=click.Choice(["full", "none"]), help="Messages hide behind kernels or not.")


def ranks(function: F) -> F:
    """Add the ranks of each kind of parallelism, and what data ranks shard."""
    for decorate in reversed(_RANKS):
        function = decorate(function)
    return function


# --- a machine -------------------------------------------------------------------------------------------------------

on_device = click.option(
    "--on", required=True, metavar="DEVICE", help="Product, hardware file, or measured ceilings.json."
)
on_network = click.option("--on", required=True, metavar="MACHINE", help="Product of the catalogue or hardware file.")
memory_fraction = click.option(
    "--memory-fraction", type=float, default=1.0, help="Share of the memory that may be used.  [default: 1]"
)
usd_per_hour = click.option("--usd-per-hour", type=float, help="Price of the device.")
host_link = click.option(
    "--link", "link_name", help="Link to the host by name.  [default: the host link of the product]"
)
in_network = click.option(
    "--in-network", is_flag=True, help="Reduction in switches counts, as NVLS in nodes; --sharp implies it."
)

# --- a profile -------------------------------------------------------------------------------------------------------

product = click.option(
    "--hardware", "--on", "hardware", metavar="NAME", help="The product a profile is of, if it does not tell."
)
hardware = click.option("--hardware", metavar="NAME", help="The product, where the file does not tell.")
work_dtype = click.option("--dtype", help="Element type of the matrix work, such as bf16.")
peak_tflops = click.option("--peak-tflops", type=float, help="The same as a plain number of TFLOP/s.")
marker = click.option("--marker", metavar="NAME", help="The range that marks a step.")
trim = click.option(
    "--trim", nargs=2, metavar="A B", help='Window: seconds, or with a unit ("300 ms"); from the start of the capture.'
)
device = click.option("--device", "--device-id", "device", type=click.IntRange(min=0), help="This device alone.")
MATCHES = ("auto", "exact", "contains", "startswith", "glob", "regex")
match = click.option(
    "--match", type=click.Choice(MATCHES), default="auto", show_default=True, help="How the name is compared."
)
categories = click.option(
    "--rules", type=click.Path(path_type=Path), help="Own rules of kernel categories, before the shipped ones."
)
