"""Small models with random weights, run on this machine, so that predictions can be held against it."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.core import Ceilings, Unknown
from mansard.core.errors import InputError, MansardError
from mansard.core.stats import median_interval
from mansard.predict.bound import Machine, machine_of
from mansard.predict.calibration import kind_of
from mansard.predict.estimate import Request, estimate
from mansard.predict.validation import Case
from mansard.workload.model.load import load_model

_WIDTHS = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
_COMMON = {"vocab_size": 8192, "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "float32"}
#: Architectures that differ in what an estimate has to get right: attention, feed-forward, experts, head.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], **_WIDTHS, **_COMMON, "num_key_value_heads": 4,
        "hidden_act": "silu", "rms_norm_eps": 1e-5,
    },
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 512, "n_layer": 4, "n_head": 8, "n_inner": None,
        "n_positions": 2048, "vocab_size": 8192, "activation_function": "gelu_new", "torch_dtype": "float32",
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    },
    "mixtral": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **_WIDTHS, **_COMMON, "num_key_value_heads": 2,
        "intermediate_size": 704, "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "router_aux_loss_coef": 0.0,
    },
    "qwen3": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **_WIDTHS, **_COMMON, "head_dim": 64,
        "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "attention_bias": False, "use_sliding_window": False,
    },
}  # fmt: skip
#: What each model is asked to do.
TASKS: tuple[dict[str, Any], ...] = (
    {"phase": "prefill", "batch": 1, "seq": 256},
    {"phase": "prefill", "batch": 4, "seq": 512},
    {"phase": "decode", "batch": 1, "context": 128},
    {"phase": "decode", "batch": 1, "context": 1024},
    {"phase": "decode", "batch": 8, "context": 256},
    {"phase": "decode", "batch": 32, "context": 512},
    {"phase": "train", "seq": 128, "micro_batch": 2},
    {"phase": "train", "seq": 256, "micro_batch": 4},
)
WARM_UP = 2
FEWEST = 5
MOST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One model at one task.

    Args:
        model: A name of `MODELS`.
        task: Fields of `estimate.Request`.
    """

    model: str
    task: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model} " + " ".join(f"{k} {v}" if k != "phase" else str(v) for k, v in self.task.items())


def trials(models: Sequence[str] | None = None) -> tuple[Trial, ...]:
    """Return every model at every task."""
    return tuple(Trial(model=name, task=task) for name in models or MODELS for task in TASKS)


def run_trials(
    chosen: Sequence[Trial], ceilings: Ceilings, *, threads: int, progress: Callable[[str, float], None] | None = None
) -> tuple[list[Case], list[dict[str, str]]]:
    """Return each trial, bounded and measured with PyTorch on the CPU, and those that failed, with the reason.

    Args:
        chosen: What to run.
        ceilings: Measured ceilings of this machine.
        threads: Threads the ceilings were measured with.
        progress: Called with a line and the share done (0..1).

    Raises:
        InputError: PyTorch or transformers is not installed.
    """
    # What a release of a library will change some day is not about the trials.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return _run(chosen, ceilings, threads, progress)


def _run(
    chosen: Sequence[Trial], ceilings: Ceilings, threads: int, progress: Callable[[str, float], None] | None
) -> tuple[list[Case], list[dict[str, str]]]:
    try:
        import torch

        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError(
            f"the trials need PyTorch and transformers: {error}", hint="install both, or give --runs FILE.csv"
        ) from None
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    machine = machine_of(ceilings, name="this machine")
    cases: list[Case] = []
    failed: list[dict[str, str]] = []
    for number, trial in enumerate(chosen):
        if progress is not None:
            progress(trial.name, number / len(chosen))
        try:
            cases.append(_case(trial, machine))
        except (MansardError, RuntimeError, TypeError, ValueError) as error:
            failed.append({"name": trial.name, "reason": f"{type(error).__name__}: {error}"})
    return cases, failed


def _case(trial: Trial, machine: Machine) -> Case:
    config = MODELS[trial.model]
    result = estimate(load_model(config), Request(**trial.task, dtype="f32"), machine)
    bound, kind = result.bound, kind_of(result)
    if isinstance(bound, Unknown) or isinstance(bound.time_s, Unknown) or kind is None:
        raise ValueError("this machine has no ceilings that bound it")
    seconds = _timed(_prepared(config, trial.task))
    taken = median_interval(seconds)
    return Case(
        name=trial.name, group=trial.model, kind=kind, bound_s=float(bound.time_s), measured_s=taken.median,
        about=f"median of {taken.count}, 95 % in {taken.low:.4g} s to {taken.high:.4g} s",
    )  # fmt: skip


def _timed(step: Callable[[], float], now: Callable[[], float] = time.perf_counter) -> list[float]:
    for _ in range(WARM_UP):
        step()
    seconds: list[float] = []
    begin = now()
    while len(seconds) < FEWEST or now() - begin < MOST_S:
        seconds.append(step())
    return seconds


def _prepared(config: Mapping[str, Any], task: Mapping[str, Any]) -> Callable[[], float]:
    """Return a call that does the task once and returns its time [s]."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    plain = {k: v for k, v in config.items() if k not in ("torch_dtype", "model_type")}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **plain), dtype=torch.float32
    )
    steps = {"prefill": _prefill, "decode": _decode, "train": _train}
    return steps[task["phase"]](model, int(config["vocab_size"]), task)


def _prefill(model: Any, vocabulary: int, task: Mapping[str, Any]) -> Callable[[], float]:
    import torch

    model.eval()
    tokens = torch.randint(vocabulary, (task["batch"], task["seq"]))

    def step() -> float:
        with torch.inference_mode():
            start = time.perf_counter()
            model(input_ids=tokens, use_cache=True, logits_to_keep=1)
            return time.perf_counter() - start

    return step


def _decode(model: Any, vocabulary: int, task: Mapping[str, Any]) -> Callable[[], float]:
    import torch

    model.eval()
    held = task["context"] - 1  # the context counts the new token
    tokens = torch.randint(vocabulary, (task["batch"], 1))
    with torch.inference_mode():
        cache = model(
            input_ids=torch.randint(vocabulary, (task["batch"], held)), use_cache=True, logits_to_keep=1
        ).past_key_values

    def step() -> float:
        with torch.inference_mode():
            start = time.perf_counter()
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
            taken = time.perf_counter() - start
            cache.crop(-1)  # the token of this step
        return taken

    return step


def _train(model: Any, vocabulary: int, task: Mapping[str, Any]) -> Callable[[], float]:
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(vocabulary, (task["micro_batch"], task["seq"]))

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        return time.perf_counter() - start

    return step
