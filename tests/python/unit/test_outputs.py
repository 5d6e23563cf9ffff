"""Files that are about to be written are refused where a later manifest would list them as shards."""

import itertools
from pathlib import Path

import pytest

import gristmill as gm
from command_line import fails
from gristmill._cli import main
from gristmill._shards.outputs import find_shard

FILES = [
    "data/out.json",
    "data/packed/out.json",
    "data/a/packed/out.json",
    "data/.hidden/out.json",
    "data/.out.json",
    "linked/out.json",
    "other/out.json",
    "out.json",
    "data/[a]/out.json",
]
GLOBS = [
    "*", "**", "**/*", "*/*", "data/*", "data/**", "data/**/*", "data/**/**", "data/*/*", "data/*/*.json", "data/*.gz",
    "data/**/out.json", "data/**/packed/*", "data/packed/**", "d*a/**", "data/.*", "data/.*/*", "data/.hidden/*",
    "linked/*", "linked/**", "target/*", "data/[[]a]/*", "data/[a]/*", "data/out.jso?", "./data/*", "data//*",
    "data/../data/*", "*.json", "data/*/**/out.json", "nothing/*",
]  # fmt: skip


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("data/packed", "data/a/packed", "data/.hidden", "data/[a]", "target", "other"):
        Path(folder).mkdir(parents=True)
    Path("linked").symlink_to("target")
    return tmp_path


@pytest.mark.parametrize("absolute", [False, True])
def test_find_shard_agrees_with_a_later_manifest(tree, absolute):
    found = 0
    for pattern, file in itertools.product(GLOBS, FILES):
        if absolute:
            pattern, file = (str(tree / name) for name in (pattern, file))
        before = find_shard([pattern], [file])
        Path(file).write_text("")
        try:
            paths = gm.Manifest.find(pattern).paths
        except gm.MissingShardError:
            paths = ()
        is_shard = any(Path(path).samefile(file) for path in paths)
        assert (before is not None) == is_shard, (pattern, file, paths)
        assert (find_shard([pattern], [file]) is not None) == is_shard, (pattern, file, paths)
        found += is_shard
        Path(file).unlink()
    assert found > 60


def test_find_shard_knows_paths_and_manifests(tree):
    Path("data/*.json").write_text("")
    Path("data/b.json").write_text("")
    for shards in (["data/*.json", "data/b.json"], gm.Manifest.find(["data/*.json", "data/b.json"])):
        assert find_shard(shards, ["data/packed/c", "data/b.json"]) == ("data/b.json", "it is one of the shards")
        # A name that exists is no glob.
        assert find_shard(shards, ["data/c.json"]) is None
        assert find_shard(shards, ["linked/../data/b.json"]) is not None
    assert find_shard(["linked/c"], ["target/c"]) is not None


def test_quarantine_file_among_the_shards_is_refused(tree, encoder):
    Path("data/a.jsonl").write_text('{"text": "a"}\n')
    policy = {"tokenizer": encoder, "on_error": "quarantine"}
    for shards in ("data/*", iter(["data/*"]), ["data/a.jsonl", tree / "data" / "**"]):
        with pytest.raises(gm.ArgumentError, match=r"quarantine_file='.*/q': the glob '.*' of the shards matches it"):
            gm.PackedDataset(shards, quarantine_file="data/q", **policy)
    for shards in ("data/a.jsonl", gm.Manifest.find("data/*")):
        with pytest.raises(gm.ArgumentError, match="it is one of the shards"):
            gm.PackedDataset(shards, quarantine_file="data/a.jsonl", **policy)
        gm.PackedDataset(shards, quarantine_file="data/q", **policy)


@pytest.mark.parametrize(
    ("shards", "named"),
    [
        ("data/**", "index.json"),
        ("data/*/*", "index.json"),
        ("data/**/*.npy", "part-00000.npy"),
        ("data/*/part*.unfinished", "part-00000.json.unfinished"),
        ("data/**/*.jsonl", "quarantine.jsonl"),
    ],
)
def test_pack_under_its_own_glob_is_refused_before_writing(tree, tokenizer_file, capsys, shards, named):
    Path("data/b").mkdir()
    Path("data/b/part.jsonl").write_text('{"text": "a"}\n')
    pack = ["pack", shards, "--tokenizer", tokenizer_file, "--output", "data/new", "--on-error", "quarantine"]
    said = fails(capsys, *pack, code=2)
    assert f"data/new/{named}' will be written, and the glob {shards!r} of the shards matches it, too" in said
    assert not Path("data/new").exists()


def test_bench_results_among_its_shards_are_refused(tree, tokenizer_file, capsys):
    Path("data/bench.json").write_text('{"text": "a"}\n')
    for shards in ("data/*", "data/bench.json", "data/*.svg"):
        code = main.run(
            ["bench", "--shards", shards, "--tokenizer", str(tokenizer_file), "--only", "copy", "--output", "data"]
        )
        assert code == 2
        assert "write into another folder" in capsys.readouterr().err
    assert Path("data/bench.json").read_text() == '{"text": "a"}\n'
