"""What each training plan holds, and how long its step takes, part by part, for all plans at once.

A step is `micro-batches x the slowest stage + bubble + what is sent or updated once`. All parts are kept, and they add up
to the step exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.core import dtype_bytes
from mansard.plan.shard.job import AS_IS, Scale
from mansard.plan.shard.network import parts_of
from mansard.plan.shard.training import Array, Messages, Rows, TrainingGrid
from mansard.plan.shard.work import SUMS, Division, Rates, rates_of, summed_s
from mansard.workload.training import optimizer_kernel, state_bytes_per_param

#: Parts of a step, in the order they are shown; their sum is the step.
PARTS = (
    "compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "pipeline_s", "data_s", "bubble_s", "optimizer_s",
)  # fmt: skip
#: What a device holds; their sum is its memory.
HELD = ("weight_bytes", "gathered_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def _table(grid: TrainingGrid, rows: Rows) -> dict[str, Array]:
    """Numbers of each plan that memory and time need."""
    ranks = np.array(
        [(c.ranks.tp, c.ranks.pp, c.ranks.dp, c.ranks.cp, c.ranks.ep, c.division, c.devices) for c in grid.combos],
        dtype=np.float64,
    ).reshape(-1, 7)[rows.combo]
    names = ("tp", "pp", "dp", "cp", "ep", "division", "devices")
    t = {name: ranks[:, i] for i, name in enumerate(names)}
    most = max(grid.space.virtual) + 1
    layers = np.zeros((len(grid.combos), most, 3))
    for c, combo in enumerate(grid.combos):
        for v, s in combo.layers.items():
            layers[c, v] = (s.first, s.middle, s.last)
    mine = layers[rows.combo, rows.chunks]
    t["first"], t["middle"], t["last"] = mine[:, 0], mine[:, 1], mine[:, 2]
    t["micro"] = grid.sizes[rows.micro]
    t["steps"] = float(grid.work.batch or 1) / (t["dp"] * t["micro"])
    t["chunks"] = rows.chunks.astype(np.float64)
    groups = np.where(t["ep"] > 1, np.maximum(1.0, t["ep"] // t["tp"]), 1.0)
    t["replicas"] = t["dp"] * t["cp"]
    t["expert_replicas"] = t["replicas"] / groups
    return t


def memory_of(grid: TrainingGrid, rows: Rows) -> dict[str, Array]:
    """Return what the fullest device of each plan holds, by `HELD` [B].

    The first stage holds the token table and micro-batches in flight, the last one the head and the logits. Sharded weights
    are gathered for two layers at a time, and their gradients for one; or, where that is more, for the head with its gradient,
    or the token table in the forward or its gradient in the backward pass, and the layer next to it.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5; Korthikanti et al., arXiv:2205.05198, section 4 (micro-batches
        in flight of interleaved stages).
    """
    t, depth = _table(grid, rows), float(grid.model.text.depth)
    d = t["division"].astype(np.int64)

    def held(name: str) -> Array:
        return np.array([getattr(x.held, name) for x in grid.divisions], dtype=np.float64)[d]

    recipe = grid.work.recipe
    gradient = np.array([float(dtype_bytes(x.setting.types.gradient)) for x in grid.divisions])[d]
    state = np.array([state_bytes_per_param(recipe, x.setting.types.activation) for x in grid.divisions])[d]
    whole = np.where(rows.zero == 3, t["replicas"], 1.0), np.where(rows.zero == 3, t["expert_replicas"], 1.0)
    shard_g = np.where(rows.zero >= 2, t["replicas"], 1.0), np.where(rows.zero >= 2, t["expert_replicas"], 1.0)
    shard_o = np.where(rows.zero >= 1, t["replicas"], 1.0), np.where(rows.zero >= 1, t["expert_replicas"], 1.0)
    layer_bytes = (held("dense_bytes") + held("expert_bytes")) / depth
    layer_params = (held("dense") + held("expert")) / depth
    inner = np.minimum(2.0, t["middle"]) * layer_bytes + gradient * layer_params
    head_params = np.where(held("head") > 0.0, held("head"), held("table"))  # a tied head has the gradient of the table
    head_whole = held("head_bytes") + gradient * head_params + layer_bytes
    table_whole = np.maximum(held("table_bytes"), gradient * held("table")) + layer_bytes
    kept = np.where(rows.policy == 2, held("inputs"), held("kept")) / depth * t["micro"]
    working = np.where(rows.policy == 2, held("working"), 0.0) * t["micro"]
    flight = in_flight(t["pp"], t["chunks"], t["steps"])
    stages = []
    for layers, table, logits, many in (
        (t["first"], 1.0, np.where(t["pp"] == 1, 1.0, 0.0), flight[0]),
        (t["middle"], 0.0, 0.0, flight[1]),
        (t["last"], np.where(t["pp"] == 1, 1.0, 0.0), 1.0, flight[2]),
    ):
        share = layers / depth
        # Stages that share a tied table each update their copy; one stage holds it once.
        outer_p = held("table") * table + np.where(t["pp"] == 1, held("head"), head_params) * logits
        outer_b = held("table_bytes") * table + np.where(t["pp"] == 1, _own_head(grid)[d], held("head_bytes")) * logits
        weights = (held("dense_bytes") * share + outer_b) / whole[0] + held("expert_bytes") * share / whole[1]
        params = held("dense") * share + outer_p, held("expert") * share
        grads = gradient * (params[0] / shard_g[0] + params[1] / shard_g[1])
        states = state * (params[0] / shard_o[0] + params[1] / shard_o[1])
        acts = kept * layers * many + working + t["micro"] * (held("first") * table + held("last") * logits)
        ends = np.maximum(head_whole * logits, table_whole * table)
        gathered = np.where(rows.zero == 3, np.maximum(inner, ends), 0.0)
        stages.append((weights, gathered, grads, states, acts))
    totals = np.stack([sum(s, start=np.zeros(len(rows))) for s in stages])
    # A pipeline of one or two stages has no middle one.
    totals[1] = np.where(t["pp"] > 2, totals[1], -1.0)
    fullest = np.argmax(totals, axis=0)
    return {
        name: np.choose(fullest, [np.broadcast_to(s[i], (len(rows),)) for s in stages]) for i, name in enumerate(HELD)
    }


def _own_head(grid: TrainingGrid) -> Array:
    """Bytes of a head that is not the token table, which a single stage holds once."""
    return np.array([x.held.head_bytes if x.held.head else 0.0 for x in grid.divisions])


def in_flight(pp: Array, chunks: Array, steps: Array) -> tuple[Array, Array, Array]:
    """Return the micro-batches whose activations the first, the second and the last stage keep.

    One forward, one backward: as many as stages follow, itself included. With v interleaved chunks the first stage runs
    2 (pp - 1) + (v - 1) pp + 1 chunk passes ahead, pp + (pp - 1)/v micro-batches; each further stage 2/v fewer.

    >>> [float(x[0]) for x in in_flight(np.array([8.0]), np.array([1.0]), np.array([64.0]))]
    [8.0, 7.0, 1.0]
    >>> [float(x[0]) for x in in_flight(np.array([8.0]), np.array([2.0]), np.array([64.0]))]
    [11.5, 10.5, 4.5]
    """
    first = np.where(chunks > 1, pp + (pp - 1.0) / chunks, pp)
    fewer = np.where(chunks > 1, 2.0 / chunks, 1.0)
    return (
        np.minimum(first, steps), np.minimum(np.maximum(first - fewer, 1.0), steps),
        np.minimum(np.maximum(first - fewer * (pp - 1.0), 1.0), steps),
    )  # fmt: skip


def messages_of(grid: TrainingGrid, scale: Scale = AS_IS) -> Messages:
    """Return the times of messages at scaled rates, remembered."""
    key = (scale.link, scale.network)
    if key not in grid._messages:
        grid._messages[key] = _timed(grid, scale)
    return grid._messages[key]


def _timed(grid: TrainingGrid, scale: Scale) -> Messages:
    networks = {n: grid.where.network(n, scale) for n in grid.where.fabrics}
    largest = networks[max(networks)]
    shape = (len(grid.divisions), len(grid.sizes))
    kinds = {name: np.zeros(shape) for name in ("tensor", "context", "expert")}
    table = np.zeros(shape)
    for i, division in enumerate(grid.divisions):
        plan = division.setting.plan
        parts = parts_of(plan.tp, 1, plan.dp, plan.cp, plan.ep)
        for m in division.messages:
            time_s = largest.collective(m.operation, parts, m.kind).time_s(m.size_bytes) * m.calls
            if m.kind == "expert":
                time_s = time_s * grid.work.imbalance
            if m.where == "layers":
                kinds[m.kind][i] += time_s
            else:
                table[i] += 2.0 * time_s
    columns = {name: np.zeros(len(grid.combos)) for name in ("gather", "scatter", "reduce")}
    ends = {name: np.zeros((2, len(grid.combos))) for name in columns}
    hand = np.zeros((len(grid.combos), len(grid.sizes)))
    operations = {"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce"}
    for c, combo in enumerate(grid.combos):
        division, r, net = grid.divisions[combo.division], combo.ranks, networks[combo.devices]
        parts = parts_of(r.tp, r.pp, r.dp, r.cp, r.ep)
        for name, operation in operations.items():
            sizes = _layer_bytes(division, grid.model.text.depth, weights=name == "gather")
            columns[name][c] = sum(
                float(net.collective(operation, parts, kind).time_s(size)) for kind, size in sizes.items() if size
            )
            for i, size in enumerate(_end_bytes(division, weights=name == "gather")):
                if size:
                    ends[name][i, c] = float(net.collective(operation, parts, "data").time_s(size))
        if r.pp > 1:
            hand[c] = net.collective("ppermute", parts, "pipeline").time_s(division.held.boundary * grid.sizes)
    return Messages(**kinds, table=table, **columns, ends=ends, hand_over=hand)


def _layer_bytes(division: Division, depth: int, *, weights: bool) -> dict[str, float]:
    """Bytes of one layer that data ranks exchange: its weights, or its gradients; experts over their own ranks [B]."""
    held = division.held
    gradient = float(dtype_bytes(division.setting.types.gradient))
    dense = held.dense_bytes if weights else held.dense * gradient
    expert = held.expert_bytes if weights else held.expert * gradient
    return {"data": dense / depth, "expert_data": expert / depth}


def _end_bytes(division: Division, *, weights: bool) -> tuple[float, float]:
    """Bytes of the token table and of the head that data ranks exchange; a tied head is the table again [B]."""
    held = division.held
    if weights:
        return held.table_bytes, held.head_bytes
    gradient = float(dtype_bytes(division.setting.types.gradient))
    return held.table * gradient, (held.head or held.table) * gradient


def step_of(grid: TrainingGrid, rows: Rows, scale: Scale = AS_IS) -> dict[str, Array]:
    """Return the parts of each plan's step, by `PARTS`, and what else is known of it [s].

    Args:
        grid: The space.
        rows: Plans of it.
        scale: Ceilings multiplied.

    Returns:
        `PARTS`, their sum `step_s`, and `messages_s`: all messages, hidden ones too.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2: the bubble is (pp - 1)/v micro-batches of a stage.
    """
    rates = rates_of(grid.where.machine, grid.packed.keys, grid.where.efficiency)
    rates = rates.scaled(compute=scale.compute, memory=scale.memory)
    kernels = summed_s(grid.packed, rates, sums=len(SUMS), imbalance=grid.work.imbalance)
    t, m = _table(grid, rows), messages_of(grid, scale)
    depth, d, c, j = float(grid.model.text.depth), t["division"].astype(np.int64), rows.combo, rows.micro
    by = {name: kernels[d, i, j] / depth for i, name in enumerate(SUMS)}
    forward, backward = by["forward"], by["backward"]
    again = np.choose(rows.policy, [np.zeros(len(rows)), by["selective"], forward])
    repeats = np.where(rows.policy == 2, 1.0, 0.0)
    tensor = m.tensor[d, j] / depth * (2.0 + repeats)
    expert = m.expert[d, j] / depth * (2.0 + repeats)
    ring = m.context[d, j] / depth
    none = grid.work.overlap == "none"
    ring_f = ring if none else ring - np.minimum(ring, by["core_forward"])
    ring_b = (ring if none else ring - np.minimum(ring, by["core_backward"])) + repeats * ring_f
    context, context_all = ring_f + ring_b, ring * (2.0 + repeats)
    outer_f, outer_l = by["first"] * depth, by["last"] * depth
    table = m.table[d, j]
    layer = forward + backward + again + tensor + context + expert
    # What a message of data ranks hides behind: all that a layer does in a pass.
    front = forward + (m.tensor[d, j] + m.expert[d, j]) / depth + ring_f
    data = _data(grid, rows, t, m, front, layer - front)
    one = np.where(t["pp"] == 1, 1.0, 0.0)
    ends = [outer_f + table + one * outer_l, np.zeros(len(rows)), outer_l + one * (outer_f + table)]
    layers = [t["first"], np.where(t["pp"] > 2, t["middle"], 0.0), t["last"]]
    data_ends = [data["each_first"], np.zeros(len(rows)), data["each_last"]]
    each = np.stack([n * (layer + data["each"]) + e + x for n, e, x in zip(layers, ends, data_ends, strict=True)])
    slowest = np.argmax(each, axis=0)
    n = np.choose(slowest, layers)
    end_kernels = np.choose(slowest, [outer_f + one * outer_l, np.zeros(len(rows)), outer_l + one * outer_f])
    end_tensor = np.choose(slowest, [table, np.zeros(len(rows)), one * table])
    end_data = np.choose(slowest, data_ends)
    steps = t["steps"]
    slow = np.max(each, axis=0)
    hand, fill = _hand_over(grid, t, m.hand_over[c, j], slow)
    slow = slow + hand
    # Where hand-overs are overlapped, the way through the pipeline is in `fill` already.
    ways = np.where(t["chunks"] > 1, 1.0, t["pp"])
    every = depth * (layer + data["each"]) + outer_f + outer_l + table + ways * hand
    every = every + data["each_first"] + (1.0 - one) * data["each_last"]
    parts = {
        "compute_s": steps * (n * (forward + backward) + end_kernels), "recompute_s": steps * n * again,
        "tensor_s": steps * (n * tensor + end_tensor), "context_s": steps * n * context, "expert_s": steps * n * expert,
        "pipeline_s": steps * hand + fill, "data_s": steps * (n * data["each"] + end_data) + data["once"],
        "bubble_s": np.maximum(0.0, every - slow) / t["chunks"], "optimizer_s": _update(grid, rows, t, rates),
    }  # fmt: skip
    total = (
        steps * (n * (tensor + context_all + expert) + end_tensor + 2.0 * t["chunks"] * m.hand_over[c, j]) + data["all"]
    )
    if grid.work.overlap == "full":
        parts = _hidden(parts, total)
    return {**parts, "step_s": sum((parts[p] for p in PARTS), start=np.zeros(len(rows))), "messages_s": total}


def _hand_over(grid: TrainingGrid, t: dict[str, Array], once: Array, stage: Array) -> tuple[Array, Array]:
    """What a stage waits for its neighbours: in every micro-batch, and while the pipeline fills and drains [s].

    Interleaved stages have another chunk to work on meanwhile, so that only the way through the pipeline is left.

    Source: Megatron-LM, `--no-overlap-p2p-communication`: interleaved schedules overlap it unless told otherwise.
    """
    every = 2.0 * t["chunks"] * once
    if grid.work.overlap == "none":
        return every, np.zeros(len(once))
    overlapped = t["chunks"] > 1
    return (
        np.where(overlapped, np.maximum(0.0, every - stage), every),
        np.where(overlapped, 2.0 * (t["pp"] - 1.0) * once, 0.0),
    )


def _hidden(parts: dict[str, Array], total: Array) -> dict[str, Array]:
    """Messages that hide behind kernels altogether: what is longer than the kernels is left, of each alike."""
    names = ("tensor_s", "context_s", "expert_s", "pipeline_s", "data_s")
    kernels = parts["compute_s"] + parts["recompute_s"]
    waited = sum((parts[n] for n in names), start=np.zeros(len(total)))
    left = np.maximum(0.0, total - kernels)
    ratio = np.divide(np.minimum(left, waited), waited, out=np.zeros(len(total)), where=waited > 0.0)
    return {**parts, **{n: parts[n] * ratio for n in names}}


def _data(
    grid: TrainingGrid, rows: Rows, t: dict[str, Array], m: Messages, forward: Array, backward: Array
) -> dict[str, Array]:  # fmt: skip
    """Messages of data ranks that are waited for: of each layer and micro-batch, and once a step; and all of them.

    A layer's message runs while other layers compute. The first to be gathered and the last to be scattered have nothing to
    hide behind, nor has the token table, whose look-up takes no time; the others leave what is longer than a layer.

    Returns:
        Of each layer and micro-batch (`each`), of the table and the head beside the layers of the first and the last stage
        (`each_first`, `each_last`: with one stage both are the same), once a step (`once`), and all messages (`all`).
    """
    zero, steps, layers = rows.zero, t["steps"], np.maximum(t["first"], t["middle"])
    gather, scatter, reduce = (x[rows.combo] for x in (m.gather, m.scatter, m.reduce))
    none, single = grid.work.overlap == "none", t["pp"] == 1
    tied = np.array([not x.held.head for x in grid.divisions])[t["division"].astype(np.int64)]
    end = {name: x[:, rows.combo] for name, x in m.ends.items()}
    # A table that is the head too is sent once where both are on one device.
    alone = {name: np.where(single & tied, 0.0, x[1]) for name, x in end.items()}

    def waits(message: Array, layer: Array) -> Array:
        if none:
            return message * layers
        return message + (layers - 1.0) * np.maximum(0.0, message - layer)

    def outer(names: Sequence[str], layer: Array) -> tuple[Array, Array]:
        """What is waited for on the first and on the last stage, beside the layers."""
        table = sum((end[n][0] for n in names), start=np.zeros(len(rows)))
        head = sum((alone[n] for n in names), start=np.zeros(len(rows)))
        head = head if none else np.maximum(0.0, head - layer)
        return np.where(single, table + head, table), np.where(single, table + head, head)

    # Per micro-batch: gathers of both passes and the scatter under ZeRO 3, the scatter under ZeRO 2.
    both = np.where(zero == 3, waits(gather, forward) + waits(gather + scatter, backward), 0.0)
    both = np.where(zero == 2, waits(scatter, backward), both)
    once = np.select([zero == 0, zero == 1, zero == 2], [
        waits(reduce, backward), waits(scatter, backward) + waits(gather, forward), waits(gather, forward),
    ], default=0.0)  # fmt: skip
    every = np.select([zero == 0, zero == 1, zero == 2], [
        reduce, scatter + gather, steps * scatter + gather], default=steps * (2.0 * gather + scatter)) * layers  # fmt: skip
    gathers, scatters, reduces = (
        outer(("gather",), forward),
        outer(("scatter",), backward),
        outer(("reduce",), backward),
    )
    fetched = outer(("gather", "scatter"), backward)
    ends = [
        np.select([zero == 3, zero == 2], [gathers[i] + fetched[i], scatters[i]], default=0.0) for i in (0, 1)
    ]  # fmt: skip
    longer = [np.maximum(*x) for x in (gathers, scatters, reduces)]
    once = once + np.select(
        [zero == 0, zero == 1, zero == 2], [longer[2], longer[1] + longer[0], longer[0]], default=0.0
    )
    one = {n: np.where(single, end[n][0] + alone[n], np.maximum(end[n][0], alone[n])) for n in end}
    every = every + np.select([zero == 0, zero == 1, zero == 2], [
        one["reduce"], one["scatter"] + one["gather"], steps * one["scatter"] + one["gather"],
    ], default=steps * (2.0 * one["gather"] + one["scatter"]))  # fmt: skip
    return {"each": both / layers, "each_first": ends[0], "each_last": ends[1], "once": once, "all": every}


def _update(grid: TrainingGrid, rows: Rows, t: dict[str, Array], rates: Rates) -> Array:
    """Time of the optimizer over the parameters that one device updates [s]: it is memory traffic alone."""
    d = t["division"].astype(np.int64)
    division = grid.divisions[0]
    unit = 1e9
    cost = float(optimizer_kernel(unit, division.setting.types, grid.work.recipe).demand.bytes) / unit
    depth = float(grid.model.text.depth)
    dense = np.array([x.held.dense for x in grid.divisions])[d]
    expert = np.array([x.held.expert for x in grid.divisions])[d]
    outer = np.array([max(x.held.table, x.held.head) for x in grid.divisions])[d]
    both = np.array([x.held.table + x.held.head for x in grid.divisions])[d]
    share = np.maximum(t["first"], t["middle"]) / depth
    ranks = np.where(rows.zero >= 1, t["replicas"], 1.0), np.where(rows.zero >= 1, t["expert_replicas"], 1.0)
    mine = (dense * share + np.where(t["pp"] == 1, both, outer)) / ranks[0] + expert * share / ranks[1]
    return np.asarray(rates.efficiency.copy_s(mine * cost / rates.bytes_per_s))
