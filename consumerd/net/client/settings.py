"""Settings of a cluster's client."""

from __future__ import annotations

from consumerd.base.settings.servers import KafkaSection
from consumerd.base.settings.setting import Bytes, Field, Seconds, SecondsOrZero, Section
from consumerd.net.connection import ConnectionSettings


class ClientSettings(Section):
    """Settings of the client. Times in seconds, sizes in bytes."""

    #: The name of the client in requests: brokers write it to their logs and count quotas by it.
    client_id: str = KafkaSection.client_id
    connection: ConnectionSettings = Field(default_factory=ConnectionSettings)
    #: A larger request raises an error; the broker would close the connection (its default:
    #: socket.request.max.bytes, 100 MiB).
    max_request_bytes: Bytes = 100 << 20
    #: Limit for the API versions of a new connection. Brokers of 0.9 never respond: each costs this time once.
    versions_timeout: Seconds = 3.0
    #: Age after which metadata are requested again (the JVM's metadata.max.age.ms: 300000).
    metadata_max_age: Seconds = 300.0
    #: Time between attempts, doubled each time and jittered.
    retry_backoff_min: SecondsOrZero = 0.1
    retry_backoff_max: SecondsOrZero = 2.0
    #: Time for which a call is repeated while brokers are unavailable or answer with transient errors.
    retry_timeout: SecondsOrZero = 30.0
    #: The rack or zone of this process, as `broker.rack` of the brokers names it; empty for none.
    rack: str = KafkaSection.rack
