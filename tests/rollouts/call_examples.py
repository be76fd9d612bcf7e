"""Turns with tool calls as families of models write them, well and badly."""

# ruff: noqa: RUF001 - the bars in DeepSeek's tags are wide ones

from typing import Any

from gumshoe.environments.tools import Call

PROPERTIES = {
    "word": {"type": "string", "description": "A word."},
    "n": {"type": "integer", "description": "A number."},
    "x": {"type": "number", "description": "A number."},
    "sure": {"type": "boolean", "description": "Yes or no."},
    "maybe": {"type": "string", "nullable": True, "description": "A word."},
    "many": {"type": "array", "items": {"type": "string"}, "description": "Words."},
    "thing": {
        "type": "object",
        "properties": {"k": {"type": "string"}, "m": {"type": "array", "items": {"type": "integer"}}},
        "description": "A thing.",
    },
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["word"]},
    },
}
ODD = " <b>\"é\"</b> & \\n '漢😀'\n\nline {a}, [b]: c=(d); "
EVERYTHING = {
    "word": ODD,
    "n": -3,
    "x": 1.5,
    "sure": True,
    "many": ["a", ODD],
    "thing": {"k": ODD, "m": [1, 2]},
}
LOOK, TWO = Call("look", {"word": "a"}), Call("look", {"word": "b", "n": 2})
EXAMPLES = [
    (
        "hermes",
        'So.\n<tool_call>\n{"name": "look", "arguments": {"word": "a"}}\n</tool_call>'
        '<tool_call>{"arguments": {"n": 2, "word": "b"}, "name": "look", "why": 1}</tool_call>\nDone.',
        [LOOK, TWO],
        "So.\n\nDone.",
    ),
    (
        "hermes",
        '</tool_call><tool_call>{"name": "look", "arguments": {"word": "</tool_call><tool_call>"}}</tool_call>',
        [Call("look", {"word": "</tool_call><tool_call>"})],
        "</tool_call>",
    ),
    (
        "qwen-xml",
        "<tool_call>\n<function=look>\n<parameter=word>\n\n 2\n\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
        "<parameter=sure>\nTrue\n</parameter>\n<parameter=maybe>\nNone\n</parameter>\n<parameter=x>\nlots\n</parameter>\n"
        "<parameter=other>\n3\n</parameter>\n</function>\n</tool_call>",
        [Call("look", {"word": "\n 2\n", "n": 2, "sure": True, "maybe": None, "x": "lots", "other": "3"})],
        "",
    ),
    (
        "glm",
        "I see.\n<tool_call>look\n<arg_key>word</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"
        "<tool_call>look<arg_key>word</arg_key><arg_value>b</arg_value><arg_key>n</arg_key><arg_value>2</arg_value></tool_call>",
        [LOOK, TWO],
        "I see.",
    ),
    (
        "minicpm",
        '<function name="look"><param name="word"><![CDATA[<a>]]></param></function>',
        [Call("look", {"word": "<a>"})],
        "",
    ),
    (
        "minimax",
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="word">a</parameter>\n</invoke>\n'
        '<invoke name="look"><parameter name="word">b</parameter><parameter name="n">2</parameter></invoke>\n'
        "</minimax:tool_call>",
        [LOOK, TWO],
        "",
    ),
    (
        "deepseek-v3.2",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="word" string="true">2'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        [Call("look", {"word": "2", "n": 2})],
        "",
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
        '{"word": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [LOOK],
        "",
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:4<|tool_call_argument_begin|>"
        '{"word": "a"}<|tool_call_end|><|tool_calls_section_end|>',
        [Call("look", {"word": "a"}, "functions.look:4")],
        "",
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "look", "arguments": {"word": "a"}, "id": "abcdefghi"}]',
        [Call("look", {"word": "a"}, "abcdefghi")],
        "",
    ),
    (
        "mistral-v11",
        'Hm.[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{"word": "a"}',
        [Call("look", {"word": "a"}, "abcdefghi")],
        "Hm.",
    ),
    ("mistral-v13", '[TOOL_CALLS]look[ARGS]{"word": "a"}[TOOL_CALLS]look[ARGS]{"word": "b", "n": 2}', [LOOK, TWO], ""),
    (
        "harmony",
        "<|channel|>analysis<|message|>Look to=functions.look!<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.look "
        '<|constrain|>json<|message|>{"word": "a"}<|call|><|start|>assistant to=functions.look<|channel|>analysis'
        '<|message|>{"word": "b", "n": 2}',
        [LOOK, TWO],
        "",
    ),
    (
        "gemma",
        '<|tool_call>call:look{n:-1.5e3,sure:true,maybe:null,many:[<|"|>},{<|"|>,[]],thing:{<|"|>k<|"|>:<|"|>"<|"|>}}<tool_call|>',
        [Call("look", {"n": -1500.0, "sure": True, "maybe": None, "many": ["},{", []], "thing": {"k": '"'}})],
        "",
    ),
    ("functiongemma", "<start_function_call>call:look{word:<escape>a<escape>}<end_function_call>", [LOOK], ""),
    ("granite", '<|tool_call|>[{"name": "look", "arguments": {"word": "a"}}]', [LOOK], ""),
    (
        "lfm2",
        "<|tool_call_start|>[look(word='a'), look(word=\"it's\\n\\x41\", n=-2, "
        "many=['a', {'b': [None, true]}],)]<|tool_call_end|>Wait.",
        [LOOK, Call("look", {"word": "it's\nA", "n": -2, "many": ["a", {"b": [None, True]}]})],
        "Wait.",
    ),
    ("olmo3", '<function_calls>look(word="a")\nlook(word="b", n=2)</function_calls>', [LOOK, TWO], ""),
    ("llama4-pythonic", "[look(word='a'), look(word='b', n=2)]", [LOOK, TWO], ""),
    (
        "cohere",
        '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "look", "parameters": {"word": "a"}}\n]<|END_ACTION|>',
        [Call("look", {"word": "a"}, "0")],
        "",
    ),
    ("apertus", '<|tools_prefix|>[{"look": {"word": "a"}}]<|tools_suffix|>', [LOOK], ""),
    ("functools", 'functools[{"name": "look", "arguments": {"word": "a"}}]', [LOOK], ""),
    (
        "llama-json",
        '{"name": "look", "parameters": {"word": "a"}}; {"type": "function", "name": "look", '
        '"parameters": {"word": "b", "n": 2}}',
        [LOOK, TWO],
        "",
    ),
    ("llama-json", 'I look.<|python_tag|>{"name": "look", "arguments": {"word": "a"}}\n', [LOOK], "I look."),
    ("functionary-v3.1", '<function=look>{"word": "a"}</function>', [LOOK], ""),
    ("functionary-v3.2", 'all\nI look.>>>look\n{"word": "a"}>>>look\n{"word": "b", "n": 2}', [LOOK, TWO], "I look."),
    (
        "minimax-m3",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="look">]<]minimax[>[<word>5]<]minimax[>[</word>'
        "]<]minimax[>[<many>]<]minimax[>[</many>]<]minimax[>[<thing>]<]minimax[>[<m>]<]minimax[>[<item>1]<]minimax[>[</item>"
        "]<]minimax[>[</m>]<]minimax[>[</thing>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        [Call("look", {"word": "5", "many": [], "thing": {"m": [1]}})],
        "",
    ),
]


