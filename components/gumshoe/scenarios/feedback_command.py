"""`gumshoe scenarios from-feedback`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.completion import complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.scenarios.command_output import check_output, describe_set, format_counts, print_next_step, write_scenarios
from gumshoe.terminal import JsonFlag, create_table, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.scenarios.feedback import Contradiction, SelectedFeedback

_MOST_SHOWN = 20  # contradictions that are printed; all are in the JSON output


def from_feedback(
    path: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file (JSONL).")],
    place: Annotated[
        str | None,
        typer.Argument(metavar="[STORE]", show_default=False, help="Artifact store of the agent server (or --store)."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Artifact store of the agent server."),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only feedback since then: a date, a time, or a duration ago, e.g. 90d.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only feedback before then.")] = "",
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            envvar="GUMSHOE_INDEX",
            metavar="DIR",
            help="Index of mail or documents. Leave out questions whose sources are not in it, or lack the answer.",
        ),
    ] = None,
    max_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Maximum share of the scenarios that one caller may have given.")
    ] = 0.1,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            autocompletion=complete_words("pii", "none", "credential", "email", "iban", "card", "ip", "phone"),
            help="Personal data to redact (repeatable): credential, email, iban, card, ip, phone; pii for all of them, "
            "none for none. Default: pii.",
        ),
    ] = None,
    redacted_answers: Annotated[
        str,
        typer.Option(
            metavar="drop|keep", help="Leave out questions whose answer is personal data, or keep them unredacted."
        ),
    ] = "drop",
    phone_region: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COUNTRY",
            help="Country whose phone numbers are found without a country code (repeatable). Default: US and GB.",
        ),
    ] = None,
    contradictions: Annotated[
        str,
        typer.Option(
            metavar="drop|newest|majority",
            help="If callers gave different answers to a question: leave it out, or use the newest or most frequent.",
        ),
    ] = "drop",
    max_answer: Annotated[
        int, typer.Option(metavar="WORDS", help="Maximum length of the reference answer, in words.")
    ] = 100,
    keep_unsupported: Annotated[
        bool, typer.Option("--keep-unsupported", help="Keep answers whose words are not in their sources.")
    ] = False,
    assume_consent: Annotated[
        bool, typer.Option("--assume-consent", help="Use feedback of earlier versions, without recorded consent.")
    ] = False,
    trajectories: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the recorded episodes whose answers were confirmed, as demonstrations for a warm start.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed: which scenarios of a caller with too many are kept.")] = 1,
    replace: Annotated[bool, typer.Option("--replace", help="Replace existing files.")] = False,
    json: JsonFlag = False,
) -> None:
    """Turn the feedback that an agent server has recorded into scenarios.

    The reference answers are those that users confirmed or corrected. Questions that users called unanswerable are
    marked as such. Only feedback with consent is used. What is left out or redacted is counted, and contradictions are
    shown.
    """
    from gumshoe.artifacts.store import Store
    from gumshoe.scenarios.feedback import check_feedback, limit_shares, select_feedback
    from gumshoe.scenarios.feedback_options import FeedbackOptions
    from gumshoe.scenarios.feedback_records import list_publications, read_feedback

    given = {
        "since": since,
        "until": until,
        "max_share": max_share,
        "redact": redact or ["pii"],
        "redacted_answers": redacted_answers,
        "contradictions": contradictions,
        "max_answer": max_answer,
        "unsupported": "keep" if keep_unsupported else "drop",
        "assume_consent": assume_consent,
    }
    options = FeedbackOptions.from_mapping({**given, **({"phone_regions": phone_region} if phone_region else {})})
    options.open_redactor()  # reports what is missing
    for each in filter(None, (path, trajectories)):
        check_output(each, replace)
    now = datetime.now(UTC)
    opened = Store(_choose_store(place, store))
    publications = list_publications(opened, options, now)
    records = read_feedback(opened, publications, options, now)
    if not records:
        raise UsageError(
            "scenarios.no-feedback",
            f"{opened.uri} has no feedback of that time; check the store and --since, and set keeping.feedback on the "
            "agent server",
        )
    found = select_feedback(records, options, index)
    if index is not None:
        check_feedback(found, index, options)
    limit_shares(found, options.max_share, seed)
    if not found.scenarios:
        _print_contradictions(found.contradictions, json=json)
        raise RefusedError(
            "scenarios.no-usable-feedback",
            f"none of {found.records:,} records of feedback can be used: {format_counts(found.left_out)}",
        )
    write_scenarios(path, found.scenarios)
    written = None
    if trajectories is not None:
        from gumshoe.scenarios.feedback_episodes import write_confirmed_episodes

        written = write_confirmed_episodes(trajectories, opened, publications, found.scenarios)
    _print_result(found, path, trajectories, written, json=json)
    if not json:
        print_next_step(found.scenarios, path, index)


def _choose_store(place: str | None, store: str | None) -> str:
    """Return the store that is named as an argument or as an option."""
    chosen = place or store
    if chosen is None:
        raise UsageError(
            "scenarios.store-not-named", "no artifact store is named; write it as an argument, or set GUMSHOE_STORE"
        )
    return chosen


def _print_result(
    found: "SelectedFeedback", path: Path, episodes: Path | None, written: int | None, *, json: bool
) -> None:
    """Print what was written, left out and redacted."""
    if json:
        facts = {"records": found.records, "left_out": dict(found.left_out), "redacted": dict(found.redacted)}
        facts |= {"unanswerable": found.unanswerable, "callers": dict(found.callers), "episodes": written}
        facts["contradictions"] = [_describe_contradiction(each) for each in found.contradictions]
        print_json({**facts, **describe_set(found.scenarios)})
        return
    _print_contradictions(found.contradictions, json=False)
    table = create_table("feedback", "records")
    table.add_row("read", f"{found.records:,}")
    for reason, count in found.left_out.most_common():
        table.add_row(f"left out: {printable(reason)}", f"{count:,}")
    table.add_row("scenarios", f"{len(found.scenarios):,}")
    table.add_row("of them unanswerable", f"{found.unanswerable:,}")
    out.print(table)
    (caller, most), *_ = found.callers.items()
    share = most / len(found.scenarios)
    out.print(f"[bold]{len(found.scenarios):,} scenarios[/] in {printable(path)}", soft_wrap=True)
    out.print(
        f"callers: {len(found.callers):,}; the most are of {printable(caller)}: {most:,} ({share:.1%})", soft_wrap=True
    )
    out.print(f"redacted: {format_counts(found.redacted) or 'nothing'}", soft_wrap=True)
    if written is not None:
        out.print(f"[bold]{written:,} episodes[/] in {printable(episodes)}", soft_wrap=True)


def _print_contradictions(contradictions: "list[Contradiction]", *, json: bool) -> None:
    """Print the answers that contradict each other."""
    if json:
        return
    for each in contradictions[:_MOST_SHOWN]:
        out.print(f"[yellow]contradiction[/]: {printable(each.question)} ({printable(each.inbox_address)})")
        for answer in each.answers:
            said = "unanswerable" if answer.unanswerable else printable(answer.answer)
            used = ", used" if answer.taken else ""
            callers = printable(", ".join(answer.given_by))
            out.print(f"  {said} [dim](by {callers}, {answer.newest:%Y-%m-%d}{used})[/]", soft_wrap=True)
    if len(contradictions) > _MOST_SHOWN:
        out.print(f"and {len(contradictions) - _MOST_SHOWN:,} more contradictions; --json lists all")


def _describe_contradiction(found: "Contradiction") -> dict[str, object]:
    answers = [
        {
            "answer": each.answer,
            "unanswerable": each.unanswerable,
            "given_by": list(each.given_by),
            "newest": each.newest.isoformat(),
            "used": each.taken,
        }
        for each in found.answers
    ]
    return {"question": found.question, "inbox_address": found.inbox_address, "answers": answers}
