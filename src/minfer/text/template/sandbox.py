"""Jinja, made safe for templates from files: nothing they do can take much time or memory, or reach outside.

Jinja's `ImmutableSandboxedEnvironment` hides Python's insides and keeps values from being changed. Here, everything
that makes a value also asks the rendering's `Budget`, before it does so where much can come out of little:

- operators, calls, filters and tests have hooks in Jinja;
- loops, comparisons, `~`, slices, and list, tuple and dict displays have none, so before a template is compiled they
  are rewritten in its syntax tree into calls of the environment's own methods;
- of methods, those that no chat template needs are out of reach.

What remains costs no more than the template is long, which `template` limits.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from types import MethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from minfer.errors import TemplateError
from minfer.text.template.budget import MAX_INT_BITS, Budget
from minfer.text.template.filters import bounded_filters, bounded_tests
from minfer.text.template.prices import (
    SLOW_SEARCHES,
    check_brace_format,
    joined,
    pay_for_search,
    percent_format,
    replaced,
)

_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        (
            *("capitalize", "casefold", "lower", "swapcase", "title", "upper"),
            *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
            *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isnumeric"),
            *("islower", "isspace", "istitle", "isupper"),
            *("join", "partition", "replace", "rpartition", "rsplit", "split", "splitlines"),
            *("lstrip", "removeprefix", "removesuffix", "rstrip", "strip"),
        )
    ),
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index", "grouper", "list")),  # the last two are of the filter `groupby`
    int: frozenset(),
    float: frozenset(("is_integer",)),
    range: frozenset(),
    type(None): frozenset(),
}
_JINJA_KEYWORDS = frozenset(("_loop_vars", "_block_vars"))  # what compiled templates add to every call in a loop


class BudgetContext(Context):
    """The variables of one rendering, and what it may use."""

    budget: Budget

    def derived(self, locals: dict[str, Any] | None = None) -> BudgetContext:  # noqa: A002 (Jinja's name)
        context = super().derived(locals)
        assert isinstance(context, BudgetContext)
        context.budget = self.budget
        return context


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """An environment for templates that nobody has looked at. Its contexts need a `budget` before they are used."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=("jinja2.ext.loopcontrols", _GenerationBlock),
            finalize=_finalize,
            optimized=False,  # it would work out constants while it compiles, where no budget holds
        )
        self.context_class = BudgetContext
        self.filters = bounded_filters()
        self.tests = bounded_tests()
        del self.globals["lipsum"]

    def compile_bounded(self, source: str) -> Any:
        """Compiles a template with the budget's checks in it."""
        tree = _BudgetCalls().visit(self.parse(source))
        return self.compile(tree)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            raise TemplateError("the chat template looks up a tuple, which is not supported")
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        if operator == "*":
            budget.spend(_product_units(budget, left, right))
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            budget.spend(len(left) + len(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > MAX_INT_BITS:
                raise TemplateError(f"the chat template computes a power of more than {MAX_INT_BITS} bits")
        elif operator == "%" and isinstance(left, str):
            return budget.charge(percent_format(budget, left, right))
        return budget.charge(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _budget(__context)
        if isinstance(__obj, MethodType) and __obj.__self__ is __self:
            return __obj(budget, *args)  # a call that `_BudgetCalls` has put there
        keywords = {name: value for name, value in kwargs.items() if name not in _JINJA_KEYWORDS}
        for value in (*args, *keywords.values()):
            if not isinstance(value, Namespace):
                budget.size(value)
        if isinstance(__obj, LoopContext) and args:
            args = (__self.bounded_iteration(budget, args[0], 0), *args[1:])  # a recursive loop over something else
        receiver = getattr(__obj, "__self__", None)
        text, method = (receiver, __obj.__name__) if isinstance(receiver, str) else ("", "")
        if method in SLOW_SEARCHES:
            pay_for_search(budget, text, args[0] if args else keywords.get("sep"))
        if method == "replace":
            result: Any = replaced(budget, text, *args, **keywords)
        elif method == "join":
            result = joined(budget, text, *args, **keywords)
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, (Iterator, KeysView, ValuesView, ItemsView)):
            result = list(result)
        return budget.charge(result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        format_ = super().wrap_str_format(value)
        if format_ is None:
            return None
        template: str = value.__self__

        @pass_context
        def bounded_format(context: Context, *args: Any, **kwargs: Any) -> str:
            check_brace_format(_budget(context), template, args, kwargs)
            return format_(*args, **kwargs)

        return bounded_format

    # What `_BudgetCalls` writes into templates. `call` hands these the budget.

    def bounded_iteration(self, budget: Budget, items: Iterable[Any], n_static: int) -> Iterator[Any]:
        """The items of a loop; each costs the text that stands in the loop's body."""
        for item in items:
            budget.spend(1 + n_static)
            yield item

    def bounded_operand(self, budget: Budget, value: Any) -> Any:
        budget.spend(1)
        return value

    def bounded_concat(self, budget: Budget, *parts: Any) -> str:
        return "".join([budget.text(part) for part in parts])

    def bounded_slice(self, budget: Budget, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return budget.charge(value[start:stop:step])

    def bounded_list(self, budget: Budget, *items: Any) -> list[Any]:
        return budget.charge(list(items))

    def bounded_tuple(self, budget: Budget, *items: Any) -> tuple[Any, ...]:
        return budget.charge(items)

    def bounded_dict(self, budget: Budget, *items: Any) -> dict[Any, Any]:
        return budget.charge(dict(zip(items[::2], items[1::2], strict=True)))


class _BudgetCalls(NodeTransformer):
    """Rewrites what Jinja has no hook for into calls of `BoundedEnvironment.bounded_...`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's naming)
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        n_static = sum(len(data.data) for statement in node.body for data in statement.find_all(nodes.TemplateData))
        node.iter = _call("bounded_iteration", node.iter, nodes.Const(n_static))
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _operand(node.expr)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _operand(node.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("bounded_concat", *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step))
        return _call("bounded_slice", node.node, *bounds)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if _all_constant(node.items) else _call("bounded_list", *node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.ctx != "load" or _all_constant(node.items):
            return node
        return _call("bounded_tuple", *node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("bounded_dict", *(part for pair in node.items for part in (pair.key, pair.value)))


class _GenerationBlock(Extension):
    """`{% generation %}`: marks what the assistant said, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _finalize(context: Context, value: Any) -> str:
    return _budget(context).text(value)


def _budget(context: Context) -> Budget:
    assert isinstance(context, BudgetContext)
    return context.budget


def _call(method: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


def _operand(expression: nodes.Expr) -> nodes.Expr:
    return expression if isinstance(expression, nodes.Const) else _call("bounded_operand", expression)


def _all_constant(items: Iterable[nodes.Expr]) -> bool:
    return all(isinstance(item, nodes.Const) for item in items)


def _product_units(budget: Budget, left: Any, right: Any) -> int:
    if isinstance(left, (str, list, tuple)) and isinstance(right, int):
        return budget.size(left) * max(right, 0)
    if isinstance(right, (str, list, tuple)) and isinstance(left, int):
        return budget.size(right) * max(left, 0)
    return 0
