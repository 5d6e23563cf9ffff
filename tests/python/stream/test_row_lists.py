"""Row lists: rows of the shards that are left out."""

import gzip
import json
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill import filters
from gristmill._cli import main
from helpers import assert_resumes, assert_same_batches
from red_pajama import HEAD, SIGNALS, RedPajama, read, run


@pytest.fixture
def corpus(tmp_path):
    """RedPajama-v2's three folders; about a third of the rows are duplicates, none of the last shard."""
    corpus = RedPajama(tmp_path)
    rng = random.Random(9)
    corpus.duplicates = {}
    for base in [*corpus.documents][:3]:
        rows = rng.sample(range(40), 13)
        write_duplicates(corpus, base, rows)
        corpus.duplicates[base] = set(rows)
    # The list has a row of a snapshot that is not read.
    write_duplicates(corpus, "2023-14/0000/en_head", [1, 2, 3])
    return corpus


def write_duplicates(corpus, base, rows):
    path = corpus.root / "duplicates" / f"{base}.duplicates.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "shard_id": [f"{base}.json.gz"] * len(rows),
        "doc_id": [f"{base}.json.gz/{row}" for row in rows],
        "digest": [f"sha1:{row}" for row in rows],
    }
    pq.write_table(pa.table(columns), path)


def listed(corpus, **arguments):
    return gm.RowList(str(corpus.root / "duplicates" / "**" / "*.parquet"), column="doc_id", **arguments)


def left(corpus):
    """The texts of the rows that are no duplicates."""
    return [
        document["raw_content"]
        for base, documents in sorted(corpus.documents.items())
        for row, document in enumerate(documents)
        if row not in corpus.duplicates.get(base, ())
    ]


def plain(corpus, encoder, **arguments):
    return corpus.dataset(encoder, **{"keep": None, "sidecars": None, **arguments})


def test_duplicates_of_redpajama_are_left_out(corpus, encoder):
    texts, stats = read(plain(corpus, encoder, drop=listed(corpus)))
    assert texts == left(corpus)
    assert (stats["documents"], stats["filtered"], stats["quarantined"]) == (160 - 39, 39, 0)


def test_duplicates_are_left_out_beside_a_filter_on_signals(corpus, encoder):
    texts, stats = read(corpus.dataset(encoder, drop=listed(corpus)))
    kept = set(corpus.kept())
    assert texts == [text for text in left(corpus) if text in kept]
    assert stats["documents"] + stats["filtered"] == 160


@pytest.mark.parametrize("variant", [{}, {"packing": "best_fit", "fit_window": 7}, {"seed": 1, "shuffle_window": 5}])
@pytest.mark.parametrize("keep", [None, filters.gopher])
def test_resume_from_every_step(corpus, encoder, variant, keep):
    lines = corpus.lines(HEAD)
    bad = next(row for row in range(40) if row not in corpus.duplicates[HEAD])
    dropped = min(corpus.duplicates[HEAD])
    lines[bad] = lines[dropped] = "no JSON"
    corpus.write(HEAD, lines)
    given = {"keep": keep, "sidecars": keep and SIGNALS, "drop": listed(corpus), "lanes": 4, "batch_size": 4, **variant}
    given |= {"on_error": "quarantine", "max_error_rate": 0.5}
    iterator = iter(corpus.dataset(encoder, threads=1, **given))
    batches, states = [], [iterator.get_state()]
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert iterator.stats()["quarantined"] == 1
    dataset = pickle.loads(pickle.dumps(corpus.dataset(encoder, threads=2, **given)))
    for step, state in enumerate(states):
        resumed = iter(dataset)
        resumed.set_state(state)
        assert_same_batches(resumed, batches[step:])
        assert resumed.get_state() == states[-1]
        resumed.close()


@pytest.mark.parametrize("form", ["parquet", "jsonl", "text"])
def test_ids_of_a_key(corpus, encoder, form):
    urls = [document["url"] for documents in corpus.documents.values() for document in documents]
    seen = random.Random(4).sample(urls, 50)
    path = corpus.root / "seen"
    column = None if form == "text" else "link"
    if form == "parquet":
        pq.write_table(pa.table({"link": seen}), path)
    elif form == "jsonl":
        path.write_bytes(gzip.compress("\n".join(json.dumps({"link": url}) for url in seen).encode()))
    else:
        path.write_text("\r\n".join(seen) + "\n\n")
    drop = gm.RowList(path, column=column, key="url")
    expected = [
        document["raw_content"]
        for _, documents in sorted(corpus.documents.items())
        for document in documents
        if document["url"] not in seen
    ]
    texts, stats = read(plain(corpus, encoder, drop=drop))
    assert texts == expected
    assert stats["filtered"] == 50
    kept = set(corpus.kept())
    assert read(corpus.dataset(encoder, drop=drop))[0] == [text for text in expected if text in kept]


