"""What a member counts, and whom it tells."""

from __future__ import annotations

from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.stats import REMEMBERED, CommitAttempt, ConsumerStats, Rebalance

T0, T1, U0 = (TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("u", 0, 0))


class Observer:
    """Keeps the calls."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def committed(self, result: CommitAttempt) -> None:
        self.told.append(result)

    def rebalanced(self, rebalance: Rebalance) -> None:
        self.told.append(rebalance)


def test_counts_batches_by_partition_and_topic() -> None:
    stats = ConsumerStats()
    assert set(stats.totals().values()) == {0}
    assert stats.of(T0).handled_at is None
    stats.of(T0).handled(3, 100, began=10.0, ended=10.5)
    stats.of(T0).handled(2, 50, began=11.0, ended=11.25)
    stats.of(T1).handled(1, 7, began=12.0, ended=13.0)
    assert (stats.messages, stats.bytes) == (6, 157)
    assert stats.of(T0) is stats.partitions[T0]
    assert (stats.of(T0).messages, stats.of(T0).bytes, stats.of(T0).handled_at) == (5, 150, 11.25)
    assert (stats.of(T1).messages, stats.of(T1).bytes, stats.of(T1).handled_at) == (1, 7, 13.0)
    assert stats.of(T0).topic is stats.of(T1).topic is stats.topics["t"]
    assert (stats.topics["t"].durations.total, stats.topics["t"].sizes.total) == (1.75, 6)
    assert stats.topics["t"].sizes.count == 3
    assert stats.of(U0).topic is not stats.topics["t"]


def test_totals_are_the_counters() -> None:
    stats = ConsumerStats(commits=3, failed_commits=4, rebalances=5, lost_partitions=6)
    stats.of(T0).handled(1, 2, began=1.0, ended=2.0)
    assert stats.totals() == {
        "messages": 1,
        "bytes": 2,
        "commits": 3,
        "failed_commits": 4,
        "rebalances": 5,
        "lost_partitions": 6,
    }


def test_offsets_of_later_brokers_do_not_count_as_bytes() -> None:
    stats = ConsumerStats()
    stats.of(TopicPartition.numbered("t", 0)).handled(3, 3, began=1.0, ended=2.0)
    assert stats.totals()["messages"] == 3
    assert "bytes" not in stats.totals()


def test_tells_the_observer_of_commits_and_rebalances() -> None:
    stats = ConsumerStats()
    rebalance = Rebalance(ended=9.0, seconds=2.0, partitions=1, gained=(T0,), lost=())
    error = OSError("gone")
    for observer in (None, Observer()):
        stats.observer = observer
        stats.committed(1.0, 2.0, committed=3, lost=1)
        stats.commit_failed(3.0, 4.0, 5, error)
        stats.rebalanced(rebalance)
    assert observer is not None
    assert observer.told == [CommitAttempt(1.0, 2.0, 3, 1), CommitAttempt(3.0, 4.0, 0, 0, error), rebalance]
    assert (stats.commits, stats.failed_commits) == (6, 10)
    assert (stats.rebalance_seconds.count, stats.rebalance_seconds.total) == (2, 4.0)


def test_remembers_the_last_rebalances() -> None:
    stats = ConsumerStats()
    for number in range(REMEMBERED + 5):
        stats.rebalanced(Rebalance(float(number), 1.0, 0, (), ()))
    assert [rebalance.ended for rebalance in stats.history] == [float(number) for number in range(5, REMEMBERED + 5)]
