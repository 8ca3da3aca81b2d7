"""Options of the KV pool are refused where they cannot be kept."""

import re

import pytest

from sglang.srt.server_args import ServerArgs, prepare_server_args


def parsed(*flags: str) -> ServerArgs:
    return prepare_server_args(["--model-path", "dummy", *flags])


@pytest.mark.parametrize("name", ["auto", "bf16", "bfloat16", "fp8_e5m2", "fp8_e4m3"])
def test_types_of_the_pool(name: str) -> None:
    assert parsed("--kv-cache-dtype", name).kv_cache_dtype == name


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--kv-cache-dtype", "mxfp8"), "auto.*bf16.*fp8_e4m3"),
        (("--mem-fraction-static", "0"), "mem.fraction.static.*0"),
        (("--mem-fraction-static", "1.5"), "mem.fraction.static.*1"),
        (("--max-total-tokens", "0"), "max.total.tokens.*1"),
        (("--max-total-tokens", "15", "--page-size", "16"), "at least one page.*16.*got 15"),
        (("--swa-full-tokens-ratio", "0"), "swa.full.tokens.ratio.*0"),
        (("--swa-full-tokens-ratio", "1.1"), "swa.full.tokens.ratio.*1"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, ValueError)) as caught:
        parsed(*flags)
    text = capsys.readouterr().err + str(caught.value)

    assert re.search(reason, text, re.DOTALL), text
