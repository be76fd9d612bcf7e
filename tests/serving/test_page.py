"""Test the page in a real browser: question, answer, sources, steps, recent questions, feedback and errors."""

import json
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from tests.browser_page import WIDTHS, run_axe
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


def open_page(browser: "Browser", url: str, *expected: str, **options: Any) -> "Iterator[Page]":
    """Open a page. `expected` are parts of console errors that are allowed, `options` those of a browser context."""
    faults: list[str] = []
    context = browser.new_context(**options)
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


def sign_in(page: "Page", server: AgentProcess) -> None:
    page.get_by_label("Key").fill(str(server.key))
    page.keyboard.press("Enter")
    expect(page.get_by_label("What do you want to know?")).to_be_focused()


def test_a_question_is_answered_with_its_sources_and_then_the_steps(page: "Page") -> None:
    ask(page)
    expect(page.locator("#answer")).to_have_text("Body of message 7")
    expect(page.get_by_role("heading", name="Answer")).to_be_focused()
    expect(page.locator("#sources button")).to_have_text(["Subject 7"])
    expect(page.locator("#sources .meta")).to_have_text([f"{ANN}, 2001-05-08 · <7@example.com>"])
    expect(page.locator("#about")).to_contain_text("3 turns")
    expect(page.locator("#status")).to_have_text("Done.")
    expect(page.locator("#steps")).to_be_hidden()
    page.locator("#steps-part > summary").click()
    sentences = ["Searched for body, 7: 1 message", f"Read “Subject 7” from {ANN}", "Answered with 1 source"]
    expect(page.locator("#steps summary")).to_have_text(sentences)
    page.locator("#steps summary").first.click()
    expect(page.locator("#steps code").first).to_have_text('search_inbox(keywords=["body","7"])')
    expect(page.locator("#steps pre").first).to_contain_text("id: <7@example.com>")
    order = "[...document.querySelectorAll('#answer, #sources, #steps')].map(each => each.id)"
    assert page.evaluate(order) == ["answer", "sources", "steps"]


def test_a_source_opens_with_the_passage_marked(page: "Page") -> None:
    ask(page)
    source = page.get_by_role("button", name="Subject 7")
    source.click()
    dialog = page.get_by_role("dialog", name="Subject 7")
    expect(dialog.locator("mark")).to_have_text("Body of message 7")
    expect(dialog.locator("dl")).to_contain_text(BOB)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(source).to_be_focused()


def test_a_source_that_cannot_be_read_shows_the_problem(browser: "Browser", server: AgentProcess) -> None:
    for page in open_page(browser, server.url, "404"):
        ask(page)
        page.locator("#sources button").wait_for()
        page.route("**/source", lambda route: route.continue_(post_data=json.dumps({
            **route.request.post_data_json, "source_id": "<99@example.com>"})))  # fmt: skip
        page.get_by_role("button", name="Subject 7").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("serving.source-not-found")


