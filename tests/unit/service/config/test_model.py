import re
import tomllib
import traceback
from pathlib import Path

import pytest

from consumerd.base.errors import ConfigError
from consumerd.member.offsets.choice import OffsetSettings, Storage
from consumerd.service.config.build import build_offset_settings
from consumerd.service.config.effective import effective_values
from consumerd.service.config.example import example_toml
from consumerd.service.config.model import load, parse
from consumerd.service.config.problems import ConfigProblemsError

ROOT = Path(__file__).resolve().parents[4]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


#: Keys that exclude, or need, one another.
EXCLUSIVE = {"whitelist", "blacklist", "on_failure", "dead_letter", "dead_letter_topic", "retry_topic", "partitions"}
EXCLUSIVE |= {"instance_id", "remote_assignor"}
MINIMAL = '[group]\nid = "g"\ntopics = { t = 1 }\n'


def test_repository_example_begins_with_the_generated_one() -> None:
    assert (ROOT / "config.example.toml").read_text().startswith(example_toml())


def test_example_is_valid() -> None:
    config = load(ROOT / "config.example.toml")
    assert config.group.topics == {"events": 1}


#: Tables that make no sense without these keys.
SASL = ("[kafka.sasl]", "[zookeeper.sasl]")
NEEDED = {
    "[kafka.sasl]": ("user", "password_file"),
    "[zookeeper.sasl]": ("user", "password_file"),
    "[health.tls]": ("certificate", "key"),
    "[[subscriptions]]": ("name", "topics"),
}


#: Keys of one mechanism, and what stands with them instead of `user` and `password_file`.
OAUTH = 'mechanism = "OAUTHBEARER"\n'
WITH_ENDPOINT = OAUTH + 'user = "u"\npassword_file = "p"\n'
BESIDE = (
    dict.fromkeys(("principal", "keytab"), 'mechanism = "GSSAPI"')
    | dict.fromkeys(("token_file", "token_provider"), OAUTH)
    | {"token_endpoint": WITH_ENDPOINT, "token_options": OAUTH + 'token_provider = "a:b"'}
    | dict.fromkeys(("token_scope", "token_parameters", "token_ca", "extensions"),
                    WITH_ENDPOINT + 'token_endpoint = "https://h/t"')
)  # fmt: skip


