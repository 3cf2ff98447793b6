"""Makes tiny decoders with random weights, exported by optimum and by onnxruntime-genai's builder.

``python tests/wild/export_decoders.py FOLDER [NAME ...]`` in an environment that has torch,
transformers, optimum-onnx and onnxruntime-genai; `tests.wild.decoders` says how the folder is laid
out. An export that fails is said and left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

_TOKENS: Final = 128
_IDS: Final = {"vocab_size": _TOKENS, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA: Final = {
    **_IDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip
_HEADS: Final = {**_LLAMA, "head_dim": 16}
_GPT: Final = {**_IDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
_NEOX: Final = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}
#: Architecture -> transformers' configuration class and what it is given.
CONFIGURATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaConfig", _HEADS),
    "qwen2": ("Qwen2Config", _HEADS),
    "qwen3": ("Qwen3Config", _HEADS),
    "gemma": ("GemmaConfig", _HEADS),
    "mistral": ("MistralConfig", _HEADS),
    "phi": ("PhiConfig", {**_LLAMA, "num_key_value_heads": 4}),
    "phi3": ("Phi3Config", {**_LLAMA, "original_max_position_embeddings": 64}),
    "gpt2": ("GPT2Config", _GPT),
    "opt": ("OPTConfig", {**_NEOX, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "neox": ("GPTNeoXConfig", _NEOX),
    "bloom": ("BloomConfig", {**_IDS, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
}
#: How large the random weights are: logits then tell tokens apart.
_DEVIATION: Final = 0.15


def make_source(folder: Path, name: str) -> None:
    """Write a model, its tokenizer, and the logits of a prompt and of the next token."""
    import tokenizers
    import torch
    import transformers

    kind, arguments = CONFIGURATIONS[name]
    torch.manual_seed(0)
    configuration = getattr(transformers, kind)(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(configuration).eval().float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, _DEVIATION)
    model.save_pretrained(folder / "source")
    words = tokenizers.models.WordLevel({str(i): i for i in range(_TOKENS)}, unk_token="0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), bos_token="1", eos_token="2",
        pad_token="0", unk_token="0",
    ).save_pretrained(folder / "source")  # fmt: skip
    ids = np.random.default_rng(0).integers(3, _TOKENS, (1, 8))
    with torch.no_grad():
        prompt, whole = (model(torch.tensor(ids[:, :n])).logits.numpy() for n in (7, 8))
    np.savez(
        folder / "expected.npz", ids=ids[:, :7], next=ids[:, 7:], prompt=prompt, token=whole[:, -1:]
    )


def export(folder: Path, exporter: str) -> None:
    """Write an export of a folder's source: ``optimum``, or the builder's precision."""
    source = str(folder / "source")
    if exporter == "optimum":
        from optimum.exporters.onnx import main_export

        task = "text-generation-with-past"
        main_export(source, folder / exporter, task=task, do_validation=False)
    else:
        from onnxruntime_genai.models.builder import create_model

        create_model(
            None, source, str(folder / exporter), exporter.removeprefix("builder-"), "cpu",
            str(folder / "cache"), int4_block_size=32,
        )  # fmt: skip


def main() -> None:
    """Make all architectures, or those named."""
    root, *names = sys.argv[1:]
    for name in names or CONFIGURATIONS:
        folder = Path(root) / name
        (folder / "source").mkdir(parents=True, exist_ok=True)
        make_source(folder, name)
        for exporter in ("optimum", "builder-fp32", "builder-int4"):
            try:
                export(folder, exporter)
            except Exception as error:  # an architecture that the exporter does not know
                print(f"{name} {exporter}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
