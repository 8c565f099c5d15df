"""Clients whose TLS or login fails: they see what they would see from Kafka, and kproxy says why.

kproxy's log says why in one line, and so does `kproxy why`. Where all is tested (see
`tests.versions`), each failure is tried at the listener of the broker that has the same fault, too,
and the client's own words must be the same.
"""

from __future__ import annotations

import io
import re
import socket
from pathlib import Path

import attrs
import pytest

from kproxy.look.why.stories import show_why
from tests.bed import programs, proxies, ways
from tests.bed.certificates import Certificates
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka, unsecured_token
from tests.bed.programs import Client, Login
from tests.bed.proxies import Proxy
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
        "the broker refuses the login with PLAIN.*: user or password is wrong",
        shows="broker",
        login=Login("PLAIN", PLAIN_USER[0], "not-the-password-of-alice"),
    ),
    "wrong-password-scram": Failure(
        "SASL_SSL",
        "the broker refuses the login with SCRAM-SHA-256.*: user or password is wrong",
        shows="broker",
        login=Login("SCRAM-SHA-256", SCRAM_USER[0], "not-the-password-of-bob"),
    ),
    "expired-token": Failure(
        "SASL_SSL",
        "the broker refuses the login with OAUTHBEARER.*: the token has expired",
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


TRIES = 5
"""A broker refuses a login late: on a busy machine a client may have given up before."""
_SAME = (
    (r"\(after \d+ms[^)]*\)", ""),
    (r"\d+", "N"),
    # librdkafka: in which of its steps the handshake fails is a matter of time
    (r"SSL handshake failed: |: broker certificate could not be verified.*", ""),
    # librdkafka: whether it says what it suspects, too
    (r": connecting to a PLAINTEXT broker listener\?", ""),
    # OpenSSL and Java name a missing certificate differently in their alerts
    (r"(ssl/tls|tlsvN|sslvN) alert (bad certificate|certificate required)", "alert"),
    (r"error: ?\w+:", ""),
    # Java takes Kafka's alert for a frame of 352 MB, and has no room; kproxy sends no alert
    ("The AdminClient thread has exited", "Timed out waiting for a node assignment"),
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
        pattern = f"connection .*({failure.says})"
        for _ in range(TRIES):
            saw = seen(proxy.bootstrap)
            assert saw != "it works"
            if re.search(pattern, proxy.log):
                break
        line = proxy.says(pattern)
    assert_why(proxy, line, failure.says)
    if ALL:
        assert saw == seen(kafka_431.address_of(failure.listener))


def assert_why(proxy: Proxy, line: str, says: str) -> None:
    """The story of the connection in a line of the log has the same reason."""
    number = re.search(r"connection (\d+) ", line)
    story = io.StringIO()
    assert show_why([proxy.recording], "connection", number[1] if number else "1", story)
    assert re.search(says, story.getvalue()), story.getvalue()


def test_a_client_that_speaks_plaintext_to_tls_sees_the_end_and_no_reset(
    issued: Certificates, tmp_path: Path
) -> None:
    """Though there are bytes of it that nobody has read."""
    listens = ways.to_clients(issued.broker)
    with proxies.running("127.0.0.1:9", tmp_path, *listens) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
            client.sendall(b"\0\0\0\x64" + bytes(100))
            assert client.recv(100)[:1] in (b"", b"\x15")  # an alert, if anything


BROKERS = {
    "wrong-ca": ("SSL", "other_ca", "its certificate is refused: unable to get local issuer"),
    "expired": ("EXPIRED", "ca", "its certificate is refused: certificate has expired"),
    "not-yet-valid": ("EARLY", "ca", "its certificate is refused: certificate is not yet valid"),
    "wrong-name": ("ELSEWHERE", "ca", "certificate is not valid for '127.0.0.1'"),
    "no-common-cipher": ("OLD_CIPHERS", "ca", "it refuses: no cipher in common"),
    "no-certificate": ("MTLS", "ca", "requires (a certificate|one)"),
    "plaintext-to-tls": ("SSL", "", "speaks TLS, .* run it with --broker-tls"),
    "tls-to-plaintext": ("PLAINTEXT", "ca", "TLS failed: it "),
    "no-login": ("SASL_SSL", "ca", "if it wants SASL, set security.protocol"),
}
"""Listener of the broker, the authority that kproxy trusts (empty: it speaks plaintext), and what
it says."""


@pytest.mark.parametrize("name", some(list(BROKERS), ["no-common-cipher"]))
def test_a_broker_that_kproxy_fails_with_is_explained(
    name: str, kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    listener, trusts, says = BROKERS[name]
    options = ["--broker-tls-ca", str(getattr(issued, trusts))] if trusts else []
    with proxies.running(kafka_431.address_of(listener), tmp_path, *options) as proxy:
        done = programs.work(CLIENTS[0], proxy.bootstrap, prefix, ("connect",))
        assert done["connect"]["saw"]
        line = proxy.says(says)
    assert_why(proxy, line, says)
