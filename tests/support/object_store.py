"""A store on loopback for tests: objects, ranges, listings as S3 and GCS have them, and all the faults of a network.

    with Server({"bucket/a/x.gz": b"..."}, faults=Faults(seed=1, share=0.3)) as server:
        options = server.options()
        gm.PackedDataset("s3://bucket/a/*.gz", storage_options=options, ...)

It was made for tests of this project alone: that its answers are those of a real store is not tested with it.
"""

import contextlib
import hashlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KINDS = (
    "429",
    "500",
    "503",
    "403",
    "404",
    "408",
    "reset",
    "reset in body",
    "short",
    "slow",
    "other tag",
    "other size",
    "no range",
    "redirect",
)
# The failures that a deadline ends; one of 20 seconds unless the options say otherwise.
STALLS = ("stall", "stall in body", "drip")


class Faults:
    """Faults of a share of the requests for objects, drawn from a seed."""

    def __init__(self, seed: int, share: float = 0.3, kinds: tuple[str, ...] = KINDS) -> None:
        self._random, self._share, self._kinds = random.Random(seed), share, kinds
        self._lock = threading.Lock()
        self._flipped: set[str] = set()
        self.seen: dict[str, int] = {}

    def next(self) -> tuple[str | None, float]:
        """The fault of the next request, if it has one, and a number between 0 and 1."""
        with self._lock:
            kind = self._random.choice(self._kinds) if self._random.random() < self._share else None
            if kind:
                self.seen[kind] = self.seen.get(kind, 0) + 1
            return kind, self._random.random()

    def bit(self) -> int:
        """The bit of a byte that is flipped."""
        with self._lock:
            return self._random.randrange(8)

    def is_first(self, path: str) -> bool:
        """Whether this is asked for the first time of a path."""
        with self._lock:
            is_first = path not in self._flipped
            self._flipped.add(path)
            return is_first


