"""Tokenizers from the Hugging Face hub, which a local server stands for."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

import gristmill as gm
from command_line import checked
from gristmill._tokenizer import hub as hub_module
from helpers import PATIENCE


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as `huggingface_hub` needs to get a file."""

    files: ClassVar[dict[str, bytes]] = {}
    broken: ClassVar[set[str]] = set()  # paths that the hub cannot answer for
    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        self.asked.append(self.path)
        data = self.files.get(self.path)
        # Not 500, which the client asks for again and again for half a minute.
        self.send_response(501 if self.path in self.broken else 200 if data is not None else 404)
        if self.path in self.broken:
            data = b""
        elif data is None:
            known = any(path.startswith(self.path.split("/resolve/")[0] + "/") for path in self.files)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            data = b""
        self.send_header("ETag", f'"{hash(data) & 0xFFFFFFFF:x}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(tmp_path, tokenizer_json):
    """A hub with a model, and a function that runs code with it; what that prints comes back in lines.

    In a process of its own, because the hub's address is read when its client is imported.
    """
    pytest.importorskip("huggingface_hub")
    Hub.files = {
        "/org/model/resolve/main/tokenizer.json": tokenizer_json,
        "/org/model/resolve/main/tokenizer_config.json": b'{"eos_token": "</s>"}',
    }
    Hub.broken, Hub.asked = set(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(code, **more):
        environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        environment |= {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        command = [sys.executable, "-c", "import gristmill as gm\n" + textwrap.dedent(code)]
        done = subprocess.run(
            command, env=environment | more, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    yield run
    server.shutdown()
    server.server_close()


FILES = ["tokenizer.json", "tokenizer_config.json"]
EOS_OR_ERROR = """
    try:
        print(gm.Encoder.from_pretrained("org/model").eos_id)
    except gm.TokenizerError as error:
        print(error)
"""
# The hub's client waits before it asks again.
WAITING_IS_SAID = """
    import time
    time.sleep = lambda seconds: print("waits for", seconds)
"""


def test_from_pretrained_gets_the_hubs_files(hub, encoder):
    lines = hub("""
        encoder = gm.Encoder.from_pretrained("org/model")
        print(encoder.fingerprint, encoder.eos_id)
        try:
            gm.Encoder.from_pretrained("org/other")
        except gm.TokenizerError as error:
            print(error)
    """)
    assert lines[0] == f"{encoder.fingerprint} 1"
    assert "/org/model/resolve/main/tokenizer.json" in Hub.asked
    assert "'org/other' is no local folder, and its tokenizer.json at 'main' cannot be got from the hub" in lines[1]


def test_the_command_line_takes_a_name_on_the_hub(hub):
    lines = hub("""
        import contextlib, io
        from gristmill._cli import main
        for name in ("org/model", "org/other", "nowhere"):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                code = main.run(["pack", "no*.gz", "--tokenizer", name, "--output", "packed"])
            print(code, " ".join(said.getvalue().split()))
    """)
    assert lines[0].startswith("1 error: no file matches")
    assert lines[1].startswith(
        "1 error: 'org/other' is no local folder, and its tokenizer.json at 'main' cannot be got"
    )
    assert lines[2].startswith("1 error: no such file: 'nowhere' (working folder: ")


def test_a_hub_that_cannot_be_reached_is_said_so_at_once(hub):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    (said,) = hub(WAITING_IS_SAID + EOS_OR_ERROR, HF_ENDPOINT=closed)
    assert said.startswith(
        "'org/model' is no local folder, and its tokenizer.json at 'main' cannot be got from the hub"
    )
    assert ", which could not be reached: " in said
    assert hub(EOS_OR_ERROR) == ["1"]
    assert hub(EOS_OR_ERROR, HF_ENDPOINT=closed) == ["1"]  # from the cache


@pytest.mark.parametrize(
    "name", ["./a/b", "../b", "/a", "~/b", "a/b/c", "a/tokenizer.json", "tokenizer.json", "a/b c", "a/", "a//b"]
)
def test_what_can_only_be_a_path_is_not_asked_for(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hub_module, "download", lambda *arguments: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gm.MissingTokenizerError, match="no such folder"):
        gm.Encoder.from_pretrained(name)
    assert checked(capsys, "pack", "a.gz", "--tokenizer", name, "--output", "b")[0] == 1


def test_a_hub_client_of_another_version_is_not_taken_for_none(hub, encoder, monkeypatch):
    without = """
        import huggingface_hub
        found = huggingface_hub.__getattr__
        def without(name):
            if name.startswith("_CACHED"):
                raise AttributeError(name)
            return found(name)
        huggingface_hub.__getattr__ = without
    """
    assert hub(textwrap.dedent(without) + textwrap.dedent(EOS_OR_ERROR)) == ["1"]
    # One that lacks more fails by what it lacks.
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    with pytest.raises(ImportError, match="cannot import name 'constants'"):
        gm.Encoder.from_pretrained("org/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(gm.MissingExtraError, match=r"pip install 'gristmill\[hf\]'"):
        gm.Encoder.from_pretrained("org/model")


def test_completing_a_line_asks_the_hub_for_nothing(hub):
    complete = {"_GRISTMILL_COMPLETE": "bash_complete", "COMP_WORDS": "gristmill pack x --tokenizer org/model --out"}
    lines = hub("from gristmill._cli import main; main.run([])", **complete, COMP_CWORD="5")
    assert lines == ["plain,--output"]
    assert Hub.asked == []


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_file_that_the_hub_cannot_give_is_not_taken_for_one_that_does_not_exist(hub, file):
    Hub.files["/org/model/resolve/main/special_tokens_map.json"] = b'{"eos_token": "<s>"}'
    Hub.broken = {f"/org/model/resolve/main/{file}"}
    assert f"its {file} at 'main' cannot be got from the hub" in hub(EOS_OR_ERROR)[0]
    Hub.broken = set()
    assert hub(EOS_OR_ERROR) == ["1"]


def test_a_model_in_the_cache_needs_no_hub(hub):
    assert hub(EOS_OR_ERROR) == ["1"]  # the hub says that there is no special_tokens_map.json, and the cache keeps that
    assert hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1") == ["1"]
    Hub.broken = {f"/org/model/resolve/main/{file}" for file in [*FILES, "special_tokens_map.json"]}
    assert hub(EOS_OR_ERROR) == ["1"]


def test_a_cache_that_another_program_filled_serves_offline(hub):
    fetch = "import huggingface_hub\nfor file in {}: huggingface_hub.hf_hub_download('org/model', file)"
    hub(fetch.format(FILES[:1]))
    assert "its tokenizer_config.json at 'main' cannot be got" in hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1")[0]
    hub(fetch.format(FILES))
    assert hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1") == ["1"]


@pytest.mark.parametrize(("revision", "error"), [(5, gm.ArgumentTypeError), ("", gm.ArgumentError)])
def test_a_revision_that_is_no_string_is_named(revision, error):
    with pytest.raises(error, match=rf"revision={revision!r}: expected a string"):
        gm.Encoder.from_pretrained("org/model", revision=revision)


def test_any_error_of_the_hub_s_client_is_one_of_ours(monkeypatch):
    """What its HTTP client raises depends on the version, and is not always an OSError."""
    huggingface_hub = pytest.importorskip("huggingface_hub")

    class ProxyError(Exception):
        pass

    def fails(*arguments, **more):
        raise ProxyError("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    for answer, said in ((lambda *_, **more: None, ""), (fails, ", which could not be reached")):
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
        with pytest.raises(gm.TokenizerError, match=rf"json at 'main' cannot be got from the hub{said}: 403 Forbidden"):
            gm.Encoder.from_pretrained("org/model")
