"""Print the messages of a topic as a member of a consumer group, until nothing has come for a while.

    python tail.py zk1:2181/kafka my-group clicks

Each message is committed after the next one was asked for, so a crash repeats at most what was in hand.
"""

from __future__ import annotations

import asyncio
import sys

from consumerd import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError, MessageStream

#: Seconds without a message after which the program ends.
PATIENCE = 5.0


async def show(stream: MessageStream) -> int:
    """Print what the stream brings; return how many messages that was."""
    count = 0
    try:
        async for message in stream:
            print(f"{message.partition}:{message.offset}", message.payload.decode(errors="replace"), flush=True)
            count += 1
    except ConsumerTimeoutError:
        pass  # nothing for a while: that is the end
    return count


async def main(zookeeper: str, group: str, topic: str) -> None:
    """Join the group and print the messages of this member's partitions, on two streams at once."""
    config = ConsumerConfig(group=group, zookeeper=zookeeper, consumer_timeout=PATIENCE)
    async with ConsumerConnector(config) as connector:
        streams = (await connector.create_message_streams({topic: 2}))[topic]
        counts = await asyncio.gather(*(show(stream) for stream in streams))
    print(f"{sum(counts)} messages, nothing for {PATIENCE:g} s", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python tail.py ZOOKEEPER GROUP TOPIC")
    asyncio.run(main(*sys.argv[1:]))