def test_commented_keys_of_the_example_are_valid(tmp_path: Path) -> None:
    # Uncomment each `# key = value` line of a table in turn: the file must still load.
    lines = example_toml().splitlines()
    keys = [i for i, line in enumerate(lines) if line.startswith("# ") and " = " in line and line.split()[1].islower()]
    tried = 0
    for i in keys:
        key = lines[i].split()[1]
        if not key.isidentifier() or key in EXCLUSIVE:
            continue
        changed = list(lines)
        changed[i] = lines[i][2:]
        header = max(at for at in range(i) if re.fullmatch(r"(# )?\[\[?[a-z.]+\]\]?", lines[at]))
        changed[header] = lines[header].removeprefix("# ")
        for needed in NEEDED.get(changed[header], ()):
            at = next(at for at in range(header, len(lines)) if lines[at].startswith(f"# {needed} = "))
            if changed[header] in SASL and key in BESIDE:
                changed[at] = BESIDE[key] if needed == "user" else ""
            else:
                changed[at] = lines[at][2:]
        if changed[header] == "[[subscriptions]]":
            at = lines.index("# [subscriptions.handler]")
            changed[at] = lines[at][2:]
        if changed[header] in SASL and key == "password":
            changed[i] = lines[i]  # one of two: the file is tried
        load(write(tmp_path, "\n".join(changed)))
        tried += 1
    assert tried > 25


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'group' is required"),
        (MINIMAL + "[fetch]\nsise = 1\n", "unknown key 'fetch.sise', did you mean 'size'?"),
        (MINIMAL + "[zookeper]\nconnect = 'x'\n", "unknown key 'zookeper', did you mean 'zookeeper'?"),
        ('[grup]\nid = "g"\ntopics = { t = 1 }\n', "unknown key 'grup', did you mean 'group'?"),
        (
            MINIMAL + "[fetch]\nidle_backoff = nan\n",
            "idle_backoff' must be a positive number of seconds, not nan",
        ),
        (MINIMAL + "[fetch]\nqqqqqq = 1\n", "unknown key 'fetch.qqqqqq', which is not a key of this table"),
        (MINIMAL + "[zookeeper.tls]\ncertificat = 'x'\n", "did you mean 'certificate'?"),
        (MINIMAL + "[fetch]\nsize = 0\n", "'fetch.size' must be a positive whole number of bytes, not 0"),
        ('[group]\nid = "g"\n', "give exactly one of topics, whitelist and blacklist"),
        (MINIMAL + 'whitelist = "x"\n', "give exactly one of"),
        ('[group]\nid = "a/b"\ntopics = { t = 1 }\n', "cannot be the name of a znode"),
        (MINIMAL + '[handler]\non_failure = "dead_letter"\n', "go together"),
        (MINIMAL + '[handler]\ndead_letter_topic = "d"\n', "go together"),
        (MINIMAL + 'coordination = "kafak"\n', "'group.coordination' must be one of zookeeper, kafka, fixed."),
        (MINIMAL + "partitions = { t = [0] }\n", 'partitions need coordination = "fixed"'),
        (MINIMAL + 'coordination = "fixed"\npartitions = { t = [0] }\n', "and no topics, whitelist or blacklist"),
        ('[group]\nid = "g"\ncoordination = "fixed"\npartitions = { t = [] }\n', "needs partitions"),
        (
            '[group]\nid = "g"\ncoordination = "fixed"\npartitions = { t = [-1] }\n',
            "'group.partitions.t.0' must be 0 or a positive whole number, not -1",
        ),
        (MINIMAL + 'instance_id = "x"\n', 'instance_id needs coordination = "kafka"'),
        (MINIMAL + 'protocol = "consumer"\n', 'protocol = "consumer" needs coordination = "kafka"'),
        (MINIMAL + "broker_filter = true\n", 'remote_assignor and broker_filter need protocol = "consumer"'),
        (
            MINIMAL + 'coordination = "kafka"\nprotocol = "consumer"\nbroker_filter = true\n',
            "broker_filter needs whitelist",
        ),
        (
            MINIMAL + 'coordination = "kafka"\nprotocol = "consumer"\n[commit]\nversion = 2\n',
            'commit.version = 2 and group.protocol = "consumer" do not go together',
        ),
        (MINIMAL + 'offsets = "none"\n', 'offsets = "none" needs coordination = "fixed"'),
        (MINIMAL + 'coordination = "kafka"\noffsets = "none"\n', 'offsets = "none" needs coordination = "fixed"'),
        (MINIMAL + 'coordination = "kafka"\noffsets = "zookeeper"\n', 'use "both" to keep a copy in ZooKeeper'),
        (MINIMAL + 'dialect = "0.7"\noffsets = "both"\n', 'offsets = "both" needs dialect = "0.8"'),
        (MINIMAL + 'coordination = "kafka"\n[commit]\nversion = 0\n', "commit.version = 0 needs group.coordination"),
        (MINIMAL + "[commit]\nversion = 3\n", "'commit.version' must be one of 0, 1, 2, not 3"),
        (MINIMAL + "[commit]\nversion = 0\n", "c.toml:5: commit.version = 0 needs group.coordination"),
        (MINIMAL + "[commit]\nversion = 1\nretention = 60\n", "commit.retention and commit.version = 1 do not go"),
        (MINIMAL + "[commit]\nretention = inf\n", "must be a positive number of seconds up to 1000000000, not inf"),
        (MINIMAL + "[daemon]\nstop_timeout = inf\n", "'daemon.stop_timeout' must be a positive number of seconds"),
        (MINIMAL + "session_timeout = inf\n", "'group.session_timeout' must be a positive number of seconds"),
        (MINIMAL + "rebalance_timeout = 3e6\n", "must be a positive number of seconds up to 2147483, not 3000000.0"),
        (
            MINIMAL + "[fetch]\nmax_size = 2147483648\n",
            "whole number of bytes below 2147483648, not 2147483648",
        ),
        (MINIMAL + "[fetch]\nmax_wait = 0\n", "'fetch.max_wait' must be a number of seconds from 0.01 to 60, not 0"),
        (MINIMAL + "[fetch]\nmax_wait = 61\n", "'fetch.max_wait' must be a number of seconds from 0.01 to 60, not 61"),
        (MINIMAL + "[fetch]\nmin_bytes = 0\n", "'fetch.min_bytes' must be a positive whole number of bytes, not 0"),
        (
            MINIMAL + "[fetch]\nsize = 9\nmin_bytes = 10\n",
            "min_bytes must be at most 9, which one fetch can return, not 10",
        ),
        (
            MINIMAL + '[fetch]\nisolation = "serializable"\n',
            "isolation' must be read_uncommitted or read_committed.",
        ),
        (MINIMAL + "session_timeout = 5.0\n", "twice heartbeat_interval"),
        (MINIMAL + "rebalance_timeout = 9.0\n", "as long as session_timeout"),
        (MINIMAL + "[kafka]\nbootstrap = []\n", "'kafka.bootstrap' must not be empty"),
        ("[group\n", "is not TOML"),
        pytest.param("a = " + "[" * 100_000, "is nested too deeply", id="nested"),
    ],
)
def test_names_the_key_of_a_wrong_value(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


def test_names_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path)


