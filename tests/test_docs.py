"""The documentation: its links are valid, the site builds and is complete, and the README stays short and correct."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from docs.generate.site import adapt_links

from tests.doc_pages import DOCS, ROOT, run_commands
from tests.test_help_pages import load

PAGES = [
    *DOCS.rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
]


@pytest.mark.parametrize("page", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in sorted(PAGES)])
def test_links_are_valid(page: Path) -> None:
    """Checks links to files, and to headings and anchors in them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        place, _, heading = target.partition("#")
        found = (page.parent / place).resolve() if place else page
        assert found.exists(), target
        if heading:
            assert heading in _anchors(found), target


def test_files_named_in_the_architecture_exist() -> None:
    named = re.findall(
        r"`((?:tests|agent|artifacts|mail|rewards|training)/[\w./]+)`",
        (DOCS / "explain" / "architecture.md").read_text(),
    )
    places = {
        each: ROOT / each if each.startswith("tests/") else ROOT / "components" / "gumshoe" / each for each in named
    }
    assert len(places) >= 20
    assert [each for each, place in places.items() if not place.exists()] == []


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, as on GitHub, and its own."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    own = re.findall(r'<a id="([^"]+)">', text)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings} | {*own}


@pytest.mark.ci
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = run_commands(f"cd {ROOT} && mkdocs build --strict --site-dir {tmp_path / 'site'}", tmp_path)
    assert build.returncode == 0, build.stderr
    pages = [each.read_text() for each in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    loaded = [tag for page in pages for tag in re.findall(r"<(?:link|script|img|iframe|source|object)\b[^>]*>", page)]
    assert [tag for tag in loaded if re.search(r"(?:src|href|data)=[\"']?(?:https?:)?//", tag)] == []
    assert not any("mermaid" in page for page in pages), "the theme would load mermaid from elsewhere"
    styles = [each.read_text() for each in (tmp_path / "site").rglob("*.css")]
    assert not any(re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", each) for each in styles)
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
    assert (tmp_path / "site" / "reference" / "schemas" / "train.schema.json").is_file()


@pytest.mark.parametrize(
    ("link", "source", "target", "adapted"),
    [
        ("[a](sizing.md#one-node)", "docs/operate/install.md", "operate/install.md", "[a](sizing.md#one-node)"),
        ("[a](../../CHANGELOG.md)", "docs/operate/upgrade.md", "operate/upgrade.md", "[a](../changelog.md)"),
        ("[a](docs/glossary.md)", "CONTRIBUTING.md", "contributing.md", "[a](glossary.md)"),
        ("[a](RUNBOOKS.md#b)", "charts/agent/README.md", "operate/chart.md", "[a](runbooks-serving.md#b)"),
        ("[a](../README.md#install)", "docs/glossary.md", "glossary.md", "[a](index.md)"),
        ("[a](values.yaml)", "charts/agent/README.md", "operate/chart.md", "a"),
        ("[a](https://example.com/b.md)", "docs/index.md", "index.md", "[a](https://example.com/b.md)"),
        ("```\n[a](../b.md)\n```", "docs/index.md", "index.md", "```\n[a](../b.md)\n```"),
    ],
)
def test_links_are_adapted_to_the_site(link: str, source: str, target: str, adapted: str) -> None:
    assert adapt_links(link, source, target, "") == adapted


def test_links_to_other_files_lead_to_the_repository_if_its_address_is_known() -> None:
    found = adapt_links(
        "[a](values.yaml)", "charts/agent/README.md", "operate/chart.md", "https://example.com/gumshoe/"
    )
    assert found == "[a](https://example.com/gumshoe/blob/main/charts/agent/values.yaml)"


README = (ROOT / "README.md").read_text()
COMMANDS_OF_README = [
    re.split(r"\s#\s", line)[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    for line in block.replace("\\\n", " ").splitlines()
]


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) <= 200


def test_the_pictures_of_the_readme_exist() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert [each for each in named if "://" not in each and not (ROOT / each).is_file()] == []


@pytest.mark.parametrize("line", [each for each in COMMANDS_OF_README if each.startswith("make ")])
def test_make_targets_in_the_readme_exist(line: str) -> None:
    assert re.search(rf"^{line.split()[1]}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("line", [each for each in COMMANDS_OF_README if each.startswith("gumshoe ")])
def test_commands_in_the_readme_are_valid_and_explained_in_the_documentation(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only parses them: the tutorials and guides that explain the same commands are run by `test_doc_commands`."""
    monkeypatch.chdir(tmp_path)
    for file in ("parameters.yaml", "values.yaml"):
        Path(file).touch()
    _, *words = shlex.split(line)
    path = parse_command(words)
    pages = (each.read_text() for folder in ("tutorials", "guides") for each in (DOCS / folder).iterdir())
    assert any(f"gumshoe {path}" in page for page in pages)


def parse_command(words: list[str]) -> str:
    """Parse the arguments of `gumshoe`, and return the name of the command without its arguments."""
    command, name = load(words[0]), words.pop(0)
    while words and (inner := getattr(command, "commands", {}).get(words[0])):
        command, name = inner, f"{name} {words.pop(0)}"
    command.make_context(name, words)
    return name
