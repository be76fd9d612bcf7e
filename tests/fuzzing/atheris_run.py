"""Fuzz one target with Atheris, which looks for inputs that run other code: `… NAME SECONDS SEED`.

Atheris is not a dependency of the project: `pip install atheris`.
"""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def main(name: str, seconds: str, seed: str) -> None:
    """Fuzz a target. An input that fails is written to its corpus. This ends the process."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["gumshoe"], enable_loader_override=False):
        from tests.fuzzing.fuzz_target import CORPUS
        from tests.fuzzing.targets import TARGETS

        target = next(each for each in TARGETS if each.name == name)
        kept = CORPUS / name
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as found, target.open() as check:
            _write_examples(target.inputs(), Path(found), int(seed))
            options = [f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=30", "-rss_limit_mb=4096"]
            options += [f"-artifact_prefix={kept}/", "-print_final_stats=1", "-verbosity=0"]
            atheris.Setup([sys.argv[0], *options, found, str(kept)], check)
            atheris.Fuzz()


def _write_examples(inputs: "SearchStrategy[bytes]", directory: Path, seed: int) -> None:
    """Write some inputs of Hypothesis, from which Atheris begins."""
    import hypothesis

    count = [0]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=50, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(inputs)
    def write(data: bytes) -> None:
        count[0] += 1
        (directory / str(count[0])).write_bytes(data)

    write()


if __name__ == "__main__":
    main(*sys.argv[1:])