def test_numbers_as_ids_and_rows_as_lines(tmp_path, encoder):
    lines = [json.dumps({"meta": {"id": 2**60 + row}, "text": f"text {row}"}) for row in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "ids.txt").write_text("".join(f"{2**60 + row}\n" for row in (1, 4)))
    (tmp_path / "rows.txt").write_text("a.jsonl/1\na.jsonl/4\n")
    given = {"tokenizer": encoder, "provenance": 64}
    for drop in [gm.RowList(tmp_path / "ids.txt", key="meta.id"), gm.RowList(tmp_path / "rows.txt")]:
        texts, _ = read(gm.PackedDataset(str(tmp_path / "a.jsonl"), drop=drop, **given))
        assert texts == [f"text {row}" for row in range(9) if row not in (1, 4)]


@pytest.mark.parametrize("first", ["PK1", "BZh91", "ORC", "FEA1", "Obj1", "7z", "Rar!"])
def test_ids_may_begin_as_other_kinds_of_files_do(tmp_path, encoder, first):
    lines = [json.dumps({"id": name, "text": name}) for name in (first, "other")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "ids.txt").write_text(f"{first}\n")
    drop = gm.RowList(tmp_path / "ids.txt", key="id")
    texts, _ = read(gm.PackedDataset(str(tmp_path / "a.jsonl"), tokenizer=encoder, provenance=64, drop=drop))
    assert texts == ["other"]


def test_list_that_names_none_of_the_shards_is_an_error(corpus, encoder):
    drop = gm.RowList(str(corpus.root / "duplicates" / "2023-14" / "*" / "*"), column="doc_id")
    with pytest.raises(gm.ArgumentError) as caught:
        plain(corpus, encoder, drop=drop)
    message = str(caught.value)
    assert 'such as "2023-06/0000/en_head.json.gz/0", found none' in message
    assert message.endswith('the first one is "2023-14/0000/en_head.json.gz/1"')


