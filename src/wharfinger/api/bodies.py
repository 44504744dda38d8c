"""What all bodies of requests have in common: no field but the known ones, and a bounded number of complaints."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError

MAX_FAULTS = 1000
"""A body that is wrong in more places gets one complaint: each is made into objects of its own, on the loop."""


class RequestBody(BaseModel):
    """Base of everything that a body holds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @model_validator(mode="wrap")
    @classmethod
    def _bounded(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            if error.error_count() > MAX_FAULTS:
                places = f"{error.error_count():,}"
                raise PydanticCustomError(
                    "too_many", "wrong in {places} places", {"places": places}
                ) from None
            raise
