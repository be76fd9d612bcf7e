"""Fixtures of a tokenizer, its chat format and mail indexes, each built once."""

from typing import Any

import pytest

from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import QWEN2_5, make_tokenizer, synthetic


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Return a small tokenizer with the template of Qwen2.5."""
    return make_tokenizer(QWEN2_5)


@pytest.fixture(scope="session")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


@pytest.fixture(scope="session")
def synthetic_index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    """Return an index of `synthetic` mail."""
    return make_index(tmp_path_factory.mktemp("synthetic"), synthetic().messages)
