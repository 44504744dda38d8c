"""The node that serves a target."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wharfinger.store.types import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make ``targets`` anew with ``node_id``. Its rows go: routes are published again at the start."""
    op.drop_table("targets")
    op.create_table(
        "targets",
        sa.Column("target_id", sa.String(length=64), nullable=False),
        sa.Column("model_id", sa.String(length=256), nullable=False),
        sa.Column("upstream_model", sa.String(length=256), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=True),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=True),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", name=op.f("pk_targets")),
    )
