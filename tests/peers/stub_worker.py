"""A small worker built from the published `smg-grpc-proto` stubs: it replays fixed token ids.

Run by an interpreter that has the stubs; prints `ready` when it listens. It is deliberately plain:
no field of ours, no GetTokenizer unless asked for, one token a message.
"""

import argparse
import hashlib
import io
import signal
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2, sglang_scheduler_pb2_grpc

pb = sglang_scheduler_pb2


class Worker(sglang_scheduler_pb2_grpc.SglangSchedulerServicer):
    """Answers `--tokens`, one id a message, and then the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tokens = [int(t) for t in options.tokens.split(",")]

    def HealthCheck(self, request, context):
        return pb.HealthCheckResponse(healthy=True)

    def GetModelInfo(self, request, context):
        return pb.GetModelInfoResponse(
            model_path=self.options.tokenizer, tokenizer_path=self.options.tokenizer,
            is_generation=True, served_model_name="stub", max_context_length=8192,
            vocab_size=49152, model_type="llama", architectures=["LlamaForCausalLM"],
            eos_token_ids=[2], weight_version="default",
        )  # fmt: skip

    def GetTokenizer(self, request, context):
        if not self.options.bundle:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no bundle")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name in (
                "tokenizer.json",
                "tokenizer_config.json",
                "config.json",
                "chat_template.jinja",
            ):
                if (path := Path(self.options.tokenizer) / name).exists():
                    archive.write(path, name)
        data = packed.getvalue()
        for start in range(0, len(data), 1 << 18):
            last = start + (1 << 18) >= len(data)
            yield common_pb2.GetTokenizerChunk(
                data=data[start : start + (1 << 18)],
                sha256=hashlib.sha256(data).hexdigest() if last else "",
            )

    def Generate(self, request, context):
        if self.options.fail:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stub refuses this")
        prompt = len(request.tokenized.input_ids)
        for done, token in enumerate(self.tokens, start=1):
            yield pb.GenerateResponse(
                request_id=request.request_id,
                chunk=pb.GenerateStreamChunk(
                    token_ids=[token], prompt_tokens=prompt, completion_tokens=done, cached_tokens=1
                ),
            )
        yield pb.GenerateResponse(
            request_id=request.request_id,
            complete=pb.GenerateComplete(
                output_ids=self.tokens, finish_reason="stop", prompt_tokens=prompt,
                completion_tokens=len(self.tokens), cached_tokens=1,
            ),
        )  # fmt: skip

    def Abort(self, request, context):
        return pb.AbortResponse(success=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--tokens", default="28,284,253")
    parser.add_argument("--bundle", action="store_true")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()
    server = grpc.server(ThreadPoolExecutor(8))
    sglang_scheduler_pb2_grpc.add_SglangSchedulerServicer_to_server(Worker(options), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    server.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("ready", flush=True)
    ended.wait()
    server.stop(None)


if __name__ == "__main__":
    sys.exit(main())
