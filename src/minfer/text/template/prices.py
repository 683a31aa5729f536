"""The string operations of templates that cost more than their arguments are long, each paid for before it is done.

Formatting can ask for any width. `replace` and `join` put one string into another many times. Searching from the right
and stripping a set of characters can take, in CPython, as long as the two strings' lengths multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from minfer.errors import TemplateError
from minfer.text.template.budget import Budget

MAX_WIDTH = 999

_PERCENT_FIELD = re.compile(
    r"%(?:(?P<open>\()[^()]*(?P<close>\))?)?[#0\- +]*(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
)
_WIDE = re.compile(r"\d{4}|\{")

SLOW_SEARCHES = frozenset(("rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"))


def percent_format(budget: Budget, template: str, values: Any) -> str:
    """`template % values`.

    Raises:
        TemplateError: a width or precision is large or an argument, or a key has parentheses in it, which may hide one.
    """
    for field in _PERCENT_FIELD.finditer(template):
        hidden = field["open"] and not field["close"]
        if hidden or any(part == "*" or len(part or "") > 3 for part in (field["width"], field["precision"])):
            raise _too_wide(field.group())
    budget.spend(len(template) + template.count("%") * (MAX_WIDTH + budget.size(values)))
    result: str = template % values
    return result


def check_brace_format(budget: Budget, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Pays for `template.format(*args, **kwargs)`.

    Raises:
        TemplateError: a width or precision is large or an argument.
    """
    n_fields = 0
    for _, name, specification, _ in Formatter().parse(template):
        n_fields += name is not None
        if specification and _WIDE.search(specification):
            raise _too_wide(specification)
    n_units = sum(budget.size(value) for value in (*args, *kwargs.values()))
    budget.spend(len(template) + n_fields * (MAX_WIDTH + n_units))


def replaced(budget: Budget, text: str, old: str, new: str, /, count: int = -1) -> str:
    """`text.replace(old, new, count)`."""
    n_places = text.count(old) if count < 0 else min(count, text.count(old))
    budget.spend(len(text) + n_places * len(new))
    return text.replace(old, new, count)


def joined(budget: Budget, separator: str, items: Iterable[str], /) -> str:
    """`separator.join(items)`."""
    parts = list(items)
    budget.spend(sum(map(budget.size, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def pay_for_search(budget: Budget, text: str, wanted: object) -> None:
    """Pays for one of `SLOW_SEARCHES` in a text."""
    if isinstance(wanted, str):
        budget.spend(len(text) * len(wanted))


def _too_wide(field: str) -> TemplateError:
    return TemplateError(
        f"the chat template formats with a width above {MAX_WIDTH}, or with a hidden one: {field!r:.99}"
    )
