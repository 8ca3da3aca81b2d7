"""What is served: the model, its tokenizer, the number type."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Alias, Bound, Choices, Group

GROUP = Group("model and tokenizer")
LOAD_FORMAT_CHOICES = ["auto", "safetensors", "gguf", "dummy"]
DTYPE_CHOICES = ["auto", "half", "float16", "bfloat16", "float", "float32"]


@dataclass
class ModelArgs:
    """The one group with a required option, so it stands first."""

    model_path: A[
        str, GROUP, Alias("--model"), "Folder with weights, one GGUF file, a hub id, or `demo`."
    ]
    tokenizer_path: A[
        str | None, GROUP, "Folder with tokenizer.json; default: the model's own."
    ] = None
    served_model_name: A[
        str | None, GROUP, "Name that clients use; default: the model path as given."
    ] = None
    load_format: A[
        str,
        GROUP,
        Choices(lambda: LOAD_FORMAT_CHOICES),
        "Format of the weights; auto looks at the files, dummy makes random ones.",
    ] = "auto"
    dtype: A[
        str,
        GROUP,
        Choices(lambda: DTYPE_CHOICES),
        "Type of activations and KV; auto is float32 on a CPU without bfloat16 units.",
    ] = "auto"
    context_length: A[
        int | None,
        GROUP,
        Bound(ge=1),
        "Most tokens of a prompt with its answer; default: the model's own limit.",
    ] = None
    download_dir: A[
        str | None, GROUP, "Folder for weights from the hub; default: the hub's cache."
    ] = None
    chat_template: A[
        str | None, GROUP, "File with a Jinja chat template that replaces the model's own."
    ] = None
    weight_version: A[str, GROUP, "Label of the weights, reported with every answer."] = "default"
    is_embedding: A[
        bool, GROUP, "Answer with each prompt's last hidden state, of length 1; generate nothing."
    ] = False


def check_model(args: ModelArgs, speculative_algorithm: str | None) -> None:
    """ValueError where what is asked of the model contradicts itself."""
    if args.is_embedding and speculative_algorithm is not None:
        raise ValueError(
            f"--is-embedding generates no tokens that --speculative-algorithm "
            f"{speculative_algorithm} could guess; leave one of them out"
        )
