"""One blocking connection to a broker of 0.8 or later: which versions it speaks, who we are, then bodies in and out.

Strategy: as `consumerd.client.opening` does it, without a loop. API_VERSIONS is asked first; a broker that hangs up on
its last version is asked version 0, and one that hangs up on that too, or says nothing, shows by what it answers else
whether it is of 0.9 or 0.8. That is remembered for the address as long as connections to it last, since 0.9 costs some
seconds of silence, and a worker of Spark's runs many tasks.

Only `consumerd.wire` is needed, as executors have it. Of SASL there are PLAIN and SCRAM.
"""

from __future__ import annotations

import secrets
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from consumerd import __version__
from consumerd.spark.source.errors import BrokerGoneError, BrokerLateError, BrokerReadError, BrokerRefusesError
from consumerd.spark.source.frames import FrameSocket
from consumerd.wire.errors import WireError
from consumerd.wire.scram import ScramClient, ScramError
from consumerd.wire.v08.apis import API_VERSIONS, LIST_GROUPS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.error_codes import ErrorCode, error_info
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.headers import read_correlation_id
from consumerd.wire.v08.messages import decode_response, encode_request
from consumerd.wire.v08.throttle import silence
from consumerd.wire.v08.versions import BrokerVersions, Generation, told

if TYPE_CHECKING:
    from consumerd.spark.source.option_values import BootstrapPlace, Login, Tls
    from consumerd.wire.v08.schema import Api

    Address = tuple[str, int]

#: Who we are, in the logs and quotas of brokers.
CLIENT_ID: Final = "consumerd-spark"
#: Answers but those to FETCH are never larger.
MOST_BYTES: Final = 128 << 20
#: Seconds for a broker to say its versions: those of 0.9 neither answer nor hang up.
_VERSIONS_TIMEOUT: Final = 3.0
#: Seconds for which an old broker is believed to be what it was.
_BELIEVED_FOR: Final = 300.0
#: The size of a correlation id, which every answer has.
_LEAST: Final = 4
_MAX_CORRELATION_ID: Final = (1 << 31) - 1
_MAX_TOKEN: Final = 1 << 20

#: What old brokers are, and until when that is believed.
_old: dict[Address, tuple[Generation, float]] = {}


