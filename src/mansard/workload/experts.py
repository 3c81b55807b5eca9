"""How many experts of a mixture a step touches: that decides bytes, never FLOP.

FLOP follow tokens times experts per token, memory capacity follows all experts, and the weights that a step must read
follow the distinct experts its tokens were sent to. These three are different numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.core.demand import Number
from mansard.core.errors import UsageError
from mansard.operators.counting import Count, at_most, number


def expected_distinct(*, experts: Count, per_token: Count, tokens: Count) -> Number:
    """Return the expected number of distinct experts that `tokens` tokens use when every expert is as likely.

    Args:
        experts: Routed experts E of the layer.
        per_token: Experts k each token is sent to.
        tokens: Tokens T that are routed together.

    Returns:
        E (1 - (1 - k/E)^T) [count]; between k and min(T k, E).

    Assumes: tokens are routed independently and evenly. Real routing is skewed and touches fewer; see
        `expected_distinct_measured`. `worst_case_distinct` is the other end.
    Source: the coupon-collector expectation with groups of k; inference-sim#764 and its follow-up.

    Qwen3-30B-A3B, 128 experts, 8 per token, 16 tokens; Mixtral, 8 experts, 2 per token, 3 tokens:

    >>> round(expected_distinct(experts=128, per_token=8, tokens=16), 1)
    82.4
    >>> round(expected_distinct(experts=8, per_token=2, tokens=3), 1)
    4.6
    """
    e, k = number(experts), number(per_token)
    return e * (1.0 - (1.0 - k / e) ** number(tokens))


def worst_case_distinct(*, experts: Count, per_token: Count, tokens: Count) -> Number:
    """Return the most distinct experts that `tokens` tokens can use, min(T k, E).

    >>> worst_case_distinct(experts=128, per_token=8, tokens=16)
    128.0
    """
    return at_most(number(tokens) * number(per_token), number(experts))


def expected_distinct_measured(
    frequencies: Sequence[float] | npt.NDArray[np.float64], *, per_token: int, tokens: Count
) -> Number:
    """Return the expected number of distinct experts for measured routing frequencies.

    Args:
        frequencies: How often each expert was used, counts or shares; one entry per expert, those never used included.
        per_token: Experts k each token is sent to.
        tokens: Tokens routed together.

    Returns:
        The sum over experts of 1 - (1 - p)^T with p = k frequency / sum [count].

    Raises:
        UsageError: fewer experts than `per_token`, a negative frequency, or one expert in more than every token.

    Assumes: tokens are independent of each other.

    Even routing gives the even formula; where every token takes the same two experts of four, two are touched:

    >>> round(expected_distinct_measured([1.0] * 128, per_token=8, tokens=16), 1)
    82.4
    >>> expected_distinct_measured([50, 50, 0, 0], per_token=2, tokens=100)
    2.0
    """
    f = np.asarray(frequencies, dtype=np.float64)
    if f.ndim != 1 or f.size < per_token:
        raise UsageError(f"{f.size} routing frequencies, expected one for each expert and at least {per_token}")
    if not np.all(np.isfinite(f)) or np.any(f < 0) or f.sum() <= 0:
        raise UsageError("routing frequencies must be finite, not negative and not all zero")
    p = per_token * f / f.sum()
    if p.max() > 1.0 + 1e-9:
        raise UsageError(
            f"expert {int(p.argmax())} would be used {p.max():.2f} times per token",
            hint=f"frequencies must come from a router that picks {per_token} different experts",
        )
    t = number(tokens)
    if isinstance(t, np.ndarray):
        distinct: npt.NDArray[np.float64] = (1.0 - (1.0 - np.minimum(p, 1.0)) ** t[..., None]).sum(axis=-1)
        return distinct
    return float((1.0 - (1.0 - np.minimum(p, 1.0)) ** t).sum())
