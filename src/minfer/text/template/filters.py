"""The filters and tests of chat templates: Jinja's own, each of which pays for what it makes (see `sandbox`).

Where a small argument can make a large result, the price is reckoned before. `tojson` is that of Hugging Face's
templates. Filters that no chat template needs, and that would need such care too, are left out: a template that names
one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS, do_batch, do_indent, do_round, do_sum, make_attrgetter, sync_do_slice
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from minfer.errors import TemplateError
from minfer.text.template.budget import Budget
from minfer.text.template.prices import joined, pay_for_search, percent_format, replaced

_LEFT_OUT = frozenset(("center", "filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"))
_MAX_DIGITS = 999
_MAX_PARTS = 100_000


def bounded_filters() -> dict[str, Callable[..., Any]]:
    """All filters by name. Each takes the context, whose `budget` it uses, first."""
    own: dict[str, Callable[..., Any]] = {
        "format": _format,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "string": _string,
        "sum": _sum,
        "tojson": _tojson,
        "trim": _trim,
        "batch": _in_parts("batch", do_batch),
        "slice": _in_parts("slice", sync_do_slice),
    }
    kept: dict[str, Any] = {name: function for name, function in FILTERS.items() if name not in _LEFT_OUT}
    return {name: _paid(function, refused=(Namespace,)) for name, function in (kept | own).items()}


def bounded_tests() -> dict[str, Any]:
    """All tests (`is defined`) by name. Each takes the context first, too."""
    tests: dict[str, Any] = TESTS
    return {name: _paid(function) for name, function in tests.items()}


def _paid(function: Callable[..., Any], refused: tuple[type, ...] = ()) -> Callable[..., Any]:
    """A filter or test that takes the context first, and pays for its result; an iterator becomes a list.

    It is not used on values of the `refused` types: a namespace has no bounded size to write out (see `Budget.size`).
    """
    takes = getattr(function, "jinja_pass_arg", None)

    @pass_context
    @wraps(function, assigned=("__name__", "__doc__"), updated=())
    def paid(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.budget
        budget.spend(1)
        if isinstance(value, refused):
            raise TemplateError(f"the chat template uses a filter on a {type(value).__name__}, which is not supported")
        result = function(*_passed(takes, context), value, *args, **kwargs)
        return budget.charge(list(result) if isinstance(result, Iterator) else result)

    return paid


def _passed(takes: Any, context: Any) -> tuple[Any, ...]:
    """What Jinja would give a function marked with `pass_context` and the like as its first argument."""
    match None if takes is None else takes.name:
        case "context":
            return (context,)
        case "eval_context":
            return (context.eval_ctx,)
        case "environment":
            return (context.environment,)
        case _:
            return ()


@pass_context
def _string(context: Any, value: Any) -> str:
    budget: Budget = context.budget
    return budget.text(value)


@pass_context
def _tojson(
    context: Any,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget: Budget = context.budget
    width = len(indent) if isinstance(indent, str) else indent or 0
    per_item = width * (budget.depth(value) + 1) + sum(map(len, separators or ()))
    # Every item takes eight units at least, and an escaped character twelve bytes at most.
    budget.spend(budget.size(value) * (1 + per_item // 8 + (11 if ensure_ascii else 1)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _join(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    budget: Budget = context.budget
    items = list(value) if attribute is None else list(map(make_attrgetter(context.environment, attribute), value))
    return joined(budget, budget.text(d), [budget.text(item) for item in items])


@pass_context
def _replace(context: Any, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    budget: Budget = context.budget
    text, old_text, new_text = budget.text(s), budget.text(old), budget.text(new)
    return replaced(budget, text, old_text, new_text, -1 if count is None else count)


@pass_context
def _trim(context: Any, value: Any, chars: str | None = None) -> str:
    budget: Budget = context.budget
    text = budget.text(value)
    pay_for_search(budget, text, chars)
    return text.strip(chars)


@pass_context
def _format(context: Any, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return percent_format(context.budget, str(value), kwargs or args)


@pass_context
def _indent(context: Any, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    n_columns = len(width) if isinstance(width, str) else width
    context.budget.spend((s.count("\n") + 1) * max(n_columns, 0))
    return do_indent(s, width, first, blank)


@pass_context
def _round(context: Context, value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > _MAX_DIGITS:
        raise TemplateError(f"the chat template rounds to {precision} digits")
    return do_round(value, precision, method)


@pass_context
def _sum(context: Context, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise TemplateError(
            "the chat template adds up what are no numbers with the filter 'sum', which is not supported"
        )
    return do_sum(context.environment, iterable, attribute, start)


def _in_parts(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def in_parts(value: Any, n: int, fill_with: Any = None) -> Any:
        if n > _MAX_PARTS:
            raise TemplateError(f"the chat template asks the filter {name!r} for {n} parts")
        return function(value, n, fill_with)

    return in_parts
