"""The options: what they mean, and the one sentence that each wrong one gets."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from consumerd.spark.source.columns import Mode
from consumerd.spark.source.offsets import format_offsets, parse_offsets, sorted_offsets
from consumerd.spark.source.option_values import Login, Tls
from consumerd.spark.source.options import (
    DEFAULT_SPLIT_BYTES,
    OPTIONS,
    Assign,
    BootstrapPlace,
    BrokerPlace,
    FilesPlace,
    OptionError,
    PathPlace,
    Subscribe,
    SubscribePattern,
    ZooKeeperPlace,
    read_options,
    refuse_options,
)
from consumerd.spark.source.v08.origin import with_password
from consumerd.wire.v07 import DEFAULT_LIMITS, EARLIEST, LATEST

HERE = {"path": "/logs", "subscribe": "t"}
KAFKA = {"bootstrap": "a:1", "subscribe": "t"}
SASL = {**KAFKA, "kafka.security.protocol": "SASL_PLAINTEXT"}
ZOOKEEPER = {"zookeeper": "zk:2181/kafka", "subscribe": "t"}


def test_what_is_left_out() -> None:
    found = read_options(HERE)
    assert found.place == PathPlace(("/logs",))
    assert found.topics == Subscribe(("t",))
    assert (found.start_of_batch(), found.start_of_stream(), found.ending) == (EARLIEST, LATEST, LATEST)
    assert found.max_split == DEFAULT_SPLIT_BYTES
    assert found.limits == DEFAULT_LIMITS
    assert (found.fail_on_data_loss, found.mode, found.timeout) == (True, Mode.PERMISSIVE, 30)
    assert pickle.loads(pickle.dumps(found)) == found


def test_places_and_choices() -> None:
    several = read_options({"path": "/a, s3://b/c,/a", "subscribe": "x, y", "layout": "b{broker}/{topic}-{partition}"})
    assert several.place == PathPlace(("/a", "s3://b/c"), "b{broker}/{topic}-{partition}")
    assert several.topics == Subscribe(("x", "y"))
    listed = read_options({"paths": '["/a,b", "file:///c"]', "subscribePattern": " e.*, f", "broker": "7"})
    assert listed.place == PathPlace(("/a,b", "/c"), broker=7)
    assert listed.topics == SubscribePattern("e.*|f")
    assert read_options({**HERE, "path": "logs"}).place == PathPlace((str(Path("logs").absolute()),))
    assert read_options({"files": "file:/out", "subscribe": "t"}).place == FilesPlace("/out")
    assert read_options(ZOOKEEPER).place == ZooKeeperPlace("zk:2181/kafka")
    brokers = read_options({"brokers": "0=a:1, 12=[::1]:2", "assign": '{"t": ["0-0", "12-1"]}'})
    assert brokers.place == BrokerPlace({0: ("a", 1), 12: ("::1", 2)})
    assert brokers.topics == Assign({"t": ("0-0", "12-1")})
    assert read_options({"brokers": "0=a:1", "subscribe": "t", "partitions": "4"}).place == BrokerPlace(
        {0: ("a", 1)}, 4
    )


def test_brokers_of_later_dialects() -> None:
    found = read_options({"Kafka.Bootstrap.Servers": "a:1, [::1]:2,a:1", "subscribePattern": "e.*"})
    assert found.place == BootstrapPlace((("a", 1), ("::1", 2)))
    assert (found.max_split, found.max_per_trigger, found.counts_messages) == (0, None, True)
    secure = read_options(
        {
            **KAFKA,
            "maxRecordsPerPartition": "100",
            "maxOffsetsPerTrigger": "1000",
            "kafka.isolation.level": "read_committed",
            "kafka.security.protocol": "sasl_ssl",
            "kafka.ssl.ca.location": "/ca.pem",
            "kafka.ssl.endpoint.identification.algorithm": "none",
            "kafka.sasl.mechanism": "scram-sha-512",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": "secret",
        }
    )
    tls, login = Tls("/ca.pem", check_hostname=False), Login("u", "secret", mechanism="SCRAM-SHA-512")
    assert secure.place == BootstrapPlace((("a", 1),), True, tls, login)
    assert (secure.max_split, secure.max_per_trigger) == (100, 1000)
    assert pickle.loads(pickle.dumps(secure)) == secure
    assert "secret" not in repr(secure)
    assert not read_options(HERE).counts_messages


def test_numbers_words_and_positions() -> None:
    found = read_options(
        {
            **ZOOKEEPER,
            "STARTINGOFFSETS": '{"t": {"0-0": 71, "0-1": -2}}',
            "endingoffsets": "Latest",
            "failOnDataLoss": "FALSE",
            "mode": "failfast",
            "includeHeaders": "true",
            "minPartitions": "8",
            "maxSplitBytes": "0",
            "maxBytesPerTrigger": "1gb",
            "groupId": "g",
            "commitOffsets": "true",
            "fetchSize": "512K",
            "timeoutMs": "1500",
            "maxMessageBytes": "5m",
        }
    )
    assert found.starting == {"t": {"0-0": 71, "0-1": -2}}
    assert (found.ending, found.fail_on_data_loss, found.mode) == (LATEST, False, Mode.FAILFAST)
    assert (found.min_partitions, found.max_split, found.max_per_trigger) == (8, 0, 1 << 30)
    assert (found.fetch_size, found.timeout, found.limits.max_message_bytes) == (512 << 10, 1.5, 5 << 20)
    assert (found.group_id, found.commit_offsets, found.include_headers) == ("g", True, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**HERE, "subscribes": "t"}, "there is no option subscribes; did you mean subscribe?"),
        ({**HERE, "starting_offsets": "latest"}, "there is no option starting_offsets; did you mean startingOffsets?"),
        ({**HERE, "qqq": "1"}, "there is no option qqq; there are path, paths, zookeeper, "),
        (
            {"subscribe": "t"},
            "no option says where the messages are; give exactly one of path, zookeeper, brokers, bootstrap or files",
        ),
        ({"path": "/l"}, "no option says which topics to read; give exactly one of assign, subscribe or "),
        (
            {**HERE, "zookeeper": "z"},
            "the options path and zookeeper both say where the messages are; give exactly one",
        ),
        ({**HERE, "assign": '{"t": ["0"]}'}, "the options assign and subscribe both say which topics to read; "),
        (
            {"zookeeper": "zk:port", "subscribe": "t"},
            "the option zookeeper is wrong: 'port' in 'zk:port' is not a port",
        ),
        ({**HERE, "path": " , "}, "the option path is empty; "),
        ({**HERE, "paths": "[1]"}, "the option paths is '[1]'; it is a JSON list"),
        ({**HERE, "subscribe": ","}, "the option subscribe is empty; "),
        ({**HERE, "subscribe": "a/b"}, "the option subscribe names 'a/b', which can be no topic: "),
        ({"path": "/l", "subscribePattern": "(?<n>a)\\k"}, "the option subscribePattern is wrong: "),
        ({"path": "/l", "assign": "{"}, "the option assign is '{'; it is JSON such as "),
        ({"path": "/l", "assign": "{}"}, "the option assign is '{}'; it is JSON such as "),
        ({"path": "/l", "assign": '{"t": [-1]}'}, "the option assign says [-1] for t; it is JSON such as "),
        ({"path": "/l", "assign": '{"t": [true]}'}, "the option assign says [true] for t; it is JSON such as "),
        (
            {**HERE, "startingOffsets": "first"},
            "the option startingOffsets is wrong: 'first' is not earliest, latest, or",
        ),
        ({**HERE, "endingOffsets": '{"t": {"0": -3}}'}, "the option endingOffsets is wrong: -3 of t/0 is no offset; "),
        (
            {**HERE, "endingOffsets": '{"t": {"0": true}}'},
            "the option endingOffsets is wrong: true of t/0 is no offset; ",
        ),
        (
            {**HERE, "endingOffsets": '{"t": {"0": 1, "0": 2}}'},
            "the option endingOffsets is wrong: 0 stands twice in it",
        ),
        ({**HERE, "endingOffsets": '{"t": 5}'}, "the option endingOffsets is wrong: '{\"t\": 5}' is not earliest, "),
        ({**HERE, "startingTimestamp": "-1"}, "the option startingTimestamp is '-1'; it is a whole number from 0 to "),
        (
            {**HERE, "startingTimestamp": "1", "startingOffsets": "latest"},
            "the options startingOffsets and startingTim",
        ),
        ({**HERE, "failOnDataLoss": "yes"}, "the option failOnDataLoss is 'yes'; it is true or false"),
        ({**HERE, "mode": "STRICT"}, "the option mode is 'STRICT'; it is one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ({**HERE, "minPartitions": "0"}, "the option minPartitions is '0'; it is a whole number from 1 to 1000000"),
        ({**HERE, "maxSplitBytes": "64 MB?"}, "the option maxSplitBytes is '64 MB?'; it is a number of bytes such as "),
        ({**HERE, "maxBytesPerTrigger": "0"}, "the option maxBytesPerTrigger is '0'; it is a number of bytes such as "),
        (
            {**HERE, "layout": "{topic}"},
            "the option layout is wrong: the layout '{topic}' must name {topic} and {parti",
        ),
        (
            {**HERE, "layout": "{broker}-{topic}-{partition}", "broker": "1"},
            "the option broker says what {broker} in the",
        ),
        ({**ZOOKEEPER, "layout": "x"}, "the option layout is wrong: "),
        ({**ZOOKEEPER, "broker": "1"}, "the option broker means something together with path only; "),
        ({**ZOOKEEPER, "partitions": "1"}, "the option partitions means something together with brokers only; "),
        (
            {**ZOOKEEPER, "commitOffsets": "true"},
            "the option commitOffsets means something together with groupId only; ",
        ),
        ({**ZOOKEEPER, "groupId": "g"}, "the option groupId is for commitOffsets=true only, "),
        ({**HERE, "groupId": "g", "commitOffsets": "true"}, "the option commitOffsets writes to ZooKeeper or "),
        (
            {"brokers": "a:1", "subscribe": "t"},
            "the option brokers has 'a:1'; name each broker with its id, as in 0=ka",
        ),
        ({"brokers": "0=a:1,0=b:1", "subscribe": "t"}, "the option brokers names the broker 0 twice; "),
        ({"brokers": "0=a:1", "subscribe": "t"}, "the option subscribe needs the option partitions with brokers, "),
        ({"brokers": "0=a:1", "subscribePattern": "t"}, "the option subscribePattern needs zookeeper or path: "),
        (
            {**KAFKA, "bootstrap": "a"},
            "the option bootstrap is wrong: 'a' is not of the form host:port, such as kafka1:9092 or [::1]:9092",
        ),
        ({**KAFKA, "bootstrap": "a:65536"}, "the option bootstrap is wrong: 'a:65536' is not of the form host:port"),
        ({**KAFKA, "kafka.bootstrap.servers": "a:1"}, "the option bootstrap is there twice, once as kafka.bootstrap."),
        ({**KAFKA, "zookeeper": "z"}, "the options zookeeper and bootstrap both say where the messages are; "),
        ({**KAFKA, "maxSplitBytes": "1"}, "the option maxSplitBytes counts bytes, and offsets of brokers of 0.8 and "),
        ({**KAFKA, "maxBytesPerTrigger": "1"}, "the option maxBytesPerTrigger counts bytes, and offsets of brokers "),
        ({**HERE, "maxRecordsPerPartition": "1"}, "the option maxRecordsPerPartition means something together with"),
        (
            {**HERE, "maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"},
            "the options maxBytesPerTrigger and maxOffsetsPerTrigger both bound a batch; give one of them",
        ),
        (
            {"files": "/f", "subscribe": "t", "maxOffsetsPerTrigger": "1"},
            "the option maxOffsetsPerTrigger cannot be kept with files",
        ),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"t": {"0": -1}}'},
            'the option startingOffsetsByTimestamp is \'{"t": {"0": -1}}\'; it is JSON such as ',
        ),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"t": {"0": 1}}', "startingTimestamp": "1"},
            "the options startingTimestamp and startingOffsetsByTimestamp both say where to start; give one",
        ),
        (
            {**HERE, "broker": "3", "startingOffsets": '{"t": {"0": 1, "3-0": 2}}'},
            "t/3-0 stands twice in an option, once as 3-0",
        ),
        ({**KAFKA, "kafka.auto.offset.reset": "x"}, "the option kafka.auto.offset.reset is none that is supported in "),
        ({**HERE, "kafka.sasl.username": "u"}, "the option kafka.sasl.username means something together with boot"),
        ({**KAFKA, "kafka.sasl.jaas.config": "x"}, "the option kafka.sasl.jaas.config is none that is supported in "),
        ({**KAFKA, "kafka.isolation.level": "all"}, "the option kafka.isolation.level is 'all'; it is one of read_un"),
        ({**KAFKA, "kafka.sasl.username": "u"}, "the option kafka.sasl.username means nothing with kafka.security.p"),
        ({**SASL, "kafka.ssl.ca.location": "c"}, "the option kafka.ssl.ca.location means nothing with kafka.securit"),
        ({**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "the option kafka.sasl.mechanism is 'GSSAPI'; it is one of PLA"),
        ({**SASL, "kafka.sasl.username": "u"}, "kafka.security.protocol=SASL_PLAINTEXT needs kafka.sasl.username, "),
    ],
)
def test_a_wrong_option_gets_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as failure:
        read_options(options)
    found = str(failure.value)
    assert found.startswith(sentence)
    assert "\n" not in found
    assert len(found) < 600


def test_options_for_the_other_kind_of_query() -> None:
    with pytest.raises(OptionError, match="the option endingOffsets means nothing in a stream; leave it out"):
        refuse_options({"endingoffsets": "latest"}, ["endingOffsets"], "a stream")
    refuse_options(OPTIONS[:3], ["endingOffsets"], "a stream")


def test_equal_offsets_have_equal_texts() -> None:
    one = format_offsets({"b": {"0-10": 1, "0-2": 2}, "a": {"1": 3}})
    two = format_offsets(sorted_offsets({("a", "1"): 3, ("b", "0-2"): 2, ("b", "0-10"): 1}))
    assert one == two == '{"a": {"1": 3}, "b": {"0-10": 1, "0-2": 2}}'
    assert parse_offsets(one) == {"a": {"1": 3}, "b": {"0-10": 1, "0-2": 2}}
    with pytest.raises(ValueError, match="-1 of a/1 is no offset"):
        parse_offsets('{"a": {"1": -1}}')


def test_the_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    place = BootstrapPlace((("a", 1),), login=Login("u", password_file=str(file)))
    file.write_bytes("w\u00f6rd\r\nmore\n".encode())
    assert with_password(place).login == Login("u", "w\u00f6rd")
    file.write_bytes(b"\nmore\n")
    with pytest.raises(OptionError, match="whose first line holds no password"):
        with_password(place)
    file.unlink()
    with pytest.raises(OptionError, match="names what cannot be read"):
        with_password(place)


def test_partitions_may_be_numbers_where_a_broker_is_named_once_or_not_at_all() -> None:
    numbers = {"assign": '{"t": [0, 1, "1"]}', "startingOffsets": '{"t": {"0": 5, "1": -2}}'}
    for place, names in (
        ({"path": "/l", "broker": "3"}, ("3-0", "3-1")),
        ({"brokers": "7=a:1"}, ("7-0", "7-1")),
        ({"path": "/l"}, ("0", "1")),
        ({"bootstrap": "a:1"}, ("0", "1")),
    ):
        found = read_options({**place, **numbers})
        assert found.topics == Assign({"t": names})
        assert found.starting == {"t": dict(zip(names, (5, -2), strict=True))}
    several = read_options({"brokers": "0=a:1,1=b:1", "assign": '{"t": ["0-0", "1-0"]}'})
    assert several.topics == Assign({"t": ("0-0", "1-0")})


def test_settings_of_kafkas_clients_that_decide_nothing_are_passed_over_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        read_options({**KAFKA, "kafka.group.id": "g", "kafka.Fetch.Min.Bytes": "1"})
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"the option {key} means nothing to the data source consumerd, and is passed over"
        for key in ("kafka.group.id", "kafka.Fetch.Min.Bytes")
    ]
