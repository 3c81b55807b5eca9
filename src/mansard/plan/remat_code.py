"""The policy as code for JAX and PyTorch: what to write, and where the names go.

The texts are programs: a test runs them on a small model and compares what is really kept with what the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.plan.remat import INPUT

FRAMEWORKS = ("jax", "torch")

#: What makes each activation, for people who have to find the place in their code.
WHERE: dict[str, str] = {
    INPUT: "what a layer is called with",
    "input_layernorm": "the norm before attention",
    "post_attention_layernorm": "the norm before the feed-forward",
    "qkv_proj": "queries, keys and values (after their rotation in JAX)",
    "q_proj": "queries",
    "qkv_down": "the latents of queries and keys",
    "q_up": "queries from their latent",
    "kv_up": "keys and values from their latent",
    "attention": "the result of fused attention",
    "o_proj": "the projection after attention",
    "gate_up_proj": "gate and up in front of the activation",
    "up_proj": "the product in front of the activation",
    "activation": "what the last product of the feed-forward is given",
    "down_proj": "the last product of the feed-forward",
    "router": "the scores of the router",
    "experts_gate_up_proj": "gate and up of the routed experts",
    "experts_activation": "what the last product of the experts is given",
    "experts_down_proj": "the result of each routed expert",
    "shared_gate_up_proj": "gate and up of the shared expert",
    "shared_activation": "what the last product of the shared expert is given",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Activations of one kind of layer by what becomes of them.

    Args:
        kept, offloaded: On the device, and on the host; neither has the input of the layer.
        again: Made a second time.
        input_offloaded: The input of the layer waits on the host.
        every: Every activation that a gradient needs is kept: no checkpoint is needed.
    """

    kept: tuple[str, ...]
    offloaded: tuple[str, ...]
    again: tuple[str, ...]
    input_offloaded: bool = False

    @property
    def every(self) -> bool:
        """Whether nothing is made again and nothing moves: automatic differentiation does that by itself."""
        return not self.again and not self.offloaded and not self.input_offloaded


