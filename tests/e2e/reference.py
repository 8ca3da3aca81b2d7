"""The reference: transformers' own greedy answers from the same weights, computed once and kept.

Run as a module it computes the file; tests read it through `load`.
"""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.e2e.processes import ROOT
from tests.e2e.prompts import PROMPTS

NEW_TOKENS = 64


@dataclass
class Answer:
    """One prompt's reference. Lists run over the 64 new tokens unless the name says prompt."""

    prompt_ids: list[int]
    prompt_logprobs: list[float]  # of prompt tokens 1…, given those before
    output_ids: list[int]
    output_logprobs: list[float]
    runner_up_ids: list[int]
    gaps: list[float]  # logit of the best minus logit of the second best


def demo_folder() -> Path:
    """Where `sglang download demo` has put the model."""
    done = subprocess.run(
        [sys.executable, "-m", "sglang.cli.main", "download", "demo", "--print-path"],
        capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    return Path(done.stdout.strip().splitlines()[-1])


def _file() -> Path:
    key = json.dumps([PROMPTS, NEW_TOKENS, importlib.metadata.version("transformers"),
                      importlib.metadata.version("torch"), Path(__file__).read_text()])  # fmt: skip
    return ROOT / ".make" / f"reference-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def load() -> list[Answer]:
    """The reference answers; computes them in a process of its own when they are not there yet."""
    path = _file()
    if not path.exists():
        subprocess.run(
            [sys.executable, "-m", "tests.e2e.reference"], cwd=ROOT, check=True, timeout=3000
        )
    return [Answer(**entry) for entry in json.loads(path.read_text())]


def compute(folder: Path) -> list[Answer]:
    """Plain greedy decoding with transformers' model, cache and tokenizer, in float32."""
    import torch
    import transformers

    gguf_file = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_file, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    answers = []
    for number, prompt in enumerate(PROMPTS, start=1):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        print(f"reference {number}/{len(PROMPTS)}: {len(ids)} prompt tokens", flush=True)
        answers.append(_greedy(model, ids))
    return answers


def _greedy(model: object, ids: list[int]) -> Answer:
    import torch

    answer = Answer(ids, [], [], [], [], [])
    with torch.inference_mode():
        out = model(torch.tensor([ids]), use_cache=True)  # type: ignore[operator]
        rows = torch.log_softmax(out.logits[0, :-1].float(), dim=-1)
        answer.prompt_logprobs = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        for _ in range(NEW_TOKENS):
            logits = out.logits[0, -1].float()
            best = logits.topk(2)
            token = int(best.indices[0])
            answer.output_ids.append(token)
            answer.runner_up_ids.append(int(best.indices[1]))
            answer.gaps.append(float(best.values[0] - best.values[1]))
            answer.output_logprobs.append(float(torch.log_softmax(logits, dim=-1)[token]))
            out = model(  # type: ignore[operator]
                torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True
            )
    return answer


if __name__ == "__main__":
    target = _file()
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(".part")
    part.write_text(json.dumps([asdict(answer) for answer in compute(demo_folder())]))
    part.rename(target)
