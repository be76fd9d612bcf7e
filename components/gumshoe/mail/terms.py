"""Terms of an index that are not words of a text: people, ids and threads.

Nothing is cached here: in a search, a cache would tell what other inboxes look for. A build has caches of its own.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Literal

from gumshoe.mail.thread_subjects import thread_subject
from gumshoe.mail.words import MailAnalyzer, TokenTerms, hash_term

PersonRole = Literal["from", "to"]
# Kinds of terms (see `gumshoe.mail.words`): no text can contain them, since words have other kinds.
_ADDRESS = {"from": "f", "to": "t"}
_NAME = {"from": "F", "to": "T"}
_THREAD, _SUBJECT = "r", "s"


def address_term(role: PersonRole, address: str) -> int:
    """Return the term of a person's address."""
    return hash_term(_ADDRESS[role], address)


def name_terms(role: PersonRole, words: tuple[int, ...]) -> tuple[int, ...]:
    """Return the terms of words of a person's name, for a search by sender or recipient."""
    return tuple(hash_term(_NAME[role], str(word)) for word in words)


def name_words(name: str, address: str, analyzer: MailAnalyzer) -> TokenTerms:
    """Return the words of a person's name, which keywords find. Without a name, the address before the @ is used."""
    return analyzer.analyze(name or address.partition("@")[0])


def person_terms(role: PersonRole, address: str, name: str, analyzer: MailAnalyzer) -> tuple[int, ...]:
    """Return the terms of a sender or a recipient: the address, and each word of the name and of the address."""
    words = (name_words(each, address, analyzer).terms.tolist() for each in (name, ""))
    names = name_terms(role, tuple(dict.fromkeys(chain.from_iterable(words))))
    return (address_term(role, address), *names) if address else names


def bare_id(message_id: str) -> str:
    """Return an id without angle brackets, which people and agents often leave out."""
    return message_id.strip("<>")


def thread_terms(message_id: str, references: Iterable[str] = ()) -> list[int]:
    """Return the terms of a message's id, and of the messages that it refers to."""
    return [hash_term(_THREAD, bare_id(each)) for each in dict.fromkeys([message_id, *references])]


def subject_term(subject: str) -> int | None:
    """Return the term of a subject without the signs of a reply, or None if nothing is left."""
    plain = thread_subject(subject)
    return hash_term(_SUBJECT, plain) if plain else None
