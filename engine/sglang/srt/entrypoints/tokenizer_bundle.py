"""The files a gateway needs to tokenize and to render chats, as one zip archive in pieces."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUNDLED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
)
REQUIRED_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
CHUNK_BYTES = 256 * 1024
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # equal files give equal archives


@dataclass(frozen=True)
class TokenizerBundle:
    """A zip archive with its digest."""

    data: bytes
    sha256: str  # lower-case hex, of the whole archive

    @classmethod
    def from_folder(cls, folder: Path, chat_template: Path | None = None) -> "TokenizerBundle":
        """Packs the known files of `folder`; `chat_template` takes the place of its template."""
        if not (folder / REQUIRED_FILE).is_file():
            raise FileNotFoundError(f"{folder} has no {REQUIRED_FILE}")
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in BUNDLED_FILES:
                path = chat_template if name == TEMPLATE_FILE and chat_template else folder / name
                if path.is_file():
                    entry = zipfile.ZipInfo(name, _FIXED_TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
        data = target.getvalue()
        return cls(data, hashlib.sha256(data).hexdigest())

    def chunks(self) -> Iterator[tuple[bytes, str]]:
        """Pieces in order, each with the digest, which is empty but in the last one."""
        for start in range(0, len(self.data), CHUNK_BYTES):
            is_last = start + CHUNK_BYTES >= len(self.data)
            yield self.data[start : start + CHUNK_BYTES], self.sha256 if is_last else ""
