"""Images and videos as texts."""

import builtins
import sys
import types
from typing import Any

import pytest

from sglang.lang.media import image_data, split_data_uri, video_frames


def test_files_and_bytes_become_data_uris(tmp_path) -> None:
    path = tmp_path / "a.gif"
    path.write_bytes(b"x")
    assert image_data(str(path)) == "data:image/gif;base64,eA=="
    assert image_data(b"\x89PNG") == "data:image/png;base64,iVBORw=="
    assert image_data(b"anything") == "data:image/jpeg;base64,YW55dGhpbmc="


@pytest.mark.parametrize("url", ["https://host/a.png", "http://host/a", "data:image/png;base64,x"])
def test_addresses_stay_as_they_are(url: str) -> None:
    assert image_data(url) == url


def test_a_data_uri_has_two_parts() -> None:
    assert split_data_uri("data:image/png;base64,abc") == ("image/png", "abc")
    assert split_data_uri("https://host/a.png") is None


class FakeCapture:
    """A video of six frames; frame N holds the number N."""

    def __init__(self, path: str) -> None:
        self.opened = path.endswith("good.mp4")
        self.position = 0
        self.released = False
        captures.append(self)

    def isOpened(self) -> bool:
        return self.opened

    def get(self, what: str) -> float:
        return 6.0 if self.opened else 0.0

    def set(self, what: str, value: int) -> None:
        self.position = value

    def read(self) -> tuple[bool, Any]:
        return True, self.position

    def release(self) -> None:
        self.released = True


captures: list[FakeCapture] = []


@pytest.fixture
def opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("cv2")
    module.VideoCapture = FakeCapture  # type: ignore[attr-defined]
    module.CAP_PROP_FRAME_COUNT = "count"  # type: ignore[attr-defined]
    module.CAP_PROP_POS_FRAMES = "position"  # type: ignore[attr-defined]
    module.imencode = lambda kind, pixels: (True, f"{kind}{pixels}".encode())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", module)
    captures.clear()


def test_a_video_is_shown_by_frames_at_equal_distances(opencv: None) -> None:
    frames = video_frames("good.mp4", 3)
    assert frames == [image_data(f".jpg{number}".encode()) for number in (0, 2, 4)]
    assert captures[0].released


def test_what_is_no_video_is_refused(opencv: None) -> None:
    with pytest.raises(ValueError, match="'bad' is no video"):
        video_frames("bad", 3)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        video_frames("good.mp4", 0)


def test_without_opencv_one_sentence_says_what_to_install(monkeypatch) -> None:
    real_import = builtins.__import__

    def without_cv2(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "cv2":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_cv2)
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        video_frames("good.mp4", 1)
