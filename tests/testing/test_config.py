"""Recording at a real broker that speaks TLS, with the properties of a client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy import demo
from kproxy.net.tls.settings import TlsError
from kproxy.testing import record, replay
from tests.bed import certificates, replays
from tests.testing.plugin import DEMO, run

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """All certificates."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def properties(made: certificates.Certificates, tmp_path: Path) -> Iterator[Path]:
    """The properties of a client of a broker that wants TLS and a certificate."""
    wants = ("--listen-tls", f"{made.broker},{made.broker}", "--listen-tls-clients", str(made.ca))
    with replays.running(DEMO, tmp_path, "--visible", "causal", *wants) as broker:
        path = tmp_path / "client.properties"
        path.write_text(
            f"bootstrap.servers={broker.bootstrap}\nsecurity.protocol=SSL\n"
            f"ssl.ca.location={made.ca}\nssl.certificate.location={made.client}\n"
            f"ssl.key.location={made.client}\n"
        )
        yield path


def test_record_takes_the_properties_of_a_client(properties: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.mcap"
    with record(None, path, config=properties) as broker:
        assert demo.produce(broker.bootstrap) == demo.RECORDS
    with replay(path) as broker:
        assert demo.produce(broker.bootstrap) == demo.RECORDS


def test_record_says_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\nssl.ca.location=none.pem\n")
    with pytest.raises(TlsError, match=r"ssl\.ca\.location names none\.pem, which is not there"):
        record("a:1", config=path).begin()
    path.write_text("acks=all\n")
    with pytest.raises(ValueError, match=r"client\.properties has no bootstrap\.servers"):
        record(None, config=path).begin()
    with pytest.raises(ValueError, match="give bootstrap, HOST:PORT, or config"):
        record(None)


@pytest.mark.parametrize("by_option", [True, False])
def test_the_fixture_takes_them(
    by_option: bool, properties: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_app="""
        from kproxy import demo

        def test_it_works(kproxy):
            assert demo.produce(kproxy.bootstrap) == demo.RECORDS
        """
    )
    if not by_option:
        pytester.makeini(f"[pytest]\nkproxy_config = {properties}\n")
    typed: tuple[str, ...] = ()
    if by_option:  # from where pytest is started, wherever its root is
        root = f"--rootdir={pytester.mkdir('root')}"
        typed = (f"--kproxy-config={os.path.relpath(properties, pytester.path)}", root)
    run(pytester, "--kproxy-mode=once", *typed).assert_outcomes(passed=1)
    again = run(pytester, *typed[1:])
    again.assert_outcomes(passed=1)  # from now on the recording is the broker
    properties.write_text("security.protocol=TLS\n")
    found = run(pytester, "--kproxy-mode=rewrite", *typed)
    found.stdout.fnmatch_lines(["*client.properties: security.protocol is one of *"])
