"""Shapes of decoder models: from a model folder's config.json, or from the table of the recipes' three."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A dense decoder with grouped-query attention and a gated feed-forward layer, as Qwen3 and Llama have it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool  # input and output embedding are one

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention, feed-forward and its norms (Qwen3's of query and key included)."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden + 2 * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    def flops_a_token(self, length: float) -> float:
        """Of a forward pass of one token of a row of `length` tokens: 2 a weight (the output embedding's too, the
        input's is a look-up), and the attention over half the row."""
        weights = self.layers * self.layer_parameters + self.vocabulary * self.hidden
        return 2 * weights + self.layers * 4 * self.heads * self.head_dim * length / 2

    def kv_bytes_a_token(self, bytes_a_number: int = 2) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_a_number


# From the models' config.json on the hub.
SHAPES = {
    "Qwen3-0.6B-Base": Shape(28, 1024, 16, 8, 128, 3072, 151_936, tied=True),
    "Qwen3-1.7B-Base": Shape(28, 2048, 16, 8, 128, 6144, 151_936, tied=True),
    "Qwen3-4B-Base": Shape(36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
}
_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)


def shape_of(model: str) -> Shape | None:
    """The shape of a model folder, or of a model of the table by its name; None where neither tells.

    Raises:
        ValueError: the folder's config.json cannot be read.
    """
    path = Path(model).expanduser() / "config.json"
    if not path.exists():
        return SHAPES.get(model.rstrip("/").rpartition("/")[2])
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}). Fetch the model again.") from error
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    if found.get("head_dim") is None and found.get("num_attention_heads"):
        found["head_dim"] = found.get("hidden_size", 0) // found["num_attention_heads"]
    if any(found.get(key) is None for key in _KEYS):
        return None  # another kind of model
    return Shape(*(int(found[key]) for key in _KEYS), tied=bool(found.get("tie_word_embeddings", False)))
