"""Handlers: the plugin interface, loading by entry point, retries and dead letters, and the built-in handlers."""

from consumerd.handlers.api import (
    Batch,
    Content,
    Handler,
    HandlerContext,
    Identity,
    Message,
    MessageHandler,
    message_handler,
)
from consumerd.handlers.loading import load_handler

__all__ = [
    "Batch",
    "Content",
    "Handler",
    "HandlerContext",
    "Identity",
    "Message",
    "MessageHandler",
    "load_handler",
    "message_handler",
]
