"""Practice in one invented company, played once for all tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gumshoe.training.practice import Company, Practice
from gumshoe.training.teacher import Slip
from gumshoe.training.tiny import practice_texts, train_tokenizer
from gumshoe.training.warm_start import Example


@dataclass(frozen=True)
class Played:
    """The expert's episodes of a company."""

    company: Company
    tokenizer: Any
    examples: list[Example]
    slips: list[list[Slip]]

    def texts(self) -> Iterator[str]:
        for example in self.examples:
            yield self.tokenizer.decode(list(example.ids), skip_special_tokens=False)


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    company = Company.invent(5, "normal", tmp_path_factory.mktemp("company"), mailboxes=12, messages=3600)
    tokenizer = train_tokenizer(practice_texts([company]), 2048)
    examples, slips = zip(*Practice(tokenizer, 1).examples(company), strict=True)
    return Played(company, tokenizer, list(examples), list(slips))
