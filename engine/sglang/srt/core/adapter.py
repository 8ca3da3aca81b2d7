"""The adapter of a request."""

from typing import NamedTuple


class Adapter(NamedTuple):
    """The id stands for one loading of it, the name is what callers know."""

    lora_id: str
    lora_name: str
