"""Access mixes of memory benchmarks: what one pass over arrays of N elements reads, writes and computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.core import dtype_bytes, short_dtype
from mansard.measure import kernels
from mansard.measure.benchmarks.entry import missing_memory
from mansard.measure.points.benchmark import Parameter, Waived, Where, Work
from mansard.measure.points.inputs import is_integer
from mansard.operators.counting import demand

#: Implementations and their backends, the default first.
IMPLEMENTATIONS: Mapping[str, str] = {"jax": "jax", "torch": "torch", "numpy": "numpy", "native": "native"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One access mix over arrays of N elements.

    Args:
        reads, writes: Arrays that are read and written.
        arrays: Distinct arrays; one where it works in place.
        flop: Vector FLOP per element.
        indices: Whether an array of N random indices of four bytes is read beside.
        reduces: Whether the result is a single number.
        formula: What it does.
    """

    reads: int
    writes: int
    arrays: int
    flop: float
    formula: str
    indices: bool = False
    reduces: bool = False

    @property
    def allocates(self) -> bool:
        """Whether a cache first reads the lines that are written: they are not read anyway."""
        return self.writes == 1 and self.arrays > self.reads


MIXES: Mapping[str, Mix] = {
    "copy": Mix(reads=1, writes=1, arrays=2, flop=0.0, formula="c = a"),
    "scale": Mix(reads=1, writes=1, arrays=2, flop=1.0, formula="c = s a"),
    "add": Mix(reads=2, writes=1, arrays=3, flop=1.0, formula="c = a + b"),
    "triad": Mix(reads=2, writes=1, arrays=3, flop=2.0, formula="c = a + s b"),
    "read": Mix(reads=1, writes=0, arrays=1, flop=1.0, formula="sum of a", reduces=True),
    "write": Mix(reads=0, writes=1, arrays=1, flop=0.0, formula="c = s"),
    "in_place": Mix(reads=1, writes=1, arrays=1, flop=1.0, formula="a = s a"),
    "dot": Mix(reads=2, writes=0, arrays=2, flop=2.0, formula="sum of a b", reduces=True),
    "gather": Mix(
        reads=1, writes=1, arrays=2, flop=0.0, formula="c[i] = a[p[i]], p a random permutation", indices=True
    ),
    "scatter": Mix(
        reads=1, writes=1, arrays=2, flop=0.0, formula="c[p[i]] = a[i], p a random permutation", indices=True
    ),
}
#: Other names in use: BabelStream and the suite.
SPELLED: Mapping[str, str] = {"mul": "scale", "sum": "read", "fill": "write", "inplace": "in_place"}

OP_TYPE = Parameter(
    name="op_type", kind="str", default="copy", choices=(*MIXES, *SPELLED), text="access mix: " + "; ".join(
        f"{name}: {mix.formula}" for name, mix in MIXES.items()
    ),
)  # fmt: skip
SIZE = Parameter(
    name="size", kind="int", default=2**27, minimum=1, aliases=("num_elements",), text="elements of each array"
)
DEVICE_ID = Parameter(name="device_id", kind="int", default=0, minimum=0, text="which of the local devices")
DTYPE = Parameter(name="dtype", kind="dtype", default="bf16", text="element type")
PAGE = Parameter(
    name="page",
    kind="str",
    default="huge",
    choices=("huge", "4k"),
    text="page size of `native`; others take what they get",
)
STORE = Parameter(
    name="store", kind="str", default="regular", choices=("regular", "streaming"), text="store instructions of `native`"
)
THREADS = Parameter(
    name="threads", kind="int", default=0, minimum=0, text="threads of `native`; 0 for all, 1 for one core"
)


def mix_of(params: Mapping[str, Any]) -> tuple[str, Mix]:
    """Return the mix that parameters ask for, by its own name."""
    name = str(params.get("op_type", "copy"))
    name = SPELLED.get(name, name)
    return name, MIXES[name]


def index_dtype(name: str, impl: str) -> str:
    """Return the type of random indices: four bytes where the library takes them.

    >>> index_dtype("gather", "torch"), index_dtype("scatter", "torch"), index_dtype("gather", "numpy")
    ('i32', 'i64', 'i64')
    """
    return "i64" if impl == "numpy" or (impl == "torch" and name == "scatter") else "i32"


def threads_of(params: Mapping[str, Any], where: Where) -> int:
    """Return how many threads `native` uses."""
    wanted = int(params.get("threads") or 0)
    return min(wanted, len(where.cpus)) if wanted else max(1, len(where.cpus))


