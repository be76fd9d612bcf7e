"""Test the page in a real browser: question, steps, answer, sources and feedback."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from tests.inference.fake_vllm import FakeVLLM, held, stall, status
from tests.serving.agent_server import ANN, BOB, DAY, AgentProcess, ServerFiles, add_key, start_server
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.ci


def expect(what: Any) -> Any:
    """Return Playwright's assertions for a page or a locator."""
    from playwright.sync_api import expect as playwrights

    return playwrights(what)


@pytest.fixture(scope="module")
def protected_server(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server that requires a key and accepts feedback."""
    directory = tmp_path_factory.mktemp("page")
    key = add_key(directory / "keys", "ann", [ANN])
    keeping = ["--store", str(directory / "store"), "--set", "keeping.feedback=true", "--set", "keeping.every=0.2"]
    policy = f"vllm:{shared_model.address}#adapter"
    with start_server(
        place, policy, directory / "log", "--keys", str(directory / "keys"), *keeping, key=key
    ) as running:
        yield running


@pytest.fixture
def page(browser: "Browser", server: AgentProcess) -> "Iterator[Page]":
    """Open the page of an open server. Fails on console errors and on requests to other servers."""
    yield from open_page(browser, server.url)


def open_page(browser: "Browser", url: str, *expected: str) -> "Iterator[Page]":
    """Open a page. `expected` are parts of console errors that are allowed."""
    faults: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith((url, "data:")) else faults.append(sent.url))
    page.goto(url)
    yield page
    context.close()
    assert [each for each in faults if not any(part in each for part in expected)] == []


def ask(page: "Page", question: str = "What is in 7?") -> None:
    page.get_by_label("What do you want to know?").fill(question)
    page.get_by_label("Inbox").fill(ANN)
    page.get_by_label("As of").fill(DAY)
    page.get_by_role("button", name="Ask", exact=True).click()


def test_a_question_is_answered_with_steps_and_sources(page: "Page") -> None:
    ask(page)
    expect(page.locator("#answer")).to_have_text("Body of message 7")
    expect(page.get_by_role("heading", name="Answer")).to_be_focused()
    expect(page.locator("#steps > li")).to_have_count(3)
    assert page.locator("#steps > li code").first.inner_text() == 'search_inbox(keywords=["body","7"])'
    page.get_by_text("Result").first.click()
    expect(page.locator("#steps pre").first).to_contain_text("id: <7@example.com>")
    expect(page.locator("#sources li")).to_have_text([f"2001-05-08 {ANN}: Subject 7 <7@example.com>"])
    expect(page.locator("#about")).to_contain_text("3 turns")
    expect(page.get_by_role("status")).to_have_text("Done.")


def test_steps_are_streamed_and_can_be_stopped(page: "Page", model: FakeVLLM, server: AgentProcess) -> None:
    go_on = threading.Event()
    model.inject(held(go_on))
    model.inject(stall, times=None)
    ask(page)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator("#steps > li")).to_have_count(0)
    go_on.set()
    expect(page.locator("#steps > li")).to_have_count(1)
    expect(page.locator("#answer-part")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    wait_until(lambda: server.metric("gumshoe_running") == 0)


def test_an_error_is_shown_and_another_question_can_be_asked(
    browser: "Browser", server: AgentProcess, model: FakeVLLM
) -> None:
    for page in open_page(browser, server.url, "502"):
        model.inject(status(400), times=None)
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("[serving.model-failed]")
        model.heal()
        ask(page, "Say:I would rather not.")
        expect(page.locator("#answer")).to_contain_text(": no call")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_html_in_mail_is_shown_as_text(page: "Page") -> None:
    mail = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
    call = '{"name": "return_final_answer", "arguments": {"answer": "%s", "message_ids": []}}'
    ask(page, f"Call:{call % mail.replace(chr(34), '')}")
    expect(page.locator("#answer")).to_have_text(mail)
    assert page.title() == "Gumshoe"
    assert page.locator("main img, main script").count() == 0


def test_a_key_is_asked_for_once_and_its_inbox_is_filled_in(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401", "403"):
        page.get_by_label("Key").fill("gum_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("key")
        page.get_by_label("Key").fill(str(protected_server.key))
        page.keyboard.press("Enter")
        expect(page.get_by_label("Inbox")).to_have_value(ANN)
        page.reload()
        expect(page.get_by_label("Inbox")).to_have_value(ANN)
        page.get_by_label("What do you want to know?").fill("What is in 7?")
        page.get_by_label("Inbox").fill(BOB)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("[serving.inbox-forbidden]")


def test_feedback_is_recorded(browser: "Browser", protected_server: AgentProcess, tmp_path: Path) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        page.get_by_label("Key").fill(str(protected_server.key))
        page.keyboard.press("Enter")
        ask(page)
        page.get_by_role("button", name="Yes").click()
        expect(page.get_by_role("status")).to_have_text("Thank you.")
    store = Store(str(protected_server.log.parent / "store"))
    wait_until(lambda: len(store.list("feedback")) == 1)
    store.fetch("feedback/latest", tmp_path / "kept")
    assert '"answer": "Body of message 7"' in (tmp_path / "kept" / "scenarios.jsonl").read_text()


def test_the_page_works_with_the_keyboard_and_on_a_phone(browser: "Browser", server: AgentProcess) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640})
    page = context.new_page()
    page.goto(server.url)
    expect(page.get_by_label("What do you want to know?")).to_be_focused()
    page.keyboard.type("What is in 7?")
    page.keyboard.press("Tab")
    page.keyboard.type(ANN)
    page.get_by_label("As of").fill(DAY)
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("Body of message 7")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fields = "[...document.querySelectorAll('input, textarea, button')]"
    assert page.evaluate(f"{fields}.every(each => each.labels?.length || each.textContent)"), (
        "every control has a label"
    )
    context.close()
