"""Files that are odd as those of real writers are: old, joined, padded, with equal names, or inside of others."""

import gzip
import io
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from helpers import tar_of

TABLE = pa.table({"text": ["one", "two", "three"]})


def stream(table=TABLE, **options):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def random_access(table=TABLE, **options):
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def parquet(table=TABLE, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def texts(encoder, path, data=None, **arguments):
    if data is not None:
        path.write_bytes(data)
    given = {"packing": "pad", "sequence_length": 64, "batch_size": 1, "eos": False, "layout": "grain", **arguments}
    dataset = gm.PackedDataset(str(path), tokenizer=encoder, **given)
    rows = [batch["tokens"][batch["tokens_segment_ids"] > 0] for batch in dataset]
    return [encoder.decode(row.tolist()) for row in rows if row.size]


ALL = ["one", "two", "three"]


@pytest.mark.parametrize("rest", [stream(), b"garbage", b"\0"])
def test_stream_that_goes_on_behind_its_end_is_an_error(tmp_path, encoder, rest):
    message = rf"record 3: expected the end of the Arrow file .* found {len(rest)} more bytes"
    with pytest.raises(gm.ShardError, match=message):
        texts(encoder, tmp_path / "a.arrow", stream() + rest)


@pytest.mark.parametrize("write", [stream, random_access])
def test_arrow_without_marks_of_messages_is_read(tmp_path, encoder, write):
    """As Arrow wrote it before version 0.15."""
    old = write(use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    assert texts(encoder, tmp_path / "a.arrow", old) == ALL
    assert texts(encoder, tmp_path / "a.jsonl", old) == ALL, "by its content"
    with pytest.raises(gm.ShardError, match="expected more messages or an end mark"):
        texts(encoder, tmp_path / "a.arrow", old[: len(old) - 20])


def test_old_unions_are_refused(tmp_path, encoder):
    union = pa.UnionArray.from_dense(
        pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([1, 2, 3])]
    )
    table = pa.table({"other": union, "text": ALL})
    assert texts(encoder, tmp_path / "a.arrow", stream(table)) == ALL
    # No writer of today makes such files: the version in the metadata of the schema is changed.
    new, old = (
        stream(TABLE, metadata_version=version) for version in (pa.ipc.MetadataVersion.V5, pa.ipc.MetadataVersion.V4)
    )
    at = next(index for index, (a, b) in enumerate(zip(new, old, strict=True)) if a != b)
    assert (new[at], old[at]) == (4, 3)
    whole = stream(table)
    at = whole.index(b"\x04\0", 8)
    with pytest.raises(
        gm.ShardError, match="expected Arrow's metadata of version 5 beside a column of type union, found"
    ):
        texts(encoder, tmp_path / "a.arrow", whole[:at] + b"\x03" + whole[at + 1 :])


def test_files_of_arrow_are_read_by_their_footer(tmp_path, encoder):
    data = random_access()
    length = int.from_bytes(data[12:16], "little")
    # Other writers leave other bytes in place of the schema in front.
    odd = data[:8] + b"x" * (8 + length) + data[16 + length :]
    assert pa.ipc.open_file(odd).read_all() == TABLE
    assert texts(encoder, tmp_path / "a.arrow", odd) == ALL
    footer = int.from_bytes(data[-10:-6], "little")
    for damaged in (data[:-10] + b"\xff" * 4 + data[-6:], data[: -10 - footer] + b"\xff" * footer + data[-10:]):
        with pytest.raises(gm.ShardError, match="its footer is not valid"):
            texts(encoder, tmp_path / "a.arrow", damaged)


def test_pieces_of_a_file_of_arrow_have_all_rows(tmp_path, encoder):
    table = pa.table({"text": pa.array([f"text {n % 7}" for n in range(500)]).dictionary_encode()})
    whole = texts(encoder, tmp_path / "a.arrow", random_access(table))
    assert whole == table["text"].to_pylist()
    size = (tmp_path / "a.arrow").stat().st_size
    assert texts(encoder, tmp_path / "a.arrow", split_bytes=size // 5, lanes=1) == whole


def twice(name, other="text"):
    arrays = [pa.array(["one"]), pa.array(["two"]), pa.array(["three"])]
    return pa.Table.from_arrays(arrays, names=[name, name, other])


@pytest.mark.parametrize("write", [parquet, stream, random_access])
def test_columns_with_one_name_are_refused_if_they_are_read(tmp_path, encoder, write):
    message = r'record 0.*expected one column named "{}", found several'
    with pytest.raises(gm.ShardError, match=message.format("text")):
        texts(encoder, tmp_path / "a", write(twice("text", "other")))
    with pytest.raises(gm.ShardError, match=message.format("x")):
        texts(encoder, tmp_path / "a", write(twice("x")), keep="x == 'two'")
    assert texts(encoder, tmp_path / "a", write(twice("x"))) == ["three"]


@pytest.mark.parametrize("write", [parquet, stream])
def test_fields_with_one_name_are_refused(tmp_path, encoder, write):
    message = pa.StructArray.from_arrays(
        [pa.array(["user"]), pa.array(["a"]), pa.array(["b"])], ["role", "content", "content"]
    )
    messages = pa.ListArray.from_arrays([0, 1], message)
    (tmp_path / "a").write_bytes(write(pa.table({"messages": messages, "id": [1]})))
    given = {"tokenizer": encoder, "layout": "ragged", "batch_size": 1}
    chat = gm.Chat(template="{{ messages[0].content }}")
    with pytest.raises(gm.ShardError, match='expected one column named "content", found several'):
        gm.PromptDataset(str(tmp_path / "a"), prompt=chat, **given)


@pytest.mark.parametrize("write", [parquet, stream])
def test_uuids_are_the_same_in_both_formats(tmp_path, encoder, write):
    ids = [uuid.UUID(int=number) for number in (7, 2**127 + 1)]
    column = pa.array([value.bytes for value in ids], pa.uuid())
    path = tmp_path / "a"
    path.write_bytes(write(pa.table({"text": ["one", "two"], "id": column})))
    assert texts(encoder, path, keep=f"id == '{ids[1]}'") == ["two"]
    prompts = gm.PromptDataset(str(path), tokenizer=encoder, prompt=gm.Text("text"), layout="ragged", batch_size=1)
    assert [prompts[item]["id"] for item in range(2)] == ids


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (parquet(), "a Parquet file; inflate it"),
        (stream(), "an Arrow file; inflate it"),
        (random_access(), "an Arrow file; inflate it"),
        (tar_of([("a", {"txt": b"one"})]), r"a tar; let its name end in \.tar\.gz"),
        (gzip.compress(b'{"text": "one"}\n'), "a compressed file again; inflate it once"),
        (b"<!DOCTYPE html>\n", "a web page"),
    ],
)
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_that_hold_no_lines_are_named(tmp_path, encoder, codec, data, found):
    compressed = pa.compress(data, codec=codec, asbytes=True) if codec == "zstd" else gzip.compress(data)
    message = f"record 0, byte 0: expected JSON lines in the compressed file, found {found}"
    with pytest.raises(gm.ShardError, match=message):
        texts(encoder, tmp_path / "a.gz", compressed)


