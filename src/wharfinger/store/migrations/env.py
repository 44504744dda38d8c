"""Alembic's entry: run the versions on the connection, and in the transaction, that :mod:`..migrate` passes in."""

from __future__ import annotations

from alembic import context

from wharfinger.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
