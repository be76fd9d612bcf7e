"""Test budgets of tokens and tool calls per caller and day."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gumshoe.errors import UsageError
from tests.inference.fake_vllm import FakeVLLM, held, status
from tests.serving.agent_server import ANN, BOB, DAY, ServerClient, ServerFiles, add_key, code_of
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe.serving.usage_budgets import UsageBudgets

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MAX_TOKENS = 300
EXHAUSTED = "serving.budget-exhausted"


class Day:
    """A clock."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        return self.time


def make_budgets(day: Day | None = None, **limits: Any) -> "UsageBudgets":
    from gumshoe.serving.usage_budgets import UsageBudgets

    return UsageBudgets(**limits, now=day or Day())


def refusal(take: Callable[[], object]) -> str | None:
    """Return the Retry-After of a refusal, or None if there is none."""
    from gumshoe.serving.usage_budgets import BudgetExhaustedError

    try:
        take()
    except BudgetExhaustedError as error:
        return error.headers["Retry-After"]
    return None


def test_a_budget_ends_with_the_day_and_begins_anew() -> None:
    day = Day()
    budgets = make_budgets(day, tokens_per_day=100)
    assert refusal(lambda: budgets.take("ann", tokens=60)) is None
    assert refusal(lambda: budgets.take("ann", tokens=41)) == str(12 * 3600)
    assert refusal(lambda: budgets.take("ann", tokens=40)) is None
    assert refusal(lambda: budgets.require_rest("ann", tokens=True)) == str(12 * 3600)
    assert refusal(lambda: budgets.take("bob", tokens=100)) is None, "each caller has its own"
    day.time = NOON.replace(hour=23, minute=59, second=59, microsecond=500_000)
    assert refusal(lambda: budgets.require_rest("ann", tokens=True)) == "1"
    day.time = NOON + timedelta(hours=12)
    assert refusal(lambda: budgets.take("ann", tokens=100)) is None
    assert budgets._execute("SELECT count(*), 0 FROM usage") == [(1, 0)], "earlier days are forgotten"


def test_the_day_is_that_of_utc() -> None:
    from zoneinfo import ZoneInfo

    day = Day()
    day.time = datetime(2026, 3, 1, 23, 0, tzinfo=ZoneInfo("America/New_York"))  # 4 o'clock of the next day in UTC
    budgets = make_budgets(day, calls_per_day=1)
    budgets.take("ann", calls=1)
    assert refusal(lambda: budgets.take("ann", calls=1)) == str(20 * 3600)


def test_tokens_and_calls_are_separate() -> None:
    budgets = make_budgets(tokens_per_day=10, calls_per_day=2)
    budgets.take("ann", tokens=10)
    assert refusal(lambda: budgets.take("ann", calls=2)) is None
    assert refusal(lambda: budgets.take("ann", calls=1)) is not None
    assert budgets.read("ann") == (10, 2)


def test_what_was_reserved_on_an_earlier_day_is_not_given_back_today() -> None:
    day = Day()
    budgets = make_budgets(day, tokens_per_day=100)
    taken = budgets.take("ann", tokens=80)
    day.time += timedelta(days=1)
    budgets.take("ann", tokens=50)
    budgets.add("ann", taken, tokens=-80)
    assert budgets.read("ann") == (50, 0)


def test_nothing_is_stored_without_a_budget() -> None:
    budgets = make_budgets()
    assert refusal(lambda: budgets.take("ann", tokens=10**9, calls=10**9)) is None
    assert budgets.read("ann") == (0, 0)


def test_usage_in_a_file_survives_a_restart_and_is_shared_by_processes(tmp_path: Path) -> None:
    first = make_budgets(tokens_per_day=100, file=tmp_path / "usage.db")
    first.take("ann", tokens=70)
    second = make_budgets(tokens_per_day=100, file=tmp_path / "usage.db")
    assert refusal(lambda: second.take("ann", tokens=31)) is not None
    second.take("ann", tokens=30)
    assert first.read("ann") == (100, 0)
    for each in (first, second):
        each.close()


