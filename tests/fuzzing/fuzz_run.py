"""Try random inputs on a target, and keep the smallest one that fails."""

import hashlib
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import hypothesis
from hypothesis import HealthCheck, Phase

from tests.fuzzing.fuzz_target import CORPUS, Check, FuzzTarget

_BATCH, _MIN_BATCH = 500, 10  # inputs per seed
_INPUT_SECONDS = 30
_MAX_KEPT = 200_000  # bytes of an input that is kept in the corpus


class SlowInputError(AssertionError):
    """Report an input that takes too long."""


@dataclass(frozen=True, slots=True)
class FuzzFailure:
    """An input that a target does not handle."""

    target: str
    data: bytes
    error: BaseException

    def keep(self) -> str:
        """Write the input to the corpus, and return its path."""
        path = CORPUS / self.target / hashlib.sha256(self.data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data[:_MAX_KEPT])
        return str(path)

    def describe(self) -> str:
        """Return the traceback."""
        return "".join(traceback.format_exception(self.error, limit=-12))


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """What a run of a target found."""

    inputs: int
    failure: FuzzFailure | None


def try_inputs(
    target: FuzzTarget, check: Check, count: int, seed: int | None = None, shrink_seconds: float = 60
) -> FuzzResult:
    """Try some random inputs. Without a seed, they are always the same.

    An input that fails is made smaller for `shrink_seconds` at most.
    """
    tried, failed, end = [0], list[FuzzFailure](), [float("inf")]

    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=seed is None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @hypothesis.given(target.inputs())
    def attempt(data: bytes) -> None:
        if time.monotonic() > end[0]:
            return  # Hypothesis then reports that the test is flaky
        tried[0] += 1
        try:
            check(data)
        except Exception as error:
            if not failed:
                end[0] = time.monotonic() + shrink_seconds
            failed.append(FuzzFailure(target.name, data, error))
            raise

    try:
        (attempt if seed is None else hypothesis.seed(seed)(attempt))()
    except Exception:  # whatever the target raises is the result
        if not failed:
            raise
    return FuzzResult(tried[0], min(failed, key=lambda each: (len(each.data), each.data)) if failed else None)


def fuzz(target: FuzzTarget, seconds: float, seed: int) -> FuzzResult:
    """Try random inputs for some time, after those in the corpus."""
    tried = 0
    with target.open() as check:
        end, checked = time.monotonic() + seconds, _with_time_limit(check)
        for path in target.list_corpus():
            data = path.read_bytes()
            try:
                checked(data)
            except Exception as error:  # noqa: BLE001 - as above
                return FuzzResult(tried, FuzzFailure(target.name, data, error))
        while (left := end - time.monotonic()) > 0:
            count = int(tried / (seconds - left) * left) if tried else 0
            result = try_inputs(target, checked, min(max(count, _MIN_BATCH), _BATCH), seed)
            tried, seed = tried + result.inputs, seed + 1
            if result.failure:
                return FuzzResult(tried, result.failure)
    return FuzzResult(tried, None)


def _with_time_limit(check: Check) -> Check:
    def checked(data: bytes) -> None:
        with _limit_time():
            check(data)

    return checked


@contextmanager
def _limit_time() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise SlowInputError(f"an input takes more than {_INPUT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _INPUT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