PROSE = [
    "",
    "Yes.",
    "f(x) = {x: 1} [and so on]",
    '{"answer": 3}',
    "{see below}",
    "[1] is a footnote",
    "Yes:\nno",
    "a > b",
]

BROKEN = [
    ("hermes", '<tool_call>{"name": "look", "argu', "cut off"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {}}', "cut off"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {},}</tool_call>', "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"x": NaN}}</tool_call>', "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"x": 1e999}}</tool_call>', "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"x": "\\ud800"}}</tool_call>', "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"x": "\ud800"}}</tool_call>', "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"x": "\n"}}</tool_call>', "not JSON"),
    ("hermes", "<tool_call></tool_call>", "not JSON"),
    ("hermes", f"<tool_call>{'[' * 100_000}</tool_call>", "not JSON"),
    ("hermes", f"<tool_call>{'9' * 5000}</tool_call>", "not JSON"),
    ("hermes", '<tool_call>{"name": "look", "arguments": "{}"}</tool_call>', "is not {"),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', "is not {"),
    ("hermes", '<tool_call>{"name": "look", "parameters": {}}</tool_call>', "is not {"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {}} more</tool_call>', "in place of"),
    ("hermes", '<tool_call>{"name": "look", "arguments": {}}</tool_call><tool_call>', "cut off"),
    ("qwen-xml", "<tool_call>\n<function=look>\n<parameter=word>\na", "cut off"),
    ("qwen-xml", "<tool_call>\n<function=look>\n</tool_call>", "in place of"),
    ("qwen-xml", "<tool_call><function=look><parameter=word>a</parameter>b</function></tool_call>", "in place of"),
    ("qwen-xml", '<tool_call>{"name": "look", "arguments": {}}</tool_call>', "in place of"),
    ("qwen-xml", "<tool_call></tool_call>", "no call between"),
    ("qwen-xml", "<tool_call><function=look><parameter=word>\ud800</parameter></function></tool_call>", "not JSON"),
    ("glm", "<tool_call>look<arg_key>word</arg_key>a</tool_call>", "in place of"),
    ("glm", "<tool_call></tool_call>", "in place of a name"),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="look"><｜DSML｜parameter name="n" string="false">x'
     "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>", "not JSON"),
    ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>look<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>", "functions"),
    ("mistral", '[TOOL_CALLS][{"name": "look", "arguments": {"word": "a', "cut off"),
    ("mistral", '[TOOL_CALLS][{"name": "look", "arguments": {}}] Done.', "text after"),
    ("mistral", '[TOOL_CALLS]{"name": "look", "arguments": {}}', "list"),
    ("mistral", "[TOOL_CALLS][]", "no call between"),
    ("mistral-v13", "[TOOL_CALLS]look[ARGS][1]", "arguments are not"),
    ("harmony", " to=functions.look<|channel|>comm", "cut off"),
    ("harmony", ' to=functions.look<|channel|>commentary json<|message|>{"word": ', "cut off"),
    ("harmony", "<|channel|>commentary to=browser.open<|message|>{}", "browser.open"),
    ("gemma", '<|tool_call>call:look{word:<|"|>a}<tool_call|>', "cut off"),
    ("gemma", "<|tool_call>call:look{word:a b}<tool_call|>", "not a value"),
    ("gemma", f"<|tool_call>call:look{{many:{'[' * 100_000}}}<tool_call|>", "nested"),
    ("lfm2", "<|tool_call_start|>[look(word='a", "cut off"),
    ("lfm2", "<|tool_call_start|>[look(wo", "cut off"),
    ("lfm2", "<|tool_call_start|>[look('a')]<|tool_call_end|>", "without a name"),
    ("lfm2", "<|tool_call_start|>[look(word=b)]<|tool_call_end|>", "not a value"),
    ("lfm2", "<|tool_call_start|>[look(word='\\ud800')]<|tool_call_end|>", "not JSON"),
    ("lfm2", "<|tool_call_start|>[look(word='\\U11111111')]<|tool_call_end|>", "not a character"),
    ("lfm2", f"<|tool_call_start|>[look(many={'[' * 100_000})]<|tool_call_end|>", "nested"),
    ("llama-json", '{"name": "look", "parameters": {"wo', "cut off"),
    ("llama-json", '{"name": "look", "parameters": {}} and more', "not JSON"),
    ("llama-json", '<|python_tag|>look.call(word="a")', "not JSON"),
    ("llama-json", '{"name": "look"}', "is not {"),
    ("functionary-v3.2", 'look\n{"word": "a"} more', "text after"),
]  # fmt: skip
