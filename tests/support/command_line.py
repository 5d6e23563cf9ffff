"""Runs commands of the command line in this process, and writes shards for them."""

import gzip
import json

from gristmill._cli import main


def shard_of(tmp_path, *lines, name="shard.json.gz"):
    path = tmp_path / name
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    return path


def run_json(capsys, *arguments):
    assert main.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fails(capsys, *arguments, code=1):
    """The one line on stderr of a command that ends with a GristmillError."""
    assert main.run(list(map(str, arguments))) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def checked(capsys, *arguments):
    """The exit code of a command, and its JSON or else its stderr."""
    code = main.run([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else captured.err
