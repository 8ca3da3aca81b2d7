"""The peer of `bench.engine`: transformers' `generate`, driven over stdin.

Each line is JSON `{"ids": [[…]], "new": N}`; the answer is a line with the seconds it took.
"""

import json
import sys
import time


def main(folder: str, gguf: str, threads: int) -> None:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf, dtype=torch.float32
    ).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        ids = torch.tensor(job["ids"])
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True,
                min_new_tokens=job["new"], max_new_tokens=job["new"], pad_token_id=0,
            )  # fmt: skip
        took = time.perf_counter() - start
        assert out.shape[1] == ids.shape[1] + job["new"]
        print(took, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
