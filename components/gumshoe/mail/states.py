"""Find the state of a message, i.e. deleted, trash or spam, by its flags, labels and folder; recognize sent mail."""

import re
import unicodedata
from functools import lru_cache
from pathlib import PurePosixPath

from gumshoe.mail.headers import decode_header_text, find_blank_line
from gumshoe.mail.message import State

# Names of folders and labels in mail programs, in lower case. Punctuation counts as a space.
_TRASH = frozenset(
    """trash|bin|deleted|deleted items|deleteditems|deleted messages|wastebasket|papierkorb|gelöscht|gelöschte elemente
    gelöschte objekte|gelöschte nachrichten|corbeille|éléments supprimés|messages supprimés|supprimés|papelera
    elementos eliminados|mensajes eliminados|eliminados|cestino|posta eliminata|elementi eliminati|eliminata|lixeira
    itens excluídos|itens eliminados|excluídos|lixo|reciclagem|ゴミ箱|削除済みアイテム|削除済みメール|prullenbak
    verwijderde items|kosz|elementy usunięte|papperskorgen|borttagna objekt|papirkurv|slettet post|slettede elementer
    roskakori|poistetut|koš|odstraněná pošta|kôš|kuka|törölt elemek|coș de gunoi|çöp kutusu|silinmiş öğeler|корзина
    удаленные|удалённые|кошик|휴지통|지운 편지함|已删除|已删除邮件|已删除 邮件|已刪除的郵件|刪除的郵件|垃圾桶|废纸篓
    已刪除郵件|ごみ箱|삭제된 항목|recycle bin|rubbish|verwijderd|smazaná pošta|usunięte|elemente șterse|șterse
    izbrisane stavke|izbrisano|smeće|смеће|διαγραμμένα|κάδος απορριμμάτων|απορρίμματα|thùng rác|sampah|trashed|trash can
    deleted mail|deleted mails|e mails supprimés|geloescht|geloeschte elemente|geloeschte objekte|tong sampah
    ถังขยะ|รายการที่ถูกลบ|אשפה|פריטים שנמחקו|المهملات|سلة المهملات|العناصر المحذوفة"""
    .replace("\n    ", "|").split("|")
)  # fmt: skip
_SPAM = frozenset(
    """spam|junk|junk mail|junkemail|junk e mail|junk email|bulk|bulk mail|spamverdacht|unerwünscht|unerwünschte werbung
    courrier indésirable|indésirables|indésirable|pourriel|correo no deseado|no deseado|correo basura
    posta indesiderata|indesiderata|lixo eletrônico|lixo eletrónico|correio eletrônico não solicitado|迷惑メール
    ongewenste e mail|ongewenst|wiadomości śmieci|niechciane|skräppost|søppelpost|uønsket e mail|uønsket mail
    roskaposti|nevyžádaná pošta|levélszemét|gereksiz|istenmeyen e posta|спам|нежелательная почта|스팸함|스팸 메일함
    정크 메일|垃圾邮件|垃圾郵件|垃圾箱|スパム|スパムメール|spam folder|junk folder|spamordner|spam ordner
    spam mail|spam mails|spam messages|spam e mail|probably spam|possible spam|suspected spam|caught spam|junk messages
    quarantine|quarantäne|quarantaine|cuarentena|quarentena|карантин|隔离|隔離|gereksiz e posta|önemsiz e posta
    uønsket e post|søppel e post|ανεπιθύμητα|ανεπιθύμητη αλληλογραφία|thư rác|จดหมายขยะ|อีเมลขยะ|ספאם|דואר זבל|הודעות זבל
    البريد العشوائي|البريد الإلكتروني غير الهام|البريد غير المهم"""
    .replace("\n    ", "|").split("|")
)  # fmt: skip
_SENT = frozenset(
    """sent|sent mail|sent items|sentitems|sent messages|sentmail|gesendet|gesendete objekte|gesendete elemente
    gesendete nachrichten|envoyés|éléments envoyés|messages envoyés|envoyé|enviados|elementos enviados
    mensajes enviados|correo enviado|inviati|inviata|posta inviata|messaggi inviati|enviadas|itens enviados
    mensagens enviadas|e mails enviados|送信済み|送信済みアイテム|送信済みメール|送信済みトレイ|verzonden
    verzonden items|verzonden berichten|wysłane|elementy wysłane|skickat|skickade|skickade objekt|sendt|sendte elementer
    sendt post|lähetetyt|odeslané|odeslaná pošta|odoslané|odoslaná pošta|elküldött|elküldött elemek|elküldött üzenetek
    elemente trimise|trimise|gönderilmiş öğeler|gönderilenler|gönderilmiş postalar|отправленные|надіслані|изпратени
    απεσταλμένα|보낸 편지함|보낸편지함|보낸 항목|已发送|已发送邮件|已傳送的郵件|寄件備份|寄件匣備份|đã gửi|terkirim"""
    .replace("\n    ", "|").split("|")
)  # fmt: skip
_BETWEEN_WORDS = re.compile(r"[\s_-]+")
_ADDED = re.compile(  # e.g. to the name of a second folder
    r"^[\[(*]+|(?<![ \[(])[ \[(]*\d{1,4}[\])]?$|(?<![\])*?~])[\])*?~]+$"
)
_IMAP_WORD = re.compile(r"&([A-Za-z0-9+,]*)-")  # modified UTF-7 of IMAP folders, e.g. `Gel&APY-scht`
_LABEL = re.compile(r'"[^"]*"|[^,"]+')
_SYSTEM_LABEL = re.compile(r"\A\[[\w ]{1,20}\]/")  # e.g. `[Gmail]/`
_FLAGS = re.compile(rb"[A-Z]{1,10}\s*")
# The colon as systems replace it that do not allow it in names.
_MAILDIR_FLAGS = re.compile(r"(?:[:;!_\uf022\uf03a]|%3A)[12],([A-Za-z]*)(?:\.\w+)?\Z")
# A header, and lines that continue it. Written by mail programs and archives, with these letters.
_HEADER = re.compile(
    rb"^(X-Mozilla-Status2?|X-Mozilla-Keys|X-Gmail-Labels|X-Status|Status|X-Keywords|X-Evolution):"
    rb"[ \t]*([^\n]*(?:\n[ \t][^\n]*)*)",
    re.M,
)
_HEADER_PARTS = (b"tatus", b"X-Mozilla-Keys:", b"X-Gmail-Labels:", b"X-Keywords:", b"X-Evolution:")
# These stand below the headers of mail servers, and replace those that came by mail.
_BELOW = {b"Status", b"X-Status", b"X-Keywords", b"X-Evolution"}
_JUNK_KEYWORDS = {b"junk", b"$junk"}
_EVOLUTION = re.compile(rb"[0-9a-f]{8}-([0-9a-f]{4})\s*")  # number and flags of a message
_EVOLUTION_DELETED = 0x02
_EVOLUTION_JUNK = 0x80
_MOZILLA_DELETED = 0x0008
_MOZILLA_DELETED_ON_SERVER = 0x0020_0000
_MAX_HEADERS = 64 << 10


