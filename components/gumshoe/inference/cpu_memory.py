"""How a process in which a model works on a CPU keeps its memory."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_MOST = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Have freed memory used again instead of given back, which every step would ask for anew.

    It concerns glibc's malloc; other systems are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MOST)
