"""consumerd: an asyncio member of a ZooKeeper-coordinated Kafka consumer group.

Importing the package imports nothing else of it: executors of a data pipeline import `consumerd.wire` and
`consumerd.storage` alone.
"""

__version__ = "0.1.0"
