"""A GGUF model being put together: its tensors, metadata and layers, and how they become a file and a card."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from wharfinger.catalog.card import ByteSize, LayerGeometry, ModelCard, Weights


@dataclass(frozen=True)
class TinyShape:
    """Sizes shared by the builders; small enough to write and load in well under a second."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 512
    vocab: int = 512
    context: int = 131072
    tied: bool = False


@dataclass
class Draft:
    """A model being put together."""

    arch: str
    shape: TinyShape
    rng: np.random.Generator
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, object] = field(default_factory=dict)
    geometry: list[LayerGeometry] = field(default_factory=list)
    card: dict[str, object] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> None:
        """A matrix (16-bit) or vector (32-bit) in numpy order: outputs first."""
        values = self.rng.standard_normal(shape, dtype=np.float32) * 0.02
        self.tensors[name] = values.astype(np.float16) if len(shape) > 1 else values

    def narrow(self, name: str, *shape: int) -> None:
        """A matrix llama.cpp wants in 32 bits."""
        self.tensors[name] = self.rng.standard_normal(shape, dtype=np.float32) * 0.02

    def key(self, name: str, value: object) -> None:
        """A metadata value under the architecture's name."""
        self.metadata[f"{self.arch}.{name}"] = value


def _vocabulary(size: int) -> tuple[list[bytes], list[float], list[int]]:
    """A sentence-piece vocabulary of three specials, 256 bytes and made-up words."""
    names = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    names += [f"w{index}".encode() for index in range(size - len(names))]
    kinds += [1] * (size - len(kinds))
    return names, [-float(index) for index in range(size)], kinds


def _wordpieces(size: int) -> tuple[list[bytes], list[float], list[int]]:
    names = [b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]"]
    names += [f"▁w{index}".encode() for index in range(size - len(names))]
    return names, [0.0] * size, [3] * 5 + [1] * (size - 5)


def write_draft(draft: Draft, path: Path) -> None:
    """Write the model with a vocabulary of made-up words."""
    writer = gguf.GGUFWriter(str(path), draft.arch)
    for name, value in draft.metadata.items():
        if name != "general.architecture":
            _add(writer, name, value)
    is_bert = draft.arch == "bert"
    tokens, scores, kinds = (_wordpieces if is_bert else _vocabulary)(draft.shape.vocab)
    writer.add_tokenizer_model("bert" if is_bert else "llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(2 if is_bert else 1)
    writer.add_eos_token_id(3 if is_bert else 2)
    writer.add_unk_token_id(1 if is_bert else 0)
    if is_bert:
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
    for name, values in draft.tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case list():
            writer.add_array(name, value)
        case _:
            raise TypeError(f"metadata {name} has a value of type {type(value).__name__}")


def card_of(draft: Draft, path: Path) -> ModelCard:
    """The card of the written file, its weights added up from the tensors."""
    layers = [0] * draft.shape.layers
    embedding = output = output_norm = other = 0
    for name, values in draft.tensors.items():
        if name.startswith("blk."):
            layers[int(name.split(".")[1])] += values.nbytes
        elif name in ("token_embd.weight", "position_embd.weight", "token_types.weight"):
            embedding += values.nbytes
        elif name.startswith(("output", "token_embd_norm")):
            output += values.nbytes
            output_norm += values.nbytes if name != "output.weight" else 0
        else:
            other += values.nbytes
    fields: dict[str, object] = {"feed_forward_size": draft.shape.feed_forward} | draft.card
    return ModelCard(
        model_id=f"tiny/{draft.arch}",
        architecture=draft.arch,
        storage_size=ByteSize(in_bytes=sum(values.nbytes for values in draft.tensors.values())),
        n_layers=draft.shape.layers,
        hidden_size=draft.shape.hidden,
        vocab_size=draft.shape.vocab,
        context_length=draft.shape.context,
        gguf_file=path.name,
        layers=tuple(draft.geometry),
        weights=Weights(
            layer_bytes=tuple(layers),
            embedding_bytes=embedding,
            output_bytes=output,
            other_bytes=other,
            tied_output="output.weight" not in draft.tensors and draft.arch != "bert",
            output_norm_bytes=output_norm,
        ),
        **fields,  # pyright: ignore[reportArgumentType]
    )
