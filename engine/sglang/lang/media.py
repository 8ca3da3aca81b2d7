"""Images and videos as the texts that travel in requests."""

import base64
import mimetypes
from pathlib import Path
from typing import Any

_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)
_JPEG = "image/jpeg"


def image_data(source: str | bytes) -> str:
    """A `data:` URI of a file or of bytes; URLs stay as they are."""
    if isinstance(source, str):
        if source.startswith(("http://", "https://", "data:")):
            return source
        path = Path(source).expanduser()
        return _data_uri(path.read_bytes(), mimetypes.guess_type(path.name)[0])
    return _data_uri(source, None)


def video_frames(path: str, num_frames: int) -> list[str]:
    """`num_frames` images at equal distances, as `data:` URIs."""
    if num_frames < 1:
        raise ValueError(f"num_frames must be at least 1, got {num_frames}")
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "reading a video needs OpenCV; install it with: pip install opencv-python-headless"
        ) from error
    reader: Any = cv2.VideoCapture(str(Path(path).expanduser()))
    try:
        length = int(reader.get(cv2.CAP_PROP_FRAME_COUNT))
        if not reader.isOpened() or length < 1:
            raise ValueError(f"{path!r} is no video that OpenCV can read")
        frames = []
        for number in range(num_frames):
            reader.set(cv2.CAP_PROP_POS_FRAMES, number * length // num_frames)
            found, pixels = reader.read()
            if not found:
                raise ValueError(f"{path!r} ends before frame {number * length // num_frames}")
            frames.append(_data_uri(bytes(cv2.imencode(".jpg", pixels)[1]), _JPEG))
        return frames
    finally:
        reader.release()


def split_data_uri(uri: str) -> tuple[str, str] | None:
    """Media type and base64 text of a `data:` URI; None for any other address."""
    if not uri.startswith("data:"):
        return None
    head, _, data = uri.partition(",")
    return head.removeprefix("data:").removesuffix(";base64"), data


def _data_uri(data: bytes, media_type: str | None) -> str:
    if media_type is None:
        fitting = (kind for start, kind in _SIGNATURES if data.startswith(start))
        media_type = next(fitting, _JPEG)
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
