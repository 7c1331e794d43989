"""Handlers: the plugin interface, loading by entry point, retries and dead letters, and the built-in handlers.

In: batches from a lane. Out: return (handled), a failure by the policy, or dead letters.

Files in reading order: api, messages, contents, context, loading, handler_stages, retry, giving_up, retry_order,
disk_full, counts, batching, key_lanes, middleware, processes, threads, rate, dead_letters, dead_letter_files,
dead_letter_topic, dead_letter_progress, dead_letter_replay, recorded, sparse_content, chunks, arrow_columns,
tracebacks, slow_calls, secrets.

Easy to miss:

- A handler that is cancelled while it works in a thread has not ended until the thread has.
- A message that the native codec makes is not a tuple for C code (`PyTuple_Check`), though `isinstance` says so: its
  `__class__` is that of the named tuple, which it makes for everything that is not a field.
"""

from consumerd.base.settings.processing import OnDiskFull, OnFailure, RetryPolicy
from consumerd.handlers.api import (
    Handler,
    MessageHandler,
    PartitionTakenError,
    RejectedError,
    RetryLaterError,
    SinkPosition,
    message_handler,
)
from consumerd.handlers.contents import Content
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.dead_letter_files import FileDeadLetters
from consumerd.handlers.dead_letters import DeadLetters, Letter
from consumerd.handlers.decoding.api import Decoder
from consumerd.handlers.disk_full import DiskFullError
from consumerd.handlers.loading import load_handler, make_handler, plain_handler
from consumerd.handlers.messages import Batch, Identity, KeyedMessage, Message
from consumerd.handlers.middleware import HandlerCall, Middleware
from consumerd.handlers.retry import retrying
from consumerd.handlers.secrets import Secret
from consumerd.net.schemas.errors import DecodeError

__all__ = [
    "Batch",
    "Content",
    "DeadLetters",
    "DecodeError",
    "Decoder",
    "DiskFullError",
    "FileDeadLetters",
    "Handler",
    "HandlerCall",
    "HandlerContext",
    "Identity",
    "KeyedMessage",
    "Letter",
    "Message",
    "MessageHandler",
    "Middleware",
    "OnDiskFull",
    "OnFailure",
    "PartitionTakenError",
    "RejectedError",
    "RetryLaterError",
    "RetryPolicy",
    "Secret",
    "SinkPosition",
    "load_handler",
    "make_handler",
    "message_handler",
    "plain_handler",
    "retrying",
]
