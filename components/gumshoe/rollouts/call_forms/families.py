"""The form of each family of models, after the chat templates that TRL 1.16 and llama.cpp ship."""

# ruff: noqa: RUF001 - the bars in DeepSeek's tags are wide ones

from gumshoe.rollouts.call_forms.call_form import CallForm
from gumshoe.rollouts.call_forms.code_forms import GemmaForm, PythonForm
from gumshoe.rollouts.call_forms.json_forms import HarmonyForm, JsonForm, LlamaForm, NamedForm, RecipientForm
from gumshoe.rollouts.call_forms.xml_forms import ElementForm, XmlForm

_DSML_CALL = ('<｜DSML｜invoke name="', '">', "</｜DSML｜invoke>")
_DSML_ARGUMENT = ('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>")
_DSML_HEAD = (r'(?P<key>[^"]+)" string="(?P<type>true|false)', '{key}" string="{bool}')
_M3 = "]<]minimax[>["

FORMS: tuple[CallForm, ...] = (
    # Qwen2.5 and 3, Hermes, Granite 4, SmolLM3, MiMo, Bielik, Reka
    JsonForm(name="hermes", open="<tool_call>", close="</tool_call>", gap="\n"),
    # Qwen3-Coder, 3.5, 3.6 and 3.8, Nemotron 3, Step 3.5
    XmlForm(
        name="qwen-xml",
        hints=("<function=",),
        open="<tool_call>",
        close="</tool_call>",
        is_block=False,
        call=("<function=", ">", "</function>"),
        argument=("<parameter=", ">", "</parameter>"),
        gap="\n",
    ),
    # GLM 4.5 to 4.7, Ling 3, Laguna, Spark 2.5
    XmlForm(
        name="glm",
        hints=("<arg_key>",),
        open="",
        call=("<tool_call>", "", "</tool_call>"),
        argument=("<arg_key>", "</arg_key>", "</arg_value>"),
        value="<arg_value>",
    ),
    XmlForm(
        name="hunyuan",
        open="<tool_calls:opensource>",
        close="</tool_calls:opensource>",
        call=("<tool_call:opensource>", "<tool_sep:opensource>", "</tool_call:opensource>"),
        argument=("<arg_key:opensource>", "</arg_key:opensource>", "</arg_value:opensource>"),
        value="<arg_value:opensource>",
    ),
    XmlForm(
        name="seed",
        hints=("<seed:tool_call>",),
        open="<seed:tool_call>",
        close="</seed:tool_call>",
        is_block=False,
        call=("<function=", ">", "</function>"),
        argument=("<parameter=", ">", "</parameter>"),
    ),
    # Functionary 3.1, and Llama 3 with tools of one's own
    NamedForm(name="functionary-v3.1", open="<function=", middle=">", close="</function>"),
    XmlForm(
        name="minicpm",
        hints=('<function name="',),
        open="",
        call=('<function name="', '">', "</function>"),
        argument=('<param name="', '">', "</param>"),
        line="",
    ),
    XmlForm(
        name="minimax",  # M2
        hints=("<minimax:tool_call>",),
        open="<minimax:tool_call>",
        close="</minimax:tool_call>",
        call=('<invoke name="', '">', "</invoke>"),
        argument=('<parameter name="', '">', "</parameter>"),
    ),
    ElementForm(
        name="minimax-m3",
        hints=("]<]minimax[>[<tool_call>",),
        open=f"{_M3}<tool_call>",
        close=f"{_M3}</tool_call>",
        mark=_M3,
    ),
    XmlForm(
        name="deepseek-v3.2",
        open="<｜DSML｜function_calls>",
        close="</｜DSML｜function_calls>",
        call=_DSML_CALL,
        argument=_DSML_ARGUMENT,
        argument_head=_DSML_HEAD,
    ),
    XmlForm(
        name="deepseek-v4",
        open="<｜DSML｜tool_calls>",
        close="</｜DSML｜tool_calls>",
        call=_DSML_CALL,
        argument=_DSML_ARGUMENT,
        argument_head=_DSML_HEAD,
    ),
    XmlForm(
        name="kimi-k3",
        hints=("<|open|>tools<|sep|>",),
        open="<|open|>tools<|sep|>",
        close="<|close|>tools<|sep|>",
        call=('<|open|>call tool="', "<|sep|>", "<|close|>call<|sep|>"),
        call_head=(r'(?P<name>[^"]+)" index="\d+"', '{name}" index="{index}"'),
        argument=('<|open|>argument key="', "<|sep|>", "<|close|>argument<|sep|>"),
        argument_head=(r'(?P<key>[^"]+)" type="(?P<type>\w+)"', '{key}" type="{type}"'),
        line="",
        noise=r"<\|(?:open|close)\|>(?:response|message)<\|sep\|>",
    ),
    XmlForm(
        name="muse-glimmer",
        has_headers=True,
        hints=("<atem:function_calls>",),
        open="<atem:function_calls>",
        close="</atem:function_calls>",
        is_block=False,
        call=('<atem:invoke name="', '">', "</atem:invoke>"),
        argument=('<atem:parameter name="', '">', "</atem:parameter>"),
        more_marks=("<|start|>", "<|message|>", "<|eom|>"),
        noise=r"(?:<\|eom\|>)?(?:<\|start\|>assistant)?(?: to=[^\s<]*)?<\|message\|>",
    ),
    # DeepSeek V3 and R1
    NamedForm(
        name="deepseek-v3",
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        call=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```<｜tool▁call▁end｜>"),
        middle="\n```json\n",
        more_marks=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    NamedForm(
        name="deepseek-v3.1",
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        middle="<｜tool▁sep｜>",
    ),
    NamedForm(
        name="kimi-k2",
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        middle="<|tool_call_argument_begin|>",
        head=r"functions\.(?P<name>.+):\d+",
        written_head="functions.{name}:{index}",
        is_id=True,
    ),
    NamedForm(
        name="solar",
        open="<|tool_calls|>",
        call=("<|tool_call:begin|>", "<|tool_call:end|>"),
        middle="<|tool_call:args|>",
        head=r"(?P<id>.*)<\|tool_call:name\|>(?P<name>.+)",
        written_head="{id}<|tool_call:name|>{name}",
        more_marks=("<|tool_call:name|>",),
    ),
    # Mistral 7B 0.3, Nemo, Mixtral 8x22B, Mistral Large 2407
    JsonForm(name="mistral", open="[TOOL_CALLS]", many="list", keys=("name", "arguments", "id")),
    # Devstral, Ministral 3, Magistral
    NamedForm(name="mistral-v13", open="[TOOL_CALLS]", middle="[ARGS]", head=r"(?P<name>[^\[]+)"),
    # Mistral Small 3.2
    NamedForm(
        name="mistral-v11",
        open="[TOOL_CALLS]",
        middle="[ARGS]",
        head=r"(?P<name>[^\[]+)\[CALL_ID\](?P<id>[^\[]+)",
        written_head="{name}[CALL_ID]{id}",
        more_marks=("[CALL_ID]",),
    ),
    HarmonyForm(
        name="harmony",
        has_headers=True,
        hints=("<|start|>system<|message|>",),
        open="<|start|>",
        more_marks=("<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    ),
    GemmaForm(name="gemma", open="<|tool_call>call:", close="<tool_call|>", quote='<|"|>'),
    GemmaForm(name="functiongemma", open="<start_function_call>call:", close="<end_function_call>", quote="<escape>"),
    # Granite 3
    JsonForm(
        name="granite", open="<|tool_call|>", many="list", hints=("<|start_of_role|>available_tools<|end_of_role|>",)
    ),
    JsonForm(name="phi4", open="<|tool_call|>", close="<|/tool_call|>", many="list", hints=("<|tool|>",)),
    # LFM 2 and 2.5
    PythonForm(
        name="lfm2",
        open="<|tool_call_start|>",
        close="<|tool_call_end|>",
        hints=("List of tools: <|tool_list_start|>[", "List of tools: ["),
    ),
    PythonForm(name="olmo3", open="<function_calls>", close="</function_calls>", is_list=False),
    # Command R7B, Command A
    JsonForm(
        name="cohere",
        open="<|START_ACTION|>",
        close="<|END_ACTION|>",
        many="list",
        keys=("tool_name", "parameters", "tool_call_id"),
    ),
    JsonForm(
        name="command-r", open="Action:\n```json\n", close="\n```", many="list", keys=("tool_name", "parameters", "")
    ),
    # Apriel; Jamba, Hunyuan A13B
    JsonForm(name="apriel", open="<tool_calls>", close="</tool_calls>", many="list", keys=("name", "arguments", "id")),
    JsonForm(name="minimax-m1", open="<tool_calls>", close="</tool_calls>", many="lines", gap="\n"),
    JsonForm(name="nemotron-v2", open="<TOOLCALL>", close="</TOOLCALL>", many="list"),
    JsonForm(name="apertus", open="<|tools_prefix|>", close="<|tools_suffix|>", many="list", keys=("", "", "")),
    JsonForm(name="gigachat3.1", open="<|function_call|>"),
    JsonForm(
        name="gigachat3",
        hints=("function call<|role_sep|>",),
        open="<|message_sep|>\n\nfunction call<|role_sep|>",
        gap="\n",
    ),
    JsonForm(name="functools", open="functools", many="list", follows=r"\["),  # Firefunction 2, Phi-4-mini
    # The calls are the whole turn.
    LlamaForm(name="llama-json", open="<|python_tag|>"),
    RecipientForm(name="functionary-v3.2", open=">>>", has_headers=True),
    PythonForm(name="llama4-pythonic", open=""),
)
"""All forms, in the order in which they are tried on what a template writes."""


def find_form(name: str) -> CallForm:
    """Return the form with that name, e.g. `hermes`.

    Raises:
        KeyError: if no form has that name.
    """
    return _BY_NAME[name]


_BY_NAME = {form.name: form for form in FORMS}
