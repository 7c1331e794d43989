"""One client's connection: requests in, answers out, strictly in order (golden notes, 1: pipelining is by order).

Strategy: one task per connection reads a frame, does it, sends the answer, and only then reads the next: a client that
does not read its answers stops being served, and nothing of it piles up here. A refused request closes the
connection, which is all that the protocol can say.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumerd.broker.errors import RequestRefusedError
from consumerd.errors import reason_of
from consumerd.storage import CorruptLogError, FlushFailedError, StorageError
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import decode_request

if TYPE_CHECKING:
    from consumerd.broker.requests import Reply, Requests
    from consumerd.broker.sockets import Stream

logger = structlog.get_logger(__name__)

#: Work for one client before the others get their turn, in bytes of requests; each counts at least `_REQUEST`.
_TURN = 1 << 20
_REQUEST = 1 << 13


async def serve(stream: Stream, requests: Requests, peer: str) -> None:
    """Serve one connection until the client is done, breaks the rules, or the broker stops; closes it.

    Raises FlushFailedError, after which the broker must stop.
    """
    try:
        left = _TURN
        while (body := await stream.frame()) is not None:
            with body:
                size = len(body)
                request = decode_request(body)
            reply = await requests.handle(request)
            if reply is not None and not await _send(stream, reply):
                break
            left -= max(size, _REQUEST)
            if left <= 0:
                left = _TURN
                await asyncio.sleep(0)
    except FlushFailedError:
        raise
    except (WireError, RequestRefusedError) as error:
        logger.warning("request_refused", peer=peer, reason=str(error))
    except (StorageError, CorruptLogError) as error:
        logger.error("request_failed", peer=peer, reason=str(error))
    except OSError as error:
        logger.info("connection_lost", peer=peer, reason=reason_of(error))
    finally:
        stream.close()


async def _send(stream: Stream, reply: Reply) -> bool:
    """Send a reply and let go of its segments; False where the connection ends after it."""
    try:
        await stream.send(reply.parts)
    finally:
        reply.release()
    return not reply.close