def test_processes_that_use_a_file_at_once_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving.usage_budgets import UsageBudgets

    first, second = (make_budgets(tokens_per_day=100, file=tmp_path / "usage.db") for _ in range(2))
    read = UsageBudgets.read

    with ThreadPoolExecutor(1) as pool:
        others = list[Any]()

        def read_while_another_takes(budgets: UsageBudgets, caller: str) -> tuple[int, int]:
            found = read(budgets, caller)
            if budgets is first:
                others.append(pool.submit(second.take, "ann", tokens=60))
                wait(others, timeout=0.1)
            return found

        monkeypatch.setattr(UsageBudgets, "read", read_while_another_takes)
        first.take("ann", tokens=60)
        assert refusal(others[0].result) is not None
    assert second.read("ann") == (60, 0)
    for each in (first, second):
        each.close()


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    for path in (tmp_path / "none" / "usage.db", tmp_path / "text", tmp_path):
        with pytest.raises(UsageError) as caught:
            make_budgets(tokens_per_day=1, file=path)
        assert caught.value.code == "serving.usage-file-unusable"
        assert str(path) in caught.value.message


def test_no_budget_is_granted_if_usage_cannot_be_counted(tmp_path: Path) -> None:
    from gumshoe.serving.errors import build_error_response
    from gumshoe.serving.usage_budgets import UsageUnavailableError

    budgets = make_budgets(tokens_per_day=1, file=tmp_path / "usage.db")
    budgets.close()
    with pytest.raises(UsageUnavailableError) as caught:
        budgets.take("ann", tokens=1)
    response = build_error_response(caught.value)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


# Over HTTP.


