"""Schemas from a registry, by the HTTP routes that Confluent's has and others speak as well.

::

    GET /schemas/ids/17            ─▶ definition, kind, references, perhaps the GUID
    GET /schemas/guids/GUID        ─▶ the same
    GET /schemas/ids/17/versions   ─▶ subject and version
    GET /subjects/S/versions/3     ─▶ what it refers to, and what that refers to …

Of Protobuf a registry is asked for its descriptors (`format=serialized`); one that has only the
text gives that, which is compiled (`proto`).

A folder of files is as good: `.avsc` (Avro), `.proto` (Protobuf, which may import others of it),
`.json` (JSON Schema), named for what they are of::

    17.avsc  17-order.avsc      the schema of id 17; a GUID instead of the number is as good
    orders-value.avsc           of values on the topic orders whose id no file has; -key: of keys

Invariants: what a registry sends is not trusted. Its answers, references and time are bounded, and
it leads to no other host. Credentials are in a header, and never in a message.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from kproxy.exchange.schema_ids import SchemaUse
from kproxy.net.registry import proto
from kproxy.net.registry.source import SCHEMA_BYTES_MAX, Access, FoundSchema, RegistryError, Source
from kproxy.net.tls.stores import load_trust
from kproxy.printable import printable
from kproxy.wire.payloads.schemas import Schema, SchemaId

TIMEOUT_SECONDS = 5.0
"""The longest wait for a connection, or for more of an answer; an answer may take twice that."""
REFERENCES_MAX = 100
DEPTH_MAX = 20
CREDENTIALS = "KPROXY_SCHEMA_REGISTRY_AUTH"
"""The environment variable of NAME:PASSWORD."""
TOKEN = "KPROXY_SCHEMA_REGISTRY_TOKEN"
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_HEAD_BYTES_MAX = 64 << 10
"""The room for what stands before and between the data of an answer."""
_SAID_CHARS_MAX = 300
"""Characters of an error that a registry fills with its own."""


def sources(given: Sequence[str], access: Access) -> list[Source]:
    """Return the sources that a command is given: URLs of registries, and folders.

    Raises: RegistryError, when one cannot be; TlsError, when the authorities cannot be used.
    """
    return [
        Registry(each.split(","), access) if "://" in each else Folder(Path(each)) for each in given
    ]


class Registry:
    """A registry behind one URL, or behind several, tried in turn."""

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        """Ask at these URLs.

        Raises: RegistryError, when one is no URL of a registry; TlsError, when the authorities
        cannot be used.
        """
        if any("@" in url for url in urls):  # a comma in the password may have parted them
            what = "the URL of a registry has no password"
            raise RegistryError(f"{what}: set {CREDENTIALS} instead")
        self._urls = [_checked(url.strip()) for url in urls]
        self._headers = {"Accept": _ACCEPT, "User-Agent": "kproxy"} | _authorization(access)
        context = ssl.create_default_context()
        if access.trust is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_trust(context, access.trust)
        self._opener = urllib.request.build_opener(_Answering(context=context), _SameOrigin())

    @property
    def name(self) -> str:
        """The URL that is asked first."""
        return self._urls[0]

    def find(self, schema_id: SchemaId, use: SchemaUse) -> FoundSchema | None:
        """Return the schema of an id; None if the registry has none.

        Raises: RegistryError.
        """
        numbered = isinstance(schema_id, int)
        route = f"/schemas/{'ids' if numbered else 'guids'}/{schema_id}"
        body = self._get(route)
        if body is None:
            return None
        ids = {schema_id, *_ids_in(body)}
        kind = _kind(body)
        if kind == proto.KIND:
            body = self._get(f"{route}?format=serialized") or body
        references = self._references(body, kind == proto.KIND)
        definition = _text(body)
        if kind == proto.KIND:
            definition, references = proto.descriptors(definition, references), ()
        subject, version = _place(body)
        if numbered and subject is None:
            subject, version = self._place(schema_id, use)
        schema = Schema(kind, definition, tuple(references), subject, version)
        return FoundSchema(frozenset(ids), schema)

    def _place(self, number: int, use: SchemaUse) -> tuple[str | None, int | None]:
        """Return the subject and version of an id, the topic's own if it is among them."""
        try:
            listed = self._get(f"/schemas/ids/{number}/versions")
        except RegistryError:  # older ones have no such route
            return None, None
        found = map(_place, listed if isinstance(listed, list) else ())
        own = f"{use.topic}-{use.part}"
        return min(found, key=lambda each: (each[0] != own, each[0] is None), default=(None, None))

    def _references(self, body: dict[str, Any], serialized: bool) -> Sequence[tuple[str, str]]:
        """Return what a schema refers to, dependencies first."""
        found: dict[str, str] = {}
        self._refer(body, serialized, found, set(), len(_text(body)), 0)
        return tuple(found.items())

    def _refer(
        self,
        body: dict[str, Any],
        serialized: bool,
        found: dict[str, str],
        begun: set[str],
        size: int,
        depth: int,
    ) -> None:
        listed = body.get("references")
        for each in listed if isinstance(listed, list) else ():
            match each:
                case {"name": str(name), "subject": str(subject), "version": int(version)} if (
                    name + subject
                ).isprintable():  # halves of pairs stand in no URL, and in no file
                    pass
                case _:
                    raise self._wrong("has a reference that names no subject and version")
            if name in begun:
                continue
            begun.add(name)
            if len(begun) > REFERENCES_MAX or depth >= DEPTH_MAX:
                what = f"more than {REFERENCES_MAX} references, or {DEPTH_MAX} behind each other"
                raise self._wrong(f"has a schema with {what}")
            query = "&format=serialized" if serialized else ""
            route = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true{query}"
            other = self._get(route)
            if other is None:
                raise self._wrong(f"lacks {subject!r} version {version}, to which a schema refers")
            text = _text(other)
            self._refer(other, serialized, found, begun, size, depth + 1)
            found[name] = text
            if size + sum(map(len, found.values())) > SCHEMA_BYTES_MAX:
                raise self._wrong(f"has a schema of more than {SCHEMA_BYTES_MAX >> 20} MiB")

    def _wrong(self, what: str) -> RegistryError:
        return RegistryError(printable(f"{self.name}: {what[:_SAID_CHARS_MAX]}"))

    # ---- HTTP

    def _get(self, route: str) -> Any:
        """Return the JSON at a route; None where the registry has nothing.

        Raises: RegistryError, when no URL answers.
        """
        failures: list[str] = []
        for place, url in enumerate(self._urls):
            try:
                found = self._fetch(url + route)
            except _NotARegistry as failure:
                failures.append(f"{url}: {str(failure)[:_SAID_CHARS_MAX]}")
                continue
            if place:  # the one that works is asked first from now on
                self._urls = [*self._urls[place:], *self._urls[:place]]
            return found
        raise RegistryError(printable("; ".join(failures)), unreachable=True)

    def _fetch(self, url: str) -> Any:
        request = urllib.request.Request(url, headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error)
        except urllib.error.URLError as error:
            raise _NotARegistry(_why(error.reason)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _NotARegistry(_why(error)) from None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise _NotARegistry("its answer is no JSON: is it a schema registry?") from None

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Return None where a registry says that it has nothing."""
        if error.code in (401, 403):
            what = f"{error.code}: give what it wants in {CREDENTIALS} (NAME:PASSWORD) or {TOKEN}"
            raise _NotARegistry(what)
        if error.code == 404:
            try:
                said = json.loads(error.read())
            except (OSError, http.client.HTTPException, ValueError, RecursionError):
                said = None
            if isinstance(said, dict):
                return
            raise _NotARegistry("404, and not a registry's: is the path of the URL right?")
        raise _NotARegistry(f"{error.code} {error.reason}")


class _NotARegistry(Exception):
    """A URL that does not answer as a registry does; the text says why."""


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within a registry: others would get the credentials."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str):
        """Return the request at another place."""
        here, there = urlsplit(req.full_url), urlsplit(urljoin(req.full_url, newurl))
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            place = urlunsplit(there._replace(netloc=there.netloc.rpartition("@")[2], query=""))
            raise _Redirected(f"it redirects to {place}: give that URL if you trust it")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Redirected(OSError):
    """A redirect that is not followed."""


class _Bounded(io.RawIOBase):
    """The bytes of an answer, as they come: its head, its data, and what is not used of it. Too
    many raise ValueError, too slow ones TimeoutError."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._left_bytes = SCHEMA_BYTES_MAX + _HEAD_BYTES_MAX
        self._deadline = time.monotonic() + 2 * TIMEOUT_SECONDS

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read some bytes."""
        if time.monotonic() > self._deadline:
            raise TimeoutError("it takes too long to answer")
        count = self._raw.readinto(buffer)
        self._left_bytes -= count or 0
        if self._left_bytes < 0:
            raise ValueError(f"its answer has more than {SCHEMA_BYTES_MAX >> 20} MiB")
        return count

    def close(self) -> None:
        """Close them."""
        self._raw.close()
        super().close()


class _BoundedResponse(http.client.HTTPResponse):
    """An answer of bounded size and time."""

    def __init__(self, sock: Any, *given: Any, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp: Any = io.BufferedReader(_Bounded(self.fp.detach()))


class _Answering(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Gives such answers, over TCP and over TLS."""

    def do_open(self, http_class: Any, req: Any, **settings: Any) -> Any:
        """Return the answer to a request."""

        def connection(host: str, **more: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(host, **more)
            made.response_class = _BoundedResponse
            return made

        return super().do_open(connection, req, **settings)


def _why(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"its certificate is not trusted ({error.verify_message})"
        return f"{what}: --schema-registry-ca FILE says who signs it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _checked(url: str) -> str:
    """Return the URL of a registry without the last slash.

    Raises: RegistryError.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    # No URL is echoed that is refused: there may be a password or a key in it.
    if "?" in url or "#" in url:
        what = "the URL of a registry has no ?… or #…"
        raise RegistryError(f"{what}: set {CREDENTIALS}, or {TOKEN}, instead")
    if not usable or not url.isascii() or " " in url:
        raise RegistryError("this is no URL of a registry; give http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def _authorization(access: Access) -> dict[str, str]:
    if access.token:
        return {"Authorization": f"Bearer {access.token}"}
    if access.user:
        return {"Authorization": f"Basic {base64.b64encode(access.user.encode()).decode()}"}
    return {}


def _kind(body: Any) -> str:
    kind = body.get("schemaType", "AVRO") if isinstance(body, dict) else None
    return kind if isinstance(kind, str) else "AVRO"


def _place(body: Any) -> tuple[str | None, int | None]:
    """Return the subject and version in an answer, as far as it says them."""
    match body:
        case {"subject": str(subject), "version": int(version)}:
            return subject, version
        case _:
            return None, None


def _text(body: Any) -> str:
    """Return the definition in an answer.

    Raises: RegistryError.
    """
    text = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(text, str):
        raise RegistryError("the registry answers without a schema: is it a schema registry?")
    return text


def _ids_in(body: Any) -> list[SchemaId]:
    """Return the GUID in an answer, which newer registries give beside the number."""
    from uuid import UUID

    try:
        return [UUID(body["guid"])]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


KINDS = {".avsc": "AVRO", ".proto": proto.KIND, ".json": "JSON"}
"""Suffix of a file → the kind of its schema."""


class Folder:
    """A folder of schemas."""

    def __init__(self, path: Path) -> None:
        """Take schemas from a folder.

        Raises: RegistryError, when there is none.
        """
        if not path.is_dir():
            what = "give http://HOST:PORT of a registry, or a folder of .avsc, .proto, .json files"
            # What was meant as a URL may have a key in it, which is not echoed.
            named = "it" if any(sign in str(path) for sign in "@?#") else repr(str(path))
            raise RegistryError(printable(f"{named} is no folder; {what}"))
        self._path = path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self._path)

    def find(self, schema_id: SchemaId, use: SchemaUse) -> FoundSchema | None:
        """Return the schema of an id; None if no file is for it.

        Raises: RegistryError.
        """
        try:
            files = sorted(each for each in self._path.iterdir() if each.suffix in KINDS)
        except OSError as error:
            raise RegistryError(printable(f"{self.name}: {error.strerror}")) from None
        for file in [*_of_id(files, schema_id), *_of_topic(files, use)]:
            kind, subject = KINDS[file.suffix], f"{use.topic}-{use.part}"
            definition = self._definition(file)
            return FoundSchema(frozenset({schema_id}), Schema(kind, definition, (), subject))
        return None

    def _definition(self, file: Path) -> str:
        if file.suffix == ".proto":
            return proto.compiled_file(self._path, file.name)
        try:
            about = file.stat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > SCHEMA_BYTES_MAX:
                what = f"is no file of at most {SCHEMA_BYTES_MAX >> 20} MiB"
                raise RegistryError(printable(f"{file} {what}"))
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise RegistryError(printable(f"{file}: {error.strerror}")) from None
        except ValueError:
            raise RegistryError(printable(f"{file} is no text in UTF-8")) from None


def _of_id(files: list[Path], schema_id: SchemaId) -> Iterator[Path]:
    for file in files:
        if file.stem == str(schema_id) or file.stem.startswith(f"{schema_id}-"):
            yield file


def _of_topic(files: list[Path], use: SchemaUse) -> Iterator[Path]:
    for file in files:
        if file.stem == f"{use.topic}-{use.part}":
            yield file
