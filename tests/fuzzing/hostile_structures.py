"""Hostile messages: odd structures of parts, and odd headers."""

import zlib

from tests.fuzzing.hostile_registry import (
    TOKEN,
    attached,
    head,
    hostile,
    message_id,
    multipart,
    plain,
)

# Structure


@hostile("deep multipart")
def _() -> bytes:
    inner = plain()
    for depth in range(500):
        inner = f'Content-Type: multipart/mixed; boundary="b{depth}"\r\n\r\n--b{depth}\r\n'.encode() + inner
        inner += f"\r\n--b{depth}--\r\n".encode()
    return multipart("deep multipart", plain(), inner)


@hostile("deep message")
def _() -> bytes:
    inner = b"Subject: innermost\r\n\r\n" + TOKEN.encode()
    for _ in range(300):
        inner = b"Subject: x\r\nContent-Type: message/rfc822\r\n\r\n" + inner
    return multipart("deep message", plain(), b"Content-Type: message/rfc822\r\n\r\n" + inner)


@hostile("300 parts")
def _() -> bytes:
    return multipart("300 parts", *(plain(f"{TOKEN} part {number}") for number in range(300)))


@hostile("20000 empty parts")
def _() -> bytes:
    return multipart("20000 empty parts", plain(), *[b"\r\n"] * 20_000)


@hostile("300 attachments")
def _() -> bytes:
    return multipart(
        "300 attachments", plain(), *(attached(f"{number}.txt", b"x", "text/plain") for number in range(300))
    )


@hostile("boundary of its child")
def _() -> bytes:
    inner = b'Content-Type: multipart/mixed; boundary="XX"\r\n\r\n--XX\r\n' + plain("inner") + b"\r\n--XX--\r\n"
    return multipart("boundary of its child", plain(), inner, plain("after"))


@hostile("no closing boundary")
def _() -> bytes:
    return multipart("no closing boundary", plain()).removesuffix(b"--XX--\r\n")


@hostile("no boundary")
def _() -> bytes:
    return head("no boundary", "Content-Type: multipart/mixed") + b"--XX\r\n" + plain() + b"--XX--\r\n"


@hostile("empty boundary")
def _() -> bytes:
    return head("empty boundary", 'Content-Type: multipart/mixed; boundary=""') + b"--\r\n" + plain() + b"----\r\n"


@hostile("boundary that is a pattern")
def _() -> bytes:
    boundary = "(a+)+$[^\\"
    headers = head("boundary that is a pattern", f'Content-Type: multipart/mixed; boundary="{boundary}"')
    return headers + f"--{boundary}\r\n".encode() + plain() + ("--" + "a" * 5000 + "\r\n").encode()


@hostile("alternatives")
def _() -> bytes:
    html = f"Content-Type: text/html\r\n\r\n<p>{TOKEN}</p>".encode()
    return multipart("alternatives", *[plain("short"), html] * 500, kind="alternative")


@hostile("related to itself")
def _() -> bytes:
    html = f'Content-Type: text/html\r\nContent-ID: <a@x>\r\n\r\n<p>{TOKEN}<img src="cid:a@x"><iframe src="cid:a@x">'
    return multipart("related to itself", html.encode(), kind="related")


# Headers


@hostile("20000 headers")
def _() -> bytes:
    return head("20000 headers", *(f"X-{number}: {number}" for number in range(20_000))) + TOKEN.encode()


@hostile("one header of 5 MB")
def _() -> bytes:
    return head("one header of 5 MB", "X-Long: " + "a" * 5_000_000) + TOKEN.encode()


@hostile("subject of 1 MB")
def _() -> bytes:
    return head("subject of 1 MB", subject="long " * 200_000) + TOKEN.encode()


@hostile("folded 100000 times")
def _() -> bytes:
    return head("folded 100000 times", "X-Folded: a" + "\r\n b" * 100_000) + TOKEN.encode()


@hostile("10000 recipients")
def _() -> bytes:
    people = ", ".join(f"Person {number} <p{number}@example.com>" for number in range(10_000))
    return head("10000 recipients", to=f"bob@example.com, {people}") + TOKEN.encode()


@hostile("nested comments")
def _() -> bytes:
    return head("nested comments", to="bob@example.com " + "(" * 50_000 + ")" * 50_000) + TOKEN.encode()


@hostile("quotes that do not end")
def _() -> bytes:
    return head("quotes that do not end", "Cc: " + '"\\' * 50_000, "Bcc: " + "<" * 50_000) + TOKEN.encode()


@hostile("100000 references")
def _() -> bytes:
    ids = " ".join(f"<{number}@x>" for number in range(100_000))
    return head("100000 references", f"References: {ids}") + TOKEN.encode()


@hostile("references itself")
def _() -> bytes:
    own = message_id("references itself")
    return head("references itself", f"References: {own} {own}", f"In-Reply-To: {own}") + TOKEN.encode()


@hostile("encoded words")
def _() -> bytes:
    words = " ".join("=?utf-8?b?w6k=?=" for _ in range(20_000))
    return (
        head("encoded words", subject=f"{words} =?x-unknown?q?=FF?= =?utf-8?b?====?= =?utf-8?q?=ED=A0=80?=")
        + TOKEN.encode()
    )


@hostile("parameter continuations")
def _() -> bytes:
    parts = "".join(f";\r\n name*{number}*=%41" for number in range(5000))
    odd = ";\r\n name*999999999999=x; name*-1=y; name*1*=utf-8'en'%FF%00"
    file = f"Content-Type: text/plain{parts}{odd}\r\nContent-Disposition: attachment\r\n\r\nattached".encode()
    return multipart("parameter continuations", plain(), file)


@hostile("only headers")
def _() -> bytes:
    return head("only headers", subject=TOKEN).rstrip()


@hostile("header injection")
def _() -> bytes:
    encoded = "=?utf-8?q?a=0D=0ATo:_eve@example.com=0D=0A=0D=0Abody?="
    return head("header injection", subject=encoded, to=f"{encoded} <bob@example.com>") + TOKEN.encode()


@hostile("lines of old Macs")
def _() -> bytes:
    return head("lines of old Macs").replace(b"\r\n", b"\r") + TOKEN.encode() + b"\rnext\r"


# No message at all


@hostile("zero bytes")
def _() -> bytes:
    return b""


@hostile("only spaces")
def _() -> bytes:
    return b" \r\n\t\r\n" * 1000


@hostile("NUL bytes")
def _() -> bytes:
    return bytes(100_000)


@hostile("random bytes")
def _() -> bytes:
    return b"".join(zlib.crc32(number.to_bytes(4, "big")).to_bytes(4, "big") for number in range(50_000))
