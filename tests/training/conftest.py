"""Trainers in the process of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest


def _train(module: str, spec: Path) -> None:
    """Do a trainer's work: what its module's `main` does, without its setup of the process."""
    from gumshoe.training.grpo.run import Run
    from gumshoe.training.run_spec import RunSpec
    from gumshoe.training.sft.sft_trainer import SftRun
    from gumshoe.training.sft.warm_start import WarmStartSpec

    text = spec.read_text()
    if module == "gumshoe.training.grpo.run":
        Run(RunSpec.model_validate_json(text)).train()
    else:
        assert module == "gumshoe.training.sft.sft_trainer"
        SftRun(WarmStartSpec.model_validate_json(text), spec.parent).train()


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run and a warm start train in this process: a trainer's own process takes seconds to start.

    What a trainer raises comes out of the call that started it.
    """

    def start(module: str, spec: Path, processes: int, *_: object) -> Iterator[None]:
        assert processes == 1
        _train(module, spec)
        yield None

    def wait(trainers: Iterator[None], servers: object) -> int:
        assert servers is None
        assert list(trainers) == [None]
        return 0

    for module in ("gumshoe.training.launch.supervisor", "gumshoe.training.sft.warm_start"):
        monkeypatch.setattr(f"{module}.start_trainers", start)
        monkeypatch.setattr(f"{module}.wait_for_trainers", wait)