def jax_code(names: Names) -> str:
    """Return the policy for JAX: `run_layer(layer, *arguments)` calls a layer under it.

    Source: JAX documentation, `jax.checkpoint_policies` and `jax.ad_checkpoint.checkpoint_name`.
    """
    if names.every:
        return _plain("jax")
    moved = (*((INPUT,) if names.input_offloaded else ()), *names.offloaded)
    lines = ["import jax", "from jax.ad_checkpoint import checkpoint_name", ""]
    if moved:
        lines += [
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(",
            f"    names_which_can_be_saved={_list(names.kept, 4)},",
            f"    names_which_can_be_offloaded={_list(moved, 4)},",
            '    offload_src="device",',
            '    offload_dst="pinned_host",',
            ")",
        ]
    elif names.kept:
        lines += ["policy = jax.checkpoint_policies.save_only_these_names("]
        lines += [f'    "{name}",' for name in names.kept] + [")"]
    else:
        lines += ["policy = jax.checkpoint_policies.nothing_saveable"]
    lines += [
        "",
        "",
        "def run_layer(layer, *arguments):",
        '    """Call one layer; what it makes is kept as the plan says."""',
        "    return jax.checkpoint(layer, policy=policy)(*arguments)",
    ]
    if moved or names.kept:
        sample = names.kept[0] if names.kept else moved[0]
        lines += [
            "",
            "",
            "# In the layer, give the activations their names:",
            f'#     y = checkpoint_name(y, "{sample}")',
        ]
    return "\n".join(lines) + "\n"


def torch_code(names: Names) -> str:
    """Return the policy for PyTorch: `run_layer(layer, *arguments)` calls a layer under it.

    Eager selective checkpointing keeps or recomputes; an activation inside a layer reaches the host through a dispatch
    mode below it, and the input of a layer through `save_on_cpu`.

    Source: PyTorch documentation, `torch.utils.checkpoint` and `torch.autograd.graph.save_on_cpu`.
    """
    if names.every:
        return _plain("torch")
    lines = ["import contextlib", "", "import torch"]
    selective = bool(names.kept or names.offloaded)
    if selective:
        lines += ["from torch.utils.checkpoint import (", "    CheckpointPolicy,", "    checkpoint,"]
        lines += ["    create_selective_checkpoint_contexts,", ")"]
    else:
        lines += ["from torch.utils.checkpoint import checkpoint"]
        lines.remove("import contextlib") if not names.input_offloaded else None
    if names.offloaded:
        lines += [
            "from torch.utils._python_dispatch import TorchDispatchMode",
            "from torch.utils._pytree import tree_map",
        ]
    if not selective:
        return "\n".join(_tidy([*lines, "", "", *_run_torch(names)])) + "\n"
    lines += ["", f"KEPT = {_set(names.kept)}"]
    if names.offloaded:
        lines += [f"OFFLOADED = {_set(names.offloaded)}"]
    lines += _NAMED
    if names.offloaded:
        lines += _HOST_MODES
    lines += _CONTEXTS_HOST if names.offloaded else _CONTEXTS
    lines += ["", "", *_run_torch(names)]
    sample = (*names.kept, *names.offloaded)[0]
    lines += ["", "", "# In the layer, name the one operation that makes an activation:", f'#     with named("{sample}"):', "#         y = ..."]  # fmt: skip
    return "\n".join(_tidy(lines)) + "\n"


_NAMED = '''
_now = None  # name of the activation that is being made
_made = False  # whether its operation has run; views before it do not count


@contextlib.contextmanager
def named(name):
    """Name the operation that makes an activation."""
    global _now, _made
    _now, _made = name, False
    try:
        yield
    finally:
        _now = None


def makes(op, among):
    """Whether this operation makes one of these activations."""
    global _made
    if _now not in among or _made or op.is_view:
        return False
    _made = True
    return True


def policy_fn(ctx, op, *args, **kwargs):
    """Keep what the plan keeps."""
    if makes(op, KEPT):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE'''.splitlines()

_CONTEXTS = '''

def contexts():
    """The forward pass, and the one that makes again what was not kept."""
    return create_selective_checkpoint_contexts(policy_fn)'''.splitlines()

_HOST_MODES = '''

class ToHost(TorchDispatchMode):
    """In the forward pass, copy what the plan offloads to the host."""

    def __init__(self, waiting):
        super().__init__()
        self.waiting = waiting

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if makes(op, OFFLOADED):
            copy = tree_map(_to_host, out)
            self.waiting.append((tree_map(_device, out), copy))
        return out


class FromHost(ToHost):
    """In the backward pass, fetch it instead of making it again."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if makes(op, OFFLOADED):
            devices, values = self.waiting.pop(0)
            return tree_map(_to_device, devices, values)
        return op(*args, **(kwargs or {}))


def _device(x):
    return x.device if isinstance(x, torch.Tensor) else None


def _to_device(device, x):
    return x if device is None else x.to(device, non_blocking=True)


def _to_host(x):
    if not isinstance(x, torch.Tensor):
        return x
    pinned = torch.empty_like(x, device="cpu", pin_memory=x.is_cuda)
    return pinned.copy_(x, non_blocking=True)


@contextlib.contextmanager
def both(outer, inner):
    """Enter two contexts; the inner one sees operations first."""
    with outer, inner:
        yield'''.splitlines()

_CONTEXTS_HOST = '''

def contexts():
    """The forward pass, and the one that makes again what is nowhere."""
    keep, again = create_selective_checkpoint_contexts(policy_fn)
    waiting = []
    return both(ToHost(waiting), keep), both(FromHost(waiting), again)'''.splitlines()


def _run_torch(names: Names) -> list[str]:
    lines = ["def run_layer(layer, *arguments):", '    """Call one layer; what it makes is kept as the plan says."""']
    options = ["use_reentrant=False", *(["context_fn=contexts"] if names.kept or names.offloaded else [])]
    call = ["return checkpoint(", f"    layer, *arguments, {', '.join(options)}", ")"]
    if names.input_offloaded:
        lines += [
            "    # The checkpoint holds the input of the layer; on the host while it waits.",
            "    pinned = torch.cuda.is_available()",
            "    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):",
        ]
    return [*lines, *(("        " if names.input_offloaded else "    ") + row for row in call)]


def _plain(framework: str) -> str:
    what = "jax.checkpoint" if framework == "jax" else "torch.utils.checkpoint"
    return "\n".join([
        f"# Everything a gradient needs is kept: no {what} is needed.",
        "def run_layer(layer, *arguments):",
        '    """Call one layer as it is."""',
        "    return layer(*arguments)",
    ]) + "\n"  # fmt: skip


def _tidy(lines: list[str]) -> list[str]:
    """Leave out an import of what is not used."""
    body = "\n".join(lines)
    return [line for line in lines if line != "import contextlib" or "contextlib." in body]


def _list(names: tuple[str, ...], indent: int) -> str:
    text = "[" + ", ".join(f'"{n}"' for n in names) + "]"
    if len(text) + indent + 32 <= 80:
        return text
    inner = " " * (indent + 4)
    return "[\n" + "".join(f'{inner}"{n}",\n' for n in names) + " " * indent + "]"


def _set(names: tuple[str, ...]) -> str:
    text = "{" + ", ".join(f'"{n}"' for n in names) + "}" if names else "set()"
    if len(text) <= 66:
        return text
    return "{\n" + "".join(f'    "{n}",\n' for n in names) + "}"
