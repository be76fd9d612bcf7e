"""Synthetic mail of each difficulty, generated and indexed once."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildReport
from gumshoe.mail.index import MailIndex
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.mailboxes import SyntheticMail, synthesize_mail, write_mail


def run_program(program: str, hash_seed: str) -> str:
    """Return the output of a program in a process with another order of sets."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


@dataclass(frozen=True)
class GeneratedMail:
    """Mail of one seed and difficulty, in a directory with its index."""

    level: Level
    mail: SyntheticMail
    directory: Path
    report: MailBuildReport
    index: MailIndex


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Return a function that generates mail of a difficulty and seed once: 2,400 messages in 6 mailboxes."""

    @cache
    def made(level: Level, seed: int = 1) -> GeneratedMail:
        directory = tmp_path_factory.mktemp(f"{level}-{seed}")
        mail = synthesize_mail(seed, 6, 2400, level)
        write_mail(mail, directory)
        report = build_mail_index([f"jsonl:{directory / 'mail.jsonl'}"], directory / "index")
        return GeneratedMail(level, mail, directory, report, MailIndex(directory / "index"))

    return made


@pytest.fixture(params=LEVELS)
def made(request: pytest.FixtureRequest, make) -> GeneratedMail:  # type: ignore[no-untyped-def]
    """Return mail of each difficulty in turn."""
    result: GeneratedMail = make(request.param)
    return result


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed judge requests without a pause."""
    monkeypatch.setattr("gumshoe.rewards.chat_judge._MAX_PAUSE", 0)
