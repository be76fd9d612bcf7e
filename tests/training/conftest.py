"""A fixture that runs trainers in the process of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest


def _train(module: str, spec: Path) -> None:
    """Do what the `main` of a trainer's module does, without its setup of the process."""
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
def train_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run trainers in this process, because a process of their own takes seconds to start.

    Errors of a trainer are raised by the call that started it.
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
