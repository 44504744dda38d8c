"""Everything that changes on the dashboard, as one comparable value of one moment."""

from __future__ import annotations

from dataclasses import dataclass

from wharfinger.operations.model import Operation, OperationState
from wharfinger.placement.types import ReservationFacts
from wharfinger.web.instances import InstanceCard, OperationView, instance_cards, operation_view
from wharfinger.web.nodes import NodeView, node_views
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.instances import InstanceStatus, list_reservations

SHOWN_OPERATIONS = 8
READ_OPERATIONS = 100
"""The newest ones, in which the work on any instance now being changed is found."""


@dataclass(frozen=True, slots=True)
class Board:
    """Two boards are equal exactly when there is nothing new to show."""

    nodes: tuple[NodeView, ...]
    instances: tuple[InstanceCard, ...]
    operations: tuple[OperationView, ...]
    chat_models: tuple[str, ...]
    """Served models that generate text."""
    ledger: tuple[ReservationFacts, ...]
    """When it changes, other placements become possible."""


def node_names(control: ControlPlane) -> dict[str, str]:
    """Names of the nodes heard of lately, by id."""
    return {node.report.node_id: node.report.name for node in control.fleet.seen()}


def _of_interest(operation: Operation) -> bool:
    """Not the recurring housekeeping, which has no resource but itself, unless it failed."""
    return operation.resource_name != operation.kind or operation.state is OperationState.FAILED


async def read_board(control: ControlPlane) -> Board:
    """The board now. Measures nothing: nodes are as they last reported.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = node_names(control)
    async with control.database.read() as connection:
        ledger = await list_reservations(connection)
    operations = (await control.operations.list(limit=READ_OPERATIONS)).items
    instances = instance_cards(await control.instances(), await control.failures(), operations, names)
    served = {
        card.model_id for card in instances if card.status == InstanceStatus.READY and card.generates_text
    }
    return Board(
        nodes=node_views(control.fleet.seen(), ledger),
        instances=instances,
        operations=tuple(operation_view(operation) for operation in operations if _of_interest(operation))[
            :SHOWN_OPERATIONS
        ],
        chat_models=tuple(sorted(served)),
        ledger=tuple(sorted(ledger, key=lambda r: (r.node_id, r.instance_id, r.device_index or -1))),
    )
