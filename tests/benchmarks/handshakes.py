"""For how long handshakes hold up others: many clients come at once, beside one that is there.

    python -m tests.benchmarks.handshakes [--clients 1000] [--key ecdsa] [--before FOLDER]

One client asks again and again on a connection that is there, while a thousand others shake hands
at once and ask once, a hundred send a byte now and then, and a hundred send nothing. Its longest
wait counts. TLS is on both sides, so each newcomer is two handshakes. Those who come have a lower
priority than what is measured, because there are fewer cores than they could use: beside the
longest wait is what it was when nobody came. Needs go; HAProxy's figures stand beside, if it is
there.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import attrs
import trustme

from tests.bed import certificates
from tests.bed.certificates import Certificates
from tests.benchmarks.connections import open_files
from tests.benchmarks.proxies import LOAD, port, process, wait_for
from tests.benchmarks.tls import peers

SECONDS = 10
"""Those who come stay longer than this is measured: when they all leave, that takes time, too."""


def with_rsa(made: Certificates, folder: Path) -> Certificates:
    """The same with a certificate whose key is RSA of 2,048 bits, as most have."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(str(folder / "rsa-ca.pem"))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "rsa.pem"))
    return attrs.evolve(made, ca=folder / "rsa-ca.pem", broker=folder / "rsa.pem")


def waits(load: str, listen: int, made: Certificates, flood: list[str]) -> tuple[dict, dict]:
    """What the client that is there says of its waits, and what those who come say."""
    base = ["-addr", f"127.0.0.1:{listen}", "-tls", str(made.ca)]
    asking = [load, "client", *base, "-api", "metadata", "-secs", str(SECONDS)]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    with process(*asking, **pipes) as here:
        time.sleep(2)  # it counts from its second second on
        coming = subprocess.run(["nice", load, "flood", *base, *flood], check=False, **pipes)
        told = here.communicate()[0]
    return tuple(
        dict(word.split("=", 1) for word in text.split() if "=" in word)
        for text in (told, coming.stdout)
    )


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--key", default="rsa", choices=["rsa", "ecdsa"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=[], help="names of proxies")
    parser.add_argument("--before", type=Path, help="the working copy of an earlier kproxy")
    options = parser.parse_args()
    open_files(max(options.clients * 4, 12_000))  # the latter for HAProxy
    flood = f"-conns {options.clients} -slow 100 -silent 100 -secs 12".split()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = str(folder / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        made = certificates.make(folder / "certificates")
        made = with_rsa(made, folder) if options.key == "rsa" else made
        broker = port()
        with process(load, "server", "-addr", f"127.0.0.1:{broker}", "-tls", str(made.broker)):
            wait_for(broker)
            present = peers(made, broker, folder, options.before)
            for number in range(options.rounds):
                for peer, start in list(present.items())[:: -1 if number % 2 else 1]:
                    if options.peers and peer not in options.peers:
                        continue
                    with start(broker, folder) as (listen, _):
                        quiet, _ = waits(load, listen, made, ["-conns", "0"])
                        there, came = waits(load, listen, made, flood)
                    print(
                        f"{peer:8} {options.key}: held up for {float(there['maxus']) / 1e3:.1f} ms"
                        f" at most, p999 {float(there['p999us']) / 1e3:.1f} ms"
                        f" (nobody comes: {float(quiet['maxus']) / 1e3:.1f} ms);"
                        f" {came['conns']} served within {came['served']} s,"
                        f" {came['failed']} failed; after {came['thrown']} s {came['left']} of the"
                        " slow ones were left",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
