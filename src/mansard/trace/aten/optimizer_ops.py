"""Costs of recorded fused optimizer steps and of operators on lists of tensors."""

from __future__ import annotations

from mansard.core import Demand
from mansard.operators.counting import demand as make_demand
from mansard.operators.elementwise import ARITHMETIC, elementwise
from mansard.operators.optimizer import adagrad_step, adam_step, sgd_step
from mansard.trace.aten.arguments import Arguments, NotRecordedError, Tensor
from mansard.trace.aten.call import AtenCost
from mansard.trace.aten.making import Handler, by_grain, work, wrapper


def _by_type(tensors: list[Tensor]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0.0) + tensor.elements
    return sizes


def _total(parts: list[Demand]) -> Demand:
    """The sum of parts that are one launch together."""
    whole = Demand(launches=0.0)
    for part in parts:
        whole = whole + part
    return Demand(
        flop=whole.flop,
        vector_flop=whole.vector_flop,
        transcendental=whole.transcendental,
        read_bytes=whole.read_bytes,
        write_bytes=whole.write_bytes,
    )


def adam(args: Arguments) -> AtenCost:
    """_fused_adam_, _fused_adamw_ (params, grads, m, v, maxima, steps, lr, beta1, beta2, weight decay, eps, amsgrad, ...)."""
    parameters, gradients, moments = args.list_of(0), args.list_of(1), args.list_of(2)
    decay, amsgrad = args.number(9) != 0.0, args.flag(11)
    if len(_by_type(gradients)) > 1 or len(_by_type(moments)) > 1:
        raise NotRecordedError(f"{args.call.name}: gradients or moments of several types in one call")
    parts = [
        adam_step(
            elements=n, dtype=dtype, weight_decay=decay, decoupled=args.base == "_fused_adamw", amsgrad=amsgrad,
            gradient_dtype=gradients[0].dtype, state_dtype=moments[0].dtype,
        )
        for dtype, n in _by_type(parameters).items()
    ]  # fmt: skip
    return _step(parameters, parts)


def sgd(args: Arguments) -> AtenCost:
    """_fused_sgd_ (params, grads, momenta, weight decay, momentum, lr, dampening, nesterov, maximize, first step, ...)."""
    parameters, gradients = args.list_of(0), args.list_of(1)
    parts = [
        sgd_step(
            elements=n, dtype=dtype, momentum=args.number(4) != 0.0, weight_decay=args.number(3) != 0.0, nesterov=args.flag(7),
            first_step=args.flag(9), dampening=args.number(6) != 0.0, gradient_dtype=gradients[0].dtype,
        )
        for dtype, n in _by_type(parameters).items()
    ]  # fmt: skip
    return _step(parameters, parts)


def adagrad(args: Arguments) -> AtenCost:
    """_fused_adagrad_ (params, grads, sums, steps, lr, lr decay, weight decay, ...)."""
    parameters = args.list_of(0)
    parts = [
        adagrad_step(elements=n, dtype=dtype, weight_decay=args.number(6) != 0.0)
        for dtype, n in _by_type(parameters).items()
    ]
    return _step(parameters, parts)


def _step(parameters: list[Tensor], parts: list[Demand]) -> AtenCost:
    elements = sum(p.elements for p in parameters)
    return work(
        "optimizer", _total(parts), formula=f"{elements:.0f} parameters in {len(parameters)} tensors, each element once"
    )


def foreach(args: Arguments) -> AtenCost:
    """_foreach_*: on a CPU it calls one operator per tensor, and these are counted; fused, it is counted as a whole."""
    if args.inner or (args.inner is None and args.kind(0) == "TensorList"):
        return wrapper("optimizer")
    name = args.base.removeprefix("_foreach_")
    lists = [args.list_of(i) for i in range(args.count) if args.is_list(i)]
    if not lists:
        raise NotRecordedError(f"{args.call.name}: no list of tensors was recorded")
    target = lists[0]
    elements = sum(t.elements for t in target)
    allocates = not args.in_place and name != "norm"
    if name == "norm":
        wanted = make_demand(
            reads=[t.operand for t in target],
            writes=[(float(len(target)), target[0].dtype)],
            vector=(2.0 * elements, target[0].dtype),
        )
    elif name in ("copy", "zero"):
        wanted = make_demand(
            reads=[t.operand for t in lists[-1]] if name == "copy" else [],
            writes=[(t.elements, t.dtype) for t in target],
        )
    else:
        if name not in ARITHMETIC:
            raise NotRecordedError(f"{args.call.name}: no cost function for this operator on lists")
        flop, special = ARITHMETIC[name]
        wanted = _total([
            elementwise(
                elements=t.elements, inputs=[group[i].operand for group in lists if len(group) == len(target)], dtype=t.dtype,
                output=t.dtype, flop_per_element=flop, transcendental_per_element=special,
            )
            for i, t in enumerate(target)
        ])  # fmt: skip
    fresh = tuple((t.elements, t.dtype) for t in target) if allocates else ()
    return work(
        "optimizer",
        wanted,
        fresh=fresh,
        scope=by_grain(elements),
        formula=f"{len(target)} tensors, {elements:.0f} elements",
    )


def unscale(args: Arguments) -> AtenCost:
    """_amp_foreach_non_finite_check_and_unscale_: every gradient checked and scaled in place."""
    gradients = args.list_of(0)
    wanted = make_demand(
        reads=[t.operand for t in gradients], writes=[(t.elements, t.dtype) for t in gradients],
        vector=(2.0 * sum(t.elements for t in gradients), gradients[0].dtype),
    )  # fmt: skip
    return work("optimizer", wanted, formula="each gradient read, checked and written")


HANDLERS: dict[str, Handler] = {
    "_fused_adam": adam,
    "_fused_adamw": adam,
    "_fused_sgd": sgd,
    "_fused_adagrad": adagrad,
    "_amp_foreach_non_finite_check_and_unscale": unscale,
}
