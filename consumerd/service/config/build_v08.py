"""From the configuration to the parts that talk to brokers of 0.8 and later: client, membership, consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import structlog

from consumerd.base.address import parse_addresses
from consumerd.base.budget import ByteBudget
from consumerd.base.credentials import Renewed, find_file
from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.base.plugins import TOKEN_PROVIDER, call, find
from consumerd.base.ports import Clock, SaslMechanism, ZooKeeper
from consumerd.base.settings.group import GroupSection
from consumerd.base.settings.servers import KafkaSection, SaslSection
from consumerd.group.assignors import Spelling
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.rules import V08Rules
from consumerd.handlers import Handler
from consumerd.member.consumer.backends_v08 import ClusterBackend, V08Backend
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.fixed import FixedConsumer
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.factory import security_protocol
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.connection import BrokerConnection, ConnectionSettings
from consumerd.net.tls import certificate_remedy, make_tls_context
from consumerd.service.config.build import (
    build_connection_settings,
    build_gssapi,
    build_offset_settings,
    renewed_password,
    renewed_tls,
)
from consumerd.service.config.model import Config

if TYPE_CHECKING:
    import ssl

    from consumerd.net.client.sasl_oauth import TokenCache, TokenProvider

log = structlog.get_logger(__name__)
#: The tokens of each login, which all clients of the process with this login share.
_token_caches: Final[WeakValueDictionary[SaslSection, TokenCache]] = WeakValueDictionary()


def build_bootstrap(section: KafkaSection) -> list[tuple[str, int]]:
    """The bootstrap addresses. Raises ConfigError."""
    return parse_addresses(section.bootstrap, "kafka.bootstrap")


def build_client(config: Config, *, clock: Clock, rng: Random) -> ClusterClient:
    """A client that connects on first use. Raises ConfigError."""
    client = build_client_of(config.kafka, build_connection_settings(config), clock=clock, rng=rng)
    if not names_brokers(config):
        client.begin_with([])
    return client


def names_brokers(config: Config) -> bool:
    """Whether `kafka.bootstrap` names the brokers; otherwise ZooKeeper does."""
    return config.needs_brokers or "bootstrap" in config.kafka.given


def listener_protocol(section: KafkaSection) -> str:
    """The security protocol of a listener that fits, as brokers name it in ZooKeeper."""
    return security_protocol(tls=section.tls is not None, sasl=section.sasl is not None)


def build_backend(config: Config, client: ClusterClient, *, bootstrap: bool) -> V08Backend:
    """The parts of a member in ZooKeeper that are specific to Kafka 0.8 and later.

    `bootstrap`: the client has brokers to begin with; otherwise it begins with the registered ones.
    """
    group = config.group
    spelling = Spelling.BRACKETS if group.roundrobin_as == "0.8" else Spelling.DASH
    return V08Backend(
        client,
        V08Rules(group.assignor, spelling),
        protocol=None if bootstrap else listener_protocol(config.kafka),
        offsets=build_offset_settings(config),
    )


def build_client_of(
    section: KafkaSection,
    connection: ConnectionSettings,
    *,
    clock: Clock,
    rng: Random,
    settings: ClientSettings | None = None,
    bootstrap: Sequence[tuple[str, int]] | None = None,
) -> ClusterClient:
    """Return a client of the cluster of `section`, at other addresses if they are given. Raises ConfigError."""
    settings = (settings or ClientSettings()).replace(
        client_id=section.client_id, rack=section.rack, connection=connection
    )
    tls = None if section.tls is None else renewed_tls(section.tls, "kafka.tls")
    authenticate = None
    if section.sasl is not None:
        from consumerd.net.client.sasl import SaslAuthenticator  # noqa: PLC0415 - with OpenSSL's digests

        authenticate = SaslAuthenticator(build_mechanism(section.sasl))

    async def connected(host: str, port: int) -> BrokerConnection:
        if section.tls is None or tls is None:
            return await connect(host, port, settings=connection)
        identity = certificate_remedy(section.tls.certificate, "kafka.tls.certificate", "kafka.tls.key")
        return await connect(host, port, settings=connection, ssl=await tls.current(), identity=identity)

    opener = ChannelOpener(connected, settings, clock, authenticate=authenticate)
    addresses = build_bootstrap(section) if bootstrap is None else bootstrap
    return ClusterClient(addresses, opener, settings, clock=clock, rng=rng)


def build_mechanism(section: SaslSection) -> Callable[[], SaslMechanism]:
    """A factory of the SASL mechanism. Raises ConfigError, also if the extra of a mechanism is missing."""
    if section.mechanism == "GSSAPI":
        return build_gssapi(section, "kafka.sasl")
    if section.mechanism == "OAUTHBEARER":
        return _oauth(section)
    from consumerd.net.client.sasl import Plain, Scram  # noqa: PLC0415 - as above

    user, password = section.user or "", renewed_password(section, "kafka.sasl")

    def make() -> SaslMechanism:  # no partial, whose repr() has the password
        return Plain(user, password()) if section.mechanism == "PLAIN" else Scram(section.mechanism, user, password())

    make()  # raises before the first connection if the mechanism is not available
    return make


def _oauth(section: SaslSection) -> Callable[[], SaslMechanism]:
    from consumerd.net.client.sasl_oauth import OAuthBearer, TokenCache, check_extensions  # noqa: PLC0415

    tokens = _token_caches.get(section)
    if tokens is None:
        if rule := check_extensions(section.extensions):
            raise ConfigError(f"kafka.sasl.extensions: {rule}.")
        tokens = _token_caches[section] = TokenCache(_token_provider(section), on_failure=_log_failure)

    def make() -> SaslMechanism:
        return OAuthBearer(tokens, section.extensions)

    return make


def _log_failure(reason: str) -> None:
    log.warning("token_renewal_failed", reason=reason)


def _token_provider(section: SaslSection) -> TokenProvider:
    """What requests or reads the tokens of OAUTHBEARER. Raises ConfigError, HandlerLoadError."""
    from consumerd.net.client.sasl_oauth import ClientCredentials, own_provider, read_token_file  # noqa: PLC0415

    if (file := section.token_file) is not None:
        return Renewed("kafka.sasl.token_file", [file], lambda: read_token_file(find_file(file))).now
    if section.token_provider is not None:
        name = section.token_provider
        made = call(TOKEN_PROVIDER, name, cast("Any", find(TOKEN_PROVIDER, name)), section.token_options)
        return own_provider(name, made)
    ca = section.token_ca

    def trusted() -> ssl.SSLContext:
        try:
            return make_tls_context(ca=ca)
        except ConfigError as error:
            raise ConfigError(f"kafka.sasl.token_{error}") from error

    tls = Renewed("kafka.sasl.token_ca", [ca], trusted)
    try:
        return ClientCredentials(
            section.token_endpoint or "",
            section.user or "",
            renewed_password(section, "kafka.sasl"),
            tls=tls.now,
            scope=section.token_scope,
            parameters=section.token_parameters,
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.sasl: {error}") from error


def fixed_partitions(section: GroupSection) -> list[TopicPartition]:
    """Return the partitions that the configuration names, sorted."""
    return sorted(
        TopicPartition.numbered(topic, number)
        for topic, numbers in section.partitions.items()
        for number in set(numbers)
    )


def build_consumer(
    config: Config,
    settings: ConsumerSettings,
    handler: Handler,
    client: ClusterClient,
    *,
    clock: Clock,
    rng: Random,
    zk: ZooKeeper | None = None,
    budget: ByteBudget | None = None,
) -> CoordinatedConsumer | FixedConsumer:
    """The member for `group.coordination`, unless that is ZooKeeper; `zk` if offsets are stored there.

    `budget`: the memory that it shares with others.
    """
    backend = ClusterBackend(client, offsets=build_offset_settings(config), zk=zk)
    if config.group.coordination == "fixed":
        partitions = fixed_partitions(config.group)
        return FixedConsumer(
            settings, partitions, backend=backend, handler=handler, clock=clock, rng=rng, budget=budget
        )
    coordination = CoordinationSettings.of(config.group, config.rebalance)
    return CoordinatedConsumer(
        settings, coordination, backend=backend, handler=handler, clock=clock, rng=rng, budget=budget
    )
