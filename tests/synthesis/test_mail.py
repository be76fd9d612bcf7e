"""Synthetic mail: deterministic, consistent, and with answerable questions."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from statistics import median

import pytest

from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios, read_scenarios
from gumshoe.synthesis.calendar import BRITAIN, select_in_season
from gumshoe.synthesis.difficulty import Level
from gumshoe.synthesis.grammar import load_text
from gumshoe.synthesis.letters import is_working_day
from gumshoe.synthesis.mail_questions import QuestionBackground
from gumshoe.synthesis.mailboxes import MAX_MAILBOXES, synthesize_mail
from gumshoe.synthesis.topics import load_topic_kinds
from tests.errors import raises
from tests.synthesis.conftest import GeneratedMail, run_program
from tests.synthesis.searcher import find_first_hit
from tests.synthesis.test_grammar import templates

# Output of `PROGRAM` on every version of Python. It changes if a text or a rule of the generator changes: print the new
# one with `python -c PROGRAM`, on two versions if available.
DIGEST = "f9e582aa196d2c5cc08dc714e1a0199084b3f2c324972a8eb8e34e22b43b3489"
PROGRAM = """
import hashlib
from gumshoe.synthesis.mailboxes import synthesize_mail
made = synthesize_mail(3, 4, 400, "hard")
print(hashlib.sha256(repr(made.messages).encode() + made.scenarios.to_jsonl()).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_gives_the_same_bytes_everywhere(hash_seed: str) -> None:
    assert run_program(PROGRAM, hash_seed) == DIGEST


@pytest.mark.ci
def test_another_seed_gives_other_people_and_questions(make: Callable[..., GeneratedMail]) -> None:
    one, other = make("normal", 1).mail, make("normal", 2).mail
    assert one.company != other.company
    assert {each.inbox_address for each in one.scenarios}.isdisjoint(each.inbox_address for each in other.scenarios)
    questions = [{scenario.plain_question for scenario in mail.scenarios} for mail in (one, other)]
    assert len(questions[0] & questions[1]) < 0.02 * len(questions[0])


@pytest.mark.ci
def test_the_number_of_messages_is_exact(made: GeneratedMail) -> None:
    assert len(made.mail.messages) == 2400
    assert (made.report.messages, made.report.kept_out, made.report.unreadable) == (2400, {}, {})
    assert len({each["message_id"] for each in made.mail.messages}) == 2400
    dates = [each["date"] for each in made.mail.messages]
    assert dates == sorted(dates)


@pytest.mark.ci
def test_mailboxes_share_no_message_and_have_one_split(made: GeneratedMail) -> None:
    splits: defaultdict[str, set[str | None]] = defaultdict(set)
    for scenario in made.mail.scenarios:
        splits[str(scenario.inbox_address)].add(scenario.split)
    assert len(splits) == 6
    assert Counter(split for found in splits.values() for split in found) == {"train": 4, "validation": 1, "test": 1}
    owners = [{each["from"], *each["to"], *each["cc"]} & set(splits) for each in made.mail.messages]
    assert {len(found) for found in owners} == {1}
    assert set(Counter(owner for found in owners for owner in found).values()) == {400}


def test_the_scenarios_pass_the_check(made: GeneratedMail) -> None:
    path = str(made.directory / "scenarios.jsonl")
    assert load_scenarios(path).content == made.mail.scenarios.content
    report = check_scenarios(read_scenarios(path), made.index.path.parent)
    assert (report.findings, report.corrected) == ([], 0)
    assert len(report.clean) == len(made.mail.scenarios) > 200


def plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def list_literals(scenario: Scenario) -> list[str]:
    """Return the parts of an answer that a message must contain literally."""
    if scenario.kind == "what changed":
        found = re.fullmatch(r"From (.+?) to (.+)\.", scenario.answer)
        assert found
        return [found[1], found[2]]
    return [re.sub(r"^(Yes|No)\. ", "", scenario.answer)]


def test_every_gold_message_contains_the_answer(made: GeneratedMail) -> None:
    for scenario in made.mail.scenarios:
        assert scenario.inbox_address
        for message_id in scenario.message_ids:
            body = plain(made.index.read(scenario.inbox_address, message_id).body)
            assert [part for part in list_literals(scenario) if plain(part) not in body] == [], scenario


@pytest.mark.ci
def test_every_gold_message_is_found_by_a_search(made: GeneratedMail) -> None:
    """Search by words of the answer and the subject, which an agent could know from other messages."""
    for scenario in made.mail.scenarios:
        assert scenario.inbox_address
        for message_id in scenario.message_ids:
            message = made.index.read(scenario.inbox_address, message_id)
            words = re.findall(r"\w[\w-]*", re.sub(r"^(\w+: )+", "", message.subject))
            keywords = [list_literals(scenario)[0], *words]
            hits = made.index.search(scenario.inbox_address, keywords, sent_before=scenario.visible_before)
            assert message_id in {hit.message_id for hit in hits}, (scenario, keywords)


def test_unique_values_occur_only_in_gold_messages(made: GeneratedMail) -> None:
    """Check that unique values occur only in gold messages."""
    for scenario in made.mail.scenarios:
        by_name = scenario.kind == "contact" and re.search(r"reach [A-Z]|is [A-Z]\w+ \w+'s mobile", scenario.question)
        if not by_name and scenario.kind not in {"reference", "which", "yes or no"}:
            continue
        assert scenario.inbox_address
        hits = made.index.search(scenario.inbox_address, list_literals(scenario), sent_before=scenario.visible_before)
        if scenario.kind != "yes or no" or len(hits) < 10:
            assert {hit.message_id for hit in hits} <= set(scenario.message_ids), scenario


def strip_names(question: str, background: QuestionBackground) -> str:
    """Return a question without the requested fact, names and numbers."""
    for word in (background.about, background.asked):
        question = re.sub(rf"\b{re.escape(word)}\b", "_", question, flags=re.IGNORECASE)
    return re.sub(r"(?<!^)\b[A-Z]\w+|\d+", "_", question)


def test_there_are_14_kinds_of_questions_with_several_wordings(made: GeneratedMail) -> None:
    wordings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for scenario in made.mail.scenarios:
        wordings[str(scenario.kind)][strip_names(scenario.question, made.mail.backgrounds[scenario.id])] += 1
    unchanging = {"who", "when", "where", "how much", "how many", "which", "why", "contact", "reference"}
    of_changes = {"yes or no", "what changed", "who decided", "latest", "before a date"}
    assert set(wordings) == (unchanging if made.level == "plain" else unchanging | of_changes)
    assert {kind: found for kind, found in wordings.items() if len(found) < 3} == {}
    most = {kind: found.most_common(1)[0] for kind, found in wordings.items()}
    assert {kind: each for kind, each in most.items() if each[1] > 0.6 * wordings[kind].total()} == {}


def test_a_changed_fact_is_asked_for_by_date(make: Callable[..., GeneratedMail]) -> None:
    """Check that before a date the old value is right, with the first statement and the change as sources."""
    hard = make("hard").mail
    messages = {each["message_id"]: each for each in hard.messages}
    changes = {
        scenario.message_ids[0]: scenario.answer for scenario in hard.scenarios if scenario.kind == "what changed"
    }
    paired = 0
    for scenario in hard.scenarios:
        if scenario.kind != "before a date":
            continue
        told, *_, changed = scenario.message_ids
        then = re.search(r"\d+ [A-Z][a-z]+ \d{4}", scenario.question)
        assert then
        day = datetime.strptime(f"{then[0]} +0000", "%d %B %Y %z").date().isoformat()
        assert messages[told]["date"] < day < messages[changed]["date"] < str(scenario.query_date)
        if changed in changes:
            paired += 1
            assert changes[changed].startswith(f"From {scenario.answer} to ")
    assert paired > 3


def find_named_day(text: str, after: str) -> str:
    """Return the first such day on or after the message was sent, as ISO 8601, because people omit the year."""
    found = re.search(r"(\d+) ([A-Z][a-z]+)", text)
    assert found, text
    month = datetime.strptime(found[2], "%B").month  # noqa: DTZ007 - only a month
    days = [f"{year}-{month:02}-{int(found[1]):02}" for year in (int(after[:4]), int(after[:4]) + 1)]
    return next(day for day in days if day >= after[:10])


def test_nobody_asks_when_a_past_event_will_be(made: GeneratedMail) -> None:
    dates = {each["message_id"]: each["date"] for each in made.mail.messages}
    asked = [scenario for scenario in made.mail.scenarios if scenario.kind == "when"]
    assert len(asked) > 10
    for scenario in asked:
        assert str(scenario.query_date) <= find_named_day(scenario.answer, dates[scenario.message_ids[0]]), scenario


def test_nobody_asks_about_plans_for_a_past_event(made: GeneratedMail) -> None:
    dates = {each["message_id"]: each["date"] for each in made.mail.messages}
    checked = 0
    for scenario in made.mail.scenarios:
        if scenario.kind in ("what changed", "why", "who decided", "before a date"):
            continue
        others = made.mail.backgrounds[scenario.id].neighbours
        slots = [other for other in others if re.fullmatch(r"\w+day \d+ \w+ at \d+:\d\d", other)]
        if slots:  # two if it was moved
            checked += 1
            last = max(find_named_day(slot, dates[scenario.message_ids[0]]) for slot in slots)
            assert str(scenario.query_date) <= last, (scenario, slots)
    assert checked > 10


def test_nobody_says_good_morning_in_the_afternoon(made: GeneratedMail) -> None:
    greeted = Counter[tuple[str, bool]]()
    for each in made.mail.messages:
        found = re.match(r"(Morning|Afternoon) \w+,\n", own_text(each["body"]))
        if found:
            greeted[found[1], datetime.fromisoformat(each["date"]).hour < 12] += 1
    assert set(greeted) == {("Morning", True), ("Afternoon", False)}


@pytest.mark.parametrize(
    "holiday",
    ["2024-03-29", "2024-04-01", "2024-05-06", "2024-05-27", "2024-08-26", "2024-12-26", "2018-01-01", "2024-06-01"],
)
def test_nobody_works_on_a_holiday(holiday: str) -> None:
    assert not is_working_day(datetime.fromisoformat(holiday))
    assert all(is_working_day(datetime.fromisoformat(day)) for day in ("2024-04-02", "2024-05-13", "2024-08-19"))


def test_dates_are_moved_before_they_pass(made: GeneratedMail) -> None:
    moved = 0
    for each in made.mail.messages:
        for old in re.findall(r"it moves from (.+?) to |is no longer (.+?) but ", own_text(each["body"])):
            day = "".join(old)
            if re.match(r"[A-Z][a-z]+day \d+ ", day):
                moved += 1
                weeks = (
                    datetime.fromisoformat(find_named_day(day, each["date"]))
                    - datetime.fromisoformat(each["date"][:10])
                ).days
                assert weeks < 300, (day, each["date"])
    assert bool(moved) == (made.level != "plain"), "there nothing changes"


def own_text(body: str) -> str:
    """Return the text of a message without quotations."""
    return re.split(r"\n\n(?:-----Original|---------- Forwarded|On \w{3}, \d)", body)[0]


def test_a_postscript_follows_the_name(made: GeneratedMail) -> None:
    found = 0
    for each in made.mail.messages:
        above, mark, _ = own_text(each["body"]).partition("\n\nPS ")
        if mark:
            found += 1
            assert above.endswith(f"\n{each['x_from'].split()[0]}"), each["body"]
    assert found > 10


def test_every_host_name_is_valid_and_reserved(made: GeneratedMail) -> None:
    addresses = {address for each in made.mail.messages for address in (each["from"], *each["to"], *each["cc"])}
    assert [each for each in addresses if not re.fullmatch(r"[a-z.-]+@[a-z0-9-]+\.example", each)] == []
    assert len(addresses) > 50


@pytest.mark.parametrize(
    ("moment", "hours"),
    [
        ("2021-01-15T12:00", 0),
        ("2021-03-28T00:59", 0),
        ("2021-03-28T02:00", 1),
        ("2021-07-15T12:00", 1),
        ("2021-10-31T00:59", 1),
        ("2021-10-31T02:00", 0),
        ("2020-03-29T12:00", 1),
        ("2020-10-25T12:00", 0),
    ],
)
def test_the_time_zone_is_that_of_london(moment: str, hours: int) -> None:
    there = datetime.fromisoformat(moment).replace(tzinfo=BRITAIN)
    assert there.utcoffset() == timedelta(hours=hours)
    assert there.tzname() == ("BST" if hours else "GMT")


def test_mail_is_from_one_country(made: GeneratedMail) -> None:
    """Check time zone, currency and cities, except for trips."""
    abroad = re.compile(rf"\b(?:{'|'.join(load_text('names')['destination'])})\b")
    for each in made.mail.messages:
        sent = datetime.fromisoformat(each["date"])
        assert sent.utcoffset() == sent.replace(tzinfo=BRITAIN).utcoffset()
        assert not re.search(r"[€$]", each["body"])
        assert not abroad.search(each["body"]) or re.search(r"\b(trip|visit)\b", each["body"]), each["body"]


def test_the_weather_suits_the_season(made: GeneratedMail) -> None:
    elsewhere = " ".join(text for name in ("bulletins", "chatter", "filler") for text in templates(load_text(name)))
    months: defaultdict[str, set[str]] = defaultdict(set)
    for season in load_text("seasons")["season"]:
        for word in season["weather"]:
            months[word] |= set(season["months"])
    told = re.compile(rf"\b(?:{'|'.join(word for word in months if word not in elsewhere)})\b")
    met: Counter[str] = Counter()
    for each in made.mail.messages:
        sent = datetime.fromisoformat(each["date"])
        about = {f"{sent:%B}", f"{sent - timedelta(days=5):%B}"}  # some letters are planned days earlier
        for word in told.findall(own_text(each["body"])):
            met[word] += 1
            assert months[word] & about, (word, each["date"], each["body"])
    assert len(met) > 5


def test_a_seasonal_text_occurs_only_in_its_season() -> None:
    described = ["any", {"months": ["May", "June"], "text": "early summer"}, {"text": "always"}]
    assert select_in_season(described, datetime(2020, 5, 1, tzinfo=BRITAIN)) == described
    assert select_in_season(described, datetime(2020, 1, 1, tzinfo=BRITAIN)) == [described[0], described[2]]


def test_outsiders_have_matching_titles() -> None:
    assert [each for each in load_text("facts")["lists"]["outside_title"] if not each.endswith("Account Manager")] == []


def test_all_messages_have_different_texts(made: GeneratedMail) -> None:
    bodies = Counter(each["body"] for each in made.mail.messages)
    assert [body for body, count in bodies.items() if count > 1] == []


def test_replies_in_a_thread_may_use_the_short_name(make: Callable[..., GeneratedMail]) -> None:
    short = re.compile(r" (?:for|of|on|to|at) (?:this|the) ([\w-]+)[?:]")
    found = 0
    for each in make("normal").mail.messages:
        if each["subject"].startswith("Re: ") and (word := short.search(own_text(each["body"]))):
            found += word[1] in each["subject"]
    assert found > 2


def test_nested_quotations_are_separated_by_a_line(make: Callable[..., GeneratedMail]) -> None:
    parted = 0
    for each in make("hard").mail.messages:
        lines = each["body"].split("\n")
        for above, line in itertools.pairwise(lines):
            if head := re.match(r"((?:> )+)On \w{3}, \d", line):
                parted += 1
                assert above == head[1].rstrip(), each["body"]
    assert parted > 5


def test_no_phrase_is_too_frequent(make: Callable[..., GeneratedMail]) -> None:
    """Check the first words of sentences in 1,200 messages."""
    openings: Counter[str] = Counter()
    for each in make("hard").mail.messages[:1200]:
        for line in own_text(each["body"]).split("\n"):
            words = line.split()
            if len(words) > 5 and line[-1] in ".?!" and words[0] != "The":
                openings[" ".join(words[:4])] += 1
    assert openings.most_common(1)[0][1] <= 15, openings.most_common(8)


def test_nobody_mentions_themselves_in_the_third_person(made: GeneratedMail) -> None:
    names = {each["from"]: each["x_from"] for each in made.mail.messages}
    for each in made.mail.messages:
        text = own_text(each["body"])
        if len(each["to"]) == 1 and (name := names.get(each["to"][0])):
            assert name not in text, (name, text)
        assert text.count(each["x_from"]) <= 1, "but for the signature"


def test_answers_are_in_sentences_tables_replies_and_forwards(made: GeneratedMail) -> None:
    messages = {each["message_id"]: each for each in made.mail.messages}
    forms: Counter[str] = Counter()
    for scenario in made.mail.scenarios:
        message = messages[scenario.message_ids[0]]
        line = next((line for line in message["body"].split("\n") if list_literals(scenario)[0] in line), "")
        if "Forwarded message" in message["body"]:
            forms["forwarded"] += 1
        elif message["subject"].startswith("Re: "):
            forms["reply"] += 1
        elif re.match(r"(- )?[A-Z][\w' -]*(: |  )", line):
            forms["table"] += 1
        else:
            forms["sentence"] += 1
    assert set(forms) == {"reply", "table", "sentence"} | ({"forwarded"} if made.level != "plain" else set())
    assert min(forms.values()) > 0.02 * len(made.mail.scenarios), forms


def test_plain_mail_names_the_topic_before_the_value(make: Callable[..., GeneratedMail]) -> None:
    mail = make("plain").mail
    texts = {each["message_id"]: each["body"] for each in mail.messages}
    first = 0
    for scenario in mail.scenarios:
        body, about = plain(texts[scenario.message_ids[0]]), plain(mail.backgrounds[scenario.id].about)
        first += -1 < body.find(about) < body.find(plain(list_literals(scenario)[0]))
    assert first > 0.97 * len(mail.scenarios)
    kinds = [kind for topic in load_topic_kinds() for kind in topic.facts]
    assert [kind.id for kind in kinds if not kind.select_value_last()] == []


def test_there_are_distractors_of_each_kind(make: Callable[..., GeneratedMail]) -> None:
    hard = make("hard").mail
    surnames = Counter(name.split()[-1] for name in {each["x_from"] for each in hard.messages} if " " in name)
    assert [name for name, count in surnames.items() if count > 1]
    assert [scenario for scenario in hard.scenarios if re.search(r"\bthe 20\d\d ", scenario.question)], "another year"
    subjects = {re.sub(r"^(re|fw|fwd): ", "", each["subject"].casefold()) for each in hard.messages}
    first_words = Counter(" ".join(subject.split()[:2]) for subject in subjects)
    assert max(first_words.values()) > 3, "matters that share part of their name"


def test_the_vocabulary_is_large(make: Callable[..., GeneratedMail]) -> None:
    """Require at least 3,000 words in 1,200 messages, without names and numbers."""
    names = {word.casefold() for listed in load_text("names").values() for name in listed for word in name.split()}
    words = {word for each in make("normal").mail.messages[:1200] for word in re.findall(r"\b[a-z]+\b", each["body"])}
    assert len(words - names) >= 3000


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "share"), [("easy", 0.9), ("normal", 0.6), ("hard", 0.3)])
def test_the_first_hit_is_right_as_often_as_the_difficulty_implies(
    level: Level, share: float, make: Callable[..., GeneratedMail]
) -> None:
    shares = []
    for seed in (1, 2, 3):
        made = make(level, seed)
        hits = [find_first_hit(made.index, scenario) for scenario in made.mail.scenarios]
        right = [
            hit is not None and hit.message_id in scenario.message_ids
            for hit, scenario in zip(hits, made.mail.scenarios, strict=True)
        ]
        shares.append(sum(right) / len(right))
    assert median(shares) == pytest.approx(share, abs=0.05), shares


@pytest.mark.parametrize(
    ("mailboxes", "messages", "values"),
    [
        (2, 600, ["--mailboxes", "from 3 ", "to 1,000", "got 2"]),
        (MAX_MAILBOXES + 1, 90_000, ["--mailboxes", "got 1,001"]),
        (5, 199, ["--messages", "200 to 100,000", "5 mailboxes", "got 199"]),
        (5, 100_001, ["--messages", "200 to 100,000", "got 100,001"]),
    ],
)
def test_an_invalid_size_is_rejected_before_the_work(mailboxes: int, messages: int, values: list[str]) -> None:
    with raises("synthesis.invalid-size", *values):
        synthesize_mail(1, mailboxes, messages)


@pytest.mark.parametrize("count", [120, 121, 125])
def test_the_smallest_mailboxes_work(count: int) -> None:
    made = synthesize_mail(9, 3, count)
    assert len(made.messages) == count
    assert {scenario.split for scenario in made.scenarios} == {"train", "validation", "test"}
