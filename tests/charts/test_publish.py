"""Test how the chart is published in a registry, with the real helm."""

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from charts.publish import main

from tests.charts.fake_registry import FakeRegistry, run_registry
from tests.charts.test_agent_chart import CHART, ROOT
from tests.cluster.helm_programs import put_first_on_path, real_helm, write_program

__all__ = ["real_helm"]

VERSION: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
NAME = "charts/gumshoe-agent"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the directory of a checkout that can be released."""
    shutil.copytree(CHART, tmp_path / "charts" / "agent")
    for name in ("pyproject.toml", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2026-12-01)\n")
    return tmp_path


@pytest.fixture
def registry(real_helm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    put_first_on_path(monkeypatch, real_helm)
    for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "helm"))
    with run_registry() as running:
        yield running


def publish(checkout: Path, registry: FakeRegistry, tag: str = f"v{VERSION}") -> None:
    main([str(checkout / "charts" / "agent"), f"oci://{registry.host}/charts", "--tag", tag, "--plain-http"])


def test_the_chart_is_pushed_and_can_be_installed_by_its_digest(
    registry: FakeRegistry,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    publish(checkout, registry)
    reference = capsys.readouterr().out.strip()
    assert re.fullmatch(rf"oci://{registry.host}/{NAME}@sha256:[0-9a-f]{{64}}", reference)
    digest = reference.partition("@")[2]
    assert (tmp_path / "output").read_text() == f"digest={digest}\n"
    assert registry.find_manifest(NAME, VERSION) == registry.find_manifest(NAME, digest)
    pull = ["helm", "pull", reference, "--plain-http", "--destination", str(tmp_path)]
    subprocess.run(pull, check=True, capture_output=True)
    (package,) = tmp_path.glob("gumshoe-agent*.tgz")
    with tarfile.open(package) as archive:
        names = archive.getnames()
    assert "gumshoe-agent/values.schema.json" in names
    assert not [each for each in names if each.startswith("gumshoe-agent/ci")]


def test_a_version_is_published_once(registry: FakeRegistry, checkout: Path) -> None:
    publish(checkout, registry)
    before = dict(registry.manifests)
    with pytest.raises(SystemExit, match=f"{re.escape(VERSION)} already"):
        publish(checkout, registry)
    assert registry.manifests == before


def test_a_registry_that_refuses_access_is_told(registry: FakeRegistry, checkout: Path) -> None:
    registry.password = "Basic YTpi"
    with pytest.raises(SystemExit, match=r"cannot read .*helm registry login"):
        publish(checkout, registry)
    assert registry.manifests == {}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("charts/agent/Chart.yaml", f"\nversion: {VERSION}", "\nversion: 9.9.9"),
        ("charts/agent/Chart.yaml", f"appVersion: {VERSION}", "appVersion: 9.9.9"),
        ("pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"'),
        ("CITATION.cff", f"version: {VERSION}", "version: 9.9.9"),
        ("CHANGELOG.md", f"{VERSION} (2026-12-01)", f"{VERSION} (unreleased)"),
    ],
)
def test_all_versions_must_agree_with_the_tag(
    registry: FakeRegistry, checkout: Path, file: str, old: str, new: str
) -> None:
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new, 1))
    with pytest.raises(SystemExit, match=re.escape(Path(file).name)):
        publish(checkout, registry)
    assert registry.manifests == {}


def test_another_tag_is_refused(registry: FakeRegistry, checkout: Path) -> None:
    with pytest.raises(SystemExit, match=r"pyproject\.toml"):
        publish(checkout, registry, tag="v9.9.9")
    assert registry.manifests == {}


def test_a_failing_helm_is_told(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f'[ "$1" = show ] && echo "chart:{VERSION}: not found" >&2 || echo "no space left" >&2; exit 1'
    put_first_on_path(monkeypatch, write_program(tmp_path / "bin", script))
    with pytest.raises(SystemExit, match="no space left"):
        publish(checkout, FakeRegistry(host="127.0.0.1:9"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SystemExit, match="not installed"):
        publish(checkout, FakeRegistry(host="127.0.0.1:9"))


def test_the_release_workflow_publishes_this_chart() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}, "jobs that publish have more"
    assert workflow["jobs"]["chart"]["permissions"]["packages"] == "write"
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as True
    commands = [step.get("run", "") for step in workflow["jobs"]["chart"]["steps"]]
    (command,) = [each for each in commands if "charts.publish" in each]
    words = command.split()
    assert (ROOT / words[words.index("charts.publish") + 1] / "Chart.yaml").is_file()
    assert words[-2:] == ["--tag", '"$GITHUB_REF_NAME"']