class LogicalConnection:
    """An open connection to a broker whose `versions` are known. Close it. Not for several threads.

    Calls raise BrokerReadError, after which the connection is closed.
    """

    def __init__(self, address: Address, versions: BrokerVersions, timeout: float, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.versions = versions
        self._frames = FrameSocket(*address, timeout, tls=tls)
        self.name = self._frames.name
        self._correlation_id = 0
        self._silent_until = 0.0

    def call(
        self,
        api: Api,
        body: dict[str, Any],
        where: str,
        *,
        version: int | None = None,
        most: int = MOST_BYTES,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Ask and return the answer's fields, whatever error codes they hold. `where`: what is asked about.

        `version`: the highest common one by default.
        """
        version = self.version(api) if version is None else version
        if (quiet := self._silent_until - time.monotonic()) > 0:
            time.sleep(quiet)
        wanted = self._correlation_id
        self._correlation_id = 0 if wanted == _MAX_CORRELATION_ID else wanted + 1
        frame = encode_request(api, version, body, correlation_id=wanted, client_id=CLIENT_ID)
        try:
            data = self._frames.ask(frame, _LEAST, most, where, timeout=timeout)
        except BrokerReadError:
            _old.pop(self.address, None)  # it may come back as another one
            raise
        try:
            if (found := read_correlation_id(data)) != wanted:
                raise self._frames.broken(f"answers the request {found} where {wanted} is the next")
            answer = decode_response(api, version, data).body
        except WireError as error:
            raise self._frames.broken(f"has no valid answer about {where}: {error}") from error
        self._silent_until = time.monotonic() + silence(api, version, answer)
        return answer

    def version(self, api: Api, at_most: int | None = None) -> int:
        """The version of `api` to speak. Raises BrokerRefusesError where there is none in common."""
        try:
            return self.versions.pick(api, at_most=at_most)
        except UnsupportedApiError as error:
            raise BrokerRefusesError(str(error)) from error

    def learn_versions(self) -> None:
        """Ask for the versions. Raises BrokerGoneError or BrokerLateError where the broker does not know that."""
        version = self.versions.pick(API_VERSIONS)
        software = {"client_software_name": "consumerd", "client_software_version": __version__}
        where = "its versions"
        answer = self.call(
            API_VERSIONS, software if version else {}, where, version=version, timeout=_VERSIONS_TIMEOUT
        )  # fmt: skip
        if answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION:
            answer = self.call(API_VERSIONS, {}, where, version=0)
        if code := answer["error_code"]:
            raise self._frames.broken(f"does not say its versions: {error_info(code)}")
        self.versions = told(self.name, answer["api_versions"])

    def log_in(self, login: Login) -> None:
        """Prove who we are. Raises BrokerRefusesError."""
        versions = self.versions
        if versions.generation is not Generation.TOLD:
            raise self._frames.broken(f"is older than 0.10 and has no SASL/{login.mechanism}", BrokerRefusesError)
        wrapped = versions.has(SASL_AUTHENTICATE) and versions.has(SASL_HANDSHAKE, 1)
        handshake = self.call(
            SASL_HANDSHAKE, {"mechanism": login.mechanism}, "SASL", version=None if wrapped else 0
        )  # fmt: skip
        if code := handshake["error_code"]:
            offered = ", ".join(sorted(handshake["enabled_mechanisms"])) or "nothing"
            raise self._frames.broken(
                f"does not take SASL/{login.mechanism} ({error_info(code).name}); it offers {offered}",
                BrokerRefusesError,
            )
        if login.mechanism == "PLAIN":
            self._exchange(f"\0{login.user}\0{login.password}".encode(), login, wrapped=wrapped)
            return
        client = ScramClient(login.mechanism, login.user, login.password or "", secrets.token_urlsafe(24))
        token: bytes | None = client.first()
        try:
            while token is not None:
                token = client.respond(self._exchange(token, login, wrapped=wrapped))
        except ScramError as error:
            what = f"did not prove that it knows the password of {login.user}: {error}"
            raise self._frames.broken(what, BrokerRefusesError) from error

    def _exchange(self, token: bytes, login: Login, *, wrapped: bool) -> bytes:
        """What comes back for a token, which goes bare to brokers before 1.0."""
        if wrapped:
            answer = self.call(SASL_AUTHENTICATE, {"auth_bytes": token}, "SASL")
            if code := answer["error_code"]:
                why = answer.get("error_message") or error_info(code).text
                raise self._frames.broken(f"refuses the user {login.user}: {why}", BrokerRefusesError)
            challenge: bytes = answer["auth_bytes"]
            return challenge
        try:
            return bytes(self._frames.ask(len(token).to_bytes(4) + token, 0, _MAX_TOKEN, "SASL"))
        except BrokerGoneError as error:
            raise BrokerRefusesError(
                f"broker {self.name} hung up on the login of {login.user}: user or password are wrong"
            ) from error

    def close(self) -> None:
        """End the connection; more than once is fine."""
        self._frames.close()


class Connector:
    """Opens connections to the brokers of one place."""

    def __init__(self, place: BootstrapPlace, timeout: float) -> None:
        self._tls = None if place.tls is None else _context(place.tls)
        self._login = place.login
        self._timeout = timeout

    def open(self, address: Address) -> LogicalConnection:
        """A connection that is ready for use. Raises BrokerReadError."""
        generation, until = _old.get(address, (None, 0.0))
        if generation is not None and time.monotonic() < until:
            connection = self._connected(address, BrokerVersions.of(_name(address), generation))
        else:
            connection = self._asked(address)
        if self._login is not None:
            connection.log_in(self._login)
        return connection

    def _asked(self, address: Address) -> LogicalConnection:
        """A connection to a broker that nobody knows yet."""
        problem: BrokerReadError | None = None
        # Early brokers hang up before a login on a version that they do not know, instead of saying so.
        for version in (API_VERSIONS.versions[1], 0):
            versions = BrokerVersions(_name(address), Generation.TOLD, {API_VERSIONS.key: (0, version)})
            connection = self._connected(address, versions)
            try:
                connection.learn_versions()
            except BrokerLateError as error:
                problem = error
                break
            except BrokerGoneError as error:
                problem = error
            else:
                return connection
        generation = self._probed(address)
        if generation is None:
            assert problem is not None
            raise problem
        _old[address] = generation, time.monotonic() + _BELIEVED_FOR
        return self._connected(address, BrokerVersions.of(_name(address), generation))

    def _probed(self, address: Address) -> Generation | None:
        """Of which generation a broker is that does not say its versions; None when it answers nothing."""
        for generation, api in ((Generation.V0_9, LIST_GROUPS), (Generation.V0_8, METADATA)):
            connection = self._connected(address, BrokerVersions.of(_name(address), generation))
            try:
                body: dict[str, Any] = {"topics": []} if api is METADATA else {}
                connection.call(api, body, "what it is", version=0, timeout=_VERSIONS_TIMEOUT)
            except BrokerGoneError:
                continue
            else:
                return generation
            finally:
                connection.close()
        return None

    def _connected(self, address: Address, versions: BrokerVersions) -> LogicalConnection:
        return LogicalConnection(address, versions, self._timeout, self._tls)


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _context(tls: Tls) -> ssl.SSLContext:
    """Raises BrokerRefusesError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if not tls.check_hostname:
            context.check_hostname = False
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password="")  # nobody is there to be asked
    except OSError as error:  # SSLError is one
        raise BrokerRefusesError(
            f"the PEM files of kafka.ssl.* cannot be used: {error}; they have to be on every machine that reads"
        ) from error
    return context
