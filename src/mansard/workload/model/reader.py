"""Reading keys of a configuration: a missing one is named, a default is written down, nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.core.errors import InputError, UndecidedError
from mansard.workload.records import Assumed, Derived

# Names that mean the same, the current one first. A family that uses one of them for something else asks for `only`.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
    "hidden_act": ("hidden_act", "activation_function", "hidden_activation"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "experts_per_token",
        "num_experts_per_token",
        "moe_top_k",
        "moe_topk",
    ),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert"),
    "dtype": ("dtype", "torch_dtype"),
}

# Keys that count layers: a damaged number must not become a list of a billion layers.
DEPTHS = frozenset({
    "num_hidden_layers", "num_layers", "n_layers", "depth", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "vt_num_hidden_layers", "num_single_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers",
})  # fmt: skip
MOST_LAYERS = 10_000

# Keys that say nothing about what the model consumes: generation, tokens, initialisation, numerics, provenance.
SILENT_PREFIXES = ("_", "bos_", "eos_", "pad_", "sep_", "cls_", "boi_", "eoi_", "boa_", "eoa_", "image_token", "video_token",
                   "audio_token", "vision_start", "vision_end", "image_start", "image_end", "video_start", "video_end",
                   "init", "rope", "rotary", "router_", "time_step", "summary_", "num_beam", "forced_", "output_", "return_",
                   "begin_", "suppress_", "decoder_start", "media_placeholder", "num_return", "pruned_", "hc_sinkhorn")  # fmt: skip
SILENT_SUFFIXES = ("dropout", "_pdrop", "_eps", "_epsilon", "layerdrop", "_token_id", "_token_index", "_multiplier", "dropout_prob",
                   "_loss_coef", "_scaling_factor", "_penalty", "_std")  # fmt: skip
SILENT = frozenset({
    "architectures", "model_type", "transformers_version", "use_cache", "pretraining_tp", "id2label", "label2id", "auto_map",
    "task_specific_params", "torchscript", "gradient_checkpointing", "ep_size", "aux_loss_alpha", "seq_aux", "scoring_func",
    "norm_topk_prob", "topk_method", "topk_group", "n_group", "scale_embedding", "ignore_index", "temperature", "top_k", "top_p",
    "typical_p", "do_sample", "early_stopping", "max_length", "min_length", "length_penalty", "no_repeat_ngram_size",
    "problem_type", "prefix", "finetuning_task", "tokenizer_class", "use_bfloat16", "remove_invalid_values", "tf_legacy_loss",
    "diversity_penalty", "bad_words_ids", "chunk_size_feed_forward", "swiglu_limit", "final_logit_softcapping", "layer_norm_eps",
    "attn_logit_softcapping", "query_pre_attn_scalar", "logits_scaling", "initial_context_length", "num_logits_to_keep",
    "rescale_prenorm_residual", "residual_in_fp32", "original_max_position_embeddings", "partial_rotary_factor",
    "chunk_size", "use_mamba_kernels", "mm_tokens_per_image", "apply_spec_augment", "mamba_ssm_dtype", "attention_multiplier",
    "tokens_per_second", "interpolate_pos_encoding", "clip_qkv", "dataset", "language", "license", "name_or_path", "attn_implementation",
    "use_flash_attn", "cache_implementation", "logit_scale", "rms_norm_eps", "max_window_layers", "num_experts_per_tok",
})  # fmt: skip


def silent(key: str) -> bool:
    """Return whether a key cannot change what the model consumes."""
    return key in SILENT or key.startswith(SILENT_PREFIXES) or key.endswith(SILENT_SUFFIXES)


@dataclass(slots=True)
class Log:
    """What was derived and assumed while a configuration was read."""

    derived: list[Derived] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class Reader:
    """Typed access to one level of a configuration.

    Args:
        values: The keys.
        where: File (or `dict`) for messages.
        path: Keys that lead to this level, such as `text_config`.
        log: Shared by all levels.
        defaults: Values of the framework's class, allowed at nested levels only: writers leave out nested keys that equal
            the class default. Each one that is used is recorded.
        defaults_source: Where those defaults are documented.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        log: Log,
        path: str = "",
        defaults: Mapping[str, Any] | None = None,
        defaults_source: str = "",
    ) -> None:
        self.values = values
        self.where = where
        self.log = log
        self.path = path
        self.defaults = dict(defaults or {})
        self.defaults_source = defaults_source
        self.read: set[str] = set()

    # -- finding ---------------------------------------------------------------------------------------------------

    def full(self, key: str) -> str:
        """Return a key with the keys that lead to it."""
        return f"{self.path}.{key}" if self.path else key

    def names(self, key: str, only: bool = False) -> tuple[str, ...]:
        """Return the names to look for: the key and its aliases."""
        return (key,) if only else ALIASES.get(key, (key,))

    def has(self, key: str) -> bool:
        """Return whether a key (or an alias) is there and not null."""
        return any(self.values.get(name) is not None for name in self.names(key))

    def raw(self, key: str, only: bool = False) -> Any:
        """Return the value under a key or an alias, or None; two aliases that disagree are an error."""
        found = [(name, self.values[name]) for name in self.names(key, only) if name in self.values]
        self.read.update(name for name, _ in found)
        stated = [(name, value) for name, value in found if value is not None]
        if not stated:
            return None
        first = stated[0]
        for name, value in stated[1:]:
            if value != first[1]:
                raise InputError(
                    f"{self.where}: {self.full(first[0])} is {first[1]!r} but {self.full(name)} is {value!r}",
                    hint="both names mean the same; keep one of them",
                )
        return first[1]

    def missing(self, key: str, only: bool = False) -> InputError:
        """Return the error for a key that has to be there."""
        names = self.names(key, only)
        also = f" (also looked for {', '.join(names[1:])})" if len(names) > 1 else ""
        return InputError(
            f"{self.where}: missing {self.full(key)}{also}",
            hint=f"add {self.full(key)} to the configuration; it is never replaced by a default",
            code="missing_key",
        )

    def wrong(self, key: str, got: Any, expected: str) -> InputError:
        """Return the error for a value of the wrong kind."""
        return InputError(f"{self.where}: {self.full(key)} is {got!r}, expected {expected}", code="bad_value")

    def unsupported(self, what: str, needs: str) -> UndecidedError:
        """Return the error for a variant whose blocks are not known."""
        return UndecidedError(f"{self.where}: {what}", hint=needs, code="unknown_architecture")

    # -- typed values ----------------------------------------------------------------------------------------------

    def _absent(self, key: str, default: Any, source: str, only: bool) -> Any:
        if key in self.defaults:
            default, source = self.defaults[key], self.defaults_source
        elif source == "":
            raise self.missing(key, only)
        self.assume(key, default, source)
        return default

    def integer(
        self, key: str, default: int | None = None, source: str = "", *, least: int = 1, only: bool = False
    ) -> int:
        """Return a whole number; missing without a documented default is an error that names the key."""
        value = self.raw(key, only)
        if value is None:
            value = self._absent(key, default, source, only)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "a whole number")
        most = MOST_LAYERS if key in DEPTHS else 2**40
        if value < least or value > most:
            raise self.wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def optional(self, key: str, *, least: int = 1, only: bool = False, absent: str = "") -> int | None:
        """Return a whole number, or None where the key is absent or null and absence has a meaning.

        Args:
            absent: What a missing key (not a null one) stands for; recorded where it matters for the result.
        """
        if self.raw(key, only) is None and key not in self.defaults:
            if absent and not any(name in self.values for name in self.names(key, only)):
                self.assume(key, None, absent)
            return None
        return self.integer(key, least=least, only=only)

    def number(self, key: str, default: float, source: str) -> float:
        """Return a number."""
        value = self.raw(key)
        if value is None:
            value = self._absent(key, default, source, False)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None, source: str = "") -> bool:
        """Return true or false; missing without a documented default is an error that names the key."""
        value = self.raw(key)
        if value is None:
            value = self._absent(key, default, source, False)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None, source: str = "") -> str:
        """Return a text; missing without a documented default is an error that names the key."""
        value = self.raw(key)
        if value is None:
            value = self._absent(key, default, source, False)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def array(self, key: str) -> list[Any] | None:
        """Return a list, or None where the key is absent or null."""
        value = self.raw(key)
        if value is None and key in self.defaults:
            value = self._absent(key, None, "", False)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.wrong(key, value, "a list")
        return list(value)

    def per_layer(self, key: str, depth: int, allowed: tuple[str, ...]) -> list[str] | None:
        """Return a list with one of the allowed words per layer, or None where it is absent."""
        value = self.array(key)
        if value is None:
            return None
        if len(value) < depth:
            raise self.wrong(key, f"{len(value)} entries", f"{depth}, one per layer")
        for entry in value[:depth]:
            if entry not in allowed:
                raise self.unsupported(
                    f"{self.full(key)} has a layer of kind {entry!r}", f"known here: {', '.join(allowed)}"
                )
        return [str(entry) for entry in value[:depth]]

    def child(
        self, key: str, defaults: Mapping[str, Any] | None = None, source: str = "", *, required: bool = True
    ) -> Reader | None:
        """Return the reader of a nested level, or None where it is absent and not required."""
        value = self.raw(key)
        if value is None:
            if required:
                raise self.missing(key)
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return Reader(value, self.where, self.log, self.full(key), defaults, source)

    def nested(self, key: str, defaults: Mapping[str, Any] | None = None, source: str = "") -> Reader:
        """Return the reader of a nested level that has to be there."""
        child = self.child(key, defaults, source)
        assert child is not None
        return child

    # -- notes -----------------------------------------------------------------------------------------------------

    def derive(self, key: str, value: int | float | str | bool, from_keys: tuple[str, ...], how: str = "") -> None:
        """Record a value that was computed, and from which keys."""
        entry = Derived(key=self.full(key), value=value, from_keys=tuple(self.full(k) for k in from_keys), how=how)
        if entry not in self.log.derived:
            self.log.derived.append(entry)

    def assume(self, key: str, value: object, source: str) -> None:
        """Record a value that comes from a documented default."""
        entry = Assumed(key=self.full(key), value=value, source=source)
        if entry not in self.log.assumed:
            self.log.assumed.append(entry)

    def note(self, text: str) -> None:
        """Record a remark a reader of the counts needs."""
        if text not in self.log.notes:
            self.log.notes.append(text)

    def close(self, used: tuple[str, ...] = ()) -> None:
        """Record the keys of this level that nobody read and that may describe the model."""
        for key, value in self.values.items():
            if key in self.read or key in used or silent(key) or value is None or value is False:
                continue
            if self.full(key) not in self.log.unread:
                self.log.unread.append(self.full(key))
