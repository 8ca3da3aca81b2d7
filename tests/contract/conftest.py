"""What tests of the serve command need in this process."""

import pytest


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Whose children would have been killed; this process keeps its own, and loads no plugins."""
    calls: list[tuple[int, bool]] = []

    def kill_process_tree(pid: int, include_parent: bool = True) -> None:
        calls.append((pid, include_parent))

    monkeypatch.setattr("sglang.cli.serve.kill_process_tree", kill_process_tree)
    monkeypatch.setattr("sglang.srt.plugins.load_plugins", lambda: None)
    return calls
