"""One JAX call ready to be timed: compiled apart, results in reused memory, counts of the compiler, and a chain.

JAX is imported inside the functions. Inputs are arguments of the compiled program, never captured, so that XLA cannot
fold them. The results of a call are donated to the next one: a fresh result of 256 MiB costs 65,536 page faults, which
read as a bandwidth of a few GB/s.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mansard.core.dtypes import dtype_bytes, short_dtype
from mansard.core.errors import UsageError
from mansard.core.unknown import Unknown
from mansard.measure.points.benchmark import CompilerCount, Operand
from mansard.measure.points.inputs import LONG_NAMES, random_input

WIDE = ("f64", "i64", "u64", "c128")  # JAX holds these only with jax_enable_x64

_OPCODE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (?:\([^=]*?\)|[\w\[\],{}:()*]+) ([a-z][\w-]*)\(", re.MULTILINE)
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_KIND = re.compile(r'"kind":"(__[a-z_$]+|[a-z_$]+)"')
_COMMENT = re.compile(r"/\*.*?\*/")  # a tuple of more than five says /*index=5*/ in its type
_DEFINED = re.compile(r"(%[\w.-]+) = ([a-z][a-z0-9]*)\[")
_MATRIX = re.compile(r" (?:dot|convolution)\(([^)]*)\)")
_HLO_NAMES = {"f8e4m3fnuz": "f8_e4m3", "f8e5m2fnuz": "f8_e5m2", "f8e4m3b11fnuz": "f8_e4m3"}  # beyond core.dtypes
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r" parameter\(\d+\)")
_CONSTANT = re.compile(r"= (\w+)\[([\d,]+)\]\S* constant\(")
_TRIVIAL = frozenset(("parameter", "tuple", "get-tuple-element", "constant", "bitcast"))


def jax_dtype(dtype: str) -> Any:
    """Return the type by JAX's name; 64-bit types switch them on in this process.

    Raises:
        UsageError: this JAX has no such type.
    """
    import jax

    short = short_dtype(dtype)
    if short in WIDE:
        jax.config.update("jax_enable_x64", True)
    if short not in LONG_NAMES or not hasattr(jax.numpy, LONG_NAMES[short]):
        raise UsageError(f"JAX {jax.__version__} has no element type {dtype}")
    return getattr(jax.numpy, LONG_NAMES[short])


def array(shape: tuple[int, ...], dtype: str, *, seed: int = 0, scale: float = 1.0, device: Any = None) -> Any:
    """Return a random array on a device (the first by default), `inputs.random_input` rounded to `dtype` there."""
    import jax

    kind = jax_dtype(dtype)
    made = jax.device_put(random_input(shape, dtype, seed=seed, scale=scale), device)
    return jax.block_until_ready(made if made.dtype == kind else made.astype(kind))


def zeros(shape: tuple[int, ...], dtype: str, *, device: Any = None) -> Any:
    """Return memory for a result: zeros that were written, on a device."""
    import jax

    return jax.block_until_ready(jax.device_put(jax.numpy.zeros(shape, jax_dtype(dtype)), device))


def values(x: Any) -> Any:
    """Return an array of JAX as numpy: f64 for floating types, i64 for whole numbers.

    The copy is made by numpy, so it needs no 64-bit types in JAX.
    """
    seen = np.asarray(x)
    return seen.astype(
        np.int64 if seen.dtype.kind in "iub" else np.complex128 if seen.dtype.kind == "c" else np.float64
    )


def operand(x: Any, name: str, role: str) -> Operand:
    """Return an array for the audit: about a thousand of its elements, and its address where it has one."""
    try:
        address: int | None = int(x.unsafe_buffer_pointer())
    except Exception:  # several shards, or a backend that does not tell
        address = None
    step = max(1, x.size // 1009)
    part = np.asarray(x).reshape(-1)[::step] if "cpu" in str(x.devices()).lower() else x.reshape(-1)[::step]
    return Operand(name=name, role=role, bytes=float(x.nbytes), values=values(part), address=address)


@dataclass(slots=True)
class JaxCall:
    """A compiled JAX function with its arguments.

    Args:
        function: The function, its static arguments bound.
        compiled: The executable.
        inputs: Arguments that stay.
        state: What the next call is given to write into, and what the last one returned.
        donate: Positions among the arguments of `function` whose memory the results take; empty where `reuse` does it.
        reuse: Whether the results of a call are donated to the next one.
        expected: Names of operations of which at least one must be in the compiled program.
        lower_s, compile_s: Time of tracing and lowering, and of the compilation [s].
    """

    function: Callable[..., Any]
    compiled: Any
    inputs: list[Any]
    state: Any
    donate: tuple[int, ...]
    reuse: bool
    expected: tuple[str, ...]
    lower_s: float
    compile_s: float
    chain_lower_s: float = 0.0
    chain_compile_s: float = 0.0
    _chain: Any = None
    _own: list[Any] = field(default_factory=list)
    _chain_state: Any = None
    _last: Any = field(default=None)

    @property
    def result(self) -> Any:
        """Result of the last call, ready; a call is made if there was none. It is consumed by the next call."""
        if self._last is None:
            self.run(1)
        return self._last

    def run(self, count: int) -> None:
        """Do `count` calls back to back and wait for the last one; each starts when the one before has finished."""
        import jax

        call, inputs, last = self.compiled, self.inputs, self._last
        if self.donate:
            for _ in range(count):
                last = call(*inputs)
                _feed(inputs, self.donate, last)
        elif self.reuse:
            state = self.state
            for _ in range(count):
                state = call(*inputs, state)
            last = self.state = state
        else:
            for _ in range(count):
                last = call(*inputs)
        self._last = jax.block_until_ready(last)

    def text(self) -> str:
        """Return the optimised HLO."""
        return str(self.compiled.as_text())

    def counts(self) -> CompilerCount:
        """Return what XLA's cost analysis and the optimised HLO say of one call."""
        return count(self.compiled, self.expected)

    def operands(self, *names: str) -> list[Operand]:
        """Return arguments and results for the audit, arguments first; factors of one element are left out."""
        rows = []
        for position, argument in enumerate(self.inputs):
            role = "in_place" if position in self.donate else "input"
            label = names[position] if position < len(names) else f"argument {position}"
            rows += [operand(x, label, role) for x in _leaves(argument) if x.size > 1]
        if not self.donate:
            rows += [operand(x, "result", "output") for x in _leaves(self.result)]
        return rows

    def chain(self, count: int) -> None:
        """Do `count` calls inside one dispatch, in a loop whose body can be neither hoisted nor folded.

        Every floating or integer argument takes one element from the result before, times a zero that is known only at
        run time: the body depends on its last turn, at the cost of one element per argument. The trip count is an
        argument too, so one compiled program serves all counts. The loop works on copies of the arguments.
        """
        import jax

        if self._chain is None:
            self._chain = self._compile_chain()
        own = self._own
        for position in self.donate:
            own[position] = self.inputs[position]
        held = None if self.donate else self.state if self.reuse else self._chain_state
        self._own, out = jax.block_until_ready(self._chain(np.int32(count), np.float32(0.0), own, held))
        if self.donate:
            for position in self.donate:
                self.inputs[position] = self._own[position]
            self._last = _taken(self._own, self.donate)
            return
        self._last = out
        if self.reuse:
            self.state = out
        else:
            self._chain_state = out

    def _compile_chain(self) -> Any:
        import jax

        function, donate = self.function, self.donate
        held = (
            None
            if donate
            else self.state
            if self.reuse
            else _memory_for(jax.eval_shape(function, *self.inputs), self.inputs)
        )
        # The loop is given the memory of its arguments, so it works on copies: those of the caller stay as they are.
        self._own = [x if i in donate else _copy(x) for i, x in enumerate(self.inputs)]

        def looped(turns: Any, zero: Any, inputs: list[Any], state: Any) -> Any:
            def body(_turn: Any, carried: Any) -> Any:
                args, last = carried
                source = _first_element(last if last is not None else _taken(args, donate))
                fed = [_tied(x, source, zero, i in donate) for i, x in enumerate(args)]
                fed = list(jax.lax.optimization_barrier(fed))
                out = function(*fed)
                if donate:
                    _feed(fed, donate, out)
                    return fed, None
                return fed, out

            return jax.lax.fori_loop(0, turns, body, (inputs, state))

        begin = time.perf_counter()
        lowered = jax.jit(looped, donate_argnums=(2, 3)).lower(np.int32(1), np.float32(0.0), self._own, held)
        middle = time.perf_counter()
        done = lowered.compile()
        self._chain_state = held
        self.chain_lower_s, self.chain_compile_s = middle - begin, time.perf_counter() - middle
        return done

    def chain_text(self) -> str:
        """Return the optimised HLO of the chain."""
        if self._chain is None:
            self._chain = self._compile_chain()
        return str(self._chain.as_text())


