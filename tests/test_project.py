"""The project's own files: pinned packages and import contracts."""

import os
import re
import subprocess
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


@pytest.mark.parametrize(
    ("words", "is_stopped"),
    [(["MAIL=maildir:x"], True), (["MAIL=maildir:x", "SCENARIOS=q.jsonl"], False), ([], False)],
)
def test_the_demo_stops_at_once_without_questions_about_its_mail(words: list[str], is_stopped: bool) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("SCENARIOS", "MAKEFLAGS", "MFLAGS")}
    # Login shells set MAIL: only the command line counts.
    command = ["make", "-n", "demo", *words]
    ran = subprocess.run(
        command, cwd=ROOT, env={**own, "MAIL": "/var/mail/me"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode != 0, "SCENARIOS=" in ran.stderr) == (is_stopped, is_stopped), ran.stderr
    assert ("--adapter latest" in ran.stdout, "gumshoe ask" in ran.stdout) == (False, not is_stopped)


def test_the_import_contract_names_every_package() -> None:
    layers = re.search(
        r"\[importlinter:contract:layers\].*?(?=^\[|\Z)", (ROOT / ".importlinter").read_text(), re.M | re.S
    )
    assert layers is not None
    named = set(re.findall(r"^    gumshoe\.(\w+)$", layers[0], re.M))
    sources = (ROOT / "components" / "gumshoe").iterdir()
    assert {each.stem for each in sources if not each.name.startswith("__") and each.suffix in {"", ".py"}} == named


SHARED_NAMES = {
    *(
        "audit",
        "build",
        "commands",
        "completion",
        "component",
        "corpus",
        "errors",
        "index",
        "schema",
        "settings",
        "sources",
    )
}
"""Basenames of modules that are the same thing for two packages."""


@pytest.mark.ci
def test_a_class_name_means_one_thing() -> None:
    from tests.counts import repeated_classes

    assert list(repeated_classes()) == []


@pytest.mark.ci
def test_modules_share_a_name_only_if_they_are_the_same_thing_for_two_packages() -> None:
    from tests.counts import repeated_modules

    assert {each.partition(".py")[0] for each in repeated_modules()} == SHARED_NAMES
