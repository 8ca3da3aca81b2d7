"""Two real processes with a group agree on which constraints are ready and which have failed."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.constrained.agreement import MESSAGE_BYTES, Opinion, RankAgreement, State
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
)
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams

RIDS = ["a", "b", "c", "d", "é"]
P, R, N = Opinion(State.PENDING), Opinion(State.READY), Opinion(State.NEVER_COMPILED, "busy")
X = Opinion(State.REFUSED, "ungültig " + "x" * MESSAGE_BYTES)
ROUNDS: list[tuple[list[Opinion], list[Opinion]]] = [  # by rank
    ([P, R, R, P, R], [P, P, R, R, R]),
    ([R, X, N, P, P], [R, R, X, X, P]),
]
DEADLINE = 60.0


class Compiler(BaseGrammarBackend):
    """Refuses `bad N` on rank N only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject:
        if key_string == f"bad {self.rank}":
            raise ValueError(f"rank {self.rank} cannot")
        return BaseGrammarObject()


def run_rank(rank: int, store: str, pipe: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    agreement = RankAgreement(dist.group.WORLD)
    pipe.send([agreement.agree(RIDS, opinions[rank]) for opinions in ROUNDS])
    pipe.send(serve(rank, agreement))
    try:
        agreement.agree([f"rank {rank}"], [R])
    except AssertionError as error:
        pipe.send(str(error))
    dist.destroy_process_group()


def serve(rank: int, agreement: RankAgreement) -> list[tuple[str, str]]:
    """Which requests left the manager, in order, and what became of them."""
    backend = Compiler(rank)
    manager = GrammarManager(backend, agreement)
    if rank == 1:  # what one rank has cached, the other one still compiles
        backend.set_cache(("regex", "good"), BaseGrammarObject())
    left: list[tuple[str, str]] = []
    for text in ("good", "bad 0", "bad 1", "fine"):
        manager.process_req_with_grammar(Req(text, [1], SamplingParams(regex=text)))
    while manager.grammar_queue:
        for req in manager.get_ready_grammar_requests(may_wait=True):
            failed = isinstance(req.grammar, InvalidGrammarObject)
            left.append((req.rid, req.grammar.error_message if failed else ""))
    backend.close()
    return left


@pytest.mark.timeout(DEADLINE)
def test_ranks_agree(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    ranks = []
    for rank in range(2):
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=run_rank, args=(rank, str(tmp_path / "store"), theirs))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        told = [[pipe.recv() for _ in range(3)] for _, pipe in ranks]
    finally:
        for process, pipe in ranks:
            process.join(DEADLINE / 2)
            process.kill()
            process.join()
            pipe.close()
    assert [process.exitcode for process, _ in ranks] == [0, 0]
    clipped = Opinion(State.REFUSED, X.message.encode()[:MESSAGE_BYTES].decode())
    assert told[0][0] == told[1][0] == [[P, P, R, P, R], [R, clipped, N, clipped, P]]
    assert told[0][1] == told[1][1]
    assert sorted(told[0][1]) == [
        ("bad 0", "rank 0 cannot"), ("bad 1", "rank 1 cannot"), ("fine", ""), ("good", ""),
    ]  # fmt: skip
    assert all("wait for other requests" in of_rank[2] for of_rank in told)
