from __future__ import annotations

import json
from typing import Any

import pytest

from minfer.errors import MinferError, ParameterError, TemplateError, UnsupportedError
from minfer.text import ChatTemplate
from minfer.text.messages import plain_messages
from text_vocabularies import real_tokenizer

HI = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = HI, tools: Any = None, **others: Any) -> str:
    """What a template writes, whether or not it keeps the messages."""
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render_plain(template.variables(plain_messages(messages), tools, True, others))


def test_the_default_model_adds_its_system_message_only_where_there_is_none() -> None:
    tokenizer = real_tokenizer("smollm2-135m")
    default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    turn, start = "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|>assistant\n"
    assert tokenizer.apply_template(HI) == default + turn + start
    assert tokenizer.apply_template(HI, add_generation_prompt=False) == default + turn
    system = {"role": "system", "content": "S"}
    assert tokenizer.apply_template([system, *HI]) == "<|im_start|>system\nS<|im_end|>\n" + turn + start


def test_qwen_writes_tools_and_calls() -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "<now> & später", "parameters": {}}}
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    messages: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "21"},
        {"role": "tool", "content": "22"},
    ]
    text = real_tokenizer("qwen2.5-coder-0.5b").apply_template(messages, tools=[tool])
    assert f"<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>" in text
    assert text.endswith(
        "<|im_start|>user\nhi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ add_generation_prompt }}", "<s>|</s>||True"),
        ("{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }}", "True True False"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "013"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("  {%- if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
         '{"a":1,"b":"\\u00e9"}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro f(x, y='d') %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}"
         "{{ f(1) }}{% call f(2) %}c{% endcall %}",
         "1d2dc"),
        ("{% for x in [[1, [2]], [3]] recursive %}"
         "{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
         "(1(2))(3)"),
        ("{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
         "{{ m.content.replace('h', 'H').strip() }}{{ ','.join(['a', 'b']) }}{{ '{}-{:>3}'.format(m.role, 7) }}"
         "{{ '%s!%03d' % ('x', 7) }}{% endfor %}",
         "TrueTrue1Hia,buser-  7x!007"),
        ("{{ 'a,b'.split(',')[1:] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][:-1] | list }}{{ messages[1:] }}",
         "['b']cba[1, 2][]"),
        ("{{ ['b', 'a'] | sort | join('-') }} {{ 'x' ~ 1 ~ none }} {{ messages | map(attribute='role') | list }}",
         "a-b x1None ['user']"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}", "hi"),
        ("{{ 'a\nb' | indent(2) }} {{ 'abc' | replace('b', '') }} {{ 'A' | lower }} {{ 2.5 | round | int }} "
         "{{ [1, 2] | sum }}",
         "a\n  b ac a 2 3"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3] | slice(2) | list }} {{ [1, 2] | join('-', attribute=0) }}",
         "[[1, 2], [3, 0]] [[1, 2], [3]] -"),
        ("{{ messages | join(' ', attribute='role') }} {% for g in messages | groupby('role') %}{{ g.grouper }}"
         "{{ g.list | length }}{% endfor %}",
         "user user1"),
        ("{{ ['a', 'b', 'a'] | unique | list }} {{ [3, 1] | min }} {{ [1, 2] | reverse | list }}",
         "['a', 'b'] 1 [2, 1]"),
        ("{{ [1, none] | string | upper }} {{ '%(a)d' | format(a=2) }}", "[1, NONE] 2"),
        ("{{ none | default('d', true) }} {{ missing | d(1) }} {{ '<' | escape }} {{ 'a b' | urlencode }}",
         "d 1 &lt; a%20b"),
        ("{{ {'a': 1}.items() | list }} {{ dict(a=1) }} {{ {'b': 2, 'a': 1} | dictsort }}",
         "[('a', 1)] {'a': 1} [('a', 1), ('b', 2)]"),
        ("{{ ('a', 'b') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 3 ** 2 * 2 % 5 }} {{ 'ab' * 2 }} {{ 1 < 2 < 3 }}",
         "('a', 'b') True 3 abab True"),
        ("{% for m in messages %}{% set x = '%d' %}{{ '{}'.format(x | format(3)) }}{{ x | e }}{% endfor %}"
         "{{ '%(a)s%(b)5.1f%%' % {'a': 'x', 'b': 2} }} {{ '{{{0[}]}!r}}'.format({'}': 1}) }} {{ 'xay' | trim('xy') }}",
         "3%dx  2.0% {1!r} a"),
        ("{% set x %}{{ messages[0].role }}!{% endset %}{% filter upper %}{{ x }}{% endfilter %}", "USER!"),
    ],
)  # fmt: skip
def test_templates_have_what_hugging_face_s_have(source: str, expected: str) -> None:
    assert render(source) == expected


