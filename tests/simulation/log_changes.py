"""Logs that become other ones beneath a group, one story after the other, for each way of coordination.

    python -m tests.simulation.log_changes [story ...]

Strategy: a `Way` makes a world with a topic of two partitions, and settings for its members; a story is a function of
it that begins with a member which has handled and committed everything, changes the logs, and lets the rest be
delivered. In the end `wrong` says what breaks the rule: every message of every log that exists was delivered, none
twice, and all is committed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from tests.simulation.base_world import BaseWorld
from tests.simulation.daemon import Daemon
from tests.simulation.kafka_broker import ERAS, Era
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.old_kafka_world import OldKafkaWorld
from tests.simulation.world import World
from tests.simulation.zookeeper_world import ZooKeeperWorld

TOPIC = "events"
#: Messages of each partition before the change.
BEFORE = 40
#: Seconds in which a member notices a change of its log, and within which everything is delivered.
NOTICED, DELIVERED = 10.0, 60.0
#: Seconds for which a topic is gone before it is made again.
GONE = 3.0
#: Seconds for which ZooKeeper stands still: within a session.
STILL = 4.0


class Way(NamedTuple):
    """A way of coordination. `era`: of the brokers, None for 0.7; `fixed`: partitions are assigned by settings."""

    name: str
    make: Callable[[], BaseWorld]
    era: Era | None
    in_zookeeper: bool = False
    fixed: bool = False

    def settings(self) -> dict[str, dict[str, Any]]:
        """Of a member."""
        tables: dict[str, dict[str, Any]] = {
            "fetch": {},
            "commit": {"interval": 0.5},
            "rebalance": {"reconcile_interval": 2.0},
        }
        return {**tables, "group": {"partitions": {TOPIC: [0, 1]}}} if self.fixed else tables


def _in_zookeeper(era: Era) -> Way:
    return Way(f"zookeeper-{era.name}", lambda: OldKafkaWorld(1, brokers=2, era=era), era, in_zookeeper=True)


def _in_kafka(era: Era, *, fixed: bool = False) -> Way:
    name = f"{'fixed' if fixed else 'coordinated'}-{era.name}"
    return Way(name, lambda: KafkaWorld(1, brokers=2, era=era, fixed=fixed), era, fixed=fixed)


WAYS = {
    way.name: way
    for way in (
        Way("zookeeper-0.7", lambda: World(1), None, in_zookeeper=True),
        *(_in_zookeeper(era) for era in ERAS),
        *(_in_kafka(era) for era in ERAS),
        *(_in_kafka(era, fixed=True) for era in ERAS),
    )
}


class Telling:
    """A story that is going on: the world, entered, and its member."""

    def __init__(
        self,
        way: Way,
        world: BaseWorld,
        *,
        latest: bool = False,
        handling: float = 0.002,
        fetch: Mapping[str, Any] | None = None,
    ) -> None:
        self.world = world
        self._settings = way.settings()
        self._settings["fetch"] |= {**(fetch or {}), "initial": "latest" if latest else "earliest"}
        self._members = 0
        self._handling = handling
        world.topic(TOPIC, 2)
        world.account.count_all()
        self.member = self.join()
        if latest:
            world.run(NOTICED)
        self.produce(BEFORE)
        self.deliver()

    def join(self) -> Daemon:
        """One more member."""
        self._members += 1
        self.member = self.world.daemon(f"m{self._members}", self._settings, handling=self._handling)
        return self.member

    def produce(self, count: int) -> None:
        """So many messages to each partition."""
        for partition in self.world.partitions:
            self.world.produce(partition, count)

    def deliver(self) -> None:
        """Until all is delivered, or nothing more is to be expected; and committed."""
        self.world.finish(DELIVERED)
        self.world.run(2.0)

    def stop(self) -> None:
        """The member leaves."""
        self.member.terminate()
        self.world.until_ended(self.member)

    def make_again(self, count: int, *, gone: float = GONE, partitions: int = 2) -> None:
        """The topic is deleted, and after a while made again, with so many messages in each partition."""
        self.world.delete_topic(TOPIC)
        self.world.run(gone)
        self.world.topic(TOPIC, partitions)
        self.produce(count)

    def grow(self) -> None:
        """The topic gets one partition more, with messages."""
        known = set(self.world.partitions)
        self.world.topic(TOPIC, 3)
        (added,) = set(self.world.partitions) - known
        self.world.account.log_added(added)
        self.world.produce(added, BEFORE)

    def truncate(self, lost: int, count: int) -> None:
        """The last messages of each log are gone, and others are written."""
        for partition in list(self.world.partitions):
            self.world.truncate_log(partition, lost)
        self.produce(count)

    def wrong(self, allowed: Container[str] = ()) -> str:
        """What breaks the rule, except for what is `allowed`; empty if nothing does."""
        account = self.world.account
        cancelled = {each[1:] for each in account.cancelled}  # the ends of leases take batches from handlers
        found = [
            f"{len(what)} {word}, first {what[0]}"
            for word, what in (
                ("lost", account.lost),
                ("repeated", [each for each in account.repeated if each[:2] not in cancelled]),
                ("uncommitted", account.uncommitted),
                ("violations", account.violations),
            )
            if what and word not in allowed
        ]
        failures = [f"{name} failed: {each.failure!r}" for name, each in self.world.daemons.items() if each.failure]
        return "; ".join(found + failures)


def recreated_running(story: Telling, count: int) -> None:
    """A member reads on while its topic is made again."""
    story.make_again(count)
    story.deliver()


def recreated_with_fewer_messages(story: Telling) -> None:
    """A member reads; the new logs are shorter than what it has read."""
    recreated_running(story, BEFORE // 2)


def recreated_with_as_many_messages(story: Telling) -> None:
    """A member reads; the new logs end where it was."""
    recreated_running(story, BEFORE)


def recreated_with_more_messages(story: Telling) -> None:
    """A member reads; where it was, the new logs have other messages."""
    recreated_running(story, 3 * BEFORE)


def recreated_behind_a_busy_handler(story: Telling) -> None:
    """The fetcher waits for the handler while the topic is made again, and does not see that it is gone."""
    story.produce(3 * BEFORE)
    story.world.run(1.0)
    story.make_again(5 * BEFORE, gone=0.5)
    story.deliver()


def recreated_while_frozen(story: Telling) -> None:
    """The member is stopped for two seconds, and does not see that the topic is gone."""
    story.member.freeze()
    story.world.run(0.2)
    story.make_again(3 * BEFORE, gone=0.5)
    story.world.run(1.3)
    story.member.thaw()
    story.deliver()


def recreated_while_stopped(story: Telling) -> None:
    """There is no member while the topic is made again."""
    story.stop()
    story.make_again(3 * BEFORE)
    story.join()
    story.deliver()


def recreated_before_a_commit_and_killed(story: Telling) -> None:
    """A commit of what was handled of the former log arrives after the new one was made, and the member is killed.

    Nothing arrives at the member meanwhile, so that it does not know of the new log.
    """
    world, member = story.world, story.member
    for _ in range(2):  # the commit interval begins with the first
        story.produce(BEFORE // 4)
        world.run(0.1)
    for link in world.network.links_of(member.name):
        link.stall(up=False)
    story.make_again(5 * BEFORE, gone=0.0)
    world.run(1.0)
    member.kill()
    story.join()
    story.deliver()


def recreated_before_a_restart(story: Telling) -> None:
    """What a member commits soon in the new topic is of that: the next one continues there."""
    story.make_again(3 * BEFORE)
    story.deliver()
    story.stop()
    story.join()
    story.produce(BEFORE)
    story.deliver()


def recreated_with_more_partitions(story: Telling) -> None:
    """The new topic has a partition more."""
    story.make_again(3 * BEFORE, partitions=3)
    story.deliver()


def recreated_with_fewer_partitions(story: Telling) -> None:
    """The new topic has a partition less."""
    story.make_again(3 * BEFORE, partitions=1)
    story.deliver()


def truncated_running(story: Telling) -> None:
    """A member reads; the last messages that it read are gone, and more others come in their place."""
    story.truncate(BEFORE // 2, BEFORE)
    story.deliver()


def truncated_to_a_shorter_log(story: Telling) -> None:
    """A member reads; the last messages that it read are gone, and few come in their place at first."""
    story.truncate(BEFORE // 2, 2)
    story.world.run(NOTICED)
    story.produce(BEFORE)
    story.deliver()


def truncated_while_stopped(story: Telling) -> None:
    """There is no member when the last messages go and others come in their place."""
    story.stop()
    story.truncate(BEFORE // 2, BEFORE)
    story.join()
    story.deliver()


def grown_while_running(story: Telling) -> None:
    """A partition comes, and messages are written to it before the member knows it, which begins at ends of logs."""
    story.grow()
    story.deliver()


def grown_while_stopped(story: Telling) -> None:
    """The same while there is no member: the group has offsets of the other partitions."""
    story.stop()
    story.grow()
    story.join()
    story.deliver()


def zookeeper_stands_still(story: Telling) -> None:
    """Nothing comes from ZooKeeper for a while, and commits wait; nobody else is in the group."""
    world = story.world
    assert isinstance(world, ZooKeeperWorld)
    world.produce_steadily(40)
    world.run(2.0)
    address = (world.zookeeper.host, world.zookeeper.port)
    links = world.network.links_of(story.member.name, address)
    for link in links:
        link.stall(up=False)
    world.run(STILL)
    for link in links:
        link.stall(False)
    world.run(NOTICED)
    story.deliver()


STORIES: dict[str, Callable[[Telling], None]] = {
    each.__name__: each
    for each in (
        recreated_with_fewer_messages,
        recreated_with_as_many_messages,
        recreated_with_more_messages,
        recreated_behind_a_busy_handler,
        recreated_while_frozen,
        recreated_while_stopped,
        recreated_before_a_commit_and_killed,
        recreated_before_a_restart,
        recreated_with_more_partitions,
        recreated_with_fewer_partitions,
        truncated_running,
        truncated_to_a_shorter_log,
        truncated_while_stopped,
        grown_while_running,
        grown_while_stopped,
        zookeeper_stands_still,
    )
}
_BUSY = {"size": 1024, "partition_budget": 2048}


def can_be_known(story: str, way: Way) -> bool:
    """Whether a member can find out that the log is another one, with what its brokers and ZooKeeper tell.

    ZooKeeper has the transaction numbers of a topic's node and of the offset's. Brokers since 0.11 (1.0 here) have
    epochs, and those with ids tell even what was made again between two looks. 0.7 has nothing but the messages: what a
    member read last ends inside of another one. Fixed partitions are in the settings: there are as many as before, and
    no coordinator drops the offsets of a running member: without ids, a topic that is as long again looks the same.
    A commit for the former topic that arrives in the new one has no mark of its own there without ids, either.
    """
    if way.fixed and ("partitions" in story or story.startswith("grown")):
        return False
    if story == "zookeeper_stands_still":
        return way.in_zookeeper
    if way.fixed and story in (
        "recreated_with_as_many_messages", "recreated_with_more_messages", "recreated_before_a_restart",
    ):  # fmt: skip
        return way.era is ERAS[-1]
    if story.startswith("truncated"):
        return way.era is None or (way.era is not ERAS[0] and not (way.in_zookeeper and story.endswith("stopped")))
    if story in ("recreated_behind_a_busy_handler", "recreated_while_frozen", "recreated_before_a_commit_and_killed"):
        return way.in_zookeeper or way.era is ERAS[-1]
    return True


def tell(story: str, way: Way) -> str:
    """Play a story; what is wrong in the end."""
    busy = story == "recreated_behind_a_busy_handler"
    with way.make() as world:
        telling = Telling(
            way,
            world,
            latest=story.startswith("grown"),
            handling=2.0 if busy else 0.002,
            fetch=_BUSY if busy else {},
        )
        # 0.7 cannot tell a log that was cut from one that was created again: it is read again from its beginning.
        again = way.era is None and story.startswith("truncated")
        world.account.may_go_back = again
        STORIES[story](telling)
        return telling.wrong(allowed={"repeated"} if again else ())


def main() -> None:
    """For people."""
    parser = argparse.ArgumentParser(description="Say what each story loses or repeats.")
    parser.add_argument("stories", nargs="*", default=list(STORIES), metavar="story", help=", ".join(STORIES))
    parser.add_argument("--way", choices=list(WAYS), help="only this one")
    arguments = parser.parse_args()
    for story in arguments.stories:
        for name, way in WAYS.items():
            if can_be_known(story, way) and arguments.way in (None, name):
                sys.stdout.write(f"{story:36} {name:18} {tell(story, way) or 'as it should be'}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
