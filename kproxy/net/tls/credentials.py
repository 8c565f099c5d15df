"""kproxy's own credentials for the cluster: where they come from.

::

    properties of a client (sasl.…), KPROXY_SASL_… ─▶ Credentials ─▶ `logins`

Both dialects are read: Java's (`sasl.jaas.config`) and librdkafka's (`sasl.username`). The
environment goes before the file. No secret is in a `repr` or an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from kproxy.proxy.mechanisms import MECHANISMS, mechanism_of

ENVIRONMENT = {
    "KPROXY_SASL_MECHANISM": "sasl.mechanism",
    "KPROXY_SASL_USERNAME": "sasl.username",
    "KPROXY_SASL_PASSWORD": "sasl.password",
    "KPROXY_SASL_TOKEN_FILE": "token file",
    "KPROXY_SASL_TOKEN_COMMAND": "token command",
}
"""Environment variable → the property that it stands for."""
MSK_IAM = "AWS_MSK_IAM"
OAUTHBEARER = "OAUTHBEARER"
_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
_USERNAME = ("sasl.username", "username")
_PASSWORD = ("sasl.password", "password")
_ENDPOINT = ("sasl.oauthbearer.token.endpoint.url",)
_CLIENT_ID = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.id",
    "clientId",
)
_CLIENT_SECRET = (
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "clientSecret",
)
_SCOPE = ("sasl.oauthbearer.scope", "scope")
_EXTENSIONS = "sasl.oauthbearer.extensions"
_JAAS = "sasl.jaas.config"
PROPERTIES = frozenset(
    (*_MECHANISM, *_USERNAME, *_PASSWORD, *_ENDPOINT, *_CLIENT_ID, *_CLIENT_SECRET, *_SCOPE)
) | {_EXTENSIONS, _JAAS}
"""The properties that are read; those without a dot are options in `sasl.jaas.config`."""
_JAAS_OPTION = re.compile(
    r"""(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))"""
)
_MSK_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class CredentialsError(Exception):
    """Credentials that cannot be used; the text says what is missing, never what is there."""


@attrs.frozen
class Credentials:
    """How kproxy logs in: with a password, or with a token from one of four places."""

    mechanism: str
    username: str = attrs.field(default="", repr=False)
    """Of OAUTHBEARER with an endpoint: the client's id …"""
    password: str = attrs.field(default="", repr=False)
    """… and its secret."""
    token_file: Path | None = None
    token_command: str = attrs.field(default="", repr=False)
    endpoint: str = attrs.field(default="", repr=False)
    scope: str = ""
    region: str = ""
    """Of AWS."""
    extensions: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def by_token(self) -> bool:
        """True if a login takes a token, which has to be fetched."""
        return mechanism_of(self.mechanism).takes != "password"


def without_login(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for programs that are not to have kproxy's credentials."""
    return {name: value for name, value in environment.items() if name not in ENVIRONMENT}


def credentials(
    properties: Mapping[str, str], environment: Mapping[str, str], bootstrap_host: str = ""
) -> Credentials | None:
    """Return the credentials in the properties of a client and in the environment; None if there
    is nothing of them.

    Raises:
        CredentialsError: they are not complete, or of a mechanism that kproxy does not speak.
    """
    own = {key: environment[name] for name, key in ENVIRONMENT.items() if environment.get(name)}
    jaas = _jaas_options(properties.get(_JAAS, ""))
    values = {**jaas, **properties, **own}
    token_file, command = values.get("token file"), values.get("token command", "")
    mechanism = _first(values, _MECHANISM).upper()
    if mechanism != MSK_IAM and not values.keys() - set(_MECHANISM):
        return None
    mechanism = mechanism or (OAUTHBEARER if token_file or command else "PLAIN")
    username, password = _first(values, _USERNAME), _first(values, _PASSWORD)
    row = mechanism_of(mechanism)
    try:
        if row.module:
            import_module(row.module)
    except ImportError:
        why = f"{mechanism} needs pip install 'kproxy-kafka[{row.extra}]'"
        raise CredentialsError(why) from None
    if row.takes == "password":
        if not (username and password):
            what = "KPROXY_SASL_USERNAME and KPROXY_SASL_PASSWORD, sasl.username and sasl.password"
            raise CredentialsError(f"{mechanism} needs a user and a password: {what}, or {_JAAS}")
        return Credentials(mechanism, username, password)
    if mechanism == MSK_IAM:
        found = _MSK_REGION.search(bootstrap_host)
        region = environment.get("AWS_REGION") or (found[1] if found else "")
        if not region:
            raise CredentialsError(f"{MSK_IAM} needs the region of the cluster: set AWS_REGION")
        return Credentials(mechanism, region=region)
    if mechanism != OAUTHBEARER:
        spoken = ", ".join(name for name, each in MECHANISMS.items() if each.takes)
        raise CredentialsError(f"kproxy itself logs in with {spoken}, and no other mechanism")
    return _by_token(values, jaas, Path(token_file) if token_file else None, command)


def _by_token(
    values: Mapping[str, str], jaas: Mapping[str, str], file: Path | None, command: str
) -> Credentials:
    endpoint, client = _first(values, _ENDPOINT), _first(values, _CLIENT_ID)
    secret = _first(values, _CLIENT_SECRET)
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "file" and not file and not command:
        file = Path(parts.path)
    at_endpoint = parts.scheme in ("http", "https") and client and secret
    if not (file or command or at_endpoint):
        raise CredentialsError(
            "OAUTHBEARER needs a token: KPROXY_SASL_TOKEN_COMMAND, KPROXY_SASL_TOKEN_FILE, or"
            f" {_ENDPOINT[0]} (http, https or file) with the client's id and secret"
        )
    given = values.get(_EXTENSIONS, "")
    extensions = dict(each.strip().split("=", 1) for each in given.split(",") if "=" in each)
    named = {key: jaas[key] for key in jaas if key.startswith("extension_")}
    extensions |= {key.removeprefix("extension_"): value for key, value in named.items()}
    if file or command:
        endpoint = client = secret = ""
    return Credentials(
        OAUTHBEARER, client, secret, file, command, endpoint, _first(values, _SCOPE),
        extensions=extensions,
    )  # fmt: skip


def _jaas_options(text: str) -> dict[str, str]:
    """Return the options of a login module: `key="value"`, or in other quotes, or in none."""
    found = {}
    for name, *quoted, bare in _JAAS_OPTION.findall(text):
        found[name] = re.sub(r"\\(.)", r"\1", "".join(quoted)) or bare
    return found


def _first(values: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((values[key] for key in keys if values.get(key)), "")
