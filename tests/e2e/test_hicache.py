"""Prefixes outlive the KV pool on the host, and the server in files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.mem_cache.radix_key import RadixKey
from tests.e2e import processes
from tests.e2e.processes import Server, call, until

PAGE = 16
PROMPTS = {name: [start + k for k in range(161)] for name, start in (("a", 500), ("b", 900))}
PROMPTS["c"] = [300 + 3 * k for k in range(161)]


@contextlib.contextmanager
def tiers(folder: Path, *flags: str) -> Iterator[Server]:
    """A pool with room for one of the prompts, and a host tier for all of them."""
    with processes.front_door(
        folder, "--dtype", "float32", "--page-size", str(PAGE), "--max-total-tokens", "208",
        "--enable-hierarchical-cache", "--hicache-ratio", "8", *flags,
        env={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / "pages")},
    ) as server:  # fmt: skip
        yield server


def ask(server: Server, name: str) -> tuple[list[int], int]:
    """Eight tokens of the answer, and how much of the prompt was cached."""
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPTS[name], "sampling_params": params}
    status, answer, _ = call(f"{server.url}/generate", body)
    assert status == 200, answer
    return answer["output_ids"], answer["meta_info"]["cached_tokens"]


def page_file(folder: Path, name: str, page: int = 0) -> Path:
    keys = RadixKey(PROMPTS[name]).page_hashes(PAGE)
    (path,) = (folder / "pages").glob(f"{keys[page]}_*.bin")
    return path


FILES = [
    "--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", "wait_complete",
    "--hicache-storage-backend-extra-config", '{"prefetch_threshold": 16}',
]  # fmt: skip


def test_prefixes_outlive_the_pool_and_the_server(tmp_path: Path) -> None:
    with tiers(tmp_path, *FILES) as server:
        cold = {name: ask(server, name) for name in PROMPTS}
        assert all(cached == 0 for _, cached in cold.values())
        for name in PROMPTS:  # each was evicted for the others
            assert ask(server, name) == (cold[name][0], 160)
        until(lambda: len(list((tmp_path / "pages").glob("*.bin"))) >= 30)
    with tiers(tmp_path, *FILES) as server:
        for name in PROMPTS:
            assert ask(server, name) == (cold[name][0], 160)
    damaged, cut, foreign = (page_file(tmp_path, name) for name in PROMPTS)
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    foreign.write_bytes(page_file(tmp_path, "c", 1).read_bytes())
    with tiers(tmp_path, *FILES) as server:
        for name in PROMPTS:
            assert ask(server, name) == (cold[name][0], 0)
        log = server.log_text()
        for path in (damaged, cut, foreign):
            assert f"{path} is ignored" in log


@pytest.mark.parametrize("policy", ["write_back", "write_through_selective"])
def test_other_write_policies_serve_the_same(policy: str, tmp_path: Path) -> None:
    with tiers(tmp_path, "--hicache-write-policy", policy) as server:
        cold = {name: ask(server, name) for name in PROMPTS}
        for _ in range(2):
            for name in PROMPTS:
                assert ask(server, name)[0] == cold[name][0]
        if policy == "write_back":
            assert ask(server, "a") == (cold["a"][0], 160)


PLUGIN = """
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

class OneFolder(HiCacheStorage):
    def attach(self):
        from pathlib import Path
        self.folder = Path(self.extra_config["folder"])
        self.folder.mkdir(exist_ok=True)

    def read(self, key):
        path = self.folder / key
        return path.read_bytes() if path.exists() else None

    def write(self, key, value):
        (self.folder / key).write_bytes(value.numpy().tobytes())
"""


def test_a_backend_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_storage.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    extra: dict[str, Any] = {
        "backend_name": "mine", "module_path": "my_storage", "class_name": "OneFolder",
        "folder": str(tmp_path / "mine"), "prefetch_threshold": 16,
    }  # fmt: skip
    config = tmp_path / "storage.json"
    config.write_text(json.dumps(extra))
    flags = ["--hicache-storage-backend", "dynamic",
             "--hicache-storage-backend-extra-config", f"@{config}"]  # fmt: skip
    with tiers(tmp_path, *flags) as server:
        cold, _ = ask(server, "a")
        until(lambda: len(list((tmp_path / "mine").iterdir())) >= 10)
    with tiers(tmp_path, *flags) as server:
        assert ask(server, "a") == (cold, 160)


def test_storage_is_attached_over_http(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer secret"}
    with tiers(tmp_path, "--admin-api-key", "secret") as server:
        url = f"{server.url}/hicache/storage-backend"

        def storage(method: str, body: Any = None, path: str = "") -> Any:
            status, answer, _ = call(url + path, body, method, headers=headers)
            assert status == 200, answer
            return answer

        assert call(url)[0] == 401
        assert storage("GET")["hicache_storage_backend"] is None
        extra = '{"prefetch_threshold": 16}'
        body = {"hicache_storage_backend": "file",
                "hicache_storage_backend_extra_config_json": extra,
                "hicache_storage_prefetch_policy": "wait_complete"}  # fmt: skip
        storage("PUT", body)
        assert storage("GET")["hicache_storage_backend"] == "file"
        cold, _ = ask(server, "a")
        until(lambda: storage("GET")["storage"]["num_pages"] >= 10)
        assert call(f"{server.url}/flush_cache", {}, headers=headers)[0] == 200
        assert ask(server, "a") == (cold, 160)
        storage("POST", path="/clear")
        assert list((tmp_path / "pages").iterdir()) == []
        storage("DELETE")
        assert storage("GET")["hicache_storage_backend"] is None
