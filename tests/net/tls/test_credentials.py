"""kproxy's own credentials, from properties in both dialects, and from the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.net.tls.credentials import Credentials, CredentialsError, credentials

SECRET = "secret-77ab"
URL = "sasl.oauthbearer.token.endpoint.url"
ENDPOINT = f"https://idp.example/token?{SECRET}"
JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"


def oauth(**changes: object) -> Credentials:
    """Those of an endpoint."""
    given = {"username": "me", "password": SECRET, "endpoint": ENDPOINT, "scope": "kafka"}
    return Credentials("OAUTHBEARER", **(given | changes))


@pytest.mark.parametrize(
    ("properties", "environment", "found"),
    [
        ({}, {}, None),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, {}, None),  # as AWS describes it for SCRAM
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": JAAS.format(
                    "plain.Plain", rf"username=K password='a\'{SECRET}'"
                ),
            },
            {},
            Credentials("PLAIN", "K", f"a'{SECRET}"),
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": JAAS.format(
                    "scram.Scram", f'username="a=b" password="{SECRET};"'
                ),
            },
            {},
            Credentials("SCRAM-SHA-256", "a=b", f"{SECRET};"),
        ),
        (
            {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "bob", "sasl.password": SECRET},
            {"KPROXY_SASL_PASSWORD": "newer"},
            Credentials("SCRAM-SHA-512", "bob", "newer"),
        ),
        (
            {},
            {"KPROXY_SASL_USERNAME": "bob", "KPROXY_SASL_PASSWORD": SECRET},
            Credentials("PLAIN", "bob", SECRET),
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                URL: ENDPOINT,
                "sasl.jaas.config": JAAS.format(
                    "OAuth",
                    f"clientId='me' clientSecret='{SECRET}' scope=kafka extension_logicalCluster=l",
                ),
            },
            {},
            oauth(extensions={"logicalCluster": "l"}),
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                URL: ENDPOINT,
                "sasl.oauthbearer.client.credentials.client.id": "me",
                "sasl.oauthbearer.client.credentials.client.secret": SECRET,
                "sasl.oauthbearer.scope": "kafka",
            },
            {},
            oauth(),
        ),
        (
            {
                "sasl.mechanisms": "OAUTHBEARER",
                URL: ENDPOINT,
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": SECRET,
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.extensions": "logicalCluster=l,identityPoolId=p",
            },
            {},
            oauth(extensions={"logicalCluster": "l", "identityPoolId": "p"}),
        ),
        (
            {"sasl.mechanism": "OAUTHBEARER", URL: "file:///run/token"},
            {},
            Credentials("OAUTHBEARER", token_file=Path("/run/token")),
        ),
        (
            {},
            {"KPROXY_SASL_TOKEN_COMMAND": "gcloud print-token"},
            Credentials("OAUTHBEARER", token_command="gcloud print-token"),
        ),
        (
            {},
            {"KPROXY_SASL_TOKEN_FILE": "t"},
            Credentials("OAUTHBEARER", token_file=Path("t")),
        ),
        (
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "IAMLoginModule required;",
            },
            {},
            Credentials("AWS_MSK_IAM", region="eu-west-1"),
        ),
    ],
)
def test_credentials_are_found(
    properties: dict, environment: dict, found: Credentials | None
) -> None:
    host = "b-1.demo.x1.c2.kafka.eu-west-1.amazonaws.com"
    assert credentials(properties, environment, host) == found
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"sasl.password": SECRET}, "PLAIN needs a user and a password"),
        ({"sasl.mechanism": "GSSAPI", "sasl.password": SECRET}, "and no other mechanism"),
        ({"sasl.mechanism": "OAUTHBEARER", URL: ENDPOINT}, "OAUTHBEARER needs a token"),
        ({"sasl.mechanism": "OAUTHBEARER", URL: f"[{SECRET}"}, "OAUTHBEARER needs a token"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "set AWS_REGION"),
    ],
)
def test_what_is_missing_is_said_and_nothing_of_what_is_there(properties: dict, why: str) -> None:
    with pytest.raises(CredentialsError, match=why) as caught:
        credentials(properties, {}, "kafka.example")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("mechanism", "extra"), [("SCRAM-SHA-256", "tls"), ("AWS_MSK_IAM", "msk")])
def test_an_extra_that_is_missing_is_named(
    mechanism: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scramp", "aws_msk_iam_sasl_signer"):
        monkeypatch.setitem(sys.modules, module, None)
    given = {"sasl.mechanism": mechanism, "sasl.username": "a", "sasl.password": "b"}
    with pytest.raises(CredentialsError, match=rf"pip install 'kproxy-kafka\[{extra}\]'"):
        credentials(given, {"AWS_REGION": "x"})


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "--authenticate needs credentials: KPROXY_SASL_USERNAME and"),
        ({"KPROXY_SASL_USERNAME": SECRET}, "--authenticate: PLAIN needs a user and a password"),
    ],
)
def test_authenticate_takes_credentials(
    environment: dict[str, str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--bootstrap", "a", "--authenticate", "--no-record"]) == 2
    said = capsys.readouterr().err
    assert why in said and SECRET not in said