def compiled(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    donate: Sequence[int] = (),
    static: dict[str, Any] | None = None,
    expected: Sequence[str] = (),
    reuse: bool = True,
) -> JaxCall:
    """Lower and compile `fn(*args)` and return it ready to be timed.

    Args:
        fn: Function of arrays, or trees of arrays.
        args: Its arguments, on their devices; they are arguments of the compiled program.
        donate: Positions of arguments that are consumed: the results, in order, are the arguments of the next call
            there (`a = s * a`). Shapes and types must agree.
        static: Keyword arguments bound before tracing.
        expected: Names of operations of which at least one must be in the compiled program.
        reuse: Give the results of one call to the next as memory to write into. Off, each call allocates its results,
            and page faults are part of its time. It has no meaning with `donate`.

    Raises:
        UsageError: the results do not fit the arguments that they replace.
    """
    import jax

    function: Callable[..., Any] = (lambda *a: fn(*a, **static)) if static else fn
    inputs, consumed = list(args), tuple(donate)
    shapes = jax.eval_shape(function, *inputs)
    reused = reuse and not consumed
    if consumed:
        _must_fit(shapes, [inputs[i] for i in consumed])
    state = _memory_for(shapes, inputs) if reused else None
    jit: Any = jax.jit
    begin = time.perf_counter()
    if reused:
        traced = jit(lambda *a: function(*a[:-1]), donate_argnums=(len(inputs),), keep_unused=True)
        lowered = traced.lower(*inputs, state)
    else:
        lowered = jit(function, donate_argnums=consumed).lower(*inputs)
    middle = time.perf_counter()
    executable = lowered.compile()
    end = time.perf_counter()
    return JaxCall(
        function=function,
        compiled=executable,
        inputs=inputs,
        state=state,
        donate=consumed,
        reuse=reused,
        expected=tuple(expected),
        lower_s=middle - begin,
        compile_s=end - middle,
    )