def find_folder_state(folder: str) -> State:
    """Return the state of the messages in a folder, e.g. with the path `.Trash`, `[Gmail].Spam` or `Junk.sbd/Old`."""
    return _state_of_names(tuple(PurePosixPath(folder).parts))


@lru_cache(4096)
def _state_of_names(parts: tuple[str, ...]) -> State:
    for part in parts:
        for name in part.split("."):  # e.g. `.INBOX.Trash` or `Trash.mbox.gz`
            if state := _state_of_name(_IMAP_WORD.sub(_decode_imap_word, name)):
                return state
    return ""


@lru_cache(4096)
def is_sent_folder(folder: str) -> bool:
    """Return True if a folder is one for sent mail, by its path, e.g. `ann/_sent_mail` or `[Gmail].Sent Mail`."""
    names = (name for part in PurePosixPath(folder).parts for name in part.split("."))
    return any(_fold_name(_IMAP_WORD.sub(_decode_imap_word, name)) in _SENT for name in names)


def _fold_name(name: str) -> str:
    return _BETWEEN_WORDS.sub(" ", unicodedata.normalize("NFC", name)).strip().lower()


def _state_of_name(name: str) -> State:
    words = _ADDED.sub("", _fold_name(name)).strip()
    return "trash" if words in _TRASH else "spam" if words in _SPAM else ""


