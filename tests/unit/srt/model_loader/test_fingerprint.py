"""Weights are told apart without reading all of them."""

from pathlib import Path

from sglang.srt.model_loader.fingerprint import weights_fingerprint


def model(folder: Path, weights: bytes = b"w" * 100_000, config: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "README.md").write_text(folder.name)
    return folder


def test_equal_weights_elsewhere_are_equal(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    assert weights_fingerprint(one, "float32") == weights_fingerprint(two, "float32")


def test_whatever_changes_the_kv_changes_it(tmp_path: Path) -> None:
    one = model(tmp_path / "one")
    others = [
        model(tmp_path / "longer", b"w" * 100_001),
        model(tmp_path / "trained", b"v" * 100_000),
        model(tmp_path / "configured", config='{"rope_theta": 1}'),
    ]
    prints = {weights_fingerprint(path, "float32") for path in (one, *others)}
    assert len(prints | {weights_fingerprint(one, "bfloat16")}) == 5


def test_one_file_is_a_model_too(tmp_path: Path) -> None:
    one, two = tmp_path / "a.gguf", tmp_path / "b.gguf"
    one.write_bytes(b"x" * 10)
    two.write_bytes(b"x" * 10)
    assert weights_fingerprint(one) == weights_fingerprint(two)
    two.write_bytes(b"y" * 10)
    assert weights_fingerprint(one) != weights_fingerprint(two)
