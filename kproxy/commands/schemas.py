"""The options of where schemas come from.

    --schema-registry, --schemas ─▶ Source, Source …

Credentials come from environment variables, which other users cannot see.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kproxy.commands.options import UsageError, declare

if TYPE_CHECKING:
    from kproxy.net.registry.source import Access, Source

AUTH, TOKEN = "KPROXY_SCHEMA_REGISTRY_AUTH", "KPROXY_SCHEMA_REGISTRY_TOKEN"
PASSWORD = "KPROXY_SCHEMA_REGISTRY_CA_PASSWORD"
_WHERE = "the URL of a schema registry (several of the same one: with commas), or a folder of files"


def add_schema_options(add: Callable[..., Any], option: str, what: str) -> None:
    """Add an option for sources, and that of the registry's authorities."""
    declare(
        add,
        f"""
        {option} URL|FOLDER …  {what}: {_WHERE} (kproxy help schemas); may be given more than once.
            Credentials are in {AUTH} (NAME:PASSWORD) or {TOKEN}
        --schema-registry-ca FILE  who signs the certificate of the registry: PEM, PKCS12 or JKS
            (default: the system's); a password is in {PASSWORD}
        """,
    )


def schema_access(options: argparse.Namespace) -> Access:
    """Return what registries want to know of who asks."""
    from kproxy.net.registry.source import Access
    from kproxy.net.tls.settings import Trust

    ca = options.schema_registry_ca
    trust = Trust(ca, os.environ.get(PASSWORD)) if ca else None
    return Access(os.environ.get(AUTH), os.environ.get(TOKEN), trust)


def schema_sources(given: Sequence[str], option: str, options: argparse.Namespace) -> list[Source]:
    """Return the sources that are given.

    Raises:
        UsageError: one cannot be.
    """
    from kproxy.net.registry.client import sources
    from kproxy.net.registry.source import RegistryError
    from kproxy.net.tls.settings import TlsError

    if options.schema_registry_ca and not given:
        raise UsageError(f"--schema-registry-ca needs {option}")
    try:
        return sources(given, schema_access(options))
    except (RegistryError, TlsError) as error:
        raise UsageError(f"{option}: {error}") from error