def elements_of(params: Mapping[str, Any], impl: str, where: Where) -> int:
    """Return the elements of each array; `native` gives every thread whole blocks of 1 KiB.

    >>> elements_of({"size": 300, "dtype": "f32"}, "native", Where(backend="native", platform="cpu", cpus=(0, 1)))
    512
    """
    size = int(params["size"])
    if impl != "native" or mix_of(params)[1].indices:
        return size
    per_block = kernels.BLOCK_BYTES // int(dtype_bytes(params["dtype"]))
    each = -(-size // (threads_of(params, where) * per_block)) * per_block
    return each * threads_of(params, where)


def work_of(params: Mapping[str, Any], impl: str, where: Where, level: str | None = "dram") -> Work:
    """Return the work of one pass.

    Args:
        params: `op_type`, `size`, `dtype`, and of `native` `threads` and `store`.
        impl: Implementation.
        where: Device.
        level: Level the benchmark is named after.

    Source: J. McCalpin, STREAM: each array once, lines read before they are written not counted.
    """
    name, mix = mix_of(params)
    count, dtype = float(elements_of(params, impl, where)), short_dtype(params["dtype"])
    size = count * dtype_bytes(dtype)
    found = demand(
        reads=[(count, dtype)] * mix.reads + ([(count, index_dtype(name, impl))] if mix.indices else []),
        writes=[(count, dtype)] * mix.writes,
        vector=(count * mix.flop, dtype) if mix.flop else None,
    )
    index_bytes = count * dtype_bytes(index_dtype(name, impl)) if mix.indices else 0.0
    found = dataclasses.replace(found, working_set_bytes=size * mix.arrays + index_bytes)
    allocate = mix.allocates and where.platform == "cpu" and params.get("store", "regular") == "regular"
    text = f"{name}: {mix.formula}; STREAM counting, each array once"
    text += "; with lines read before they are written it is more, see write_allocate_bytes" if allocate else ""
    if mix.indices:
        text += "; a random access of one element moves a whole line of memory, so the useful share is what is counted"
    return Work(
        demand=found, headline="bytes", level=level, convention=text,
        write_allocate_bytes=float(found.bytes) + size if allocate else None,
    )  # fmt: skip


def excuse_of(params: Mapping[str, Any], impl: str, where: Where) -> Waived | None:
    """Return why a pass cannot run here, or None."""
    name, _ = mix_of(params)
    dtype = short_dtype(params["dtype"])
    device = int(params.get("device_id") or 0)
    devices = 1 if impl in ("numpy", "native") else where.devices
    if device >= devices:
        return Waived(reason=f"device {device} is asked for, there are {devices}", missing="device")
    if int(params["size"]) >= 2**31 and mix_of(params)[1].indices:
        return Waived(
            reason="random indices are 32-bit; there are too many elements for them", missing="implementation"
        )
    work = work_of(params, impl, where)
    short = missing_memory(float(work.demand.working_set), f"{name} over {params['size']} elements of {dtype}", where)
    return short or _missing_type(name, dtype, impl) or _missing_kernel(name, params, impl)


def _missing_type(name: str, dtype: str, impl: str) -> Waived | None:
    if impl == "native" and dtype != "f32":
        return Waived(reason=f"our own kernels are f32, not {dtype}", missing="dtype")
    if impl == "numpy" and dtype not in ("f32", "f64") and not is_integer(dtype):
        return Waived(reason=f"NumPy has no vector arithmetic in {dtype}", missing="dtype")
    if is_integer(dtype) and name in ("scale", "triad", "in_place", "read", "dot"):
        return Waived(reason=f"{name} multiplies or adds up floating-point numbers, not {dtype}", missing="dtype")
    if dtype in ("f4_e2m1", "i4", "u4", "c64", "c128", "bool"):
        return Waived(reason=f"no memory benchmark is defined for {dtype}", missing="dtype")
    if impl == "torch" and dtype.startswith("f8"):
        return Waived(reason=f"PyTorch has no arithmetic in {dtype}", missing="dtype")
    return None


def _missing_kernel(name: str, params: Mapping[str, Any], impl: str) -> Waived | None:
    if impl == "numpy" and name == "triad":
        return Waived(
            reason="NumPy has no single call for a + s b; two passes move other bytes", missing="implementation"
        )
    if impl == "native" and name == "dot":
        return Waived(reason="our own kernels have no dot", missing="implementation")
    if impl == "native" and params.get("store") == "streaming" and name not in kernels.STREAMING_MIXES:
        return Waived(reason=f"{name} has no streaming stores", missing="implementation")
    return None
