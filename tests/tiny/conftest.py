"""Episodes of the scripted expert in one synthetic company, generated once for all tests."""

from dataclasses import dataclass
from typing import Any

import pytest

from gumshoe.tiny.episode_generator import EPISODES, SKILLS, EpisodeExample, EpisodeGenerator, PracticeCompany


@dataclass(frozen=True)
class PracticeEpisodes:
    """The expert's episodes in a company."""

    company: PracticeCompany
    tokenizer: Any
    episodes: list[EpisodeExample]
    """Whole episodes, with errors."""
    skills: list[EpisodeExample]
    """Mostly parts of episodes, without errors."""

    @property
    def whole(self) -> list[tuple[EpisodeExample, str]]:
        """Episodes that go on to the answer, with their texts."""
        return [(episode, self.text(episode)) for episode in self.episodes if episode.is_whole]

    def text(self, episode: EpisodeExample) -> str:
        """Return the text of an episode, with the company's own domain."""
        text = str(self.tokenizer.decode(list(episode.example.ids), skip_special_tokens=False))
        return text.replace(episode.domain, self.company.domain)


@pytest.fixture(scope="session")
def practice(tmp_path_factory: pytest.TempPathFactory) -> PracticeEpisodes:
    from gumshoe.tiny.maker import practice_texts, train_tokenizer

    company = PracticeCompany.invent(5, "normal", tmp_path_factory.mktemp("company"), mailboxes=12, messages=1200)
    tokenizer = train_tokenizer(practice_texts([company]), 2048)
    generator = EpisodeGenerator(tokenizer, 1)
    episodes = list(generator.generate(company, EPISODES, makes_errors=True))
    skills = list(generator.generate(company, SKILLS, makes_errors=False))
    return PracticeEpisodes(company, tokenizer, episodes, skills)


@pytest.fixture(scope="session")
def practice_by_level(practice: PracticeEpisodes, tmp_path_factory: pytest.TempPathFactory) -> list[PracticeEpisodes]:
    """Return whole episodes in one company of each difficulty, in the proportions of the tiny policy's training."""
    from gumshoe.tiny.maker import LEVELS

    generator = EpisodeGenerator(practice.tokenizer, 1)
    companies = [
        PracticeCompany.invent(20 + number, level, tmp_path_factory.mktemp("company"))
        for number, level in enumerate(LEVELS)
    ]
    return [
        PracticeEpisodes(
            company, practice.tokenizer, list(generator.generate(company, EPISODES, makes_errors=True)), []
        )
        for company in companies
    ]
