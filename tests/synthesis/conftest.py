"""Synthetic mail of each difficulty, made and indexed once."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from gumshoe.mail.build import MailBuildReport, build_index
from gumshoe.mail.index import MailIndex
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.mailboxes import SyntheticMail, synthesize_mail, write_mail


def printed_by(program: str, hash_seed: str) -> str:
    """What a program prints in a process of its own, where sets and dictionaries have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


@dataclass(frozen=True)
class Made:
    """Mail of one seed and difficulty, in a directory with its index."""

    level: Level
    mail: SyntheticMail
    directory: Path
    report: MailBuildReport
    index: MailIndex


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Makes mail of a difficulty and seed, 2,400 messages in 6 mailboxes, once."""

    @cache
    def made(level: Level, seed: int = 1) -> Made:
        directory = tmp_path_factory.mktemp(f"{level}-{seed}")
        mail = synthesize_mail(seed, 6, 2400, level)
        write_mail(mail, directory)
        report = build_index([f"jsonl:{directory / 'mail.jsonl'}"], directory / "index")
        return Made(level, mail, directory, report, MailIndex(directory / "index"))

    return made


@pytest.fixture(params=LEVELS)
def made(request: pytest.FixtureRequest, make) -> Made:  # type: ignore[no-untyped-def]
    """Mail of each difficulty in turn."""
    result: Made = make(request.param)
    return result


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a judge that failed again at once."""
    monkeypatch.setattr("gumshoe.rewards.chat_judge._PAUSE", 0)
