"""A line in the log for each answer that ends."""

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from sglang.srt.observability.stages import stages_of

if TYPE_CHECKING:
    from sglang.srt.observability.answer_watch import AnswerRecord

logger = logging.getLogger(__name__)
FIRST_IDS = 64  # token ids of prompt and answer that level 2 shows
WITH_SAMPLING, WITH_FIRST_IDS, WITH_ALL_IDS = 1, 2, 3


class RequestLog:
    """Writes what `level` allows, as text or as one JSON object."""

    def __init__(self, level: int, *, as_json: bool) -> None:
        self.reads_ids = level >= WITH_FIRST_IDS
        self._level = level
        self._as_json = as_json

    def ended(self, record: "AnswerRecord") -> None:
        facts = self._facts(record)
        if self._as_json:
            logger.info("%s", json.dumps(facts))
        else:
            logger.info("%s", " ".join(f"{name}={_text(value)}" for name, value in facts.items()))

    def _facts(self, record: "AnswerRecord") -> dict[str, Any]:
        facts: dict[str, Any] = {
            "rid": record.wish.rid,
            "finish": record.finish_type,
            **({"error": record.error} if record.error else {}),
            "prompt_tokens": len(record.wish.input_ids),
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "num_retractions": record.num_retractions,
            "seconds": round(record.left - record.arrival, 6),
        }
        if record.times is not None:
            facts["stages"] = {s.name: round(s.seconds, 6) for s in stages_of(record.times)}
        if self._level >= WITH_SAMPLING:
            facts["sampling"] = msgspec.to_builtins(record.wish.sampling)
        if self._level >= WITH_FIRST_IDS:
            most = None if self._level >= WITH_ALL_IDS else FIRST_IDS
            facts["input_ids"] = record.wish.input_ids[:most]
            facts["output_ids"] = record.output_ids[:most]
        return facts


def _text(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value)
