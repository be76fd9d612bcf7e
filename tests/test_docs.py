"""The documentation: its links are valid, the site builds and is complete, and the README stays short and correct."""

import itertools
import re
import shlex
from collections.abc import Iterator
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


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) <= 200


def test_the_pictures_of_the_readme_exist() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert [each for each in named if "://" not in each and not (ROOT / each).is_file()] == []


def test_make_targets_in_the_readme_exist() -> None:
    targets = re.findall(r"^(\S+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"\bmake ([a-z-]+)", "".join(_blocks(README)))) <= set(targets)


@pytest.fixture
def place_of_a_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the variables that pages export, and create the files that they tell to save."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"GUMSHOE_STORE": "store", "GUMSHOE_INDEX": "index", "KFP_HOST": "https://kfp"}.items():
        monkeypatch.setenv(name, value)
    for file in ("parameters.yaml", "values.yaml"):
        Path(file).touch()


@pytest.mark.usefixtures("place_of_a_reader")
def test_commands_in_the_readme_are_explained_in_the_documentation() -> None:
    """The commands of tutorials and guides are run by `test_doc_commands`."""
    pages = [each.read_text() for folder in ("tutorials", "guides") for each in (DOCS / folder).iterdir()]
    names = {_parse_command(words) for words in _find_commands(README)}
    assert names
    assert {each for each in names if not any(f"gumshoe {each}" in page for page in pages)} == set()


@pytest.mark.usefixtures("place_of_a_reader")
@pytest.mark.parametrize("page", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in sorted(PAGES)])
def test_commands_in_a_page_are_valid(page: Path) -> None:
    """Only parses them, also those for a cluster, a GPU or a paid model."""
    for words in _find_commands(page.read_text()):
        _parse_command(words)


def _blocks(text: str) -> list[str]:
    return re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```", text, re.M | re.S)


def _find_commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `gumshoe` command, except incomplete ones and those with variables as arguments."""
    for block in _blocks(text):
        without_files = re.sub(r"<<'?(\w+)'?\n.*?^ *\1$", "", block, flags=re.M | re.S)
        for line in without_files.replace("\\\n", " ").splitlines():
            if found := re.search(r"(?:^|\$\()\s*gumshoe ([a-z].*)", line):
                lexer = shlex.shlex(re.split(r"\s#\s", found[1])[0], posix=True, punctuation_chars="|&;<>()")
                lexer.whitespace_split, lexer.commenters = True, ""
                words = list(itertools.takewhile(lambda word: not re.fullmatch(r"[|&;<>()]+", word), lexer))
                if "…" not in words and not any(re.fullmatch(r"\$[A-Z]+", each) for each in words):
                    yield words


def _parse_command(words: list[str]) -> str:
    """Parse the arguments of `gumshoe`, and return the name of the command without its arguments."""
    name, *rest = words
    command = load(name)
    while rest and (inner := getattr(command, "commands", {}).get(rest[0])):
        command, name = inner, f"{name} {rest.pop(0)}"
    command.make_context(name, rest)
    return name
