"""Run the files of `examples/` against a server, as their README says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import find_free_port, skip_missing
from tests.serving.agent_server import ANN, AgentProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What is in 7?"


def run_example(server: AgentProcess, *command: str, script: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        input=script,
        env={**os.environ, "GUMSHOE_URL": server.url, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_curl(server: AgentProcess) -> None:
    if shutil.which("curl") is None:
        skip_missing("curl")
    body = json.dumps({"question": QUESTION, "inbox_address": ANN})
    run = run_example(server, "bash", str(EXAMPLES / "curl.sh"), body)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count('"policy":"adapter"') == 2
    assert run.stdout.count("event: step") == 5
    refused = run_example(server, "bash", str(EXAMPLES / "curl.sh"), json.dumps({"question": QUESTION}))
    assert refused.returncode != 0
    assert "serving.inbox-missing" in refused.stdout


@pytest.mark.ci
def test_python(server: AgentProcess) -> None:
    run = run_example(server, sys.executable, str(EXAMPLES / "ask.py"), QUESTION, ANN)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "Body of message 7"
    assert "<7@example.com>" in run.stdout
    assert run.stderr.startswith("1. search_inbox ")
    refused = run_example(server, sys.executable, str(EXAMPLES / "ask.py"), QUESTION)
    assert (refused.returncode, "[serving.inbox-missing]" in refused.stderr) == (1, True)


@pytest.mark.ci
def test_typescript(server: AgentProcess) -> None:
    """Node 20 does not run TypeScript, but the example is JavaScript as well: all its types are inferred."""
    if shutil.which("node") is None:
        skip_missing("node")
    script = (EXAMPLES / "ask.mts").read_text()
    run = run_example(server, "node", "--input-type=module", "-", QUESTION, ANN, script=script)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["Body of message 7", "  <7@example.com>"]
    assert run.stderr.startswith("1. search_inbox ")
    refused = run_example(server, "node", "--input-type=module", "-", QUESTION, script=script)
    assert (refused.returncode, "[serving.inbox-missing]" in refused.stderr) == (1, True)


@pytest.mark.ci
def test_mcp_client(server: AgentProcess) -> None:
    run = run_example(server, sys.executable, str(EXAMPLES / "mcp" / "client.py"), ANN, "body")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0].split() == ["search_inbox", "read_email", "ask"]
    assert "id: <" in run.stdout


@pytest.mark.ci
@pytest.mark.parametrize("name", ["ask.py", "mcp/client.py"])
def test_a_program_without_arguments_prints_its_usage(name: str) -> None:
    run = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.startswith("usage: ")) == (1, True)


def test_typescript_reports_a_server_that_does_not_answer() -> None:
    if shutil.which("node") is None:
        skip_missing("node")
    script = (EXAMPLES / "ask.mts").read_text()
    env = {**os.environ, "GUMSHOE_URL": f"http://127.0.0.1:{find_free_port()}"}
    command = ["node", "--input-type=module", "-", QUESTION]
    run = subprocess.run(command, input=script, env=env, capture_output=True, text=True, check=False)
    assert (run.returncode, len(run.stderr.splitlines())) == (1, 1), run.stderr
    assert env["GUMSHOE_URL"] in run.stderr


@pytest.mark.parametrize("name", ["claude_desktop_config.json", "vscode-mcp.json"])
def test_mcp_configurations_name_the_endpoint(name: str) -> None:
    text = (EXAMPLES / "mcp" / name).read_text()
    assert "http://127.0.0.1:8000/mcp" in text
    assert "Bearer " in text
    (server,) = json.loads(text).get("servers", json.loads(text).get("mcpServers"))
    assert server == "gumshoe"


def test_the_readme_lists_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    found = [each for each in EXAMPLES.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    files = {each.relative_to(EXAMPLES).as_posix() for each in found} - {"README.md"}
    assert {name for name in files if f"({name})" not in text} == set()
