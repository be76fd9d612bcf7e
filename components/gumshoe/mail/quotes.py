"""Leave out of a reply what it repeats of earlier messages.

Lines that introduce a quote are found by quotequail (https://github.com/closeio/quotequail) and by their form, in the
languages of mail programs. What belongs to the quote is decided here, so that answers between and below quoted lines
stay, and forwarded messages too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import quotequail

from gumshoe.mail.search_results import Message
from gumshoe.mail.thread_subjects import is_reply

_MAX_LENGTH = 200_000
_MAX_LINES = 1000  # in which introductions of quotes without marks are searched for
_MAX_LINE_LENGTH = 300  # of introductions
_MAX_INTRODUCTION_LINES = 3
_MAX_INTRODUCTIONS = 200  # of quotes with marks
_MAX_ADDRESSES = 4
_MAX_HEADER_LINES = 12
_MAX_NOTES_LINES = 40  # Lotus Notes lists all recipients
_MAX_ANSWERED_LINES = 3  # last quoted lines before an answer, which stay
_LEFT_OUT = "> [...]"

_QUOTED = re.compile(r" {0,3}>(?!>{6})")  # not a merge conflict
_QUOTE_MARKS = re.compile(r"[ >]*")
_TEXT = re.compile(r"[^\W_]")
_RULE = re.compile(r"\s*[_=*-]{5,}\s*$")
_SIGNATURE = re.compile(r"(?:-- ?|[_-]{5,})$")
_ENDS = (":", "\uff1a", ">", "-")  # of introductions
_WHEN = re.compile(r"\d[:.h]\d\d|\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}|\b\d{1,2}\b.*\b\d{4}\b|\d{4}年|@")
_TIME = re.compile(r"\d[:.h]\d\d")
_WROTE = re.compile(
    r".*(?:wrote|writes|schrieb|écrit|escribió|escreveu|scritto|schreef|skrev|kirjoitti|napsal\S*|napisał\S*|yazd\u0131"
    r"|написа\S*|写道|寫道|작성)[^:\uff1a]{0,60}[:\uff1a]$"
    r"|.{0,150}\bezt írta \(.{0,80}\):$"
)
_ADDRESS_AND_COLON = re.compile(r".*<[^<>\s]{1,200}@[^<>\s]{1,200}>[^:\uff1a<>]{0,40}[:\uff1a]$")  # in any language
_DASHED = re.compile(r"-{3,} ?[^-\s].{0,150}-{3,}$")
_ORIGINAL = re.compile(
    r"[-*\s]*(?:original.message|ursprüngliche|urspr\. nachricht|original.?nachricht|message d.origine"
    r"|message original|mensaje original|mensagem original|messaggio originale|oorspronkelijk|origineel"
    r"|originele bericht|ursprungligt|oprindelig|opprinnelig|alkuperäinen|wiadomość oryginalna|oryginalna wiadomość"
    r"|původní|pôvodná|исходное|оригинальное|оригінальне|eredeti|orijinal|özgün ileti|mesaj(?:ul)? original"
    r"|αρχικό μήνυμα|הודעה מקורית|الرسالة الأصلية|-+ ?reply message|原始邮件|原始郵件|原始訊息|邮件原件|回复的原邮件"
    r"|元のメッセージ|원본)",
    re.I,
)
# The line above a forwarded message, which ends with a colon or dashes.
_FORWARDED = re.compile(
    r".{0,60}(?:forwarded|weitergeleitet|transféré|réexpédié|inoltrato|doorgestuurd|reenviado|encaminhad"
    r"|vidarebefordra|videresend|välitetty|przekazan|přeposlan|preposlan|переслан|пересыл|továbbított|iletilen|προωθ"
    r"|redirecționat|転送|转发|轉寄|轉發|전달).{0,60}[-:\uff1a]$",
    re.I,
)
_FORWARDED_BY = re.compile(r"\s*-{5,} ?Forwarded by ")  # Lotus Notes; it may go on in the next line

# Names of header fields of a quoted message.
_FROM, _DATE, _SUBJECT = (
    re.compile(rf"\s{{0,3}}\*?(?:{names})\s?\*?\s?[:\uff1a]", re.I)
    for names in (
        "From|Von|De|Da|Van|Från|Fra|Lähettäjä|Od|От|От кого|Feladó|De la|Kimden|Από|发件人|寄件者|差出人|送信者"
        "|보낸 ?사람|寄件人|Від|Saatja|Nuo|Từ|Dari|จาก|מאת|من",
        "Sent|Date|Gesendet|Datum|Envoyé|Enviado|Enviado el|Enviada|Enviada em|Fecha|Data|Inviato|Verzonden|Skickat"
        "|Sendt|Dato|Lähetetty|Wysłano|Odesláno|Отправлено|Дата|Elküldve|Trimis|Tarih|Gönderilen|Gönderme Tarihi"
        "|Ημερομηνία|Στάλθηκε|发送时间|日期|时间|寄件日期|送信日時|日付|日時|보낸 ?날짜|날짜"
        "|发送日期|發送日期|傳送時間|Надіслано|Odoslané|Dátum|Poslano|Изпратено|Saatmisaeg|Kuupäev|Išsiųsta|Đã gửi|Ngày"
        "|Dikirim|Tanggal|ส่ง|วันที่|נשלח|תאריך|تاريخ الإرسال|التاريخ",
        "Subject|Betreff|Objet|Asunto|Assunto|Oggetto|Onderwerp|Ämne|Emne|Aihe|Temat|Předmět|Тема|Tárgy|Subiect|Konu"
        "|Θέμα|主题|主旨|件名|제목|主題|Sujet|Thema|Tema|Predmet|Zadeva|Относно|Teema|Chủ đề|Tiêu đề|Subjek|Perihal"
        "|เรื่อง|נושא|الموضوع",
    )
)
_FIELD = re.compile(r"\s{0,3}\*?[^\W\d_][\w .\u0e31-\u0e4e-]{0,30}\*?\s?[:\uff1a]")
_TO = re.compile(r"\s{0,3}(?:To|An|Pour|Para|Per|Aan)\s?:")
_NOTES_TIME = re.compile(
    r".{0,100}\d(?:/\d{1,2}/\d{2,4} \d{1,2}:\d\d(?::\d\d)? [AP]M|[./]\d{1,2}[./]\d{4} \d{1,2}:\d\d(?::\d\d)?)\s*$"
)

_Kind = Literal["", "reply", "forward"]


def fold_message(thread: Sequence[Message], number: int) -> Message:
    """Return one message of a thread, oldest first, with its text as `fold_quotes` returns it if it is a reply.

    The oldest one stays whole: what it quotes is in no other message of the thread.
    """
    message = thread[number]
    return replace(message, body=fold_quotes(message.body)) if number and is_reply(message.subject) else message


def fold_quotes(body: str) -> str:
    """Return the text of a reply without what it quotes of earlier messages, for showing a thread in order.

    Quoted lines that it answers one by one stay, cut to the last three before each answer. Forwarded messages stay, and
    so does a message without text of its own, or of more than 200,000 characters. Do not call it for messages that do
    not answer another one: mail programs introduce forwarded messages in the same way as quoted ones.
    """
    if len(body) > _MAX_LENGTH:
        return body
    lines = body.split("\n")
    start, kind = _find_unmarked(lines)
    kept = _fold_marked(lines[:start])
    if not _has_text(line for line in kept if not _QUOTED.match(line)):
        return body
    rest = ["", *lines[start:]] if kind == "forward" else []
    return "\n".join(kept + rest).strip("\n")


def _find_unmarked(lines: list[str]) -> tuple[int, _Kind]:
    """Return the first line of a quoted or forwarded message without quote marks, which goes on to the end."""
    for number, line in enumerate(lines[:_MAX_LINES]):
        if len(line) > _MAX_LINE_LENGTH or _QUOTED.match(line):
            continue
        if _FORWARDED_BY.match(line):
            return number, "forward"
        first, kind = _find_introduction(lines, number)
        if kind == "forward":
            return first, kind
        if kind == "reply" and not _is_marked(lines, number + 1):
            text = " ".join(lines[first : number + 1])
            if text.lstrip(" *").startswith("-") or _ORIGINAL.match(text) or _WHEN.search(text):
                return first, kind
        if _is_header(lines, number):
            above = number - 1
            while above >= 0 and not lines[above].strip():
                above -= 1
            heading = lines[above].strip() if above >= 0 else ""
            if _FORWARDED.match(heading) or _DASHED.match(heading):
                return above, "forward"  # also a separator in a language that is not known
            return above if above >= 0 and _RULE.match(lines[above]) else number, "reply"
        if _is_notes_header(lines, number):
            has_name = number > 0 and lines[number].lstrip()[:1].isdigit() and len(lines[number - 1]) < 100
            return number - 1 if has_name else number, "reply"
    return len(lines), ""


def _find_introduction(lines: list[str], last: int) -> tuple[int, _Kind]:
    """Return the first line of the introduction that ends with a line, and what it introduces: nothing if no kind."""
    line = lines[last].strip().strip("*")
    if not line.endswith(_ENDS) or len(line) > _MAX_LINE_LENGTH or not _TEXT.search(line):
        return last, ""
    joined, first = "", last
    while last - first < _MAX_INTRODUCTION_LINES and first >= 0:
        part = lines[first].strip().strip("*")
        if not part or len(part) > _MAX_LINE_LENGTH or _QUOTED.match(part):
            break
        joined = f"{part} {joined}".strip()
        if kind := _classify(joined):
            return first, kind
        first -= 1
    above = lines[last - 1].strip()[:_MAX_LINE_LENGTH] if last else ""
    has_time = _TIME.search(line) is not None
    has_time_above = not has_time and _TIME.search(above) is not None and not above.endswith((".", "!", "?"))
    if _WROTE.match(line) or (_ADDRESS_AND_COLON.match(line) and (has_time or has_time_above)):
        return last - has_time_above, "reply"
    return last, ""


def _classify(text: str) -> _Kind:
    """Return what a line introduces, by its words."""
    if _ORIGINAL.match(text) and text.endswith((":", "-")):
        return "reply"
    # With more addresses, a pattern of quotequail takes cubic time.
    if text.count("@") > _MAX_ADDRESSES or len(quotequail.quote(text, quote_intro_line=True)) == 1:
        return ""
    return "reply" if _WROTE.match(text) or text[0].isdigit() else "forward"


def _is_marked(lines: list[str], number: int) -> bool:
    """Return True if the next line with text has a quote mark."""
    following = next((line for line in lines[number : number + 5] if line.strip()), "")
    return _QUOTED.match(following) is not None


def _is_header(lines: list[str], number: int) -> bool:
    """Return True if the header of a quoted message begins with a line."""
    if not _FROM.match(lines[number]):
        return False
    following = [line for line in lines[number + 1 : number + 1 + _MAX_HEADER_LINES] if line.strip()]
    return all(
        any(map(pattern.match, part))
        for pattern, part in ((_FIELD, following[:2]), (_DATE, following), (_SUBJECT, following))
    )


def _is_notes_header(lines: list[str], number: int) -> bool:
    """Return True if a line has the time of a message quoted by Lotus Notes, and its recipients and subject follow."""
    if not _NOTES_TIME.match(lines[number]):
        return False
    following = lines[number + 1 : number + 1 + _MAX_NOTES_LINES]
    return any(map(_TO.match, following[:4])) and any(map(_SUBJECT.match, following))


def _fold_marked(lines: list[str]) -> list[str]:
    """Leave out lines with quote marks and their introductions, except the lines before an answer."""
    blocks = _split_blocks(lines)
    kept: list[str] = []
    is_inline = sum(is_quoted for is_quoted, _ in blocks) > 1
    for number, (is_quoted, block) in enumerate(blocks):
        if not is_quoted:
            while kept and block and not kept[-1].strip() and not block[0].strip():
                kept.pop()  # blank lines on both sides of what was left out
            kept += block
            is_inline = is_inline or _has_text(block)
        elif is_inline and number + 1 < len(blocks) and _is_answer(blocks[number + 1][1]):
            kept += _cut_answered(block)
    return kept


def _split_blocks(lines: list[str]) -> list[tuple[bool, list[str]]]:
    """Divide lines into blocks with and without quote marks, in turn. Introductions of quotes are left out."""
    blocks: list[tuple[bool, list[str]]] = []
    blank: list[str] = []
    for line in lines:
        if not line.strip():
            blank.append(line)
            continue
        is_quoted = _QUOTED.match(line) is not None
        if blocks and blocks[-1][0] == is_quoted:
            blocks[-1][1].extend([*blank, line])
        elif is_quoted:
            if blocks and len(blocks) <= 2 * _MAX_INTRODUCTIONS:
                blocks[-1] = (False, _drop_introduction(blocks[-1][1]) + blank)
            blocks.append((True, [line]))
        else:
            blocks.append((False, [*blank, line]))
        blank = []
    return blocks


def _drop_introduction(block: list[str]) -> list[str]:
    """Return lines without the introduction of a quote at their end."""
    first, kind = _find_introduction(block, len(block) - 1)
    return block[:first] if kind else block


def _cut_answered(block: list[str]) -> list[str]:
    """Return the last lines of a quote, of its last paragraph, with a sign if more was left out."""
    first = len(block)
    while first and len(block) - first < _MAX_ANSWERED_LINES and _QUOTE_MARKS.sub("", block[first - 1], count=1):
        first -= 1
    return [*([_LEFT_OUT] if _has_text(block[:first]) else []), *block[first:]]


def _is_answer(lines: list[str]) -> bool:
    """Return True if lines have text before a signature."""
    for line in lines:
        if _SIGNATURE.match(line):
            return False
        if _TEXT.search(line):
            return True
    return False


def _has_text(lines: Iterable[str]) -> bool:
    return any(_TEXT.search(line) for line in lines)
