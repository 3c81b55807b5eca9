"""Means of a server that serves requests as they come: waiting, and the rate that a limit on it leaves."""

from __future__ import annotations

import math

from mansard.core.errors import UsageError

_ROUNDING = 1e-9  # a server that is busy all the time, but for the last digit of a division, is busy all the time


def mean_wait_s(*, rate_per_s: float, service_s: float) -> float:
    """Return the mean time a request waits for others before it is served.

    Args:
        rate_per_s: Requests that arrive, independently of each other [1/s].
        service_s: Time each of them takes [s].

    Returns:
        R D^2 / (2 (1 - R D)) [s]; infinite where more come than can be served.

    Assumes: Poisson arrivals, one server, equal requests (M/D/1).
    Source: Pollaczek-Khinchine; Zhong et al., DistServe, arXiv:2401.09670, section 3.1, for prefills.

    Half busy with requests of 0.2 s, half of one is waited for on average:

    >>> mean_wait_s(rate_per_s=2.5, service_s=0.2)
    0.1
    >>> mean_wait_s(rate_per_s=10.0 - 1e-14, service_s=0.1)
    inf
    """
    if rate_per_s < 0.0 or service_s <= 0.0:
        raise UsageError(f"{rate_per_s} requests per second of {service_s} s each make no queue")
    busy = rate_per_s * service_s
    return math.inf if busy >= 1.0 - _ROUNDING else busy * service_s / (2.0 * (1.0 - busy))


def most_rate_per_s(*, service_s: float, limit_s: float | None) -> float:
    """Return the most requests per second whose mean time, waiting included, stays within a limit.

    Args:
        service_s: Time each of them takes [s].
        limit_s: Limit of waiting and service together [s]; None: only that they are all served.

    Returns:
        2 W / (D (D + 2 W)) with W = limit - D [1/s], from `mean_wait_s`; 0 where one alone takes longer.

    >>> round(most_rate_per_s(service_s=0.2, limit_s=0.3), 9), most_rate_per_s(service_s=0.2, limit_s=0.1)
    (2.5, 0.0)
    """
    if limit_s is None:
        return 1.0 / service_s
    spare = limit_s - service_s
    return 0.0 if spare <= 0.0 else 2.0 * spare / (service_s * (service_s + 2.0 * spare))
