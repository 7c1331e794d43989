"""What the tests of both machines of a group that brokers coordinate drive them with."""

from __future__ import annotations

from typing import Any, TypeVar

from consumerd.group import coordinated_events as e

Kind = TypeVar("Kind", bound=e.Action)


class MachineDriver:
    """A machine, and what it did last."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.now = 100.0
        self.actions: list[e.Action] = []

    def tell(self, event: e.Event, after: float = 0.0) -> list[e.Action]:
        self.now += after
        self.actions = self.machine.handle(event, self.now)
        return self.actions

    def has(self, kind: type[e.Action]) -> bool:
        return any(isinstance(action, kind) for action in self.actions)

    def did(self, kind: type[Kind]) -> Kind:
        found = [action for action in self.actions if isinstance(action, kind)]
        assert len(found) == 1, self.actions
        return found[0]
