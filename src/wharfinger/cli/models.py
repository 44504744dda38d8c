"""``models list``, ``show``, ``add`` and ``remove``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.model_names import catalog_id
from wharfinger.cli.output import Format, emit, size, styled
from wharfinger.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console


def list_models(output: Format) -> None:
    """List the catalog."""
    document = Client().get("/models")

    def human(out: Console) -> None:
        if not document["data"]:
            out.print("the catalog is empty; add a model with: wharf models add FILE")
            return
        print_table(
            out,
            (
                Column("model", whole=True),
                Column("architecture", wide_only=True),
                Column("quantisation"),
                Column("layers", wide_only=True),
                Column("window"),
                Column("size"),
                Column("source", wide_only=True),
            ),
            [
                (
                    model["id"],
                    model["architecture"] or "?",
                    model["quantization"] or "?",
                    str(model["n_layers"]),
                    str(model["context_length"]) if model["context_length"] else "?",
                    size(model["storage_size_megabytes"] << 20),
                    model["catalog_source"],
                )
                for model in document["data"]
            ],
        )

    emit(output, document, human)


def show_model(model_id: str, output: Format) -> None:
    """Show one card."""
    client = Client()
    document = client.get(_path(catalog_id(client, model_id)))

    def human(out: Console) -> None:
        card = document["card"]
        out.print(
            styled(
                (document["id"], "bold"), f"  {card['architecture'] or '?'}  {card['quantization'] or '?'}"
            )
        )
        out.print(f"  digest    {document['card_digest']}")
        out.print(f"  path      {document['artifact_path'] or 'not on this machine'}")
        out.print(
            f"  size      {size(card['storageSize']['inBytes'])}, {card['nLayers']} layers of {card['hiddenSize']}"
        )
        out.print(
            f"  heads     {card['numAttentionHeads'] or '?'} query, {card['numKeyValueHeads'] or '?'} key/value"
        )
        out.print(f"  window    {card['contextLength'] or '?'} tokens")
        out.print(f"  backends  {', '.join(card['placement']['compatibleBackends']) or '?'}")

    emit(output, document, human)


def add_model(file: Path, model_id: str | None, output: Format) -> None:
    """Add a GGUF file, or a folder with safetensors and ``config.json``."""
    document = Client().post("/api/v1/models", {"path": str(file.absolute()), "model_id": model_id})

    def human(out: Console) -> None:
        out.print(f"added {document['id']}; see where it could run with: wharf plan {document['id']}")

    emit(output, document, human)


def remove_model(model_id: str, output: Format) -> None:
    """Take a model out of the catalog; its file stays."""
    document = Client().delete(_path(model_id))
    emit(output, document, lambda out: out.print(f"{model_id} is removed from the catalog"))


def _path(model_id: str) -> str:
    return f"/api/v1/models/{path_of(model_id, keep='/')}"
