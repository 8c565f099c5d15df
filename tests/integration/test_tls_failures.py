"""Clients whose TLS or login fails: they see what they would see from Kafka, and kproxy says why.

kproxy's log says why in one line, and so does `kproxy why`. Where all is tested (see
`tests.versions`), each failure is tried at the listener of the broker that has the same fault, too,
and the client's own words must be the same.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import attrs
import pytest

from kproxy.view.why import show_why
from tests.bed import programs, proxies, ways
from tests.bed.certificates import Certificates
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka, unsecured_token
from tests.bed.programs import Client, Login
from tests.bed.ways import Speaks
from tests.integration.test_tls import CLIENTS, client_marks
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker, pytest.mark.java]


@attrs.frozen
class Failure:
    """A client that fails, at a listener of Kafka and at kproxy."""

    listener: str
    """Of the broker, for the client that goes there itself."""
    says: str
    """A pattern of the reason that kproxy says."""
    speaks: str = "ca"
    """What the client trusts: the name of a certificate; empty: it speaks plaintext."""
    shows: str = ""
    """The certificate that kproxy shows to clients; empty: it speaks plaintext."""
    login: Login | None = None
    old_ciphers: bool = False
    clients_show: bool = False
    """Clients have to show a certificate."""


DISTRUST = "it does not (trust|accept) the certificate|it closed the connection|it says that the"
FAILURES = {
    "wrong-ca": Failure("SSL", DISTRUST, "other_ca", "broker"),
    "expired": Failure("EXPIRED", DISTRUST, shows="expired"),
    "not-yet-valid": Failure("EARLY", DISTRUST, shows="early"),
    "wrong-name": Failure("ELSEWHERE", DISTRUST, shows="elsewhere"),
    "no-common-cipher": Failure(
        "SSL", "in common|no suitable signature algorithm", shows="broker", old_ciphers=True
    ),
    "no-certificate": Failure(
        "MTLS", "it shows no certificate, and one is required", shows="broker", clients_show=True
    ),
    "plaintext-to-tls": Failure("SSL", "it does not speak TLS", "", "broker"),
    "tls-to-plaintext": Failure("PLAINTEXT", "the client speaks TLS to a plaintext port"),
    "wrong-password": Failure(
        "SASL_SSL",
        "the broker refuses the login with PLAIN .*: user or password is wrong",
        shows="broker",
        login=Login("PLAIN", PLAIN_USER[0], "not-the-password-of-alice"),
    ),
    "wrong-password-scram": Failure(
        "SASL_SSL",
        "the broker refuses the login with SCRAM-SHA-256 .*: user or password is wrong",
        shows="broker",
        login=Login("SCRAM-SHA-256", SCRAM_USER[0], "not-the-password-of-bob"),
    ),
    "expired-token": Failure(
        "SASL_SSL",
        "the broker refuses the login with OAUTHBEARER .*: the client's token has expired",
        shows="broker",
        login=Login("OAUTHBEARER", "carol", unsecured_token(-3600)),
    ),
    "no-such-mechanism": Failure(
        "SASL_PLAINTEXT",
        "the broker does not offer OAUTHBEARER, only PLAIN, SCRAM",
        "",
        login=Login("OAUTHBEARER", "carol", unsecured_token(3600)),
    ),
}


def options(failure: Failure, issued: Certificates) -> list[str]:
    """What kproxy is told."""
    found = []
    if failure.login and failure.listener == "SASL_SSL":
        found += ways.to_brokers("SASL_SSL", issued)
    if failure.shows:
        found += ways.to_clients(getattr(issued, failure.shows))
    if failure.clients_show:
        found += ["--listen-tls-clients", str(issued.ca)]
    return found


_SAME = (
    (r"\(after \d+ms[^)]*\)", ""),
    (r"\d+", "N"),
    # librdkafka: in which of its steps the handshake fails is a matter of time
    (r"SSL handshake failed: |: broker certificate could not be verified.*", ""),
    # OpenSSL and Java name a missing certificate differently in their alerts
    (r"(ssl/tls|tlsvN) alert (bad certificate|certificate required)", "alert"),
    (r"error:\w+:", ""),
)
"""Patterns of what may differ in a client's words, and what stands for it."""


def plain(words: str) -> str:
    """A client's words without what may differ."""
    for pattern, instead in _SAME:
        words = re.sub(pattern, instead, words)
    return words.strip()


@pytest.mark.parametrize(
    ("client", "name"),
    [
        pytest.param(client, name, id=f"{client.name}-{name}", marks=client_marks(client))
        for client, name in some(
            [(client, name) for client in CLIENTS for name in FAILURES],
            [(CLIENTS[0], name) for name in FAILURES],
        )
    ],
)
def test_a_client_that_fails_sees_what_it_would_see_from_kafka(
    client: Client, name: str, kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    failure = FAILURES[name]
    speaks = None
    if failure.speaks:
        speaks = Speaks(getattr(issued, failure.speaks), old_ciphers=failure.old_ciphers)
    told = ways.settings(client, speaks, failure.login)

    def seen(bootstrap: str) -> str:
        results = programs.work(client, bootstrap, prefix, ("connect",), settings=told)
        return plain(results["connect"]["saw"] or "it works")

    behind = failure.listener if failure.login else "PLAINTEXT"
    with proxies.running(
        kafka_431.address_of(behind), tmp_path, *options(failure, issued)
    ) as proxy:
        saw = seen(proxy.bootstrap)
        line = proxy.says(f"connection .*({failure.says})")
    assert saw != "it works"
    found = re.search(r"connection (\d+) ", line)
    assert found
    story = io.StringIO()
    assert show_why([proxy.recording], "connection", found[1], story)
    assert re.search(failure.says, story.getvalue()), story.getvalue()
    if ALL:
        assert saw == seen(kafka_431.address_of(failure.listener))
