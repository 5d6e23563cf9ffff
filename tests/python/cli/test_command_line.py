"""The command line as a whole: help, exit codes, interrupts, progress."""

import contextlib
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import click
import pytest

import gristmill as gm
from command_line import fails, run_json, shard_of
from gristmill._cli import main
from gristmill._demo import sample_text
from gristmill._util.progress import Progress
from helpers import PATIENCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "gristmill", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_demo_prints_results_on_stdout_progress_on_stderr(folder, capsys):
    arguments = ["demo", "--folder", str(folder), "--megabytes", "0.3", "--threads", "1"]
    assert main.run(arguments) == 0
    captured = capsys.readouterr()
    assert "tokens/s" in captured.out
    assert "index  token" in captured.out
    assert "filled; the rest is padding of lanes that ended early\n" in captured.out
    assert captured.err.splitlines()[0] == f"sample text in {folder} ..."
    assert all(line.startswith("packing: ") for line in captured.err.splitlines()[1:])
    result = run_json(capsys, *arguments)
    assert result["stats"]["rows"] > 0


def test_demo_writes_into_the_cache_by_default(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run_json(capsys, "demo", "--megabytes", "0.05", "--sequence-length", "64", "--rows", "8")
    assert result["shards"] == len(list(tmp_path.glob("gristmill/demo/*/en_head.json.gz"))) == 8


def test_every_command_has_help_with_examples(capsys):
    for name in main.cli.commands:
        assert main.run([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert f"Examples:\n    gristmill {name}" in out


def test_command_summaries_are_not_truncated(capsys):
    assert main.run(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(commands) == len(main.cli.commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_version_prints_build_info(capsys):
    assert main.run(["--version"]) == 0
    out = capsys.readouterr().out
    info = gm.build_info()
    assert out.startswith(f"gristmill {gm.__version__} (commit ")
    assert info["instructions"] in out
    assert f"tokenizers crate {info['tokenizers_crate']}" in out
    assert info["system"].split()[0] == sys.platform
    assert ("JPEG is decoded without vector code" in out) != info["jpeg_vector_code"]


def test_startup_does_not_import_heavy_packages():
    loaded = "import sys, gristmill._cli.main; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grain", "jax", "datasets", "matplotlib", "array_record"} & set(modules)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_completion_of_options(shell):
    def completed(**environment):
        command = [sys.executable, "-c", "from gristmill._cli.main import main; main()"]
        return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True).stdout

    assert "_GRISTMILL_COMPLETE" in completed(_GRISTMILL_COMPLETE=f"{shell}_source")
    current = "--pack" if shell == "fish" else "2"
    words = {"COMP_WORDS": "gristmill pack --pack", "COMP_CWORD": current}
    assert "--packing" in completed(**words, _GRISTMILL_COMPLETE=f"{shell}_complete")


@pytest.mark.parametrize("path", ["SHARDS", "PATH", "FOLDER", "--shards", "--tokenizer", "--output", "--folder"])
def test_path_parameters_complete_as_paths(path):
    params = [
        (command, param)
        for command in main.cli.commands.values()
        for param in command.params
        if path in (*param.opts, param.human_readable_name)
    ]
    assert params
    for command, param in params:
        (item,) = param.shell_complete(click.Context(command), "a")
        assert item.type in ("file", "dir"), (command.name, param.name)


def test_only_completes_contender_names():
    bench = main.cli.commands["bench"]
    (only,) = [param for param in bench.params if param.name == "only"]
    assert [item.value for item in only.shell_complete(click.Context(bench), "gr")] == ["gristmill", "grain"]


@pytest.mark.parametrize("arguments", [["grind"], ["demo", "--rows", "0"], ["inspect"], ["demo", "--threads", "no"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Usage: gristmill" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        "inspect NOWHERE",
        "inspect NOWHERE --row 0 --tokenizer TOKENIZER",
        "inspect SHARD --row 0 --tokenizer NOWHERE",
        "inspect STATE --row 0 --tokenizer TOKENIZER --shards NOWHERE",
        "pack NOWHERE --tokenizer TOKENIZER --output NEW",
        "pack SHARD NOWHERE --tokenizer TOKENIZER --output NEW",
        "pack SHARD --tokenizer NOWHERE --output NEW",
        "pack SHARD --tokenizer EMPTY --output NEW",
        "pack SHARD --tokenizer TOKENIZER --output SHARD/NEW",
        "verify NOWHERE",
        "verify EMPTY",
        "verify PACKED --shards NOWHERE",
        "verify PACKED --tokenizer NOWHERE",
        "demo --folder NEW --tokenizer NOWHERE",
        "demo --folder SHARD/NEW",
        "bench --shards NOWHERE --only copy",
        "bench --shards SHARD --only copy --tokenizer NOWHERE",
        "bench --shards SHARD --only copy --output SHARD/NEW",
    ],
)
def test_missing_path_is_named_by_every_command(tmp_path, tokenizer_file, arguments, capsys):
    paths = {name: tmp_path / name.lower() for name in ("NOWHERE", "NEW", "EMPTY", "PACKED", "STATE")}
    paths |= {"SHARD": shard_of(tmp_path, '{"text": "some words"}'), "TOKENIZER": tokenizer_file}
    paths["EMPTY"].mkdir()
    iterator = iter(gm.PackedDataset(paths["SHARD"], tokenizer=tokenizer_file))
    paths["STATE"].write_text(json.dumps(iterator.get_state()))
    run_json(capsys, "pack", paths["SHARD"], "--tokenizer", tokenizer_file, "--output", paths["PACKED"])
    for name, path in paths.items():
        arguments = arguments.replace(name, str(path))
    said = fails(capsys, *arguments.split())
    assert any(f"{path}" in said for path in (paths["NOWHERE"], paths["EMPTY"], paths["SHARD"]))
    assert not paths["NEW"].exists()


def test_demo_without_home_asks_for_a_folder(monkeypatch, capsys):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert "name a folder for the sample text with --folder" in fails(capsys, "demo")


def test_error_is_one_line_and_exits_with_1(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text("{}")
    folder, tokenizer = tmp_path / "demo", tmp_path / "tokenizer.json"
    line = fails(capsys, "demo", "--folder", folder, "--megabytes", 0.01, "--tokenizer", tokenizer)
    assert str(tmp_path / "tokenizer.json") in line


@pytest.mark.slow
def test_interrupt_exits_quietly_with_130(tmp_path):
    with command("demo", "--folder", tmp_path, "--megabytes", "40", "--threads", "1") as process:
        assert process.stderr.readline().startswith("sample text")
        while not (tmp_path / "0007/en_head.json.gz").exists():  # while it writes the text
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_alarm_of_the_caller_is_kept():
    """A test runner may implement its timeouts with it."""
    rang = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    before = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        assert main.run(["--version"]) == 0
        time.sleep(0.4)
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)
    assert rang


@pytest.mark.slow
def test_inspect_can_be_interrupted_while_reading(tmp_path):
    """The core returns nothing to Python during twenty gigabytes of blank lines."""
    blank = gzip.compress(b"\n" * 2**20)
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n') + 20_000 * blank)
    script = textwrap.dedent(
        f"""
        import os, signal, sys, threading
        from gristmill._cli import main
        threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT]).start()
        sys.exit(main.run(["inspect", {str(tmp_path / "s.jsonl.gz")!r}]))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_swallowed_interrupt_is_raised_again(number, code):
    """Python discards exceptions in garbage collector callbacks, and JAX installs one."""
    script = textwrap.dedent(
        f"""
        import gc, os, signal, sys, time
        import click
        from gristmill._cli import main
        from gristmill._util import output

        def callback(phase, info):
            gc.callbacks.remove(callback)
            os.kill(os.getpid(), signal.{number})

        def wait():
            with output.cleaning_up_when_terminated():
                gc.callbacks.append(callback)
                gc.collect()
                time.sleep(60)

        main.cli.add_command(click.Command("wait", callback=wait))
        sys.exit(main.run(["wait"]))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "")


def test_interrupt_during_imports_exits_with_130(tmp_path):
    """Even if the package that is being imported swallows the `KeyboardInterrupt`."""
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm/__init__.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(5)\n"
        "except BaseException:\n"
        "    pass\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with command("demo", "--folder", tmp_path / "demo", env={**os.environ, "PYTHONPATH": path}) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "", "")


def test_closed_pipe_exits_quietly(tmp_path):
    with command("inspect", shard_of(tmp_path, '{"text": "a"}')) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=PATIENCE) == 1


def test_operating_system_error_is_one_line(tmp_path, capsys):
    (tmp_path / "process_0-of-1.json").mkdir()
    assert "Is a directory" in fails(capsys, "inspect", tmp_path)


def test_progress_without_terminal_is_a_few_lines(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("packing", 200, "B") as progress:
        for second, done in ((0.4, 10), (0.6, 50), (0.7, 60), (1.5, 70), (1.7, 100), (3.5, 120), (3.8, 150)):
            now[0] = second
            progress.show(done, "fast" if done < 100 else "")
    # After half a second, then after 1, then after 2.
    assert capsys.readouterr().err == "packing: 25%, fast\npacking: 50%\npacking: 75%\n"


def test_progress_on_terminal_without_width_is_lines(capfd, monkeypatch):
    controller, terminal = pty.openpty()  # without a size, as programs that emulate a terminal leave it
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        with Progress("packing", 2, "B") as progress:
            patched.setattr(progress, "_next_line", 0.0)
            progress.show(1)
        assert os.read(controller, 100) == b"packing: 50%\r\n"
    os.close(controller)


def test_unwritable_stderr_does_not_stop_the_work(monkeypatch):
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - to close it is an error, too
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        with Progress("packing", 2, "B") as progress:
            patched.setattr(progress, "_next_line", 0.0)
            progress.show(1)
    with pytest.raises(OSError, match="No space left"):
        full.close()


def read_all(terminal):
    shown = b""
    with contextlib.suppress(OSError):  # a closed terminal raises it
        while chunk := os.read(terminal, 1 << 16):
            shown += chunk
    os.close(terminal)
    return shown.decode()


@pytest.mark.slow
def test_progress_on_a_terminal_is_a_bar(folder):
    leader, follower = pty.openpty()
    termios.tcsetwinsize(leader, (24, 100))
    process = subprocess.run(
        [sys.executable, "-m", "gristmill", "demo", "--folder", str(folder), "--megabytes", "0.3", "--json"],
        stdout=subprocess.PIPE,
        stderr=follower,
        check=True,
    )
    os.close(follower)
    shown = read_all(leader)
    assert "packing" in shown
    assert "M tokens/s" in shown
    assert json.loads(process.stdout)["stats"]["rows"] > 0


@pytest.mark.slow
def test_bench_reads_eos_as_pack_does(tmp_path, monkeypatch, capsys):
    from gristmill._bench import rounds

    path = shard_of(tmp_path, '{"text": "a"}')
    seen = []
    monkeypatch.setattr(rounds, "compare", lambda job, *rest: seen.append(job.eos) or {})
    for eos in ("auto", "none", "5", "!"):
        run_json(capsys, "bench", "--shards", path, "--eos", eos)
    encoder = gm.Encoder.from_file(sample_text.tokenizer())
    assert seen == [encoder.eos_id, None, 5, encoder.token_to_id("!")]


def test_bench_requires_only_packages_of_its_contenders(tmp_path, monkeypatch, capsys):
    import importlib.util

    from gristmill._bench import rounds

    path = shard_of(tmp_path, '{"text": "a"}')
    monkeypatch.setattr(rounds, "compare", lambda *arguments: {"names": arguments[-1]})
    find = importlib.util.find_spec
    absent = ("datasets", "tokenizers", "gigatoken")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    assert run_json(capsys, "bench", "--shards", path, "--only", "inflate")["names"] == ["inflate"]
    assert "gigatoken not installed" in fails(capsys, "bench", "--shards", path, "--only", "gigatoken")
    assert "datasets and tokenizers not installed" in fails(capsys, "bench", "--shards", path)


def test_closed_stderr_is_tolerated(folder):
    command = f"{sys.executable} -m gristmill inspect '{folder}/nowhere' 2>&-"
    process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (process.returncode, process.stdout) == (1, "")


def test_output_encoding_may_lack_characters(tmp_path):
    shard = shard_of(tmp_path, '{"text": "世界", "ключ": 1}')
    for arguments in (["inspect", str(shard)], ["inspect", str(shard), "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "gristmill", *arguments],
            env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert b"\\u043a" in done.stdout
    assert "ключ" in json.loads(done.stdout)["keys"]
