"""The producer for brokers of Kafka 0.6 and 0.7.

Strategy: `Producer` routes messages (by a list of brokers or by ZooKeeper), compresses them and sends PRODUCE or
MULTIPRODUCE over one connection per broker. These brokers do not answer PRODUCE, so a zero-byte FETCH behind each
request confirms it, and `verify` can read the messages back. `AsyncProducer` adds a queue and a sending task.

In: messages of `Producer.send`. Out: PRODUCE requests, verified if wanted.

Files in reading order: settings, data, producer, routing, keys, encoding, sending, links, verify, async_producer,
event_queue, events, dispatch.

Easy to miss:

- An empty PRODUCE set creates a topic; until the topic is registered, producers know only its partition 0.
"""
