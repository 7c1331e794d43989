"""Handlers: the plugin interface, loading by entry point, retries and dead letters, and the built-in handlers."""

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
from consumerd.handlers.decoding import DecodeError, Decoder
from consumerd.handlers.disk_full import DiskFullError, OnDiskFull
from consumerd.handlers.giving_up import OnFailure
from consumerd.handlers.loading import load_handler, make_handler, plain_handler
from consumerd.handlers.messages import Batch, Identity, KeyedMessage, Message
from consumerd.handlers.middleware import HandlerCall, Middleware
from consumerd.handlers.retry import RetryPolicy, retrying
from consumerd.handlers.secret_options import Secret

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