def test_lists_that_cannot_be_read(corpus, encoder, tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text('{"doc_id": "2023-06/0000/en_head.json.gz/0"}\n{"doc_id": "abc"}\n')
    with pytest.raises(gm.ShardError, match=r'record 1, byte \d+: expected an id such as .*, found "abc"; set key='):
        plain(corpus, encoder, drop=gm.RowList(path, column="doc_id"))
    with pytest.raises(gm.ShardError, match=r'the key "id".*with column='):
        plain(corpus, encoder, drop=gm.RowList(path, column="id"))
    pq.write_table(pa.table({"doc_id": ["abc"]}), tmp_path / "list.parquet")
    for records in (path, tmp_path / "list.parquet"):  # they had named no row, in silence
        with pytest.raises(gm.ShardError, match="expected an id, found a record; name its key or column"):
            plain(corpus, encoder, drop=gm.RowList(records, key="doc_id"))
    (tmp_path / "braces.txt").write_text("{8b9a2c1e-0000-4000-8000-000000000000}\n")
    assert plain(corpus, encoder, drop=gm.RowList(tmp_path / "braces.txt", key="doc_id"))
    with pytest.raises(gm.MissingShardError, match="no such file"):
        plain(corpus, encoder, drop=gm.RowList(tmp_path / "nothing"))
    for value, reason in [("a:b", "expected FILES"), ("a:column=", "column=''"), (":key=a", "expected FILES")]:
        with pytest.raises(gm.ArgumentError, match=reason):
            plain(corpus, encoder, drop=value)
    with pytest.raises(gm.ArgumentTypeError, match="expected a RowList, got int"):
        plain(corpus, encoder, drop=3)
    with pytest.raises(gm.ArgumentError, match="key='a > 1': expected a key"):
        gm.RowList("a", key="a > 1")


def test_list_defines_the_stream(corpus, encoder):
    before = plain(corpus, encoder, drop=listed(corpus))
    assert "drop=" in before.fingerprint
    assert plain(corpus, encoder, drop=listed(corpus)).fingerprint == before.fingerprint
    state = iter(before).get_state()
    write_duplicates(corpus, HEAD, [1])
    with pytest.raises(gm.StateError, match="drop was"):
        iter(plain(corpus, encoder, drop=listed(corpus))).set_state(state)
    with pytest.raises(gm.StateError, match="drop was"):
        iter(plain(corpus, encoder)).set_state(state)


def test_command_line_knows_row_lists(corpus, encoder, tokenizer_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    option = "duplicates/**/*.parquet:column=doc_id"
    output = ["--tokenizer", tokenizer_file, "--output", tmp_path / "packed", "--text-field", "raw_content"]
    found = run(capsys, "pack", corpus.glob(), *output, "--drop", option, "--batch-size", 4)
    assert (found["documents"], found["filtered"]) == (121, 39)
    monkeypatch.chdir(tmp_path.parent)
    assert run(capsys, "verify", tmp_path / "packed")["items"] == found["items"]
    (tmp_path / "duplicates").rename(tmp_path / "moved")
    assert main.run(["verify", str(tmp_path / "packed")]) == 1
    assert "no file matches the glob" in capsys.readouterr().err
    moved = ["--drop", tmp_path / "moved" / "**" / "*.parquet:column=doc_id"]
    assert run(capsys, "verify", tmp_path / "packed", *moved)["items"] == found["items"]
    (tmp_path / "moved").rename(tmp_path / "duplicates")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps(iter(plain(corpus, encoder, drop=listed(corpus))).get_state()))
    arguments = [
        "inspect",
        tmp_path / "state.json",
        "--shards",
        corpus.glob(),
        "--row",
        0,
        "--tokenizer",
        tokenizer_file,
    ]
    assert main.run([*map(str, arguments)]) == 2
    assert "name it with --drop" in capsys.readouterr().err
    found = run(capsys, *arguments, "--drop", option)
    rows = [segment["record"] for segment in found["segments"]]
    assert rows
    assert not corpus.duplicates[HEAD] & set(rows)


def test_rows_are_known_by_number_in_whole_shards_only(tmp_path, encoder):
    lines = [json.dumps({"id": row, "text": f"text {row} " * 20}) for row in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "list.txt").write_text("a.jsonl/7\n")
    (tmp_path / "ids.txt").write_text("7\n")
    given = {"tokenizer": encoder, "split_bytes": 1000, "lanes": 4, "provenance": 64}
    with pytest.raises(gm.ArgumentError, match="shards cannot be divided with drop="):
        gm.PackedDataset(str(tmp_path / "a.jsonl"), drop=gm.RowList(tmp_path / "list.txt"), **given)
    dataset = gm.PackedDataset(str(tmp_path / "a.jsonl"), drop=gm.RowList(tmp_path / "ids.txt", key="id"), **given)
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        assert iterator.stats()["filtered"] == 1


@pytest.mark.parametrize("key", [None, "url"])
def test_rows_of_parquet_are_left_out(tmp_path, encoder, key):
    path = tmp_path / "columns" / "0.parquet"
    path.parent.mkdir()
    columns = {"text": [f"text {row}" for row in range(50)], "url": [f"u/{row}" for row in range(50)]}
    pq.write_table(pa.table(columns), path, row_group_size=9)
    (tmp_path / "list.txt").write_text("".join(f"{'u' if key else '0.parquet'}/{row}\n" for row in (0, 7, 8, 9, 49)))
    drop = gm.RowList(tmp_path / "list.txt", key=key)
    dataset = gm.PackedDataset(str(path), tokenizer=encoder, drop=drop, provenance=16, sequence_length=16)
    texts, stats = read(dataset)
    assert texts == [text for row, text in enumerate(columns["text"]) if row not in (0, 7, 8, 9, 49)]
    assert stats["filtered"] == 5
    assert_resumes(dataset, 7)


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize("keep", [None, "id != 2"])
def test_rows_are_left_out_of_completions(tmp_path, encoder, key, keep):
    lines = [json.dumps({"id": row, "prompt": f"{row} plus 1?", "completion": f"{row + 1}"}) for row in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "list.txt").write_text("".join(f"{'' if key else 'a.jsonl/'}{row}\n" for row in (0, 7, 8, 29)))
    dataset = gm.PackedDataset(
        str(tmp_path / "a.jsonl"),
        tokenizer=encoder,
        sample=gm.Completion("prompt", "completion"),
        drop=gm.RowList(tmp_path / "list.txt", key=key),
        keep=keep,
        packing="pad",
        sequence_length=64,
        provenance=True,
    )
    with iter(dataset) as iterator:
        rows = [row["provenance"][0][1] for row in iterator]
        filtered = iterator.stats()["filtered"]
    assert rows == [row for row in range(30) if row not in ((0, 7, 8, 29) if keep is None else (0, 2, 7, 8, 29))]
    assert filtered == 30 - len(rows)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_behind_the_end_of_a_shard_are_an_error(tmp_path, encoder, kind):
    shard, rows = tmp_path / f"a.{kind}", tmp_path / "rows.txt"
    texts = [f"text {number}" for number in range(10)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), shard)
    else:
        shard.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def read(listed, **arguments):
        rows.write_bytes("".join(f"{shard.name}/{row}\n" for row in listed).encode("utf-8-sig"))
        given = {"packing": "pad", "sequence_length": 16, "batch_size": 1, **arguments}
        iterator = iter(gm.PackedDataset(str(shard), tokenizer=encoder, drop=gm.RowList(str(rows)), **given))
        return len(list(iterator)), iterator.stats()

    assert read([0, 9])[0] == 8
    with pytest.raises(
        gm.ShardError, match=r"record 10.*drop= to list rows of the shard, which has 10 records, found row 10"
    ):
        read([3, 99, 10])
    delivered, stats = read([3, 99], on_error="quarantine", max_error_rate=1.0)
    assert (delivered, stats["quarantined"], stats["filtered"]) == (9, 1, 1)
    rows.write_bytes(b"a/\xff/1\n")
    with pytest.raises(gm.ShardError, match=r"rows\.txt: record 0, byte 0: expected ids in UTF-8"):
        gm.PackedDataset(str(shard), tokenizer=encoder, drop=gm.RowList(str(rows)), sequence_length=16)
