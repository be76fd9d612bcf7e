"""Publish the chart in an OCI registry with the program `helm`.

Run `python -m charts.publish charts/agent oci://ghcr.io/OWNER/charts --tag v0.1.0` after `helm registry login`. A
version is published once: the registry must not have it yet. Prints the digest and writes it to the file GITHUB_OUTPUT.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def read_version(chart: Path, tag: str) -> str:
    """Return the version that a Git tag releases.

    Exits with a message if a file of the checkout has another version.
    """
    version, root = tag.removeprefix("v"), chart.resolve().parents[1]
    found = {
        f"{chart / 'Chart.yaml'}: version": _search(chart / "Chart.yaml", r"^version: (\S+)$"),
        f"{chart / 'Chart.yaml'}: appVersion": _search(chart / "Chart.yaml", r"^appVersion: (\S+)$"),
        "pyproject.toml": _search(root / "pyproject.toml", r'^version = "(.+)"$'),
        "CITATION.cff": _search(root / "CITATION.cff", r"^version: (\S+)$"),
        "CHANGELOG.md": _search(root / "CHANGELOG.md", r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$"),
    }
    others = [f"{place} is {each}" for place, each in found.items() if each != version]
    if others:
        sys.exit(f"tag {tag}: {'; '.join(others)}; set all of them to {version}, then tag again")
    return version


def publish(chart: Path, reference: str, version: str, options: list[str]) -> str:
    """Package the chart, push it as `oci://HOST/PATH/NAME`, and return its digest, `sha256:...`.

    `options` are passed to helm's network commands. Exits with a message if the registry has this version already, or
    helm fails.
    """
    existing = _helm("show", "chart", reference, "--version", version, *options)
    if existing.returncode == 0:
        sys.exit(f"{reference} has version {version} already; publish a new version")
    # GitHub's registry denies access to a chart that does not exist yet.
    if not re.search(rf":{re.escape(version)}: not found|\b403\b|denied", existing.stderr):
        sys.exit(f"cannot read {reference}: {existing.stderr.strip()}; log in with helm registry login")
    with tempfile.TemporaryDirectory() as directory:
        _check(_helm("package", str(chart), "--destination", directory))
        (package,) = Path(directory).glob("*.tgz")
        pushed = _check(_helm("push", str(package), reference.rpartition("/")[0], *options))
    found = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", pushed, re.M)
    if found is None:
        sys.exit(f"helm printed no digest: {pushed.strip()}; look for the chart in the registry")
    return found[1]


def _search(file: Path, pattern: str) -> str | None:
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.M)
    return found and found[1]


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
    except FileNotFoundError:
        sys.exit("helm is not installed; install Helm 3.18 or later")


def _check(done: subprocess.CompletedProcess[str]) -> str:
    """Return what helm printed, on both streams. Exits with its message if it failed."""
    if done.returncode != 0:
        sys.exit(f"helm {done.args[1]} failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def main(arguments: list[str] | None = None) -> None:
    """Publish the chart and print its reference by digest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", type=Path, help="directory of the chart")
    parser.add_argument("registry", help="oci://HOST/PATH; the chart's name is appended")
    parser.add_argument("--tag", required=True, help="Git tag of the release, e.g. v0.1.0")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    options = parser.parse_args(arguments)
    version = read_version(options.chart, options.tag)
    more = ["--plain-http"] if options.plain_http else []
    name = _search(options.chart / "Chart.yaml", r"^name: (\S+)$")
    reference = f"{options.registry.rstrip('/')}/{name}"
    digest = publish(options.chart, reference, version, more)
    sys.stdout.write(f"{reference}@{digest}\n")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"digest={digest}\n")


if __name__ == "__main__":
    main()
