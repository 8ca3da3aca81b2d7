"""Records what enters and leaves a prefix cache."""

from sglang.srt.core.kv_events import (
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    block_hash,
)
from sglang.srt.mem_cache.radix_key import TreeNode


class KvEventRecorder:
    """One event per page and medium; a node's pages are reported when the whole node moves.

    A node that is only split has not moved: its pages keep their hashes.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._events: list[KvEvent] = []

    def stored(self, node: TreeNode, medium: str = GPU) -> None:
        """The node's pages can be reused from `medium`. Its ancestors' hashes are known."""
        size, key = self._page_size, node.key
        parent = _last_block(node.parent)
        for page, page_hash in enumerate(hash_node(node, size)):
            this = block_hash(page_hash)
            ids = key.token_ids[page * size : (page + 1) * size]
            lora_name = key.adapter.lora_name if key.adapter else None
            self._events.append(
                BlockStored([this], parent, ids, size, medium, key.extra_key, lora_name)
            )
            parent = this

    def removed(self, node: TreeNode, medium: str = GPU) -> None:
        """The node's pages are gone from `medium`, the last one first: no page loses its parent."""
        for page_hash in reversed(hash_node(node, self._page_size)):
            self._events.append(BlockRemoved([block_hash(page_hash)], medium))

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KvEvent]:
        events, self._events = self._events, []
        return events


def hash_node(node: TreeNode, page_size: int) -> list[str]:
    """The hashes of a node's pages, computed once, from the first ancestor that has some."""
    unhashed = []
    step: TreeNode | None = node
    while step is not None and step.hash_value is None and step.parent is not None:
        unhashed.append(step)
        step = step.parent
    for each in reversed(unhashed):
        assert each.parent is not None, "the root has no pages"
        each.hash_value = each.key.page_hashes(page_size, each.parent.get_last_hash_value())
    return node.hash_value or []


def _last_block(node: TreeNode | None) -> int | None:
    last = node.get_last_hash_value() if node is not None else None
    return None if last is None else block_hash(last)
