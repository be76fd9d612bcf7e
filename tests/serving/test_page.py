"""The page, in a real browser: a question, its steps as they come, the answer and its sources."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from tests.inference.fake_vllm import FakeVLLM, held, stall, status
from tests.serving.agent_server import ANN, BOB, DAY, Place, Running, add_key, started
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.ci


def expect(what: Any) -> Any:
    """Return Playwright's expectation of a page, or of a part of one."""
    from playwright.sync_api import expect as playwrights

    return playwrights(what)


@pytest.fixture(scope="module")
def walled(place: Place, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that asks who is there, and takes feedback."""
    directory = tmp_path_factory.mktemp("page")
    key = add_key(directory / "keys", "ann", [ANN])
    keeping = ["--store", str(directory / "store"), "--set", "keeping.feedback=true", "--set", "keeping.every=0.2"]
    policy = f"vllm:{shared_model.address}#adapter"
    with started(place, policy, directory / "log", "--keys", str(directory / "keys"), *keeping, key=key) as running:
        yield running


@pytest.fixture
def page(browser: "Browser", server: Running) -> "Iterator[Page]":
    """The page of an open server, with nothing wrong in it and nothing asked of anybody else."""
    yield from opened(browser, server.url)


def opened(browser: "Browser", url: str, *expected: str) -> "Iterator[Page]":
    """`expected`: parts of what the browser may complain of."""
    faults: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else faults.append(asked.url))
    page.goto(url)
    yield page
    context.close()
    assert [each for each in faults if not any(part in each for part in expected)] == []


def ask(page: "Page", question: str = "What is in 7?") -> None:
    page.get_by_label("What do you want to know?").fill(question)
    page.get_by_label("Whose mail?").fill(ANN)
    page.get_by_label("As of which day?").fill(DAY)
    page.get_by_role("button", name="Ask", exact=True).click()


def test_a_question_is_answered_with_steps_and_sources(page: "Page") -> None:
    ask(page)
    expect(page.locator("#answer")).to_have_text("Body of message 7")
    expect(page.get_by_role("heading", name="Answer")).to_be_focused()
    expect(page.locator("#steps > li")).to_have_count(3)
    assert page.locator("#steps > li code").first.inner_text() == 'search_inbox(keywords=["body","7"])'
    page.get_by_text("What came back").first.click()
    expect(page.locator("#steps pre").first).to_contain_text("id: <7@example.com>")
    expect(page.locator("#sources li")).to_have_text([f"2001-05-08 {ANN}: Subject 7 <7@example.com>"])
    expect(page.locator("#about")).to_contain_text("3 turns")
    expect(page.get_by_role("status")).to_have_text("Done.")


def test_steps_are_seen_as_they_are_taken_and_can_be_stopped(page: "Page", model: FakeVLLM, server: Running) -> None:
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


def test_what_goes_wrong_is_told_and_another_question_can_be_asked(
    browser: "Browser", server: Running, model: FakeVLLM
) -> None:
    for page in opened(browser, server.url, "502"):
        model.inject(status(400), times=None)
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("[serving.model-failed]")
        model.heal()
        ask(page, "Say:I would rather not.")
        expect(page.locator("#answer")).to_contain_text(": no call")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_what_mail_says_is_text_and_nothing_else(page: "Page") -> None:
    mail = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
    call = '{"name": "return_final_answer", "arguments": {"answer": "%s", "message_ids": []}}'
    ask(page, f"Call:{call % mail.replace(chr(34), '')}")
    expect(page.locator("#answer")).to_have_text(mail)
    assert page.title() == "Gumshoe"
    assert page.locator("main img, main script").count() == 0


def test_who_has_a_key_is_asked_for_it_once_and_sees_the_inboxes_that_are_theirs(
    browser: "Browser", walled: Running
) -> None:
    for page in opened(browser, walled.url, "401", "403"):
        page.get_by_label("Key").fill("gum_wrong")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("alert")).to_have_text("This key is not known.")
        page.get_by_label("Key").fill(str(walled.key))
        page.keyboard.press("Enter")
        expect(page.get_by_label("Whose mail?")).to_have_value(ANN)
        page.reload()
        expect(page.get_by_label("Whose mail?")).to_have_value(ANN)
        page.get_by_label("What do you want to know?").fill("What is in 7?")
        page.get_by_label("Whose mail?").fill(BOB)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("[serving.inbox-forbidden]")


def test_what_is_said_of_an_answer_is_kept(browser: "Browser", walled: Running, tmp_path: Path) -> None:
    for page in opened(browser, walled.url, "401"):
        page.get_by_label("Key").fill(str(walled.key))
        page.keyboard.press("Enter")
        ask(page)
        page.get_by_role("button", name="Yes").click()
        expect(page.get_by_role("status")).to_have_text("Thank you.")
    store = Store(str(walled.log.parent / "store"))
    wait_until(lambda: len(store.list("feedback")) == 1)
    store.fetch("feedback/latest", tmp_path / "kept")
    assert '"answer": "Body of message 7"' in (tmp_path / "kept" / "scenarios.jsonl").read_text()


def test_it_is_used_with_the_keyboard_alone_and_fits_a_telephone(browser: "Browser", server: Running) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640})
    page = context.new_page()
    page.goto(server.url)
    expect(page.get_by_label("What do you want to know?")).to_be_focused()
    page.keyboard.type("What is in 7?")
    page.keyboard.press("Tab")
    page.keyboard.type(ANN)
    page.get_by_label("As of which day?").fill(DAY)
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("Body of message 7")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fields = "[...document.querySelectorAll('input, textarea, button')]"
    assert page.evaluate(f"{fields}.every(each => each.labels?.length || each.textContent)"), "each has a name"
    context.close()
