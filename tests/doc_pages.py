"""Run the commands of a page in `docs/` like a user, in a directory of its own."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gumshoe.inference.vllm_server import find_free_ports

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_PORT = re.compile(r"((?:127\.0\.0\.1:|--port |http\.server ))(\d{4})\b")
_DEFAULT_PORT = "8000"  # of `gumshoe serve`


def read_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in order, including those in lists."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", (DOCS / page).read_text(), re.M | re.S)
    return [textwrap.dedent(each) for each in found]


def read_files(page: str) -> dict[str, str]:
    """Return the files of a page by name: the blocks whose first line is a file name."""
    blocks = [*read_blocks(page, "python"), *read_blocks(page, "yaml")]
    named = {text.partition("\n")[0].removeprefix("# "): text for text in blocks}
    return {name: text for name, text in named.items() if re.fullmatch(r"[\w-]+\.(py|yaml)", name)}


def run_commands(commands: str, directory: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run shell commands in a directory that is also their home. Background jobs are ended afterwards."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'components'}:{ROOT / 'pipelines'}:{ROOT}",
        "COLUMNS": "200",
        "HOME": str(directory),
        "GUMSHOE_CACHE": str(directory / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT\n{commands}"],
        cwd=directory,
        env={**own, **more},
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class PageRun:
    """The commands of a page, and what they must show."""

    page: str
    also: tuple[str, ...] = ()
    """Pages whose commands follow, in the same directory."""
    prints: tuple[str, ...] = ()
    """Texts in the output."""
    hides: tuple[str, ...] = ()
    """Texts that must not be in the output."""
    leaves: tuple[str, ...] = ()
    """Files that exist afterwards."""
    replacements: Mapping[str, str] = field(default_factory=dict)
    """Texts of the commands that are replaced first, e.g. to save time."""
    folder: str = "."
    """Folder for the files of the page."""

    def __str__(self) -> str:
        return self.page

    def check(self, directory: Path, addresses: Mapping[str, str] | None = None, **environment: str) -> None:
        """Save the files of the page, run its commands, and check what they show.

        `addresses` replaces the ones of the page, in files too. Ports are replaced by free ones.
        """
        commands = "".join(block for page in (self.page, *self.also) for block in read_blocks(page, "sh"))
        for original, replacement in self.replacements.items():
            assert original in commands, original
            commands = commands.replace(original, replacement)
        files = read_files(self.page)
        used = {port for text in (commands, *files.values()) for _, port in _PORT.findall(text)} | {_DEFAULT_PORT}
        ports = dict(zip(sorted(used), map(str, find_free_ports(len(used))), strict=True))

        def adapt(text: str) -> str:
            for example, address in (addresses or {}).items():
                text = text.replace(example, address)
            return _PORT.sub(lambda found: found[1] + ports[found[2]], text)

        for name, text in files.items():
            (directory / self.folder).mkdir(exist_ok=True)
            (directory / self.folder / name).write_text(adapt(text))
        run = run_commands(adapt(commands), directory, GUMSHOE_SERVE__PORT=ports[_DEFAULT_PORT], **environment)
        output = run.stdout + run.stderr
        assert run.returncode == 0, output
        assert [each for each in self.prints if each not in output] == [], output
        assert [each for each in self.hides if each in output] == [], output
        assert [each for each in self.leaves if not (directory / each).exists()] == []
