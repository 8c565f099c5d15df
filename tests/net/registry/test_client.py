"""What a registry is asked, and what is taken of its answers: whole schemas, or one line."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from kproxy.exchange.schema_ids import SchemaUse
from kproxy.net.registry import client
from kproxy.net.registry.client import Folder, Registry, sources
from kproxy.net.registry.source import Access, RegistryError
from kproxy.wire.payloads.schemas import Schema, SchemaId
from tests.bed import schema_registry

USE = SchemaUse("orders", "value", certain=True)
CUSTOMER = 'syntax = "proto3"; package shop; message Customer { string name = 1; }'
ORDER = (
    'syntax = "proto3"; package shop; import "customer.proto";'
    ' import "google/protobuf/timestamp.proto";'
    " message Order { Customer customer = 1; google.protobuf.Timestamp time = 2; }"
)


def found(url: str, schema_id: SchemaId = 1, access: Access | None = None) -> Schema | None:
    given = Registry(url.split(","), access or Access()).find(schema_id, USE)
    return given and given.schema


@contextlib.contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[str]:
    """A server that gives these answers in turn, the last one again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # who asks has heard enough
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


def test_a_schema_comes_with_what_it_refers_to_dependencies_first() -> None:
    with schema_registry.serving() as registry:
        registry.add("money", {"schema": '"long"'})
        reference = {"name": "shop.Money", "subject": "money", "version": 1}
        registry.add("customer", {"schema": '{"c": 1}', "references": [reference]})
        references = [{"name": "shop.Customer", "subject": "customer", "version": 1}, reference]
        added = registry.add("orders-value", {"schema": '{"o": 1}', "references": references})
        schema = found(registry.address, added.number)
        texts = ("shop.Money", '"long"'), ("shop.Customer", '{"c": 1}')
        assert schema == Schema("AVRO", '{"o": 1}', texts, "orders-value", 1)
        assert found(registry.address, uuid.UUID(added.guid)) == schema
        assert found(registry.address, 99) is None


def test_a_number_comes_with_its_guid() -> None:
    with schema_registry.serving() as registry:
        added = registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        given = Registry([registry.address], Access()).find(1, USE)
        assert given is not None
        assert given.ids == {1, uuid.UUID(added.guid)}


@pytest.mark.parametrize("serialized", [True, False], ids=["descriptors", "text"])
def test_protobuf_becomes_descriptors(serialized: bool) -> None:
    pytest.importorskip("grpc_tools")
    from google.protobuf import descriptor_pb2, descriptor_pool

    def registered(text: str, name: str, *references: dict[str, Any]) -> dict[str, Any]:
        """As a registry has it; a descriptor does not have the name that others import."""
        values: dict[str, Any] = {"schemaType": "PROTOBUF", "schema": text}
        if serialized:
            file = next(each for each in files.file if each.name == name)
            file.name = "default"
            values["serialized"] = base64.b64encode(file.SerializeToString()).decode()
        return values | {"references": list(references)}

    from kproxy.net.registry import proto

    compiled = proto.compiled(ORDER, [("customer.proto", CUSTOMER)])
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(compiled))
    with schema_registry.serving() as registry:
        registry.add("customer", registered(CUSTOMER, "customer.proto"))
        reference = {"name": "customer.proto", "subject": "customer", "version": 1}
        added = registry.add("orders-value", registered(ORDER, proto.MAIN, reference))
        schema = found(registry.address, added.number)
    assert schema is not None
    assert (schema.kind, schema.references) == ("PROTOBUF", ())
    given = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(schema.definition))
    pool = descriptor_pool.DescriptorPool()
    for file in given.file:
        pool.AddSerializedFile(file.SerializeToString())
    order = pool.FindMessageTypeByName("shop.Order")
    assert [each.message_type.full_name for each in order.fields] == [
        "shop.Customer",
        "google.protobuf.Timestamp",
    ]
    assert given.file[-1].message_type[0].name == "Order"


def test_a_text_that_does_not_compile_is_one_line() -> None:
    pytest.importorskip("grpc_tools")
    text = body(schema="message {", schemaType="PROTOBUF")
    with answering((200, {}, text)) as url, pytest.raises(RegistryError, match="not compile") as no:
        found(url)
    assert "\n" not in str(no.value)
    text = body(
        schema=CUSTOMER,
        schemaType="PROTOBUF",
        references=[{"name": "../../x.proto", "subject": "x", "version": 1}],
    )
    with answering((200, {}, text), (200, {}, text), (200, {}, body(schema=CUSTOMER))) as url:
        with pytest.raises(RegistryError, match="which is no name"):
            found(url)


