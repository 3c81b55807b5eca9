"""A benchmark put together from three functions, and what several benchmarks ask before they run."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mansard.core.units import format_bytes
from mansard.measure.points.benchmark import Check, Operand, Parameter, Params, Prepared, Waived, Where, Work
from mansard.measure.points.inputs import data_kind
from mansard.operators.counting import matrix_work

if TYPE_CHECKING:
    from mansard.measure.points.with_jax import JaxCall
    from mansard.measure.points.with_torch import TorchCall

Compute = Callable[[Params, Where], Work]
Excuse = Callable[[Params, str, Where], Waived | None]
Make = Callable[[Params, str, Where], Prepared]
Interpret = Callable[[Params, str], tuple[str, Callable[[], Check]]]

#: Names under which a matrix product may be found in a compiled program.
MATRIX_OPERATIONS = (
    "dot", "convolution", "ragged-dot", "__ynn_fusion", "__onednn$matmul", "__eigen_matmul", "__cublas$gemm",
    "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__triton_gemm", "__cudnn$fusion", "__cudnn$fmhaSoftmax", "tpu_custom_call",
)  # fmt: skip
MEMORY_SHARE = 0.8  # of the memory of a device that a point may need; the rest is for the runtime and the check


def _no_excuse(_params: Params, _impl: str, _where: Where) -> Waived | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One benchmark; see `points.benchmark.Benchmark` for the attributes.

    Args:
        count: The work of a point.
        make: Prepares it.
        excuse: Why it cannot run, beyond a missing framework.
        interpreted: Implementations for an accelerator alone that a CPU can check, kernel by kernel, without timing them.
        interpret: Returns what is checked in words, and its check.
    """

    name: str
    area: str
    parameters: tuple[Parameter, ...]
    implementations: Mapping[str, str]
    summary: str
    count: Compute
    make: Make
    excuse: Excuse = _no_excuse
    aliases: tuple[str, ...] = ()
    interpreted: tuple[str, ...] = ()
    interpret: Interpret | None = None

    def work(self, params: Params, where: Where) -> Work:
        """Return what one call of this point must consume; no framework is imported for it."""
        return self.count(params, where)

    def waived(self, params: Params, impl: str, where: Where) -> Waived | None:
        """Return why this point cannot run here, or None; no framework is imported for it."""
        backend = self.implementations[impl]
        return missing_package(backend) or self.excuse(params, impl, where)

    def prepare(self, params: Params, impl: str, where: Where) -> Prepared:
        """Make the inputs and compile; frameworks are imported here."""
        return self.make(params, impl, where)


def integer(
    name: str, default: int, text: str, *, minimum: float | None = None, aliases: tuple[str, ...] = ()
) -> Parameter:
    """Return a whole number as a parameter; one that is 0 by default may stay 0, every other is at least 1."""
    least = (0 if default == 0 else 1) if minimum is None else minimum
    return Parameter(name=name, kind="int", default=default, minimum=least, text=text, aliases=aliases)


def matrix_peak(dtype: str) -> tuple[str, str, str]:
    """Return the matrix peak that products of a type are judged against.

    >>> matrix_peak("bf16")
    ('bf16', 'f32', 'matrix')
    """
    kind, wide = next(iter(matrix_work(1.0, dtype)))
    return kind, wide, "matrix"


@functools.cache
def is_installed(name: str) -> bool:
    """Return whether a package is there; it is looked for once and not imported."""
    return importlib.util.find_spec(name) is not None


def missing_package(name: str) -> Waived | None:
    """Return that a package is not installed, or None; it is looked for and not imported."""
    if name == "native" or is_installed(name):
        return None
    return Waived(reason=f"the package {name} is not installed", missing="implementation")


def missing_platform(what: str, where: Where, *wanted: str) -> Waived | None:
    """Return that an implementation needs another device, or None."""
    if where.platform in wanted:
        return None
    devices = " or a ".join(p.upper() for p in wanted)
    return Waived(reason=f"{what} needs a {devices}; this is a {where.platform.upper()}", missing="device")


def missing_memory(needed_bytes: float, what: str, where: Where) -> Waived | None:
    """Return that a point does not fit into the memory of a device, or None."""
    if where.memory_bytes is None or needed_bytes <= MEMORY_SHARE * where.memory_bytes:
        return None
    return Waived(
        reason=f"{what} needs about {format_bytes(needed_bytes)}; one device has {format_bytes(where.memory_bytes)}, "
        f"of which {MEMORY_SHARE:.0%} may be used",
        missing="memory",
    )


def chosen(params: Params, implementations: Mapping[str, str]) -> str:
    """Return the implementation that the parameters name; the default one where they name none or several."""
    named = params.get("impl")
    return named if isinstance(named, str) and named in implementations else next(iter(implementations))


def precision(dtype: str) -> Any:
    """Return the context in which JAX's f32 products are f32 products; TF32 is another type with another ceiling."""
    import jax

    return jax.default_matmul_precision("highest") if dtype in ("f32", "f64") else contextlib.nullcontext()


def prepared_jax(
    call: JaxCall,
    verify: Callable[[], Check],
    params: Params,
    *,
    names: Sequence[str] = (),
    chain: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> Prepared:
    """Return a compiled JAX call as a point.

    Args:
        call: The call.
        verify: Its check.
        params: Parameters of the point, for the kind of data.
        names: Its arguments in words, for the audit; an empty name leaves one out (indices, lengths). None: all of them.
        chain: Whether it can be repeated inside one dispatch.
        facts: What a reader must know.
    """

    def operands() -> Sequence[Operand]:
        return [o for o in call.operands(*names) if o.name]

    return Prepared(
        run=call.run,
        verify=verify,
        count_by_compiler=call.counts,
        facts={"data": data_kind(params["dtype"]), **(facts or {})},
        output_is_fresh=not (call.reuse or call.donate),
        compile_s=call.compile_s,
        chain=call.chain if chain else None,
        operands=operands,
    )


def prepared_torch(
    call: TorchCall,
    verify: Callable[[], Check],
    params: Params,
    *,
    shown: Mapping[str, Any] | None = None,
    fresh: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> Prepared:
    """Return a PyTorch call as a point.

    Args:
        call: The call.
        verify: Its check.
        params: Parameters of the point, for the kind of data.
        shown: Inputs by name, for the audit.
        fresh: Whether its result is new memory: it does not write into its arguments.
        facts: What a reader must know.
    """

    def operands() -> Sequence[Operand]:
        from mansard.measure.points import with_torch

        result = call.result if isinstance(call.result, tuple | list) else (call.result,)
        inputs = [with_torch.operand(x, name, "input") for name, x in (shown or {}).items()]
        return inputs + [with_torch.operand(x, "result", "output") for x in result]

    return Prepared(
        run=call.run,
        verify=verify,
        count_by_compiler=call.counts,
        facts={"data": data_kind(params["dtype"]), **(facts or {})},
        output_is_fresh=fresh,
        compile_s=call.compile_s,
        operands=operands if shown else None,
    )