@pytest.fixture
def clients(place: ServerFiles, model: FakeVLLM, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Yield the clients of Ann and Bob at a server with the limits that the test names."""
    keys = tmp_path / "keys"
    given = [add_key(keys, name, [inbox]) for name, inbox in (("ann", ANN), ("bob", BOB))]
    limits = {"deadline": 3600, **request.param}
    served = model_settings(place, model.address, max_tokens=MAX_TOKENS)
    settings = make_settings(place, model=served, access={"keys": str(keys)}, limits=limits)
    with serve_in_thread(settings) as server:
        ann, bob = (ServerClient(server.url, key) for key in given)
        with ann.client, bob.client:
            yield ann, bob


def check_refused(response: httpx.Response) -> None:
    assert (response.status_code, code_of(response)) == (429, EXHAUSTED), response.text
    assert 0 < int(response.headers["retry-after"]) <= 86400
    assert response.headers["retry-after"] in response.json()["detail"].replace(",", "")


def call_tool(client: ServerClient) -> dict[str, Any]:
    call = {"name": "read_email", "arguments": {"message_id": "<7@example.com>", "query_date": DAY}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    sent = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    result: dict[str, Any] = client.client.post("/mcp", json=sent, headers=headers).json()["result"]
    return result


def sampled(model: FakeVLLM) -> list[dict[str, Any]]:
    """Return the requests for turns, without those that check the model."""
    return [each for each in model.requests if each.get("top_k") != 1]


def wait_for_turns(model: FakeVLLM, count: int) -> None:
    wait_until(lambda: model.under_way == count)


@pytest.mark.parametrize("clients", [{"tokens_per_day": 20_000}], indirect=True)
def test_tokens_are_counted_as_the_model_reports_them(clients: Any, model: FakeVLLM) -> None:
    ann, bob = clients
    used = 0
    while (response := ann.ask()).is_success:
        cost = response.json()["cost"]
        used += cost["prompt_tokens"] + cost["sampled_tokens"]
    check_refused(response)
    last = len(model.requests[-1]["prompt"]) + MAX_TOKENS
    assert 20_000 - 2 * last - 1000 < used <= 20_000
    check_refused(ann.ask())
    assert call_tool(ann)["isError"] is False, "there is no budget of calls"
    assert bob.ask(inbox_address=BOB).is_success
    assert bob.metric("gumshoe_refused_total", why="budget") >= 1


@pytest.mark.parametrize("clients", [{"calls_per_day": 7}], indirect=True)
def test_calls_of_the_agent_over_mcp_and_of_sources_are_counted(clients: Any) -> None:
    ann, bob = clients
    assert ann.ask().is_success  # three calls
    for _ in range(3):
        assert call_tool(ann)["isError"] is False
    source = {"source_id": "<7@example.com>", "query_date": DAY}
    assert ann.client.post("/source", json=source).is_success
    check_refused(ann.client.post("/source", json=source))
    check_refused(ann.ask())
    refused = call_tool(ann)
    assert refused["isError"] is True
    assert EXHAUSTED in refused["content"][0]["text"]
    assert call_tool(bob)["isError"] is False


@pytest.mark.parametrize("clients", [{"tokens_per_day": 3 * MAX_TOKENS + 50}], indirect=True)
def test_many_questions_at_once_do_not_exceed_the_budget(clients: Any, model: FakeVLLM) -> None:
    """Each first turn is paid with `MAX_TOKENS` in advance, so that only three can begin."""
    ann, _ = clients
    go_on = threading.Event()
    model.inject(held(go_on), times=None)
    with ThreadPoolExecutor(20) as pool:
        coming = [pool.submit(ann.ask) for _ in range(20)]
        try:
            wait_until(lambda: sum(each.done() for each in coming) == 17 and model.under_way == 3)
        finally:
            go_on.set()
        statuses = [each.result().status_code for each in coming]
    assert statuses.count(429) >= 17


@pytest.mark.ci
@pytest.mark.parametrize("clients", [{"tokens_per_day": 3 * MAX_TOKENS + 50}], indirect=True)
def test_a_disconnected_caller_pays_for_its_turn(clients: Any, model: FakeVLLM) -> None:
    ann, _ = clients
    go_on = threading.Event()
    model.inject(held(go_on), times=None)
    for begun in range(3):
        with ann.client.stream("POST", "/invoke/stream", json={"question": "What is in 7?", "query_date": DAY}):
            wait_for_turns(model, begun + 1)
    wait_until(lambda: ann.metric("gumshoe_running") == 0)
    go_on.set()
    model.requests.clear()
    check_refused(ann.ask())
    assert sampled(model) == [], "no turn could begin"


@pytest.mark.parametrize("clients", [{"tokens_per_day": 3000}], indirect=True)
def test_a_failed_turn_costs_nothing(clients: Any, model: FakeVLLM) -> None:
    ann, _ = clients
    model.inject(status(400), times=None)
    for _ in range(40):
        assert ann.ask().status_code == 502
    model.heal()
    model.requests.clear()
    assert ann.ask().status_code in (200, 429)
    assert sampled(model), "the first turn could begin"


def test_tokens_are_estimated_if_the_model_does_not_report_them() -> None:
    from gumshoe.environments.tools import Call
    from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
    from gumshoe.rollouts.episode import Turn
    from gumshoe.rollouts.trajectory import Span
    from gumshoe.serving.usage_budgets import UsageMeter

    call, spans = Call("search", {}), (Span("prompt", "p" * 400), Span("sampled", "s" * 40))
    budgets = make_budgets(tokens_per_day=10_000)
    meter = UsageMeter(budgets, "ann", 50)

    def sample() -> None:
        with meter.sampling() as observe:
            observe(Turn(spans, ParsedTurn((call,)), "chat", is_truncated=False))

    sample()
    assert budgets.read("ann") == (110, 0), "calls are counted when they run"
    meter.begin_calls([call])
    meter.add_results([call], ["r" * 40])
    sample()
    assert budgets.read("ann") == (110 + 230, 1)
