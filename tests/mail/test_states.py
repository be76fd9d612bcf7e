"""States of messages: deleted, in the trash, or junk, by flags, labels and folders."""

import pytest

from gumshoe.mail.message import State
from gumshoe.mail.states import find_file_state, find_folder_state, find_header_state, find_label_state
from tests.cpu_time import limit_cpu


@pytest.mark.parametrize(
    ("folder", "state"),
    [
        (".Trash/cur", "trash"),
        (".INBOX.Trash/cur", "trash"),
        ("Trash", "trash"),
        ("trash/new", "trash"),
        ("Trash.sbd/Old", "trash"),
        ("Inbox.sbd/Trash", "trash"),
        ("[Gmail].sbd/Trash", "trash"),
        (".[Gmail].Trash/cur", "trash"),
        ("[Gmail]/Papelera/cur", "trash"),
        ("Deleted Items", "trash"),
        ("kaminski-v/deleted_items", "trash"),
        ("Deleted Messages.mbox/1A/Data/Messages", "trash"),
        ("Trash.mbox", "trash"),
        (".Papierkorb/cur", "trash"),
        (".Gel&APY-schte Elemente/cur", "trash"),
        ("Gelo\u0308schte Elemente", "trash"),
        ("Corbeille", "trash"),
        ("Éléments supprimés", "trash"),
        ("Cestino", "trash"),
        ("Lixeira", "trash"),
        ("&MLQw33ux-", "trash"),
        ("ゴミ箱", "trash"),
        ("ごみ箱", "trash"),
        ("삭제된 항목", "trash"),
        ("Recycle Bin", "trash"),
        ("Usunięte", "trash"),
        ("Thùng rác", "trash"),
        ("ถังขยะ", "trash"),
        ("Κάδος απορριμμάτων", "trash"),
        ("&BdAF6QXkBdQ-", "trash"),
        ("العناصر المحذوفة", "trash"),
        ("スパム", "spam"),
        ("垃圾箱", "spam"),
        ("Thư rác", "spam"),
        ("Gereksiz E-posta", "spam"),
        ("Uønsket e-post", "spam"),
        ("דואר זבל", "spam"),
        (".Junk/cur", "spam"),
        (".Spam/cur", "spam"),
        ("Junk E-Mail", "spam"),
        ("Junk-E-Mail", "spam"),
        ("junk e-mail/x", "spam"),
        ("Spam.mbox.gz", "spam"),
        ("Courrier indésirable", "spam"),
        ("迷惑メール", "spam"),
        ("Trash-1", "trash"),
        (".Trash-1000/files", "trash"),
        ("Archive/2023/Deleted Items (2)/x", "trash"),
        ("Gelöschte Elemente1", "trash"),
        ("Geloeschte Objekte", "trash"),
        ("E-mails supprimés", "trash"),
        ("Junk (1).mbox", "spam"),
        ("Junk_2", "spam"),
        ("SPAM-Ordner", "spam"),
        ("[Spam]", "spam"),
        ("Spam?", "spam"),
        ("INBOX.Quarantine.2024", "spam"),
        ("Quarantäne", "spam"),
        ("(12)", ""),
        ("Old Trash", ""),
        ("Spam-Filter 2", ""),
        ("Inbox", ""),
        (".", ""),
        ("", ""),
        ("All mail Including Spam and Trash.mbox", ""),
        ("Trash talk", ""),
        ("Spamfilter project/cur", ""),
        ("&-", ""),
        ("&AAA", ""),
    ],
)
def test_the_folder_tells_the_state(folder: str, state: State) -> None:
    assert find_folder_state(folder) == state


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("1.a:2,ST", "deleted"),
        ("1.a:2,T", "deleted"),
        ("1.a;2,ST", "deleted"),
        ("1.a!2,ST.gz", "deleted"),
        ("1.a,S=100:2,RST", "deleted"),
        ("1.a_2,ST", "deleted"),
        ("1.a\uf0222,T", "deleted"),
        ("1.a%3A2,T", "deleted"),
        (",12", "deleted"),
        ("1.a:2,S", ""),
        ("1.a:2,", ""),
        ("T:2,s", ""),
        ("12", ""),
        (",a", ""),
    ],
)
def test_the_name_of_a_file_tells_the_state(name: str, state: State) -> None:
    assert find_file_state(name) == state