def test_another_url_is_asked_where_one_does_not_answer() -> None:
    with schema_registry.serving() as registry:
        registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        schema = found(f"http://127.0.0.1:1,{registry.address}")
    assert schema is not None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {}, b"<html>"), "no JSON: is it a schema registry"),
        ((200, {}, b"[]"), "without a schema: is it a schema registry"),
        ((404, {}, b"<html>"), "404, and not a registry's: is the path of the URL right"),
        ((500, {}, b"oh\x1b[2J"), "500 Internal Server Error"),
        ((302, {"Location": "http://else.example/?p=secret"}, b""), "redirects to http://else.exa"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "'file:///etc/passwd' is not allowed"),
        ((200, {}, b'"' + b"x" * 100_000), "its answer has more than"),
    ],
)
def test_what_is_no_answer_is_one_line(
    answer: tuple[int, dict[str, str], bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SCHEMA_BYTES_MAX", 4096)
    with answering(answer) as url, pytest.raises(RegistryError) as refused:
        found(url)
    assert said in str(refused.value)
    assert str(refused.value).isprintable()
    assert "secret" not in str(refused.value)


@contextlib.contextmanager
def saying(first: bytes, again: bytes) -> Iterator[str]:
    """A server that says something, and then something again and again, as fast as it is heard or
    one piece in 10 ms."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(4096)
                self.wfile.write(first)
                while not stopped.wait(0 if len(again) > 4096 else 0.01):
                    self.wfile.write(again)

    stopped = threading.Event()
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            stopped.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("first", "again", "said"),
    [
        (b"HTTP/1.1 200 ", b"O", "too long to answer"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "too long to answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" ", "too long to answer"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
            b"a: b\r\n",
            "too long to answer",
        ),
        (b"HTTP/1.1 302 \r\nLocation: /x\r\n\r\n", b"x" * 65536, "more than 4 MiB"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4096, "more than 4 MiB"),
    ],
    ids=["status", "continue", "data", "trailers", "redirect", "many continue"],
)
def test_an_answer_without_end_is_one_line(
    first: bytes, again: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "long" in said:
        monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.2)
    with saying(first, again) as url, pytest.raises(RegistryError, match=said):
        found(url)


@pytest.mark.parametrize(
    ("reference", "other", "said"),
    [
        ({"name": "n", "subject": "\ud800"}, {"schema": "x"}, "names no subject"),
        ({"name": "\ud800", "subject": "s"}, {"schema": "CgF4"}, "names no subject"),
        ({"name": "n", "subject": "s"}, [1], "without a schema"),
        ({"name": "n", "subject": "s"}, 5, "without a schema"),
    ],
)
def test_a_reference_that_leads_to_nothing_is_one_line(
    reference: dict[str, str], other: Any, said: str
) -> None:
    references = [reference | {"version": 1}]
    main = body(schema="CgF4", schemaType="PROTOBUF", references=references)
    answers = [(200, {}, main), (200, {}, main), (200, {}, json.dumps(other).encode())]
    with answering(*answers) as url, pytest.raises(RegistryError, match=said):
        found(url)


def test_a_long_subject_takes_room_and_no_long_line() -> None:
    long = "s" * 5000
    with answering((200, {}, body(schema="{}", subject=long, version=1))) as url:
        given = Registry([url], Access()).find(1, USE)
    assert given is not None and given.size > 5000
    reference = {"name": "n", "subject": long, "version": 1}
    main = (200, {}, body(schema="{}", references=[reference]))
    with answering(main, (404, {}, b"{}")) as url, pytest.raises(RegistryError) as refused:
        found(url)
    assert len(str(refused.value)) < 500


def test_references_without_end_are_refused() -> None:
    loop = body(schema="{}", references=[{"name": "self", "subject": "self", "version": 1}])
    with answering((200, {}, loop)) as url:
        schema = found(url)
    assert schema is not None
    assert schema.references == (("self", "{}"),), "a circle is walked once"
    answers = [
        (200, {}, body(schema="{}", references=[{"name": f"{n}", "subject": "s", "version": 1}]))
        for n in range(40)
    ]
    with answering(*answers) as url, pytest.raises(RegistryError, match="20 behind each other"):
        found(url)


def test_a_token_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(token="t0ken", user="ann:secret")
    assert "t0ken" not in repr(access)
    assert "secret" not in repr(access)
    with schema_registry.serving() as registry:
        registry.add("orders-value", {"schema": "{}"})
        headers: list[str | None] = []
        kind = schema_registry.Registry
        monkeypatch.setattr(kind, "admits", lambda _, given: headers.append(given) or True)
        assert found(registry.address, access=access)
    assert {*headers} == {"Bearer t0ken"}


def test_names_of_files_say_what_they_are_for(tmp_path: Path) -> None:
    guid = uuid.uuid4()
    files = {"17-order.avsc": "a", f"{guid}.json": "b", "orders-value.avsc": "c", "1.txt": "d"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    folder = Folder(tmp_path)
    wanted: list[SchemaId] = [17, guid, 99, 1]
    some = [folder.find(each, USE) for each in wanted]
    assert [each and each.schema.definition for each in some] == ["a", "b", "c", "c"]
    assert [each and each.schema.kind for each in some] == ["AVRO", "JSON", "AVRO", "AVRO"]
    assert folder.find(99, USE._replace(part="key")) is None
    (tmp_path / "5.avsc").write_bytes(b"\xff")
    with pytest.raises(RegistryError, match=r"5\.avsc is no text in UTF-8"):
        folder.find(5, USE)


def test_a_proto_of_a_folder_may_import_others(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    (tmp_path / "customer.proto").write_text(CUSTOMER)
    (tmp_path / "17.proto").write_text(ORDER)
    given = Folder(tmp_path).find(17, USE)
    assert given is not None
    assert b"shop" in base64.b64decode(given.schema.definition)


def test_sources_are_told_apart(tmp_path: Path) -> None:
    first, second = sources(["http://a.example:8081/x/", str(tmp_path)], Access())
    assert (first.name, second.name) == ("http://a.example:8081/x", str(tmp_path))
