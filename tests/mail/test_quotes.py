"""What stays of a reply when its quotes are left out."""

# ruff: noqa: RUF001 - letters of other scripts

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.mail.quotes import fold_quotes
from tests.cpu_time import limit_cpu

OUTLOOK = "From: Pat Lee\nSent: Monday, March 4, 2024 9:30 AM\nTo: Ann\nSubject: RE: Lunch\n\nShall we meet?"
NOTES = "Pat Lee\n03/04/2000 09:30 AM\nTo: Ann Lee/HOU/ECT@ECT\ncc: Bob Ek/HOU,\nC/D@ECT\nSubject: Re: Lunch\n\nWhen?"
QUOTE = "> Shall we meet?\n>\n> Pat"


@pytest.mark.parametrize(
    "introduction",
    [
        "On Mon, Mar 4, 2024 at 9:30 AM Pat Lee <pat@example.com> wrote:",
        "On Mon, Mar 4, 2024 at 9:30 AM Pat Lee <pat@example.com>\nwrote:\n",
        "Am 04.03.24 um 09:30 schrieb Pat Lee:",
        "Le lun. 4 mars 2024 à 09:30, Pat Lee <pat@example.com> a écrit :",
        "El lun, 4 mar 2024 a las 9:30, Pat Lee (<pat@example.com>) escribió:",
        "Em seg., 4 de mar. de 2024 às 09:30, Pat Lee <pat@example.com> escreveu:",
        "Il giorno lun 4 mar 2024 alle ore 09:30 Pat Lee\n<pat@example.com> ha scritto:",
        "Op ma 4 mrt 2024 om 09:30 schreef Pat Lee <pat@example.com>:",
        "Den mån 4 mars 2024 kl 09:30 skrev Pat Lee <pat@example.com>:",
        "пн, 4 мар. 2024 г. в 09:30, Pat Lee <pat@example.com>:",
        "Pat Lee <pat@example.com> 于2024年3月4日周一 09:30写道：",
        "2024年3月4日(月) 9:30 Pat Lee <pat@example.com>:",
        "Pat Lee <pat@example.com> ezt írta (időpont: 2024. márc. 4., H, 9:30):",
    ],
)
def test_quotes_go_with_their_introduction_in_many_languages(introduction: str) -> None:
    assert fold_quotes(f"Friday is fine.\n\n{introduction}\n{QUOTE}\n") == "Friday is fine."
    assert fold_quotes(f"{introduction}\n{QUOTE}\n\nFriday is fine.") == "\nFriday is fine.".strip()
    assert fold_quotes(f"Friday is fine.\n\n{introduction}\n\nShall we meet?\nPat") == "Friday is fine."


@pytest.mark.parametrize(
    "quoted",
    [
        f"-----Original Message-----\n{OUTLOOK}",
        f" -----Original Message-----\n{OUTLOOK.replace(': ', ':	')}",
        f"-----Ursprüngliche Nachricht-----\n{OUTLOOK}",
        f"-----Messaggio originale-----\n{OUTLOOK}",
        OUTLOOK,
        f"{'_' * 32}\n{OUTLOOK}",
        "Von: Pat <pat@example.com>\nGesendet: Montag\nAn: Ann\nBetreff: AW: Mittag\n\nWann?",
        "De : Pat\nEnvoyé : lundi\nÀ : Ann\nObjet : RE: midi\n\nQuand ?",
        "发件人: Pat\n发送时间: 2024年3月4日\n收件人: Ann\n主题: 午饭\n\n什么时候？",
        *(
            f"{separator}\n{OUTLOOK}"
            for separator in (
                "----- Urspr. Nachricht -----",
                "-------- Originele bericht --------",
                "-----原始郵件-----",
                "---- 回复的原邮件 ----",
                "-----Oryginalna wiadomość-----",
                "-----Özgün İleti-----",
                "-------- Mesaj original --------",
                "-----Оригінальне повідомлення-----",
                "-----Αρχικό μήνυμα-----",
                "-----הודעה מקורית-----",
                "-----الرسالة الأصلية-----",
                "*-----Original Message-----*",
                "----- Reply message -----",
            )
        ),
        "寄件人: Pat\n日期: 2024年3月4日\n收件者: Ann\n主旨: 午飯\n\n何時？",
        "Od: Pat\nOdoslané: pondelok 4. marca\nKomu: Ann\nPredmet: Obed\n\nKedy?",
        "Від: Pat\nНадіслано: понеділок\nКому: Ann\nТема: Обід\n\nКоли?",
        "Từ: Pat\nĐã gửi: 4/3/2024 10:00\nĐến: Ann\nChủ đề: Lunch\n\nKhi nào?",
        "จาก: Pat\nส่ง: 4 มีนาคม\nถึง: Ann\nเรื่อง: Lunch\n\nเมื่อไหร่",
        "מאת: Pat\nנשלח: יום שני\nאל: Ann\nנושא: Lunch\n\nמתי?",
        "من: Pat\nتاريخ الإرسال: الاثنين\nإلى: Ann\nالموضوع: Lunch\n\nمتى؟",
        "Pat Lee\n04.03.2024 10:00\n\nAn: Ann Lee/HQ/Acme@Acme\nKopie: \nThema: Mittag\n\nWann?",
        NOTES,
        f'"Pat" <pat@example.com> on {NOTES.partition(chr(10))[2]}',
        "> Shall we meet?\n> Pat\n\n-- \nAnn",
    ],
)
def test_messages_quoted_at_the_end_go(quoted: str) -> None:
    assert fold_quotes(f"Friday is fine.\n\n{quoted}").removesuffix("\n\n-- \nAnn") == "Friday is fine."


