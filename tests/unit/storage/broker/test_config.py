from pathlib import Path

import pytest

from consumerd.base.errors import ConfigError, ExitCode
from consumerd.storage import MaxAge, MaxBytes
from consumerd.storage.broker.config import WITHOUT_EFFECT, BrokerConfig

BASE = {"log.dir": "/data", "enable.zookeeper": "false"}


def read(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({**BASE, **{name.replace("_", "."): text for name, text in properties.items()}})


def test_defaults_are_those_of_0_7_2_except_for_the_port() -> None:
    config = read()
    assert config == BrokerConfig(log_dir=Path("/data"), use_zookeeper=False)
    assert (config.port, config.partitions, config.flush_messages) == (9092, 1, 500)
    assert (config.max_message_bytes, config.max_request_bytes) == (1_000_000, 104_857_600)
    settings = config.log_settings("t")
    assert (settings.segment_bytes, settings.roll_seconds, settings.flush_seconds) == (1 << 30, 604_800, 3.0)


def test_per_topic_values_take_precedence() -> None:
    config = BrokerConfig.from_properties(
        {
            **BASE,
            "num.partitions": "2",
            "topic.partition.count.map": "four:4, a:b:7,",
            "topic.log.file.size": "roll:300",
            "topic.log.roll.hours": "roll:1",
            "log.default.flush.interval.ms": "1000",
            "topic.flush.intervals.ms": "fast:10",
        }
    )
    assert [config.partitions_of(topic) for topic in ("four", "a:b", "x")] == [4, 7, 2]
    assert config.log_settings("roll").segment_bytes == 300
    assert config.log_settings("roll").roll_seconds == 3600
    assert config.log_settings("fast").flush_seconds == 0.01
    assert config.log_settings("x").flush_seconds == 1.0


def test_flush_interval_follows_the_scheduler() -> None:
    config = BrokerConfig.from_properties({**BASE, "log.default.flush.scheduler.interval.ms": "500"})
    assert config.log_settings("x").flush_seconds == 0.5


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("num.partitons", "1", "not a broker property, did you mean 'num.partitions'?"),
        ("zzz", "1", "zzz is not a broker property"),
        ("num.partitions", "many", "num.partitions must be a positive whole number up to 100000, not 'many'"),
        ("num.partitions", "0", "num.partitions must be a positive whole number up to 100000, not '0'"),
        ("port", "65536", "port must be a whole number from 0 to 65535"),
        ("max.topic.name.length", "256", "must be a positive whole number up to 255"),
        ("enable.zookeeper", "yes", "enable.zookeeper must be true or false, not 'yes'"),
        ("topic.partition.count.map", "four", "must be topic:number,topic:number, not 'four'"),
        ("topic.partition.count.map", "four:x", "of topic four must be a positive whole number"),
        ("topic.partition.count.map", "four:0", "of topic four must be a positive whole number up to 100000"),
        ("log.dir", "", "log.dir must be a path that is not empty"),
        ("topic.log.retention.size", "t:x", "of topic t must be a whole number from -1"),
        ("max.connection", "1", "did you mean 'max.connections'?"),
        ("log.delete.policies", "zzz", "unknown delete policy 'zzz'. There is none."),
        ("log.delete.policies", "no_such:thing", "delete policy 'no_such:thing': no module named 'no_such'"),
        ("log.delete.policies", "os:name", "'os:name', which cannot be called"),
        ("log.delete.policies", "os:nothing", "delete policy 'os:nothing': 'os' has no attribute 'nothing'"),
    ],
)
def test_reports_a_wrong_property_in_one_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({**BASE, name: text})
    assert sentence in str(caught.value)
    assert caught.value.exit_code == ExitCode.CONFIG


def test_requires_log_dir_and_zookeeper() -> None:
    with pytest.raises(ConfigError, match="give --log-dir"):
        BrokerConfig.from_properties({"enable.zookeeper": "false"})
    with pytest.raises(ConfigError, match="give --zookeeper HOST:PORT, or --no-zookeeper"):
        BrokerConfig.from_properties({"log.dir": "/data"})


def test_names_known_properties_without_effect() -> None:
    config = read(monitoring_period_secs="8", zk_synctime_ms="2000")
    assert config.ignored == ("monitoring.period.secs", "zk.synctime.ms")
    assert set(config.ignored) == WITHOUT_EFFECT.keys()


def test_knows_every_property_of_0_7_2() -> None:
    """Golden notes, 8; a whole file of the code's defaults, each as 0.7.2 would print it."""
    config = read(
        brokerid="1", port="6667", hostname="h", socket_send_buffer="102400", socket_receive_buffer="102400",
        max_socket_request_bytes="104857600", max_message_size="1000000", num_threads="2", monitoring_period_secs="600",
        num_partitions="1", log_file_size="1073741824", topic_log_file_size="", log_roll_hours="168",
        topic_log_roll_hours="", log_retention_hours="168", topic_log_retention_hours="", log_retention_size="-1",
        topic_log_retention_size="", log_cleanup_interval_mins="10", enable_zookeeper="true", log_flush_interval="500",
        topic_flush_intervals_ms="", log_default_flush_scheduler_interval_ms="3000",
        log_default_flush_interval_ms="3000", topic_partition_count_map="", max_topic_name_length="255",
        zk_connect="z:2181", zk_sessiontimeout_ms="6000", zk_connectiontimeout_ms="6000", zk_synctime_ms="2000",
    )  # fmt: skip
    assert config == BrokerConfig(
        log_dir=Path("/data"), broker_id=1, port=6667, advertised_host="h", send_buffer=102400, receive_buffer=102400,
        threads=2, retention_hours=168, flush_ms=3000, zookeeper="z:2181", zk_connection_ms=6000,
        ignored=("monitoring.period.secs", "zk.synctime.ms"),
    )  # fmt: skip


def test_reads_its_own_properties() -> None:
    config = BrokerConfig.from_properties(
        {
            **BASE,
            "max.connections": "10",
            "connections.max.idle.ms": "60000",
            "log.flush.interval": "7",
            "topic.log.flush.interval": "fast:1",
        }
    )
    assert (config.max_connections, config.max_idle_ms) == (10, 60_000)
    assert [config.log_settings(topic).flush_messages for topic in ("fast", "x")] == [1, 7]


def test_deletes_nothing_by_default() -> None:
    assert read().log_settings("t").delete_policies == ()
    config = BrokerConfig.from_properties({**BASE, "log.retention.hours": "2", "topic.log.retention.size": "big:5000"})
    assert config.log_settings("t").delete_policies == (MaxAge(7200),)
    assert config.log_settings("big").delete_policies == (MaxAge(7200), MaxBytes(5000))


def test_overrides_take_precedence() -> None:
    config = BrokerConfig.from_properties({**BASE, "port": "1"}, port=2, advertised_host=None)
    assert config.port == 2
