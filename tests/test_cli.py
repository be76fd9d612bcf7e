"""The `gumshoe` command as a whole: fast start and clear errors."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gumshoe.cli import main
from gumshoe.signals import exit_on_signals
from tests.conftest import CommandResult

Run = Callable[..., CommandResult]


def test_help_lists_commands_without_heavy_imports() -> None:
    code = (
        "import sys\n"
        "from gumshoe.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: print(end.code)\n"
        "heavy = {'torch', 'kfp', 'transformers', 'boto3', 'datasets', 'apsw', 'numpy', 'pydantic', 'rich.markdown'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(sorted(name for name in sys.modules if name.startswith('gumshoe.')))\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "artifacts" in "\n".join(lines)
    own = ["cli", "credential_patterns", "errors", "help_pages", "json_text", "redaction", "signals", "terminal"]
    assert lines[-3:] == ["0", "[]", str([f"gumshoe.{each}" for each in [*own, "text_checks"]])]


def test_a_command_imports_only_its_own_package() -> None:
    code = (
        "import sys\n"
        "from gumshoe.cli import main\n"
        "try: main(['artifacts', 'list', '--store', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[1] for name in sys.modules if name.startswith('gumshoe.')}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, "nowhere"], capture_output=True, text=True, check=True)
    shared = ["cli", "credential_patterns", "errors", "help_pages", "json_text", "network", "redaction", "signals"]
    assert run.stdout.splitlines()[-1] == str(["artifacts", *shared, "terminal", "text_checks"])


def test_version(run: Run) -> None:
    assert run("--version").out == "gumshoe 0.1.0\n"


def test_a_dotenv_file_is_read_and_the_environment_wins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("GUMSHOE_STORE=from-dotenv\n")
    monkeypatch.setenv("GUMSHOE_STORE", "")  # restored after the test
    monkeypatch.delenv("GUMSHOE_STORE")
    assert "from-dotenv" in run("artifacts", "list").err
    monkeypatch.setenv("GUMSHOE_STORE", "from-environment")
    assert "from-environment" in run("artifacts", "list").err


def test_a_dotenv_file_that_is_not_utf_8_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes("GUMSHOE_STORE=Köln\n".encode("latin-1"))
    ran = run("artifacts", "list")
    assert (ran.status, ran.code) == (2, "cli.dotenv-unreadable")
    assert str(tmp_path / ".env") in ran.err


def test_a_usage_error_exits_with_2_and_suggests_a_command(run: Run) -> None:
    ran = run("artefacts")
    assert (ran.status, ran.code) == (2, "cli.usage")
    assert "artifacts" in ran.err


def test_an_interrupted_command_says_so_and_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gumshoe.artifacts.commands._store", interrupt)
    ran = run("artifacts", "list", "--store", "here")
    assert (ran.status, ran.err) == (130, "Interrupted.\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_command_leaves_no_temporary_files(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another signal, also of another kind, does not interrupt what removes them."""
    before = signal.getsignal(number)

    def work(*_: object, **__: object) -> None:
        with TemporaryDirectory(dir=tmp_path):
            try:
                with exit_on_signals():
                    signal.raise_signal(number)
            finally:
                for each in (signal.SIGTERM, signal.SIGHUP):
                    signal.raise_signal(each)

    monkeypatch.setattr("gumshoe.cli.app", work)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 128 + number
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(number) == before


def test_explain_lists_the_codes_with_a_prefix(run: Run) -> None:
    listed = [each["code"] for each in json.loads(run("explain", "mail", "--json").out)]
    assert "mail.no-index" in listed
    assert all(each.startswith("mail.") for each in listed)
    assert json.loads(run("explain", "cli.usage", "--json").out)["code"] == "cli.usage"
    assert run("explain", "mai").code == "cli.unknown-error-code"


def test_the_installed_program_runs() -> None:
    program = Path(sys.executable).with_name("gumshoe")
    assert subprocess.run([program, "--version"], capture_output=True, check=True).stdout.startswith(b"gumshoe ")


@pytest.mark.parametrize("argument", [b"\xff", b"--index=K\xf6ln", b"\xed\xa0\x80"])
def test_an_argument_that_is_not_utf_8_is_refused(argument: bytes) -> None:
    words = [sys.executable.encode(), b"-m", b"gumshoe", b"mail", b"search", argument, b"--json"]
    ran = subprocess.run(words, capture_output=True, check=False)
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["error"]["code"] == "cli.undecodable-argument"
    assert b"cli.undecodable-argument" in ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("gate", "--candidate", "a", "--baseline", "b", "--min-gain", "nan"),
        ("gate", "--candidate", "a", "--baseline", "b", "--min-lower", "-inf"),
        ("artifacts", "prune", "--store", "nowhere", "--older-than", "inf"),
        ("artifacts", "prune", "--store", "nowhere", "--older-than", "1e30"),
    ],
)
def test_a_number_that_is_not_finite_or_too_large_is_refused(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert (ran.status, ran.code) == (2, "cli.usage")
    assert words[-2] in ran.err


@pytest.mark.parametrize(
    ("typed", "option", "following"),
    [
        ("warm-start --from-gold --index a --demonstrations-only --model tiny", "--demonstrations-only", "--model"),
        ("gate --candidate --baseline b", "--candidate", "--baseline"),
        ("mail search --index a lease --from --json", "--from", "--json"),
        ("evaluate --out --help", "--out", "--help"),
    ],
)
def test_an_option_does_not_take_the_next_option_as_its_value(
    run: Run, typed: str, option: str, following: str
) -> None:
    ran = run(*typed.split())
    assert (ran.status, ran.code) == (2, "cli.usage")
    shown = " ".join(ran.err.replace("│", " ").split())
    assert f"Invalid value for '{option}': it requires a value, and the next word is the option {following}" in shown


def test_a_value_may_look_like_an_option(run: Run) -> None:
    assert run("gate", "--candidate=--baseline", "--baseline", "b").code == "evaluation.not-found"
    asked = ("--index", "nowhere", "--inbox", "a@b.example", "--", "--from", "--json")
    assert run("mail", "search", *asked).code == "mail.no-index"
