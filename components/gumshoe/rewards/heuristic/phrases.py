"""Patterns of phrases that the rules search for: yes, no, maybe, no longer, "I don't know", lists and quotes."""

import re


def _pattern(*words: str) -> re.Pattern[str]:
    """Compile a pattern of any of these words or phrases."""
    return re.compile(rf"\b(?:{'|'.join(words)})(?!\w)", re.I)


UNKNOWN = _pattern(
    r"i (?:do not|don't) know|no (?:answer|information|evidence|idea|results?|mention|relevant \w+|matching \w+)",
    r"(?:not|cannot|could not|couldn't) (?:be )?(?:found|known|stated|specified|mentioned)|nothing (?:was )?found",
    r"unknown|(?:not|n't) (?:mention|say|state|specify)\w*",
)
"""The answer was not found."""
_ASSUMED = (
    r"(?:\w+ ){0,3}(?:role|post|position|office|dut(?:y|ies)|title|responsibilit(?:y|ies)|command|control|leadership|"
    r"chair|chairmanship|presidency|power|debts?|liabilit(?:y|ies)|costs?|risks?|lease|mortgage|obligations?|ownership)"
)
HEDGE = _pattern(
    r"either|1 of (?:these|them|those|the (?:\d+|following|candidates|options|choices|possib\w+|likely))",
    r"1 of (?!(?:the|an?|our|my|your|his|her|its|their)\b)[^.;:!?]{1,60}?(?:,|\band|\bor|/|\|)",
    r"guess\w*|hard to say|(?:most )?likely|apparently|seem\w* to|appears? to|my best bet",
    rf"unverified|assum(?:e|es|ing|ptions?)(?! {_ASSUMED})|(?:i|we)(?:'ve| have|'d| had)? assumed(?! {_ASSUMED})",
    r"assumed(?: that| to be|(?=\W*$|\s?[.,;:!?)\]]))|if i (?:recall|remember)",
    r"un(?:sure|certain|clear|confirmed)|not\b[^.;]{0,20} (?:sure|certain|clear)|if i had to",
    r"(?:cannot|can't|could not|couldn't|not able to|unable to|don't|do not|wasn't able to)\b[^.;]{0,20} "
    r"(?:confirm|verify|find|tell|say|let me say|settle)\w*",
    r"(?:is|as) (?:1|one|a|another) (?:possibility|candidate|option)",
    r"(?:1|one|another) (?:possibility|candidate|option) is",
    r"or (?:something|somebody|someone|similar)|alternatively|also possible|(?:1st|2nd|3rd|another|other) answer",
    r"another (?:message|mail|source) says|correction:",
    r"(?:any|with|for) (?:confidence|certainty|certain)|nothing that settles",
)
"""The answer does not commit itself, anywhere in the text."""
MODAL = _pattern(
    r"potentially|conceivably|allegedly|supposedly|reportedly|rumou?r\w*|some (?:people )?(?:say|think|claim)",
    r"maybe|perhaps|possibly|probably|presumably|might|(?:could|may) (?:well )?(?:be|have)",
)
"""The answer does not commit itself, in the sentence with the required items."""
REFUSED = _pattern(
    r"refus\w+|declin\w+|reject\w*|den(?:y|ied|ies)|turn\w* (?:\w+ ){0,3}down|veto\w*|rul\w+ (?:\w+ )?out|said no",
    r"against it|disallow\w*|forbid\w*|forbade",
)
"""A request was refused."""
AGREED = _pattern(
    r"agree(?:d|s|ing)?|approv\w+|accept\w*|allow\w*|permit\w*|permission|grant\w*|sign\w* (?:\w+ ){0,2}off",
    r"go-?ahead|green light|ok(?:ay)?(?:ed|'d)?|authori[sz]\w+|said yes|cleared|consent\w*|gave (?:a|the) nod",
)
"""A request was approved."""
AGREEMENT = re.compile(
    r"approv(?:als?|ers?)|accept(?:ance|abl\w+)|allowances?|permission|permits?|grants?|consents?|"
    r"authori[sz]ations?|go-?ahead|green light",
    re.I,
)
"""Of `AGREED`, what is a noun, or may be one."""
AGREEING = re.compile(
    r"(?:\b(?:i|we|you|they|he|she|who|to|not|never|will|would|can|could|may|shall|should|do|does|did|cannot)|n't|"
    r"\b(?:g[ai]ve[sn]?|giving|got|gets?|has|have|had|with|by|receiv\w+|obtain\w+|grant\w+)"
    r"(?: (?:an?|the|his|her|its|our|my|your|their|us|them|him|it|full|final|formal|written|official|[\w.]+'s)){0,3})"
    r"\s+$",
    re.I,
)
"""Makes a noun or verb after it say that somebody agrees: "they permit it", "she gave her consent"."""
OPEN = re.compile(
    r"\b(?:await\w*|wait\w*|pending|outstanding|to be|to come|without|needs?|need(?:ed|ing)|requires?|required|"
    r"seek\w*|sought|ask(?:ed|ing|s)? for|appl(?:y|ied|ies|ying)|request\w*|subject to)\b",
    re.I,
)
"""An agreement that nobody has given yet."""
_SUBJECT = r"(?:i|we|you|they|he|she|it)\b"
SUBORDINATE = re.compile(
    rf"\b(?:after|before|once|until|till|unless|if|when|while|despite|in spite of|to be)\b(?:\s+{_SUBJECT})?"
    rf"(?:(?!\b{_SUBJECT})[^,;:.!?])*$",
    re.I,
)
"""The text after it is a condition, or says when something happens."""
OBJECT = re.compile(r"\b(?:it|that|this|them|him|her|us|me)\b", re.I)
"""A pronoun that may stand for the topic of the question."""
NEGATED = re.compile(r"(?:\b(?:not|never|no|nobody|without|nor|cannot)|n't)\s+(?:\w+\s+){0,3}$", re.I)
"""Negates the text after it."""
NEAR = re.compile(r"\s+(?:\w+\s+){0,3}")
"""Stands between a negation and what it negates."""
SAYS_NOT = re.compile(r"(?:\b(?:not|never|cannot|nobody)|n't)\b", re.I)
"""Contains "not" or "nobody", anywhere."""
NO_TOPIC = frozenset(
    "true correct right so case happen happened done do think could can may might must should shall ought need "  # noqa: SIM905
    "able manage managed succeed succeeded".split()
)
"""Words beside a negation that deny what was asked, and nothing else: "that is not true", "but could not"."""
WHETHER = re.compile(r"\b(?:if|whether|unless|until)\W*$", re.I)
"""The text after it is a condition or a question."""
UNREAL = re.compile(
    r"\b(?:should|must|will|would|may|might|can|could|shall|ought|if|whether|when|ask\w*|hop(?:e|es|ed|ing)|want\w*|"
    r"plan\w*|tr(?:y|ies|ied|ying)|attempt\w*|expect\w*|suppos\w*|believ\w*|think\w*|thought|claim\w*|"
    r"den(?:y|ied|ies)|false|wrong|almost|nearly|about to)\b",
    re.I,
)
"""The clause may tell of something that did not happen."""
NOT = re.compile(r"\bnot\b|n't\b", re.I)
"""Negates a verb."""
DENIED = re.compile(
    r"(?:\b(?:not|never|no longer|(?:anyone|anything|1) but|except|other than|instead of|rather than)|n't)\b", re.I
)
"""Denies the rest of the sentence."""
DENIED_NEXT = re.compile(
    r"(?:\b(?:not|never(?: was| were| is| has been)?|no longer|any(?:one|thing) but|other than)|n't"
    r"|(?:n't (?:true|correct|right|the case|so)|\bden(?:y|ies|ied)|\bfalse|\bcontrary to \w+|\bwrong to say"
    r"|\b(?:not|un|in|hardly) ?(?:true|correct|right|the case|accurate))"
    r"(?:,? (?:that )?(?:it|he|she|this|they) (?:is|was|are|were)| that)?)\W*$",
    re.I,
)
"""Denies the text directly after it."""
DENIED_BEFORE = re.compile(
    r"(?:\W*(?:no|nope|false|wrong|incorrect|untrue|not true|not so)\W*$"
    r"|.{0,20}?\b(?:(?:is|was|are|were|has been|have been) (?:wrong|incorrect|false|untrue|rejected|ruled out|excluded)"
    r"|(?:is|are) no longer (?:true|valid|correct|so|the case)|until (?:it|that|then|this|they)\b))",
    re.I,
)
"""Denies the text directly before it."""
NO_LONGER = re.compile(r"\W*(?:(?:is|was|are|were|has|does|did)(?:n't|\s+not|\s+no longer)|no longer)\b(?! only)", re.I)
"""Denies the text before it."""
PAST = re.compile(
    r"\b(?:from|instead of|in place of|rather than|(?:replac|succeed)\w+\b(?! by)|not|no longer|previously|formerly|"
    r"originally|until|used to be|(?:was|were)(?! (?:replaced|succeeded)\b| (?:\w+ ){1,3}to\b)|before|earlier|old|than|"
    r"over from)\W+(?:\w+\W+){0,3}$",
    re.I,
)
"""The text after it was true in the past, and is given for context."""
FROM = re.compile(r"(?<!over )\bfrom\s+(?:the\s+)?$", re.I)
"""The text after it is where something came from."""
TO = re.compile(r"\b(?:in)?to\s+(?:the\s+)?$", re.I)
"""The text after it is where something went."""
OVER = re.compile(r"\b(?:(?:takes?|took|taking|taken) over from|over)\s+(?:the\s+)?$", re.I)
"""The text before it was chosen, or took the place of the text after it."""
CHOSEN = re.compile(r"\s*(?:(?:is|was|are|were|has been|have been) \w+)?\s*", re.I)
"""May stand between what was chosen and `OVER`."""
REPLACED_BY = re.compile(r"\b(?:replaced|succeeded|superseded)\b[^.;]{0,40}\bby\s+(?:the\s+)?$", re.I)
"""The text after it took the place of the text before it."""
CHANGED_TO = re.compile(r"\b(?:is|was|are|were|been) (?:\w+ ){1,2}to\s+$", re.I)
"""The text before it was changed to the text after it."""
SO = re.compile(r"\bso\s+(?:the\s+)?$", re.I)
"""The text after it is a consequence."""
REPLACES = re.compile(
    r"\b(?:replac(?:es|ed|ing)|succeed(?:s|ed|ing)|supersed(?:es|ed|ing)|t(?:ook|akes?|aking) over from)\s+(?:the )?$",
    re.I,
)
"""The text before it took the place of the text after it."""
_AUXILIARY = r"(?:is|are|was|were|been|being|be|has|have|had|got|gets?|getting|will|also) "
_ASKED = (
    r"(?:(?<!\w )|(?<=know )|(?<=tell me ))"
    rf"(?:who|(?:what|which)(?: (?!{_AUXILIARY}|(?:did|do|does|when|after|since|before|if|to) )\w+){{0,3}}?) "
)
ASKS_FOR_REPLACED = _pattern(
    r"(?<!when )did \w[^?]*(?:(?<! to )(?:replace|succeed|supersede)|let go|give up|leave)",
    r"(?:replaced|succeeded|superseded) by(?! wh|\W*$)",
    rf"{_ASKED}(?:{_AUXILIARY})+(?:replaced|succeeded|superseded|let go|given up)",
    rf"{_ASKED}(?:{_AUXILIARY})*(?:resign\w*|retir\w+|(?<!is )(?<!are )left|quit|stepped down)",
)
"""A question about who or what was replaced, or left."""
ASKS_FOR_PAST = _pattern(
    r"previous\w*|former\w*|original\w*|initial\w*|at first|used to|out of(?= wh|\W*$)|did \w[^?]*(?:replace|succeed)",
    r"(?:who|where|what|which)(?: is| was| are| were|'s)? (?:\w+(?:'s)? ){0,2}old|where\b[^?]*\bfrom(?=\W*$)",
)
"""A question about what was before."""
ASKS_FOR_ORIGIN = _pattern(r"old|before(?! wh)|until(?! wh|\W*$)|from")
"""A question about what was before, unless only the answer is about a change."""
ASKS_FOR_START = _pattern(r"start\w*|begin\w*|leav\w+|depart\w*")
"""A question about where or when something begins."""
_CHANGES = (
    r"(?:(?:mov(?:e|ing)|chang(?:e|ing)|postpon|reschedul|delay|extend|shorten|shift|switch|swap|relocat|transferr|"
    r"advanc(?:e|ing)|push(?:e|ing)|rais(?:e|ing)|ris(?:e|ing)|increas|reduc|lower|fall(?:en|ing)|dropp|correct|amend|"
    r"revis|updat|deferr|adjourn|convert)\w*|brought|rose|fell|(?:went|gone|put|cut) (?:up|down|back|forward))"
)
CHANGES = _pattern(_CHANGES)
"""Verbs of change, anywhere."""
CHANGED = _pattern(rf"{_CHANGES}\b(?:(?!\b(?:is|are|was|runs?|lasts?|goes)\b)[^.;]){{0,40}}? (?:from|to)")
"""Something changed from the text after it, or to it."""
REPLACED = _pattern(r"replac\w+|succeeded|superseded|previously|formerly|originally|used to")
"""Words about what was before, anywhere."""
TURNED = re.compile(
    r"\b(?:instead of|rather than|replac(?:es|ed|ing)(?! by)|in place of|t(?:ook|akes?|aking) over\b.* from|succeed\w*|"
    r"previously|formerly|originally|until|used to|before|(?:up|down) from|no longer|not)\b",
    re.I,
)
"""Stands between a new value and an old one, in this order."""
INSTEAD = re.compile(r"\b(?:instead of|in place of|rather than|over|not|than|and no|never)\W+(?:\w+\W+){0,2}$", re.I)
"""The text after it was not chosen."""
PAST_WORDS = _pattern(r"previously|formerly|originally|used to|was|were|until")
"""Words about the past, anywhere."""
WAS = re.compile(
    r"\b(?:previously|formerly|originally|used to be|replac(?:ed|es|ing)(?! by)|besides?)\W+(?:\w+\W+){0,2}$",
    re.I,
)
"""The text after it was true in the past."""
NOW = re.compile(r"\W*(?:(?:but|and|,)?\s*(?:it )?(?:is|are) now|until)\b", re.I)
"""The text before it was true in the past, and something else is true now."""
WRONG = _pattern(r"(?:is|was|are|were|be)\s+(?:wrong|incorrect|false|untrue|out of date|mistaken)")
"""The text before it is called wrong."""
BOUND = re.compile(
    r"\b(?:at least|at most|more than|less than|fewer than|over|under|up to|between)\s+(?:the\s+)?$", re.I
)
"""The value after it is a bound."""
BOUNDED = re.compile(r"-|\b(?:least|most|than|over|under|up to|between|to|through|until|till)\b", re.I)
"""Words of bounds or ranges, anywhere."""
DURING = re.compile(r"\bover\s+(?:the\s|a\s|an\s|about\s|around\s)*$", re.I)
"""Before a time, "during it" or "more than it"."""
LATEST = re.compile(r"(?:no|not) (later) than|at the (latest)", re.I)
"""A deadline; the groups are words that a date alone, or "by" and a date, need not have."""
EARLIEST = re.compile(r"\b(?:earli\w+|from|since|starting|onwards?|after|past)\b", re.I)
"""Words of a start, which contradict a deadline."""
RANGE = re.compile(r"\s?(?:-|to|through|until)\s?\d", re.I)
"""The value before it is the start of a range."""
THROUGH = re.compile(r"\s(?:through|thru|till|until)\s(?:the\s)?", re.I)
"""Joins the ends of a range by a word that need not be repeated."""
NAMES = re.compile(r"\s*(?:,\s*(?:and|or|&)\b|[,;|&\u2022\n]|\b(?:and|or)\b)\s*", re.I)
"""Separates the names of a list."""
LISTS = re.compile(r"[,;|\u2022\n]|\b(?:and|or|versus|vs)\b|(?<=[.!?])\s|\s-\s")
"""Separates the items of a list."""
ITEMS = re.compile(r"\s*(?:[,;|&]\s*(?:and\b)?|\band\b)\s*", re.I)
"""Separates the items of a reference that needs all of them."""
POSTS = frozenset(
    "senior junior vice president manager director counsel officer head chief lead leader analyst associate engineer "  # noqa: SIM905
    "assistant coordinator partner chairman secretary managing general group chair chairwoman chairperson ceo "
    "cfo coo cto cio vp evp svp".split()
)
"""Words of job titles, which are not names of other people."""
ONLY_IN_POSTS = frozenset({"executive", "operating", "financial", "technology", "information", "deputy", "prime"})
"""Words that are parts of a post beside one of `POSTS`: "Chief Financial Officer"."""
TITLES = frozenset(
    "president chairman chairwoman secretary director manager officer counsel ceo cfo coo cto cio vp evp svp "  # noqa: SIM905
    "professor doctor senator governor congressman congresswoman minister chancellor ambassador mayor judge captain "
    "colonel lieutenant sergeant admiral commander reverend".split()
)
"""Words that stand directly before the name of a person, unlike "general", which begins names of firms as well."""
ASKS_FOR_POST = _pattern(
    r"(?:what|which|whose)\b[^?]{0,30}\b(?:titles?|posts?|positions?|roles?|jobs?|ranks?|capacity)"
)
"""A question about the post of somebody."""
BEFORE = re.compile(r"^\W*(?:before(?:hand)?|previously|originally|formerly|at first|earlier)\b(?=\W*[,;.])", re.I)
"""The value before it is the old one, in a change described in order."""
CHANGE = re.compile(r"from (.+?) to (.+)", re.I | re.S)
"""A reference that describes a change."""
YES_OR_NO = re.compile(
    r"(?:^|[.:;!?|]\s+|\b(?:it|answer|response|respuesta|that) (?:is|was|es) )\W*"
    r"(yes|yeah|yep|correct|right|indeed|affirmative|no|nope|"
    r"(?:true|false|y|n|negative|incorrect)(?=\W*$|\s?[.,;:!]))\b",
    re.I,
)
"""Yes or no, at the start of a sentence."""
ASKS_YES_OR_NO = re.compile(
    r"\W*(?:(?:and|so|but|then)\b\W*)?(?!\w+ (?:you|anyone|someone|anybody|somebody)\b.{0,40}\b"
    r"(?:who\w*|what|which|when|where|why|how)\b)(?:is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|"
    r"shall|should|may|might|must|need|ought)(?:n't|not)?\b|.*(?:\btrue or false\b|"
    r",\s*(?:right|correct|yes|no|[\w']+ (?:i|we|you|he|she|it|they|there))\?)",
    re.I | re.S,
)
"""A question of yes or no: it begins with an auxiliary verb, or ends with a tag such as "didn't she?"."""
NO = frozenset({"no", "nope", "n", "false", "negative", "incorrect"})
"""Words of `YES_OR_NO` that say no."""
BOTH = re.compile(
    r"\byes\b\W*(?:and|or|but)?\W*(?:actually |then )?\bno\b|\bno\b\W*(?:and|or|but)\W*\byes\b|\bif (?:yes|no)\b", re.I
)
"""Yes and no together."""
AGAIN = re.compile(r"\b(\w+)(?:\W+\1\b){5,}", re.I)
"""One word six times in a row."""
IT_DID = re.compile(r"\W*\w+ (?:did|do|does|have|has)\b\W*(?:[.,!;]|$)", re.I)
"""Says yes by repeating the verb only."""
NUMBERS = re.compile(r"\d+")
"""A number in digits."""
PRONOUN = re.compile(r"\W*(?:it|he|she|they|we|i)\b", re.I)
"""A statement whose subject is a pronoun."""
WORD_BEFORE = re.compile(r"(\w+)\W+(?:(?:the|an?)\s+)?$", re.I)
"""A word, in group 1, before an article or none."""
HOW_MANY = _pattern(r"how (?:many|much|large|big)|(?:number|amount|size|total|sum|count) of")
"""A question that asks for a number only."""
STATES = re.compile(
    r"\W*(?:it|he|she|they|we|i|this|that|these|those)"
    r"(?:'s|'ve|'re| (?:is|was|are|were|has|have|had|will|did|does|do|can))\b",
    re.I,
)
"""A statement that begins with a pronoun."""
WHO = re.compile(r"\W*who(?:m|se)?\b(?!.*\band (?:where|when|what|which|how|why)\b)", re.I)
"""A question that asks for people only."""
WHOSE = re.compile(r"\W*whose\b", re.I)
"""A question that asks to whom something belongs."""
POSSESSIVE = re.compile(r"(?:(?<='s)|(?<=s)')\s+", re.I)
"""The end of a word to which the text after it belongs."""
OF = re.compile(r"\b(?:the|an?)\s+([^\W\d_]+) of\s+(?:(?:mr|mrs|ms|dr)\b\.?\s+)?$", re.I)
"""Somebody or something, in group 1, that belongs to the text after it."""
QUOTED = re.compile(r"^>|^-+ ?(?:forwarded|original) message|^(?:from|sent|to|subject|date|cc): ", re.I | re.M)
"""A line that occurs only in quoted messages."""
_CLOSING = r"(?:best wishes|(?:kind|best) regards|regards|many thanks|speak soon|sincerely|cheers|thanks)"
CLOSED = _pattern(rf"{_CLOSING},?\s+(?-i:[A-Z])\w+", rf"{_CLOSING},\s+\w+(?: \w+)?\W*$")
"""Closing of a message."""
JOINING = re.compile(r"[^\w\s]|\b(?:and|or|also|the|both)\b", re.I)
"""Text between the items of a list."""
OR = re.compile(
    r"\b(?:or(?! (?:more|less|fewer|above|below|over|under|higher|lower|greater|longer|shorter|later|earlier|"
    r"better|up)\b)"
    r"|and/or|versus|vs|alternatively|otherwise|failing that)\b|/",
    re.I,
)
"""Offers an alternative."""
