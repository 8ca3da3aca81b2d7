"""Carries out expressions: each one changes the transcript and sets its variables."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import ChatTemplate
from sglang.lang.ir import (
    SglCommitLazy,
    SglConcateAndAppend,
    SglConstantText,
    SglExpr,
    SglExprList,
    SglGen,
    SglImage,
    SglRoleBegin,
    SglRoleEnd,
    SglSamplingParams,
    SglSelect,
    SglSeparateReasoning,
    SglVarScopeBegin,
    SglVarScopeEnd,
    SglVideo,
    reasoning_name,
)
from sglang.lang.media import image_data, video_frames
from sglang.lang.reasoning import check_model_type, split_reasoning
from sglang.lang.results import Results
from sglang.lang.speculation import TextAhead, TurnAhead, check_own_parameters
from sglang.lang.transcript import Transcript


class Execution(Transcript):
    """A transcript that grows by expressions, one at a time and on one thread."""

    def __init__(
        self,
        backend: BaseBackend,
        default_sampling_para: SglSamplingParams,
        chat_template: ChatTemplate | None,
        stream: bool,
        num_api_spec_tokens: int | None,
    ) -> None:
        super().__init__(chat_template or backend.get_chat_template())
        self.sid = uuid.uuid4().hex  # a name on this side only; no request carries it
        self.backend = backend
        self.default_sampling_para = default_sampling_para
        self.stream = stream
        self.num_api_spec_tokens = num_api_spec_tokens
        self.results = Results()
        self.variables = self.results.values
        self._scope_starts: dict[str, int] = {}
        self._separating: str | None = None  # the model type whose reasoning is cut out
        self._text_ahead: TextAhead | None = None
        self._turn_ahead: TurnAhead | None = None
        if num_api_spec_tokens is not None and backend.is_chat_model:
            self._turn_ahead = TurnAhead(num_api_spec_tokens)
        elif num_api_spec_tokens is not None:
            self._text_ahead = TextAhead(num_api_spec_tokens)

    def _execute(self, expr: SglExpr) -> None:
        if isinstance(expr, SglExprList):
            for part in expr.expr_list:
                self._execute(part)
            return
        handle = _HANDLERS.get(type(expr))
        if handle is None:
            raise TypeError(f"{type(expr).__name__} belongs into a trace and cannot be run")
        handle(self, expr)
        self.results.announce()

    def _execute_fill(self, expr: SglConstantText) -> None:
        if self._collects_turn:
            assert self._turn_ahead is not None
            self._turn_ahead.add_text(expr.value)
        else:
            self._say(expr.value)

    def _execute_gen(self, expr: SglGen) -> None:
        params = self._sampling(expr)
        if self._collects_turn:
            assert self._turn_ahead is not None
            check_own_parameters(expr, self.default_sampling_para)
            self._turn_ahead.add_gen(expr, params.stops())
            return
        if self._text_ahead is not None:
            # The template's stop strings end every call, so nothing is written ahead beyond them.
            stops = [stop for stop in params.stops() if stop not in self.chat_template.stop_str]
            if stops:
                check_own_parameters(expr, self.default_sampling_para)
            ahead = self._text_ahead.answer(stops, lambda n: self._ask(params, n))
            if ahead is not None:
                self._answered(expr.name, ahead, None)
                return
        # Marks of reasoning are cut out of whole answers.
        if self.stream and params.n == 1 and self._separating is None:
            self._stream_answer(expr.name, params)
        else:
            answer, meta = self.backend.generate(self, params)
            self._answered(expr.name, answer, meta)

    def _stream_answer(self, name: str | None, params: SglSamplingParams) -> None:
        whole, meta = "", None
        for piece, meta in self.backend.generate_stream(self, params):
            whole += piece
            self.text_ += piece
            if name is None:
                self.results.announce()
            else:
                self.results.grow(name, piece, meta)
        if name is not None:
            self.results.set(name, whole, meta)

    def _answered(self, name: str | None, answer: str | list[str], meta: Any) -> None:
        """Several answers: the text goes on with the first, the variable has all."""
        if self._separating is not None:
            several = answer if isinstance(answer, list) else [answer]
            pairs = [split_reasoning(text, self._separating) for text in several]
            thoughts, answers = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            if name is not None:
                shown = thoughts if isinstance(answer, list) else thoughts[0]
                self.results.set(reasoning_name(name), shown)
            answer = answers if isinstance(answer, list) else answers[0]
        self.text_ += answer if isinstance(answer, str) else answer[0]
        if name is not None:
            self.results.set(name, answer, meta)

    def _execute_select(self, expr: SglSelect) -> None:
        decision = self.backend.select(self, expr.choices, expr.temperature, expr.choices_method)
        self._say(decision.decision)
        if expr.name is not None:
            self.results.set(expr.name, decision.decision, decision.meta_info)

    def _execute_role_begin(self, expr: SglRoleBegin) -> None:
        start = len(self.text_)
        self.open_turn(expr.role)
        self._tell_ahead(start)

    def _execute_role_end(self, expr: SglRoleEnd) -> None:
        if self._collects_turn:
            assert self._turn_ahead is not None
            params = self.default_sampling_para
            for text, gen in self._turn_ahead.ask(lambda n: self._ask(params, n)):
                self._answered(gen.name if gen else None, text, None)
        start = len(self.text_)
        self.close_turn(expr.role)
        self._tell_ahead(start)

    def _execute_var_scope(self, expr: SglVarScopeBegin | SglVarScopeEnd) -> None:
        if isinstance(expr, SglVarScopeBegin):
            self._scope_starts[expr.name] = len(self.text_)
        else:
            self.results.set(expr.name, self.text_[self._scope_starts.pop(expr.name) :])

    def _execute_commit_lazy_operations(self, expr: SglCommitLazy) -> None:
        self.backend.commit_lazy_operations(self)

    def _execute_concatenate_and_append(self, expr: SglConcateAndAppend) -> None:
        branches = [state.stream_executor for state in expr.states]
        for branch in branches:
            self._say(branch.text()[branch.fork_start_text_pos :])
            if branch.results.error is not None:
                raise branch.results.error

    def _execute_separate_reasoning(self, expr: SglSeparateReasoning) -> None:
        if self._collects_turn:
            raise ValueError("separate_reasoning does not work together with num_api_spec_tokens")
        self._separating = check_model_type(expr.model_type)
        try:
            self._execute(expr.expr)
        finally:
            self._separating = None

    def _execute_media(self, expr: SglImage | SglVideo) -> None:
        if isinstance(expr, SglVideo):
            images = video_frames(expr.path, expr.num_frames)
        else:
            images = [image_data(expr.source)]
        start = len(self.text_)
        for data in images:
            self.show_image(data)
        self._tell_ahead(start)
        self.backend.fill_image(self, images)

    def _say(self, text: str) -> None:
        start = len(self.text_)
        self.text_ += text
        self._tell_ahead(start)

    def _tell_ahead(self, start: int) -> None:
        """What was said from `start` on may be what the model wrote ahead."""
        if self._text_ahead is not None:
            self._text_ahead.fill(self.text_[start:])

    def _sampling(self, expr: SglGen) -> SglSamplingParams:
        params = replace(self.default_sampling_para, **expr.overrides)
        stops = [*params.stops(), *self.chat_template.stop_str]
        return replace(params, stop=list(dict.fromkeys(stops)) or None)

    def _ask(self, params: SglSamplingParams, num_tokens: int) -> str:
        """What the model writes when the program's stop strings do not end it."""
        stop = list(self.chat_template.stop_str) or None
        params = replace(params, stop=stop, max_new_tokens=num_tokens, n=1)
        answer, _ = self.backend.generate(self, params)
        return answer if isinstance(answer, str) else answer[0]

    @property
    def _collects_turn(self) -> bool:
        return self._turn_ahead is not None and self.cur_role == "assistant"


_HANDLERS: dict[type[SglExpr], Callable[[Execution, Any], None]] = {
    SglConstantText: Execution._execute_fill,
    SglGen: Execution._execute_gen,
    SglSelect: Execution._execute_select,
    SglRoleBegin: Execution._execute_role_begin,
    SglRoleEnd: Execution._execute_role_end,
    SglVarScopeBegin: Execution._execute_var_scope,
    SglVarScopeEnd: Execution._execute_var_scope,
    SglCommitLazy: Execution._execute_commit_lazy_operations,
    SglConcateAndAppend: Execution._execute_concatenate_and_append,
    SglSeparateReasoning: Execution._execute_separate_reasoning,
    SglImage: Execution._execute_media,
    SglVideo: Execution._execute_media,
}
