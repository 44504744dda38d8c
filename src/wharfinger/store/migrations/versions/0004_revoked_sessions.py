"""Sessions that were signed out of; and no table that nothing reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wharfinger.store.types import UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add ``revoked_sessions``; drop ``installation``, which never held a row."""
    op.create_table(
        "revoked_sessions",
        sa.Column("session_id", sa.String(length=32), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_revoked_sessions")),
    )
    op.drop_table("installation")
