"""Requests that wait while storage fills the host with what they lack."""

from collections.abc import Callable

from sglang.srt.arg_groups.hicache import BEST_EFFORT
from sglang.srt.mem_cache.hicache_controller import HiCacheController, Prefetch, PrefetchRules
from sglang.srt.mem_cache.host_tree import HostTreeCache
from sglang.srt.mem_cache.kv_events import hash_node
from sglang.srt.mem_cache.radix_key import RadixKey, TreeNode, whole_pages

WAIT_SECONDS = 0.01


class Prefetches:
    """One per request at most. First storage says how much it has, then that much is read."""

    def __init__(self, tree: HostTreeCache, clock: Callable[[], float]) -> None:
        self.rules = PrefetchRules()
        self._tree = tree
        self._clock = clock
        self._by_rid: dict[str, Prefetch] = {}
        self._stopping: list[Prefetch] = []  # which the reader has still

    def begin(
        self,
        controller: HiCacheController,
        rid: str,
        node: TreeNode,
        tokens: RadixKey,
        last_hash: str | None,
        prefix_keys: list[str] | None,
    ) -> None:
        """Asks for the tokens that follow the node, unless they are too few, or more is on its way
        already than the host has room for.
        """
        self.end(rid)
        tree = self._tree
        length = whole_pages(len(tokens), tree.page_size)
        if length < self._least or self._num_asked(controller) + length > tree.host_pool.size:
            return
        if last_hash is None and node is not tree.root_node:
            last_hash = hash_node(node, tree.page_size)[-1]
        prefix = path_ids(node)
        op = Prefetch(
            rid=rid,
            controller=controller,
            key=RadixKey(prefix + tokens.token_ids[:length], tokens.extra_key, tokens.adapter),
            start=len(prefix),
            hashes=tokens[:length].page_hashes(tree.page_size, last_hash),
            started=self._clock(),
            prefix_keys=prefix_keys,
        )
        self._by_rid[rid] = op
        controller.query(op)

    def may_go(self, rid: str) -> bool:
        """Whether the request may be scheduled; what has come is in the tree by then."""
        op = self._by_rid.get(rid)
        if op is None:
            return True
        self._advance(op)
        may_go = self.may_stop(op)
        self._take_read(op)
        if may_go and self.rules.policy != BEST_EFFORT:
            self._stop(op)
        return may_go

    def may_stop(self, op: Prefetch) -> bool:
        return op.stopped or self.rules.may_stop(op, self._clock())

    def end(self, rid: str) -> int:
        """Returns how many tokens came for the request."""
        op = self._by_rid.pop(rid, None)
        if op is None:
            return 0
        self._stop(op)
        return op.num_prefetched

    def stop_all(self) -> None:
        """Their requests wait no longer."""
        for op in self._by_rid.values():
            self._stop(op)

    def settle(self) -> None:
        """Goes on with those that storage has answered; takes back the room of stopped ones that
        nobody fills any more.
        """
        for op in self._by_rid.values():
            self._advance(op)
        for op in [op for op in self._stopping if op.is_done]:
            self._stopping.remove(op)
            self._drop_rest(op)

    def wait(self) -> None:
        """Until one of them has got further, or for a moment."""
        for op in self._by_rid.values():
            if not op.ended and not op.stopped:
                op.controller.news.wait(WAIT_SECONDS)
                op.controller.news.clear()
                return

    def num_tokens_held(self) -> int:
        """Host tokens that are not in the tree yet."""
        held = [op for op in (*self._by_rid.values(), *self._stopping) if op.host_slots is not None]
        return sum(op.num_slots_left(self._tree.page_size) for op in set(held))

    @property
    def _least(self) -> int:
        return max(self.rules.threshold, 1)

    def _num_asked(self, controller: HiCacheController) -> int:
        """Tokens that this storage has not answered for yet, whether somebody waits or not."""
        ops = {*self._by_rid.values(), *self._stopping}
        return sum(op.num_tokens for op in ops if op.controller is controller and not op.is_done)

    def _advance(self, op: Prefetch) -> None:
        """Makes room for what storage has of the request, once that is known."""
        if op.num_found is None or op.host_slots is not None or op.ended or op.stopped:
            return
        num_tokens = op.num_found * self._tree.page_size
        if num_tokens >= self._least:
            op.host_slots = self._tree.alloc_host(num_tokens)
        if op.host_slots is None:
            op.ended = True
        else:
            op.controller.read(op)

    def _take_read(self, op: Prefetch) -> None:
        """Puts the pages that were read into the tree."""
        num_read = op.num_read
        if op.host_slots is None or op.stopped or num_read == op.num_taken:
            return
        size = self._tree.page_size
        first, last = op.num_taken * size, num_read * size
        op.num_taken = num_read
        slots = op.host_slots[first:last]
        op.num_prefetched += self._tree.insert_host(op.key, op.start + first, slots)

    def _stop(self, op: Prefetch) -> None:
        """No more of its pages are taken."""
        if op.stopped:
            return
        op.stopped = True
        if op.host_slots is None:
            op.ended = True
        if op.is_done:
            self._drop_rest(op)
        else:
            self._stopping.append(op)

    def _drop_rest(self, op: Prefetch) -> None:
        if op.host_slots is not None:
            self._tree.host_pool.free(op.host_slots[op.num_taken * self._tree.page_size :])
            op.host_slots = None


def path_ids(node: TreeNode) -> list[int]:
    """The tokens that lead from the root to the end of the node."""
    path = []
    step: TreeNode | None = node
    while step is not None:
        path.append(step.key.token_ids)
        step = step.parent
    return [token for ids in reversed(path) for token in ids]
