r"""Formats of strings as patterns: what libraries take for a date lets 29 February 1900 pass.

Each pattern is a part of what the format allows, without its rare forms.
"""

from sglang.srt.constrained.regex_rules import string_pattern

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_DAYS = (
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8])"
)
_LEAP_YEAR = (
    r"(?:(?:[1-9]\d|0[1-9])(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:[2468][048]|[13579][26]|0[48])00)"
)
_DATE = f"(?:{_YEAR}-(?:{_DAYS})|{_LEAP_YEAR}-02-29)"
_HOUR = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR}:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR})"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = "[a-zA-Z0-9]{1,30}(?:-[a-zA-Z0-9]{1,30})?"  # of 63 characters that are allowed
_WORD = "[a-zA-Z0-9_+-]{1,24}"
_PATH = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*"
_WHOLE = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "email": rf"{_WORD}(?:\.{_WORD})?@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "uri": rf"[a-z][a-z0-9+.-]{{0,20}}://{_LABEL}(?:\.{_LABEL}){{0,3}}(?::\d{{1,4}})?(?:/{_PATH})*"
    r"(?:\?[a-zA-Z0-9._~&=+-]*)?(?:#[a-zA-Z0-9._~-]*)?",
}
PATTERNS = {
    name: string_pattern(f"^(?:{pattern})$", is_plain=True) for name, pattern in _WHOLE.items()
}
# Of the specification; any other name is an annotation, as the specification says.
KNOWN = frozenset(
    ["duration", "idn-email", "idn-hostname", "ipv6", "uri-reference", "iri", "iri-reference"]
    + ["uri-template", "json-pointer", "relative-json-pointer", "regex", *PATTERNS]
)
