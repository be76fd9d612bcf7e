"""The commands in `docs/` work: those of each page, in order, in a directory of its own.

The tier `ci` has the pages of a few seconds; `make demo` of the README is in `integration/test_pipeline.py`. Nightly,
pages about training and evaluation start vLLM servers of their own, and in the others models run in the process.
Commands for a cluster use fake servers for Kubernetes, Kubeflow Pipelines and S3.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes, Object, fake_kubernetes
from tests.cluster.fit_cluster import set_up_cluster
from tests.cluster.test_deploy import ACCESS, BASE, publish
from tests.conftest import skip_missing
from tests.doc_pages import DOCS, ROOT, PageRun, read_blocks
from tests.pipelines.fake_kubeflow import FakeKubeflow, fake_kubeflow

QUICK = [
    PageRun("guides/mail-sources.md", leaves=("mailbox/mail-index.json",)),
    PageRun(
        "guides/search.md", prints=("invoice for the second quarter is $1,250",), hides=("nobody else's business",)
    ),
    PageRun("guides/rewards.md", prints=("my_rewards:brevity",)),
]
CI = [
    PageRun("guides/artifacts.md", prints=("mail-indexes/ann-1: all bytes match",), leaves=("somewhere/else",)),
    PageRun(
        "guides/erase.md", prints=("mail index", "Receipt: erasure-receipt.json"), leaves=("erasure-receipt.json",)
    ),
]
NIGHTLY_IN_PROCESS = [
    PageRun("guides/scenarios.md", leaves=("scenarios.jsonl",)),
    PageRun("guides/questions-from-mail.md", prints=("at most 20 requests",)),
    PageRun("guides/scrape.md", leaves=("pages.failed.jsonl",)),
    PageRun("guides/plan.md", prints=("GPU 0",)),
    PageRun("guides/access.md", prints=("serving.inbox-forbidden", '"name":"calendar-app"')),
    PageRun(
        "guides/feedback.md",
        prints=('{"kept":true}', "of them unanswerable"),
        leaves=("feedback.jsonl", "scenarios.jsonl"),
    ),
    PageRun("guides/rollouts.md", prints=("search_inbox",), replacements={"--limit 8": "--limit 2"}),
    PageRun("tutorials/serve.md", prints=("Friday.", "search_inbox(")),
]
NIGHTLY = [
    PageRun("tutorials/laptop.md", prints=("search_inbox(",), leaves=("measured/report.html",)),
    PageRun("tutorials/documents.md", prints=("search_documents(",), leaves=("measured/report.html",)),
    PageRun(
        "tutorials/environment.md",
        prints=("3 passed", "search_documents", "Step 2/2"),
        leaves=("handbook/run/final/metadata.json", "handbook/measured/report.html"),
        replacements={"mkdir handbook": "true"},
        folder="handbook",
    ),
    PageRun("guides/judges.md", leaves=("verdicts.jsonl",)),
    PageRun("guides/evaluate.md", leaves=("both/report.html", "decision.json")),
    PageRun("guides/attacks.md", prints=("40 attacks",), leaves=("compared/report.html", "copy/index")),
    PageRun(
        "guides/memorization.md",
        prints=("4 canaries and 4 controls", "exposure of planted canaries"),
        leaves=("untrained/report.html",),
    ),
    PageRun("guides/train.md", prints=("Step 15/15", "Step 18/18"), leaves=("run/final", "measured/report.html")),
    PageRun("guides/warm-start.md", leaves=("merged/model.safetensors", "its-own/report.html")),
    PageRun("guides/adapters.md", leaves=("merged/model.safetensors", "measured/report.html")),
    PageRun("guides/qlora.md", leaves=("merged4/model.safetensors", "measured4/report.html")),
    PageRun("guides/many-gpus.md", leaves=("run/final",)),
    PageRun("guides/pipelines.md", leaves=("pipeline/store", "compiled")),
    PageRun("guides/document-index.md", prints=("scurvy#0",)),
    PageRun("guides/synthetic-data.md", leaves=("work/index/index.json",)),
]
WITH_CLUSTER = [
    PageRun("guides/canary.md", prints=("r2 takes 10 %", "r2 takes 100 %", "r1 takes 100 %")),
    PageRun(
        "tutorials/cluster.md",
        prints=("Nothing to fix", "r2 takes 100 %"),
        leaves=("rendered.yaml",),
        replacements={"kubectl create namespace agents\n": ""},  # the fake cluster has it
    ),
    PageRun(
        "operate/install.md",
        also=("operate/upgrade.md", "operate/sizing.md", "operate/backup.md"),
        prints=("Nothing to fix", "slowest episode", "r1 takes 100 %", "adapters/restored"),
        replacements={
            "export KFP_NAMESPACE=gumshoe\n": "export KFP_NAMESPACE=gumshoe\n"
            f"gumshoe deploy mail --adapter r1 --namespace agents {' '.join(ACCESS)}\n"
            "cp -r manifests/overlays/prod manifests/overlays/mine\n"
        },
    ),
]


def runs(pages: Iterable[PageRun], *marks: pytest.MarkDecorator) -> list[Any]:
    """Return the parameters of a test; each page is a group, so that workers share them."""
    return [
        pytest.param(each, id=str(each), marks=[pytest.mark.group(f"commands of {each}"), *marks]) for each in pages
    ]


@pytest.mark.ci
@pytest.mark.parametrize("page", QUICK, ids=str)
def test_the_commands_of_a_page_without_a_model_work(page: PageRun, tmp_path: Path) -> None:
    page.check(tmp_path)


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [*runs(CI), *runs(NIGHTLY_IN_PROCESS, pytest.mark.nightly)])
def test_the_commands_of_a_page_work_with_models_in_the_process(page: PageRun, tmp_path: Path) -> None:
    page.check(tmp_path, GUMSHOE_ENGINE="transformers")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", runs(NIGHTLY))
def test_the_commands_of_a_page_work_with_vllm(page: PageRun, tmp_path: Path) -> None:
    page.check(tmp_path)


def test_the_commands_of_every_tutorial_guide_and_page_for_operators_are_tested() -> None:
    tested = {
        page for each in (*QUICK, *CI, *NIGHTLY_IN_PROCESS, *NIGHTLY, *WITH_CLUSTER) for page in (each.page, *each.also)
    }
    folders = (DOCS / name for name in ("tutorials", "guides", "operate"))
    pages = [str(page.relative_to(DOCS)) for folder in folders for page in folder.iterdir()]
    assert {each for each in pages if read_blocks(each, "sh")} == tested


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
@pytest.mark.parametrize("page", WITH_CLUSTER, ids=str)
def test_the_commands_for_a_cluster_work(
    page: PageRun, cluster: FakeKubernetes, kubeflow: FakeKubeflow, checkout: Path, store: Store
) -> None:
    if shutil.which("kubectl") is None:
        skip_missing("kubectl")
    addresses = {"s3://bucket/project": store.uri, "https://kubeflow.example.com/pipeline": kubeflow.url}
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    page.check(checkout, addresses, KUBECONFIG=str(cluster.kubeconfig), **aws)
    if (checkout / "rendered.yaml").exists():
        secrets = {name for plural, place, name in cluster.objects if (plural, place) == ("secrets", "gumshoe")}
        assert secrets == {"gumshoe-models", "gumshoe-s3"}
        assert [each.display_name for each in kubeflow.experiments] == ["gumshoe"]
