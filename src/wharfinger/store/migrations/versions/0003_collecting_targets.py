"""Whether documents of a target are fetched as streams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add ``targets.collects``; routes are published again at the start, so no row keeps the default."""
    op.add_column("targets", sa.Column("collects", sa.Boolean(), server_default=sa.false(), nullable=False))
