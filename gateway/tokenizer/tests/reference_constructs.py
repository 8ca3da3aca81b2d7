"""Small templates, one for each construct of Jinja and Python that chat templates use."""

from pathlib import Path

# Values that the engine must print, compare and serialize as Python does
_VALUES = (
    "{% set v = {'s': 'a\"b\\\\\\n<&>é☀', 'i': 7, 'f': 1.0, 'n': none, "
    "'t': true, 'l': [1, [], {}]} %}"
)

_EXPRESSIONS = [
    line
    for line in (Path(__file__).parent / "golden" / "expressions.txt").read_text().splitlines()
    if not line.startswith("#")
]

_BLOCKS = [
    (
        "loop",
        "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}"
        "{{ loop.last }}{{ loop.length }}"
        "{{ loop.revindex }}{{ loop.previtem.role if loop.previtem }}"
        "{{ loop.nextitem.role if loop.nextitem is defined }}"
        "{{ loop.cycle('x', 'y') }}{{ loop.changed(m.role) }};{% endfor %}",
    ),
    ("loop else", "{% for m in [] %}a{% else %}none{% endfor %}"),
    (
        "loop filter",
        "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% endfor %}",
    ),
    ("loop unpack", "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}"),
    ("loop over dict", "{% for k in messages[0] %}{{ k }};{% endfor %}"),
    ("loop over string", "{% for c in 'aé🦙' %}{{ c }}.{% endfor %}"),
    ("loop over undefined", "a{% for c in nothing %}{{ c }}.{% endfor %}b"),
    ("loop over none", "{% for c in tools %}{{ c }}.{% endfor %}b"),
    (
        "loop recursive",
        "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}"
        "{{ x }}"
        "{% endif %}{% endfor %}",
    ),
    (
        "break and continue",
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}"
        "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    ),
    (
        "scope of set",
        "{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x }}{% if true %}"
        "{% set x = 5 %}"
        "{% endif %}{{ x }}",
    ),
    (
        "namespace",
        "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.seen = ns.seen + [m.role] %}{% endfor %}{{ ns.n }}{{ ns.seen | join('/') }}",
    ),
    (
        "set block",
        "{% set x %}a {{ 1 }}{% endset %}[{{ x }}]{% set y | upper %}b{% endset %}{{ y }}",
    ),
    ("set unpack", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}"),
    (
        "macro",
        "{% macro f(a, b='z', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}"
        "{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}",
    ),
    (
        "macro scope",
        "{% set g = 'G' %}{% macro f() %}{{ g }}{{ bos_token }}{% endmacro %}{{ f() | lower }}",
    ),
    (
        "macro recursion",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    ),
    (
        "call block",
        "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(2) %}in {{ y }}{% endcall %}",
    ),
    ("filter block", "{% filter upper %}a{{ 'b' }}{% endfilter %}"),
    ("with", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}"),
    ("raw", "{% raw %}{{ x }}{% if %}{% endraw %}"),
    ("comment", "a{# c #}b\n{# line #}\nc{#- x -#}  d"),
    (
        "generation",
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    (
        "generation spaces",
        "a\n  {%- generation -%}  \n b {%- set q = 1 %} {{ q }}\n {%- endgeneration %}\nc "
        "{{ q is defined }}",
    ),
    ("generation lines", "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc"),
    ("trim blocks", "{% if true %}\n  a\n{% endif %}\n\n  {% if true %}\nb\n    {% endif %}\nc"),
    ("lstrip off", "a\n    {%+ if true %}\n  b{% endif +%}\nc"),
    ("dashes", "a  \n {%- if true -%} \n b {%- endif -%} \n c {{- ' d ' -}} e"),
    ("variable line", "a\n  {{ 'b' }}  \n  c"),
    ("trailing newline", "a\n"),
    ("trailing newlines", "a\n\n"),
    ("windows newlines", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n"),
    ("newline in string", "{{ 'a\nb' }}{{ 'c\r\nd' }}"),
    (
        "if chain",
        "{% if false %}a{% elif tools %}b{% elif messages | length > 1 %}c{% else %}d{% endif %}",
    ),
    (
        "undefined in if",
        "{% if nothing %}a{% else %}b{% endif %}"
        "{% if messages[0].x is defined and messages[0].x %}c{% endif %}",
    ),
    (
        "undefined none",
        "{{ messages[0].x is none }}{{ messages[0].x == none }}{{ messages[0].x != '' }}",
    ),
    ("undefined concat", "{{ 'a' ~ nothing ~ 'b' }}"),
    ("undefined length", "{{ nothing | length }}"),
    ("undefined trim", "[{{ nothing | trim }}]"),
    ("undefined in", "{{ 'a' in nothing }}"),
    ("undefined less", "{{ nothing < 1 }}"),
    ("raise", "{{ raise_exception('No “' ~ messages[0].role ~ '” here!') }}"),
    (
        "raise in macro",
        "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{% for m in messages %}"
        "{{ f() }}{% endfor %}",
    ),
    ("raise in set", "{% set x %}{{ raise_exception('in set') }}{% endset %}"),
    ("values", _VALUES + "{{ v }}|{{ v | tojson }}|{{ v | tojson(indent=2) }}|{{ v.l }}"),
    ("do", "{% do messages %}x"),
    ("include", "{% include 'other' %}"),
    ("syntax error", "{% if %}"),
    ("unclosed", "{% for m in messages %}"),
    ("block", "{% block a %}x{{ bos_token }}{% endblock %}"),
    ("autoescape", "{{ '<&>' }}{% autoescape true %}{{ '<' }}{% endautoescape %}"),
    ("inline if without else", "[{{ 'a' if false }}]"),
    (
        "for with index access",
        "{% for i in range(messages | length) %}{{ messages[i].role[0] }}{% endfor %}",
    ),
    ("loop variable after", "{% for i in [1] %}{% endfor %}{{ i is defined }}"),
    (
        "set in loop visible",
        "{% for i in [1, 2] %}{% if i == 1 %}{% set a = 'x' %}{% endif %}{{ a }}{% endfor %}",
    ),
    ("line statement text", "# not a statement\n## nor a comment"),
    (
        "nested loops",
        "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [3, 4] %}{{ outer.index }}"
        "{{ loop.index }} "
        "{% endfor %}{% endfor %}",
    ),
]

# name, template source, name of the conversation
CONSTRUCTS: list[tuple[str, str, str]] = [
    *((expression, "[{{ " + expression + " }}]", "reasoning") for expression in _EXPRESSIONS),
    *((name, source, "system") for name, source in _BLOCKS),
    (
        "tools to json",
        "{{ tools | tojson(indent=4) }}{% for m in messages %}{{ m | tojson }}{% endfor %}",
        "tools",
    ),
    (
        "tool arguments",
        "{% for c in messages[2].tool_calls %}{{ c.function.arguments }}"
        "{{ c.function.arguments | items "
        "| list }}{% endfor %}",
        "tools",
    ),
    (
        "null is absent",
        "{% for m in messages %}{{ m.content is defined }}{% endfor %}",
        "null content",
    ),
    (
        "reasoning names",
        "{{ messages[1].reasoning_content }}{{ messages[1].thinking }}",
        "reasoning",
    ),
    (
        "continue trimmed",
        "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}tail",
        "continue",
    ),
    ("continue kept", "{% for m in messages %}<{{ m.content }}>{% endfor %}tail", "continue"),
    ("continue left out", "{{ messages[0].content }}", "continue"),
]
