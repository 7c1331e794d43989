"""Counts the words of all messages, and says at the end which were the most frequent."""

from collections import Counter

import structlog

from consumerd.handlers import Message, message_handler

log = structlog.get_logger(__name__)


class WordCount:
    """The options of `[handler]` in the configuration are the keyword arguments."""

    def __init__(self, *, top: int = 10, ignore_case: bool = False) -> None:
        if top < 1:
            raise ValueError("top must be at least 1")
        self.words: Counter[str] = Counter()
        self.top = top
        self.ignore_case = ignore_case

    @message_handler
    async def handle(self, message: Message) -> None:
        text = message.payload.decode(errors="replace")
        self.words.update((text.casefold() if self.ignore_case else text).split())

    async def stop(self) -> None:
        log.info("words_counted", different=len(self.words), top=self.words.most_common(self.top))
