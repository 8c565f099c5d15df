"""Java in the test bed: jars from Maven, and how a JVM is started.

`jars` resolves artifacts with all they need into the cache, through Maven and its settings.
`FLAGS` make short-lived JVMs start quickly and stay small: two cores run everything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.bed import needs

FLAGS = [
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
]

# Kafka 4 names no logging backend; this one needs no configuration file.
LOGGER = "org.slf4j:slf4j-simple:1.7.36"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kproxy</groupId><artifactId>testbed</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def jars(name: str, *artifacts: str, alone: bool = False) -> Path:
    """A folder with the artifacts ("group:artifact:version") and, unless they are wanted `alone`,
    their runtime dependencies."""
    java = needs.program("java")
    mvn = needs.program("mvn")
    assert java

    def resolve(folder: Path) -> None:
        dependencies = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        goal = [
            "dependency:copy-dependencies",
            "-DoutputDirectory=.",
            "-DincludeScope=runtime",
            f"-DexcludeTransitive={str(alone).lower()}",
        ]
        needs.fetched([mvn, "-q", "-B", *goal], name, folder)

    return needs.cached(name, resolve)


def kafka_jars(version: str) -> Path:
    """Broker and console tools of one Kafka version."""
    wanted = [f"org.apache.kafka:{each}:{version}" for each in ("kafka_2.13", "kafka-tools")]
    return jars(f"kafka-{version}", *wanted, *([] if version.startswith("3.") else [LOGGER]))


def client_jars(version: str) -> Path:
    """The Java client of one version."""
    return jars(f"clients-{version}", f"org.apache.kafka:kafka-clients:{version}", LOGGER)


def streams_jars() -> Path:
    """Kafka Streams."""
    return jars("streams-4.3.1", "org.apache.kafka:kafka-streams:4.3.1", LOGGER)


def connect_jars() -> Path:
    """A worker of Kafka Connect, with its connectors for files."""
    wanted = [f"org.apache.kafka:connect-{each}:4.3.1" for each in ("runtime", "file")]
    return jars("connect-4.3.1", *wanted, LOGGER)


def spring_jars() -> Path:
    """Spring Boot with Kafka and JSON."""
    wanted = [
        f"org.springframework.boot:spring-boot-starter-{each}:4.0.0"
        for each in ("kafka", "jackson")
    ]
    return jars("spring-boot-4.0.0", *wanted)


def definition_jars() -> list[Path]:
    """The jars that Kafka's definitions are taken from."""
    names = [f"kafka-{each}-coordinator" for each in ("group", "transaction", "share")]
    wanted = [f"org.apache.kafka:{each}:4.4.0" for each in names]
    newest = jars("coordinators-4.4.0", *wanted, alone=True)
    older = [kafka_jars("3.9.2") / f"{each}-3.9.2.jar" for each in names[:2]]
    clients = [client_jars(each) / f"kafka-clients-{each}.jar" for each in ("4.4.0", "3.9.2")]
    return [*clients, *sorted(newest.glob("*.jar")), *older]


def compiled(source: Path, against: Path) -> Path:
    """A folder with the classes of one source file, compiled against a folder of jars."""
    javac = needs.program("javac")
    digest = hashlib.sha256(source.read_bytes() + against.name.encode()).hexdigest()[:16]

    def compile_(folder: Path) -> None:
        # -Xlint:none: a method deprecated in the newest client is still what older ones have
        command = [
            javac,
            "-nowarn",
            "-Xlint:none",
            "-cp",
            f"{against}/*",
            "-d",
            str(folder),
        ]
        needs.run_or_fail([*command, str(source)])

    return needs.cached(f"classes-{digest}", compile_)


def serialiser_jars() -> Path:
    """Apicurio's serialiser of Avro, which frames as Confluent's does; that one is not to be had
    from Maven's own repository."""
    serialiser = "io.apicurio:apicurio-registry-avro-serde-kafka:3.1.2"
    return jars("serialiser", serialiser, LOGGER)


def java(
    classpath: list[Path], main: str, *arguments: str, heap: str = "128m", level: str = "warn"
) -> list[str]:
    """The command that runs class `main`; folders on the class path stand for their jars too."""
    entries = [entry for folder in classpath for entry in (str(folder), f"{folder}/*")]
    quiet = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
    start = [needs.program("java"), f"-Xmx{heap}", *FLAGS, quiet]
    return [*start, "-cp", ":".join(entries), main, *arguments]
