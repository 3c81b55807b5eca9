"""What speculation gains: tokens per verification, and whether it is faster than plain decoding."""

from __future__ import annotations

from mansard.core.errors import UsageError


def expected_tokens(*, drafted: int, acceptance: float) -> float:
    """Return the expected tokens that one verification of `drafted` proposals yields per sequence.

    Args:
        drafted: Proposed tokens K.
        acceptance: Probability p that a proposal is accepted when all before it were.

    Returns:
        1 + p + p^2 + ... + p^K: the accepted ones and the one that the pass itself gives [token].

    Raises:
        UsageError: no proposals, or a probability outside 0 to 1.

    Assumes: the same p at every position; measured ones fall off with the position.
    Source: Leviathan et al., arXiv:2211.17192, equation 1.

    >>> expected_tokens(drafted=3, acceptance=0.5), expected_tokens(drafted=4, acceptance=1.0)
    (1.875, 5.0)
    """
    if drafted < 1:
        raise UsageError(f"drafted is {drafted}, expected a positive number")
    if not 0.0 <= acceptance <= 1.0:
        raise UsageError(f"acceptance is {acceptance}, expected a probability from 0 to 1")
    return float(sum(acceptance**i for i in range(drafted + 1)))


def speedup(*, plain_s: float, verify_s: float, draft_s: float, drafted: int, acceptance: float) -> float:
    """Return how many times faster speculation is than plain decoding; below 1 it is slower.

    Args:
        plain_s: One plain decode step [s].
        verify_s: One verification pass, which is wider [s].
        draft_s: Drafting all proposals of one pass [s].
        drafted, acceptance: As in `expected_tokens`.

    Raises:
        UsageError: a time that is not positive.

    A free draft of 3 tokens at p = 0.5 and a verification 1.25 times as long as a step:

    >>> speedup(plain_s=1.0, verify_s=1.25, draft_s=0.0, drafted=3, acceptance=0.5)
    1.5
    """
    if plain_s <= 0 or verify_s <= 0 or draft_s < 0:
        raise UsageError("times must be positive, the draft may be free")
    return expected_tokens(drafted=drafted, acceptance=acceptance) * plain_s / (verify_s + draft_s)
