"""The real mail, indexed once."""

from pathlib import Path

import pytest

from gumshoe.mail.build import build_index


@pytest.fixture(scope="session")
def real_index(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the real mail, as the command line makes it."""
    directory = tmp_path_factory.mktemp("real") / "index"
    build_index([f"jsonl:{shared_data / 'enron' / 'mail.jsonl.gz'}"], directory)
    return directory
