"""The third tier: where pages of KV outlive the engine. Its interface, and files as one of it."""

import hashlib
import logging
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from sglang.srt.environ import envs
from sglang.srt.mem_cache.memory_pool_host import HostKVPool

logger = logging.getLogger(__name__)

MAX_FILE_NAME = 255  # bytes, on every common file system
MAX_SUFFIX = MAX_FILE_NAME - 64 - len(".bin")


@dataclass
class HiCacheStorageConfig:
    """Who stores: pages are shared by equals only."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = None
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    extra_config: dict[str, Any] | None = None
    fingerprint: str = ""  # of the weights: a name may get others


@dataclass
class HiCacheStorageExtraInfo:
    """What a backend may want to know beside the keys."""

    prefix_keys: list[str] | None = None  # pages before the first key that the caller knows
    extra_info: dict[str, Any] | None = None


@dataclass
class PoolTransfer:
    """Pages of one pool, for the calls that name several."""

    name: str
    keys: list[str]
    host_indices: torch.Tensor
    extra_info: HiCacheStorageExtraInfo | None = field(default=None)


class HiCacheStorage:
    """Pages by key. A subclass has `get` and `set`, or `read` and `write`; the rest follows.

    A key is the hash of a page and of all before it. Calls come from two background threads, one
    that reads and one that writes. What raises counts as a miss and is logged.
    """

    mem_pool_host: HostKVPool | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "HiCacheStorage":
        for one, other in (("get", "read"), ("set", "write")):
            if not (_overrides(cls, one) or _overrides(cls, other)):
                raise TypeError(f"{cls.__name__} is abstract: it has neither {one} nor {other}")
        return super().__new__(cls)

    def __init__(
        self,
        storage_config: HiCacheStorageConfig | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.storage_config = storage_config or HiCacheStorageConfig()
        self.extra_config = dict(kwargs or {})

    # ---------------------------------------------------------------- life

    def register_mem_pool_host(self, mem_pool_host: HostKVPool) -> None:
        """Called once, before anything else: the pool that pages come from and go to."""
        self.mem_pool_host = mem_pool_host

    def attach(self) -> None:
        """Called once, after `register_mem_pool_host`."""

    def detach(self) -> None:
        """Called once, when no call runs any more."""

    # ---------------------------------------------------------------- one page

    def read(self, key: str) -> Any:
        """The page as bytes or a tensor, or None."""
        return self.get(key)

    def write(self, key: str, value: torch.Tensor) -> Any:
        """value: uint8. Anything but False means that it is stored."""
        return self.set(key, value)

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """The page, written to `target_location` if that is given; None if it is not there."""
        page = self.read(key)
        if page is None:
            return None
        page = as_bytes(page)
        if target_location is None:
            return page
        flat = target_location.view(-1).view(torch.uint8)
        if len(flat) != len(page):
            logger.warning("stored page %s has %d bytes, not %d", key, len(page), len(flat))
            return None
        flat.copy_(page)
        return target_location

    def set(
        self,
        key: str,
        value: torch.Tensor | None = None,
        target_location: torch.Tensor | None = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores `value`, or else what stands at `target_location`."""
        page = value if value is not None else target_location
        return page is not None and self.write(key, as_bytes(page)) is not False

    def exists(self, key: str) -> bool:
        return self.get(key) is not None

    # ---------------------------------------------------------------- many pages

    def batch_get(
        self,
        keys: Sequence[str],
        target_locations: Sequence[torch.Tensor] | None = None,
        target_sizes: Any = None,
    ) -> list[torch.Tensor | None]:
        targets = target_locations if target_locations is not None else [None] * len(keys)
        return [self.get(key, target) for key, target in zip(keys, targets, strict=True)]

    def batch_set(
        self,
        keys: Sequence[str],
        values: Sequence[torch.Tensor] | None = None,
        target_locations: Sequence[torch.Tensor] | None = None,
        target_sizes: Any = None,
    ) -> bool:
        """True if all are stored."""
        pages = values if values is not None else target_locations
        assert pages is not None, "batch_set needs values or target_locations"
        done = [self.set(key, page) for key, page in zip(keys, pages, strict=True)]
        return all(done)

    def batch_exists(
        self, keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """How many leading pages are there."""
        return next((i for i, key in enumerate(keys) if not self.exists(key)), len(keys))

    def batch_get_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Fills pages of the registered pool; ends with the first that is missing."""
        pool, done = self._pool(), []
        for key, slot in zip(keys, page_starts(host_indices, pool.page_size), strict=True):
            page = self.get(key, pool.get_dummy_flat_data_page())
            if page is None:
                break
            pool.set_from_flat_data_page(slot, page)
            done.append(True)
        return done + [False] * (len(keys) - len(done))

    def batch_set_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Stores pages of the registered pool."""
        pool = self._pool()
        return [
            self.set(key, pool.get_data_page(slot))
            for key, slot in zip(keys, page_starts(host_indices, pool.page_size), strict=True)
        ]

    def batch_get_v2(self, transfers: Sequence[PoolTransfer]) -> dict[str, list[bool]]:
        return {t.name: self.batch_get_v1(t.keys, t.host_indices, t.extra_info) for t in transfers}

    def batch_set_v2(self, transfers: Sequence[PoolTransfer]) -> dict[str, list[bool]]:
        return {t.name: self.batch_set_v1(t.keys, t.host_indices, t.extra_info) for t in transfers}

    # ---------------------------------------------------------------- the whole

    def clear(self) -> bool:
        """Forgets every page. False: it cannot."""
        return False

    def get_stats(self) -> dict[str, Any]:
        """Numbers for the status report."""
        return {}

    def _pool(self) -> HostKVPool:
        assert self.mem_pool_host is not None, "register_mem_pool_host comes first"
        return self.mem_pool_host


def _overrides(cls: type, name: str) -> bool:
    return getattr(cls, name) is not getattr(HiCacheStorage, name)


def page_starts(host_indices: torch.Tensor, page_size: int) -> list[int]:
    """The first slot of each page."""
    starts: list[int] = host_indices[::page_size].tolist()
    return starts


def as_bytes(page: Any) -> torch.Tensor:
    """[num_bytes] uint8; of a tensor that lies in one piece, the same memory."""
    if isinstance(page, torch.Tensor):
        return page.reshape(-1).view(torch.uint8)
    return torch.frombuffer(bytearray(page), dtype=torch.uint8)


class HiCacheFile(HiCacheStorage):
    """One file per page: its bytes, then a trailer that proves whole and whose they are.

    The trailer is a magic number, the length of the bytes, and SHA-256 over the owner (model, its
    fingerprint, rank, page format), the key and the bytes. A file that fails the proof counts as
    missing, with one warning, and is replaced when its page is written next. While pages cannot be
    stored, each reason is told once.
    """

    MAGIC = b"SGLHKV01"
    TRAILER = struct.Struct("<8sQ32s")

    def __init__(
        self,
        storage_config: HiCacheStorageConfig | None = None,
        file_path: "str | os.PathLike[str] | Mapping[str, Any]" = "/tmp/hicache",
    ) -> None:
        """file_path: where the environment does not say. The engine's factory gives settings in
        its place, of which files need none.
        """
        settings = {} if isinstance(file_path, str | os.PathLike) else file_path
        super().__init__(storage_config, settings)
        variable = envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR
        given = Path(file_path) if isinstance(file_path, str | os.PathLike) else variable.default
        self.folder = variable.get() if variable.is_set() else given
        self.suffix = _suffix(self.storage_config)
        self._temporary = (f".{self.suffix}.{os.getpid()}.{n}.tmp" for n in count())
        # Keys are hashes; a key with more before the suffix belongs to a model with a longer name.
        self._page_name = re.compile(f"[^_]+{re.escape(self.suffix)}\\.bin")
        self._temporary_name = re.compile(f"\\.{re.escape(self.suffix)}\\.\\d+\\.\\d+\\.tmp")
        self._bad: set[str] = set()
        self._told: set[int | None] = set()  # errno of what keeps pages from being stored now
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"The folder of the storage backend `file` cannot be made: {error}. Set "
                f"{variable.name} to one that can."
            ) from error

    def path_of(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}.bin"

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        path = self.path_of(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._ignore(key, str(error))
            return None
        body = memoryview(data)[: -self.TRAILER.size]
        if len(data) <= self.TRAILER.size:
            self._ignore(key, "it is truncated")
            return None
        magic, length, digest = self.TRAILER.unpack_from(data, len(body))
        if magic != self.MAGIC or length != len(body):
            self._ignore(key, "it is truncated, or no page of KV")
            return None
        if digest != self._digest(key, body):
            self._ignore(key, "it is damaged, or of another model, type or page size")
            return None
        page = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        if target_location is None:
            return page
        flat = target_location.view(-1).view(torch.uint8)
        if len(flat) != len(page):
            self._ignore(key, f"it has {len(page)} bytes where {len(flat)} are wanted")
            return None
        flat.copy_(page)
        return target_location

    def set(
        self,
        key: str,
        value: torch.Tensor | None = None,
        target_location: torch.Tensor | None = None,
        target_sizes: Any = None,
    ) -> bool:
        page = value if value is not None else target_location
        if page is None:
            return False
        path = self.path_of(key)
        temporary = self.folder / next(self._temporary)
        try:
            if key not in self._bad and path.exists():
                return True
            body = as_bytes(page.detach().cpu()).numpy().tobytes()
            trailer = self.TRAILER.pack(self.MAGIC, len(body), self._digest(key, body))
            temporary.write_bytes(body + trailer)
            temporary.replace(path)
        except OSError as error:
            self._tell(error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        self._told.clear()
        self._bad.discard(key)
        return True

    def exists(self, key: str) -> bool:
        """By name and size; `get` looks inside."""
        if key in self._bad:
            return False
        try:
            size = self.path_of(key).stat().st_size
        except OSError:
            return False
        if self.mem_pool_host is None:
            return size > self.TRAILER.size
        if size == self.mem_pool_host.page_bytes + self.TRAILER.size:
            return True
        self._ignore(key, f"its size, {size} bytes, is not that of a page")
        return False

    def clear(self) -> bool:
        """Deletes the pages of this model and rank, and what interrupted writes have left."""
        try:
            for path in self._files(self._page_name, self._temporary_name):
                path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("stored pages of KV cannot be deleted: %s", error)
            return False
        self._bad.clear()
        return True

    def get_stats(self) -> dict[str, Any]:
        sizes = [path.stat().st_size for path in self._files(self._page_name)]
        return {"folder": str(self.folder), "num_pages": len(sizes), "num_bytes": sum(sizes)}

    def _files(self, *names: re.Pattern[str]) -> Iterator[Path]:
        for path in list(self.folder.iterdir()):
            if any(name.fullmatch(path.name) for name in names):
                yield path

    def _digest(self, key: str, body: "bytes | memoryview") -> bytes:
        config, pool = self.storage_config, self.mem_pool_host
        owner = (
            config.model_name,
            config.fingerprint,
            config.is_mla_model or (config.tp_rank, config.tp_size),
            (config.pp_rank, config.pp_size),
            pool.page_format if pool is not None else None,
            key,
        )
        digest = hashlib.sha256(repr(owner).encode())
        digest.update(body)
        return digest.digest()

    def _tell(self, error: OSError) -> None:
        if error.errno not in self._told:
            self._told.add(error.errno)
            logger.warning("pages of KV cannot be stored: %s", error)

    def _ignore(self, key: str, why: str) -> None:
        if key not in self._bad:
            self._bad.add(key)
            logger.warning("%s is ignored: %s", self.path_of(key), why)


def _suffix(config: HiCacheStorageConfig) -> str:
    """What follows the key in a file's name: the model, and the rank whose part it is."""
    suffix = "_" + (config.model_name or "").replace("/", "-")
    if not config.is_mla_model:
        suffix += f"_{config.tp_rank}_{config.tp_size}"
    if config.pp_size > 1:
        suffix += f"_{config.pp_rank}_{config.pp_size}"
    if len(suffix.encode()) <= MAX_SUFFIX:
        return suffix
    return "_" + hashlib.sha256(suffix.encode()).hexdigest()