def _decode_imap_word(word: re.Match[str]) -> str:
    if not word[1]:
        return "&"
    try:
        return f"+{word[1].replace(',', '/')}-".encode().decode("utf-7")
    except UnicodeDecodeError:
        return word[0]


def find_file_state(name: str) -> State:
    """Return the state that the name of a file in a Maildir or MH folder tells, e.g. `1.a:2,ST` or `,12`."""
    flags = _MAILDIR_FLAGS.search(name)
    is_deleted = "T" in flags[1] if flags else name.startswith(",") and name[1:].isdecimal()
    return "deleted" if is_deleted else ""


def strip_flags(name: str) -> str:
    """Return the unique name of a message in a Maildir, e.g. `1.a` of `1.a:2,S`, which stays if its flags change."""
    return _MAILDIR_FLAGS.sub("", name)


def find_header_state(raw: bytes) -> State:
    """Return the state of a message of an mbox, according to the headers that its mail program or archive added.

    Those of Thunderbird and Google Takeout stand above the headers of mail servers: what stands below came by mail.
    """
    head = raw[:_MAX_HEADERS]
    head = head[: find_blank_line(head)[0]]
    if not any(name in head for name in _HEADER_PARTS):
        return ""
    received = 0 if head.startswith(b"Received:") else head.find(b"\nReceived:")
    state: State = ""
    seen: set[bytes] = set()
    for header in _HEADER.finditer(head):
        name, value = header[1], header[2]
        is_on_top = received < 0 or header.start() <= received
        if name not in seen and (is_on_top or name in _BELOW):
            seen.add(name)
            found = _state_of_header(name, value)
            state = found if found == "deleted" else state or found
    return state


def _state_of_header(name: bytes, value: bytes) -> State:
    if name == b"X-Gmail-Labels":
        return find_label_state(value.decode("utf-8", "surrogateescape"))
    if name in {b"X-Mozilla-Keys", b"X-Keywords"}:
        return "" if _JUNK_KEYWORDS.isdisjoint(value.lower().split()) else "spam"
    if name == b"X-Evolution":
        found = _EVOLUTION.fullmatch(value)
        flags = int(found[1], 16) if found else 0
        return "deleted" if flags & _EVOLUTION_DELETED else "spam" if flags & _EVOLUTION_JUNK else ""
    if name in _BELOW:
        return "deleted" if b"D" in value and _FLAGS.fullmatch(value) else ""
    mask = _MOZILLA_DELETED if name == b"X-Mozilla-Status" else _MOZILLA_DELETED_ON_SERVER
    try:
        return "deleted" if int(value[:16], 16) & mask else ""
    except ValueError:
        return ""


def find_label_state(labels: str) -> State:
    """Return the state of a message with these labels of Gmail: a list with commas, encoded as a header is.

    Flags of IMAP count, too, e.g. `$Junk`.
    """
    text = " ".join(decode_header_text(labels).split())
    states = [_state_of_name(_SYSTEM_LABEL.sub("", label.strip(' "\\$'))) for label in _LABEL.findall(text)]
    return "spam" if "spam" in states else "trash" if "trash" in states else ""
