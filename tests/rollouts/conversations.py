"""Parts of conversations for tests: a small tokenizer, chat templates of several families, calls as text."""

import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from gumshoe.synthesis.mailboxes import SyntheticMail

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NAME = "someone/small-model"
# Splits text into words, single digits, punctuation, line ends and spaces, as Qwen2.5's tokenizer does.
_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_SYSTEM = r"""
{{- '<|im_start|>system\n' + messages[0].content -}}
{%- if tools -%}
    {{- '\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with ' -}}
    {{- 'function signatures within <tools></tools> XML tags:\n<tools>' -}}
    {%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' -}}
    {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n' -}}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
"""
_CALLS = r"""
    {%- for call in message.tool_calls or [] -%}
        {{- '\n' if message.content or not loop.first -}}
        {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
        {{- (call.function.arguments | tojson) + '}\n</tool_call>' -}}
    {%- endfor -%}
"""
TURN = r"{{- '<|im_start|>assistant\n' + (message.content or '') -}}" + _CALLS + r"{{- '<|im_end|>\n' -}}"
_RESULT = r"""
    {%- if loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
"""


def template(*, system: str = _SYSTEM, turn: str = TURN, result: str = _RESULT) -> str:
    """Return a ChatML template. With the defaults it renders the same as Qwen2.5's."""
    return f"""
{system}
{{%- for message in messages -%}}
    {{%- if message.role == 'user' -%}}
        {{{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}}}
    {{%- elif message.role == 'assistant' -%}}
        {turn}
    {{%- elif message.role == 'tool' -%}}
        {result}
    {{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|im_start|>assistant\\n' -}}}}{{%- endif -%}}
"""


QWEN2_5 = template()
# Reasoning is kept in the last turn only, where it appears even if it is empty.
QWEN3 = template(
    turn=r"""
    {%- set said = message.content.split('</think>')[-1].lstrip('\n') -%}
    {%- set thought = message.content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
    {%- set thought = thought if '</think>' in message.content else '' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.last or thought -%}{{- '<think>\n' + thought + '\n</think>\n\n' -}}{%- endif -%}
    {{- said + '<|im_end|>\n' -}}
"""
)
FORGETFUL = template(
    turn=r"""
    {{- '<|im_start|>assistant\n' -}}
    {{- message.content if loop.revindex <= 2 else message.content.split('</think>')[-1] -}}
    {{- '<|im_end|>\n' -}}
"""
)
LLAMA3_1 = r"""
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- for message in messages[1:] -%}
    {%- if loop.first and tools -%}
        {{- '<|im_start|>user\nRespond with {"name": function name, "parameters": dictionary of arguments}.\n\n' -}}
        {%- for tool in tools -%}{{- (tool | tojson(indent=4)) + '\n\n' -}}{%- endfor -%}
        {{- message.content + '<|im_end|>\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>ipython\n' + (message.content | tojson) + '<|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\n' + (message.content | trim) + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
JSON_RESULTS = template(result=_RESULT.replace("message.content", "(message.content | tojson)"))
TRIMMED_RESULTS = template(result=_RESULT.replace("message.content", "(message.content | trim)"))
NO_RESULTS = template(result="")
OLD_RESULTS_GONE = template(
    result=_RESULT.replace("message.content", "(message.content if loop.revindex <= 2 else '(left out)')")
)
NO_TOOLS = template(system=r"{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}")
RAISES = template(result="{{- raise_exception('only user and assistant roles are supported') -}}")
SYSTEM_GONE = QWEN2_5.replace("+ messages[0].content", "+ 'You are a helpful assistant.'")
# A default system prompt, and system messages in any place.
ANY_SYSTEM = QWEN2_5.replace(
    "messages[0].content", "(messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant.')"
).replace(
    "{%- if message.role == 'user' -%}",
    "{%- if message.role == 'system' and not loop.first -%}"
    r"{{- '<|im_start|>system\n' + message.content + '<|im_end|>\n' -}}"
    "{%- elif message.role == 'user' -%}",
)
SYSTEM_FIRST = ANY_SYSTEM.replace(
    "for message in messages ",
    "for message in (messages | selectattr('role', 'equalto', 'system') | list)"
    " + (messages | rejectattr('role', 'equalto', 'system') | list) ",
)
_USER = r"{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' -}}"
MERGED_QUESTIONS = ANY_SYSTEM.replace(
    _USER,
    r"{{- '\n\n' if loop.previtem and loop.previtem.role == 'user' else '<|im_start|>user\n' -}}"
    "{{- message.content -}}"
    r"{%- if loop.last or loop.nextitem.role != 'user' -%}{{- '<|im_end|>\n' -}}{%- endif -%}",
)
# As Mistral's: questions and answers must alternate.
ALTERNATING = (
    r"""
{%- set ns = namespace(last='') -%}
{%- for message in messages if message.role in ('user', 'assistant') and not message.tool_calls -%}
    {%- if message.role == ns.last -%}{{- raise_exception('roles must alternate') -}}{%- endif -%}
    {%- set ns.last = message.role -%}
{%- endfor -%}
"""
    + ANY_SYSTEM
)
# As Mistral's: the tools stand before the last question.
MOVED_TOOLS = ANY_SYSTEM.replace("{%- if tools -%}", "{%- if false -%}").replace(
    _USER,
    "{%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list | last) -%}"
    r"{{- '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' -}}{%- endif -%}" + _USER,
)
NO_HEADER_AFTER_ANSWER = ANY_SYSTEM.replace(
    "{%- if add_generation_prompt -%}", "{%- if add_generation_prompt and messages[-1].role != 'assistant' -%}"
)
NO_TOKENS = QWEN2_5.replace("<|im_end|>", "[end]").replace("<|im_start|>", "[start]")


@cache
def synthetic() -> "SyntheticMail":
    """Return mail with questions, to train the tokenizer and to run episodes."""
    from gumshoe.synthesis.mailboxes import synthesize_mail

    return synthesize_mail(1, 3, 120)


def train(texts: Iterable[str], size: int) -> "Tokenizer":
    """Train a byte-level BPE of at most `size` tokens on texts."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


@cache
def _trained() -> str:
    return train((f"{mail['subject']}\n{mail['body']}" for mail in synthetic().messages), 1200).to_str()


def make_tokenizer(chat_template: str | None, *added: str) -> Any:
    """Create a tokenizer with a template, and with additional tokens that are not special."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(_trained())
    core.add_tokens([AddedToken(token, normalized=False) for token in added])
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=core, chat_template=chat_template, name_or_path=NAME)


def call(tool: str, **arguments: Any) -> str:
    """Return a turn that calls a tool, in the format of Qwen2.5."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
