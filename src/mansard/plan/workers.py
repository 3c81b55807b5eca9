"""Workers that serve a model: one that reads prompts, one that decodes, one that does both; each at its best under an SLO.

Times of single passes are bounds of `predict`, divided by the share of them that is reached; how passes share a worker
over time is counted here, in means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from mansard.core import Unknown, is_known
from mansard.core.errors import UndecidedError, UsageError
from mansard.plan.queueing import mean_wait_s, most_rate_per_s
from mansard.plan.size import floor_of
from mansard.predict.bound import Machine
from mansard.predict.estimate import Estimate, Request, estimate, setting_of
from mansard.workload.cache import cache_layout
from mansard.workload.parallel import Plan
from mansard.workload.records import Model

#: New tokens of a prompt that an engine reads beside a decode step.
CHUNKS = (512, 2048, 8192)
#: No worker decodes more sequences at once.
BATCH_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is asked of the workers.

    Args:
        prompt, output: Tokens of a prompt, and of an answer.
        ttft_s, tpot_s: Limits of the mean time to first token and per output token [s]; None: no limit.
        kv_bytes_per_s: Link between workers, of one device, one way [B/s].
        prefill_share, decode_share: Share of the bound that is reached in each phase; 1 takes the bound itself.
        dtype, weights, kv: As in `predict.estimate.Request`.
        memory_fraction: Share of the memory that may be used.
    """

    prompt: int
    output: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    kv_bytes_per_s: float | Unknown = field(default_factory=lambda: Unknown("no link was given", ("--kv-rate",)))
    prefill_share: float = 1.0
    decode_share: float = 1.0
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("output", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)} tokens, expected at least {least}")
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise UsageError(f"the limit {name} is {value} s, expected a positive time")
        for name in ("prefill_share", "decode_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise UsageError(f"{name} is {getattr(self, name)}, expected a share above 0 and up to 1")

    @property
    def mean_context(self) -> int:
        """Keys that a decode step sees on average over an answer."""
        return self.prompt + self.output // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """A worker that reads prompts, one after the other.

    Args:
        plan: How its devices divide the model.
        service_s: One prompt [s].
        rate_per_s: The most requests within the limit on TTFT [1/s].
        memory_bytes: What a device holds [B].
        sent_bytes: Cache of a prompt that one device sends [B].
    """

    plan: Plan
    service_s: float
    rate_per_s: float
    memory_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A worker that decodes a batch.

    Args:
        plan: How its devices divide the model.
        batch: Sequences at once, on all its data-parallel ranks.
        tpot_s: One step [s].
        rate_per_s: Requests it finishes [1/s].
        memory_bytes: What a device holds, every sequence at its full length [B].
        received_bytes: Cache of a prompt that one device receives [B].
        limited_by: What keeps the batch from being larger.
        most: Sequences that would fit.
    """

    plan: Plan
    batch: int
    tpot_s: float
    rate_per_s: float
    memory_bytes: float
    received_bytes: float
    limited_by: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A worker that does both.

    Args:
        plan: How its devices divide the model.
        batch: Sequences that decode at once.
        chunk: New tokens of a prompt beside each decode step; None: decoding stops while a prompt is read.
        rate_per_s: Requests it finishes [1/s].
        ttft_s, tpot_s: Means [s].
        memory_bytes: What a device holds [B].
        limited_by: What keeps the rate from being higher.
    """

    plan: Plan
    batch: int
    chunk: int | None
    rate_per_s: float
    ttft_s: float
    tpot_s: float
    memory_bytes: float
    limited_by: str


class Bench:
    """The times of one division of a model on a machine, each pass bounded once.

    Args:
        model, machine: What is served, and on what.
        job: What is asked.
        plan: How the devices of a worker divide the model.
    """

    def __init__(self, model: Model, machine: Machine, job: Job, plan: Plan) -> None:
        self.model, self.machine, self.job, self.plan = model, machine, job, plan
        self._decode: dict[int, Estimate] = {}
        self._mixed: dict[tuple[int, int], float] = {}
        self._common = Request(
            phase="decode", plan=plan, dtype=job.dtype, weights=job.weights, kv=job.kv, memory_fraction=job.memory_fraction
        )  # fmt: skip

    def _ask(self, **changes: object) -> Estimate:
        return estimate(self.model, replace(self._common, **changes), self.machine)  # type: ignore[arg-type]

    def _floor(self, result: Estimate) -> float:
        floor = floor_of(result)
        if isinstance(floor, Unknown):
            raise UndecidedError(f"{self.machine.name}: {floor.reason}", hint="; ".join(floor.needs))
        return floor

    @cached_property
    def budget_bytes(self) -> float:
        """What a device may hold [B]."""
        budget = self.machine.memory_bytes * self.job.memory_fraction
        if isinstance(budget, Unknown):
            raise UndecidedError(f"{self.machine.name}: {budget.reason}", hint="; ".join(budget.needs))
        return budget

    @cached_property
    def prefill(self) -> Estimate:
        """One prompt alone on each data-parallel rank."""
        return self._ask(phase="prefill", seq=self.job.prompt, batch=self.plan.dp)

    @cached_property
    def prefill_s(self) -> float:
        """One prompt alone [s]."""
        return self._floor(self.prefill) / self.job.prefill_share

    def decode_s(self, batch: int) -> float:
        """A decode step at the mean context, `batch` sequences on each data-parallel rank [s]."""
        if batch not in self._decode:
            self._decode[batch] = self._ask(context=self.job.mean_context, batch=batch * self.plan.dp)
        return self._floor(self._decode[batch]) / self.job.decode_share

    def mixed_s(self, batch: int, chunk: int) -> float:
        """A decode step with the middle chunk of a prompt beside it [s]."""
        if (batch, chunk) not in self._mixed:
            middle = (self.job.prompt - chunk) // 2
            result = self._ask(
                phase="mixed", context=self.job.mean_context, batch=batch * self.plan.dp, prompts=self.plan.dp,
                seq=middle + chunk, cached=middle,
            )  # fmt: skip
            # What the chunk adds is prefill work.
            added = self._floor(result) - self.decode_s(batch) * self.job.decode_share
            self._mixed[batch, chunk] = self.decode_s(batch) + max(0.0, added) / self.job.prefill_share
        return self._mixed[batch, chunk]

    def memory_bytes(self, batch: int, *, reading: bool = False) -> float:
        """What a device holds that decodes, every sequence at its full length, and a chunk of a prompt where it reads [B]."""
        self.decode_s(1)
        one = self._decode[1].memory
        full = self._sequence_bytes(self.job.prompt + self.job.output, self.plan.tp)
        # Activations of a step are those of its largest kernel, which grows with the batch.
        chunk = min(1.0, CHUNKS[-1] / self.job.prompt)
        read = self.prefill.memory.activation_bytes * chunk if reading else 0.0
        return one.weight_bytes + full * batch + max(read, one.activation_bytes * batch)

    def _sequence_bytes(self, tokens: int, tp: int) -> float:
        setting, _ = setting_of(self.model, self._common)
        layout = cache_layout(self.model, dtype=setting.types.cache, state_dtype=setting.types.state, tp=tp)
        if isinstance(layout, Unknown):
            raise UndecidedError(f"{self.model.name}: {layout.reason}", hint="; ".join(layout.needs))
        return layout.bytes_for(float(tokens))

    @cached_property
    def prompt_bytes(self) -> float:
        """Cache of a prompt that one device of the worker holds [B]."""
        return self._sequence_bytes(self.job.prompt, self.plan.tp)

    @cached_property
    def whole_prompt_bytes(self) -> float:
        """Cache of a prompt, each part once [B]."""
        return self._sequence_bytes(self.job.prompt, 1)

    def batches(self, *, reading: bool = False) -> Iterator[int]:
        """Batches of a data-parallel rank that fit, in steps of a half or a third."""
        steps = (b for power in range(13) for b in ((2**power, 3 * 2 ** (power - 1)) if power else (1,)))
        for batch in steps:
            if batch > BATCH_MOST or self.memory_bytes(batch, reading=reading) > self.budget_bytes:
                return
            yield batch


def prefiller(bench: Bench) -> Prefiller | str:
    """Return the worker that reads prompts, or why there is none."""
    job, held = bench.job, bench.prefill.memory.total_bytes
    if held > bench.budget_bytes:
        return "memory"
    rate = most_rate_per_s(service_s=bench.prefill_s, limit_s=job.ttft_s) * bench.plan.dp
    if rate <= 0.0:
        return "TTFT"
    return Prefiller(
        plan=bench.plan, service_s=bench.prefill_s, rate_per_s=rate, memory_bytes=held,
        sent_bytes=bench.whole_prompt_bytes / bench.plan.tp,
    )  # fmt: skip


def decoder(bench: Bench) -> Decoder | str:
    """Return the worker that decodes with the batch that serves most within the limit, or why there is none.

    A batch of b sequences finishes b requests in (output - 1) steps: the first token came with the prompt.
    """
    job, best, stopped = bench.job, None, "memory"
    fitting = list(bench.batches())
    limit = job.tpot_s
    if limit is not None and not isinstance(job.kv_bytes_per_s, Unknown):
        # The transfer of the cache is part of the mean; the slowest sender has it whole.
        limit -= bench.whole_prompt_bytes / job.kv_bytes_per_s / (job.output - 1.0)
    for batch in fitting:
        tpot = bench.decode_s(batch)
        if limit is not None and tpot > limit:
            stopped = "TPOT"
            break
        rate = bench.plan.dp * batch / (tpot * (job.output - 1.0))
        if best is None or rate > best[2]:
            best = (batch, tpot, rate)
    if best is None:
        return stopped
    return Decoder(
        plan=bench.plan, batch=best[0] * bench.plan.dp, tpot_s=best[1], rate_per_s=best[2], memory_bytes=bench.memory_bytes(best[0]),
        received_bytes=bench.prompt_bytes, limited_by=stopped, most=max(fitting) * bench.plan.dp,
    )  # fmt: skip


def engine(bench: Bench) -> Engine | str:
    """Return the engine that does both at its best, or why there is none."""
    job = bench.job
    chunks: list[int | None] = [None, *(c for c in CHUNKS if c < job.prompt), min(job.prompt, CHUNKS[-1])]
    best: Engine | None = None
    stopped = "memory"
    for batch in bench.batches(reading=True):
        found = [e for c in dict.fromkeys(chunks) if (e := _shared(bench, batch, c)) is not None]
        if not found:
            stopped = "the limits"
            if best is not None and bench.decode_s(batch) > (job.tpot_s or float("inf")):
                break
            continue
        top = max(found, key=lambda e: e.rate_per_s)
        if best is None or top.rate_per_s > best.rate_per_s:
            best = top
    if best is None:
        return stopped
    return replace(best, limited_by=stopped)


def _shared(bench: Bench, batch: int, chunk: int | None) -> Engine | None:
    """One engine with a batch of b and prompts in chunks of c, at the highest rate within the limits.

    Reading stops decoding (c none), with D for a prompt and t for a step: a request takes D and (output - 1) t / b of the
    engine, so r = 1 / (D + (output - 1) t / b) keeps b sequences alive, and TPOT = t / (1 - r D).
    Chunks beside steps, with m for such a step: r prompt/c of them a second, the rest plain steps:
    r = 1 / (m prompt/c + t ((output - 1)/b - prompt/c)), and TPOT = b / (r (output - 1)).

    Source: Agrawal et al., Sarathi-Serve, arXiv:2403.02310 (chunks); Yu et al., Orca, OSDI 2022 (iterations).
    """
    job, step = bench.job, bench.decode_s(batch)
    steps = job.output - 1.0
    if chunk is None:
        service = bench.prefill_s
        rate = 1.0 / (service + steps * step / batch)
    else:
        parts = job.prompt / chunk
        mixed = bench.mixed_s(batch, chunk)
        plain = steps / batch - parts
        if plain < 0.0:
            return None  # more chunks than steps: so many sequences cannot be kept alive
        service = parts * mixed
        rate = 1.0 / (service + plain * step)
    tpot = batch / (rate * steps)
    if job.tpot_s is not None and tpot > job.tpot_s:
        return None
    ttft = service + mean_wait_s(rate_per_s=rate, service_s=service)
    if job.ttft_s is not None and ttft > job.ttft_s:
        return None
    return Engine(
        plan=bench.plan, batch=batch * bench.plan.dp, chunk=chunk, rate_per_s=rate * bench.plan.dp, ttft_s=ttft,
        tpot_s=tpot, memory_bytes=bench.memory_bytes(batch, reading=True), limited_by="",
    )  # fmt: skip


def transfer_s(sender: Prefiller, receiver: Decoder, link_bytes_per_s: float | Unknown) -> float | Unknown:
    """Return the time the cache of a prompt takes from one worker to the other, every device at once [s].

    Formula: max(sent, received) / link, of the device that has most to do.
    """
    if not is_known(link_bytes_per_s):
        return link_bytes_per_s
    return max(sender.sent_bytes, receiver.received_bytes) / link_bytes_per_s
