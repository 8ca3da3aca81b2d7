"""What a prefix cache stores and drops, as it travels from the scheduler to subscribers."""

import msgspec

# Where a page lies.
GPU = "GPU"  # the KV pool, whatever the device
CPU_PINNED = "CPU_PINNED"
DISK = "DISK"
EXTERNAL = "EXTERNAL"
MEDIA = (GPU, CPU_PINNED, DISK, EXTERNAL)


class BlockStored(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """One page can be reused from now on.

    Its hash stands for the whole prefix that it ends, so an equal hash is an equal prefix.
    """

    block_hashes: list[int]
    parent_block_hash: int | None  # None: the first page of a prompt
    token_ids: list[int]
    block_size: int  # tokens
    medium: str = GPU
    namespace: str | None = None  # `extra_key` of the requests that may reuse it
    lora_name: str | None = None  # their adapter


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    """One page is gone from a medium."""

    block_hashes: list[int]
    medium: str = GPU


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    """Every page is gone from every medium."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


def block_hash(page_hash: str) -> int:
    """The number that stands for a page: the first 16 hexadecimal digits, as a signed int64."""
    return int.from_bytes(bytes.fromhex(page_hash[:16]), "big", signed=True)
