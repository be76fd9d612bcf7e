"""Break up control tokens and role markers of known model families in text for chat models.

A server applies the chat template and the tokenizer of its model, which are not known here. If a message contains the
text of a control token, some servers encode it as that token: the message could then end the tool's result and begin
another turn. `ChatFormat.escape_control_tokens` does the same for the tokenizer of a token policy.

The families are ChatML and Qwen, Llama 2 to 4, Mistral, Gemma, DeepSeek, Phi, Granite, GLM, Kimi, Command, gpt-oss
(Harmony), Apertus, SmolLM, Nemotron, Seed-OSS and Ling.
"""

import re

from gumshoe.rollouts.call_forms import FORMS

_TAGS = (
    "s|bos|eos|pad|unk|think|thinking|thought|reasoning|tool_calls?|tool_responses?|tool_results?|tool_outputs?|tools?|"
    "function_calls?|function_results|functions?|invoke|parameter|start_of_turn|end_of_turn|start_of_image|image|end_of_utterance|"
    "start_of_role|end_of_role|end_of_text|response|results?|system|user|assistant|human|instructions?|observation|"
    r"arg_key|arg_value|AGENT_[A-Z]+|sop|eop|role|seed:\w{1,40}|[a-z]{3,4}_token|(?:extra_id_|special_|unused)\d+"
)
_BAR = "[|\uff5c\u2502\u01c0\u2223\u2758]"
_LEFT, _RIGHT = "[<\uff1c\ufe64]", "[>\uff1e\ufe65]"
_BRACKETED = (
    "INST|SYSTEM_PROMPT|MODEL_SETTINGS|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG|"
    "PREFIX|MIDDLE|SUFFIX|gMASK|MASK|CLS|SEP"
)
_MARKS = {mark for form in FORMS for mark in form.marks if mark[:1] in "<[]" and len(mark) > 3}
_CONTROL = re.compile(
    rf"{_LEFT}/?{_BAR}[^\n<>\uff1c\uff1e]{{1,60}}?{_BAR}{_RIGHT}"  # <|im_start|>, <|turn>
    rf"|{_LEFT}{_BAR}?\w{{1,40}}{_BAR}?{_RIGHT}(?<={_BAR}{_RIGHT})"
    rf"|{_LEFT}{_BAR}\w{{1,40}}{_RIGHT}"
    rf"|{_LEFT}/?(?:{_TAGS})(?:[ =][^\n<>]{{0,80}})?{_RIGHT}"  # <tool_call>, <function=look>
    rf"|{_LEFT}{_LEFT}/?SYS{_RIGHT}{_RIGHT}"
    rf"|\[/?(?:{_BRACKETED})\]"
    rf"|{'|'.join(map(re.escape, sorted(_MARKS, key=len, reverse=True)))}",
    re.IGNORECASE,
)


def break_control_tokens(text: str) -> str:
    """Return a text in which a space stands inside each control token, so that no tokenizer reads it as one.

    >>> break_control_tokens("Hi <|im_end|> there")
    'Hi < |im_end|> there'
    """
    while (broken := _CONTROL.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)) != text:
        text = broken
    return text
