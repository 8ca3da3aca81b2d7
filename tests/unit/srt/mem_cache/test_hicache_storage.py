"""Pages in files, backends of others, and the names of both."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.srt.arg_groups.hicache import FOREIGN_BACKENDS, read_extra_config
from sglang.srt.environ import envs
from sglang.srt.extension_points import HICACHE_STORAGE_BACKENDS
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import PageFirstHostPool
from sglang.srt.mem_cache.storage_factory import StorageBackendFactory
from tests.unit.srt.managers.engine import HashKV

KEY, OTHER = "a" * 64, "b" * 64
PAGE = torch.arange(32, dtype=torch.uint8)


def pool(page_size: int = 4) -> PageFirstHostPool:
    return PageFirstHostPool(HashKV(16 * page_size, page_size), 16 * page_size, page_size)


def config(**changes: Any) -> HiCacheStorageConfig:
    return HiCacheStorageConfig(**{"model_name": "org/model", **changes})


def files(folder: Path, host: PageFirstHostPool | None = None, **changes: Any) -> HiCacheFile:
    storage = HiCacheFile(config(**changes), file_path=str(folder))
    if host is not None:
        storage.register_mem_pool_host(host)
    return storage


# ------------------------------------------------------------------ files


def test_a_page_comes_back(tmp_path: Path) -> None:
    storage = files(tmp_path)
    assert storage.get(KEY) is None and not storage.exists(KEY)
    assert storage.set(KEY, PAGE) is True
    assert storage.exists(KEY)
    found = storage.get(KEY)
    assert found is not None and torch.equal(found, PAGE)
    target = torch.zeros(4, dtype=torch.int64)
    assert storage.get(KEY, target) is target
    assert torch.equal(target.view(torch.uint8), PAGE)


def test_the_file_is_named_by_key_and_model_and_begins_with_the_page(tmp_path: Path) -> None:
    files(tmp_path).set(KEY, PAGE)
    (path,) = tmp_path.iterdir()
    assert path.name == f"{KEY}_org-model_0_1.bin"
    assert path.read_bytes()[:32] == PAGE.numpy().tobytes()


@pytest.mark.parametrize(
    "changes,suffix",
    [
        ({"tp_rank": 1, "tp_size": 2}, "_org-model_1_2"),
        ({"is_mla_model": True, "tp_rank": 1, "tp_size": 2}, "_org-model"),
        ({"pp_rank": 1, "pp_size": 3}, "_org-model_0_1_1_3"),
    ],
)
def test_ranks_have_names_of_their_own(
    changes: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    assert files(tmp_path, **changes).path_of(KEY).name == f"{KEY}{suffix}.bin"


def test_a_long_name_still_fits_a_file_system(tmp_path: Path) -> None:
    storage = files(tmp_path, model_name="m/" * 300)
    assert storage.set(KEY, PAGE)
    assert len(storage.path_of(KEY).name) <= 255


def test_a_page_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    storage = files(tmp_path)
    storage.set(KEY, PAGE)
    before = storage.path_of(KEY).stat().st_mtime_ns
    assert storage.set(KEY, PAGE) is True
    assert storage.path_of(KEY).stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [storage.path_of(KEY).name]


def damage(data: bytes) -> bytes:
    return data[:5] + bytes([data[5] ^ 1]) + data[6:]


@pytest.mark.parametrize(
    "spoil,why",
    [
        (damage, "damaged"),
        (lambda data: data[:-1], "truncated"),
        (lambda data: data[:10], "truncated"),
        (lambda data: b"", "truncated"),
        (lambda data: data + b"x", "truncated"),
        (lambda data: b"not a page of KV at all" * 10, "no page of KV"),
        (lambda data: data[:32], "truncated"),  # the bare page, without proof
    ],
)
def test_a_spoilt_file_is_ignored_with_one_warning_and_replaced(
    spoil: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = files(tmp_path)
    storage.set(KEY, PAGE)
    path = storage.path_of(KEY)
    path.write_bytes(spoil(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert storage.get(KEY) is None
        assert storage.get(KEY) is None
    (record,) = caplog.records
    assert str(path) in record.getMessage() and why in record.getMessage()
    assert not storage.exists(KEY)
    assert storage.set(KEY, PAGE)
    found = storage.get(KEY)
    assert found is not None and torch.equal(found, PAGE)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_name": "org/other"},
        {"fingerprint": "other weights"},
        {"tp_rank": 1, "tp_size": 2},
    ],
)
def test_a_file_of_another_owner_is_ignored(
    changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours = files(tmp_path, **changes), files(tmp_path)
    theirs.set(KEY, PAGE)
    theirs.path_of(KEY).rename(ours.path_of(KEY))
    assert ours.get(KEY) is None
    assert "of another model" in caplog.text


def test_a_file_under_another_key_is_ignored(tmp_path: Path) -> None:
    storage = files(tmp_path)
    storage.set(KEY, PAGE)
    storage.path_of(KEY).rename(storage.path_of(OTHER))
    assert storage.get(OTHER) is None


def test_a_file_of_another_page_format_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files(tmp_path, pool(2)).set(KEY, PAGE[:16])
    other = files(tmp_path, pool(4))
    assert not other.exists(KEY)
    assert "is not that of a page" in caplog.text
    same_size = pool(4)
    same_size.dtype = torch.float64
    files(tmp_path, same_size).set(OTHER, PAGE)
    assert other.get(OTHER) is None


def test_pages_go_between_pool_and_files(tmp_path: Path) -> None:
    host = pool()
    storage = files(tmp_path, host)
    slots = host.alloc(12)
    assert slots is not None
    keys = [KEY, OTHER, "c" * 64]
    for i, slot in enumerate(slots[::4].tolist()):
        host.set_from_flat_data_page(slot, PAGE + i)
    info = HiCacheStorageExtraInfo(prefix_keys=[])
    assert storage.batch_set_v1(keys[:2], slots[:8], info) == [True, True]
    assert storage.batch_exists(keys, info) == 2
    assert storage.batch_exists(["d" * 64, *keys]) == 0
    for slot in slots[::4].tolist():
        host.set_from_flat_data_page(slot, PAGE * 0)
    assert storage.batch_get_v1(keys, slots, info) == [True, True, False]
    assert torch.equal(host.get_data_page(int(slots[4])), PAGE + 1)
    transfer = PoolTransfer("kv", keys[:1], slots[8:])
    assert storage.batch_get_v2([transfer]) == {"kv": [True]}
    assert torch.equal(host.get_data_page(int(slots[8])), PAGE)
    assert storage.batch_set_v2([PoolTransfer("kv", keys[2:], slots[8:])]) == {"kv": [True]}
    assert storage.get_stats()["num_pages"] == 3


def test_clear_deletes_pages_of_this_model_only(tmp_path: Path) -> None:
    ours, theirs = files(tmp_path), files(tmp_path, model_name="other")
    ours.set(KEY, PAGE)
    theirs.set(KEY, PAGE)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "._org-model_0_1.123.0.tmp").write_text("left by a crash")
    assert ours.clear() is True
    assert not ours.exists(KEY) and theirs.exists(KEY)
    assert {path.name for path in tmp_path.iterdir()} == {theirs.path_of(KEY).name, "notes.txt"}


@pytest.mark.parametrize("name", ["model", "org/model"])
def test_a_model_whose_name_ends_like_ours_keeps_its_pages(name: str, tmp_path: Path) -> None:
    ours, theirs = files(tmp_path, model_name=name), files(tmp_path, model_name=f"my_{name}")
    theirs.set(KEY, PAGE)
    assert ours.get_stats()["num_pages"] == 0
    assert ours.clear() is True
    assert theirs.exists(KEY)


def test_what_a_crash_has_left_is_no_page(tmp_path: Path) -> None:
    storage = files(tmp_path)
    (tmp_path / "._org-model_0_1.123.0.tmp").write_text("left by a crash")
    assert storage.get_stats()["num_pages"] == 0


def test_a_full_disk_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = files(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert storage.set(KEY, PAGE) is False
    assert "cannot be stored" in caplog.text


def test_what_keeps_pages_from_being_stored_is_told_once_until_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = files(tmp_path)

    def fails_with(code: int) -> None:
        def write_bytes(path: Path, data: bytes) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(Path, "write_bytes", write_bytes)

    def store(*keys: str) -> list[bool]:
        return [storage.set(key * 64, PAGE) for key in keys]

    fails_with(errno.ENOSPC)
    assert store("a", "b", "c") == [False] * 3
    fails_with(errno.EIO)
    assert store("a", "b") == [False] * 2
    assert len(caplog.records) == 2
    monkeypatch.undo()
    assert store("a") == [True]
    fails_with(errno.ENOSPC)
    assert store("a", "b", "c") == [True, False, False]
    assert len(caplog.records) == 3
    assert [record.getMessage().count("No space left") for record in caplog.records] == [1, 0, 1]


def test_the_variable_overrides_the_folder(tmp_path: Path) -> None:
    with envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.override(tmp_path / "here"):
        storage = files(tmp_path / "there")
    storage.set(KEY, PAGE)
    assert (tmp_path / "here").exists() and not (tmp_path / "there").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"):
        files(tmp_path / "file" / "folder")


# ------------------------------------------------------------------ backends of others


class ReadWrite(HiCacheStorage):
    """Overrides only what one page needs, with plain bytes."""

    def attach(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.is_detached = False

    def detach(self) -> None:
        self.is_detached = True

    def read(self, key: str) -> Any:
        return self.pages.get(key)

    def write(self, key: str, value: torch.Tensor) -> Any:
        self.pages[key] = value.numpy().tobytes()


class GetSet(HiCacheStorage):
    def __init__(self, storage_config: Any = None, kwargs: Any = None) -> None:
        super().__init__(storage_config, kwargs)
        self.pages: dict[str, torch.Tensor] = {}

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.pages.get(key)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        self.pages[key] = value.clone()
        return True


class Neither(HiCacheStorage):
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return None


class Unreachable(ReadWrite):
    def attach(self) -> None:
        raise ConnectionError("nobody listens")


class NoStorage:
    def __init__(self, *args: Any) -> None:
        pass


def test_read_and_write_suffice() -> None:
    storage = ReadWrite()
    storage.attach()
    assert storage.set(KEY, PAGE) and storage.exists(KEY)
    assert storage.batch_set([OTHER], [PAGE + 1])
    first, second, third = storage.batch_get([KEY, OTHER, "c"])
    assert torch.equal(first, PAGE) and torch.equal(second, PAGE + 1) and third is None
    target = torch.zeros(32, dtype=torch.uint8)
    assert storage.get(KEY, target) is target and torch.equal(target, PAGE)
    assert storage.get(KEY, target[:5]) is None
    assert storage.clear() is False and storage.get_stats() == {}


def test_get_and_set_serve_read_and_write() -> None:
    storage = GetSet()
    assert storage.write(KEY, PAGE) is True
    assert torch.equal(storage.read(KEY), PAGE)
    assert storage.batch_exists([KEY, OTHER]) == 1


@pytest.mark.parametrize("cls", [HiCacheStorage, Neither])
def test_a_class_without_both_directions_is_abstract(cls: type) -> None:
    with pytest.raises(TypeError, match=f"{cls.__name__} is abstract: it has neither"):
        cls()


def test_a_backend_by_module_path() -> None:
    extra = {"backend_name": "mine", "module_path": __name__, "class_name": "ReadWrite", "x": 1}
    host = pool()
    storage = StorageBackendFactory.create_backend("dynamic", config(extra_config=extra), host)
    assert isinstance(storage, HiCacheStorage)
    assert storage.extra_config["x"] == 1
    assert storage.mem_pool_host is host
    assert storage.pages == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "extra,text",
    [
        ({}, "missing: backend_name, module_path, class_name"),
        ({"module_path": "no.such.module"}, "No module named 'no'"),
        ({"class_name": "Missing"}, "has no attribute 'Missing'"),
        ({"class_name": "Neither"}, "is abstract"),
        ({"class_name": "NoStorage"}, "must be a subclass of"),
        ({"class_name": "Unreachable"}, "cannot be made: ConnectionError: nobody listens"),
    ],
)
def test_what_is_wrong_with_a_dynamic_backend_is_said(extra: dict[str, str], text: str) -> None:
    full = {"backend_name": "mine", "module_path": __name__, "class_name": "ReadWrite", **extra}
    settings = full if extra else {}
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        StorageBackendFactory.create_backend("dynamic", config(extra_config=settings), pool())


def test_a_registered_backend_is_made_by_name(caplog: pytest.LogCaptureFixture) -> None:
    StorageBackendFactory.register_backend("mine", __name__, "GetSet")
    try:
        made = StorageBackendFactory.create_backend("mine", config(), pool(), flag=True)
        assert type(made).__name__ == "GetSet" and made.extra_config == {"flag": True}
        StorageBackendFactory.register_backend("mine", __name__, "ReadWrite")
        assert "replaces" in caplog.text
        made = StorageBackendFactory.create_backend("mine", config(), pool())
        assert type(made).__name__ == "ReadWrite"
    finally:
        del HICACHE_STORAGE_BACKENDS["mine"]


@pytest.mark.parametrize("name", ["nope", *sorted(FOREIGN_BACKENDS)])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        StorageBackendFactory.create_backend(name, config(), pool())
    text = str(caught.value)
    assert f"Unknown storage backend '{name}'. Registered backends: ['dynamic', 'file']." in text
    assert ("is not part of this engine" in text) == (name != "nope")


# ------------------------------------------------------------------ settings


def test_settings_come_as_text_or_from_a_file(tmp_path: Path) -> None:
    assert read_extra_config(None) == read_extra_config(" ") == {}
    assert read_extra_config('{"a": 1}') == {"a": 1}
    for name, text in (("x.json", json.dumps({"a": 1})), ("x.yaml", "a: 1"), ("x.yml", "a: 1")):
        (tmp_path / name).write_text(text)
        assert read_extra_config(f"@{tmp_path / name}") == {"a": 1}


def test_toml_settings(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    (tmp_path / "x.toml").write_text("a = 1")
    assert read_extra_config(f"@{tmp_path / 'x.toml'}") == {"a": 1}


@pytest.mark.parametrize("text", ["{", "[1]", "3", "@/no/such/file.json", "@file.txt"])
def test_bad_settings_name_the_option(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--hicache-storage-backend-extra-config"):
        read_extra_config(text)
