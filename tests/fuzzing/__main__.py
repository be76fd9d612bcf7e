"""Fuzz targets for some time each: `python -m tests.fuzzing --seconds 60 --only message calls`."""

import argparse
import random
import subprocess
import sys
import time

from tests.fuzzing.fuzz_run import fuzz
from tests.fuzzing.targets import TARGETS

_BY_NAME = {each.name: each for each in TARGETS}


def main() -> int:
    """Fuzz the targets that the arguments name, and return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time for each target")
    parser.add_argument("--only", nargs="+", choices=sorted(_BY_NAME), default=list(_BY_NAME), metavar="TARGET")
    parser.add_argument("--seed", type=int, default=None, help="first seed, to repeat a run; random by default")
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    given = parser.parse_args()
    if given.list:
        print("\n".join(_BY_NAME))
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    run = _fuzz_with_atheris if given.engine == "atheris" else _fuzz_with_hypothesis
    failed = [name for name in given.only if not run(name, given.seconds, seed)]
    return int(bool(failed))


def _fuzz_with_hypothesis(name: str, seconds: float, seed: int) -> bool:
    """Return True if no input failed."""
    print(f"{name}: seed {seed}", flush=True)
    started = time.monotonic()
    result = fuzz(_BY_NAME[name], seconds, seed)
    print(f"{name}: {result.inputs:,} inputs in {time.monotonic() - started:.0f} s", flush=True)
    if result.failure:
        print(f"{name}: failed, see {result.failure.keep()}\n{result.failure.describe()}", flush=True)
    return result.failure is None


def _fuzz_with_atheris(name: str, seconds: float, seed: int) -> bool:
    """Return True if no input failed. Atheris ends its process, so that each target needs one of its own."""
    command = [sys.executable, "-m", "tests.fuzzing.atheris_run", name, str(int(seconds)), str(seed)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
