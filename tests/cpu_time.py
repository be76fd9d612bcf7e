"""Bound the processor time of code, whatever else its process does."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_cpu(seconds: float, what: str = "") -> Iterator[None]:
    """Fail if the block takes more processor time of this thread. `what` names it in the failure.

    Garbage collection leaves out the objects that exist before. A test worker has millions of them, and going through
    them again and again would be most of the time.
    """
    gc.freeze()
    started = time.thread_time()
    try:
        yield
        taken = time.thread_time() - started
    finally:
        gc.unfreeze()
    assert taken < seconds, what
