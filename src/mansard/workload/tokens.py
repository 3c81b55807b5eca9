"""How many tokens a step processes, and per device and second: the bookkeeping that ratios fail on.

Data parallelism and accumulation multiply the tokens of a step. Tensor and pipeline parallelism replicate them: every
rank sees the same tokens. Context (sequence) parallelism shards them: its ranks share one batch of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The tokens of one optimizer step.

    Args:
        tokens: Positions of the step over all devices, padding included [token].
        useful_tokens: Positions that are not padding [token].
        devices: Devices that work on the step.
        sequences: Sequences of the step over all devices, the global batch.
    """

    tokens: float
    useful_tokens: float
    devices: int
    sequences: float

    def per_s(self, step_s: float) -> float:
        """Return the tokens of all devices per second [token/s].

        Args:
            step_s: Wall time of one optimizer step, all its micro-batches included [s].
        """
        return self.tokens / _positive("step_s", step_s)

    def useful_per_s(self, step_s: float) -> float:
        """Return the tokens that are not padding, of all devices per second [token/s]."""
        return self.useful_tokens / _positive("step_s", step_s)

    def per_s_per_device(self, step_s: float) -> float:
        """Return the tokens per second over the devices [token/s]."""
        return self.per_s(step_s) / self.devices


def step_tokens(
    *,
    seq: int,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    accumulation: int = 1,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    padding_ratio: float = 0.0,
) -> StepTokens:
    """Return the tokens of one optimizer step.

    Args:
        seq: Positions per sequence, padding included; the whole sequence, also under context parallelism.
        micro_batch: Sequences of one forward pass of one data-parallel rank. Exactly one of this and `global_batch`.
        global_batch: Sequences of the step over all devices.
        accumulation: Forward passes per optimizer step; with `global_batch` it changes nothing.
        dp, tp, pp, cp: Data, tensor, pipeline and context parallel ranks.
        padding_ratio: Share of the positions that are padding, 0 to 1.

    Returns:
        micro_batch accumulation dp sequences of `seq` positions on dp tp pp cp devices.

    Raises:
        UsageError: a count that is not positive, both batches or none, a global batch that does not divide.

    Source: Shoeybi et al., arXiv:1909.08053 (tensor), Narayanan et al., arXiv:2104.04473 (data, pipeline), section 2.

    4 sequences of 2048, 8 accumulations, 4 ranks; per device and second of a 2 s step:

    >>> t = step_tokens(seq=2048, micro_batch=4, accumulation=8, dp=4)
    >>> t.tokens, t.per_s_per_device(2.0)
    (262144.0, 32768.0)
    """
    counts = {"seq": seq, "accumulation": accumulation, "dp": dp, "tp": tp, "pp": pp, "cp": cp}
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"{name} is {value}, expected a positive number")
    if not 0.0 <= padding_ratio < 1.0:
        raise UsageError(f"padding_ratio is {padding_ratio}, expected a share from 0 to below 1")
    if (micro_batch is None) == (global_batch is None):
        raise UsageError("give either micro_batch or global_batch", hint="global = micro x accumulation x dp")
    if micro_batch is not None:
        sequences = float(_positive("micro_batch", micro_batch)) * accumulation * dp
    else:
        assert global_batch is not None
        sequences = float(_positive("global_batch", global_batch))
        if global_batch % (dp * accumulation):
            raise UsageError(
                f"a global batch of {global_batch} does not divide over dp {dp} x accumulation {accumulation}"
            )
    tokens = sequences * seq
    return StepTokens(
        tokens=tokens,
        useful_tokens=tokens * (1.0 - padding_ratio),
        devices=dp * tp * pp * cp,
        sequences=sequences,
    )


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < float("inf"):
        raise UsageError(f"{name} is {value}, expected a positive number")
    return value