def count(executable: Any, expected: Sequence[str] = ()) -> CompilerCount:
    """Return XLA's FLOP and bytes and the names of the operations of a compiled program.

    A loop body is counted once by XLA, so with a loop in the program both counts are `Unknown`.
    """
    text = str(executable.as_text())
    names = operation_names(text)
    seen: dict[str, Any] = {
        "operations": names,
        "expected": tuple(expected),
        "parameters": parameter_count(text),
        "constant_bytes": largest_constant_bytes(text),
        "dtypes": matrix_dtypes(text),
    }
    if "while" in names:
        reason = Unknown("XLA counts the body of a loop once, and this program has a loop")
        return CompilerCount(flop=reason, bytes=reason, source="optimised HLO", **seen)
    try:
        analysis = executable.cost_analysis()
    except Exception as error:  # a backend without one raises its own type
        analysis, why = None, str(error).splitlines()[0] if str(error) else type(error).__name__
    else:
        why = "XLA's cost analysis gives no such count here"
    if isinstance(analysis, list):  # older versions: one per computation
        analysis = analysis[0] if analysis else None

    def said(key: str) -> float | Unknown:
        found = (analysis or {}).get(key)
        return float(found) if found is not None and found >= 0.0 else Unknown(why)

    return CompilerCount(
        flop=said("flops"),
        bytes=said("bytes accessed"),
        source="XLA cost analysis, optimised HLO",
        **seen,
    )


def operation_names(hlo: str) -> tuple[str, ...]:
    """Return the distinct operations in HLO text: opcodes, targets of custom calls and kinds of library fusions.

    >>> operation_names('  ROOT %d = f32[2,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}')
    ('dot',)
    """
    found = dict.fromkeys(n for n in _OPCODE.findall(_COMMENT.sub("", hlo)) if n not in _TRIVIAL)
    found.update(dict.fromkeys(_TARGET.findall(hlo)))
    found.update(dict.fromkeys(_KIND.findall(hlo)))
    return tuple(found)


def parameter_count(hlo: str) -> int | None:
    """Return how many arguments the entry computation of HLO text uses; None where there is no entry.

    Memory that is only given to be written into is no input and not counted.

    >>> parameter_count("ENTRY %main {\\n  %a = f32[2]{0} parameter(0)\\n  ROOT %n = f32[2]{0} negate(%a)\\n}")
    1
    """
    start = hlo.find("ENTRY ")
    if start < 0:
        return None
    entry = hlo[start:]
    end = entry.find("\n}")
    entry = entry[: end if end >= 0 else None]
    names = re.findall(r"(%[\w.-]+) = \S+ parameter\(", entry)
    operands = re.findall(r"%[\w.-]+", re.sub(r"%[\w.-]+ = ", "", entry))
    return sum(1 for name in names if name in operands)


