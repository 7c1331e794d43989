"""The handler `forward`: batches to a cluster of Kafka 0.8 or later, with identities, keys and topics (ring 1).

In: batches of a member. Out: the messages in a cluster of Kafka 0.8 or later, with their identities in headers.

Files in reading order: handler, settings, mapping, topics, identity, feed, target_log, keys, errors.

Easy to miss:

- A recreated topic begins at offset 0: its messages have the identities of the old ones.
"""

from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.identity import PREFIX, SourceIdentity, SourceMark, read_identity
from consumerd.handlers.forward.keys import KeyExtractor, key_extractor
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, SourceNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.handlers.forward.topics import ForwardTopics

__all__ = [
    "PREFIX",
    "BrokerMajorNumbering",
    "ForwardHandler",
    "ForwardPlacing",
    "ForwardResume",
    "ForwardSettings",
    "ForwardTopics",
    "KeyExtractor",
    "SourceIdentity",
    "SourceMark",
    "SourceNumbering",
    "TargetLog",
    "TopicNaming",
    "key_extractor",
    "read_identity",
]
