"""Sessions: tokens of earlier requests, which later ones continue without sending them."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from sglang.srt.core.messages import GenerateInput, SessionRef
from sglang.srt.core.request import Req
from sglang.srt.managers.admission import Refused

MAX_SESSIONS = 10_000
MAX_TURNS = 1_000  # finished requests that one session keeps


@dataclass
class Turn:
    """A finished request: what it added to the turn that it continued."""

    parent: "Turn | None"
    parent_len: int  # tokens of the parent that it kept
    prompt_ids: list[int]  # its own part of the prompt
    output_ids: list[int]

    def tokens(self) -> list[int]:
        """The whole history up to this turn's last token."""
        pieces, turn, length = [], self, None
        while True:
            own = turn.prompt_ids + turn.output_ids
            kept = length if length is not None else turn.parent_len + len(own)
            pieces.append(own[: max(kept - turn.parent_len, 0)])
            if turn.parent is None:
                return [token for piece in reversed(pieces) for token in piece]
            turn, length = turn.parent, min(turn.parent_len, kept)


@dataclass
class _Session:
    capacity: int  # most tokens of one history; 0: as many as the model takes
    timeout: float | None  # seconds without a request after which it is closed
    used_at: float
    turns: dict[str, Turn] = field(default_factory=dict)
    pending: dict[str, Turn] = field(default_factory=dict)  # requests that have not finished


class Sessions:
    """All open sessions. Histories are token ids only; their KV is the prefix cache's to keep."""

    def __init__(self, context_len: int, clock: Callable[[], float]) -> None:
        self._context_len = context_len
        self._clock = clock
        self._open: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    # ---------------------------------------------------------------- operations

    def open(self, args: Mapping[str, object]) -> dict[str, object]:
        """`open_session`: ValueError names the argument that is wrong."""
        self._close_unused()
        capacity, timeout = args.get("capacity_of_str_len", 0), args.get("timeout")
        session_id = args.get("session_id") or uuid.uuid4().hex
        if not isinstance(session_id, str):
            raise ValueError(f"session_id must be a text, got {session_id!r}")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 0:
            raise ValueError(
                f"capacity_of_str_len must be a number of tokens, 0 for no limit; got {capacity!r}"
            )
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ValueError(f"timeout must be seconds above 0, got {timeout!r}")
        if args.get("streaming"):
            raise ValueError(
                "streaming sessions, which keep their KV locked, are not served; leave streaming "
                "out: the prefix cache keeps the KV of a session while there is room"
            )
        if session_id in self._open:
            raise ValueError(f"session_id {session_id!r} is open already")
        if len(self._open) >= MAX_SESSIONS:
            raise ValueError(f"{MAX_SESSIONS} sessions are open; close some, or open with timeout")
        self._open[session_id] = _Session(capacity, timeout, self._clock())
        return {"session_id": session_id}

    def close(self, args: Mapping[str, object]) -> dict[str, object]:
        """`close_session`. Requests that run go on; nothing can continue them."""
        session_id = args.get("session_id")
        if session_id not in self._open:
            raise ValueError(f"session_id {session_id!r} is not open")
        del self._open[str(session_id)]
        return {"session_id": session_id}

    # ---------------------------------------------------------------- requests

    def extended(self, request: GenerateInput) -> tuple[GenerateInput, Turn | None]:
        """The request with the history that it continues before its own prompt. Refused: why.

        Once the request is accepted, `begin` must follow with the turn.
        """
        ref = request.session
        if ref is None:
            return request, None
        self._close_unused()
        session = self._open.get(ref.id)
        if session is None:
            raise Refused(
                f"session_params.id {ref.id!r} is not an open session: it was closed, or its "
                "timeout passed; open another one",
                status_code=404,
            )
        if request.rid in session.turns:
            raise Refused(f"rid {request.rid!r} is a request of session {ref.id!r} already")
        if len(session.turns) + len(session.pending) >= MAX_TURNS:
            raise Refused(f"session {ref.id!r} keeps {MAX_TURNS} requests; replace or close it")
        parent = _parent(session, ref)
        kept = _kept(parent, ref)
        self._check_length(len(kept) + len(request.input_ids), session, ref)
        turn = Turn(parent, len(kept), request.input_ids, [])
        return msgspec.structs.replace(request, input_ids=kept + request.input_ids), turn

    def begin(self, request: GenerateInput, turn: Turn | None) -> None:
        """The request is accepted; only now anything of the session changes."""
        if turn is None or request.session is None:
            return
        session = self._open[request.session.id]
        if request.session.replace:
            _drop_after(session, turn.parent)
        session.used_at = self._clock()
        session.pending[request.rid] = turn

    def ended(self, req: Req) -> None:
        """An answer is over: later requests may continue it, unless it was aborted."""
        session = self._open.get(req.session_id) if req.session_id is not None else None
        turn = session.pending.pop(req.rid, None) if session is not None else None
        if session is None or turn is None:
            return
        session.used_at = self._clock()
        if req.finished_reason is not None and req.finished_reason.type != "abort":
            turn.output_ids = list(req.output_ids)
            session.turns[req.rid] = turn

    def _check_length(self, length: int, session: _Session, ref: SessionRef) -> None:
        if session.capacity and length > session.capacity:
            raise Refused(
                f"session {ref.id!r} was opened for {session.capacity} tokens, with this request "
                f"it has {length}"
            )
        if length >= self._context_len:
            raise Refused(
                f"The input with the history of its session ({length} tokens) is longer than the "
                f"model's context length ({self._context_len} tokens)."
            )

    def _close_unused(self) -> None:
        now = self._clock()
        for session_id, session in list(self._open.items()):
            is_unused = session.timeout is not None and now - session.used_at > session.timeout
            if is_unused and not session.pending:
                del self._open[session_id]


def _parent(session: _Session, ref: SessionRef) -> Turn | None:
    if ref.rid is None:
        return None
    if ref.rid in session.pending:
        raise Refused(f"session_params.rid {ref.rid!r} has not finished; wait for its answer")
    if ref.rid not in session.turns:
        raise Refused(f"session_params.rid {ref.rid!r} is no request of session {ref.id!r}")
    return session.turns[ref.rid]


def _kept(parent: Turn | None, ref: SessionRef) -> list[int]:
    tokens = parent.tokens() if parent is not None else []
    if parent is not None and ref.drop_previous_output:
        tokens = tokens[: len(tokens) - len(parent.output_ids)]
    offset = len(tokens) if ref.offset is None else ref.offset
    if not 0 <= offset <= len(tokens):
        raise Refused(
            f"session_params.offset must be in 0 … {len(tokens)}, the tokens of the request that "
            f"is continued; got {ref.offset}"
        )
    return tokens[:offset]


def _drop_after(session: _Session, parent: Turn | None) -> None:
    """What came after the turn is forgotten; None: all. Unfinished requests are not recorded."""
    for turns in (session.turns, session.pending):
        for rid in [rid for rid, turn in turns.items() if _comes_after(turn, parent)]:
            del turns[rid]


def _comes_after(turn: Turn, parent: Turn | None) -> bool:
    step: Turn | None = turn.parent
    while step is not None and step is not parent:
        step = step.parent
    return step is parent
