"""The handler `forward`: batches to a cluster of Kafka 0.8 or later, with identities, keys and topics (ring 1)."""

from consumerd.forward.handler import ForwardHandler
from consumerd.forward.identity import PREFIX, SourceIdentity, SourceMark, read_identity
from consumerd.forward.keys import KeyExtractor, key_extractor
from consumerd.forward.mapping import BrokerMajorNumbering, SourceNumbering, TopicNaming
from consumerd.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings
from consumerd.forward.target_log import TargetLog
from consumerd.forward.topics import ForwardTopics

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
