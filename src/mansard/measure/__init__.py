"""What does it really do? Microbenchmarks of this machine, each with its conditions, and their cache."""

from mansard.core.callable_package import make_callable
from mansard.measure.probe import probe, reference
from mansard.measure.store import cache_directory, document, load_cached, nearest_kept, one_at_a_time, save
from mansard.measure.suite import GROUPS, SUITES, measure

__all__ = [
    "measure", "load_cached", "nearest_kept", "save", "one_at_a_time", "document", "probe", "reference", "cache_directory", "GROUPS", "SUITES",
]  # fmt: skip

make_callable(__name__, "measure")
