"""Sidecars: signals in files of their own, joined by line."""

import gzip
import json
import pickle
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill import filters
from gristmill._cli import main
from helpers import assert_resumes, assert_same_batches, take_padding
from red_pajama import HEAD, MIDDLE, OPTION, SIGNALS, RedPajama, gopher, read, run


@pytest.fixture
def corpus(tmp_path):
    return RedPajama(tmp_path)


def test_filter_sees_the_signals_of_each_record(corpus, encoder):
    texts, stats = read(corpus.dataset(encoder))
    assert 5 < len(texts) < 100
    assert texts == corpus.kept()
    assert stats["documents"] == len(texts)
    assert stats["documents"] + stats["filtered"] == 160
    assert stats["quarantined"] == 0


@pytest.mark.parametrize("variant", [{}, {"packing": "best_fit", "fit_window": 7}, {"seed": 1, "shuffle_window": 5}])
def test_resume_from_every_step_and_on_other_hosts(corpus, encoder, variant):
    given = {"lanes": 4, "batch_size": 4, "epochs": 2, "on_error": "quarantine", "max_error_rate": 0.5, **variant}
    lines, signals = corpus.lines(HEAD), corpus.signals_lines(HEAD)
    corpus.write(HEAD, ["no JSON", *lines[1:]], [*signals[:3], "no JSON", "", *signals[5:]])
    dataset = corpus.dataset(encoder, threads=1, **given)
    iterator = iter(dataset)
    batches, states = [], [iterator.get_state()]
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert iterator.stats()["quarantined"] == 2 * 3
    for step, state in enumerate(states):
        resumed = iter(corpus.dataset(encoder, threads=2, **given))
        resumed.set_state(json.loads(json.dumps(state)))
        assert_same_batches(resumed, batches[step:])
        assert resumed.get_state() == states[-1]
        resumed.close()
    for hosts in (2, 4):
        own = [iter(corpus.dataset(encoder, shard_index=host, shard_count=hosts, **given)) for host in range(hosts)]
        middle = len(batches) // 2
        for iterator in own:
            iterator.set_state(states[middle])
        for expected in batches[middle : middle + 3]:
            parts = [next(iterator, None) or take_padding(iterator) for iterator in own]
            for name, array in expected.items():
                assert np.array_equal(np.concatenate([part[name] for part in parts]), array)
        for iterator in own:
            iterator.close()


def shorter(corpus):
    corpus.write(HEAD, signals=corpus.signals_lines(HEAD)[:30])
    return 30, "record 30, byte ", "expected a record 30, as the shard has one, found the end: the sidecar is shorter"


def longer(corpus):
    corpus.write(HEAD, corpus.lines(HEAD)[:30])
    return 30, "record 30, byte ", "expected the end, as the shard ends before, found a record: the sidecar is longer"


def blank_line_of_the_shard(corpus):
    lines = corpus.lines(HEAD)
    corpus.write(HEAD, [*lines[:30], "", *lines[31:]])
    return 31, "record 30, byte ", "expected no record, as the shard has a blank line there, found one"


