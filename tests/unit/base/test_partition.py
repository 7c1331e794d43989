import pytest

from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId, TopicPartition


def test_name_is_the_znode_text() -> None:
    assert TopicPartition("t", 10, 2).name == "10-2"
    assert str(TopicPartition("t", 10, 2)) == "t/10-2"


def test_parse_reads_back_what_name_writes() -> None:
    assert TopicPartition.parse("t", "10-2") == TopicPartition("t", 10, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1",
        "1-",
        "-1",
        "a-1",
        "1-b",
        "1-2-3",
        "1--2",
        "+1-2",
        " 1-2",
        "01-2",
        "1-02",
        "1-" + "9" * 5000,
        "\u0661-1",
    ],
)
def test_parse_rejects_names_that_no_broker_writes(text: str) -> None:
    with pytest.raises(ValueError, match="broker-partition"):
        TopicPartition.parse("t", text)


def test_names_a_partition_of_later_brokers_by_its_number() -> None:
    partition = TopicPartition.numbered("t", 10)
    assert (partition.name, str(partition), partition.broker) == ("10", "t/10", NO_BROKER)
    assert TopicPartition.parse_numbered("t", "10") == partition


def test_log_id_is_made_of_what_batches_tell() -> None:
    log = LogId(bytes(range(16)), 3)
    assert LogId.from_text(log.topic_id_text, 3) == log
    for text in (None, "", "AAECAwQFBgcICQoLDA0OD", "AAECAwQFBgcICQoLDA0OD+", "AAECAwQFBgcICQoLDA0ODw=="):
        assert LogId.from_text(text, None) == UNKNOWN_LOG


@pytest.mark.parametrize("text", ["", "-1", "0-1", "01", " 1", "\u0661", "9" * 5000])
def test_rejects_partitions_that_are_not_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not the number of a partition"):
        TopicPartition.parse_numbered("t", text)