@pytest.mark.parametrize(
    ("head", "state"),
    [
        ("X-Mozilla-Status: 0001\nX-Mozilla-Status2: 00000000\n", ""),
        ("X-Mozilla-Status: 0009\nX-Mozilla-Status2: 00000000\n", "deleted"),
        ("X-Mozilla-Status: 0019\n", "deleted"),
        ("X-Mozilla-Status: 1019\r\n", "deleted"),
        ("X-Mozilla-Status: 0001\nX-Mozilla-Status2: 00200000\n", "deleted"),
        ("X-Mozilla-Status: zzzz\n", ""),
        ("X-Mozilla-Status: 0001\nX-Mozilla-Keys: $label1 Junk   \n", "spam"),
        ("X-Mozilla-Keys: NonJunk\n", ""),
        ("X-Mozilla-Status: 0009\nX-Mozilla-Keys: Junk\n", "deleted"),
        ("Received: by x\nX-Mozilla-Keys: Junk\n", ""),
        ("Status: RO\nX-Status: D\n", "deleted"),
        ("X-Status: ADF\n", "deleted"),
        ("X-Status: A\n", ""),
        ("Status: Done\n", ""),
        ("Received: by x\nX-Status: D\n", "deleted"),
        ("Received: by x\nX-Mozilla-Status: 0009\n", ""),
        ("X-Mozilla-Status: 0001\nSubject: x\nX-Mozilla-Status: 0009\n", ""),
        ("Received: by x\nX-Gmail-Labels: Trash\n", ""),
        ("X-GM-THRID: 1\nX-Gmail-Labels: Spam,Unread\nReceived: by x\n", "spam"),
        ("X-Gmail-Labels: Unread,\n Trash\n", "trash"),
        ("Subject: Status: D\n", ""),
        ("Received: by x\nX-Keywords: $Junk   \n", "spam"),
        ("X-Keywords: NonJunk $Forwarded\n", ""),
        ("X-Mozilla-Keys: $Junk\n", "spam"),
        ("Received: by x\nX-Evolution: 00000c8e-0012\n", "deleted"),
        ("X-Evolution: 00000c8e-0090\n", "spam"),
        ("X-Evolution: 00000c8e-0010\n", ""),
        ("X-Evolution: 2.0002\n", ""),
    ],
)
def test_headers_of_mail_programs_tell_the_state(head: str, state: State) -> None:
    for raw in (f"{head}From: a@b\n\nX-Status: D\n", f"From: a@b\n{head}\r\n\r\nX-Status: D\n", head):
        assert find_header_state(raw.encode()) == state


def test_the_body_of_a_message_tells_no_state() -> None:
    assert find_header_state(b"From: a@b\r\n\r\nbody\r\nX-Status: D\r\n\n\nend") == ""


@pytest.mark.parametrize(
    ("labels", "state"),
    [
        ("Trash", "trash"),
        ("Spam", "spam"),
        ("Spam,Trash", "spam"),
        ("Posteingang,Papierkorb", "trash"),
        ("=?UTF-8?Q?Corbeille,Important?=", "trash"),
        ("=?UTF-8?B?44K044Of566x?=", "trash"),
        ("=?UTF-8?Q?Ge=C3=B6ffnet,?=\r\n =?UTF-8?Q?Papierkorb?=", "trash"),
        ("=?UTF-8?Q?Gel=C3=B6scht,Wichtig?=", "trash"),
        ('"Trash"', "trash"),
        ("\\Trash", "trash"),
        ("\\Seen, $Junk", "spam"),
        ("$NotJunk", ""),
        ("[Imap]/Trash", "trash"),
        ('"Junk, mail and more",Inbox', ""),
        ("Projects/Trash", ""),
        ("Inbox,Opened", ""),
        ("", ""),
    ],
)
def test_labels_of_gmail_tell_the_state(labels: str, state: State) -> None:
    assert find_label_state(labels) == state


@pytest.mark.parametrize("unit", ["[", " (", "1", ")", "*"])
def test_long_labels_take_linear_time(unit: str) -> None:
    with limit_cpu(2):
        assert find_label_state(f"Trash{unit * 30_000}a") == ""