def test_variables_reach_the_template() -> None:
    source = "{{ enable_thinking }} {{ documents[0].title }}"
    assert render(source, enable_thinking=False, documents=[{"title": "T"}]) == "False T"
    assert render("{{ tools[0].name }}", tools=({"name": "f"},)) == "f"


def test_the_text_parts_of_a_message_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


def test_messages_are_left_as_they_were() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    render("{{ messages }}", [message])
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("messages", "error", "problem"),
    [
        ([], ParameterError, r"at least one message, not list \[\]"),
        ("hi", ParameterError, "messages must be a list .* not str 'hi'"),
        (["hi"], ParameterError, r"messages\[0\] must be a mapping with a role and content, not str"),
        ([{"content": "hi"}], ParameterError, r"messages\[0\]\['role'\] must be a string such as 'user', not NoneType"),
        ([{"role": "", "content": "hi"}], ParameterError, r"\['role'\] must be"),
        ([*HI, {"role": "user"}], ParameterError, r"messages\[1\] has no content; only a message with tool calls"),
        ([{"role": "user", "content": 3}], ParameterError, r"\['content'\] must be a string or a list of text parts"),
        ([{"role": "user", "content": ["a"]}], ParameterError, r"\['content'\]\[0\] must be a part such as"),
        ([{"role": "user", "content": [{"type": "text"}]}], ParameterError, r"\[0\]\['text'\] must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], UnsupportedError, "part of type 'image_url'.*: text"),
        ([{"role": "user", "content": "hi", "x": b"raw"}], ParameterError, r"\['x'\] is bytes b'raw'"),
        ([{"role": "user", "content": "hi", 1: "x"}], ParameterError, r"messages\[0\] has the key 1"),
    ],
)
def test_messages_of_another_form_are_refused(messages: Any, error: type[MinferError], problem: str) -> None:
    with pytest.raises(error, match=problem):
        render("{{ messages }}", messages)


def test_values_that_nest_without_end_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ParameterError, match="nests deeper than 64 levels"):
        render("x", documents=loop)


def test_tools_must_be_a_list() -> None:
    with pytest.raises(ParameterError, match="tools must be a list of JSON schemas, not dict"):
        render("x", tools={"name": "f"})


def test_the_template_s_own_refusal_is_passed_on() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
    assert render(source) == "ok"
    with pytest.raises(TemplateError, match="System role not supported"):
        render(source, [{"role": "system", "content": "S"}])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("a\nb\n{% if %}", "does not compile, line 3"),
        ("{{ 1 | nonsense }}", "No filter named 'nonsense'"),
        ("{{ 'x' | center(9) }}", "No filter named 'center'"),
        ("a\nb\n{{ messages[0].x.y }}", r"fails in line 3: 'dict object' has no attribute 'x'"),
        ("{{ 1 / 0 }}", "fails in line 1: ZeroDivisionError"),
        ("\n{{ 'a' + 1 }}", "fails in line 2: TypeError"),
        ("{{ '%s' | format(1, a=2) }}", "positional and keyword arguments"),
        ("{% include 'other' %}", "no loader"),
        ("x" * 65_537, "65,537 characters; up to 65,536"),
        ("{{ " + "(" * 9999, "nests too deep"),
    ],
)
def test_a_template_that_fails_says_where(source: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        render(source)


def test_a_template_is_compiled_once() -> None:
    source = "{{ messages | map(attribute='content') | join }}"
    template = ChatTemplate(source)
    assert [template.render(HI * n) for n in (1, 2, 3)] == ["hi", "hihi", "hihihi"]
    assert template.source == source
    assert template.name == "default"
