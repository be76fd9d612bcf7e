"""Render a self-contained HTML page, which any browser opens without network access.

Data is embedded as JSON that cannot be parsed as HTML, and the page's Content-Security-Policy allows no other style and
script than its own.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

_PAGES = "gumshoe.pages"
_INERT = str.maketrans({each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"})


def render_page(
    package: str, name: str, values: Mapping[str, object], library: str | None = None, *, has_pictures: bool = False
) -> Iterator[str]:
    """Yield a page in parts, because it may be large.

    Args:
        package: package with the directory `page`, which contains NAME.html.jinja (it extends `base.html.jinja`),
            NAME.css and NAME.js.
        values: variables of the template.
        library: directory in `pages/vendor` of a third-party library to embed.
        has_pictures: the page has pictures, whose data are in it.
    """
    vendored = _read_library(library) if library else {}
    style = "".join([*_with_suffix(vendored, ".css"), _read(_PAGES, "base.css"), _read(package, f"page/{name}.css")])
    script = "\n".join([*_with_suffix(vendored, ".js"), _read(package, f"page/{name}.js")])
    yield from (
        _environment(package)
        .get_template(f"{name}.html.jinja")
        .generate(
            **values,
            version=version("gumshoe-agents"),
            content_security_policy=_content_security_policy(style, script, has_pictures=has_pictures),
            style=Markup(style),  # noqa: S704 - our own
            script=Markup(script),  # noqa: S704 - our own
        )
    )


def embed_json(value: Mapping[str, Any] | Sequence[Any]) -> Markup:
    """Return JSON that cannot close its script element or be parsed as markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_INERT)
    return Markup(text)  # noqa: S704 - nothing in it is markup


@cache
def _environment(package: str) -> jinja2.Environment:
    loaders = [jinja2.PackageLoader(package, "page"), jinja2.PackageLoader(_PAGES, "")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["percent"] = "{:.1%}".format
    return environment


def _read(package: str, path: str) -> str:
    return files(package).joinpath(path).read_text(encoding="utf-8")


def _read_library(name: str) -> dict[str, str]:
    """Return the texts of a third-party library, by file name. Its license is part of its script."""
    directory = files(_PAGES).joinpath("vendor", name)
    found = {each.name: each.read_text(encoding="utf-8") for each in directory.iterdir()}
    return {"LICENSE.js": f"/*\n{found['LICENSE']}*/", **found}


def _with_suffix(texts: Mapping[str, str], suffix: str) -> list[str]:
    return [text for name, text in texts.items() if name.endswith(suffix)]


def _content_security_policy(style: str, script: str, *, has_pictures: bool) -> str:
    """Return the page's Content-Security-Policy: only its own style and script, by their digests, and own pictures."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    pictures = "img-src data:; " if has_pictures else ""
    return f"default-src 'none'; {pictures}style-src {digest(style)}; script-src {digest(script)}; base-uri 'none'"
