"""The commands of `docs/`, as a user would type them: in order, in a directory of their own.

Those for a cluster go to servers that speak its APIs: Kubernetes', Kubeflow Pipelines' and S3's.
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
from tests.cluster.fit_cluster import make_fit
from tests.cluster.test_deploy import ACCESS, BASE, publish
from tests.conftest import missing
from tests.pipelines.fake_kubeflow import FakeKubeflow, fake_kubeflow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    """Those of a page, in their order, also from inside lists."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", (DOCS / page).read_text(), re.M | re.S)
    return [textwrap.dedent(each) for each in found]


def saved(page: str, directory: Path) -> None:
    """Write the files that a page shows: those whose first line names them."""
    for text in [*blocks(page, "python"), *blocks(page, "yaml")]:
        name = text.partition("\n")[0].removeprefix("# ")
        if re.fullmatch(r"[\w-]+\.(py|yaml)", name):
            (directory / name).write_text(text)


def typed(commands: str, directory: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """What a shell makes of commands, in a directory that is also home."""
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
def test_an_environment_of_one_s_own_is_tested_rolled_out_measured_and_trained_on(tmp_path: Path) -> None:
    """Needs vLLM servers of its own, which the commands start."""
    page = "environments.md"
    first, *rest = blocks(page, "sh")
    (tmp_path / "handbook").mkdir()
    saved(page, tmp_path / "handbook")
    run = typed(first.replace("mkdir handbook", "true") + "".join(rest), tmp_path)
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
    """One that is fit for Gumshoe, with controllers that do their work."""
    with fake_kubernetes(tmp_path) as fake:
        make_fit(fake)
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
    """What an operator works in."""
    made = tmp_path / "checkout"
    shutil.copytree(ROOT / "manifests", made / "manifests")
    shutil.copytree(ROOT / "pipelines" / "compiled", made / "pipelines" / "compiled")
    keys = made / "manifests" / "components" / "secrets" / "s3.env.example"
    keys.write_text(re.sub(r"^(AWS_\w+_KEY\w*)=$", r"\1=filled-in", keys.read_text(), flags=re.M))
    return made


@pytest.fixture
def store(s3_bucket: str, tmp_path: Path) -> Store:
    """With two adapters."""
    made = Store(f"s3://{s3_bucket}/project")
    for name in ("r1", "r2"):
        publish(made, tmp_path / "adapters" / name, name, {"base_model_name_or_path": BASE, "r": 8})
    return made


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_cluster_is_installed_checked_upgraded_and_its_store_restored(
    cluster: FakeKubernetes, kubeflow: FakeKubeflow, checkout: Path, store: Store
) -> None:
    if shutil.which("kubectl") is None:
        missing("kubectl")
    page = "operations.md"
    saved(page, checkout)
    before = f"gumshoe deploy mail --adapter r1 --store {store.uri} --namespace agents {' '.join(ACCESS)}\n"
    text = before + "".join(blocks(page, "sh"))
    for said, here in {"s3://bucket/project": store.uri, "https://kubeflow.example.com/pipeline": kubeflow.url}.items():
        assert said in text
        text = text.replace(said, here)
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    run = typed(text, checkout, KUBECONFIG=str(cluster.kubeconfig), **aws)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kind: ClusterQueue" in (checkout / "rendered.yaml").read_text()
    assert {name for plural, place, name in cluster.objects if (plural, place) == ("secrets", "gumshoe")} == {
        "gumshoe-models",
        "gumshoe-s3",
    }
    assert "Nothing must be mended" in run.stdout
    assert [each.display_name for each in kubeflow.experiments] == ["gumshoe"]
    assert "Each draw waits for its slowest episode" in run.stdout
    assert "r2 takes 100 %" in run.stdout
    assert "adapters/restored: every byte is as published" in run.stdout


@pytest.mark.parametrize("page", sorted(each.name for each in DOCS.glob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    """To files, and to headings in them."""
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        place, _, heading = target.partition("#")
        found = (DOCS / place).resolve() if place else DOCS / page
        assert found.exists(), f"{page}: {target}"
        if heading:
            assert heading in _headings(found), f"{page}: {target}"


def test_what_the_architecture_names_is_there() -> None:
    named = re.findall(
        r"`((?:tests|agent|artifacts|mail|rewards|training)/[\w./]+)`", (DOCS / "architecture.md").read_text()
    )
    places = {
        each: ROOT / each if each.startswith("tests/") else ROOT / "components" / "gumshoe" / each for each in named
    }
    assert len(places) >= 20
    assert [each for each, place in places.items() if not place.exists()] == []


def _headings(page: Path) -> set[str]:
    """As GitHub names them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}