def test_steps_are_streamed_and_can_be_stopped(page: "Page", model: FakeVLLM, server: AgentProcess) -> None:
    go_on = threading.Event()
    model.inject(held(go_on))
    model.inject(stall, times=None)
    ask(page)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator("#steps > li")).to_have_count(0)
    go_on.set()
    expect(page.locator("#steps > li")).to_have_count(1)
    expect(page.locator("#status")).to_have_text("Thinking …")
    expect(page.locator("#answer-part")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped.")
    wait_until(lambda: server.metric("gumshoe_running") == 0)


def test_an_error_is_shown_and_another_question_can_be_asked(
    browser: "Browser", server: AgentProcess, model: FakeVLLM
) -> None:
    for page in open_page(browser, server.url, "502"):
        model.inject(status(400), times=None)
        ask(page)
        expect(page.locator("#problem p").first).to_have_text("Model failed")
        expect(page.locator("#problem code")).to_have_text("serving.model-failed")
        model.heal()
        ask(page, "Say:I would rather not.")
        expect(page.locator("#answer")).to_contain_text(": no call")
        expect(page.locator("#problem")).to_be_hidden()


def test_html_in_mail_is_shown_as_text(page: "Page") -> None:
    mail = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
    call = '{"name": "return_final_answer", "arguments": {"answer": "%s", "message_ids": []}}'
    ask(page, f"Call:{call % mail.replace(chr(34), '')}")
    expect(page.locator("#answer")).to_have_text(mail)
    assert page.title() == "Gumshoe"
    assert page.locator("main img, main script").count() == 0


def test_a_key_is_asked_for_once_and_its_inbox_is_filled_in(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401", "403"):
        for broken in ("gum_wrong\u2026", "gum wr\u00fcng"):
            page.get_by_label("Key").fill(broken)
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator("#problem .problem-title")).to_have_text("This is not a key")
        page.get_by_label("Key").fill(" gum_wrong ")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#problem code")).to_have_text("serving.unknown-key")
        page.get_by_label("Key").fill(str(protected_server.key))
        page.keyboard.press("Enter")
        expect(page.get_by_label("Inbox")).to_have_value(ANN)
        page.reload()
        expect(page.get_by_label("Inbox")).to_have_value(ANN)
        page.get_by_label("What do you want to know?").fill("What is in 7?")
        page.get_by_label("Inbox").fill(BOB)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#problem code")).to_have_text("serving.inbox-forbidden")


def find_kept(server: AgentProcess, question: str, place: Path) -> Scenario:
    """Return what the server has published about a question, as soon as it has."""
    store = Store(str(server.log.parent / "store"))

    def find_it() -> list[Scenario]:
        fetched = [store.fetch(each.reference, place / each.version).directory for each in store.list("feedback")]
        found = (each for directory in fetched for each in load_scenarios(str(directory / "scenarios.jsonl")))
        return [each for each in found if each.question == question]

    wait_until(find_it)
    (kept,) = find_it()
    return kept


def test_a_key_that_has_expired_is_asked_for_again(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        sign_in(page, protected_server)
        page.evaluate("sessionStorage.setItem('gumshoe-key', 'gum_expired')")
        ask(page)
        expect(page.get_by_label("Key")).to_be_focused()
        expect(page.locator("#problem")).to_contain_text("Authentication failed")
        expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
        sign_in(page, protected_server)
        expect(page.get_by_label("What do you want to know?")).to_have_value("What is in 7?")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#answer")).to_have_text("Body of message 7")


def test_another_caller_sees_nothing_of_the_last_one(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        sign_in(page, protected_server)
        ask(page)
        expect(page.locator("#answer")).to_have_text("Body of message 7")
        page.evaluate("sessionStorage.setItem('gumshoe-key', 'gum_expired')")
        page.get_by_role("button", name="Subject 7").click()
        expect(page.get_by_label("Key")).to_be_focused()
        page.get_by_label("Key").fill("gum_of_somebody_else")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_contain_text("Authentication failed")
        expect(page.locator("#answer-part")).to_be_hidden()
        expect(page.locator("#recent-part")).to_be_hidden()


def test_signing_out_leaves_nothing(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        sign_in(page, protected_server)
        ask(page)
        expect(page.locator("#answer")).to_have_text("Body of message 7")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key")).to_be_focused()
        assert page.evaluate("sessionStorage.length") == 0
        assert "Body of message 7" not in page.content()
        assert page.get_by_label("What do you want to know?").input_value() == ""


def test_a_browser_that_stores_nothing_can_ask(browser: "Browser", protected_server: AgentProcess) -> None:
    refuse = "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('', 'SecurityError'); }})"
    for page in open_page(browser, protected_server.url, "401"):
        page.add_init_script(refuse)
        page.reload()
        sign_in(page, protected_server)
        ask(page)
        expect(page.locator("#answer")).to_have_text("Body of message 7")


@pytest.mark.parametrize("body", ['{"message": "rate limit exceeded"}', "null", "<html>"])
def test_an_error_of_a_proxy_is_shown(browser: "Browser", server: AgentProcess, body: str) -> None:
    for page in open_page(browser, server.url, "429"):
        page.route("**/invoke/stream", lambda route: route.fulfill(status=429, body=body))
        ask(page)
        expect(page.locator("#problem")).to_have_text("The server answered 429")


def test_every_inbox_can_be_asked_about(page: "Page") -> None:
    page.get_by_label("What do you want to know?").fill("What is in 7?")
    page.get_by_label("Inbox").fill(" jörg.müller@my_company.example ")
    with page.expect_request("**/invoke/stream") as sent:
        page.get_by_role("button", name="Ask", exact=True).click()
    assert json.loads(sent.value.post_data or "")["inbox_address"] == "jörg.müller@my_company.example"


def open_correction(page: "Page", server: AgentProcess, question: str) -> None:
    sign_in(page, server)
    ask(page, question)
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.get_by_label("Correct answer")).to_be_focused()


def test_feedback_is_recorded(browser: "Browser", protected_server: AgentProcess, tmp_path: Path) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        sign_in(page, protected_server)
        ask(page)
        page.get_by_role("button", name="Yes").click()
        expect(page.locator("#note")).to_have_text("Thank you.")
    kept = find_kept(protected_server, "What is in 7?", tmp_path)
    assert (kept.answer, kept.consent) == ("Body of message 7", "none")


def test_feedback_says_that_there_is_no_answer_and_may_be_used(
    browser: "Browser", protected_server: AgentProcess, tmp_path: Path
) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        open_correction(page, protected_server, "What is in 9?")
        page.get_by_label("Correct answer").fill("This is not sent.")
        page.get_by_label("May be used for training").check()
        page.get_by_label("cannot be answered").check()
        expect(page.get_by_label("Correct answer")).to_be_hidden()
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#note")).to_have_text("Thank you.")
        expect(page.locator("#correction")).to_be_hidden()
    kept = find_kept(protected_server, "What is in 9?", tmp_path)
    assert (kept.unanswerable, kept.message_ids, kept.consent) == (True, (), "training")


def test_a_correction_is_recorded_with_chosen_and_other_sources(
    browser: "Browser", protected_server: AgentProcess, tmp_path: Path
) -> None:
    for page in open_page(browser, protected_server.url, "401", "422"):
        open_correction(page, protected_server, "What is in 6?")
        page.get_by_label("Subject 6").check()
        page.get_by_label("IDs of other messages").fill("<404@example.com>")
        page.get_by_label("Correct answer").fill("  The body of 6  ")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#correction code").last).to_have_text("serving.source-not-found")
        page.get_by_label("IDs of other messages").fill("<5@example.com>\n\n <6@example.com> ")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#note")).to_have_text("Thank you.")
        expect(page.locator("#judge")).to_be_hidden()
    kept = find_kept(protected_server, "What is in 6?", tmp_path)
    assert (kept.answer, kept.message_ids) == ("The body of 6", ("<6@example.com>", "<5@example.com>"))


def test_a_correction_of_no_answer_says_if_it_was_not_stored(
    browser: "Browser", protected_server: AgentProcess
) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        sign_in(page, protected_server)
        ask(page, "Say:I would rather not.")
        expect(page.get_by_role("button", name="Yes")).to_be_hidden()
        page.get_by_role("button", name="Correct it").click()
        page.get_by_label("Correct answer").fill("On Friday")
        with page.expect_request("**/feedback") as sent:
            page.get_by_role("button", name="Send").click()
        expect(page.locator("#note")).to_contain_text("not stored")
        body = json.loads(sent.value.post_data or "")
        assert (body["right"], body["right_answer"]) == (False, "On Friday")


def test_a_correction_can_be_left_and_does_not_stay_for_the_next_answer(
    browser: "Browser", protected_server: AgentProcess
) -> None:
    for page in open_page(browser, protected_server.url, "401"):
        open_correction(page, protected_server, "What is in 4?")
        page.get_by_label("Correct answer").fill("Something")
        page.get_by_role("button", name="Cancel").click()
        button = page.get_by_role("button", name="No", exact=True)
        expect(button).to_be_focused()
        expect(button).to_have_attribute("aria-expanded", "false")
        ask(page, "What is in 5?")
        expect(page.locator("#answer")).to_have_text("Body of message 5")
        button.click()
        expect(page.get_by_label("Correct answer")).to_have_value("")
        expect(page.locator("#candidates code")).to_have_text(["<5@example.com>"])


def test_a_correction_offers_what_searches_found_by_its_ids(page: "Page") -> None:
    mail = "No message has all keywords: none\n2001 b: One\n  x\n  id: <1@x> (thread <2@x>, 2 messages)"
    steps = [
        {"tool": "search_inbox", "result": f"{mail}\n2002 b: Two\n  id: <7@x>\n  id: m2"},
        {"tool": "search_documents", "result": "A title\n  text\n  chunk: 7\n  id: a page.html"},
        {"tool": "read_email", "result": "From: b\n\n  id: <9@x>"},
        {"tool": "search_inbox", "result": None},
    ]
    found = page.evaluate(
        "async ([steps, handles]) => (await import('/text.js')).listFound(steps, handles)", [steps, {"m2": "<8@x>"}]
    )
    assert found == [
        {"id": "<1@x>", "title": "2001 b: One"},
        {"id": "<8@x>", "title": "2002 b: Two"},
        {"id": "a page.html", "title": "A title"},
    ]


def test_recent_questions_stay_in_the_tab_until_they_are_forgotten(browser: "Browser", server: AgentProcess) -> None:
    for page in open_page(browser, server.url):
        for question in ("What is in 7?", "What is in 8?", "What is in 7?"):
            ask(page, question)
            expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        page.reload()
        page.get_by_text("Recent questions").click()
        expect(page.locator("#recent button")).to_have_text(["What is in 7?", "What is in 8?"])
        page.locator("#recent button").last.click()
        expect(page.get_by_label("What do you want to know?")).to_have_value("What is in 8?")
        expect(page.get_by_label("Inbox")).to_have_value(ANN)
        assert page.evaluate("localStorage.length") == 0
        page.get_by_role("button", name="Forget").click()
        expect(page.locator("#recent-part")).to_be_hidden()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_question_is_copied_as_curl_without_the_key(browser: "Browser", protected_server: AgentProcess) -> None:
    for page in open_page(browser, protected_server.url, "401", permissions=["clipboard-read", "clipboard-write"]):
        sign_in(page, protected_server)
        ask(page, "What's in 7?")
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.locator("#note")).to_contain_text("KEY")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert str(protected_server.key) not in copied
        words = shlex.split(copied)
        assert (words[0], words[2]) == ("curl", f"{protected_server.url}/invoke")
        assert words[words.index("-H", 5) + 1] == "Authorization: Bearer $KEY"
        body = {"question": "What's in 7?", "inbox_address": ANN, "query_date": DAY}
        assert json.loads(words[words.index("-d") + 1]) == body


LEASE = """Hi Ann,

Thanks for your patience. The rate is £412
for each van, i.e. £1,236 a month.

See you on Monday."""


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        ("£1,236 a month", "The rate is £412\nfor each van, i.e. £1,236 a month."),
        ("1,236", "The rate is £412\nfor each van, i.e. £1,236 a month."),
        ("on monday", "See you on Monday."),
        ("$1,236 (.*", "The rate is £412\nfor each van, i.e. £1,236 a month."),
        ("Yes", None),
        ("", None),
    ],
)
def test_the_passage_with_the_answer_is_found(page: "Page", answer: str, marked: str | None) -> None:
    script = """async ([text, answer]) => {
        const { findPassage } = await import("/text.js");
        const found = findPassage(text, answer, "How much is the van lease?");
        return found && text.slice(...found);
    }"""
    assert page.evaluate(script, [LEASE, answer]) == marked


