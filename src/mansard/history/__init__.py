"""Did it change? Baselines, comparison, the gate, and the store that keeps results.

Import what you need from its modules: `compare.compare`, `documents.read`, `check.check`, `store.open_store`. Nothing is
imported here, because the pytest plugin of this room is loaded by test runs that never use it.
"""