@pytest.mark.parametrize("write", [parquet, stream])
def test_bytes_that_are_not_utf_8_are_no_text(tmp_path, encoder, write):
    path = tmp_path / "a"
    bad = pa.array(["\ufffd fine".encode(), b"bad\xff"], pa.binary())
    path.write_bytes(write(pa.table({"text": bad, "prompt": ["a", "b"], "id": [0, 1]})))
    (tmp_path / "a.more").write_text('{"n": 1}\n{"n": 2}\n')
    given = {"tokenizer": encoder, "layout": "ragged", "batch_size": 1}
    not_text = 'record 1: expected a string under the key "text", found bytes that are not UTF-8'
    with pytest.raises(gm.ShardError, match=not_text):
        gm.PromptDataset(str(path), prompt=gm.Text("text"), **given)
    with pytest.raises(gm.ShardError, match=not_text):
        texts(encoder, path, sample=gm.Completion("prompt", "text"))
    sidecar = gm.Sidecar(str(tmp_path), str(tmp_path), "a", "a.more")
    for keep in ("more.n > 0", "more.n > 0 and id >= 0"):
        with pytest.raises(gm.ShardError, match='record 1: expected UTF-8 in the column "text"'):
            texts(encoder, path, keep=keep, sidecars={"more": sidecar})
        found = texts(encoder, path, keep=f"{keep} and more.n < 2", sidecars={"more": sidecar})
        assert found == ["\ufffd fine"]
