"""Practice in one invented company, played once for all tests."""

from dataclasses import dataclass
from typing import Any

import pytest

from gumshoe.tiny.episode_generator import EPISODES, SKILLS, EpisodeExample, EpisodeGenerator, PracticeCompany


@dataclass(frozen=True)
class Played:
    """The expert's episodes of a company."""

    company: PracticeCompany
    tokenizer: Any
    lessons: list[EpisodeExample]
    """Of whole episodes, with errors."""
    skills: list[EpisodeExample]
    """Parts of episodes mostly, without any."""

    @property
    def whole(self) -> list[tuple[EpisodeExample, str]]:
        """Those that go on to the answer, with their texts."""
        return [(lesson, self.text(lesson)) for lesson in self.lessons if lesson.is_whole]

    def text(self, lesson: EpisodeExample) -> str:
        """With the company's own domain."""
        text = str(self.tokenizer.decode(list(lesson.example.ids), skip_special_tokens=False))
        return text.replace(lesson.domain, self.company.domain)


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    from gumshoe.tiny.maker import practice_texts, train_tokenizer

    company = PracticeCompany.invent(5, "normal", tmp_path_factory.mktemp("company"), mailboxes=12, messages=3600)
    tokenizer = train_tokenizer(practice_texts([company]), 2048)
    practice = EpisodeGenerator(tokenizer, 1)
    episodes = list(practice.generate(company, EPISODES, errs=True))
    return Played(company, tokenizer, episodes, list(practice.generate(company, SKILLS, errs=False)))


@pytest.fixture(scope="session")
def taught(played: Played, tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    """Whole episodes in companies of every difficulty, as often as the tiny policy sees each."""
    from gumshoe.tiny.maker import LEVELS

    practice = EpisodeGenerator(played.tokenizer, 1)
    companies = [
        PracticeCompany.invent(20 + number, level, tmp_path_factory.mktemp("company"))
        for number, level in enumerate(LEVELS)
    ]
    return [
        Played(company, played.tokenizer, list(practice.generate(company, EPISODES, errs=True)), [])
        for company in companies
    ]