def test_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMERD_GROUP__CONSUMER_ID", "pod-3")
    monkeypatch.setenv("CONSUMERD_FETCH__SIZE", "4096")
    config = load(write(tmp_path, MINIMAL))
    assert (config.group.id, config.group.consumer_id, config.fetch.size) == ("g", "pod-3", 4096)


SECRET = "s3cr3t"
WITH_USER = MINIMAL + '[kafka.tls]\n[kafka.sasl]\nuser = "u"\n'


def test_adds_a_password_of_the_environment_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMERD_KAFKA__SASL__PASSWORD", SECRET)
    monkeypatch.setenv("CONSUMERD_KAFKA__TLS__CA", "/ca.pem")
    path = write(tmp_path, WITH_USER)
    kafka = load(path).kafka
    assert kafka.sasl is not None
    assert kafka.tls is not None
    assert kafka.sasl.password is not None
    assert (kafka.sasl.user, kafka.sasl.password.get_secret_value()) == ("u", SECRET)
    assert kafka.tls.ca == Path("/ca.pem")
    shown = {(each.table, each.key): (each.value, each.origin) for each in effective_values(path)}
    sasl, origin = shown["kafka", "sasl"]
    assert (sasl["user"], sasl["password"], origin) == ("u", "(not shown)", "environment")
    assert shown["kafka", "tls"][1] == "environment"
    assert shown["kafka", "client_id"][1] == "default"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CONSUMERD_FECH__SIZE", "FECH__SIZE: there is no table of this name, did you mean CONSUMERD_FETCH__...?"),
        ("consumerd_fech", "there is no table of this name, did you mean consumerd_FETCH...?"),
        ("CONSUMERD_QQQ__SIZE", "environment variable CONSUMERD_QQQ__SIZE: there is no table of this name."),
        ("CONSUMERD_FETCH__SISE", "unknown key 'fetch.sise', did you mean 'size'?"),
    ],
)
def test_names_a_misspelt_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv("CONSUMERD_PORT_9092_TCP", "tcp://10.0.0.1:9092")  # Kubernetes sets such for a service
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, MINIMAL))
    assert words in str(caught.value)
    load_without = parse(tomllib.loads(MINIMAL), "a test", environment=False)
    assert load_without.group.id == "g"


@pytest.mark.parametrize("name", ["CONSUMERD_KAFKA", "CONSUMERD_KAFKA__BOOTSTRAP", "consumerd_kafka__sasl"])
def test_reports_an_unreadable_variable_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f'{{"password": "{SECRET}"')
    with pytest.raises(ConfigError, match=rf"environment variable {name}: ") as caught:
        load(write(tmp_path, WITH_USER))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["CONSUMERD_KAFKA", "CONSUMERD_KAFKA__BOOTSTRAP", "consumerd_kafka__sasl"])
