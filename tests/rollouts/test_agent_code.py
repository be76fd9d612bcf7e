"""The digest of an agent's code: what changes it, and when there is none."""

from pathlib import Path

import pytest

from gumshoe.rollouts import agent_code
from gumshoe.rollouts.agent_code import digest_code
from gumshoe.rollouts.agent_settings import AgentSettings


def write(path: Path, text: str = "x = 1\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def digest(word: object) -> str | None:
    return digest_code(AgentSettings.parse(word))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make packages, a module, a script and files that belong to none of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (
        *("digested_package/__init__.py", "digested_package/agent.py", "digested_package/prompt.txt"),
        *("digested_space/inner/agent.py", "digested_module.py", "digested_helper.py", "js/agent.mjs", "js/lib/a.mjs"),
        *("mail.jsonl", ".venv/a.py", "node_modules/a.mjs", "env/pyvenv.cfg", "env/a.py", "js/node_modules/b.mjs"),
    ):
        write(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "files", "others"),
    [
        (
            "digested_package.agent:run",
            ["digested_package/agent.py", "digested_package/prompt.txt", "digested_package/__init__.py"],
            ["digested_module.py", "mail.jsonl"],
        ),
        ("digested_space.inner.agent:run", ["digested_space/inner/agent.py"], ["digested_module.py"]),
        (
            "digested_module:run",
            ["digested_module.py", "digested_helper.py"],
            ["mail.jsonl", ".venv/a.py", "env/a.py", "js/agent.mjs"],
        ),
        ({"command": ["sh", "js/agent.mjs"]}, ["js/agent.mjs", "js/lib/a.mjs"], ["js/node_modules/b.mjs"]),
        ({"command": ["python3", "-m", "digested_package.agent"]}, ["digested_package/prompt.txt"], ["mail.jsonl"]),
    ],
)
def test_the_digest_changes_with_the_files_of_an_agent_alone(
    word: object, files: list[str], others: list[str], place: Path
) -> None:
    before = digest(word)
    assert before is not None
    for name in others:
        write(place / name, "changed")
        assert digest(word) == before, name
    for name in files:
        write(place / name, f"x = {name!r}\n")
        before, last = digest(word), before
        assert before != last, name


def test_settings_are_part_of_the_digest() -> None:
    assert digest("digested_module:run") != digest({"digested_module:run": {"max_tool_calls": 3}})


def test_code_that_cannot_be_found_or_is_too_much_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert digest("digested_nothing:run") is None
    assert digest({"command": ["no-such-program", "js/agent.mjs"]}) is None
    monkeypatch.setattr(agent_code, "MAX_FILES", 2)
    assert digest("digested_package.agent:run") is None


@pytest.mark.parametrize("argument", ["x = 1; " * 600, "a" * 300, "\0", "outputs/" * 100])
def test_arguments_that_are_no_names_of_files_are_no_files(argument: str) -> None:
    assert digest({"command": ["python3", "-c", argument]}) is not None
