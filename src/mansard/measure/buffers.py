"""Memory with a known page size: anonymous mappings with advice, aligned to a huge page."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

HUGE_BYTES = 2 * 2**20
_ADVICE = {"huge": "MADV_HUGEPAGE", "4k": "MADV_NOHUGEPAGE"}


class Buffer:
    """An anonymous private mapping of `size_bytes`, usable from an address aligned to 2 MiB.

    Args:
        size_bytes: Usable bytes.
        page: `4k` forbids transparent huge pages for it, `huge` asks for them.

    Whether huge pages were really given is known only after the first touch: see `huge_ratio`.
    """

    def __init__(self, size_bytes: int, page: str) -> None:
        self.size_bytes = size_bytes
        self.page = page
        whole = (size_bytes + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES + HUGE_BYTES
        self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advice = getattr(mmap, _ADVICE[page], None)
        self.advised = advice is not None
        if advice is not None:
            try:
                self._map.madvise(advice)
            except OSError:  # a kernel without transparent huge pages
                self.advised = False
        raw = np.frombuffer(self._map, dtype=np.uint8)
        start = -raw.ctypes.data % HUGE_BYTES
        self._bytes = raw[start : start + size_bytes]

    @property
    def address(self) -> int:
        """First usable address, a multiple of 2 MiB."""
        return int(self._bytes.ctypes.data)

    def floats(self, offset_bytes: int = 0, count: int | None = None) -> npt.NDArray[np.float32]:
        """Return the buffer from `offset_bytes` on as f32."""
        view: npt.NDArray[np.float32] = self._bytes[offset_bytes:].view(np.float32)
        return view if count is None else view[:count]

    def huge_ratio(self, smaps: Path = Path("/proc/self/smaps")) -> float | None:
        """Return the share of the touched memory that lies on huge pages, or None where the kernel does not say."""
        try:
            text = smaps.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return parse_huge_ratio(text, self.address)


def parse_huge_ratio(smaps: str, address: int) -> float | None:
    """Return AnonHugePages / Rss of the mapping that holds `address` in the text of /proc/PID/smaps."""
    inside, rss, huge = False, 0, 0
    for line in smaps.splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            if inside:
                break
            inside = int(head.group(1), 16) <= address < int(head.group(2), 16)
        elif inside and line.startswith("Rss:"):
            rss = int(line.split()[1])
        elif inside and line.startswith("AnonHugePages:"):
            huge = int(line.split()[1])
    return huge / rss if rss else None
