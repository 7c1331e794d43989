"""Tokens for Amazon MSK: their signature is that of AWS's published algorithm, with the usual credentials."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import sys
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from consumerd.base.errors import BrokerError, ConfigError, HandlerLoadError
from consumerd.base.plugins import TOKEN_PROVIDER, call
from consumerd.base.settings.servers import SaslSection
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.sasl_msk import MskIam
from consumerd.net.client.sasl_oauth import OAuthToken
from consumerd.service.config.build_v08 import build_mechanism

pytest.importorskip("aws_msk_iam_sasl_signer", reason="the extra msk-iam is not installed: run `make setup`")
#: The credentials of Amazon's published examples.
KEY_ID, KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of this machine: neither files nor an instance's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def credentials(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)


def signature(url: str, payload: str) -> str:
    """The signature of a presigned GET (AWS Signature Version 4), by the published steps."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    _, date, region, service, _ = query["X-Amz-Credential"].split("/")
    signed = {name: value for name, value in query.items() if name not in ("X-Amz-Signature", "User-Agent")}
    canonical = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(signed.items()))
    request = f"GET\n{parts.path}\n{canonical}\nhost:{parts.hostname}\n\nhost\n{payload}"
    scope = f"{date}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{digest}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def url_of(token: OAuthToken) -> str:
    return base64.urlsafe_b64decode(token.value + "=" * (-len(token.value) % 4)).decode()


def test_the_steps_here_are_those_of_the_published_example() -> None:
    """Amazon S3's API reference, "Authenticating Requests: Using Query Parameters"."""
    url = (
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="
        f"{KEY_ID}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400"
        "&X-Amz-SignedHeaders=host"
    )
    expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    assert signature(url, "UNSIGNED-PAYLOAD") == expected


@pytest.mark.usefixtures("credentials")
def test_token_is_a_signed_request_to_connect() -> None:
    token = MskIam(region="eu-central-1")()
    assert token.lifetime is not None
    assert 890 < token.lifetime <= 900
    url = url_of(token)
    query = dict(parse_qsl(urlsplit(url).query))
    assert url.startswith("https://kafka.eu-central-1.amazonaws.com/?")
    assert (query["Action"], query["X-Amz-Expires"]) == ("kafka-cluster:Connect", "900")
    assert re.fullmatch(rf"{KEY_ID}/\d{{8}}/eu-central-1/kafka-cluster/aws4_request", query["X-Amz-Credential"])
    assert query["X-Amz-Signature"] == signature(url, EMPTY)
    assert KEY not in repr(token)


def test_configuration_names_the_provider(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[prod]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {KEY}\n", "ascii"
    )
    options = {"region": "eu-west-1", "profile": "prod"}
    section = SaslSection(mechanism="OAUTHBEARER", token_provider="aws_msk_iam", token_options=options)
    first = build_mechanism(section)().first("b-1.example.kafka.eu-west-1.amazonaws.com")
    token = first.split(b"\x01")[1].removeprefix(b"auth=Bearer ").decode()
    url = url_of(OAuthToken(token))
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?")
    assert dict(parse_qsl(urlsplit(url).query))["X-Amz-Signature"] == signature(url, EMPTY)


def test_missing_credentials_and_options_have_their_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AuthenticationError, match="aws_msk_iam: there are no AWS credentials: set AWS_PROFILE"):
        MskIam(region="eu-central-1")()
    section = SaslSection(
        mechanism="OAUTHBEARER", token_provider="aws_msk_iam", token_options={"region": "r", "profile": "none"}
    )
    with pytest.raises(BrokerError, match=r"token provider 'aws_msk_iam' failed: ProfileNotFound: .*none"):
        build_mechanism(section)().first("b")
    with pytest.raises(HandlerLoadError, match="'aws_msk_iam' requires the option 'region'"):
        call(TOKEN_PROVIDER, "aws_msk_iam", MskIam, {})
    with pytest.raises(ConfigError, match="give profile or role_arn, not both"):
        MskIam(region="r", profile="p", role_arn="a")
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", None)
    with pytest.raises(ConfigError, match=r"pip install 'consumerd\[msk-iam\]'"):
        MskIam(region="r")
