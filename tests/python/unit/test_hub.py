"""Tokenizers from the Hugging Face hub, with a local server in its place."""

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

pytestmark = pytest.mark.slow


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that `huggingface_hub` needs to download a file."""

    files: ClassVar[dict[str, bytes]] = {}
    broken: ClassVar[set[str]] = set()  # paths for which the server fails
    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        self.asked.append(self.path)
        data = self.files.get(self.path)
        # Not 500, which the client retries for half a minute.
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
    """A hub with a model: a function that runs code with it and returns the printed lines.

    The code runs in a process of its own, because `huggingface_hub` reads the hub's address when it is imported.
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
# Makes a wait of the hub's client before a retry visible.
PRINT_WAITS = """
    import time
    time.sleep = lambda seconds: print("waits for", seconds)
"""


def test_from_pretrained_downloads_files_of_the_hub(hub, encoder):
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
    assert (
        "'org/other' is not a local folder, and its tokenizer.json at 'main' cannot be downloaded from the hub"
        in lines[1]
    )


def test_chat_template_of_the_hub_is_found(hub, tmp_path):
    Hub.files["/org/model/resolve/main/chat_template.jinja"] = b"{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"messages": [{"role": "assistant", "content": "a"}]}')
    lines = hub(f"""
        print(gm.ChatTemplate.from_pretrained("org/model").render([{{"role": "user", "content": "a"}}]))
        encoder = gm.Encoder.from_pretrained("org/model")
        rows = list(gm.PackedDataset({str(shard)!r}, tokenizer=encoder, sample=gm.Chat(), layout="grain"))
        print(encoder.decode(rows[0]["tokens"][rows[0]["tokens_loss_mask"] == 1]))
    """)
    assert lines == ["a</s>", "a</s>"]


def test_command_line_takes_a_name_on_the_hub(hub):
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
        "1 error: 'org/other' is not a local folder, and its tokenizer.json at 'main' cannot be downloaded"
    )
    assert lines[2].startswith("1 error: no such file: 'nowhere' (working folder: ")


def test_unreachable_hub_is_reported_without_retries(hub):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    (said,) = hub(PRINT_WAITS + EOS_OR_ERROR, HF_ENDPOINT=closed)
    assert said.startswith(
        "'org/model' is not a local folder, and its tokenizer.json at 'main' cannot be downloaded from the hub"
    )
    assert ", which could not be reached: " in said
    assert hub(EOS_OR_ERROR) == ["1"]
    assert hub(EOS_OR_ERROR, HF_ENDPOINT=closed) == ["1"]  # from the cache


@pytest.mark.parametrize(
    "name", ["./a/b", "../b", "/a", "~/b", "a/b/c", "a/tokenizer.json", "tokenizer.json", "a/b c", "a/", "a//b"]
)
def test_name_that_can_only_be_a_path_does_not_ask_the_hub(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hub_module, "download", lambda *arguments: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gm.MissingTokenizerError, match="no such folder"):
        gm.Encoder.from_pretrained(name)
    assert checked(capsys, "pack", "a.gz", "--tokenizer", name, "--output", "b")[0] == 1


def test_hub_client_of_another_version_works(hub, encoder, monkeypatch):
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
    # A client that lacks more fails with the name that it lacks.
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    with pytest.raises(ImportError, match=r"cannot import name '(constants|hf_hub_download)'"):
        gm.Encoder.from_pretrained("org/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(gm.MissingExtraError, match=r"pip install 'gristmill\[hf\]'"):
        gm.Encoder.from_pretrained("org/model")


def test_tab_completion_does_not_ask_the_hub(hub):
    complete = {"_GRISTMILL_COMPLETE": "bash_complete", "COMP_WORDS": "gristmill pack x --tokenizer org/model --out"}
    lines = hub("from gristmill._cli import main; main.run([])", **complete, COMP_CWORD="5")
    assert lines == ["plain,--output"]
    assert Hub.asked == []


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_server_error_of_the_hub_is_not_a_missing_file(hub, file):
    Hub.files["/org/model/resolve/main/special_tokens_map.json"] = b'{"eos_token": "<s>"}'
    Hub.broken = {f"/org/model/resolve/main/{file}"}
    assert f"its {file} at 'main' cannot be downloaded from the hub" in hub(EOS_OR_ERROR)[0]
    Hub.broken = set()
    assert hub(EOS_OR_ERROR) == ["1"]


def test_cached_model_loads_offline(hub):
    assert hub(EOS_OR_ERROR) == ["1"]  # the cache also notes that there is no special_tokens_map.json
    assert hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1") == ["1"]
    Hub.broken = {f"/org/model/resolve/main/{file}" for file in [*FILES, "special_tokens_map.json"]}
    assert hub(EOS_OR_ERROR) == ["1"]


def test_cache_of_another_program_loads_offline(hub):
    fetch = "import huggingface_hub\nfor file in {}: huggingface_hub.hf_hub_download('org/model', file)"
    hub(fetch.format(FILES[:1]))
    assert "its tokenizer_config.json at 'main' cannot be downloaded" in hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1")[0]
    hub(fetch.format(FILES))
    assert hub(EOS_OR_ERROR, HF_HUB_OFFLINE="1") == ["1"]


@pytest.mark.parametrize(("revision", "error"), [(5, gm.ArgumentTypeError), ("", gm.ArgumentError)])
def test_revision_must_be_a_string(revision, error):
    with pytest.raises(error, match=rf"revision={revision!r}: expected a (non-empty )?string"):
        gm.Encoder.from_pretrained("org/model", revision=revision)


def test_any_hub_client_error_becomes_a_tokenizer_error(monkeypatch):
    """The errors of its HTTP client depend on the version, and are not always OSErrors."""
    huggingface_hub = pytest.importorskip("huggingface_hub")

    class ProxyError(Exception):
        pass

    def fails(*arguments, **more):
        raise ProxyError("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    for answer, said in ((lambda *_, **more: None, ""), (fails, ", which could not be reached")):
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
        with pytest.raises(
            gm.TokenizerError, match=rf"json at 'main' cannot be downloaded from the hub{said}: 403 Forbidden"
        ):
            gm.Encoder.from_pretrained("org/model")
