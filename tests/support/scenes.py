"""Tests that are coroutines and run on another loop than pytest's, or beside something."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from inspect import Parameter, Signature, signature
from typing import Any, cast

import pytest
import uvloop

Scene = Callable[..., Coroutine[Any, Any, None]]


def played(scene: Scene, play: Callable[..., None], *fixtures: str, without: int = 0) -> Callable[..., None]:
    """The test `scene`, which `play` runs with its arguments by name: with `fixtures`, less the first `without`."""
    own = list(signature(scene).parameters.values())[without:]
    test: Any = functools.wraps(scene)(play)
    test.__signature__ = Signature([*own, *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in fixtures)])
    return test  # type: ignore[no-any-return]


def on_both_loops(scene: Scene) -> Callable[..., None]:
    """A test on asyncio's loop and on uvloop's, within a minute."""

    def play(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(scene(**given), 60))

    loops = pytest.mark.parametrize(
        "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    return cast("Callable[..., None]", loops(played(scene, play, "new_loop")))
