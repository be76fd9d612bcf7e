"""The project's own files: pinned packages, import contracts, and the commands of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-documents.txt", "requirements-dev.txt"])
def test_no_pinned_package_brings_cuda(lock: str) -> None:
    names = re.findall(r"^([a-z0-9._-]+)==", (ROOT / lock).read_text(), re.M)
    assert "boto3" in names
    assert [name for name in names if re.search("nvidia|cuda|cupy|triton", name)] == []


@pytest.mark.parametrize("lock", sorted(each.name for each in ROOT.glob("requirements*.txt")))
def test_every_pinned_package_has_its_hash(lock: str) -> None:
    pinned = re.split(r"^(?=[a-z0-9])", (ROOT / lock).read_text(), flags=re.M)[1:]
    assert [entry for entry in pinned if "--hash=sha256:" not in entry] == []


def test_the_lock_files_contain_all_dependencies() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for lock, named in {
        "requirements.txt": project["dependencies"],
        "requirements-dev.txt": [*project["dependencies"], *project["optional-dependencies"]["dev"]],
    }.items():
        pinned = set(re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==", (ROOT / lock).read_text(), re.M))
        assert {re.split(r"[\[<>=]", each)[0] for each in named} <= pinned, lock


def test_the_import_contract_names_every_package() -> None:
    layers = re.search(
        r"\[importlinter:contract:layers\].*?(?=^\[|\Z)", (ROOT / ".importlinter").read_text(), re.M | re.S
    )
    assert layers is not None
    named = set(re.findall(r"^    gumshoe\.(\w+)$", layers[0], re.M))
    sources = (ROOT / "components" / "gumshoe").iterdir()
    assert {each.stem for each in sources if not each.name.startswith("__") and each.suffix in {"", ".py"}} == named


def run_in_shell(commands: str, directory: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run commands in a shell, in a directory that is also HOME, with this process's limit of threads."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200", "HOME": str(directory)}
    share = {name: value for name, value in os.environ.items() if name.startswith("OMP_")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env=own | share | more,
        capture_output=True,
        text=True,
        check=False,
    )


def quick_start() -> str:
    """Return the README's commands from the first mail to a report."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    marks = ("cat > mail.jsonl", "artifacts publish", "synthesize mail", "--policy tiny", "gumshoe evaluate")
    chosen = "".join(next(block for block in blocks if mark in block) for mark in marks)
    return chosen.replace("s3://bucket/project", "store")


def check_quick_start(run: "subprocess.CompletedProcess[str]", directory: Path) -> None:
    """Check the output and the files of the quick start."""
    assert run.returncode == 0, run.stderr
    assert "The invoice for the second quarter is $1,250" in run.stdout
    assert "nobody else's business" not in run.stdout
    assert "mail-indexes/enron-1: all bytes match" in run.stdout
    assert "scenarios checked: no" in run.stdout
    assert "search_inbox" in run.stdout
    assert "evaluated/report.html" in run.stdout
    assert (directory / "somewhere" / "else" / "mail.sqlite").is_file()


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_the_quick_start_works_with_few_questions(tmp_path: Path) -> None:
    commands = quick_start()
    for command in ("gumshoe rollout ", "gumshoe evaluate "):
        assert commands.count(command) == 1
        commands = commands.replace(command, f"{command}--limit 8 ")
    check_quick_start(run_in_shell(commands, tmp_path, GUMSHOE_ENGINE="transformers"), tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_quick_start_works(tmp_path: Path) -> None:
    """The test needs its own vLLM servers, which the commands start."""
    check_quick_start(run_in_shell(quick_start(), tmp_path), tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_merging_adapters_works_as_in_the_readme(tmp_path: Path) -> None:
    """Adapters are merged into full and into 4-bit weights, with fewer episodes than in the README, to save time.

    The test needs its own vLLM servers, which the commands start.
    """
    text = (ROOT / "README.md").read_text()
    synthetic = next(
        block for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) if "synthesize mail" in block
    )
    story = text.partition("\n### From an adapter to a model of its own\n")[2].partition("\n### ")[0]
    commands = re.findall(r"^```sh\n(.*?)^```", story, re.M | re.S)
    assert len(commands) == 2
    quick = "".join(commands)
    few = "optimizer.max_steps=1 --set optimizer.gradient_accumulation_steps=2 --set data.eval_size=8"
    for original, shorter in (
        ("--limit 40 --samples 4", "--limit 24 --samples 2"),
        ("--limit 40", "--limit 8"),
        ("optimizer.max_steps=3", few),
    ):
        assert original in quick
        quick = quick.replace(original, shorter)
    run = run_in_shell(synthetic + quick, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("episodes are correct") == 2
    for merged, measured in (("merged", "its-own"), ("merged4", "its-own4")):
        assert (tmp_path / merged / "model.safetensors").is_file()
        assert (tmp_path / measured / "report.html").is_file()
