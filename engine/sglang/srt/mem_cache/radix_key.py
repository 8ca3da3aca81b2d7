"""Keys and nodes of the radix tree."""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from sglang.srt.core.adapter import Adapter

NUM_SHOWN_IDS = 10
ChildKey = tuple[str | None, Adapter | None, tuple[int, ...]]


class RadixKey:
    """Token ids in a namespace: equal ids never match under different `extra_key`s or adapters,
    whatever a caller writes into the former.
    """

    __slots__ = ("adapter", "extra_key", "token_ids")

    def __init__(
        self, token_ids: list[int], extra_key: str | None = None, adapter: Adapter | None = None
    ) -> None:
        self.token_ids = token_ids
        self.extra_key = extra_key
        self.adapter = adapter

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.token_ids)

    def __getitem__(self, index: int | slice) -> "RadixKey":
        if isinstance(index, slice):
            return RadixKey(self.token_ids[index], self.extra_key, self.adapter)
        return RadixKey([self.token_ids[index]], self.extra_key, self.adapter)

    def __repr__(self) -> str:
        adapter = f"adapter={self.adapter.lora_name!r}, " if self.adapter else ""
        return f"RadixKey({adapter}extra_key={self.extra_key!r}, token_ids={shown(self.token_ids)})"

    def child_key(self, page_size: int) -> ChildKey:
        """What a parent files this key under: its namespace and first page."""
        return self.extra_key, self.adapter, tuple(self.token_ids[:page_size])

    def match_len(self, other: "RadixKey", page_size: int) -> int:
        """Length of the common beginning, in whole pages."""
        if self.extra_key != other.extra_key or self.adapter != other.adapter:
            return 0
        limit = min(len(self), len(other))
        a, b = self.token_ids, other.token_ids
        # Slices compare in C, so halving beats a loop over ids.
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if a[low:middle] == b[low:middle]:
                low = middle
            else:
                high = middle - 1
        return whole_pages(low, page_size)

    def hash_page(self, start: int, end: int, previous: str | None = None) -> str:
        """SHA-256 of ids `start … end - 1`, chained to the page before; differs per namespace."""
        page = self[start:end]
        return page.page_hashes(len(page), previous)[0]

    def page_hashes(self, page_size: int, previous: str | None = None) -> list[str]:
        """The chain of hashes of the whole pages; `previous` is the one of the page before.

        A page's hash covers the digest before it, or else the namespace, and then its ids as
        little-endian uint32.
        """
        seed = self._namespace() if previous is None else bytes.fromhex(previous)
        data = struct.pack(f"<{len(self.token_ids)}I", *self.token_ids)
        hashes = []
        step = 4 * page_size
        for start in range(0, len(data) - step + 1, step):
            digest = hashlib.sha256(seed + data[start : start + step])
            seed = digest.digest()
            hashes.append(digest.hexdigest())
        return hashes

    def _namespace(self) -> bytes:
        """Differs from every other namespace's. An adapter's id has no zero byte."""
        seed = b"" if self.extra_key is None else b"\x00extra_key\x00" + self.extra_key.encode()
        if self.adapter is None:
            return seed
        return b"\x00lora_id\x00" + self.adapter.lora_id.encode() + b"\x00" + seed


class TreeNode:
    """An edge of the tree with what it leads to. `value` holds the slots of `key`."""

    counter: ClassVar[int] = 0

    def __init__(self, id: int | None = None, priority: int = 0, now: float = 0.0) -> None:
        self.children: dict[ChildKey, TreeNode] = {}
        self.parent: TreeNode | None = None
        self.key = RadixKey([])
        self.value: torch.Tensor | None = None
        self.lock_ref = 0
        self.last_access_time = now
        self.creation_time = now
        self.hit_count = 0
        self.priority = priority
        self.id = TreeNode.counter if id is None else id
        TreeNode.counter += 1
        # A copy in host memory, for caches with a second tier.
        self.host_ref_counter = 0
        self.host_value: Any = None
        self.hash_value: list[str] | None = None  # one per page

    @property
    def evicted(self) -> bool:
        return self.value is None

    @property
    def backuped(self) -> bool:
        return self.host_value is not None

    def protect_host(self) -> None:
        self.host_ref_counter += 1

    def release_host(self) -> None:
        if self.host_ref_counter == 0:
            raise RuntimeError(f"The host copy of node {self.id} is not protected.")
        self.host_ref_counter -= 1

    def get_last_hash_value(self) -> str | None:
        return self.hash_value[-1] if self.hash_value else None

    def __lt__(self, other: "TreeNode") -> bool:
        return self.last_access_time < other.last_access_time


def shown(token_ids: list[int]) -> str:
    """The first ids, for people."""
    tail = "..." if len(token_ids) > NUM_SHOWN_IDS else ""
    return f"{token_ids[:NUM_SHOWN_IDS]}{tail}"


def whole_pages(num_tokens: int, page_size: int) -> int:
    """The largest multiple of the page size that is not above."""
    return num_tokens // page_size * page_size
