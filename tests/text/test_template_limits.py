"""Hostile templates: each must end soon, with an error that says why, and without taking the memory it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from minfer.errors import TemplateError
from minfer.text import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
TOO_MUCH = "makes too much"
TOO_LARGE = "too large to write out"


def render(source: str, **variables: Any) -> str:
    template = ChatTemplate(source)
    return template.render_plain(template.variables(MESSAGES, None, True, variables))


def doubling(expression: str, start: str = "'ab'") -> str:
    """Forty rounds of an expression that makes two of one, so that the last is a million million times the first."""
    return f"{{% set ns = namespace(x={start}) %}}{{% for i in range(40) %}}{expression}{{% endfor %}}"


REPEATED = {
    "times": "{{ 'x' * 10**9 }}",
    "times, the other way": "{{ 10**9 * 'x' }}",
    "a list, times": "{{ ([0] * 10**9) | length }}",
    "plus": doubling("{% set ns.x = ns.x + ns.x %}"),
    "a list, plus": doubling("{% set ns.x = ns.x + ns.x %}", "[1]"),
    "tilde": doubling("{% set ns.x = ns.x ~ ns.x %}"),
    "a block": doubling("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "join": doubling("{% set ns.x = [ns.x, ns.x] | join %}"),
    "join, the method": doubling("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    "replace": doubling("{% set ns.x = ns.x | replace('a', ns.x) %}"),
    "replace, the method": doubling("{% set ns.x = ns.x.replace('a', ns.x) %}"),
    "percent": doubling("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    "format": doubling("{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"),
    "format, the method": doubling("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "a slice": "{% set s = 'x' * 100000 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(99999) %}{% set ns.l = ns.l + [s[1:]] %}{% endfor %}",
    "a search from the right": "{{ ('a' * 10**6).rfind('a' * 10**5 ~ 'b' ~ 'a' * 10**5) }}",
    "a split from the right": "{{ ('a' * 10**6).rsplit(sep='a' * 10**5 ~ 'b') }}",
    "strip": "{{ ('a' * 10**6).strip('b' * 10**5 ~ 'a') }}",
    "trim": "{{ ('a' * 10**6) | trim('b' * 10**5 ~ 'a') }}",
    "digits": "{{ [9 ** 1000] * 10**5 }}",
    "indent": "{{ ('\\n' * 9999) | indent(9999) }}",
    "tojson": "{{ [[1]] | tojson(indent=10**9) }}",
    "tojson's separators": "{{ range(9999) | list | tojson(separators=(',' * 9999, ':')) }}",
    "text in a loop": "{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}",
    "text in a block in a loop": "{% set x %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}",
    "text of a macro": "{% macro m() %}" + "y" * 9999 + "{% endmacro %}"
    "{% for i in range(99999) %}{% set x = m() %}{% endfor %}",
}

NESTED = {
    "a list": doubling("{% set ns.x = [ns.x, ns.x] %}", "[1]") + "{{ ns.x }}",
    "a tuple": doubling("{% set ns.x = (ns.x, ns.x) %}", "(1,)") + "{{ {ns.x: 1} }}",
    "a dict": doubling("{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{}") + "{{ ns.x | tojson }}",
    "dict()": doubling("{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{}") + "{{ ns.x | string }}",
    "batch": doubling("{% set ns.x = [ns.x, ns.x] | batch(2) | list %}", "[1]") + "{{ ns.x }}",
    "arguments": "{% macro m(n) %}{{ m(n - 1, varargs, varargs) if n else varargs }}{% endmacro %}{{ m(40, 1) }}",
}

REFUSED = {
    "a long range": ("{{ range(10**12) | list }}", "Range too big"),
    "a large power": ("{{ 9 ** 99999 }}", "power of more than 4096 bits"),
    "a large product": (doubling("{% set ns.x = ns.x * ns.x %}", "3"), "integer of more than 4096 bits"),
    "a large number in a text": ("{{ ('f' * 9999) | int(base=16) }}", "integer of more than 4096 bits"),
    "a wide percent": ("{{ '%1000000000d' % 1 }}", "width above 999"),
    "a width from outside": ("{{ '%*d' % (10**9, 1) }}", "width above 999"),
    "a width behind parentheses": ("{{ '%((x))1000000000d' % {'(x)': 1} }}", "or with a hidden one"),
    "a width behind a bracket": ("{{ '{0[}]:1000000000}'.format({'}': 1}) }}", "width above 999"),
    "a long percent": ("{{ '%.1000000000f' % 1 }}", "width above 999"),
    "a wide format": ("{{ ['%1000000000d'] | map('format', 1) | list }}", "width above 999"),
    "a wide str.format": ("{{ '{:1000000000}'.format(1) }}", "width above 999"),
    "a nested str.format": ("{{ '{0:{1}}'.format(1, 10**9) }}", "width above 999"),
    "a wide str.format_map": ("{{ '{a:1000000000}'.format_map({'a': 1}) }}", "width above 999"),
    "many batches": ("{{ [1] | batch(10**9, 0) | list }}", "'batch' for 1000000000 parts"),
    "many slices": ("{{ [1] | slice(10**9) | list }}", "'slice' for 1000000000 parts"),
    "round": ("{{ 1.5 | round(10**9, 'floor') }}", "rounds to 1000000000 digits"),
    "sum of lists": ("{{ [[1]] | sum(start=[]) }}", "'sum', which is not supported"),
    "a namespace written out": ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "namespace"),
    "a namespace in a list": ("{% set ns = namespace() %}{% set ns.x = [ns] %}", "namespace"),
    "a namespace formatted": ("{% set ns = namespace() %}{{ '{}'.format(ns) }}", "namespace"),
    "a filtered namespace": ("{% set ns = namespace() %}{{ ns | upper }}", "filter on a Namespace"),
    "a macro without end": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests too deep"),
    "a block without end": ("{% block a %}{{ self.a() }}{% endblock %}", "nests too deep"),
    "a loop without end": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nests too deep"),
    "nesting without end": (
        "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "nests lists too deep",
    ),
    "nesting by items": (
        "{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = {1: ns.x}.items() | first %}{% endfor %}",
        "nests lists too deep",
    ),
    "a tuple looked up": ("{{ {(1, 2): 3}[(1, 2)] }}", "looks up a tuple"),
    "bytes": ("{{ (1).to_bytes(10**9, 'big') }}", "'to_bytes' .* is unsafe"),
    "padding": ("{{ 'x'.ljust(10**9) }}", "'ljust' .* is unsafe"),
    "Python's insides": ("{{ ''.__class__.__mro__ }}", "'__class__' .* is unsafe"),
    "a function's globals": ("{{ cycler.__init__.__globals__ }}", "'__init__' .* is unsafe"),
    "changing a message": ("{{ messages.append(1) }}", "'append' .* is unsafe"),
    "text without sense": ("{{ lipsum(n=10**6) }}", "'lipsum' is undefined"),
}


@pytest.mark.parametrize("source", REPEATED.values(), ids=REPEATED)
def test_what_grows_is_paid_for_before_it_is_made(source: str) -> None:
    with pytest.raises(TemplateError, match=TOO_MUCH):
        render(source)


@pytest.mark.parametrize("source", NESTED.values(), ids=NESTED)
def test_what_holds_itself_twice_counts_twice(source: str) -> None:
    with pytest.raises(TemplateError, match=TOO_LARGE):
        render(source)


@pytest.mark.parametrize(("source", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_bounded_is_refused(source: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% set y = -1 in l %}{% endfor %}",
    ],
    ids=["an endless loop", "long searches"],
)
def test_work_that_makes_nothing_ends_when_the_time_is_up(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minfer.text.template.budget.BASE_SECONDS", 0.05)
    with pytest.raises(TemplateError, match=r"takes too long: more than 0\.1 s"):
        render(source)


@pytest.mark.parametrize(
    "expression",
    [
        "a == " * 99 + "a",
        "a is ne a or " * 50 + "a",
        "a | length or " * 50 + "a",
        "a + " * 50 + "a",
        "f() or " * 50 + "a",
    ],
    ids=["comparisons", "tests", "filters", "operators", "calls"],
)
def test_every_step_is_counted(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{{% macro f() %}}{{% endmacro %}}{{{{ {expression} }}}}"
    assert render(source, a=[]) in ("True", "[]")
    monkeypatch.setattr("minfer.text.template.budget.BASE_UNITS", 40)
    monkeypatch.setattr("minfer.text.template.budget.UNITS_PER_INPUT", 0)
    with pytest.raises(TemplateError, match=TOO_MUCH):
        render(source, a=[])


def test_more_may_come_of_more() -> None:
    source = "{% for d in documents %}{{ d }}{{ d | upper }}{{ d.replace('a', 'bcd') }}{% endfor %}"
    documents = ["a" * 100_000] * 20
    assert len(render(source, documents=documents)) == 5 * 2_000_000


def test_a_long_conversation_is_no_attack() -> None:
    source = "{% for m in messages %}{{ m.role ~ ': ' + m.content | trim + '\\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 100}] * 3000
    assert len(ChatTemplate(source).render(messages)) == 3000 * 107
