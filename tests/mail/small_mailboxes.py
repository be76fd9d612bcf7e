"""Random small mailboxes, and everything that an index of one shows."""

from typing import Any

from hypothesis import strategies as st

from gumshoe.mail.index import MailIndex
from tests.mail.mailbox import record

BOB = "bob@example.com"
PEOPLE = [f"{name}@example.com" for name in ("ann", "bob", "carol")]
WORDS = ["gas", "power", "price"]
IDS = [f"<{number}@example.com>" for number in range(6)]

people = st.sampled_from(PEOPLE)
messages = st.fixed_dictionaries(
    {
        "message_id": st.sampled_from(IDS),
        "from": people,
        "to": st.lists(people, min_size=1, max_size=2),
        "bcc": st.lists(people, max_size=1),
        "subject": st.sampled_from(WORDS),
        "body": st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
    }
)
mailboxes = st.lists(messages, min_size=1, max_size=8).map(
    lambda records: [record(number, **each) for number, each in enumerate(records)]
)


def observe(index: MailIndex, inboxes: list[str] | None = None) -> dict[str, Any]:
    """Return everything that inboxes show."""
    shown: dict[str, Any] = {"content": index.stats()["content"]}
    for inbox in PEOPLE if inboxes is None else inboxes:
        listed = index.list_messages(inbox)
        shown[inbox] = listed, [index.read(inbox, message_id) for message_id, _ in listed]
        shown[f"{inbox} threads"] = [index.read_thread(inbox, message_id) for message_id, _ in listed]
        for word in WORDS:
            choices: tuple[dict[str, Any], ...] = ({}, {"order": "date"}, {"sender": BOB}, {"recipient": "carol"})
            for options in choices:
                shown[f"{inbox} {word} {options}"] = index.search(inbox, [word], **options)
    return shown
