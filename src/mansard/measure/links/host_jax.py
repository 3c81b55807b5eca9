"""Copies between host and device by JAX: `device_put` and `numpy.asarray`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.errors import UsageError
from mansard.measure.links.host_copies import Copies, Wanted, host_data


class JaxCopies(Copies):
    """Copies by JAX.

    On the CPU backend JAX takes aligned host memory as it is and hands its own memory back: both default paths are
    pointers, not copies. So the data are unaligned, which makes `device_put` copy, and what comes back is copied by
    numpy. On an accelerator every array is fetched once only, since JAX keeps the host copy it made.
    """

    def __init__(self, wanted: Wanted, *, host_device: bool) -> None:
        import jax

        super().__init__(wanted, host_device=host_device)
        there = jax.local_devices()
        if wanted.device >= len(there):
            raise UsageError(f"there is no device {wanted.device}; JAX sees {len(there)}")
        self._device = there[wanted.device]
        self._data = host_data(wanted, aligned=not host_device)
        self._pieces: list[Any] = self._split(self._data)
        if wanted.pinned:
            self._pinned = jax.sharding.SingleDeviceSharding(self._device, memory_kind="pinned_host")
            self._pieces = jax.block_until_ready([jax.device_put(piece, self._pinned) for piece in self._pieces])
        self._own = [jax.block_until_ready(jax.device_put(p.copy(), self._device)) for p in self._split(self._data)]
        self._back = [np.ascontiguousarray(p).copy() for p in self._split(self._data)]
        for piece in self._back:
            piece[...] = 0
        self._arrived: list[Any] = []
        self._to_fetch: list[Any] = []
        self.fresh = host_device and wanted.direction != "d2h"
        self._fresh = jax.jit(lambda x: jax.numpy.array(x, copy=True))
        self._defaults = self._default_aliases() if host_device else {}

    def _split(self, data: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return [data[piece] for piece in self.wanted.pieces]

    def there(self) -> float:
        """Copy from host to device: all pieces are sent, then waited for."""
        import jax

        begin = time.perf_counter()
        arrived = [jax.device_put(piece, self._device) for piece in self._pieces]
        jax.block_until_ready(arrived)
        spent = time.perf_counter() - begin
        if self.host_device:
            for piece, got in zip(self._pieces, arrived, strict=True):
                self.moved(int(piece.ctypes.data), int(got.unsafe_buffer_pointer()))
        self._arrived = arrived
        return spent

    def ready_for_back(self) -> None:
        """Make arrays that were never fetched: JAX keeps the host copy of one that was."""
        import jax

        if not self.host_device:
            self._to_fetch = jax.block_until_ready([self._fresh(x) for x in self._own])

    def back(self) -> float:
        """Copy from device to host."""
        import jax

        if self.host_device:
            begin = time.perf_counter()
            for source, target in zip(self._own, self._back, strict=True):
                np.copyto(target, np.asarray(source))
            spent = time.perf_counter() - begin
            for source, target in zip(self._own, self._back, strict=True):
                self.moved(int(source.unsafe_buffer_pointer()), int(target.ctypes.data))
            return spent
        if not self._to_fetch:
            self.ready_for_back()
        fresh, self._to_fetch = self._to_fetch, []
        if self.wanted.pinned:
            begin = time.perf_counter()
            pinned = jax.block_until_ready([jax.device_put(x, self._pinned) for x in fresh])
            spent = time.perf_counter() - begin
            self._back = [np.asarray(x) for x in pinned]
            return spent
        begin = time.perf_counter()
        for x in fresh:
            x.copy_to_host_async()
        self._back = [np.asarray(x) for x in fresh]
        return time.perf_counter() - begin

    def on_device(self) -> npt.NDArray[Any]:
        """Return what lies on the device, as numpy."""
        return np.concatenate([np.asarray(x) for x in self._arrived])

    def on_host(self) -> npt.NDArray[Any]:
        """Return what came back, as numpy."""
        return np.concatenate(self._back)

    def sent(self) -> npt.NDArray[Any]:
        """Return what is sent, as numpy."""
        return self._data

    def _default_aliases(self) -> dict[str, bool]:
        """Return whether the usual calls hand on a pointer here: `device_put` of aligned data, and `numpy.asarray`."""
        import jax

        small = Wanted(
            direction="h2d", elements=min(self.wanted.elements, 1 << 20), dtype=self.wanted.dtype, pinned=False
        )
        aligned = host_data(small, aligned=True)
        put = jax.block_until_ready(jax.device_put(aligned, self._device))
        return {
            "device_put_of_aligned_data": int(put.unsafe_buffer_pointer()) == int(aligned.ctypes.data),
            "numpy_asarray": int(np.asarray(put).ctypes.data) == int(put.unsafe_buffer_pointer()),
        }

    def facts(self) -> dict[str, Any]:
        """Return what a reader must know."""
        if not self.host_device:
            fetched = (
                "into pinned host memory"
                if self.wanted.pinned
                else "numpy.asarray of an array that was not fetched before"
            )
            return {"back_by": fetched}
        handed = [name for name, found in self._defaults.items() if found]
        return {
            "pointers_handed_on": handed,
            "copy_forced_by": "unaligned host data for device_put, numpy.copyto for the way back; addresses are compared",
            "device_memory": "each device_put takes new memory, and its page faults are in the time",
        }
