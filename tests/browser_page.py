"""A page in a real browser, with what the browser says about it."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS: dict[int, Literal["light", "dark"] | None] = {1280: "light", 768: None, 390: "dark"}
"""Width of a laptop, a tablet and a phone, in pixels, and the color scheme in which axe-core looks at it."""


@dataclass
class OpenPage:
    """An open page, with the errors and requests of the browser."""

    page: "Page"
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: "Browser", address: str, width: int = 1400, **options: Any) -> Self:
        """Open a page in a window of a width in pixels; `options` are those of Playwright's `new_page`."""
        found = cls(browser.new_page(viewport={"width": width, "height": 1000}, **options))
        found.page.on("console", lambda message: found.faults.append(message.text))
        found.page.on("pageerror", lambda error: found.faults.append(str(error)))
        found.page.on("dialog", lambda dialog: found.faults.append(dialog.message))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(address)
        return found

    def wait_for(self, condition: str) -> None:
        """Return as soon as an expression in JavaScript is true.

        The pages' Content-Security-Policy forbids what Playwright's `wait_for_function` does from its second try on.
        """
        wait_until(lambda: self.page.evaluate(condition))

    def close(self) -> None:
        """Close the page, and check that it made no error and no request other than for itself."""
        address = self.page.url.partition("#")[0]
        self.page.close()
        assert self.faults == []
        assert {each.partition("#")[0] for each in self.requests} == {address}

    def is_in_view(self, selector: str) -> bool:
        """Return True if the top of an element is in the window."""
        top = self.page.locator(selector).evaluate("element => element.getBoundingClientRect().top")
        return bool(0 <= top < 1000)

    def fits(self) -> bool:
        """Return True if the page is no wider than its window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def run_axe(page: "Page") -> list[str]:
    """Return what axe-core finds on a page as it is shown now."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    result = page.evaluate("axe.run()")
    assert len(result["passes"]) > 10
    return [f"{each['id']}: {node['html']}" for each in result["violations"] for node in each["nodes"]]


def find_violations(browser: "Browser", address: str) -> list[str]:
    """Return what axe-core finds on a page with all details open, on a laptop and, dark, on a phone.

    The page must fit the window at each of `WIDTHS`.
    """
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    opened = OpenPage.open(browser, address)
    opened.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    opened.page.evaluate(axe)
    found = []
    for width, scheme in WIDTHS.items():
        opened.page.set_viewport_size({"width": width, "height": 1000})
        assert opened.fits(), width
        if scheme is None:
            continue
        opened.page.emulate_media(color_scheme=scheme)
        result = opened.page.evaluate("axe.run()")
        assert len(result["passes"]) > 10
        violations = [(each["id"], node["html"]) for each in result["violations"] for node in each["nodes"]]
        found += [f"{width} {scheme}: {rule}: {html}" for rule, html in violations]
    opened.close()
    return found