@pytest.mark.parametrize(
    ("tool", "arguments", "result", "sentence"),
    [
        ("search_inbox", {"keywords": ["a", "b c"], "sender": BOB}, None, f"Searching for a, b c, from {BOB}"),
        ("search_inbox", {"keywords": ["a"]}, "Nothing found.", "Searched for a: nothing found"),
        ("search_inbox", {"keywords": ["a"]}, "d s: t\n  id: <1@x>\n  id: <2@x>", "Searched for a: 1 message"),
        (
            "search_inbox",
            {"keywords": ["a", "b"], "one_per_thread": True},
            'No message has all keywords: "a" 1.\nd s: t\n  x\n  id: <1@x> (thread <1@x>, 2 messages)',
            "Searched for a, b, one per thread: nothing with all of these, 1 message with some",
        ),
        ("search_inbox", {"keywords": 7}, "Error: no words; use words", "Tried to search for 7: no words"),
        ("read_email", {"message_id": "<1>"}, "From: Bob <b@x>\nSubject: S\n\nSubject: T", "Read “S” from Bob"),
        (
            "read_email",
            {"message_id": "<1>", "whole_thread": True},
            "Thread of 2 messages, oldest first.\n\n[1 of 2]\nFrom: <b@x>",
            "Read a thread of 2 messages",
        ),
        ("read_email", {"message_id": "<1>", "whole_thread": True}, None, "Reading the thread of <1>"),
        ("read_document", {"document_id": "d1"}, "Title\n\nText", "Read “Title”"),
        ("read_document", {"document_id": "d1", "page": 2}, None, "Reading page 2 of d1"),
        ("read_document", {"document_id": "d1"}, "Title\nPage 1 of 2\n\nText", "Read “Title”"),
        ("read_email", {"message_id": "m1", "page": 2}, "Page 2 of 3\n\nText", "Read page 2 of 3 of a message"),
        ("return_final_answer", {"answer": "I don't know"}, None, "Answering without a source"),
        ("look_up", {"word": "a", "near": None}, "Found.", 'Called look_up with word "a"'),
        ("toString", {}, "Found.", "Called toString"),
        ("", {}, None, "Wrote a text without calling a tool"),
    ],
)
def test_a_step_is_a_sentence(
    page: "Page", tool: str, arguments: dict[str, Any], result: str | None, sentence: str
) -> None:
    step = {"turn": 1, "tool": tool, "arguments": arguments, "text": "", "result": result}
    script = "async (step) => (await import('/text.js')).describeStep(step, step.result === null)"
    assert page.evaluate(script, step) == sentence


def check_accessibility(page: "Page") -> None:
    """Check that axe-core finds nothing, and that the page is no wider than its window."""
    assert run_axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_the_page_fits(
    browser: "Browser", protected_server: AgentProcess, width: int, scheme: str
) -> None:
    window = {"width": width, "height": 844}
    for page in open_page(browser, protected_server.url, "401", "403", viewport=window, color_scheme=scheme):
        page.locator("#key").wait_for()
        check_accessibility(page)
        sign_in(page, protected_server)
        ask(page)
        page.locator("#sources button").wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        page.get_by_role("button", name="No", exact=True).click()
        page.locator("#candidates input").wait_for()
        check_accessibility(page)
        page.locator("#sources button").click()
        page.locator("#source mark").wait_for()
        check_accessibility(page)
        page.keyboard.press("Escape")
        page.get_by_label("Inbox").fill(BOB)
        page.get_by_role("button", name="Ask", exact=True).click()
        page.locator("#problem").wait_for()
        check_accessibility(page)


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
