"""Chat templates for tests, of the kinds that models have."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")

THINKING = """
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last_user %}
        {{- '<think>\n' + message.reasoning_content | default('') | trim + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""
"""As Qwen3 does: only what is thought since the last question stays; `enable_thinking` false answers at once."""

OPENED_THINKING = THINKING.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
"""The prompt itself begins the thinking."""

INST = (
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content + '\n\n', messages[1:] %}"
    "{% else %}{% set system, rest = '', messages %}{% endif %}"
    "{{ bos_token }}{% for message in rest %}"
    "{% if message.role == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + (message.content | trim) + eos_token }}{% endif %}"
    "{% endfor %}"
)
"""Llama 2's manner: plain text marks the turns, and the system prompt is part of the first."""

NUMBERED = (
    "{% for message in messages if message.role == 'user' %}{% endfor %}"
    "{% for message in messages %}{{ '[' ~ loop.index ~ ']' ~ message.content ~ '<|im_end|>' }}{% endfor %}"
)
"""Leaving a turn out changes what is written of all others."""
