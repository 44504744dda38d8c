"""Doing something to several rows in one transaction, without one broken row keeping the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError

from wharfinger.operations import rows
from wharfinger.operations.model import Operation
from wharfinger.operations.moves import InvalidTransition
from wharfinger.store.database import Database
from wharfinger.store.errors import unavailable
from wharfinger.store.tables import operations

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
Work = Callable[[Connection, Operation, datetime], Operation]
"""What is done to one operation at the database's time."""
_MAX_BROKEN = 1000
"""So many rows that cannot be read are passed over at a time."""


class Taker:
    """Takes rows of one database in batches."""

    def __init__(self, database: Database, by_id: Select[Any]) -> None:
        """``by_id`` selects one row by ``key``, with the database's time as ``now``."""
        self._database = database
        self._by_id = by_id
        self._broken: set[str] = set()  # ids whose trouble has been logged

    async def take(self, query: Select[Any], limit: int, work: Work) -> Sequence[Operation]:
        """Do ``work`` to up to ``limit`` rows of ``query`` in one transaction.

        A row that cannot be read or changed (written by hand, or by another release) must not keep the others
        waiting: then they are taken one by one, and that one is logged and passed over.
        """
        try:
            return await self._database.run(partial(self._take_all, query=query.limit(limit), work=work))
        except (ValueError, LookupError, TypeError, InvalidTransition, DBAPIError):
            ids = query.with_only_columns(operations.c.operation_id).limit(limit + _MAX_BROKEN)
            return await self._database.run(partial(self._take_sound, ids=ids, limit=limit, work=work))

    def _take_all(self, connection: Connection, query: Select[Any], work: Work) -> Sequence[Operation]:
        found = connection.execute(query).all()
        return [work(connection, rows.read_operation(row), row.now) for row in found]

    def _take_sound(
        self, connection: Connection, ids: Select[Any], limit: int, work: Work
    ) -> Sequence[Operation]:
        taken: list[Operation] = []
        for operation_id in connection.execute(ids).scalars().all():
            if len(taken) == limit:
                break
            try:
                with connection.begin_nested():
                    row = connection.execute(self._by_id, {"key": operation_id}).one()
                    taken.append(work(connection, rows.read_operation(row), row.now))
            except (ValueError, LookupError, TypeError, InvalidTransition, DBAPIError) as error:
                if (
                    isinstance(error, DBAPIError)
                    and unavailable(error, self._database.engine.url) is not None
                ):
                    raise
                if operation_id not in self._broken:
                    self._broken.add(operation_id)
                    _log.error("operation_passed_over", operation_id=operation_id, exc_info=error)
        return taken
