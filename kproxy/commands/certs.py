"""`kproxy certs`: the CA, the files and the settings that clients need for TLS to kproxy."""

from __future__ import annotations

import argparse
from pathlib import Path

from kproxy.commands.options import declare

_HOW_TO = """\
kproxy run --listen-tls auto … uses the CA of {authority}

Give your client bootstrap.servers as kproxy run prints it, and these lines. It keeps its mechanism
and credentials, and security.protocol, which is SASL_SSL, or SSL where it does not log in.

Java             ssl.truststore.location={folder}/truststore.p12
                 ssl.truststore.type=PKCS12
                 ssl.truststore.password={password}
librdkafka       ssl.ca.location={folder}/ca.pem
Go (franz-go)    ca, _ := os.ReadFile("{folder}/ca.pem"); pool := x509.NewCertPool()
                 pool.AppendCertsFromPEM(ca)
                 kgo.DialTLSConfig(&tls.Config{{RootCAs: pool}})
Node (KafkaJS)   ssl: {{ ca: [fs.readFileSync("{folder}/ca.pem")] }}
aiokafka         ssl_context=ssl.create_default_context(cafile="{folder}/ca.pem")
kafka-python     ssl_cafile="{folder}/ca.pem"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Make kproxy's own CA once, and write what clients need to trust it. Whoever has its"
        " key can read what these clients send: it is for development and tests."
    )
    text = "--out DIR = certs  where to write ca.pem and truststore.p12 (default %(default)s)"
    declare(parser.add_argument, text, out=Path)


def run(options: argparse.Namespace) -> int:
    """Write the files and print the settings of clients; return the exit code."""
    from kproxy.net.tls.authority import TRUSTSTORE_PASSWORD, authority_file, write_for_clients

    written = write_for_clients(options.out)
    print("wrote", " ".join(map(str, written)))
    print(
        _HOW_TO.format(
            authority=authority_file(),
            folder=options.out.resolve(),
            password=TRUSTSTORE_PASSWORD,
        ),
        end="",
    )
    return 0