def truncated(corpus):
    path = corpus.signals_path(HEAD)
    whole = gzip.compress("".join(f"{line}\n" for line in corpus.signals_lines(HEAD)).encode(), 0)
    path.write_bytes(whole[: len(whole) * 3 // 4])
    return None, "record ", "truncated"


@pytest.mark.parametrize("fault", [shorter, longer, blank_line_of_the_shard, truncated])
def test_sidecar_that_is_out_of_step_loses_the_rest_of_its_shard(corpus, encoder, fault):
    record, place, reason = fault(corpus)
    with pytest.raises(gm.ShardError) as caught:
        read(corpus.dataset(encoder, lanes=1))
    assert caught.value.shard == str(corpus.path(HEAD))
    assert record in (None, caught.value.record)
    message = str(caught.value)
    assert f'in its sidecar "signals", found none to use: {corpus.signals_path(HEAD)}: {place}' in message
    assert reason in message
    assert message.endswith('set on_error="quarantine" to skip the rest of this shard')
    given = {"lanes": 1, "on_error": "quarantine", "max_error_rate": 0.3}
    texts, stats = read(corpus.dataset(encoder, **given))
    at = caught.value.record
    assert (stats["quarantined"], stats["lost_shards"]) == (1, 1)
    kept = [gopher(record) for record in corpus.signals[HEAD]]
    before = [
        document["raw_content"] for document, is_kept in zip(corpus.documents[HEAD], kept, strict=True) if is_kept
    ]
    if fault is blank_line_of_the_shard:
        at -= 1
    corpus.write(HEAD)
    assert texts == before[: sum(kept[:at])] + corpus.kept()[len(before) :]


def test_bad_record_of_either_file_leaves_the_others_in_step(corpus, encoder):
    lines, signals = corpus.lines(HEAD), corpus.signals_lines(HEAD)
    lines[3] = '{"raw_content": "' + "x" * 5000 + '"}'
    lines[7] = "no JSON"
    signals[3] = "no JSON either"
    signals[11] = '{"id": ' + "1" * 5000 + "}"
    signals[12] = "[]"
    signals[13] = ""
    corpus.write(HEAD, lines, signals)
    given = {"lanes": 1, "max_document_bytes": 4000}
    texts, stats = read(corpus.dataset(encoder, on_error="quarantine", max_error_rate=0.2, **given))
    assert (stats["quarantined"], stats["lost_shards"]) == (5, 0)
    corpus.write(HEAD)
    left_out = {
        document["raw_content"] for row, document in enumerate(corpus.documents[HEAD]) if row in (3, 7, 11, 12, 13)
    }
    assert texts == [text for text in corpus.kept() if text not in left_out]


@pytest.mark.parametrize("case", ["a line is lost", "of another shard", "of another row"])
def test_sidecar_whose_id_names_another_row_is_an_error_with_both_places(corpus, encoder, case):
    signals = corpus.signals_lines(HEAD)
    if case == "a line is lost":
        del signals[5]
        row, found = 5, f"{HEAD}.json.gz/6"
    elif case == "of another shard":
        signals = corpus.signals_lines(MIDDLE)
        row, found = 0, f"{MIDDLE}.json.gz/0"
    else:
        signals[5] = signals[5].replace(".json.gz/5", ".json.gz/17")
        row, found = 5, f"{HEAD}.json.gz/17"
    corpus.write(HEAD, signals=signals)
    with pytest.raises(gm.ShardError) as caught:
        read(corpus.dataset(encoder, lanes=1))
    assert (caught.value.shard, caught.value.record) == (str(corpus.path(HEAD)), row)
    assert (
        f'expected the id of row {row} of this shard in its sidecar "signals": {corpus.signals_path(HEAD)}: record '
        in (str(caught.value))
    )
    assert f'found "{found}"; the sidecar is of another shard' in str(caught.value)
    # By keys that both have, or not at all.
    by_url = gm.Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz", match=("url", "metadata.url"))
    if case == "of another row":
        read(corpus.dataset(encoder, sidecars={"signals": by_url}))
    else:
        with pytest.raises(gm.ShardError, match=r'expected the id "https://0\.org/') as caught:
            read(corpus.dataset(encoder, lanes=1, sidecars={"signals": by_url}))
        assert caught.value.record == row
    if case == "a line is lost":
        quarantined = {"on_error": "quarantine", "max_error_rate": 1.0}
        _, stats = read(corpus.dataset(encoder, **quarantined))
        assert stats["quarantined"] == 40 - 5


@pytest.mark.parametrize("missing", ["error", "keep", "drop"])
def test_shards_without_a_sidecar(corpus, encoder, missing):
    corpus.signals_path(HEAD).unlink()
    sidecars = {
        "signals": gm.Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz", missing=missing)
    }
    keep = f"{filters.gopher} and url != 'https://0.org/3'"
    if missing == "error":
        with pytest.raises(
            gm.MissingShardError, match=f"no such file: '{corpus.signals_path(HEAD)}', the sidecar 'signals'"
        ):
            corpus.dataset(encoder, sidecars=sidecars)
        return
    texts, stats = read(corpus.dataset(encoder, sidecars=sidecars, keep=keep))
    documents = [record["raw_content"] for record in corpus.documents[HEAD]]
    corpus.write(HEAD, signals=[json.dumps({**signals, "quality_signals": {}}) for signals in corpus.signals[HEAD]])
    gopher_of_others = read(corpus.dataset(encoder))[0]
    # Conditions that do not name the sidecar still count.
    own = documents[:3] + documents[4:] if missing == "keep" else []
    assert texts == own + gopher_of_others
    assert stats["documents"] + stats["filtered"] == 160


def test_sidecar_that_changes_after_the_manifest_was_made(corpus, encoder):
    dataset = corpus.dataset(encoder, lanes=1)
    corpus.write(HEAD, signals=corpus.signals_lines(HEAD)[:9])
    with pytest.raises(gm.ShardError, match=r"found none to use: .*expected the \d+ bytes of the manifest, found"):
        next(iter(dataset))
    changed = corpus.dataset(encoder, lanes=1)
    assert changed.manifest.fingerprint != dataset.manifest.fingerprint
    with pytest.raises(gm.StateError, match="manifest"):
        iter(changed).set_state(iter(dataset).get_state())
    # A manifest that is kept keeps the sizes.
    again = gm.PackedDataset(
        pickle.loads(pickle.dumps(dataset.manifest)), tokenizer=encoder, keep=filters.gopher, sidecars=SIGNALS, lanes=1
    )
    assert again.manifest == dataset.manifest
    corpus.signals_path(HEAD).unlink()
    with pytest.raises(gm.ShardError, match=r"found none to use: .*expected the file of the manifest, found none"):
        next(iter(dataset))


def test_attributes_of_dolma(tmp_path, encoder):
    rng = random.Random(1)
    expected = []
    for number in range(3):
        lines, attributes = [], []
        for row in range(50):
            name = f"id-{number}-{row}"
            score = rng.random()
            lines.append(json.dumps({"id": name, "text": f"text {number} {row}", "source": "web"}))
            attributes.append(json.dumps({"id": name, "attributes": {"quality__score": [[0, 9, score]]}}))
            if score > 0.5:
                expected.append(f"text {number} {row}")
        for folder, written in [("documents", lines), ("attributes/quality", attributes)]:
            path = tmp_path / folder / "cc" / f"{number}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress("\n".join(written).encode()))

    def dataset(**arguments):
        return gm.PackedDataset(
            str(tmp_path / "documents" / "**" / "*.json.gz"),
            tokenizer=encoder,
            keep="quality.attributes.quality__score[0][2] > 0.5",
            sidecars={"quality": gm.Sidecar("documents", "attributes/quality")},
            provenance=64,
            **arguments,
        )

    texts, stats = read(dataset())
    assert texts == expected
    assert stats["filtered"] == 150 - len(expected)
    path = tmp_path / "attributes" / "quality" / "cc" / "1.json.gz"
    lines = gzip.decompress(path.read_bytes()).decode().replace("id-1-7", "id-1-77")
    path.write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(gm.ShardError, match=r'expected the id "id-1-7" in its sidecar "quality": .*found "id-1-77"'):
        read(dataset())


def test_text_form_of_sidecars():
    for sidecar in [
        SIGNALS["signals"],
        gm.Sidecar("documents", "attributes/a:b,c\\", missing="drop", match=None),
        gm.Sidecar("", "", ".json.gz", ".s.json.gz", missing="keep", match=("url", "metadata.url")),
        gm.Sidecar("a", "b", match="uuid"),
    ]:
        assert gm.Sidecar.parse("sidecars", sidecar.text) == sidecar
    assert SIGNALS["signals"].text == "documents/:quality_signals/:.json.gz:.signals.json.gz"


def test_sidecars_that_cannot_be(corpus, encoder):
    for sidecar, reason in [
        (gm.Sidecar("papers/", "signals/"), "expected the sidecar's folder 'papers/' in its path"),
        (gm.Sidecar("documents/", "signals/", ".zst", ".s"), "expected a name with the sidecar's ending '.zst'"),
    ]:
        with pytest.raises(gm.ArgumentError, match=reason):
            corpus.dataset(encoder, sidecars={"signals": sidecar})
    with pytest.raises(gm.ArgumentError, match="expected another folder or ending"):
        gm.Sidecar("documents/", "documents")
    with pytest.raises(gm.ArgumentError, match="match='a > 1': expected a key"):
        gm.Sidecar("a", "b", match="a > 1")
    with pytest.raises(gm.ArgumentError, match="expected a name as Python's variables have it"):
        corpus.dataset(encoder, sidecars={"my signals": SIGNALS["signals"]})
    with pytest.raises(gm.ArgumentTypeError, match="expected a Sidecar, got str"):
        corpus.dataset(encoder, sidecars={"signals": "quality_signals"})
    with pytest.raises(gm.ArgumentError, match="expected NAME=FOLDER:SIDECAR_FOLDER"):
        corpus.dataset(encoder, sidecars="signals=documents/")


def test_pack_and_verify_with_sidecars(corpus, tokenizer_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    packed = tmp_path / "packed"
    options = ["--keep", filters.gopher, "--sidecar", OPTION, "--text-field", "raw_content", "--batch-size", 4]
    arguments = ["documents/*/*/*.json.gz", "--tokenizer", tokenizer_file, "--output", packed, *options]
    found = run(capsys, "pack", *arguments, "--sequence-length", 32)
    kept = len(corpus.kept())
    assert (found["documents"], found["filtered"]) == (kept, 160 - kept)
    monkeypatch.chdir(tmp_path.parent)
    assert run(capsys, "verify", packed)["items"] == found["items"]
    corpus.write(HEAD, signals=[line.replace("url", "link") for line in corpus.signals_lines(HEAD)])
    assert main.run(["verify", str(packed)]) == 1
    assert "does not match this source" in capsys.readouterr().err


def test_inspect_shows_what_a_filter_on_sidecars_keeps(corpus, capsys):
    found = run(capsys, "inspect", corpus.glob(), "--keep", filters.gopher, "--sidecar", OPTION)
    assert (found["records_read"], found["kept"], found["bad"]) == (160, len(corpus.kept()), 0)
    assert len(found["clauses"]) == 5
    words = next(value for value in found["values"] if "word_count" in value["expression"])
    assert words["kinds"]["missing"] > 5
    lines, signals = corpus.lines(HEAD), corpus.signals_lines(HEAD)
    corpus.write(HEAD, ["no JSON", *lines[1:]], [*signals[:3], "no JSON", *signals[4:30]])
    found = run(capsys, "inspect", corpus.glob(), "--keep", filters.gopher, "--sidecar", OPTION)
    assert (found["records_read"], found["bad"]) == (30 + 1 + 120, 3)
    corpus.signals_path(HEAD).unlink()
    drop = f"{OPTION}:missing=drop"
    found = run(capsys, "inspect", corpus.glob(), "--keep", filters.gopher, "--sidecar", drop)
    assert found["clauses"][0]["clause"] == "signals is not None"
    assert (found["clauses"][0]["kept"], found["records_read"]) == (120, 160)


def test_inspect_finds_the_source_of_a_row(corpus, encoder, tokenizer_file, tmp_path, capsys):
    with iter(corpus.dataset(encoder, lanes=2, batch_size=2)) as iterator:
        next(iterator)
        state = iterator.get_state()
        batch = next(iterator)
    (tmp_path / "state.json").write_text(json.dumps(state))
    common = ["--row", 1, "--tokenizer", tokenizer_file]
    of_state = run(capsys, "inspect", tmp_path / "state.json", "--shards", corpus.glob(), *common)
    settings = ["batch_size=2", "lanes=2", "sequence_length=32", "text_field=raw_content", f"sidecars={OPTION}"]
    options = [option for setting in [*settings, f"keep={filters.gopher}"] for option in ("--set", setting)]
    of_shards = run(capsys, "inspect", corpus.glob(), "--step", 1, *common, *options)
    assert of_state["segments"] == of_shards["segments"]
    lengths = [length for *_, length in batch["provenance"][1].tolist() if length]
    assert [segment["length"] for segment in of_state["segments"]] == lengths


def test_command_line_refuses_sidecars_without_a_filter(corpus, tokenizer_file, tmp_path, capsys):
    assert main.run(["inspect", str(corpus.path(HEAD)), "--sidecar", OPTION]) == 2
    assert "No such option" in capsys.readouterr().err
    output = ["--output", str(tmp_path / "packed"), "--tokenizer", str(tokenizer_file)]
    assert main.run(["pack", corpus.glob(), *output, "--sidecar", OPTION]) == 2
    assert "--sidecar has no effect without --keep" in capsys.readouterr().err
    assert main.run(["pack", corpus.glob(), *output, "--keep", "a", "--sidecar", "signals"]) == 2
    assert "--sidecar" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["parquet", "arrow", "zstd", "plain"])
def test_sidecars_of_any_format(corpus, encoder, form):
    expected = corpus.kept()
    for base in corpus.documents:
        path = corpus.root / "other" / f"{base}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{line}\n" for line in corpus.signals_lines(base)).encode()
        if form == "parquet":
            table = pa.Table.from_pylist(corpus.signals[base])
            pq.write_table(table, path, row_group_size=7)
        elif form == "arrow":
            table = pa.Table.from_pylist(corpus.signals[base])
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=7)
        elif form == "zstd":
            path.write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
        else:
            path.write_bytes(lines)
    sidecars = {"signals": gm.Sidecar("documents", "other", ".json.gz", f".{form}")}
    dataset = corpus.dataset(encoder, sidecars=sidecars, lanes=1)
    assert read(dataset)[0] == expected
    assert_resumes(dataset, 20)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("match", ["id", None])
