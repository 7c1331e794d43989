"""The producer for brokers of Kafka 0.6 and 0.7.

Strategy: `Producer` routes messages (by a list of brokers or by ZooKeeper), compresses them and sends PRODUCE or
MULTIPRODUCE over one connection per broker. These brokers do not answer PRODUCE, so a zero-byte FETCH behind each
request confirms it, and `verify` can read the messages back. `AsyncProducer` adds a queue and a sending task.
"""
