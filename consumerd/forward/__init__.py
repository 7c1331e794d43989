"""Handing batches on to a cluster of 0.8 or later (ring 1): the handler, identities, keys, places, topics."""

from consumerd.forward.handler import ForwardHandler
from consumerd.forward.identity import PREFIX, SourceIdentity, SourceMark, read_identity
from consumerd.forward.keys import KeyExtractor, key_extractor
from consumerd.forward.mapping import BrokerMajor, Naming, SourcePlaces
from consumerd.forward.settings import ForwardSettings, Placing, Resume
from consumerd.forward.target_log import TargetLog
from consumerd.forward.topics import TargetTopics

__all__ = [
    "PREFIX",
    "BrokerMajor",
    "ForwardHandler",
    "ForwardSettings",
    "KeyExtractor",
    "Naming",
    "Placing",
    "Resume",
    "SourceIdentity",
    "SourceMark",
    "SourcePlaces",
    "TargetLog",
    "TargetTopics",
    "key_extractor",
    "read_identity",
]