def test_answers_between_quoted_lines_stay_with_the_lines_before() -> None:
    body = (
        "Hi Pat,\n\nPat wrote:\n> I looked.\n>\n> One\n> two\n> three\n> When?\n\nFriday.\n\n> Where?\n\nHere.\n\n> Bye"
    )
    assert fold_quotes(body) == ("Hi Pat,\n\n> [...]\n> two\n> three\n> When?\n\nFriday.\n\n> Where?\n\nHere.")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Friday is fine.",
        "Friday is fine.\n\n-- \nAnn",
        QUOTE,
        f"-----Original Message-----\n{OUTLOOK}",
        f"\n{OUTLOOK}",
        NOTES,
        f"On Mon, Mar 4, 2024, Pat Lee wrote:\n{QUOTE}",
        "On Mon, Mar 4, 2024, Pat Lee wrote:\n\nShall we meet?\n\nFriday.",
        f"FYI\n\n---------- Forwarded message ---------\n{OUTLOOK}",
        f"FYI\n\nBegin forwarded message:\n\n{OUTLOOK}",
        f"FYI\n\n-------- Messaggio inoltrato --------\n{OUTLOOK}",
        f"FYI\n\nAnfang der weitergeleiteten Nachricht:\n\n{OUTLOOK}",
        f"FYI\n\nDébut du message réexpédié :\n\n{OUTLOOK}",
        f"FYI\n\nInizio messaggio inoltrato:\n\n{OUTLOOK}",
        f"FYI\n\n転送されたメッセージ：\n\n{OUTLOOK}",
        "Das Original: liegt bei.\nOriginele berichten - drie",
        f"FYI\n\n---------------------- Forwarded by Ann Lee/HOU/ECT on 03/04/2000 \n09:30 AM ----------\n\n{NOTES}",
        "Please call pat@example.com at 10:30 about these:\n1. rent\n2. heat",
        "Thanks.\nAsk Pat Lee <pat@example.com>:\n- rent",
        "He once wrote:\nA good lunch is half the work.",
        "From: Houston\nTo: Dallas\nFare: 90",
        "Bye\n******\nFrom: Pat Lee, Events\nLee & Sons\nSales\nDate: 5 May\nSubject: gifts",
        "Numbers\n________\n12\n-----\n13",
        "<<<<<<< a\nx\n=======\ny\n>>>>>>> b",
        "| a | b |\n| 1 | 2 |",
    ],
)
def test_other_text_stays(body: str) -> None:
    assert fold_quotes(body).strip("\n") == body.strip("\n")


@given(st.lists(st.sampled_from(["> q", ">> q", "", "text", "-- ", "Pat wrote:", *OUTLOOK.split("\n"), "---", "> "])))
def test_text_never_goes_as_a_whole_and_nothing_is_added(lines: list[str]) -> None:
    folded = fold_quotes("\n".join(lines))
    assert any(map(str.isalnum, folded)) == any(map(str.isalnum, "".join(lines)))
    assert not set(folded.split("\n")) - {*lines, "> [...]", ""}


@pytest.mark.parametrize(
    "part",
    [
        ">", " ", "> \n", ">\n-\n", ">\nx\n", "\n", "a:\n", "From: a\nDate: b\n", "Am schrieb ", "On wrote:\n",
        "-----Original Message-----", "2024/01/01 < @", "2024/01/01 < @>-\n", "12/12/2024 10:10 AM\n", "_" * 32 + "\n",
        "<a@b>:", "1:00 <a@b> ", "---- a\n", "a -\n", "Pat wrote:\n>\n",
    ],
)  # fmt: skip
def test_hostile_text_takes_little_time(part: str) -> None:
    for prefix, suffix in (("", ""), ("x\n\n", ""), ("2024/01/01 ", "-"), ("On ", ":")):
        with limit_cpu(2):
            fold_quotes(prefix + part * (199_000 // len(part)) + suffix)
