"""Every table. Times are UTC; JSON columns hold plain values. Migrations create exactly these (a test checks)."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from wharfinger.store.types import UtcDateTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("secret_hash", String(64), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
)

revoked_sessions = Table(
    "revoked_sessions",
    metadata,
    Column("session_id", String(32), primary_key=True),
    Column("expires_at", UtcDateTime, nullable=False),
)
"""Dashboard sessions that were signed out of, until they would have expired anyway."""

nodes = Table(
    "nodes",
    metadata,
    Column("node_id", String(64), primary_key=True),
    Column("report", JSON, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)
"""Last report of each node, so that every replica plans with the same fleet."""

model_cards = Table(
    "model_cards",
    metadata,
    Column("model_id", String(256), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("card", JSON, nullable=False),
    Column("source", String(16), nullable=False),
    Column("artifact_path", Text),
    Column("created_at", UtcDateTime, nullable=False),
)
"""The catalog: cards this installation may run, and where their file lies on the control plane's machine."""

instances = Table(
    "instances",
    metadata,
    Column("instance_id", String(64), primary_key=True),
    Column("model_id", String(256), nullable=False),
    Column("card_digest", String(64), nullable=False),
    Column("card", JSON, nullable=False),
    Column("request", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_reason", Text),
    Column("operation_id", String(64)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("ready_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
)

reservations = Table(
    "reservations",
    metadata,
    Column("instance_id", String(64), ForeignKey("instances.instance_id"), primary_key=True),
    Column("node_id", String(64), primary_key=True),
    Column("device_index", Integer, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("observed", Boolean, nullable=False, default=False),
)
"""Memory promised to instances. ``device_index`` -1 is the node's RAM."""

runners = Table(
    "runners",
    metadata,
    Column("runner_id", String(64), primary_key=True),
    Column("instance_id", String(64), ForeignKey("instances.instance_id"), nullable=False),
    Column("node_id", String(64), nullable=False),
    Column("report", JSON, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""Last known report of each runner, so that a failure is still readable after a restart."""

instance_failures = Table(
    "instance_failures",
    metadata,
    Column("instance_id", String(256), primary_key=True),
    Column("model_id", String(256), nullable=False),
    Column("error_code", String(64), nullable=False),
    Column("error_message", Text, nullable=False),
    Column("affected_node_ids", JSON, nullable=False),
    Column("log_tail", JSON, nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
)

targets = Table(
    "targets",
    metadata,
    Column("target_id", String(64), primary_key=True),
    Column("model_id", String(256), nullable=False),
    Column("upstream_model", String(256), nullable=False),
    Column("base_url", Text, nullable=False),
    Column("instance_id", String(64)),
    Column("node_id", String(64), nullable=False),
    Column("context_tokens", Integer),
    Column("tasks", JSON, nullable=False),
    Column("collects", Boolean, nullable=False, server_default=false()),
    Column("created_at", UtcDateTime, nullable=False),
)
"""Published endpoints; credentials are derived, not stored."""

operations = Table(
    "operations",
    metadata,
    Column("operation_id", String(64), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("resource_type", String(32), nullable=False),
    Column("resource_name", String(256), nullable=False),
    Column("request", JSON, nullable=False),
    Column("request_hash", String(64), nullable=False),
    Column("idempotency_key", String(256)),
    Column("affinity", String(64)),
    Column("max_attempts", Integer, nullable=False),
    Column("wait_deadline_s", Float),
    Column("cleanup_if_unstarted", Boolean, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("state", String(16), nullable=False),
    Column("result", JSON(none_as_null=True)),
    Column("progress", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("cleaning_for", String(16)),
    Column("cleanup_failures", Integer, nullable=False),
    Column("waiting_reason", Text),
    Column("waiting_since", UtcDateTime),
    Column("waited_s", Float, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("error_retryable", Boolean),
    Column("unresolved_resource", String(320), unique=True),
    Column("lease_owner", String(128)),
    Column("lease_generation", Integer, nullable=False),
    Column("due_at", UtcDateTime),
    Column("last_sequence", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("completed_at", UtcDateTime),
    UniqueConstraint("kind", "idempotency_key"),
    Index(None, "due_at"),
    Index(None, "completed_at"),
)
"""Durable work. ``due_at`` is when a worker may claim the row: the start of the next attempt while nobody holds it,
the end of the lease while somebody does, NULL when it is finished. ``unresolved_resource`` is ``TYPE/NAME`` until then,
so its uniqueness allows one unresolved operation per resource. The columns up to ``created_at`` never change, but for
``affinity``, which becomes NULL when the machine it names is given up."""

operation_steps = Table(
    "operation_steps",
    metadata,
    Column(
        "operation_id",
        String(64),
        ForeignKey("operations.operation_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("name", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("message", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

operation_events = Table(
    "operation_events",
    metadata,
    Column(
        "operation_id",
        String(64),
        ForeignKey("operations.operation_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("sequence", Integer, primary_key=True),
    Column("type", Text, nullable=False),
    Column("level", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("at", UtcDateTime, nullable=False),
)
