"""Well-known options of other engines that this one lacks, each with what to do instead."""

_PARALLEL = "one worker uses one device; start more workers and put `smg` in front of them."
_LORA = "adapters are computed by torch, on the stream of the pass; leave the option out."
_QUANTIZATION = "quantized weights are recognised from their files; pass a quantized GGUF file."
_SPECULATIVE = (
    "--speculative-algorithm names a plugin's algorithm, which says itself where it is tuned."
)
_SPLIT = "prefill and decode run in one worker; leave the option out."
_GRAPH = "there are no captured graphs on CPU; leave the option out."
_PARSERS = "this version does not parse tool calls or reasoning; leave the option out."

ABSENT_FLAGS = {
    "--model-type": "it chooses the program that serves; it is a flag of `sglang serve` alone.",
    "--quantization": _QUANTIZATION,
    "--trust-remote-code": "code from a checkpoint is never executed.",
    "--skip-tokenizer-init": "the engine always works on token ids; leave the option out.",
    "--tokenizer-mode": "the tokenizer is always read from tokenizer.json.",
    "--revision": "pass a local folder, or download that revision first.",
    "--enable-multimodal": "only text models are served.",
    "--enable-cache-report": "cached tokens are always reported; leave the option out.",
    "--enable-request-time-stats-logging": "--log-requests tells the time of each stage.",
    "--show-time-cost": "--log-requests tells the time of each stage.",
    "--export-metrics-to-file": "use --log-requests with --log-requests-format json.",
    "--crash-dump-folder": "use --log-requests with --log-requests-level 3.",
    "--collect-tokens-histogram": "--enable-metrics has those histograms.",
    "--tokenizer-metrics-allowed-custom-labels": "use --extra-metric-labels for every request.",
    "--enable-mfu-metrics": "operations are not counted; leave the option out.",
    "--ssl-keyfile": "end TLS in a proxy in front of the server.",
    "--ssl-certfile": "end TLS in a proxy in front of the server.",
    "--reasoning-parser": _PARSERS,
    "--tool-call-parser": _PARSERS,
    "--ep": _PARALLEL,
    "--tensor-parallel-size": _PARALLEL,
    "--pipeline-parallel-size": _PARALLEL,
    "--data-parallel-size": _PARALLEL,
    "--expert-parallel-size": _PARALLEL,
    "--load-balance-method": _PARALLEL,
    "--nnodes": _PARALLEL,
    "--node-rank": _PARALLEL,
    "--dist-init-addr": _PARALLEL,
    "--nccl-port": _PARALLEL,
    "--base-gpu-id": _PARALLEL,
    "--enable-lora-overlap-loading": _LORA,
    "--lora-backend": _LORA,
    "--max-lora-chunk-size": _LORA,
    "--lora-strict-loading": "adapters are always checked strictly; leave the option out.",
    "--hicache-io-backend": "copies between the tiers are torch's; leave the option out.",
    "--enable-torch-compile": _GRAPH,
    "--disable-cuda-graph": _GRAPH,
}

ABSENT_PREFIXES = {
    "--tp-": _PARALLEL,
    "--dp-": _PARALLEL,
    "--pp-": _PARALLEL,
    "--ep-": _PARALLEL,
    "--enable-dp-": _PARALLEL,
    **dict.fromkeys(
        [f"--speculative-{part}" for part in ("acc", "draft", "eagle", "ngram", "num", "token")],
        _SPECULATIVE,
    ),
    "--disaggregation-": _SPLIT,
    "--cuda-graph-": _GRAPH,
    "--moe-": "mixture-of-experts models are not served.",
}


def why_absent(flag: str) -> str | None:
    """What to do instead of `flag`, or None when it is not a known option of other engines."""
    if flag in ABSENT_FLAGS:
        return ABSENT_FLAGS[flag]
    return next((text for start, text in ABSENT_PREFIXES.items() if flag.startswith(start)), None)