def test_reports_a_variable_that_is_nested_too_deeply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CONSUMERD_COMMIT", "{}")
    monkeypatch.setenv(name, "[" * 100_000)
    with pytest.raises(ConfigError, match=rf"environment variable {name}: .* cannot be read") as caught:
        load(write(tmp_path, WITH_USER))
    assert "CONSUMERD_COMMIT" not in str(caught.value)


def test_reports_a_variable_of_any_depth_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MINIMAL)
    for depth in range(900, 1000, 4):  # around the limit of recursion, where the caller's own frames decide
        monkeypatch.setenv("CONSUMERD_KAFKA__SASL", '{"user": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(ConfigError, match="CONSUMERD_KAFKA__SASL"):
            load(path)


def test_never_prints_secrets(tmp_path: Path) -> None:
    options = f'[handler]\noptions = {{ sasl = {{ user = "u", password = "{SECRET}" }} }}\n'
    text = f'{WITH_USER}password = "{SECRET}"\n[zookeeper]\nauth = ["digest:u:{SECRET}"]\n{options}'
    pipeline = f'[spark.pipelines.p.source]\n"kafka.sasl.password" = "{SECRET}"\n'
    assert SECRET not in repr(load(write(tmp_path, text + pipeline)))
    # Nor in what is said of one that is wrong, with its traceback.
    for wrong in (
        text.replace("password =", 'password_file = "p"\npassword =', 1),
        text.replace("user =", "usr =", 1),
        text.replace('user = "u"', "user = 1", 1),
        text.replace("[kafka.sasl]", '[kafka.sasl]\nmechanism = "GSSAPI"'),
        text + "stop = 1\n",
    ):
        with pytest.raises(ConfigError) as caught:
            load(write(tmp_path, wrong))
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("coordination", "offsets", "storage"),
    [
        ("zookeeper", "", "zookeeper"),
        ("zookeeper", "kafka", "kafka"),
        ("zookeeper", "both", "both"),
        ("kafka", "", "kafka"),
        ("kafka", "both", "both"),
        ("fixed", "", "kafka"),
        ("fixed", "zookeeper", "zookeeper"),
        ("fixed", "none", "none"),
    ],
)
def test_derives_the_offset_store_from_the_coordination(
    tmp_path: Path, coordination: str, offsets: str, storage: Storage
) -> None:
    what = "partitions = { t = [0] }" if coordination == "fixed" else "topics = { t = 1 }"
    said = f'offsets = "{offsets}"' if offsets else ""
    text = f'[group]\nid = "g"\n{what}\ncoordination = "{coordination}"\n{said}\n[commit]\nmetadata = "m"\n'
    config = load(write(tmp_path, text + "retention = 60.0\n"))
    assert build_offset_settings(config) == OffsetSettings(storage=storage, metadata="m", retention=60.0)


def test_reads_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b'[group]\nid = "g"\ntopics = { t = 1 }\n')
    assert load(path).group.id == "g"


def test_rejects_variables_which_nothing_expands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
[group]
id = "g"
whitelist = "a${n}"
[zookeeper]
connect = "${ZK_HOSTS}:2181/kafka"
[kafka]
bootstrap = ["${KAFKA}"]
[kafka.sasl]
user = "u"
password = "x${PASSWORD:-secret}"
[handler]
name = "http"
[handler.options]
url = "https://${HOST}/in"
body = "{'at': ${offset}}"
"""
    with pytest.raises(ConfigProblemsError) as raised:
        load(write(tmp_path, text))
    assert [(each.line, each.sentence.partition(" has ")[0]) for each in raised.value.problems] == [
        (6, "'zookeeper.connect'"),
        (8, "'kafka.bootstrap'"),
        (11, "'kafka.sasl.password'"),
        (15, "'handler.options.url'"),
    ]
    assert "set the environment variable CONSUMERD_KAFKA__SASL__PASSWORD" in str(raised.value)
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("CONSUMERD_KAFKA__SASL__PASSWORD", "p")
    with pytest.raises(ConfigProblemsError) as raised:
        load(write(tmp_path, text))
    assert len(raised.value.problems) == 3
