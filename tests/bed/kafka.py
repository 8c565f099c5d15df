"""An Apache Kafka broker from Maven artifacts: one process, KRaft, combined mode, loopback only.

It has two client listeners, PLAINTEXT and SASL_PLAINTEXT (PLAIN and SCRAM); with certificates also
those of `TLS_LISTENERS`. It can be stopped, killed and started again, on the same ports or on
others, with the same node id and the same data. An authorizer is on, so that ACL requests work, and
lets everybody do everything.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.bed import jvm, needs, shared
from tests.bed.certificates import Certificates
from tests.bed.waiting import accepts, free_ports, until

VERSIONS = ("4.3.1", "3.9.2")

PLAIN_USER = ("alice", "alice-plain-password-7Qx")
SCRAM_USER = ("bob", "bob-scram-password-9Zk")

OAUTH_USER = "carol"

_CLUSTER_IDS = dict(
    zip(VERSIONS, ("MkU3OEVBNTcwNTJENDM2Qg", "OTk5OEVBNTcwNTJENDM2Qg"), strict=True)
)

_PROPERTIES = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters={voter}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}{controller_listener}\\
{tls_listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}\\
{tls_listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,\\
 SASL_PLAINTEXT:SASL_PLAINTEXT{tls_protocols}
log.dirs={folder}/data
# everything on one broker, and light
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.enable=false
auto.create.topics.enable=true
# a killed broker may register again as soon as its session has run out
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
# groups form at once, by the classic protocol and by KIP-848
group.initial.rebalance.delay.ms=0
group.consumer.heartbeat.interval.ms=500
group.consumer.min.heartbeat.interval.ms=500
# accounts
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
{logins}
delegation.token.secret.key=the-broker-signs-tokens-with-this
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS;User:{plain_user};User:{scram_user}
"""

_LOGIN = (
    "listener.name.{}.{}.sasl.jaas.config="
    "org.apache.kafka.common.security.{}LoginModule required{};"
)
_MODULES = {
    "plain": ("plain.Plain", ' user_{}="{}"'.format(*PLAIN_USER)),
    "scram-sha-256": ("scram.Scram", ""),
    "scram-sha-512": ("scram.Scram", ""),
    "oauthbearer": ("oauthbearer.OAuthBearer", ' unsecuredLoginStringClaim_sub="broker"'),
}
"""Mechanism → its login module and the options of that. The unsecured tokens of Kafka are the
default of OAUTHBEARER."""

_TLS = """\
ssl.keystore.type=PEM
ssl.keystore.location={0.broker}
ssl.truststore.type=PEM
ssl.truststore.location={0.ca}
listener.name.mtls.ssl.client.auth=required
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.reauth.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.reauth.connections.max.reauth.ms={1}
listener.name.old_ciphers.ssl.enabled.protocols=TLSv1.2
listener.name.old_ciphers.ssl.cipher.suites=TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
listener.name.expired.ssl.keystore.location={0.expired}
listener.name.early.ssl.keystore.location={0.early}
listener.name.elsewhere.ssl.keystore.location={0.elsewhere}
"""
TLS_LISTENERS = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_SSL": "SASL_SSL",
    "REAUTH": "SASL_SSL",
    "OLD_CIPHERS": "SSL",
    "EXPIRED": "SSL",
    "EARLY": "SSL",
    "ELSEWHERE": "SSL",
}
"""Listener → its protocol. MTLS wants certificates, a session of REAUTH lasts `SESSION_SECONDS`,
the last three have certificates of that kind."""
SESSION_SECONDS = 2

