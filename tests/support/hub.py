"""The Hugging Face Hub on loopback for tests: listings with pages, and files at another server behind a redirect.

Its answers are those that the hub's own library, huggingface_hub, asks for and reads. It was made for tests of this
project alone: that the hub answers so is not tested with it.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from object_store import Server

TOKEN = "hf_secret"


class Hub:
    """Serves data sets, from names to files by commit, until the end of a `with`."""

    def __init__(self, datasets: dict[str, dict[str, dict[str, bytes]]], *, page: int = 2, token: str | None = None):
        self.datasets, self.page, self.token = datasets, page, token
        self.branches: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.failures: list[int] = []
        self.requests: list[tuple[str, str]] = []
        files = {
            f"cdn/{name}/{commit}/{path}": data
            for name, commits in datasets.items()
            for commit, files in commits.items()
            for path, data in files.items()
        }
        self.files = Server(files)
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True

    def __enter__(self) -> "Hub":
        self.files.__enter__()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.files.__exit__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def options(self, **more: str) -> dict[str, str]:
        token = {"hf_token": self.token} if self.token else {}
        return {"hf_endpoint": self.url, **token, **more}

    def files_of(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit of a revision, and its files."""
        commits = self.datasets.get(name, {})
        commit = self.branches.get(revision, revision)
        return (commit, commits[commit]) if commit in commits else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        parts = urlsplit(self.path)
        # A revision with slashes is quoted.
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        hub.requests.append((self.command, "/".join(names)))
        calls = "/(?:revision|tree|paths-info|resolve)/"
        moved = next((old for old in hub.renamed if re.search(f"/datasets/{re.escape(old)}{calls}", self.path)), None)
        if hub.failures:
            self._json({}, hub.failures.pop(0))
        elif moved:
            self.send_response(307)
            self.send_header("Location", self.path.replace(f"/{moved}/", f"/{hub.renamed[moved]}/", 1))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._json({"error": "Unauthorized"}, 401)
        else:
            is_api = names[0] == "api"
            call = next(n for n, name in enumerate(names) if name in ("revision", "tree", "paths-info", "resolve"))
            name = "/".join(names[1 + is_api : call])
            if is_api:
                self._api(name, names[call], names[call + 1], "/".join(names[call + 2 :]), parse_qs(parts.query), body)
            else:
                self._resolve(name, names[call + 1], "/".join(names[call + 2 :]))

    def _api(self, name: str, call: str, revision: str, path: str, query: dict[str, list[str]], body: str) -> None:
        found = self.hub.files_of(name, revision)
        if found is None:
            self._json({"error": "Not found"}, 404)
            return
        commit, files = found
        if call == "revision":
            self._json({"id": name, "sha": commit})
        elif call == "paths-info":
            wanted = parse_qs(body)["paths"]
            self._json([_entry(path, files[path]) for path in wanted if path in files])
        else:
            self._tree(files, path, query)

    def _tree(self, files: dict[str, bytes], folder: str, query: dict[str, list[str]]) -> None:
        below = f"{folder}/" if folder else ""
        inside = {path: data for path, data in files.items() if path.startswith(below)}
        if not inside:
            self._json({"error": "Entry not found"}, 404)
            return
        if query["recursive"] == ["False"]:
            names = {below + path[len(below) :].split("/")[0] for path in inside}
        else:
            names = {path[:end] for path in inside for end, char in enumerate(f"{path}/") if char == "/"}
            names = {name for name in names if name.startswith(below) and name != folder}
        start = int(query.get("cursor", ["0"])[0])
        shown = sorted(names)[start : start + self.hub.page]
        more = {}
        if start + len(shown) < len(names):
            after = f"recursive={query['recursive'][0]}&expand=False&cursor={start + len(shown)}"
            more["Link"] = f'<{self.hub.url}{urlsplit(self.path).path}?{after}>; rel="next"'
        entries = [
            _entry(name, inside[name]) if name in inside else {"type": "directory", "path": name} for name in shown
        ]
        self._json(entries, headers=more)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        found = self.hub.files_of(name, revision)
        if found is None or path not in found[1]:
            self._json({"error": "Entry not found"}, 404)
            return
        self.send_response(302)
        self.send_header("Location", f"{self.hub.files.url}/{quote(f'cdn/{name}/{found[0]}/{path}')}?signature=1")
        self.send_header("X-Repo-Commit", found[0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(path: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
