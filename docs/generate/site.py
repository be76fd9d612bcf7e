"""Hook of MkDocs: add pages from outside docs/ to the site, and adapt links that lead outside docs/."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ADDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "charts/agent/README.md": "operate/chart.md",
    "charts/agent/RUNBOOKS.md": "operate/runbooks-serving.md",
    "manifests/README.md": "operate/manifests.md",
    "manifests/components/monitoring/RUNBOOKS.md": "operate/runbooks-training.md",
}
"""Files outside docs/ that are pages of the site: path in the repository, and path on the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, target in ADDED.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Adapt the links of a page to the site."""
    target = page.file.src_uri
    source = next((path for path, place in ADDED.items() if place == target), f"docs/{target}")
    return adapt_links(markdown, source, target, config.repo_url or "")


def adapt_links(markdown: str, source: str, target: str, repository: str) -> str:
    """Return Markdown whose relative links work on the site.

    `source` is the path of the page in the repository, and `target` its path on the site. Links to files that are not
    on the site lead to the repository, if its address is known; otherwise only their text remains.
    """

    def adapt(found: re.Match[str]) -> str:
        picture, text, link = found.groups()
        path, mark, heading = link.partition("#")
        if not path or re.match(r"\w+:", link):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file == "README.md":
            file, mark, heading = "docs/index.md", "", ""
        if file in ADDED or file.startswith("docs/"):
            place = ADDED.get(file, file.removeprefix("docs/"))
            return f"{picture}[{text}]({posixpath.relpath(place, posixpath.dirname(target) or '.')}{mark}{heading})"
        return f"[{text}]({repository.rstrip('/')}/blob/main/{file}{mark}{heading})" if repository else text

    parts = _BLOCK.split(markdown)  # every second one is a block of code
    return "".join(part if number % 2 else _LINK.sub(adapt, part) for number, part in enumerate(parts))
