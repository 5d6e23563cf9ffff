"""Data sets of the Hugging Face Hub as shards, on a server on loopback."""

import gzip
import json

import pytest

import gristmill as gm
from gristmill import _core
from helpers import assert_same_batches
from hub import TOKEN, Hub

pytestmark = pytest.mark.skipif(not hasattr(_core, "Stores"), reason="a build for local files only")

OLD, NEW = "a" * 40, "b" * 40
NAME = "owner/data.set"
DATA = f"hf://datasets/{NAME}"


@pytest.fixture(scope="module")
def files(texts):
    found = {"README.md": b"# words\n", "data/0004/.hidden.gz": b"x"}
    for number in range(4):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number * 20 : number * 20 + 20])
        found[f"data/{number:04d}/en train.json.gz"] = gzip.compress(lines.encode(), mtime=0)
    return found


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture(params=[None, TOKEN], ids=["public", "private"])
def hub(request, files):
    with Hub({NAME: {OLD: dict(files)}}, token=request.param) as hub:
        hub.branches = {"main": OLD, "refs/convert/parquet": OLD}
        yield hub


def dataset(shards, encoder, **more):
    return gm.PackedDataset(shards, tokenizer=encoder, sequence_length=64, batch_size=4, lanes=4, **more)


@pytest.mark.parametrize(
    "pattern",
    ["data/*/en train.json.gz", "data/**/*.gz", "**", "data/000[0-2]/*", "data/0003/en train.json.gz", "*/*/*"],
)
def test_globs_match_as_in_a_folder(folder, hub, pattern):
    local = gm.Manifest.find(f"{folder}/{pattern}")
    for revision in ("", "@main", f"@{OLD}", "@refs/convert/parquet"):
        found = gm.Manifest.find(f"{DATA}{revision}/{pattern}", hub.options())
        assert found.paths == tuple(path.replace(str(folder), f"{DATA}@{OLD}") for path in local.paths)
        assert (found.sizes, found.fingerprint) == (local.sizes, local.fingerprint)


def test_stream_is_that_of_the_files(folder, hub, encoder):
    local = dataset(f"{folder}/data/*/en train.json.gz", encoder)
    found = dataset(f"{DATA}@main/data/*/en train.json.gz", encoder, storage_options=hub.options())
    assert_same_batches(found, local)
    # The other server, which files are read from, sees no token: it would refuse a request with two signatures.
    assert {method for method, *_ in hub.files.requests} == {"GET"}
    assert not any("Authorization" in headers for headers in hub.files.headers)


def test_commit_does_not_change_under_a_run(files, folder, hub, encoder, tmp_path):
    found = dataset(f"{DATA}/data/*/en train.json.gz", encoder, storage_options=hub.options())
    found.manifest.save(tmp_path / "all.manifest.json")
    hub.datasets[NAME][NEW] = {path: bytes(len(data)) for path, data in files.items()}
    hub.branches["main"] = NEW
    local = dataset(f"{folder}/data/*/en train.json.gz", encoder)
    assert_same_batches(found, local)
    later = dataset(str(tmp_path / "all.manifest.json"), encoder, storage_options=hub.options())
    assert_same_batches(later, local)
    assert gm.Manifest.find(f"{DATA}/**/*.gz", hub.options()).paths[0].startswith(f"{DATA}@{NEW}/")


def test_sidecars_and_row_lists_of_a_data_set(hub, encoder):
    def add(path, data):
        hub.datasets[NAME][OLD][path] = hub.files.objects[f"cdn/{NAME}/{OLD}/{path}"] = data

    for number in range(4):
        rows = "".join(json.dumps({"score": row}) + "\n" for row in range(20))
        add(f"signals/{number:04d}/en train.json.gz", gzip.compress(rows.encode()))
    add("rows.txt", b"0001/en train.json.gz/3\n")
    found = dataset(
        f"{DATA}/data/*/en train.json.gz",
        encoder,
        storage_options=hub.options(),
        keep="signals.score >= 10",
        sidecars={"signals": gm.Sidecar("data/", "signals/", match=None)},
        drop=gm.RowList(f"{DATA}/rows.txt"),
    )
    with iter(found) as iterator:
        list(iterator)
        assert (iterator.stats()["documents"], iterator.stats()["filtered"]) == (40, 40)


