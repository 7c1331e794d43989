from pathlib import Path

import pytest

from consumerd.broker import BrokerConfig
from consumerd.errors import ConfigError, ExitCode

BASE = {"log.dir": "/data", "enable.zookeeper": "false"}


def read(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({**BASE, **{name.replace("_", "."): text for name, text in properties.items()}})


def test_defaults_are_those_of_0_7_2_but_for_the_port() -> None:
    config = read()
    assert config == BrokerConfig(log_dir=Path("/data"), use_zookeeper=False)
    assert (config.port, config.partitions, config.flush_messages) == (9092, 1, 500)
    assert (config.max_message_bytes, config.max_request_bytes) == (1_000_000, 104_857_600)
    settings = config.log_settings("t")
    assert (settings.segment_bytes, settings.roll_seconds, settings.flush_seconds) == (1 << 30, 604_800, 3.0)


def test_per_topic_values_win() -> None:
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


def test_the_flush_interval_follows_the_scheduler() -> None:
    config = BrokerConfig.from_properties({**BASE, "log.default.flush.scheduler.interval.ms": "500"})
    assert config.log_settings("x").flush_seconds == 0.5


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("num.partitons", "1", "not a broker property of Kafka 0.7; did you mean num.partitions?"),
        ("zzz", "1", "zzz is not a broker property of Kafka 0.7"),
        ("num.partitions", "many", "num.partitions must be a whole number, not 'many'"),
        ("num.partitions", "0", "num.partitions must be from 1 to 100000, not 0"),
        ("port", "65536", "port must be from 0 to 65535"),
        ("max.topic.name.length", "256", "must be from 1 to 255"),
        ("enable.zookeeper", "yes", "enable.zookeeper must be true or false, not 'yes'"),
        ("topic.partition.count.map", "four", "must look like topic:number,topic:number, not 'four'"),
        ("topic.partition.count.map", "four:x", "of topic four must be a whole number"),
        ("topic.partition.count.map", "four:0", "of topic four must be from 1"),
        ("log.dir", "", "log.dir is empty"),
    ],
)
def test_wrong_properties_are_one_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({**BASE, name: text})
    assert sentence in str(caught.value)
    assert caught.value.exit_code == ExitCode.CONFIG


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="give --log-dir"):
        BrokerConfig.from_properties({"enable.zookeeper": "false"})
    with pytest.raises(ConfigError, match="give --zookeeper HOST:PORT, or --no-zookeeper"):
        BrokerConfig.from_properties({"log.dir": "/data"})


def test_known_properties_without_effect_are_named() -> None:
    config = read(num_threads="8", zk_synctime_ms="2000")
    assert config.ignored == ("num.threads", "zk.synctime.ms")


def test_nothing_is_forgotten_unless_asked_for() -> None:
    assert not read().log_settings("t").forgets
    config = BrokerConfig.from_properties({**BASE, "log.retention.hours": "2", "topic.log.retention.size": "big:5000"})
    assert (config.log_settings("t").retention_seconds, config.log_settings("t").retention_bytes) == (7200, None)
    assert config.log_settings("big").retention_bytes == 5000


def test_overrides_win() -> None:
    config = BrokerConfig.from_properties({**BASE, "port": "1"}, port=2, advertised_host=None)
    assert config.port == 2
