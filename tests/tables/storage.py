"""A folder as a bucket of S3: as much of the protocol as reading takes."""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

import attrs


@attrs.define(eq=False)
class Bucket:
    """What is served."""

    port: int
    requests: list[str] = attrs.field(factory=list)

    def uri(self, path: str) -> str:
        """Return the URI of a path in the bucket, with all that a client must know."""
        query = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://somebody:secret@bucket/{urllib.parse.quote(path, '/*?[]-!')}?{query}"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Bucket]:
    """Serve the files of a folder as those of `bucket`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, with_body: bool) -> None:
            bucket.requests.append(f"{self.command} {self.path}")
            parts = urllib.parse.urlsplit(self.path)
            key = urllib.parse.unquote(parts.path).removeprefix("/bucket").strip("/")
            query = dict(urllib.parse.parse_qsl(parts.query))
            if not key:
                self._send(200, _listed(folder, query.get("prefix", "")).encode(), with_body)
            elif (folder / key).is_file():
                data = (folder / key).read_bytes()
                first, _, last = self.headers.get("Range", "bytes=0-")[6:].partition("-")
                start, stop = int(first), int(last or len(data)) + 1
                about = f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}"
                written = self.date_time_string(int((folder / key).stat().st_mtime))
                more = {"Last-Modified": written}
                if "Range" in self.headers:
                    more["Content-Range"] = about
                code = 206 if "Range" in self.headers else 200
                self._send(code, data[start:stop], with_body, more)
            else:
                self._send(404, b"", with_body)

        def _send(
            self, code: int, body: bytes, with_body: bool, more: dict[str, str] | None = None
        ) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    bucket = Bucket(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listed(folder: Path, prefix: str) -> str:
    """Answer ListObjectsV2."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    keys = {str(path.relative_to(folder)): path.stat() for path in files}
    found = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{about.st_size}</Size><LastModified>"
        f"{datetime.fromtimestamp(about.st_mtime, UTC):%Y-%m-%dT%H:%M:%S.000Z}"
        "</LastModified></Contents>"
        for key, about in keys.items()
        if key.startswith(prefix)
    )
    return (
        '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>'
        f"<KeyCount>{found.count('<Key>')}</KeyCount><IsTruncated>false</IsTruncated>"
        f"{found}</ListBucketResult>"
    )
