"""What the catalog refuses, each with a message a person can act on."""

from __future__ import annotations


class CatalogError(Exception):
    """Base of every refusal of the catalog. ``str(error)`` is one paragraph: what, where, what to do."""

    code = "catalog_error"


class ArtifactError(CatalogError):
    """A model file or folder cannot be read as what it claims to be."""

    code = "artifact_invalid"


class GgufError(ArtifactError):
    """No GGUF, a damaged or truncated one, or one this version cannot read."""

    code = "gguf_invalid"


class SafetensorsError(ArtifactError):
    """No safetensors file, a damaged or truncated one, or a missing shard."""

    code = "safetensors_invalid"


class HfConfigError(ArtifactError):
    """A ``config.json`` that is missing, unreadable or lacks what a card needs."""

    code = "config_invalid"


class UnknownModel(CatalogError):
    """No card with this id. ``closest`` holds the most similar ids, best first."""

    code = "model_not_found"

    def __init__(self, model_id: str, closest: tuple[str, ...]) -> None:
        self.model_id = model_id
        self.closest = closest
        hint = f"Did you mean {', '.join(closest)}?" if closest else "Add one with `wharf models add FILE`."
        super().__init__(f"No model {model_id!r} in the catalog. {hint}")


class CatalogConflict(CatalogError):
    """The id is taken by a card with another digest."""

    code = "model_conflict"

    def __init__(self, model_id: str, existing_digest: str, offered_digest: str) -> None:
        self.model_id = model_id
        self.existing_digest = existing_digest
        self.offered_digest = offered_digest
        super().__init__(
            f"The catalog already has another model under the id {model_id!r} (card {existing_digest[:12]}, "
            f"this one is {offered_digest[:12]}). Add it under another id, or remove the present one first."
        )


class NotRemovableError(CatalogError):
    """Only cards that were added here by hand (source ``custom``) may be removed."""

    code = "model_not_custom"

    def __init__(self, model_id: str, source: str) -> None:
        self.model_id = model_id
        self.source = source
        super().__init__(
            f"Model {model_id!r} comes from the {source} catalog, not from `wharf models add`, "
            "and cannot be removed as a custom model."
        )


class DemoUnavailableError(CatalogError):
    """The demo model cannot be made available on this machine."""

    code = "demo_unavailable"
