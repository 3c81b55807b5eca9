"""Latencies of a served request, by their written definitions.

- TTFT: from the request to the first chunk that carries a token. A chunk without tokens (a role, an empty text) is none.
- TPOT: (latency - TTFT) / (tokens - 1): one number per request. Tools that divide the latency by all tokens report
  another quantity; `latency_per_token` is that one.
- ITL: the gap before each token after the first. A chunk of several tokens closes as many equal gaps, and TTFT is
  never one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.core.errors import UndecidedError, UsageError
from mansard.core.unknown import Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """What one streamed answer says about latency.

    Args:
        ttft_s: Time to first token [s].
        tpot_s: Time per output token after the first [s]; `Unknown` for a single token.
        itl_s: Gap before each token after the first [s], as many as tokens - 1.
        latency_s: Until the last token [s].
        tokens: Output tokens.
        empty_chunks: Chunks that carried no token.
    """

    ttft_s: float
    tpot_s: float | Unknown
    itl_s: tuple[float, ...]
    latency_s: float
    tokens: int
    empty_chunks: int

    @property
    def latency_per_token_s(self) -> float:
        """The whole latency over all tokens [s/token]; other tools call this TPOT."""
        return self.latency_s / self.tokens


def request_latency(chunks: Sequence[tuple[float, int]]) -> RequestLatency:
    """Return the latencies of one streamed answer.

    Args:
        chunks: Time since the request [s] and number of new tokens of each chunk, in order.

    Raises:
        UsageError: times that go back or are not finite, negative token counts.
        UndecidedError: no chunk carries a token.

    Source: MLPerf inference rules (TTFT, TPOT); vllm#7242, #15106 and #27485 for what goes wrong.

    An empty chunk, then 1 + 1 + 3 tokens: TPOT (2.26 - 2.20) / 4.

    >>> r = request_latency([(0.9, 0), (2.2, 1), (2.22, 1), (2.26, 3)])
    >>> r.ttft_s, round(r.tpot_s, 6), [round(g, 5) for g in r.itl_s]
    (2.2, 0.015, [0.02, 0.01333, 0.01333, 0.01333])
    """
    first: float | None = None
    last = 0.0
    total = empty = 0
    gaps: list[float] = []
    before = 0.0
    for time_s, tokens in chunks:
        if not before <= time_s < float("inf"):
            raise UsageError(
                f"a chunk arrived at {time_s} s after one at {before} s; times must be finite and in order"
            )
        before = time_s
        if tokens < 0:
            raise UsageError(f"a chunk has {tokens} tokens")
        if tokens == 0:
            empty += 1
            continue
        if first is None:
            # Tokens that arrive together with the first close gaps of zero length.
            first = time_s
            gaps += [0.0] * (tokens - 1)
        else:
            gaps += [(time_s - last) / tokens] * tokens
        last = time_s
        total += tokens
    if first is None:
        raise UndecidedError("no chunk carries a token: there is no latency to report")
    single = Unknown("a single token has no time per further token", ("a longer answer",))
    return RequestLatency(
        ttft_s=first,
        tpot_s=(last - first) / (total - 1) if total > 1 else single,
        itl_s=tuple(gaps),
        latency_s=last,
        tokens=total,
        empty_chunks=empty,
    )