_LOG4J = """\
log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""


@attrs.define(eq=False)
class Kafka:
    """A broker's process and what it needs to be started again."""

    version: str
    folder: Path
    """Its properties, data and log file."""
    node_id: int = 1
    port: int = 0
    sasl_port: int = 0
    process: subprocess.Popen | None = None
    controller: Kafka | None = None
    """The one whose cluster it joins as a broker; None: it is a cluster by itself."""
    controller_port: int = 0
    certificates: Certificates | None = None
    """With them it has `TLS_LISTENERS`, too."""
    tls_ports: tuple[int, ...] = ()

    @property
    def address(self) -> str:
        """HOST:PORT of the PLAINTEXT listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        """HOST:PORT of the SASL_PLAINTEXT listener."""
        return f"127.0.0.1:{self.sasl_port}"

    def start(self, port: int | None = None) -> None:
        """Start it and wait until it listens; the first time the data folder is formatted.

        With a `port` it comes back there, as the same node with the same data.
        """
        assert self.process is None, "it runs already"
        first = not (self.folder / "server.properties").exists()
        if port is not None or self.port == 0:
            others = free_ports(2)
            self.port, self.sasl_port = port or others[0], others[1]
        self._configure()
        if first:
            self._format()
        with (self.folder / "broker.log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self.folder / "server.properties"))
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(self._listens, f"Kafka {self.version} listens on {self.address}", 60)

    def stop(self) -> None:
        """Shut it down in order; after 15 s by force."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(lambda process: process.kill())

    def _end(self, how) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _listens(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            tail = (self.folder / "broker.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"Kafka {self.version} ended while starting: {tail}")
        return accepts(self.port) and accepts(self.sasl_port)

    def _configure(self) -> None:
        (self.controller_port,) = free_ports(1)
        controller = self.controller or self
        listener = f",CONTROLLER://127.0.0.1:{self.controller_port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j.properties").write_text(_LOG4J)
        text = _PROPERTIES.format(
            node_id=self.node_id,
            port=self.port,
            sasl_port=self.sasl_port,
            roles="broker" if self.controller else "broker,controller",
            voter=f"{controller.node_id}@127.0.0.1:{controller.controller_port}",
            controller_listener="" if self.controller else listener,
            tls_listeners=self._tls_listeners(),
            tls_protocols="".join(f",{name}:{kind}" for name, kind in TLS_LISTENERS.items()),
            folder=self.folder,
            logins=_logins("sasl_plaintext"),
            plain_user=PLAIN_USER[0],
            scram_user=SCRAM_USER[0],
        )
        if self.certificates:
            text += _TLS.format(self.certificates, SESSION_SECONDS * 1000)
            text += f"{_logins('sasl_ssl')}\n{_logins('reauth')}\n"
        if self.version.startswith("3."):  # from 4.0 on this is the default
            text += "group.coordinator.rebalance.protocols=classic,consumer\n"
        (self.folder / "server.properties").write_text(text)

    def address_of(self, listener: str) -> str:
        """HOST:PORT of a listener."""
        names = ("PLAINTEXT", "SASL_PLAINTEXT", *TLS_LISTENERS)
        ports = self.port, self.sasl_port, *self.tls_ports
        return f"127.0.0.1:{ports[names.index(listener)]}"

    def _tls_listeners(self) -> str:
        if self.certificates is None:
            return ""
        self.tls_ports = self.tls_ports or tuple(free_ports(len(TLS_LISTENERS)))
        return "".join(f",{name}://{self.address_of(name)}" for name in TLS_LISTENERS)

    def _format(self) -> None:
        user, password = SCRAM_USER
        tool = [
            "format",
            "-t",
            _CLUSTER_IDS[self.version],
            "-c",
            str(self.folder / "server.properties"),
        ]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            tool += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        needs.run_or_fail(self._java("kafka.tools.StorageTool", *tool))

    def _java(self, main: str, *arguments: str) -> list[str]:
        command = jvm.java([jvm.kafka_jars(self.version)], main, *arguments, heap="400m")
        if self.version.startswith("3."):
            command.insert(1, f"-Dlog4j.configuration=file:{self.folder}/log4j.properties")
        return command


def unsecured_token(seconds: float) -> str:
    """A token of OAUTH_USER that nobody signed (RFC 7515, A.5), and that expires so much later."""
    now = int(time.time())
    claims = {"sub": OAUTH_USER, "iat": now - 7200, "exp": now + int(seconds)}
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    return "".join(base64.urlsafe_b64encode(each).decode().rstrip("=") + "." for each in parts)


def _logins(listener: str) -> str:
    """The properties of a listener's mechanisms."""
    lines = [_LOGIN.format(listener, name, *module) for name, module in _MODULES.items()]
    return "\n".join(lines)


def started(version: str, folder: Path, certificates: Certificates | None = None) -> Kafka:
    """A broker of `version` that outlives this process, until the run of tests ends."""
    broker = Kafka(version=version, folder=folder, certificates=certificates)
    broker.start()
    assert broker.process
    shared.kill_at_the_end(broker.process.pid)
    broker.process.returncode = 0  # nobody here waits for it
    return attrs.evolve(broker, process=None)


@contextlib.contextmanager
def running(
    version: str, folder: Path, certificates: Certificates | None = None
) -> Iterator[Kafka]:
    """A broker of `version` that is stopped at the end."""
    broker = Kafka(version=version, folder=folder, certificates=certificates)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()  # its data go away with the folder: no need to wait for an orderly end
