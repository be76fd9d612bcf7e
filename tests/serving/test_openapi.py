"""Test that the server answers every request that its OpenAPI allows, with a response that it describes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.agent_server import AgentProcess


@pytest.mark.parametrize(
    "examples", [pytest.param(10, marks=pytest.mark.ci), pytest.param(100, marks=pytest.mark.nightly)]
)
def test_responses_conform_to_the_openapi_description(examples: int, server: AgentProcess, tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    ran = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", checks,
            "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--seed", "1", "--workers", "2",
            "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # it writes files there
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