def test_shards_with_columns_and_sidecars(corpus, encoder, form, match):
    for base, records in corpus.documents.items():
        path = corpus.root / "columns" / f"{base}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(records)
        if form == "parquet":
            pq.write_table(table, path, row_group_size=9)
        else:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=9)
    sidecar = gm.Sidecar("columns", "quality_signals", f".{form}", ".signals.json.gz", match=match)
    given = {"tokenizer": encoder, "text_field": "raw_content", "sidecars": {"signals": sidecar}, "provenance": 128}
    shards = str(corpus.root / "columns" / "*" / "*" / "*")
    kept = corpus.kept()
    assert read(gm.PackedDataset(shards, keep=filters.gopher, **given))[0] == kept
    # With conditions on both.
    keep = f"{filters.gopher} and url not in ('https://0.org/3', 'https://1.org/5')"
    left_out = {corpus.documents[HEAD][3]["raw_content"], corpus.documents[MIDDLE][5]["raw_content"]}
    dataset = gm.PackedDataset(shards, keep=keep, sequence_length=64, **{**given, "provenance": 64})
    texts, stats = read(dataset)
    assert texts == [text for text in kept if text not in left_out]
    assert stats["documents"] + stats["filtered"] == 160
    assert_resumes(dataset, 4)


def test_sidecar_that_the_filter_does_not_name_is_a_warning(corpus, encoder, caplog):
    corpus.dataset(encoder, keep="signal.id != ''")
    assert "keep= does not name the sidecar 'signals'" in caplog.text
    caplog.clear()
    corpus.dataset(encoder)
    assert not caplog.text
