"""One client's connection: requests in, answers out, strictly in order (golden notes, 1: pipelining is by order).

Strategy: one task per connection reads a frame, does it, sends the answer, and only then reads the next: a client that
does not read its answers stops being served, and nothing of it piles up here. A refused request closes the
connection, which is all that the protocol can say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from consumerd.broker.errors import RequestRefusedError
from consumerd.errors import reason_of
from consumerd.storage import CorruptLogError, FlushFailedError, StorageError
from consumerd.turns import in_turns
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest, decode_request_steps

if TYPE_CHECKING:
    from consumerd.broker.requests import BrokerReply, RequestHandlers
    from consumerd.broker.sockets import ClientStream

logger = structlog.get_logger(__name__)

#: What a request counts of its connection's turn beside its bytes.
_REQUEST = 1 << 15


async def serve(stream: ClientStream, requests: RequestHandlers, peer: str) -> None:
    """Serve one connection until the client is done, breaks the rules, or the broker stops; closes it.

    Raises FlushFailedError, after which the broker must stop.
    """
    try:
        while (body := await stream.frame()) is not None:
            with body:
                size = len(body)
                request = await in_turns(decode_request_steps(body))
            stream.let_go(size)
            if isinstance(request, (ProduceRequest, MultiProduceRequest)):
                stream.produced = True
            reply = await requests.handle(request)
            if reply is not None and not await _send(stream, reply):
                break
            del request, reply  # or they would stay until the next request has come
            await stream.worked(_REQUEST)
    except FlushFailedError:
        raise
    except (WireError, RequestRefusedError) as error:
        logger.warning("request_refused", peer=peer, reason=reason_of(error))
    except (StorageError, CorruptLogError) as error:
        logger.error("request_failed", peer=peer, reason=reason_of(error))
    except OSError as error:
        logger.info("connection_lost", peer=peer, reason=reason_of(error))
    finally:
        stream.close()


async def _send(stream: ClientStream, reply: BrokerReply) -> bool:
    """Send a reply and release its segments; False where the connection ends after it."""
    try:
        await stream.send(reply.parts)
    finally:
        reply.release()
    return not reply.close
