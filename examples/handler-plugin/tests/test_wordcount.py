"""Tests of the handler with consumerd's pytest plugin: `consumerd_handler` runs it as the daemon would."""

import pytest
from consumerd_wordcount import WordCount

from consumerd.base.errors import HandlerLoadError
from consumerd.testing import Codec, HandlerFactory


@pytest.mark.asyncio
async def test_words_are_counted(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler("wordcount", {"ignore_case": True}) as harness:
        await harness.deliver([b"The cat", b"the hat \xff"], codec=Codec.GZIP)
        assert harness.handler.words == {"the": 2, "cat": 1, "hat": 1, "\N{REPLACEMENT CHARACTER}": 1}
    assert harness.committed() == harness.end()


@pytest.mark.asyncio
async def test_a_word_is_counted_again_after_a_crash(consumerd_handler: HandlerFactory) -> None:
    """The words are only in memory: what was not committed comes again, to a counter that begins at zero."""
    async with consumerd_handler(WordCount) as harness:
        await harness.deliver([b"cat"])
        await harness.commit()
        await harness.deliver([b"hat"])
        await harness.crash()
        await harness.start()
        await harness.redeliver()
        assert harness.handler.words == {"hat": 1}


def test_options_are_checked(consumerd_handler: HandlerFactory) -> None:
    with pytest.raises(HandlerLoadError, match="top must be at least 1"):
        consumerd_handler("wordcount", {"top": 0})