def largest_constant_bytes(hlo: str) -> float:
    """Return the size of the largest constant in HLO text [B].

    >>> largest_constant_bytes("  %c = f32[16,4]{1,0} constant({...})")
    256.0
    """
    return max((_shape_bytes(kind, sizes) for kind, sizes in _CONSTANT.findall(hlo)), default=0.0)


def matrix_dtypes(hlo: str) -> tuple[str, ...]:
    """Return the element types that dots and convolutions in HLO text read, by their short names.

    >>> matrix_dtypes("  %a = bf16[2,2]{1,0} parameter(0)\\n  %d = f32[2,2]{1,0} dot(%a, %a), lhs_contracting_dims={1}")
    ('bf16',)
    """
    defined: dict[str, str] = dict(_DEFINED.findall(hlo))
    found: dict[str, None] = {}
    for operands in _MATRIX.findall(hlo):
        for name in re.findall(r"%[\w.-]+", operands):
            if name in defined:
                kind = defined[name]
                found[short_dtype(_HLO_NAMES.get(kind, kind))] = None
    return tuple(found)


def _shape_bytes(kind: str, sizes: str) -> float:
    name = _HLO_NAMES.get(kind, kind)
    return float(dtype_bytes(name)) * math.prod(int(n) for n in sizes.split(",") if n) if name != "token" else 0.0


def _leaves(tree: Any) -> list[Any]:
    import jax

    return list(jax.tree_util.tree_leaves(tree))


def _memory_for(shapes: Any, inputs: Sequence[Any]) -> Any:
    """Return written zeros of the shapes, placed as the first array of the inputs is where that has one device."""
    import jax

    first = next((x for x in _leaves(list(inputs)) if hasattr(x, "devices")), None)
    device = next(iter(first.devices())) if first is not None and len(first.devices()) == 1 else None

    def made(s: Any) -> Any:
        return jax.device_put(jax.numpy.zeros(s.shape, s.dtype), getattr(s, "sharding", None) or device)

    return jax.block_until_ready(jax.tree_util.tree_map(made, shapes))


def _must_fit(shapes: Any, replaced: Sequence[Any]) -> None:
    given = [(tuple(x.shape), str(x.dtype)) for x in _leaves(list(replaced))]
    results = [(tuple(x.shape), str(x.dtype)) for x in _leaves(shapes)]
    if results != given:
        raise UsageError(f"the results {results} cannot replace the donated arguments {given}")


def _feed(args: list[Any], donate: Sequence[int], out: Any) -> None:
    """Put the results of a call in the place of the arguments it consumed."""
    parts = out if isinstance(out, tuple | list) and len(donate) > 1 else (out,)
    for position, part in zip(donate, parts, strict=True):
        args[position] = part


def _taken(args: Sequence[Any], donate: Sequence[int]) -> Any:
    return args[donate[0]] if len(donate) == 1 else tuple(args[i] for i in donate)


def _copy(tree: Any) -> Any:
    import jax

    return jax.block_until_ready(jax.tree_util.tree_map(lambda x: jax.numpy.array(x, copy=True), tree))


def _first_element(tree: Any) -> Any:
    """Return the sum of the first elements of all results as f32."""
    import jax

    total = jax.numpy.float32(0.0)
    for x in _leaves(tree):
        one = jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
        total = total + (one.real if jax.numpy.iscomplexobj(one) else one).astype(jax.numpy.float32)
    return total


def _tied(tree: Any, source: Any, zero: Any, already: bool) -> Any:
    """Return the tree with one element of each leaf made to depend on `source`; its value stays."""
    import jax

    def one(x: Any) -> Any:
        if already or x.dtype == bool or 0 in x.shape:
            return x
        jnp: Any = jax.numpy
        first = jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim)
        kind = first.dtype
        added = jnp.where(jnp.isfinite(source), source, 0.0) * zero
        if jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.complexfloating):
            changed = first + added.astype(kind)
        else:
            wide = jnp.float64 if kind == jnp.float64 else jnp.float32
            changed = (first.astype(wide) + added).astype(kind)
        return jax.lax.dynamic_update_slice(x, changed, (0,) * x.ndim)

    return jax.tree_util.tree_map(one, tree)
