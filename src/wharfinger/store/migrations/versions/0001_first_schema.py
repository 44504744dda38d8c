"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wharfinger.store.types import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_api_keys_secret_hash")),
    )
    op.create_table(
        "installation",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_installation")),
    )
    op.create_table(
        "instance_failures",
        sa.Column("instance_id", sa.String(length=256), nullable=False),
        sa.Column("model_id", sa.String(length=256), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("affected_node_ids", sa.JSON(), nullable=False),
        sa.Column("log_tail", sa.JSON(), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", name=op.f("pk_instance_failures")),
    )
    op.create_table(
        "instances",
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("model_id", sa.String(length=256), nullable=False),
        sa.Column("card_digest", sa.String(length=64), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("operation_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("ready_at", UtcDateTime(), nullable=True),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("instance_id", name=op.f("pk_instances")),
    )
    op.create_table(
        "model_cards",
        sa.Column("model_id", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("artifact_path", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("model_id", name=op.f("pk_model_cards")),
    )
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "operations",
        sa.Column("operation_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("resource_type", sa.String(length=32), nullable=False),
        sa.Column("resource_name", sa.String(length=256), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=256), nullable=True),
        sa.Column("affinity", sa.String(length=64), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("wait_deadline_s", sa.Float(), nullable=True),
        sa.Column("cleanup_if_unstarted", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("progress", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("cleaning_for", sa.String(length=16), nullable=True),
        sa.Column("cleanup_failures", sa.Integer(), nullable=False),
        sa.Column("waiting_reason", sa.Text(), nullable=True),
        sa.Column("waiting_since", UtcDateTime(), nullable=True),
        sa.Column("waited_s", sa.Float(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_retryable", sa.Boolean(), nullable=True),
        sa.Column("unresolved_resource", sa.String(length=320), nullable=True),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_generation", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("last_sequence", sa.Integer(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("completed_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("operation_id", name=op.f("pk_operations")),
        sa.UniqueConstraint("kind", "idempotency_key", name=op.f("uq_operations_kind_idempotency_key")),
        sa.UniqueConstraint("unresolved_resource", name=op.f("uq_operations_unresolved_resource")),
    )
    op.create_index(op.f("ix_operations_completed_at"), "operations", ["completed_at"], unique=False)
    op.create_index(op.f("ix_operations_due_at"), "operations", ["due_at"], unique=False)
    op.create_table(
        "targets",
        sa.Column("target_id", sa.String(length=64), nullable=False),
        sa.Column("model_id", sa.String(length=256), nullable=False),
        sa.Column("upstream_model", sa.String(length=256), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=True),
        sa.Column("context_tokens", sa.Integer(), nullable=True),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("target_id", name=op.f("pk_targets")),
    )
    op.create_table(
        "operation_events",
        sa.Column("operation_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"],
            ["operations.operation_id"],
            name=op.f("fk_operation_events_operation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("operation_id", "sequence", name=op.f("pk_operation_events")),
    )
    op.create_table(
        "operation_steps",
        sa.Column("operation_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"],
            ["operations.operation_id"],
            name=op.f("fk_operation_steps_operation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("operation_id", "name", name=op.f("pk_operation_steps")),
    )
    op.create_table(
        "reservations",
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("observed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["instance_id"], ["instances.instance_id"], name=op.f("fk_reservations_instance_id")
        ),
        sa.PrimaryKeyConstraint("instance_id", "node_id", "device_index", name=op.f("pk_reservations")),
    )
    op.create_table(
        "runners",
        sa.Column("runner_id", sa.String(length=64), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["instance_id"], ["instances.instance_id"], name=op.f("fk_runners_instance_id")
        ),
        sa.PrimaryKeyConstraint("runner_id", name=op.f("pk_runners")),
    )
