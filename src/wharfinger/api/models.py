"""The catalog: ``GET /models``, one model, adding a file, removing a custom card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from wharfinger.access.callers import Operator, Viewer
from wharfinger.api.answers import answers
from wharfinger.api.bodies import RequestBody
from wharfinger.api.errors import ApiError
from wharfinger.api.schemas_own import ModelDetails, ModelEntry, ModelRemoved, Models
from wharfinger.api.text import FilePath, Name, shown
from wharfinger.catalog.errors import CatalogConflict, CatalogError, NotRemovableError
from wharfinger.catalog.library import CatalogEntry
from wharfinger.workflows.serving import Control

router = APIRouter(tags=["Models"])


class AddFileBody(RequestBody):
    """A model on the control plane's machine."""

    path: FilePath = Field(
        description="Absolute path of a GGUF file, or of a folder with safetensors and config.json, "
        "on the control plane's machine"
    )
    model_id: Name | None = Field(
        default=None, description="Name to serve it under; by default the one in its header, or the folder's"
    )


@router.get("/models", **answers(Models))
async def list_models(control: Control, _: Viewer, status: Name | None = None) -> dict[str, Any]:
    """Models this installation is authorised to run. ``status=downloaded`` keeps those whose file a node has."""
    if status not in (None, "downloaded"):
        raise ApiError(
            400,
            "invalid_status",
            f"status {status!r} is unknown; accepted: downloaded",
            param="status",
        )
    entries = await control.catalog.list()
    if status == "downloaded":
        snapshot = await control.snapshot()
        held = {model_id for node in snapshot.nodes for model_id in node.local_artifacts}
        entries = [entry for entry in entries if entry.card.model_id in held]
    return {"object": "list", "data": [_entry(entry) for entry in entries]}


@router.get("/api/v1/models/{model_id:path}", **answers(ModelDetails, 404))
async def show_model(control: Control, _: Viewer, model_id: Name) -> dict[str, Any]:
    """One model with its whole card."""
    entry = await control.catalog.get(model_id)
    return _entry(entry) | {"card": entry.card.to_wire(), "card_digest": entry.card.digest}


@router.post("/api/v1/models", **answers(ModelEntry, 409, 413, 415, status=201))
async def add_model(control: Control, _: Operator, body: AddFileBody) -> dict[str, Any]:
    """Read the headers of a model on the control plane's machine and add its card to the catalog."""
    path = Path(body.path)
    if not path.is_absolute():
        raise ApiError(400, "path_not_absolute", f"path {shown(body.path)!r} must be absolute", param="path")
    try:
        card = await control.catalog.add_file(path, body.model_id)
    except CatalogConflict as error:
        raise ApiError(409, "model_exists", str(error), param="model_id") from error
    except CatalogError as error:
        raise ApiError(400, error.code, str(error), param="path") from error
    await control.fleet.measure()
    return _entry(await control.catalog.get(card.model_id))


@router.delete("/api/v1/models/{model_id:path}", **answers(ModelRemoved, 404, 409))
async def remove_model(control: Control, _: Operator, model_id: Name) -> dict[str, Any]:
    """Take a model that was added here out of the catalog; its file stays."""
    try:
        await control.remove_model(model_id)
    except NotRemovableError as error:
        raise ApiError(409, error.code, str(error), param="model_id") from error
    return {"message": "removed", "model_id": model_id}


def _entry(entry: CatalogEntry) -> dict[str, Any]:
    card = entry.card
    return {
        "id": card.model_id,
        "object": "model",
        "created": int(entry.created_at.timestamp()),
        "owned_by": "wharfinger",
        "hugging_face_id": card.source_repository,
        "name": card.model_id,
        "description": "",
        "context_length": card.context_length,
        "tags": _tags(entry),
        "storage_size_megabytes": card.storage_size.in_bytes // (1024 * 1024),
        "supports_tensor": card.supports_tensor,
        "tasks": list(card.tasks),
        "is_custom": card.is_custom,
        "family": card.family,
        "quantization": card.quantization,
        "base_model": card.base_model,
        "capabilities": list(card.capabilities),
        "architecture": card.architecture,
        "n_layers": card.n_layers,
        "catalog_source": entry.source,
        "artifact_path": entry.artifact_path,
    }


def _tags(entry: CatalogEntry) -> list[str]:
    card = entry.card
    found = [tag for tag in ("thinking", "vision", "embedding") if tag in card.capabilities]
    return found + (["tensor"] if card.supports_tensor else [])
