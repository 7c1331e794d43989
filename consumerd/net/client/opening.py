"""Opening channels: connect, agree on versions, authenticate.

Strategy: API_VERSIONS is sent first on every connection, in its last version; a broker that does not know that version
returns error 35 in version 0, and version 0 is sent. Brokers of 0.8 close the connection instead, and those of 0.9 do
not respond. Further connections then show the broker's release: 0.9 answers LIST_GROUPS, 0.8 closes the connection on
that too but answers METADATA, and 0.7 answers neither, but a FETCH of its own; one that is going down, or hangs,
answers nothing. A broker that did not respond and then answers is asked for its versions once more: a newer one may
just have been slow. The release of an old broker is remembered for its address, so that it is not probed at each
connection, until a connection to it ends: it may have been upgraded. With SASL, a broker of 0.9 treats any request as
an invalid token and closes the connection; the client authenticates first where possible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.version import __version__
from consumerd.net.client.channel import Channel
from consumerd.net.client.errors import AuthenticationError, V07BrokerError, error_of
from consumerd.net.client.metadata import metadata_body
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import BrokerConnection
from consumerd.net.errors import ClientCertificateError, ConnectionClosedError, RequestTimeoutError
from consumerd.wire.errors import WireError
from consumerd.wire.v08.apis import API_VERSIONS, LIST_GROUPS, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.schema import Api
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions, versions_of_answer

if TYPE_CHECKING:
    from consumerd.base.ports import Clock
    from consumerd.net.client.sasl import SaslAuthenticator
    from consumerd.wire.v08.message_types import ApiVersionsRequest, ListGroupsRequest


#: Opens a connection to (host, port). Raises ConnectError.
Connect = Callable[[str, int], Awaitable[BrokerConnection]]


_SOFTWARE: Final[ApiVersionsRequest] = {"client_software_name": "consumerd", "client_software_version": __version__}
_ALL_GROUPS: Final[ListGroupsRequest] = {}
#: Seconds for a second attempt at API_VERSIONS, once the broker has answered another request.
_SECOND_LOOK: Final = 1.0
_NOT_A_BROKER: Final = (
    "is this the port of a Kafka broker, on a listener without authentication? The port of ZooKeeper belongs to "
    "--zookeeper or zookeeper.connect"
)
#: A topic that no broker has.
_NO_TOPIC: Final = "consumerd-looks-for-kafka-0.7"
#: Seconds for which the release of an old broker is remembered.
_BELIEVED_FOR: Final = 300.0


class ChannelOpener:
    """Opens channels to brokers of one cluster. `authenticate` is run on each before it is returned.

    `remembered`: the known releases of old brokers, for openers that share them.
    """

    def __init__(
        self,
        connect: Connect,
        settings: ClientSettings,
        clock: Clock,
        *,
        authenticate: SaslAuthenticator | None = None,
        remembered: dict[tuple[str, int], tuple[BrokerRelease, float]] | None = None,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._authenticate = authenticate
        #: Address -> the release of an old broker, and the time until which it is remembered.
        self._old = {} if remembered is None else remembered
        #: Address -> the last channel there, of those without authentication: whether a request was answered there.
        self._former: dict[tuple[str, int], Channel] = {}

    async def open(self, host: str, port: int) -> Channel:
        """Open a channel that is ready for use. Raises BrokerError (ConnectError, AuthenticationError, ...)."""
        versions = self._believed(host, port)
        if versions is None:
            versions, channel = await self._ask(host, port)
        else:
            channel = None
        if channel is None:
            channel = await self._connected(host, port, versions)
        try:
            if self._authenticate is not None:
                await self._authenticate(channel)
        except BaseException:
            channel.abort()
            raise
        if self._authenticate is None and channel.versions.release is BrokerRelease.V0_10_OR_NEWER:
            former = self._former.get((host, port))
            if former is None or former.doubt:
                channel.doubt = "is this a SASL listener?"
            self._former[host, port] = channel
        return channel

    async def _connected(self, host: str, port: int, versions: BrokerVersions) -> Channel:
        connection = await self._connect(host, port)
        return Channel(connection, f"{host}:{port}", versions, self._settings, self._clock)

    def _believed(self, host: str, port: int) -> BrokerVersions | None:
        known = self._old.get((host, port))
        if known is None or self._clock.monotonic() >= known[1]:
            return None
        return BrokerVersions.of(f"{host}:{port}", known[0])

    def forget(self, host: str, port: int) -> None:
        """Forget the release at this address, as a connection ended: the next one detects it again."""
        self._old.pop((host, port), None)

    async def _ask(self, host: str, port: int) -> tuple[BrokerVersions, Channel | None]:
        """Return the versions that the broker serves, and the channel on which it returned them, if it did."""
        address = f"{host}:{port}"
        closed: ConnectionClosedError
        # Early brokers close the connection before authentication on an unknown version.
        for version in (API_VERSIONS.versions[1], 0):
            first = BrokerVersions(address, BrokerRelease.V0_10_OR_NEWER, {API_VERSIONS.key: (0, version)})
            try:
                return await self._reported(host, port, first, self._settings.versions_timeout)
            except RequestTimeoutError as error:
                closed = error
                break
            except ClientCertificateError:
                raise  # no other request is answered either
            except ConnectionClosedError as error:
                closed = error
        release = await self._probe(host, port)
        if release is None:
            if type(closed) is ConnectionClosedError and self._authenticate is None:
                raise ConnectionClosedError(f"{closed}; {_NOT_A_BROKER}", blamed=True) from closed
            raise closed
        if isinstance(closed, RequestTimeoutError):
            with suppress(RequestTimeoutError):
                first = BrokerVersions(address, BrokerRelease.V0_10_OR_NEWER, {API_VERSIONS.key: (0, 0)})
                return await self._reported(host, port, first, min(_SECOND_LOOK, self._settings.versions_timeout))
        self._old[host, port] = release, self._clock.monotonic() + _BELIEVED_FOR
        return BrokerVersions.of(address, release), None

    async def _reported(
        self, host: str, port: int, first: BrokerVersions, timeout: float
    ) -> tuple[BrokerVersions, Channel]:
        """Return the versions from API_VERSIONS, and the channel of the answer; `first`: the version of the request."""
        channel = await self._connected(host, port, first)
        try:
            version = first.pick(API_VERSIONS)
            answer = await channel.call(API_VERSIONS, _SOFTWARE, version=version, timeout=timeout)
            if answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION:
                answer = await channel.call(API_VERSIONS, _SOFTWARE, version=0)
            if error := error_of(answer["error_code"], f"broker {channel.address} did not return its API versions"):
                raise error
        except BaseException:
            channel.abort()
            raise
        channel.versions = versions_of_answer(channel.address, answer["api_keys"], answer.get("finalized_features", ()))
        return channel.versions, channel

    async def _probe(self, host: str, port: int) -> BrokerRelease | None:
        """Return the release of a broker that closed the connection upon API_VERSIONS; None if it answers nothing."""
        questions: list[tuple[BrokerRelease, Api[Any, Any], Any]] = [
            (BrokerRelease.V0_9, LIST_GROUPS, _ALL_GROUPS),
            (BrokerRelease.V0_8, METADATA, metadata_body(0, None)),
        ]
        for release, api, body in questions:
            channel = await self._connected(host, port, BrokerVersions.of(f"{host}:{port}", release))
            try:
                await channel.call(api, body, timeout=self._settings.versions_timeout)
            except RequestTimeoutError:
                # METADATA has the key of MULTIPRODUCE, which brokers of 0.7 do not answer.
                if api is METADATA and await self._speaks_v07(host, port):
                    raise V07BrokerError(f"{host}:{port}") from None
                raise
            except ConnectionClosedError:
                continue
            else:
                return release
            finally:
                channel.abort()
        return BrokerRelease.V0_9 if await self._takes_a_bare_token(host, port) else None

    async def _speaks_v07(self, host: str, port: int) -> bool:
        """Whether a broker answers a FETCH of 0.7, which has no effect: it returns nothing of an unknown topic."""
        from consumerd.wire.v07 import FetchRequest, decode_fetch_response  # noqa: PLC0415 - only for this error

        connection = await self._connect(host, port)
        try:
            timeout = self._settings.versions_timeout
            answer = await connection.request(FetchRequest(_NO_TOPIC, 0, 0, 1).encode(), timeout=timeout)
            decode_fetch_response(answer)
        except (ConnectionClosedError, WireError):
            return False
        finally:
            connection.abort()
        return True

    async def _takes_a_bare_token(self, host: str, port: int) -> bool:
        """Whether a broker that closes the connection on all requests requires authentication first, as 0.9 does."""
        if self._authenticate is None or not self._authenticate.speaks_first:
            return False
        channel = await self._connected(host, port, BrokerVersions.of(f"{host}:{port}", BrokerRelease.V0_9))
        try:
            await self._authenticate(channel)
            await channel.call(LIST_GROUPS, _ALL_GROUPS, timeout=self._settings.versions_timeout)
        except AuthenticationError as error:
            if not isinstance(error.__cause__, ConnectionClosedError):
                raise
            return False  # it closes this connection, too: perhaps it is shutting down
        except ConnectionClosedError:
            return False
        finally:
            channel.abort()
        return True
