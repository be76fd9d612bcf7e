"""Deliver attack messages to a copy of an index, through the reader of mail."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.embeddings.embedder import Embedder
from gumshoe.mail.build import extend_mail_index
from gumshoe.mail.schema import SEGMENT_PREFIX
from gumshoe.synthesis.attacks.attack_recipe import PlannedAttack


def deliver(
    planned: Iterable[PlannedAttack],
    index: Path,
    directory: Path,
    *,
    link: bool = False,
    embedder: Embedder | None = None,
) -> None:
    """Copy an index to a directory, and add the messages of attacks to the copy.

    With `link`, the files of its segments, which are never changed, are hard links if the file system allows it.
    `embedder` replaces the model that the index names, if it has vectors.

    Raises:
        GumshoeError: if the copy cannot be written.
    """
    with explain_os_errors(directory), TemporaryDirectory() as letters:
        if directory.exists():
            shutil.rmtree(directory)
        shutil.copytree(index, directory, copy_function=_link_segments if link else shutil.copy2)
        number = 0
        for attack in planned:
            for message in attack.messages:
                number += 1
                (Path(letters) / f"{number:06}.eml").write_bytes(message)
        if number:
            extend_mail_index([f"eml:{letters}"], directory, embedder=embedder)


def _link_segments(source: str, target: str) -> str:
    """Link a file of a segment, and copy any other file or one that cannot be linked."""
    if Path(source).parent.name.startswith(SEGMENT_PREFIX):
        try:
            os.link(source, target)
        except OSError:
            pass
        else:
            return target
    return shutil.copy2(source, target)
