"""Make small decoders with random weights, exported by optimum and onnxruntime-genai's builder.

``python benchmarks/published_models/export_decoders.py FOLDER [NAME ...] [--exporters optimum]``
needs an environment with torch, transformers, optimum-onnx, onnxruntime-genai and onnx_ir, or one
environment for each exporter if they require different versions of transformers.
`benchmarks.published_models.decoders` describes the layout of the folder. An export that fails is
reported and left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

_TOKENS: Final = 112
_IDS: Final = {"vocab_size": _TOKENS, "bos_token_id": 1, "eos_token_id": 2}
#: The builder takes any layer with one output for each token for the last layer.
_LLAMA: Final = {
    **_IDS,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_HEADS: Final = {**_LLAMA, "head_dim": 16}
_GPT: Final = {**_IDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
_NEOX: Final = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}
#: Architecture -> transformers' configuration class and its arguments.
CONFIGURATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaConfig", _HEADS),
    "llama28m": (
        "LlamaConfig",
        {  # 28 M parameters, for `benchmarks.generate`
            **_LLAMA,
            "vocab_size": 4096,
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
        },
    ),
    "qwen2": ("Qwen2Config", _HEADS),
    "qwen3": ("Qwen3Config", _HEADS),
    "gemma": ("GemmaConfig", _HEADS),
    "gemma2": ("Gemma2Config", {**_HEADS, "sliding_window": 16}),
    "mistral": ("MistralConfig", _HEADS),
    "phi": ("PhiConfig", {**_LLAMA, "num_key_value_heads": 2, "num_attention_heads": 2}),
    "phi3": ("Phi3Config", {**_LLAMA, "original_max_position_embeddings": 64}),
    "gpt2": ("GPT2Config", _GPT),
    "opt": ("OPTConfig", {**_NEOX, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "neox": ("GPTNeoXConfig", _NEOX),
    "bloom": ("BloomConfig", {**_IDS, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": (
        "FalconConfig",
        {
            **_IDS,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "granite": ("GraniteConfig", _LLAMA),
    "olmo2": ("Olmo2Config", _LLAMA),
    "starcoder2": ("Starcoder2Config", {**_LLAMA, "sliding_window": None}),
    "stablelm": ("StableLmConfig", _LLAMA),
    "lfm2": ("Lfm2Config", {**_LLAMA, "layer_types": ["conv", "full_attention"]}),
    "t5": (
        "T5Config",
        {
            "vocab_size": _TOKENS,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "whisper": (
        "WhisperConfig",
        {
            **_IDS,
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "num_mel_bins": 8,
            "max_source_positions": 1500,
            "max_target_positions": 64,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
}
#: Encoder-decoders: transformers' class and the exporter's task.
_ENCODER_DECODERS: Final = {
    "t5": ("T5ForConditionalGeneration", "text2text-generation-with-past"),
    "whisper": ("WhisperForConditionalGeneration", "automatic-speech-recognition-with-past"),
}
#: Standard deviation of the weights; logits of different tokens then differ clearly.
_DEVIATION: Final = 0.15


def make_source(folder: Path, name: str) -> None:
    """Write a model, its tokenizer, and the logits of a prompt and of the next token."""
    import tokenizers
    import torch
    import transformers

    kind, arguments = CONFIGURATIONS[name]
    torch.manual_seed(0)
    configuration = getattr(transformers, kind)(**arguments)
    if name in _ENCODER_DECODERS:
        model = getattr(transformers, _ENCODER_DECODERS[name][0])(configuration).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(configuration).eval().float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, _DEVIATION)
    model.save_pretrained(folder / "source")
    words = tokenizers.models.WordLevel({str(i): i for i in range(_TOKENS)}, unk_token="0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        bos_token="1",
        eos_token="2",
        pad_token="0",
        unk_token="0",
    ).save_pretrained(folder / "source")
    rng = np.random.default_rng(0)
    ids = rng.integers(3, _TOKENS, (1, 8))
    source: dict[str, np.ndarray] = {}
    if name == "whisper":
        transformers.WhisperFeatureExtractor(feature_size=8).save_pretrained(folder / "source")
        source = {"input_features": rng.standard_normal((1, 8, 3000)).astype(np.float32)}
    elif name in _ENCODER_DECODERS:
        source = {"input_ids": rng.integers(3, _TOKENS, (1, 11))}
    read = "decoder_input_ids" if source else "input_ids"
    source_tensors = {key: torch.tensor(value) for key, value in source.items()}
    with torch.no_grad():
        prompt, whole = (
            model(**source_tensors, **{read: torch.tensor(ids[:, :n])}).logits.numpy()
            for n in (7, 8)
        )
    steps = {"ids": ids[:, :7], "next": ids[:, 7:], "prompt": prompt, "token": whole[:, -1:]}
    steps |= {f"source.{key}": value for key, value in source.items()}
    np.savez(folder / "expected.npz", **steps)


def export(folder: Path, exporter: str) -> None:
    """Write an export of a folder's source: ``optimum``, or the builder's precision."""
    source = str(folder / "source")
    if exporter == "optimum":
        from optimum.exporters.onnx import main_export

        _, task = _ENCODER_DECODERS.get(folder.name, ("", "text-generation-with-past"))
        main_export(source, folder / exporter, task=task, do_validation=False)
    else:
        options = {
            "-i": source,
            "-o": str(folder / exporter),
            "-p": exporter.removeprefix("builder-"),
            "-e": "cpu",
            "-c": str(folder / "cache"),
            "--extra_options": "int4_block_size=32",
        }
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        process = subprocess.run(
            [*builder, *(word for option in options.items() for word in option)],
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise RuntimeError(process.stderr.strip()[-300:])


def main() -> None:
    """Make all architectures, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--exporters", default="optimum,builder-fp32,builder-int4")
    options = parser.parse_args()
    for name in options.names or CONFIGURATIONS:
        folder = options.folder / name
        if not (folder / "expected.npz").is_file():
            (folder / "source").mkdir(parents=True, exist_ok=True)
            make_source(folder, name)
        for exporter in options.exporters.split(","):
            if name in _ENCODER_DECODERS and exporter != "optimum":
                continue
            try:
                export(folder, exporter)
            except Exception as error:  # the exporter does not support the architecture
                print(f"{name} {exporter}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
