"""The reference pages: they are as the code generates them, and complete."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from docs.generate.settings import build_schema

from gumshoe.cli import COMMANDS
from gumshoe.training.records import EvaluationRecord, StepRecord
from gumshoe.training.settings_sources import CONFIGS

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
INTERNAL = {
    "GUMSHOE_VLLM_PLUGIN": "set for the vLLM servers that Gumshoe starts",
    "GUMSHOE_STEP": "set by the steps of pipelines",
    "GUMSHOE_STEP_ENDS": "set by the steps of pipelines",
    "GUMSHOE_STEP_QUEUED": "set by the pipeline",
    "GUMSHOE_STEP_SECONDS": "set by the pipeline",
    "GUMSHOE_TRAININGS": "set by pipeline runs on this machine",
    "KFP_POD_NAME": "set by Kubeflow Pipelines",
    "KFP_POD_UID": "set by Kubeflow Pipelines",
    "LOCAL_RANK": "set by accelerate",
    "LOCAL_WORLD_SIZE": "set by accelerate",
    "MASTER_ADDR": "set by accelerate",
    "MASTER_PORT": "set by accelerate",
    "RANK": "set by accelerate",
    "WORLD_SIZE": "set by accelerate",
    "PARALLELISM_CONFIG_CP_SIZE": "only refused",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "set by Gumshoe itself",
}
"""Environment variables that the code reads and users do not set."""
ELSEWHERE = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI"),
}
"""Environment variables in the reference that only libraries read, or that are read in a loop over their names."""


@pytest.fixture(scope="module")
def files() -> dict[Path, str]:
    from docs.generate.__main__ import generate_files

    return generate_files()


@pytest.mark.ci
def test_the_reference_is_as_generated(files: dict[Path, str]) -> None:
    outdated = [path for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run `make docs`"


def test_nothing_else_is_in_the_reference(files: dict[Path, str]) -> None:
    assert {each for each in REFERENCE.rglob("*") if each.is_file()} == {*files}


def test_every_command_is_listed(files: dict[Path, str]) -> None:
    page = files[REFERENCE / "cli.md"]
    assert [name for name in COMMANDS if f"\n### gumshoe {name}\n" not in page] == []


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_accepts_the_presets(config: Path) -> None:
    jsonschema.validate(_read(config.read_text()), build_schema("train"))


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("optimizer: {algorithm: dapo}", True),
        ("optimizer: {algorithm: {dapo: {epsilon: 0.1}}}", True),
        ("environment: {documents: {reasoning: true}}", True),
        ("optimizer.max_steps: 3", True),
        ("optimizer: {max_steps: many}", False),
        ("optimizer: {max_step: 3}", False),
        ("optimiser: {max_steps: 3}", False),
    ],
)
def test_the_schema_of_training_settings_finds_errors(text: str, is_valid: bool) -> None:
    found = jsonschema.Draft202012Validator(build_schema("train"))
    assert found.is_valid(_read(text)) == is_valid


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [("limits: {queue: 10}", True), ("access: {keys: keys.yaml}", True), ("limits: {queue: -1}", False)],
)
def test_the_schema_of_server_settings_finds_errors(text: str, is_valid: bool) -> None:
    assert jsonschema.Draft202012Validator(build_schema("serve")).is_valid(_read(text)) == is_valid


@pytest.mark.parametrize("record", [StepRecord, EvaluationRecord])
def test_every_column_of_the_metrics_is_described(record: type[StepRecord | EvaluationRecord]) -> None:
    assert [name for name, field in record.model_fields.items() if not field.description] == []


def test_every_metric_of_the_agent_server_is_listed() -> None:
    from docs.generate.metrics import render_metrics

    from gumshoe.serving.telemetry import Metrics

    page, served = render_metrics(), Metrics().registry.collect()
    rows = [f"| `{each.name}{'_total' if each.type == 'counter' else ''}` | {each.type} |" for each in served]
    assert [each for each in rows if each not in page] == []
    assert "| `gumshoe_questions_total` | counter | `policy`, `result` |" in page


@pytest.mark.ci
def test_every_environment_variable_that_the_code_reads_is_listed() -> None:
    from docs.generate.command_line import list_commands
    from docs.generate.environment_variables import READ

    read = {name for path in _sources() for name in _variables_read(ast.parse(path.read_text(encoding="utf-8")))}
    listed = {name for names in READ.values() for each in names for name in each.split(", ")}
    options = {each.envvar for _, command in list_commands() for each in command.params if each.envvar}
    assert sorted(read - listed - options - {*INTERNAL}) == []
    assert sorted(listed - read - ELSEWHERE) == []
    assert sorted({*INTERNAL} - read) == []


def _read(text: str) -> Any:
    """Read YAML as editors do, for which 1e-5 is a number. For PyYAML, only 1.0e-5 is one."""
    return yaml.safe_load(re.sub(r"\b(\d+)e-", r"\1.0e-", text))


def _sources() -> Iterator[Path]:
    for root in ("components", "pipelines"):
        yield from (ROOT / root).rglob("*.py")


def _variables_read(tree: ast.Module) -> Iterator[str]:
    """Yield the names in `os.environ[NAME]`, `os.environ.get(NAME)`, `NAME in environ` and the like."""
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=source, slice=name):
                pass
            case ast.Call(func=ast.Attribute(value=source), args=[name, *_]):
                pass
            case ast.Compare(left=name, comparators=[source]):
                pass
            case _:
                continue
        if "environ" in (getattr(source, "id", ""), getattr(source, "attr", "")):  # `environ` or `os.environ`
            value = name.value if isinstance(name, ast.Constant) else constants.get(ast.unparse(name))
            if isinstance(value, str):
                yield value
