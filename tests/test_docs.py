"""Run the commands of `docs/` like a user: in order, each page in a directory of its own.

Commands for a cluster use fake servers for Kubernetes, Kubeflow Pipelines and S3.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gumshoe.artifacts.store import Store
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes, Object, fake_kubernetes
from tests.cluster.fit_cluster import set_up_cluster
from tests.cluster.test_deploy import ACCESS, BASE, publish
from tests.conftest import skip_missing
from tests.pipelines.fake_kubeflow import FakeKubeflow, fake_kubeflow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def read_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in order, including those in lists."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", (DOCS / page).read_text(), re.M | re.S)
    return [textwrap.dedent(each) for each in found]


def save_files(page: str, directory: Path) -> None:
    """Write the files of a page: the blocks whose first line is a file name."""
    for text in [*read_blocks(page, "python"), *read_blocks(page, "yaml")]:
        name = text.partition("\n")[0].removeprefix("# ")
        if re.fullmatch(r"[\w-]+\.(py|yaml)", name):
            (directory / name).write_text(text)


def run_commands(commands: str, directory: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run shell commands in a directory that is also their home."""
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
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env={**own, **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_the_commands_of_the_page_on_environments_work(tmp_path: Path) -> None:
    """The commands start their own vLLM servers."""
    page = "environments.md"
    first, *rest = read_blocks(page, "sh")
    (tmp_path / "handbook").mkdir()
    save_files(page, tmp_path / "handbook")
    run = run_commands(first.replace("mkdir handbook", "true") + "".join(rest), tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout
    assert "search_documents" in run.stdout
    assert "Step 2/2" in run.stderr
    assert (tmp_path / "handbook" / "run" / "final" / "metadata.json").is_file()
    assert (tmp_path / "handbook" / "measured" / "report.html").is_file()


_ACTIVE = {"conditions": [{"type": "Active", "status": "True"}]}
_SETTLED = {"ClusterQueue": _ACTIVE, "LocalQueue": _ACTIVE, "PersistentVolumeClaim": {"phase": "Bound"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    """Return a cluster that passes all checks, with working controllers."""
    with fake_kubernetes(tmp_path) as fake:
        set_up_cluster(fake)
        controllers = Controllers(fake)

        def settle(made: Object) -> None:
            controllers.settle(made)
            if made["kind"] in _SETTLED:
                made["status"] = _SETTLED[made["kind"]]

        fake.settle = settle
        yield fake


@pytest.fixture
def kubeflow() -> Iterator[FakeKubeflow]:
    with fake_kubeflow() as fake:
        yield fake


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create the working directory of an operator."""
    made = tmp_path / "checkout"
    shutil.copytree(ROOT / "manifests", made / "manifests")
    shutil.copytree(ROOT / "pipelines" / "compiled", made / "pipelines" / "compiled")
    keys = made / "manifests" / "components" / "secrets" / "s3.env.example"
    keys.write_text(re.sub(r"^(AWS_\w+_KEY\w*)=$", r"\1=filled-in", keys.read_text(), flags=re.M))
    return made


@pytest.fixture
def store(s3_bucket: str, tmp_path: Path) -> Store:
    """Create a store with two adapters."""
    made = Store(f"s3://{s3_bucket}/project")
    for name in ("r1", "r2"):
        publish(made, tmp_path / "adapters" / name, name, {"base_model_name_or_path": BASE, "r": 8})
    return made


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_on_operations_work(
    cluster: FakeKubernetes, kubeflow: FakeKubeflow, checkout: Path, store: Store
) -> None:
    if shutil.which("kubectl") is None:
        skip_missing("kubectl")
    page = "operations.md"
    save_files(page, checkout)
    before = f"gumshoe deploy mail --adapter r1 --store {store.uri} --namespace agents {' '.join(ACCESS)}\n"
    text = before + "".join(read_blocks(page, "sh"))
    replacements = {"s3://bucket/project": store.uri, "https://kubeflow.example.com/pipeline": kubeflow.url}
    for example, actual in replacements.items():
        assert example in text
        text = text.replace(example, actual)
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    run = run_commands(text, checkout, KUBECONFIG=str(cluster.kubeconfig), **aws)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kind: ClusterQueue" in (checkout / "rendered.yaml").read_text()
    assert {name for plural, place, name in cluster.objects if (plural, place) == ("secrets", "gumshoe")} == {
        "gumshoe-models",
        "gumshoe-s3",
    }
    assert "Nothing to fix" in run.stdout
    assert [each.display_name for each in kubeflow.experiments] == ["gumshoe"]
    assert "slowest episode" in run.stdout
    assert "r2 takes 100 %" in run.stdout
    assert "adapters/restored" in run.stdout


@pytest.mark.parametrize("page", sorted(each.name for each in DOCS.glob("*.md")))
def test_links_are_valid(page: str) -> None:
    """Checks links to files and to headings in them."""
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        place, _, heading = target.partition("#")
        found = (DOCS / place).resolve() if place else DOCS / page
        assert found.exists(), f"{page}: {target}"
        if heading:
            assert heading in _headings(found), f"{page}: {target}"


def test_files_named_in_the_architecture_exist() -> None:
    named = re.findall(
        r"`((?:tests|agent|artifacts|mail|rewards|training)/[\w./]+)`", (DOCS / "architecture.md").read_text()
    )
    places = {
        each: ROOT / each if each.startswith("tests/") else ROOT / "components" / "gumshoe" / each for each in named
    }
    assert len(places) >= 20
    assert [each for each, place in places.items() if not place.exists()] == []


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as on GitHub."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}
