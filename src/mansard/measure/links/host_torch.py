"""Copies between host and device by PyTorch: `Tensor.copy_` between memory that exists."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.core.dtypes import short_dtype
from mansard.measure.links.host_copies import Copies, Wanted, host_data


class TorchCopies(Copies):
    """Copies by PyTorch. With pinned memory they are queued without waiting, and waited for at the end.

    Both ways at once they go to two CUDA streams; on the CPU two threads copy.
    """

    def __init__(self, wanted: Wanted, *, host_device: bool) -> None:
        import torch

        super().__init__(wanted, host_device=host_device)
        from mansard.measure.points.with_torch import torch_dtype

        kind = torch_dtype(wanted.dtype)
        self._device = torch.device("cpu") if host_device else torch.device("cuda", wanted.device)
        self._data = host_data(wanted, aligned=True)
        count = wanted.elements

        def on_host() -> Any:
            return torch.empty(count, dtype=kind, pin_memory=wanted.pinned)

        self._source, self._target = on_host(), on_host()
        bits = torch.from_numpy(self._data.view(np.uint8))
        self._source.view(torch.uint8).copy_(bits)
        self._target.view(torch.uint8).zero_()
        self._there = torch.empty(count, dtype=kind, device=self._device)
        self._own = torch.empty(count, dtype=kind, device=self._device)
        self._own.copy_(self._source)
        self._there.view(torch.uint8).zero_()
        self._streams: list[Any] = []
        if not host_device:
            torch.cuda.synchronize(self._device)
            self._streams = [torch.cuda.Stream(self._device) for _ in range(2)]

    def _copied(self, target: Any, source: Any) -> None:
        for piece in self.wanted.pieces:
            target[piece].copy_(source[piece], non_blocking=self.wanted.pinned)

    def _timed(self, target: Any, source: Any) -> float:
        begin = time.perf_counter()
        self._copied(target, source)
        self._wait()
        spent = time.perf_counter() - begin
        if self.host_device:
            self.moved(int(source.data_ptr()), int(target.data_ptr()))
        return spent

    def _wait(self) -> None:
        if not self.host_device:
            import torch

            torch.cuda.synchronize(self._device)

    def there(self) -> float:
        """Copy from host to device."""
        return self._timed(self._there, self._source)

    def back(self) -> float:
        """Copy from device to host."""
        return self._timed(self._target, self._own)

    def at_once(self) -> float:
        """Copy in both directions at the same time."""
        if self.host_device:
            return super().at_once()
        import torch

        begin = time.perf_counter()
        for stream, target, source in zip(
            self._streams, (self._there, self._target), (self._source, self._own), strict=True
        ):
            with torch.cuda.stream(stream):
                self._copied(target, source)
        self._wait()
        return time.perf_counter() - begin

    def on_device(self) -> npt.NDArray[Any]:
        """Return what lies on the device, as numpy."""
        return self._numpy(self._there)

    def on_host(self) -> npt.NDArray[Any]:
        """Return what came back, as numpy."""
        return self._numpy(self._target)

    def sent(self) -> npt.NDArray[Any]:
        """Return what is sent, as numpy."""
        return self._data

    def _numpy(self, tensor: Any) -> npt.NDArray[Any]:
        import torch

        found: npt.NDArray[Any] = tensor.to("cpu").view(torch.uint8).numpy().view(self._data.dtype)
        return found

    def facts(self) -> dict[str, Any]:
        """Return what a reader must know."""
        if not self.host_device:
            queued = (
                "queued without waiting, on two streams where both ways"
                if self.wanted.pinned
                else "staged by the driver"
            )
            return {"pinned": bool(self._source.is_pinned()), "queued": queued}
        same = self._source.to("cpu").data_ptr() == self._source.data_ptr()
        return {
            "pointers_handed_on": ["Tensor.to"] if same else [],
            "copy_forced_by": f"Tensor.copy_ between two {short_dtype(self.wanted.dtype)} tensors; addresses are compared",
        }
