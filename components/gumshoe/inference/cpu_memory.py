"""Memory allocation of processes that run a model on a CPU."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_MAX_BYTES = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Configure glibc's malloc to reuse freed memory instead of returning it to the system, which is slow.

    Do nothing on systems without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MAX_BYTES)
