"""Practice in one invented company, played once for all tests; and trainers in the test's process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gumshoe.training.practice import EPISODES, SKILLS, Company, Lesson, Practice


@dataclass(frozen=True)
class Played:
    """The expert's episodes of a company."""

    company: Company
    tokenizer: Any
    lessons: list[Lesson]
    """Of whole episodes, with errors."""
    skills: list[Lesson]
    """Parts of episodes mostly, without any."""

    @property
    def whole(self) -> list[tuple[Lesson, str]]:
        """Those that go on to the answer, with their texts."""
        return [(lesson, self.text(lesson)) for lesson in self.lessons if lesson.is_whole]

    def text(self, lesson: Lesson) -> str:
        """With the company's own domain."""
        text = str(self.tokenizer.decode(list(lesson.example.ids), skip_special_tokens=False))
        return text.replace(lesson.domain, self.company.domain)


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    from gumshoe.training.tiny import practice_texts, train_tokenizer

    company = Company.invent(5, "normal", tmp_path_factory.mktemp("company"), mailboxes=12, messages=3600)
    tokenizer = train_tokenizer(practice_texts([company]), 2048)
    practice = Practice(tokenizer, 1)
    episodes = list(practice.lessons(company, EPISODES, errs=True))
    return Played(company, tokenizer, episodes, list(practice.lessons(company, SKILLS, errs=False)))


@pytest.fixture(scope="session")
def taught(played: Played, tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    """Whole episodes in companies of every difficulty, as often as the tiny policy sees each."""
    from gumshoe.training.tiny import LEVELS

    practice = Practice(played.tokenizer, 1)
    companies = [
        Company.invent(20 + number, level, tmp_path_factory.mktemp("company")) for number, level in enumerate(LEVELS)
    ]
    return [
        Played(company, played.tokenizer, list(practice.lessons(company, EPISODES, errs=True)), [])
        for company in companies
    ]


def _train(module: str, spec: Path) -> None:
    """Do a trainer's work: what its module's `main` does, without its setup of the process."""
    from gumshoe.training.run import Run
    from gumshoe.training.sft import WarmStart
    from gumshoe.training.spec import RunSpec
    from gumshoe.training.warm_start import WarmStartSpec

    text = spec.read_text()
    if module == "gumshoe.training.run":
        Run(RunSpec.model_validate_json(text)).train()
    else:
        assert module == "gumshoe.training.sft"
        WarmStart(WarmStartSpec.model_validate_json(text), spec.parent).learn()


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

    for module in ("gumshoe.training.supervisor", "gumshoe.training.warm_start"):
        monkeypatch.setattr(f"{module}.start_trainers", start)
        monkeypatch.setattr(f"{module}.watched", wait)
