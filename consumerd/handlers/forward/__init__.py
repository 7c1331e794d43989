"""The handler `forward`: batches to a cluster of Kafka 0.8 or later, with identities, keys and topics (ring 1)."""

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
