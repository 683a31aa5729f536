"""Chat templates: the Jinja program in a GGUF file that writes a conversation as the model was trained to read it.

What templates may use is what Hugging Face's `transformers` gives them: `messages`, `tools`, `documents`,
`add_generation_prompt`, the special tokens as `bos_token`, `eos_token`, ..., `raise_exception`, `strftime_now`, the
filter `tojson`, loop controls and `{% generation %}`. They are rendered within bounds of time and memory: see `budget`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jinja2

from minfer.errors import MinferError, ParameterError, TemplateError, TokenizerError
from minfer.text.messages import is_list, plain_messages, plain_value
from minfer.text.template.budget import Budget
from minfer.text.template.content import Findings, fit_messages
from minfer.text.template.continuation import continue_last
from minfer.text.template.given import TEMPLATE_NAMES
from minfer.text.template.losses import check_nothing_lost
from minfer.text.template.sandbox import BoundedEnvironment, BudgetContext

MAX_SOURCE_CHARACTERS = 65_536
"""The templates of models have a few thousand, and the longest some 30 thousand."""

DEFAULT_TEMPLATE = "default"
_KEY = "tokenizer.chat_template"


class ChatTemplate:
    """One chat template. It is compiled when it is first used: a broken one stops nobody who does not use it."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] = MappingProxyType({}), name: str = DEFAULT_TEMPLATE
    ) -> None:
        """
        Args:
            source: the template, in Jinja.
            special_tokens: variables for the template such as `bos_token`; a missing one renders as nothing.
        """
        self.source = source
        self.name = name
        self._special_tokens = dict(special_tokens)
        self._findings = Findings()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The conversation as text.

        Args:
            messages: mappings with `role` and `content`; the content is a string, or a list of parts such as
                `{"type": "text", "text": "Hi"}`.
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: whether the text ends with the start of an answer.
            continue_final_message: whether the text ends where the last message does, which is the assistant's, so that
                the model goes on with it. `add_generation_prompt` does not matter then.
            variables: for the template, by name, for example `documents` or `enable_thinking`.

        Raises:
            ParameterError: the messages, tools or variables are not of the form they must have.
            TemplateError: the template does not compile, fails, refuses the messages, leaves out some of what they
                say, or goes over its limits.

        Warns:
            MinferWarning: a system message became part of the first question, or what was said or thought beside a
                tool call is left out.
        """
        plain = plain_messages(messages)
        return self.render_all(plain, tools, add_generation_prompt, variables, continues=continue_final_message)

    def render_all(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        others: Mapping[str, Any],
        *,
        continues: bool = False,
    ) -> str:
        """As `render`, of messages that are plain already (`plain_messages`).

        Raises:
            ParameterError, TemplateError: as `render`.
        """
        if continues:
            return continue_last(
                messages, self._findings, lambda some, starts: self.render_all(some, tools, starts, others)
            )

        def render(messages: list[dict[str, Any]]) -> str:
            return self.render_plain(fixed | {"messages": messages})

        def try_out(messages: list[dict[str, Any]]) -> str:
            return self.render_plain(self.variables(messages, tools, True, {}))

        fixed = self.variables([], tools, add_generation_prompt, others)
        fitted = fit_messages(messages, self._findings, self.source, try_out)
        prompt = render(fitted)
        check_nothing_lost(fitted, prompt, self._findings, render)
        return prompt

    def variables(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        others: Mapping[str, Any],
    ) -> dict[str, Any]:
        """All that the template sees, with everything but the messages checked and made plain.

        Raises:
            ParameterError: as `render`.
        """
        if tools is not None and not is_list(tools):
            raise ParameterError(f"tools must be a list of JSON schemas, not {type(tools).__name__}")
        return {
            **self._special_tokens,
            "documents": None,
            **{name: plain_value(value, name) for name, value in others.items()},
            "messages": messages,
            "tools": plain_value(tools, "tools"),
            "add_generation_prompt": add_generation_prompt,
        }

    def render_plain(self, variables: Mapping[str, Any]) -> str:
        """Renders with variables that have been checked: all of them Python's own types for JSON.

        Raises:
            TemplateError: as `render`.
        """
        template = self._compiled
        context = template.new_context(dict(variables))
        assert isinstance(context, BudgetContext)
        context.budget = Budget(dict(variables))
        try:
            return "".join(map(context.budget.charge, template.root_render_func(context)))
        except MinferError:
            raise
        except Exception as error:
            raise TemplateError(f"the chat template fails{_line_of(error, template)}: {_described(error)}") from error

    def compile(self) -> None:
        """Makes sure that the template can be used.

        Raises:
            TemplateError: it does not compile.
        """
        _ = self._compiled

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if len(self.source) > MAX_SOURCE_CHARACTERS:
            raise TemplateError(
                f"the chat template has {len(self.source):,} characters; up to {MAX_SOURCE_CHARACTERS:,} are supported"
            )
        environment = BoundedEnvironment()
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            code = environment.compile_bounded(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise _broken(f", line {error.lineno}: {error.message}") from error
        except Exception as error:
            raise _broken(f": {_described(error)}") from error
        return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def read_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The sources of a file's chat templates by name; the usual one is called `default`.

    Raises:
        TokenizerError: a template is not text.
    """
    templates = {}
    for key, value in ((key, metadata[key]) for key in metadata if key == _KEY or key.startswith(f"{_KEY}.")):
        if not isinstance(value, str):
            raise TokenizerError(f"{key} is a {type(value).__name__}, not a string")
        templates[key.removeprefix(_KEY).removeprefix(".") or DEFAULT_TEMPLATE] = value
    return templates


def _broken(reason: str) -> TemplateError:
    return TemplateError(
        f"the chat template does not compile{reason}; another one can be given (chat_template=, --chat-template): a "
        f"file, or one of {', '.join(TEMPLATE_NAMES)}"
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(f"the chat template refuses the messages: {message}")


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _described(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deep"
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _line_of(error: Exception, template: jinja2.Template) -> str:
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_globals is template.root_render_func.__globals__:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return "" if line is None else f" in line {template.get_corresponding_lineno(line)}"
