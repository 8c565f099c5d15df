"""kproxy's own credentials, from properties in both dialects, and from the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import javaproperties
import pytest

from kproxy.cli import main
from kproxy.net.tls.credentials import Credentials, CredentialsError, credentials

SECRET = "secret-77ab"
URL = "sasl.oauthbearer.token.endpoint.url"
ENDPOINT = f"https://idp.example/token?{SECRET}"


ID = "sasl.oauthbearer.client"
OAUTH = "sasl.mechanism=OAUTHBEARER\n" + f"{URL}={ENDPOINT}\n"
ACCOUNT = Credentials("OAUTHBEARER", "me", SECRET, endpoint=ENDPOINT, scope="kafka")
FOUND = [
    ("", {}, None),
    ("sasl.mechanism=SCRAM-SHA-512", {}, None),  # as AWS describes it for SCRAM
    (
        f"sasl.mechanism=PLAIN\nsasl.jaas.config=X required username=K password='a\\'{SECRET}';",
        {},
        Credentials("PLAIN", "K", f"a'{SECRET}"),
    ),
    (
        (
            "sasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config=Scram required username="a=b" password="{SECRET};";'
        ),
        {},
        Credentials("SCRAM-SHA-256", "a=b", f"{SECRET};"),
    ),
    (
        f"sasl.mechanisms=SCRAM-SHA-512\nsasl.username=bob\nsasl.password={SECRET}",
        {"PASSWORD": "newer"},
        Credentials("SCRAM-SHA-512", "bob", "newer"),
    ),
    ("", {"USERNAME": "bob", "PASSWORD": SECRET}, Credentials("PLAIN", "bob", SECRET)),
    (
        (
            f"{OAUTH}sasl.jaas.config=OAuth required clientId='me' clientSecret='{SECRET}'"
            " scope=kafka extension_logicalCluster=l;"
        ),
        {},
        attrs.evolve(ACCOUNT, extensions={"logicalCluster": "l"}),
    ),
    (
        (
            f"{OAUTH}{ID}.credentials.client.id=me\n{ID}.credentials.client.secret={SECRET}\n"
            "sasl.oauthbearer.scope=kafka"
        ),
        {},
        ACCOUNT,
    ),
    (
        (
            f"{OAUTH}{ID}.id=me\n{ID}.secret={SECRET}\nsasl.oauthbearer.scope=kafka\n"
            "sasl.oauthbearer.extensions=logicalCluster=l,identityPoolId=p"
        ),
        {},
        attrs.evolve(ACCOUNT, extensions={"logicalCluster": "l", "identityPoolId": "p"}),
    ),
    (
        f"sasl.mechanism=OAUTHBEARER\n{URL}=file:///run/token",
        {},
        Credentials("OAUTHBEARER", token_file=Path("/run/token")),
    ),
    ("", {"TOKEN_COMMAND": "print it"}, Credentials("OAUTHBEARER", token_command="print it")),
    ("", {"TOKEN_FILE": "t"}, Credentials("OAUTHBEARER", token_file=Path("t"))),
    ("sasl.mechanism=AWS_MSK_IAM", {}, Credentials("AWS_MSK_IAM", region="eu-west-1")),
]


@pytest.mark.parametrize(("text", "environment", "found"), FOUND)
def test_credentials_are_found(text: str, environment: dict, found: Credentials | None) -> None:
    properties = javaproperties.loads(text.replace("\\", "\\\\"))
    environment = {f"KPROXY_SASL_{name}": value for name, value in environment.items()}
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
