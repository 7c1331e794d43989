"""The memory that all requests together may use."""

from consumerd.storage.broker.memory import UNCHARGED_BYTES, RequestMemory


def test_grants_a_single_client_whatever_it_needs() -> None:
    memory = RequestMemory(100_000)
    assert memory.charge(0, 1_000_000) == 1_000_000
    assert memory.charge(1_000_000, 2_000_000) == 2_000_000
    assert memory.charge(0, UNCHARGED_BYTES + 1) is None
    assert memory.charge(0, UNCHARGED_BYTES) == 0  # small buffers are not counted
    assert memory.used == 2_000_000


def test_wakes_waiting_clients_in_order_when_memory_is_released() -> None:
    memory = RequestMemory(100_000)
    woken: list[str] = []
    held = memory.charge(0, 90_000)
    assert held is not None
    assert memory.charge(0, 20_000) is None
    for name in "abc":
        memory.wait(lambda name=name: woken.append(name))  # type: ignore[misc]
    assert memory.wanted
    assert memory.charge(held, 95_000) == 95_000
    assert not woken
    assert memory.charge(95_000, 0) == 0
    assert woken == ["a", "b", "c"]
    assert memory.used == 0


def test_forgets_cancelled_waiters() -> None:
    memory = RequestMemory(1)
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    memory.wait(wake)
    memory.forget(wake)
    memory.forget(wake)
    assert not memory.wanted


def test_rejected_charge_changes_nothing() -> None:
    memory = RequestMemory(100_000)
    assert memory.charge(0, 60_000) == 60_000
    assert memory.charge(0, 30_000) == 30_000
    assert memory.charge(30_000, 50_000) is None
    assert memory.used == 90_000
    assert memory.charge(60_000, 10) == 0  # a small buffer is left
    assert memory.charge(30_000, 50_000) == 50_000
    assert memory.used == 50_000
