"""A double of a schema registry: the HTTP routes that serialisers and clients of one use.

::

    with serving(user="ann:secret") as registry:
        registry.address                        http://127.0.0.1:PORT
        registry.add("orders-value", {"schema": …, "schemaType": …, "references": […]})
        registry.asked                          the requests that came: "GET /schemas/ids/1"

    POST /subjects/S/versions      registers, and returns id, guid, version
    POST /subjects/S               the same for what is registered, or 404
    GET  /subjects/S/versions/V    V is a number, or latest
    GET  /schemas/ids/ID · /schemas/guids/GUID      [?format=serialized for Protobuf]
    POST /apis/registry/v3/groups/G/artifacts       Apicurio's own route, for Avro

It checks nothing about schemas. What is registered for Protobuf as base64 of a descriptor, as
confluent-kafka's serialiser does, is returned so in either format.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

_Answer = tuple[int, dict[str, Any]]


@attrs.frozen
class Registered:
    """A schema and where it stands."""

    number: int
    guid: str
    subject: str
    version: int
    body: dict[str, Any]
    """As it was posted: schema, schemaType, references; `serialized` is Protobuf's other format."""

    def answer(self, serialized: bool = False) -> dict[str, Any]:
        """Return the registry's JSON."""
        text = self.body.get("serialized") if serialized else None
        body = {key: self.body[key] for key in ("schemaType", "references") if self.body.get(key)}
        body |= {"schema": text or self.body["schema"], "id": self.number, "guid": self.guid}
        return body | {"subject": self.subject, "version": self.version}


@attrs.define(eq=False)
class Registry:
    """The schemas of a registry, by ids and by subjects."""

    first_id: int = 1
    user: str = ""
    """NAME:PASSWORD, if it wants one."""
    address: str = ""
    asked: list[str] = attrs.Factory(list)
    """Method and path of each request."""
    registered: list[Registered] = attrs.Factory(list)

    def add(self, subject: str, body: dict[str, Any]) -> Registered:
        """Register a schema; the same one gets the same id, whatever its subject is."""
        known = [each for each in self.registered if _same(each.body, body)]
        for each in known:
            if each.subject == subject:
                return each
        numbers = {each.number for each in self.registered}
        number = known[0].number if known else self.first_id + len(numbers)
        version = 1 + sum(each.subject == subject for each in self.registered)
        guid = str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(_essence(body))))
        self.registered.append(Registered(number, guid, subject, version, dict(body)))
        return self.registered[-1]

    def references(self, of: Registered) -> list[tuple[str, Registered]]:
        """Return the names and schemas that a schema refers to, dependencies first."""
        found: list[tuple[str, Registered]] = []
        for each in of.body.get("references") or ():
            one = self._last(subject=each["subject"], version=each["version"])
            assert one is not None
            found += [pair for pair in self.references(one) if pair not in found]
            found.append((each["name"], one))
        return found

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> _Answer:
        """Return the status and the JSON that answer a request."""
        split = urlsplit(target)
        self.asked.append(f"{method} {target}")
        serialized = parse_qs(split.query).get("format") == ["serialized"]
        found: Registered | None = None
        match method, [unquote(each) for each in split.path.strip("/").split("/")]:
            case "POST", ["subjects", subject, "versions"] if body is not None:
                found = self.add(subject, body)
            case "POST", ["subjects", subject] if body is not None:
                found = self._last(subject=subject, body=body)
            case "GET", ["subjects", subject, "versions", "latest"]:
                found = self._last(subject=subject)
            case "GET", ["subjects", subject, "versions", version]:
                found = self._last(subject=subject, version=int(version))
            case "GET", ["schemas", "ids", number]:
                found = self._last(number=int(number))
            case "GET", ["schemas", "guids", guid]:
                found = self._last(guid=guid)
            case "POST", ["apis", "registry", "v3", "groups", group, "artifacts"] if body:
                return 200, self._add_artifact(group, body)
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if found is None:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, found.answer(serialized)

    def _add_artifact(self, group: str, body: dict[str, Any]) -> dict[str, Any]:
        content = body["firstVersion"]["content"]["content"]
        found = self.add(body["artifactId"], {"schema": content})
        about = {"groupId": group, "artifactId": found.subject, "artifactType": "AVRO"}
        numbers = {"globalId": found.number, "contentId": found.number}
        version = {**about, **numbers, "version": str(found.version), "state": "ENABLED"}
        return {"artifact": about, "version": version}

    def _last(self, body: dict[str, Any] | None = None, **wanted: Any) -> Registered | None:
        for each in reversed(self.registered):
            if all(getattr(each, name) == value for name, value in wanted.items()):
                if body is None or _same(each.body, body):
                    return each
        return None

    def admits(self, authorization: str | None) -> bool:
        """Return whether a request with this header is answered."""
        wanted = f"Basic {base64.b64encode(self.user.encode()).decode()}"
        return not self.user or authorization == wanted


def _essence(body: dict[str, Any]) -> list[Any]:
    return [body.get("schemaType") or "AVRO", body["schema"], body.get("references") or []]


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _essence(one) == _essence(other)


@contextlib.contextmanager
def serving(user: str = "", first_id: int = 1) -> Iterator[Registry]:
    """Serve an empty registry for the time of a block."""
    registry = Registry(first_id, user)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            if registry.admits(self.headers["Authorization"]):
                status, answer = registry.answer(self.command, self.path, body)
            else:
                status, answer = 401, {"error_code": 40101, "message": "Unauthorized"}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
