"""Store, recompute or offload: for each activation of a layer, so that a step is fastest in a given memory.

The choice is a mixed-integer linear program, solved by HiGHS through scipy for one memory budget after the other; each
solution is then evaluated exactly, so no figure carries the tolerance of the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mansard.core import Unknown, least_time_s
from mansard.core.errors import InputError, UsageError, install
from mansard.plan.remat_graph import LayerKind, Step

Choice = Literal["recompute", "keep", "offload"]
Overlap = Literal["full", "none"]
CHOICES: tuple[Choice, ...] = ("recompute", "keep", "offload")
#: Of the range of memory: what is nearer than this to a plan that was found is not searched for by default.
FINEST = 1e-5
#: Name of the input of a layer in code.
INPUT = "layer_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How activations reach the host.

    Args:
        bytes_per_s: Effective bandwidth of the link, each way [B/s]; `Unknown` rules offloading out.
        overlap: Whether copies hide behind the pass they belong to, or each is waited for.
    """

    bytes_per_s: float | Unknown
    overlap: Overlap = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What becomes of each activation.

    Args:
        kinds: A choice for each node of each kind of layer.
        layer_input: `keep` or `offload` the input of each layer; it is never recomputed.
    """

    kinds: tuple[tuple[Choice, ...], ...]
    layer_input: Choice = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RematPlan:
    """A policy with what it costs.

    Args:
        policy: The choices.
        time_s: Floor of a step [s].
        memory_bytes: What a device holds [B].
        kept_bytes: Activations of all layers it keeps, layer inputs among them [B].
        working_bytes: What is there for one layer while its backward pass runs [B].
        host_bytes: Activations that wait on the host [B].
        recompute_s: Kernels that run again, of a step [s].
        copy_s: Copies one way, of a micro-batch [s].
        waiting_s: What copies add to a step [s].
    """

    policy: Policy
    time_s: float
    memory_bytes: float
    kept_bytes: float
    working_bytes: float
    host_bytes: float
    recompute_s: float
    copy_s: float
    waiting_s: float


def recomputed(kind: LayerKind, choices: Sequence[Choice]) -> tuple[bool, ...]:
    """Return which activations are made again: those that a gradient or another one needs and that nobody kept."""
    again = [False] * len(kind.nodes)
    wanted = [node.needed for node in kind.nodes]
    for i in reversed(range(len(kind.nodes))):
        again[i] = wanted[i] and choices[i] == "recompute"
        if again[i]:
            for parent in kind.nodes[i].parents:
                wanted[parent] = True
    return tuple(again)


def evaluate(step: Step, copies: Copies, policy: Policy) -> RematPlan:
    """Return what a policy costs.

    Formula, with c kernels, m messages, x bytes to the host, b bandwidth: a micro-batch takes
        max(c_forward, m_forward, x/b) + max(c_backward + c_again, m_backward + m_again, x/b)
    where copies hide, and x/b on top of either pass where they are waited for.

    Raises:
        UsageError: something is offloaded over a link that is not known, or an input is to be recomputed.
    """
    kept = working = host = again_s = again_messages_s = 0.0
    if policy.layer_input == "offload":
        host += step.input_bytes * step.layers
        working = step.input_bytes
    elif policy.layer_input == "keep":
        kept += step.input_bytes * step.layers
    else:
        raise UsageError("the input of a layer cannot be recomputed: everything else is made from it")
    largest = 0.0
    for kind, choices in zip(step.kinds, policy.kinds, strict=True):
        own = 0.0
        for node, choice, again in zip(kind.nodes, choices, recomputed(kind, choices), strict=True):
            kept += kind.count * node.size_bytes * (choice == "keep")
            host += kind.count * node.size_bytes * (choice == "offload")
            own += node.size_bytes * (again or choice == "offload")
            again_s += kind.count * node.compute_s * again
            again_messages_s += kind.count * node.message_s * again
        largest = max(largest, own)
    working += largest
    copy_s = 0.0
    if host:
        if isinstance(copies.bytes_per_s, Unknown):
            raise UsageError(f"nothing can be offloaded: {copies.bytes_per_s.reason}")
        copy_s = host / copies.bytes_per_s
    waits = copies.overlap == "none"
    forward = [step.forward_s, step.forward_messages_s]
    backward = [step.backward_s + again_s, step.backward_messages_s + again_messages_s]
    bare = float(least_time_s(forward)) + float(least_time_s(backward))
    if waits:
        both = bare + 2.0 * copy_s
    else:
        both = float(least_time_s([*forward, copy_s])) + float(least_time_s([*backward, copy_s]))
    return RematPlan(
        policy=policy, time_s=step.passes * both + step.once_s, memory_bytes=step.fixed_bytes + kept + working,
        kept_bytes=kept, working_bytes=working, host_bytes=host, recompute_s=step.passes * again_s, copy_s=copy_s,
        waiting_s=step.passes * (both - bare),
    )  # fmt: skip


class _Program:
    """The linear program of a step: times in units of the step without rematerialisation, memory in layer inputs."""

    def __init__(self, step: Step, copies: Copies) -> None:
        self.step, self.copies = step, copies
        self.can_offload = not isinstance(copies.bytes_per_s, Unknown)
        self.time_unit = max(step.forward_s + step.backward_s, 1e-30)
        everything = step.input_bytes * step.layers
        everything += sum(k.count * n.size_bytes for k in step.kinds for n in k.nodes)
        self.memory_unit = max(everything, 1e-30)
        self.names: list[tuple[str, int, int]] = [
            (what, k, n)
            for k, kind in enumerate(step.kinds)
            for n in range(len(kind.nodes))
            for what in ("keep", "offload", "again")
        ]
        self.names += [("offload", -1, 0), ("forward", -1, 0), ("backward", -1, 0), ("working", -1, 0)]
        self.place = {name: i for i, name in enumerate(self.names)}
        self.rows: list[npt.NDArray[np.float64]] = []
        self.lows: list[float] = []
        self._constraints()

    def _row(self, terms: dict[tuple[str, int, int], float]) -> npt.NDArray[np.float64]:
        row = np.zeros(len(self.names))
        for name, value in terms.items():
            row[self.place[name]] += value
        return row

    def _at_least(self, terms: dict[tuple[str, int, int], float], low: float) -> None:
        self.rows.append(self._row(terms))
        self.lows.append(low)

    def _sums(self, value: str) -> dict[tuple[str, int, int], float]:
        """Coefficients of what is made again, or of bytes by what becomes of them, over all layers."""
        out = {}
        for k, kind in enumerate(self.step.kinds):
            for n, node in enumerate(kind.nodes):
                if value in ("compute_s", "message_s"):
                    out[("again", k, n)] = kind.count * float(getattr(node, value)) / self.time_unit
                else:
                    out[(value, k, n)] = kind.count * node.size_bytes
        if value == "offload":
            out[("offload", -1, 0)] = self.step.input_bytes * self.step.layers
        return out

    def _constraints(self) -> None:
        step, unit = self.step, self.time_unit
        for k, kind in enumerate(step.kinds):
            for n, node in enumerate(kind.nodes):
                self._at_least({("keep", k, n): -1.0, ("offload", k, n): -1.0}, -1.0)
                have = {("keep", k, n): 1.0, ("offload", k, n): 1.0, ("again", k, n): 1.0}
                if node.needed:
                    self._at_least(have, 1.0)
                for m, child in enumerate(kind.nodes):
                    if n in child.parents:
                        self._at_least({**have, ("again", k, m): -1.0}, 0.0)
            self._at_least(
                {
                    ("working", -1, 0): 1.0,
                    **{
                        (what, k, n): -node.size_bytes / self.memory_unit
                        for n, node in enumerate(kind.nodes)
                        for what in ("again", "offload")
                    },
                },
                0.0,
            )
        rate = self.copies.bytes_per_s
        crossing = {}
        if not isinstance(rate, Unknown):
            crossing = {name: size / rate / unit for name, size in self._sums("offload").items()}
        hides = self.copies.overlap == "full"
        minus = {name: -value for name, value in crossing.items()}
        for name, kernels, messages in (
            ("forward", step.forward_s, step.forward_messages_s),
            ("backward", step.backward_s, step.backward_messages_s),
        ):
            column = {(name, -1, 0): 1.0}
            for base, value in ((kernels, "compute_s"), (messages, "message_s")):
                again = {} if name == "forward" else {n: -v for n, v in self._sums(value).items()}
                self._at_least({**column, **again, **({} if hides else minus)}, base / unit)
            if hides and crossing:
                self._at_least({**column, **minus}, 0.0)

    def objective(self, what: Literal["time", "memory"]) -> npt.NDArray[np.float64]:
        """Coefficients of what is to be small."""
        if what == "time":
            return self._row({("forward", -1, 0): 1.0, ("backward", -1, 0): 1.0})
        terms = {name: size / self.memory_unit for name, size in self._sums("keep").items()}
        # A layer input that is not offloaded is kept, but for the one that is fetched.
        spared = self.step.input_bytes * (self.step.layers - 1.0) / self.memory_unit
        return self._row({**terms, ("offload", -1, 0): -spared, ("working", -1, 0): 1.0})

    def constant_memory(self) -> float:
        """What `objective("memory")` leaves out [units]."""
        return self.step.input_bytes * self.step.layers / self.memory_unit

    def solve(self, what: Literal["time", "memory"], limits: Sequence[tuple[str, float]] = ()) -> Policy | None:
        """Return the policy that is best, or None where the limits leave none.

        Args:
            what: What is to be small.
            limits: (`time` or `memory`, most [units]).
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        rows, lows = list(self.rows), list(self.lows)
        for name, most in limits:
            rows.append(-self.objective("time" if name == "time" else "memory"))
            lows.append(-most)
        binary = np.array([name[0] in ("keep", "offload", "again") for name in self.names])
        upper = np.where(binary, 1.0, np.inf)
        if not self.can_offload:
            upper[[i for i, name in enumerate(self.names) if name[0] == "offload"]] = 0.0
        found = milp(
            self.objective(what), constraints=LinearConstraint(np.array(rows), lb=np.array(lows)),
            integrality=binary.astype(float), bounds=Bounds(0.0, upper), options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if found.x is None:
            return None
        return self._policy(found.x)

    def _policy(self, values: npt.NDArray[np.float64]) -> Policy:
        def on(what: str, k: int, n: int) -> bool:
            return bool(values[self.place[(what, k, n)]] > 0.5)

        kinds: tuple[tuple[Choice, ...], ...] = tuple(
            tuple(
                "keep" if on("keep", k, n) else "offload" if on("offload", k, n) else "recompute"
                for n in range(len(kind.nodes))
            )
            for k, kind in enumerate(self.step.kinds)
        )
        return Policy(kinds=kinds, layer_input="offload" if on("offload", -1, 0) else "keep")


def front(step: Step, copies: Copies, *, points: int = 40) -> tuple[RematPlan, ...]:
    """Return the plans that no other one beats in time and memory, from the fastest to the smallest.

    Args:
        step: The step.
        copies: How activations reach the host.
        points: Plans are looked for at least a `points`-th of the range of memory apart; every plan that is returned is
            the fastest in the memory it takes. Large values give the whole front.

    Raises:
        InputError: scipy is not installed.

    Source: the constraint method for two objectives; Jain et al., Checkmate, arXiv:1910.02653, for rematerialisation as
        an integer program; HiGHS, Huangfu and Hall 2018.
    """
    if points < 2:
        raise UsageError(f"{points} points, expected at least the fastest and the smallest plan")
    _need_scipy()
    program = _Program(step, copies)
    small, _ = _best(program, "memory", ())
    fast, _ = _best(program, "time", ())
    assert small is not None
    assert fast is not None
    found = [fast]
    span = (fast.memory_bytes - small.memory_bytes) / program.memory_unit
    gap = max(span / (points - 1), FINEST)
    while found[-1].memory_bytes > small.memory_bytes * (1.0 + 1e-12):
        most = (found[-1].memory_bytes - step.fixed_bytes) / program.memory_unit - program.constant_memory() - gap
        plan, _ = _best(program, "time", (("memory", most),))
        if plan is None:
            break
        if plan.memory_bytes >= found[-1].memory_bytes:
            # Within the tolerance of the solver the limit held: look further down.
            gap *= 2.0
            continue
        found.append(plan)
    return _undominated([*found, small])


def keep_everything(step: Step, copies: Copies) -> RematPlan:
    """Return what automatic differentiation does by itself: everything that a gradient needs is kept."""
    kinds: tuple[tuple[Choice, ...], ...] = tuple(
        tuple("keep" if n.needed else "recompute" for n in kind.nodes) for kind in step.kinds
    )
    return evaluate(step, copies, Policy(kinds=kinds))


def fastest_within(step: Step, copies: Copies, budget_bytes: float) -> RematPlan | None:
    """Return the fastest plan that fits into a budget; None where none does.

    Args:
        step, copies: As in `front`.
        budget_bytes: What a device may hold [B].
    """
    _need_scipy()
    program = _Program(step, copies)
    most = (budget_bytes - step.fixed_bytes) / program.memory_unit - program.constant_memory()
    plan, _ = _best(program, "time", (("memory", most),))
    return plan if plan is not None and plan.memory_bytes <= budget_bytes else None


def _best(
    program: _Program, what: Literal["time", "memory"], limits: tuple[tuple[str, float], ...]
) -> tuple[RematPlan | None, Policy | None]:
    """The best plan by one measure, and of equals the best by the other."""
    step, copies = program.step, program.copies
    policy = program.solve(what, limits)
    if policy is None:
        return None, None
    plan = evaluate(step, copies, policy)
    other: Literal["time", "memory"] = "memory" if what == "time" else "time"
    if what == "time":
        reached = (plan.time_s - step.once_s) / step.passes / program.time_unit
    else:
        reached = (plan.memory_bytes - step.fixed_bytes) / program.memory_unit - program.constant_memory()
    second = program.solve(other, (*limits, (what, reached * (1.0 + 1e-9) + 1e-12)))
    if second is None:
        return plan, policy
    better = evaluate(step, copies, second)
    pair = (better.time_s, better.memory_bytes) if what == "time" else (better.memory_bytes, better.time_s)
    mine = (plan.time_s, plan.memory_bytes) if what == "time" else (plan.memory_bytes, plan.time_s)
    # The solver may give up a billionth of one measure for the other.
    return (better, second) if pair[0] <= mine[0] * (1.0 + 1e-7) and pair[1] <= mine[1] else (plan, policy)


def _undominated(plans: Sequence[RematPlan]) -> tuple[RematPlan, ...]:
    out: list[RematPlan] = []
    for plan in sorted(plans, key=lambda p: (p.memory_bytes, p.time_s)):
        if not out or plan.time_s < out[-1].time_s * (1.0 - 1e-12):
            out.append(plan)
    return tuple(reversed(out))


def _need_scipy() -> None:
    import importlib.util

    if importlib.util.find_spec("scipy") is None:
        raise InputError("choosing activations needs scipy, which is not installed", hint=install("plan"))


def as_json(plan: RematPlan) -> dict[str, Any]:
    """Return the figures of a plan."""
    return {
        "time_s": plan.time_s, "memory_bytes": plan.memory_bytes, "kept_bytes": plan.kept_bytes,
        "working_bytes": plan.working_bytes, "host_bytes": plan.host_bytes, "recompute_s": plan.recompute_s,
        "copy_s": plan.copy_s, "waiting_s": plan.waiting_s,
    }  # fmt: skip
