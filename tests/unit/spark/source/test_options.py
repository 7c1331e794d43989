"""The options: what they mean, and the one sentence that each wrong one gets."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.offsets import format_offsets, parse_offsets, sorted_offsets
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.option_values import (
    DEFAULT_SPLIT_BYTES,
    Assign,
    BootstrapLocation,
    BrokersLocation,
    FilesLocation,
    Login,
    PathLocation,
    Subscribe,
    SubscribePattern,
    Tls,
    TokenSource,
    ZooKeeperLocation,
)
from consumerd.spark.source.options import OPTIONS, read_options, refuse_options
from consumerd.spark.source.v08.origin import with_password
from consumerd.wire.v07 import DEFAULT_LIMITS, EARLIEST, LATEST

HERE = {"path": "/logs", "subscribe": "t"}
KAFKA = {"bootstrap": "a:1", "subscribe": "t"}
SASL = {**KAFKA, "kafka.security.protocol": "SASL_PLAINTEXT"}
ZOOKEEPER = {"zookeeper": "zk:2181/kafka", "subscribe": "t"}


def test_omitted_options_have_defaults() -> None:
    found = read_options(HERE)
    assert found.location == PathLocation(("/logs",))
    assert found.topics == Subscribe(("t",))
    assert (found.start_of_batch(), found.start_of_stream(), found.ending) == (EARLIEST, LATEST, LATEST)
    assert found.max_split == DEFAULT_SPLIT_BYTES
    assert found.limits == DEFAULT_LIMITS
    assert (found.fail_on_data_loss, found.mode, found.timeout) == (True, ParseMode.PERMISSIVE, 30)
    assert pickle.loads(pickle.dumps(found)) == found


def test_reads_locations_and_selections() -> None:
    several = read_options({"path": "/a, s3://b/c,/a", "subscribe": "x, y", "layout": "b{broker}/{topic}-{partition}"})
    assert several.location == PathLocation(("/a", "s3://b/c"), "b{broker}/{topic}-{partition}")
    assert several.topics == Subscribe(("x", "y"))
    listed = read_options({"paths": '["/a,b", "file:///c"]', "subscribePattern": " e.*, f", "broker": "7"})
    assert listed.location == PathLocation(("/a,b", "/c"), broker=7)
    assert listed.topics == SubscribePattern("e.*|f")
    assert read_options({**HERE, "path": "logs"}).location == PathLocation((str(Path("logs").absolute()),))
    assert read_options({"files": "file:/out", "subscribe": "t"}).location == FilesLocation("/out")
    assert read_options(ZOOKEEPER).location == ZooKeeperLocation("zk:2181/kafka")
    brokers = read_options({"brokers": "0=a:1, 12=[::1]:2", "assign": '{"t": ["0-0", "12-1"]}'})
    assert brokers.location == BrokersLocation({0: ("a", 1), 12: ("::1", 2)})
    assert brokers.topics == Assign({"t": ("0-0", "12-1")})
    assert read_options({"brokers": "0=a:1", "subscribe": "t", "partitions": "4"}).location == BrokersLocation(
        {0: ("a", 1)}, 4
    )


def test_reads_options_of_v08_brokers() -> None:
    found = read_options({"Kafka.Bootstrap.Servers": "a:1, [::1]:2,a:1", "subscribePattern": "e.*"})
    assert found.location == BootstrapLocation((("a", 1), ("::1", 2)))
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
    assert secure.location == BootstrapLocation((("a", 1),), True, tls, login)
    assert (secure.max_split, secure.max_per_trigger) == (100, 1000)
    assert pickle.loads(pickle.dumps(secure)) == secure
    assert "secret" not in repr(secure)
    assert not read_options(HERE).counts_messages


OAUTH = {**SASL, "kafka.sasl.mechanism": "oauthbearer"}
ENDPOINT = {**OAUTH, "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token"}


def test_reads_where_tokens_come_from() -> None:
    found = read_options(
        {
            **ENDPOINT,
            "kafka.sasl.username": "client",
            "kafka.sasl.password": "secret",
            "kafka.sasl.oauthbearer.scope": "a b",
            "kafka.sasl.oauthbearer.ca.location": "/ca.pem",
            "kafka.sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool=1",
        }
    ).location
    extensions = (("logicalCluster", "lkc-1"), ("identityPoolId", "pool=1"))
    tokens = TokenSource("https://idp/token", "a b", "/ca.pem", extensions=extensions)
    assert isinstance(found, BootstrapLocation)
    assert found.login == Login("client", "secret", None, "OAUTHBEARER", tokens)
    assert pickle.loads(pickle.dumps(found)) == found
    assert "secret" not in repr(found)
    found = read_options({**OAUTH, "kafka.sasl.oauthbearer.token.file": "/token"}).location
    assert isinstance(found, BootstrapLocation)
    assert found.login == Login("", mechanism="OAUTHBEARER", tokens=TokenSource(file="/token"))


def test_reads_numbers_words_and_positions() -> None:
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
    assert (found.ending, found.fail_on_data_loss, found.mode) == (LATEST, False, ParseMode.FAILFAST)
    assert (found.min_partitions, found.max_split, found.max_per_trigger) == (8, 0, 1 << 30)
    assert (found.fetch_size, found.timeout, found.limits.max_message_bytes) == (512 << 10, 1.5, 5 << 20)
    assert (found.group_id, found.commit_offsets, found.include_headers) == ("g", True, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**HERE, "subscribes": "t"}, "unknown option subscribes, did you mean 'subscribe'?"),
        ({**HERE, "starting_offsets": "latest"}, "unknown option starting_offsets, did you mean 'startingOffsets'?"),
        ({**HERE, "qqq": "1"}, "unknown option qqq; known options: path, paths, zookeeper, "),
        (
            {"subscribe": "t"},
            "no option says where the messages are; set exactly one of path, zookeeper, brokers, bootstrap or files",
        ),
        ({"path": "/l"}, "no option says which topics to read; set exactly one of assign, subscribe or "),
        (
            {**HERE, "zookeeper": "z"},
            "the options path and zookeeper both say where the messages are; set exactly one",
        ),
        ({**HERE, "assign": '{"t": ["0"]}'}, "the options assign and subscribe both say which topics to read; "),
        (
            {"zookeeper": "zk:port", "subscribe": "t"},
            "invalid option zookeeper: 'port' in 'zk:port' is not a port",
        ),
        ({**HERE, "path": " , "}, "option path is empty; "),
        ({**HERE, "paths": "[1]"}, "option paths must be a JSON list"),
        ({**HERE, "subscribe": ","}, "option subscribe is empty; "),
        ({**HERE, "subscribe": "a/b"}, "option subscribe names 'a/b', which is not a valid topic name: "),
        ({"path": "/l", "subscribePattern": "(?<n>a)\\k"}, "invalid option subscribePattern: "),
        ({"path": "/l", "assign": "{"}, "option assign must be JSON such as "),
        ({"path": "/l", "assign": "{}"}, "option assign must be JSON such as "),
        ({"path": "/l", "assign": '{"t": [-1]}'}, "option assign says [-1] for t; must be JSON such as "),
        ({"path": "/l", "assign": '{"t": [true]}'}, "option assign says [true] for t; must be JSON such as "),
        (
            {**HERE, "startingOffsets": "first"},
            "invalid option startingOffsets: 'first' is not earliest, latest, or",
        ),
        ({**HERE, "endingOffsets": '{"t": {"0": -3}}'}, "invalid option endingOffsets: -3 of t/0 is not an offset; "),
        (
            {**HERE, "endingOffsets": '{"t": {"0": true}}'},
            "invalid option endingOffsets: true of t/0 is not an offset; ",
        ),
        (
            {**HERE, "endingOffsets": '{"t": {"0": 1, "0": 2}}'},
            "invalid option endingOffsets: duplicate key 0",
        ),
        ({**HERE, "endingOffsets": '{"t": 5}'}, "invalid option endingOffsets: '{\"t\": 5}' is not earliest, "),
        (
            {**HERE, "startingTimestamp": "-1"},
            "option startingTimestamp must be 0 or a positive whole number, not '-1'",
        ),
        (
            {**HERE, "startingTimestamp": "1", "startingOffsets": "latest"},
            "the options startingOffsets and startingTim",
        ),
        ({**HERE, "failOnDataLoss": "yes"}, "option failOnDataLoss must be true or false, not 'yes'"),
        (
            {**HERE, "mode": "STRICT"},
            "option mode must be one of PERMISSIVE, DROPMALFORMED, FAILFAST, not 'STRICT'",
        ),
        (
            {**HERE, "minPartitions": "0"},
            "option minPartitions must be a positive whole number up to 1000000, not '0'",
        ),
        (
            {**HERE, "maxSplitBytes": "64 MB?"},
            "option maxSplitBytes must be a number of bytes such as ",
        ),
        (
            {**HERE, "maxBytesPerTrigger": "0"},
            "option maxBytesPerTrigger must be a number of bytes such as ",
        ),
        (
            {**HERE, "layout": "{topic}"},
            "invalid option layout: the layout '{topic}' must name {topic} and {parti",
        ),
        (
            {**HERE, "layout": "{broker}-{topic}-{partition}", "broker": "1"},
            "option broker conflicts with {broker} in",
        ),
        ({**ZOOKEEPER, "layout": "x"}, "invalid option layout: "),
        ({**ZOOKEEPER, "broker": "1"}, "option broker requires option path; "),
        ({**ZOOKEEPER, "partitions": "1"}, "option partitions requires option brokers; "),
        (
            {**ZOOKEEPER, "commitOffsets": "true"},
            "option commitOffsets requires option groupId; ",
        ),
        ({**ZOOKEEPER, "groupId": "g"}, "option groupId requires commitOffsets=true, "),
        ({**HERE, "groupId": "g", "commitOffsets": "true"}, "option commitOffsets writes to ZooKeeper or "),
        (
            {"brokers": "a:1", "subscribe": "t"},
            "invalid broker 'a:1' in option brokers: must have an id, as in 0=ka",
        ),
        ({"brokers": "0=a:1,0=b:1", "subscribe": "t"}, "option brokers names the broker 0 twice; "),
        ({"brokers": "0=a:1", "subscribe": "t"}, "option subscribe requires option partitions with brokers, "),
        ({"brokers": "0=a:1", "subscribePattern": "t"}, "option subscribePattern requires option zookeeper or path: "),
        (
            {**KAFKA, "bootstrap": "a"},
            "invalid option bootstrap: 'a' is not of the form host:port, such as kafka1:9092 or [::1]:9092",
        ),
        ({**KAFKA, "bootstrap": "a:65536"}, "invalid option bootstrap: 'a:65536' is not of the form host:port"),
        ({**KAFKA, "kafka.bootstrap.servers": "a:1"}, "option bootstrap is given twice, once as kafka.bootstrap."),
        ({**KAFKA, "zookeeper": "z"}, "the options zookeeper and bootstrap both say where the messages are; "),
        ({**KAFKA, "maxSplitBytes": "1"}, "option maxSplitBytes counts bytes, and offsets of brokers of 0.8 and "),
        ({**KAFKA, "maxBytesPerTrigger": "1"}, "option maxBytesPerTrigger counts bytes, and offsets of brokers "),
        ({**HERE, "maxRecordsPerPartition": "1"}, "option maxRecordsPerPartition requires option bootstrap; "),
        (
            {**HERE, "maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"},
            "the options maxBytesPerTrigger and maxOffsetsPerTrigger both limit a micro-batch; set only one of them",
        ),
        (
            {"files": "/f", "subscribe": "t", "maxOffsetsPerTrigger": "1"},
            "option maxOffsetsPerTrigger is not supported with files",
        ),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"t": {"0": -1}}'},
            "option startingOffsetsByTimestamp must be JSON such as ",
        ),
        (
            {**HERE, "startingOffsetsByTimestamp": '{"t": {"0": 1}}', "startingTimestamp": "1"},
            "the options startingTimestamp and startingOffsetsByTimestamp both say where to start; set only one",
        ),
        (
            {**HERE, "broker": "3", "startingOffsets": '{"t": {"0": 1, "3-0": 2}}'},
            "t/3-0 is named twice in an option, once as 3-0",
        ),
        ({**KAFKA, "kafka.auto.offset.reset": "x"}, "option kafka.auto.offset.reset is not supported in "),
        ({**HERE, "kafka.sasl.username": "u"}, "option kafka.sasl.username requires option boot"),
        ({**KAFKA, "kafka.sasl.jaas.config": "x"}, "option kafka.sasl.jaas.config is not supported in "),
        (
            {**KAFKA, "kafka.isolation.level": "all"},
            "option kafka.isolation.level must be read_uncommitted or read_committed, not 'all'",
        ),
        ({**KAFKA, "kafka.sasl.username": "u"}, "option kafka.sasl.username has no effect with kafka.security.p"),
        ({**SASL, "kafka.ssl.ca.location": "c"}, "option kafka.ssl.ca.location has no effect with kafka.securit"),
        (
            {**SASL, "kafka.sasl.mechanism": "GSSAPI"},
            "option kafka.sasl.mechanism must be one of PLA",
        ),
        ({**SASL, "kafka.sasl.username": "u"}, "kafka.security.protocol=SASL_PLAINTEXT needs kafka.sasl.username, "),
        (OAUTH, "OAUTHBEARER needs exactly one of kafka.sasl.oauthbearer.token.endpoint.url and kafka.sasl.oaut"),
        (ENDPOINT, "kafka.security.protocol=SASL_PLAINTEXT needs kafka.sasl.username, and exactly one of "),
        (
            {**OAUTH, "kafka.sasl.oauthbearer.token.endpoint.url": "http://idp/token"},
            "option kafka.sasl.oauthbearer.token.endpoint.url must begin with https://",
        ),
        (
            {**OAUTH, "kafka.sasl.oauthbearer.token.file": "f", "kafka.sasl.username": "u"},
            "option kafka.sasl.oauthbearer.token.file excludes kafka.sasl.username and passwords: remove them",
        ),
        (
            {**OAUTH, "kafka.sasl.oauthbearer.token.file": "f", "kafka.sasl.oauthbearer.scope": "s"},
            "options kafka.sasl.oauthbearer.scope and kafka.sasl.oauthbearer.ca.location require",
        ),
        (
            {**ENDPOINT, "kafka.sasl.oauthbearer.extensions": "auth=x"},
            "option kafka.sasl.oauthbearer.extensions: 'auth' must be letters only, and not auth",
        ),
        (
            {**ENDPOINT, "kafka.sasl.oauthbearer.extensions": "a"},
            "option kafka.sasl.oauthbearer.extensions must be name=value,name=value, not 'a'",
        ),
        (
            {**SASL, "kafka.sasl.username": "u", "kafka.sasl.password": "p", "kafka.sasl.oauthbearer.scope": "s"},
            "option kafka.sasl.oauthbearer.scope has no effect with kafka.sasl.mechanism=PLAIN; use OAUTHBEARER",
        ),
    ],
)
def test_reports_an_invalid_option_in_one_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as failure:
        read_options(options)
    found = str(failure.value)
    assert found.startswith(sentence)
    assert "\n" not in found
    assert len(found) < 600


def test_rejects_options_of_the_other_kind_of_query() -> None:
    with pytest.raises(OptionError, match="option endingOffsets is not supported in a stream; remove it"):
        refuse_options({"endingoffsets": "latest"}, ["endingOffsets"], "a stream")
    refuse_options(list(OPTIONS)[:3], ["endingOffsets"], "a stream")


def test_equal_offsets_have_equal_text() -> None:
    one = format_offsets({"b": {"0-10": 1, "0-2": 2}, "a": {"1": 3}})
    two = format_offsets(sorted_offsets({("a", "1"): 3, ("b", "0-2"): 2, ("b", "0-10"): 1}))
    assert one == two == '{"a": {"1": 3}, "b": {"0-10": 1, "0-2": 2}}'
    assert parse_offsets(one) == {"a": {"1": 3}, "b": {"0-10": 1, "0-2": 2}}
    with pytest.raises(ValueError, match="-1 of a/1 is not an offset"):
        parse_offsets('{"a": {"1": -1}}')
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_offsets('{"a": ' + "[" * 100_000)


def test_reads_the_password_from_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    place = BootstrapLocation((("a", 1),), login=Login("u", password_file=str(file)))
    file.write_bytes("w\u00f6rd\r\nmore\n".encode())
    assert with_password(place).login == Login("u", "w\u00f6rd")
    file.write_bytes(b"\nmore\n")
    with pytest.raises(OptionError, match=r"password.file: .*password holds no secret in its first line"):
        with_password(place)
    file.unlink()
    with pytest.raises(OptionError, match=r"password.file: cannot read .*password: No such file"):
        with_password(place)


def test_partitions_may_be_numbers_with_at_most_one_broker() -> None:
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


def test_ignores_irrelevant_kafka_settings_and_logs_them_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        read_options({**KAFKA, "kafka.group.id": "g", "kafka.Fetch.Min.Bytes": "1"})
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"option {key} is not used by the data source consumerd and is ignored"
        for key in ("kafka.group.id", "kafka.Fetch.Min.Bytes")
    ]
