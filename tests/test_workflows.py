"""Test the supply chain: what the workflows run, how a release is signed, and what the images are based on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKS = sorted(each.name for each in ROOT.glob("requirements*.txt"))
RELEASED = sorted({each.parent.name for each in ROOT.glob("images/*/Dockerfile")} - {"agent-layer"})
"""The images of a release. Users build the layer of their agent on one of them."""


def read(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text()))


def uses(job: dict[str, Any]) -> list[str]:
    """Return the actions of a job, without their versions."""
    return [each["uses"].partition("@")[0] for each in job["steps"] if "uses" in each]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_named_by_version(path: Path) -> None:
    found = re.findall(r"^\s*(?:- )?uses: (\S+)(.*)$", path.read_text(), re.M)
    assert found
    for action, comment in found:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.match(r" # v\d+\.\d+\.\d+", comment), f"{action}: its version, for readers and for updates"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_few_permissions_and_no_foreign_input(path: Path) -> None:
    workflow, text = read(path.stem), path.read_text()
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        assert "packages" not in job.get("permissions", {}) or path.stem == "release"
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "a value could be a command; use env"
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_every_image_of_a_release_is_signed_with_sbom_and_provenance() -> None:
    job = read("release")["jobs"]["images"]
    built = set(job["strategy"]["matrix"]["image"])
    assert built == {*RELEASED, "agent-documents"}
    assert job["permissions"] == {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    }
    steps = uses(job)
    assert [each for each in steps if "attest" in each] == ["actions/attest-sbom", "actions/attest-build-provenance"]
    assert steps.index("anchore/sbom-action") < steps.index("actions/attest-sbom")
    assert "sigstore/cosign-installer" in steps
    (signing,) = [each["run"] for each in job["steps"] if "cosign sign" in each.get("run", "")]
    assert '"$NAME@$DIGEST"' in signing, "by digest: a tag may be moved"
    for step in job["steps"]:
        given = step.get("with", {})
        if "subject-digest" in given:
            assert given["subject-digest"] == "${{ steps.push.outputs.digest }}"
            assert given["push-to-registry"] is True
    (sbom,) = [each["with"] for each in job["steps"] if each.get("uses", "").startswith("anchore/")]
    assert sbom["image"].endswith("@${{ steps.push.outputs.digest }}"), "of the image that was pushed"
    assert (sbom["format"], sbom["output-file"]) == ("cyclonedx-json", "sbom.cdx.json")


def test_the_chart_of_a_release_is_signed_with_provenance() -> None:
    job = read("release")["jobs"]["chart"]
    assert {"actions/attest-build-provenance", "sigstore/cosign-installer"} <= set(uses(job))
    assert any('cosign sign --yes "$REGISTRY/gumshoe-agent@$DIGEST"' in each.get("run", "") for each in job["steps"])


def test_all_pinned_packages_are_audited_every_night() -> None:
    job = read("nightly")["jobs"]["audit"]
    assert [each["run"] for each in job["steps"] if "run" in each] == ["make audit"]
    (scan,) = [each["with"]["scan-args"] for each in job["steps"] if "osv-scanner" in each.get("uses", "")]
    assert sorted(each.removeprefix("--lockfile=") for each in scan.split()) == LOCKS
    makefile = (ROOT / "Makefile").read_text()
    assert "AUDITED = $(wildcard requirements*.txt)" in makefile
    assert re.search(r"pip-audit==\d+\.\d+\.\d+", makefile)


@pytest.mark.parametrize("image", RELEASED)
def test_base_images_are_pinned_by_digest(image: str) -> None:
    text = (ROOT / "images" / image / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.+)$", text, re.M)
    assert re.fullmatch(r"docker\.io/[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base), "the tag is for readers and updates"


def test_updates_of_digests_are_proposed() -> None:
    settings = json.loads((ROOT / ".github" / "renovate.json").read_text())
    assert set(settings["enabledManagers"]) == {"dockerfile", "github-actions"}
    assert {"docker:pinDigests", "helpers:pinGitHubActionDigests"} <= set(settings["extends"])


REFUSALS = {"components/gumshoe/inference/vllm_server.py", "charts/agent/templates/_model.tpl"}
"""Files that refuse the argument, and so name it."""


def test_code_of_models_and_datasets_is_never_run() -> None:
    """The setting `trust_remote_code` would run code from their repositories."""
    places = ("components", "pipelines", "charts", "images", "manifests", "examples")
    kinds = {".py", ".yaml", ".tpl", ".sh", ".json"}
    found = []
    for path in (file for place in places for file in (ROOT / place).rglob("*") if file.suffix in kinds):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        if re.search(r"trust_remote_code[\"']?\s*[:=]\s*(?!False)", text) or (
            re.search(r"--trust[-_]remote[-_]code", text) and name not in REFUSALS
        ):
            found.append(name)
    assert found == []