class Server:
    """Serves objects, from keys with the bucket in front to bytes, until the end of a `with`."""

    def __init__(
        self,
        objects: dict[str, bytes],
        *,
        faults: Faults | None = None,
        delay: float = 0.0,
        quiet: float = 0.0,
        bytes_per_second: float | None = None,
        page: int = 1000,
        answer: "Callable[[Any, str, dict[str, str]], bool] | None" = None,
    ) -> None:
        self.objects, self.faults, self.delay, self.page = dict(objects), faults, delay, page
        self.bytes_per_second = bytes_per_second
        # Called with a request's handler, key and query before anything else; true if it has answered.
        self.answer = answer
        # Nothing is answered until no request has come for so many seconds, so that those that need no answer of one
        # another are one round trip on a busy machine, too.
        self.quiet, self._last_request = quiet, 0.0
        self.is_out = False
        self.has_ended = False
        # With one, each request without it as its bearer is refused.
        self.token: str | None = None
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.refuses_completion = False
        self.most_at_once = 0
        # The longest chain of requests, each of which came after the one before was answered.
        self.round_trips = 0
        self._answered = 0
        self._at_once, self._lock = 0, threading.Lock()
        self.requests: list[tuple[str, str, str | None]] = []
        self.headers: list[dict[str, str]] = []
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = _Listener(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request among those that are answered at once."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            depth = self._answered + 1
            self.round_trips = max(self.round_trips, depth)
            self._last_request = time.monotonic()
        try:
            while (left := self._last_request + self.quiet - time.monotonic()) > 0 and self.quiet:
                time.sleep(left)
            yield
        finally:
            with self._lock:
                self._at_once -= 1
                self._answered = max(self._answered, depth)

    def __exit__(self, *_: object) -> None:
        self.has_ended = True
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def connections(self) -> int:
        """How many connections clients have opened."""
        return self._server.connections

    def options(self, **more: str) -> dict[str, str]:
        """Options with which `s3://`, `gs://` and `az://` URLs lead here."""
        # Google's crate signs what it writes, whatever it is asked.
        key = {"gcs_base_url": self.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        return {
            "aws_endpoint": self.url,
            "aws_region": "us-east-1",
            "aws_skip_signature": "true",
            "google_base_url": self.url,
            "google_skip_signature": "true",
            "google_service_account_key": json.dumps({**key, "private_key_id": ""}),
            "allow_http": "true",
            **more,
        }


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128  # with 5, a client that opens more connections at once waits a second for them
    connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


def tag(data: bytes) -> str:
    return '"' + hashlib.md5(data).hexdigest() + '"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        with self.store.counted():
            self._answer(has_body=False)

    def do_GET(self) -> None:
        with self.store.counted():
            self._answer(has_body=True)

    def do_PUT(self) -> None:
        with self.store.counted():
            self._write()

    def do_POST(self) -> None:
        with self.store.counted():
            self._write()

    def do_DELETE(self) -> None:
        with self.store.counted():
            self._write()

    def _write(self) -> None:
        """Makes an object of a body, or of the parts of an upload once that is completed."""
        store = self.store
        parts = urlsplit(self.path)
        key = unquote(parts.path.lstrip("/"))
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store.requests.append((self.command, key, parts.query or None))
        kind, _ = store.faults.next() if store.faults else (None, 0.0)
        if store.is_out or kind in ("reset", "reset in body", "short"):
            self._reset()
        elif kind in ("429", "500", "503"):
            self.status(int(kind), has_body=True)
        elif self.command == "DELETE":
            store.uploads.pop(query.get("uploadId", ""), None)
            self.status(204, has_body=False)
        elif "uploads" in query:
            upload = f"upload-{len(store.requests)}"
            store.uploads[upload] = {}
            self.xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        elif self.command == "POST" and store.refuses_completion:
            self.status(503, has_body=True)
        elif self.command == "POST":
            data = b"".join(piece for _, piece in sorted(store.uploads.pop(query["uploadId"]).items()))
            store.objects[key] = data
            self.xml(f"<CompleteMultipartUploadResult><ETag>{escape(tag(data))}</ETag></CompleteMultipartUploadResult>")
        else:
            if "uploadId" in query:
                store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            else:
                store.objects[key] = body
            self.send_response(200)
            self.send_header("ETag", tag(body))
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, *, has_body: bool) -> None:
        store = self.store
        parts = urlsplit(self.path)
        key = unquote(parts.path.lstrip("/"))
        store.requests.append((self.command, key, self.headers.get("Range")))
        store.headers.append(dict(self.headers))
        if store.is_out:
            self._reset()
            return
        if store.delay:
            time.sleep(store.delay)
        query = parse_qs(parts.query, keep_blank_values=True)
        if store.answer and store.answer(self, key, {name: values[0] for name, values in query.items()}):
            return
        if "list-type" in query:
            self._list(key.rstrip("/"), {name: values[0] for name, values in query.items()})
            return
        data = store.objects.get(key)
        kind, chance = store.faults.next() if store.faults else (None, 0.0)
        if not has_body and kind in ("404", "other size", "other tag"):
            kind = None  # who makes a manifest has to believe what a store says is there
        if kind and kind.isdigit():
            self.status(int(kind), has_body=has_body)
        elif kind == "reset":
            self._reset()
        elif kind == "stall":
            self._stall()
        elif store.token and self.headers.get("Authorization") != f"Bearer {store.token}":
            self.status(401, has_body=has_body)
        elif data is None:
            self.status(404, has_body=has_body)
        elif kind == "redirect" and not query:
            self.send_response(307)
            self.send_header("Location", f"{store.url}{parts.path}?again=1")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._object(data, kind, chance, has_body=has_body)

    def _object(self, data: bytes, kind: str | None, chance: float, *, has_body: bool) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, len(data))) if asked else (0, len(data))
        size = len(data) + 1 if kind == "other size" else len(data)
        if asked and kind != "no range":
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        else:
            start, end = 0, len(data)
            self.send_response(200)
        body = data[start:end]
        self.send_header("ETag", tag(data + b"x") if kind == "other tag" else tag(data))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(size if not asked and kind == "other size" else len(body)))
        self.end_headers()
        if not has_body:
            return
        if kind in ("short", "reset in body", "stall in body"):
            body = body[: int(len(body) * chance)]
        if kind == "flip":
            body = self._flipped(body, int(len(body) * chance), range(256))
        elif kind == "flip digit":
            body = self._flipped(body, len(body) // 4, b"0123456789")
        pieces = [body]
        if kind == "slow":
            middle = len(body) // 2
            pieces = [body[:middle], body[middle:]]
        if kind == "drip":
            pieces = [body[at : at + 1] for at in range(min(len(body), 100))]
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.2 * chance)
            self._send(piece)
        if kind == "reset in body":
            self._reset()
        elif kind == "stall in body":
            self._stall()
        elif kind in ("short", "drip"):
            self.close_connection = True

    def _flipped(self, body: bytes, at: int, among: Collection[int]) -> bytes:
        """The body with one bit flipped in the first of some bytes from an offset on, once for each object."""
        faults = self.store.faults
        if faults is None or not faults.is_first(self.path):
            return body
        at = next(place for place in range(at, len(body)) if body[place] in among)
        bit = 0 if len(among) < 256 else faults.bit()
        return body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]

    def _send(self, piece: bytes) -> None:
        rate = self.store.bytes_per_second
        try:
            for at in range(0, len(piece), 1 << 16):
                self.wfile.write(piece[at : at + (1 << 16)])
                if rate:
                    time.sleep((1 << 16) / rate)
        except OSError:  # the client has gone
            self.close_connection = True

    def status(self, code: int, *, has_body: bool) -> None:
        """Answers with an error."""
        body = b"<Error><Code>Injected</Code></Error>" if has_body else b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stall(self) -> None:
        """Sends nothing more until the client goes, or the server ends."""
        self.connection.settimeout(0.1)
        while not self.store.has_ended:
            with contextlib.suppress(TimeoutError):
                try:
                    if not self.connection.recv(1 << 16):
                        break
                except ConnectionError:
                    break
        self.close_connection = True

    def _reset(self) -> None:
        # Closing a socket that lingers for no time sends RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        entries: dict[str, bytes | None] = {}
        for key, data in self.store.objects.items():
            if not key.startswith(f"{bucket}/"):
                continue
            name = key[len(bucket) + 1 :]
            if not name.startswith(prefix):
                continue
            below, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if found:
                entries[prefix + below + delimiter] = None
            else:
                entries[name] = data
        names = [name for name in sorted(entries) if name > after]
        page = names[: self.store.page]
        xml = ['<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>']
        xml.append(f"<IsTruncated>{str(len(names) > len(page)).lower()}</IsTruncated>")
        if len(names) > len(page):
            xml.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        for name in page:
            data = entries[name]
            if data is None:
                xml.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                xml.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>{escape(tag(data))}</ETag><Size>{len(data)}</Size></Contents>"
                )
        xml.append("</ListBucketResult>")
        self.xml("".join(xml))

    def xml(self, text: str) -> None:
        """Answers with XML."""
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
