"""Errors of the view of the cluster."""

from __future__ import annotations

from consumerd.errors import BrokerError


class BrokerNotRegisteredError(BrokerError):
    """A broker did not appear in ZooKeeper in time."""

    def __init__(self, broker_id: int, timeout: float) -> None:
        super().__init__(
            f"broker {broker_id} is not registered in ZooKeeper and did not appear within {timeout:g} s; "
            "check that it runs and uses the same chroot"
        )
        self.broker_id = broker_id
