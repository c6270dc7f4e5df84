"""Templates that use what the families' templates use, and conversations for them."""

from __future__ import annotations

from typing import Any

__all__ = ["CONVERSATIONS", "SWITCHES", "TEMPLATES", "TOOLS"]

LISTING = """\
{#- Tools as a description of types, a macro that calls itself. #}
{%- macro kind(schema, depth=0) -%}
    {%- if schema.type is not defined -%}any
    {%- elif schema.type is string and schema.type == 'object' -%}
        {{- '{' }}{% for name, inner in schema.properties.items() -%}
            {{ '\\n' ~ '  ' * (depth + 1) ~ name -}}
            {{ '' if name in (schema.required or []) else '?' }}: {{ kind(inner, depth + 1) -}}
            {{- ',' if not loop.last -}}
        {%- endfor %}{{ '\\n' ~ '  ' * depth ~ '}' }}
    {%- elif schema.type == 'array' -%}
        {{ kind(schema['items'], depth) }}[]
    {%- elif schema.type is iterable and schema.type is not string -%}
        {{ schema.type | join(' | ') }}
    {%- else -%}
        {{ schema.enum | map('tojson') | join('|') if schema.enum else schema.type }}
    {%- endif -%}
    {%- if schema.default is defined %} = {{ schema.default | tojson }}{% endif -%}
{%- endmacro -%}
{%- if tools is not none and tools -%}
    {{ bos_token }}system
    {%- for tool in tools | map(attribute='function') | sort(attribute='name') %}
{{ loop.index }}/{{ loop.length }} {{ tool.name | upper }}: {{ tool.description }}
{{ kind(tool.parameters) }}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
    {%- endfor -%}
{%- endif %}
"""

TURNS = """\
{%- set ns = namespace(first=true, last_user=-1, calls=[], texts='') -%}
{%- for message in messages[::-1] if message.role == 'user' -%}
    {%- set ns.last_user = messages | length - 1 - loop.index0 -%}
    {%- break -%}
{%- endfor -%}
{%- if messages[0].role == 'system' -%}
    {%- set system, rest = messages[0].content | trim, messages[1:] -%}
{%- else -%}
    {%- set system, rest = 'None given.', messages -%}
{%- endif -%}
{{ bos_token }}system
{{ system | replace('\\n', ' ') }} Today is {{ strftime_now('%d %B %Y') }}.
{%- if reasoning_effort is defined %} Effort: {{ reasoning_effort }}.{% endif %}
{%- if documents %} {% for document in documents %}
[{{ loop.index }}] {{ document.title | default('untitled', true) }}: {{ document['text'] }}
{%- endfor %}{% endif %}{{ eos_token }}
{% for message in rest -%}
    {%- if message.role not in ['user', 'assistant', 'tool'] -%}
        {{ raise_exception('No such role: ' ~ message.role) }}
    {%- endif -%}
    {%- if loop.previtem is defined and loop.previtem.role == message.role == 'user' -%}
        {%- continue -%}
    {%- endif -%}
    {%- set content = message.content if message.content is string else '' -%}
    {%- if message.role == 'assistant' -%}
        {%- set reasoning = message.reasoning_content or '' -%}
        {%- if not reasoning and '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip().split('<think>')[-1] -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{ '<|im_start|>assistant\\n' }}
        {%- if reasoning and loop.index0 > ns.last_user - (system != 'None given.') | int -%}
            {{ '<think>\\n' ~ reasoning.strip() ~ '\\n</think>\\n\\n' }}
        {%- endif -%}
        {%- generation %}{{ content }}{% endgeneration -%}
        {%- for call in message.tool_calls or [] -%}
            {%- set call = call.function if call.function is defined else call -%}
            {%- set ns.calls = ns.calls + [call.name] -%}
            {{ '\\n' if loop.first and content }}<call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
{%- for key, value in call.arguments | items %}
{{ key }}={% if value is mapping or (value is iterable and value is not string) -%}
    {{ value | tojson(ensure_ascii=True, sort_keys=True) }}
{%- elif value is boolean %}{{ value | string | lower }}{% else %}{{ value }}{% endif %}
{%- endfor %}
</call>
        {%- endfor -%}
        {{ '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user' if loop.previtem.role != 'tool' }}
<result {{ ns.calls[-1] if ns.calls else 'x' }}>
{{ content }}
</result>
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
    {%- else %}
{% set shown %}{{ content }}{% endset %}
{{- '<|im_start|>user\\n%s<|im_end|>\\n' % shown }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{ '<think>\\n\\n</think>\\n\\n' }}
    {%- elif thinking %}{{ '<think>\\n' }}{% endif -%}
{%- endif -%}
"""

PARTS = """\
{% for message in messages %}
{{ bos_token }}{{ message.role }}
{% for part in message.content %}{{ part.text }}{% endfor %}
{{ eos_token }}
{% endfor %}
"""

JSON_ARGUMENTS = """\
{% for message in messages %}
{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.name + call.function.arguments }}
{%- endfor %}
{% endfor %}
"""

NONE_BESIDE_CALLS = """\
{% for message in messages %}
{%- if message.role == 'assistant' and message['content'] is none -%}
CALLS {{ message.tool_calls[0].function.arguments | tojson }}
{%- else -%}
{{ message.role + ': ' + message['content'] }}
{%- endif %}
{% endfor %}
"""

TEMPLATES = {"listing": LISTING, "turns": TURNS, "both": LISTING + TURNS}
FORMS = {"parts": PARTS, "json": JSON_ARGUMENTS, "none": NONE_BESIDE_CALLS}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does <{name}> & 'é' \"so\"",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Köln"]},
                    "days": {"type": "integer", "default": 3},
                    "more": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"a": {"type": ["number", "null"]}, "b": {}},
                        },
                    },
                },
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "mail")
]

ARGUMENTS = {"city": "Köln", "days": 2, "fast": True, "more": {"b": 1, "a": ["é", None]}}


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": "abcdefghi", "type": "function", "function": function}


SYSTEM = {"role": "system", "content": " Be\nbrief. \n"}
USER = {"role": "user", "content": "What's <the> \"weather\" & 'é' 日本?\n\n "}
ANSWER = {"role": "assistant", "content": " It is  fine.\n"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [_call("weather", ARGUMENTS)]}
TWO_CALLS = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [_call("weather", ARGUMENTS), _call("mail", {})],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 21.5}'}
MORE = {"role": "user", "content": "More?"}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "three": [SYSTEM, USER, ANSWER, MORE],
    "answered": [SYSTEM, USER, ANSWER],
    "called": [USER, CALLS, RESULT],
    "called twice": [SYSTEM, USER, TWO_CALLS, RESULT, RESULT, ANSWER, MORE, MORE],
    "reasoned": [USER, {**ANSWER, "reasoning_content": "hm\nyes"}, MORE],
    "reasoned under another name": [SYSTEM, USER, {**CALLS, "reasoning": " hm "}, RESULT],
    "reasoned within": [USER, {**ANSWER, "content": "<think>\nhm\n</think>\n\nFine"}],
    "refused": [{"role": "critic", "content": "x"}],
}

SWITCHES: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "thinking": True},
    {"reasoning_effort": "high"},
]
DOCUMENTS = [{"title": "T", "text": "One <b>"}, {"text": "Two"}]