def test_token_is_found_as_the_hub_s_library_finds_it(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    if hub.token:
        with pytest.raises(gm.MissingShardError, match=r"the hub denies access .*set HF_TOKEN"):
            gm.Manifest.find(f"{DATA}/**")
        (tmp_path / "token").write_text(f"{hub.token}\n")
        assert len(gm.Manifest.find(f"{DATA}/**")) == 5
        (tmp_path / "token").unlink()
        monkeypatch.setenv("HF_TOKEN", hub.token)
    assert len(gm.Manifest.find(f"{DATA}/**")) == 5


def test_missing_data_sets_and_files_are_named(hub):
    for url, message in [
        ("hf://datasets/owner/other/x", "hf://datasets/owner/other@main: the hub knows no such data set or revision"),
        (f"{DATA}@v2/x", "@v2: the hub knows no such data set or revision"),
        (f"{DATA}/none.gz", "no such object: 'hf://datasets/owner/data.set/none.gz'"),
        (f"{DATA}/none/*.gz", "no object matches the glob"),
        ("hf://models/owner/name/x", "expected hf://datasets/owner/name@revision/path"),
        (
            "hf://datasets/name/x",
            r"expected files of the data set, such as 'hf://datasets/name/x/\*\*/\*\.parquet'; as a file of a data set "
            "without owner: hf://datasets/name@main: the hub knows",
        ),
        (f"{DATA}@main", r"expected files of the data set, such as 'hf://datasets/owner/data.set@main/\*\*/\*"),
        (f"{DATA}/data", r"no such object: .*: name the objects of a folder .*, such as '.*data.set/data/\*\.jsonl'"),
        ("hf://datasets/*/x", "expected hf://datasets/owner/name@revision/path"),
        (f"{DATA}/", r"expected files of the data set, such as 'hf://datasets/owner/data.set/\*\*/\*\.parquet'"),
        (
            f"{DATA}@new/branch/x",
            r"@new: the hub knows no such data set or revision \(a slash in a revision is written %2F\)",
        ),
    ]:
        with pytest.raises(gm.MissingShardError, match=message):
            gm.Manifest.find(url, hub.options())


@pytest.mark.parametrize("names", [["data/*/*.gz"], [f"data/000{number}/en train.json.gz" for number in range(4)]])
def test_names_of_renamed_data_sets_are_followed(folder, hub, encoder, names):
    hub.renamed = {"owner/old": NAME}
    old = [f"hf://datasets/owner/old/{name}" for name in names]
    found = dataset(old, encoder, storage_options=hub.options())
    assert_same_batches(found, dataset([str(folder / name) for name in names], encoder))


@pytest.mark.parametrize("name", ["data/*/*.gz", "data/0003/en train.json.gz", "**/*.gz", "README.md"])
@pytest.mark.parametrize("revision", ["", "@main", "@refs/convert/parquet", f"@{OLD}"])
def test_names_without_an_owner_are_those_that_the_hub_has_for_them(folder, hub, name, revision):
    hub.renamed = {"words": NAME}
    found = gm.Manifest.find(f"hf://datasets/words{revision}/{name}", hub.options())
    assert found.paths == gm.Manifest.find(f"{DATA}/{name}", hub.options()).paths
    assert found.sizes == gm.Manifest.find(f"{folder}/{name}").sizes


def test_hub_with_names_without_owners_is_read(folder, hub, encoder):
    """As a mirror may have them: the commit makes such a name one that the core knows."""
    hub.datasets["words"] = hub.datasets[NAME]
    for path in list(hub.files.objects):
        hub.files.objects[path.replace(NAME, "words")] = hub.files.objects[path]
    found = dataset("hf://datasets/words@main/data/*/*.gz", encoder, storage_options=hub.options())
    assert found.manifest.paths[0].startswith(f"hf://datasets/words@{OLD}/")
    assert_same_batches(found, dataset(f"{folder}/data/*/*.gz", encoder))


@pytest.mark.parametrize("status", [400, 405, 451, 501])
def test_answer_of_the_hub_that_is_no_outage_is_not_waited_out(hub, status):
    hub.failures = [status] * 100
    with pytest.raises(gm.GristmillError, match=f"found {status} .*: it refuses such requests"):
        gm.Manifest.find(f"{DATA}/**", hub.options())
    assert len(hub.requests) == 1


def test_revisions_have_any_name(hub):
    hub.branches = {"main": OLD, "feature/new": OLD, "refs/convert/parquet": OLD}
    expected = gm.Manifest.find(f"{DATA}/README.md", hub.options())
    for revision in ("feature%2Fnew", "refs%2Fconvert%2Fparquet", "refs/convert/parquet", "~parquet"):
        assert gm.Manifest.find(f"{DATA}@{revision}/README.md", hub.options()) == expected


def test_names_that_look_like_globs_are_found(hub, files):
    hub.datasets[NAME][OLD]["x[1].jsonl"] = b"{}"
    found = gm.Manifest.find(f"{DATA}/x[1].jsonl", hub.options())
    assert [path.rsplit("/", 1)[1] for path in found.paths] == ["x[1].jsonl"]
    hub.datasets[NAME][OLD]["x1.jsonl"] = b"{}"
    found = gm.Manifest.find(f"{DATA}/x[1].jsonl", hub.options())
    assert [path.rsplit("/", 1)[1] for path in found.paths] == ["x1.jsonl"]


def test_outage_of_the_hub_is_waited_out(hub):
    hub.failures = [503, 429, 500]
    assert len(gm.Manifest.find(f"{DATA}/**", hub.options())) == 5
    hub.failures = [503] * 100
    with pytest.raises(gm.GristmillError, match=r"the hub did not answer: .*503"):
        gm.Manifest.find(f"{DATA}/**", hub.options(retry_timeout="0.5"))
