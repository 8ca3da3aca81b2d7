"""Answers in the form of `/generate`, made of the scheduler's news."""

import math
import time
from typing import Any

from sglang.srt.core.messages import (
    FinishReason,
    LogprobRows,
    RequestOutput,
    RequestTimes,
    TopRow,
)
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints.offline.requests import PromptRequest, ServedModel

IMPOSSIBLE_LOGPROB = -9999.0  # what stands for minus infinity, which JSON does not have
Json = dict[str, Any]


class AnswerText:
    """Ids to text, cut at stop strings; what ends an answer is no part of its text."""

    def __init__(self, params: SamplingParams, model: ServedModel) -> None:
        from sglang_router.text import StopMatcher

        self._decoder = model.tokenizer.decoder(params.skip_special_tokens)
        self._matcher = None
        if params.stop or params.stop_regex:
            self._matcher = StopMatcher(params.stop, params.stop_regex, params.no_stop_trim)
        self._unread: frozenset[int] = frozenset()
        if not (params.ignore_eos or params.no_stop_trim):
            ends = (params.stop_token_ids, model.tokenizer.eos_token_ids, model.card.eos_token_ids)
            self._unread = frozenset(token_id for ids in ends for token_id in ids)
        self._first_watched = params.min_new_tokens
        self._num_read = 0
        self.text = ""
        self.matched: str | None = None

    def read(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            self._num_read += 1
            if token_id not in self._unread and self.matched is None:
                self._add(self._decoder.push(token_id))

    def end(self) -> None:
        """Adds what was held back."""
        self._add(self._decoder.flush())
        if self._matcher is None or self.matched is not None:
            return
        self.text += self._matcher.flush()
        self.matched = self._matcher.matched

    def _add(self, text: str) -> None:
        # As the scheduler does, which does not look for stops in the first `min_new_tokens`.
        if self._matcher is None or self._num_read < self._first_watched:
            self.text += text
        elif self.matched is None:
            progress = self._matcher.push(text)
            self.text += progress.text
            self.matched = progress.matched


class NativeAnswer:
    """One answer, whole or as far as it has come."""

    def __init__(self, prompt: PromptRequest, number: int, model: ServedModel) -> None:
        """`number`: which of the prompt's answers."""
        self._wish = prompt.inputs[number]
        self._model = model
        self._with_text = prompt.return_text_in_logprobs
        self._arrival = time.monotonic()
        self._text = AnswerText(self._wish.sampling, model)
        self._ids: list[int] = []
        self._told_prompt = False  # whether the prompt's rows are in the next event
        self._finish: FinishReason | None = None
        self._info: Json = {
            "id": prompt.rid,
            "finish_reason": None,
            "prompt_tokens": len(self._wish.input_ids),
            "weight_version": model.weight_version,
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "dp_rank": None,
        }
        if self._wish.return_logprob:
            self._info |= {name: [] for name in self._row_names("input")}
            self._info |= {name: [] for name in self._row_names("output")}
            self._info["output_token_logprobs_length"] = 0
        self._info |= {"completion_tokens": 0, "cached_tokens": 0}

    @property
    def has_ended(self) -> bool:
        return self._finish is not None

    def take(self, output: RequestOutput) -> None:
        """Adds news."""
        self._ids += output.token_ids
        self._text.read(output.token_ids)
        info = self._info
        info["prompt_tokens"] = output.prompt_tokens
        info["completion_tokens"] = output.completion_tokens
        info["cached_tokens"] = output.cached_tokens
        if output.cached_tokens_details is not None:
            info["cached_tokens_details"] = output.cached_tokens_details
        info["num_retractions"] = output.num_retractions
        if self._wish.return_logprob:
            self._told_prompt = output.input_logprobs is not None
            self._add_rows("input", output.input_logprobs)
            self._add_rows("output", output.output_logprobs)
            info["output_token_logprobs_length"] = len(info["output_token_logprobs"])
        if output.finish is not None:
            self._text.end()
            self._finish = output.finish
            info["finish_reason"] = self._finish_reason(output.finish)
            info["e2e_latency"] = time.monotonic() - self._arrival
            if self._model.tells_times and output.times is not None:
                info |= timings(output.times, self._arrival, output.completion_tokens)

    def body(self) -> Json:
        return {"text": self._text.text, "output_ids": self._ids, "meta_info": self._info}

    def event(self, index: int | None) -> Json:
        """The answer so far, in lists of its own. The prompt's rows are told when they come and
        at the end; `index` is the answer's place in a list.
        """
        info = {
            name: list(value) if isinstance(value, list) else value
            for name, value in self._info.items()
        }
        if self._wish.return_logprob and not (self._told_prompt or self.has_ended):
            info |= {name: [] for name in self._row_names("input")}
        event = {"text": self._text.text, "output_ids": list(self._ids), "meta_info": info}
        return event if index is None else {**event, "index": index}

    def _finish_reason(self, finish: FinishReason) -> Json:
        if self._text.matched is not None:
            return {"type": "stop", "matched": self._text.matched}
        match finish.type:
            case "stop":
                return {"type": "stop", "matched": finish.matched}
            case "length":
                return {"type": "length", "length": self._info["completion_tokens"]}
        return {
            "type": "abort",
            "message": finish.message or "",
            "status_code": finish.status_code,
            "err_type": None,
        }

    def _row_names(self, side: str) -> list[str]:
        names = [f"{side}_token_logprobs"]
        if self._wish.top_logprobs_num:
            names.append(f"{side}_top_logprobs")
        if self._wish.token_ids_logprob:
            names.append(f"{side}_token_ids_logprobs")
        return names

    def _add_rows(self, side: str, rows: LogprobRows | None) -> None:
        if rows is None:
            return
        triples = zip(rows.logprobs, rows.token_ids, strict=True)
        self._info[f"{side}_token_logprobs"] += [self._triple(*pair) for pair in triples]
        for name, column in (("top", rows.top), ("token_ids", rows.chosen)):
            if column:
                self._info[f"{side}_{name}_logprobs"] += [self._alternatives(row) for row in column]

    def _alternatives(self, row: TopRow | None) -> list[list[Any]] | None:
        if row is None:
            return None
        return [self._triple(*pair) for pair in zip(row.logprobs, row.token_ids, strict=True)]

    def _triple(self, logprob: float | None, token_id: int) -> list[Any]:
        text = None
        if self._with_text:
            text = self._model.tokenizer.token_bytes(token_id).decode(errors="replace")
        return [logprob if logprob is None else finite_logprob(logprob), token_id, text]


def finite_logprob(logprob: float) -> float:
    if math.isnan(logprob):
        return IMPOSSIBLE_LOGPROB
    return min(max(logprob, IMPOSSIBLE_LOGPROB), 0.0)


def timings(times: RequestTimes, arrival: float, completion_tokens: int) -> Json:
    """When an answer that is told now passed its stages. Moments are in seconds since the epoch;
    what was not reached is missing.
    """
    now, start = time.time(), time.time() - time.monotonic()
    told = {"request_received_ts": start + arrival, "response_sent_to_client_ts": now}
    if times.admissions:
        queued = times.received if times.compiled is None else times.compiled
        told["queue_time"] = times.admissions[0] - queued
        told["forward_entry_time"] = start + times.admissions[0]
    if times.prefilled is None:
        return told
    told["prefill_finished_time"] = start + times.prefilled
    if completion_tokens:
        told["first_token_latency"] = times.prefilled - arrival
    if completion_tokens > 1 and times.finished > times.prefilled:
        told["decode_throughput"] = (completion_tokens - 1) / (times.finished - times.prefilled)
    return told
