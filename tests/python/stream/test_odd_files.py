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


LONG = "long " * 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("write", [stream, random_access])
def test_batches_of_long_texts_need_no_larger_limit(tmp_path, encoder, kind, write):
    """150 MB in one batch that is not compressed: a row at a time is read of it."""
    rows = [f"short {n}" if n % 2 else LONG for n in range(30)]
    table = pa.table({"text": pa.array(rows, kind), "n": range(30)}).combine_chunks()
    data = joined(table, write)
    assert texts(encoder, tmp_path / "a.arrow", data, keep="n % 2 == 1") == rows[1::2]
    assert texts(encoder, tmp_path / "a.arrow", keep="text == 'short 7'") == ["short 7"]
    (tmp_path / "a.arrow").write_bytes(data)
    message = f"record 0.*: expected a text of at most 1000 bytes, found one of {len(LONG)}; raise max_document_bytes="
    with pytest.raises(gm.ShardError, match=message):
        texts(encoder, tmp_path / "a.arrow", max_document_bytes=1000)
    with pytest.raises(gm.ShardError, match="expected the columns of a record batch to have at most"):
        texts(encoder, tmp_path / "a.arrow", joined(table, write, compression="zstd"), keep="n % 2 == 1")


def joined(table, write, **options):
    """A file of one batch."""
    sink = io.BytesIO()
    new = pa.ipc.new_stream if write is stream else pa.ipc.new_file
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("write", [stream, random_access])
def test_batches_of_long_conversations_need_no_larger_limit(tmp_path, encoder, write):
    turn = {"role": "user", "content": LONG}
    rows = [[turn, {"role": "assistant", "content": f"answer {n}"}] if n % 2 == 0 else [] for n in range(30)]
    rows[7] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]
    nulls = pa.array([n == 3 for n in range(30)])
    column = pa.array(rows).filter(pa.array([True] * 30))
    table = pa.table({"messages": column, "text": pa.array([str(n) for n in range(30)]), "null": nulls})
    (tmp_path / "a.arrow").write_bytes(joined(table, write))
    assert texts(encoder, tmp_path / "a.arrow", keep="messages[1].content == 'answer 20'") == ["20"]
    assert texts(encoder, tmp_path / "a.arrow", keep="len(messages) == 0") == [
        str(n) for n in range(1, 30, 2) if n != 7
    ]
    assert texts(encoder, tmp_path / "a.arrow", keep="messages[0].content == 'a'") == ["7"]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_brotli_are_read(tmp_path, encoder, version):
    table = pa.table({"text": [f"text {n % 50}" for n in range(5000)], "n": range(5000)})
    data = parquet(table, compression="brotli", data_page_version=version, row_group_size=900, data_page_size=2000)
    assert texts(encoder, tmp_path / "a.parquet", data) == table["text"].to_pylist()
    assert texts(encoder, tmp_path / "a.parquet", keep="n % 1000 == 7") == ["text 7"] * 5
    at = len(data) // 3
    with pytest.raises(gm.ShardError, match="expected a valid Parquet file, found a corrupt one"):
        texts(encoder, tmp_path / "a.parquet", data[:at] + bytes(50) + data[at + 50 :])


@pytest.mark.slow
def test_zstandard_windows_are_as_large_as_the_longest_record(tmp_path, encoder):
    lines = b"".join(b'{"text": "%d"}\n' % n for n in range(3))

    # A frame whose header claims a window of so many bytes, with one raw block.
    def frame(log):
        return b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3]) + (len(lines) << 3 | 1).to_bytes(3, "little") + lines

    for log in (27, 28, 31):
        given = {"max_document_bytes": 1 << log}
        assert texts(encoder, tmp_path / "a.jsonl.zst", frame(log), **given) == ["0", "1", "2"]
        if log > 27:
            message = f"window of at most 134217728 bytes, found one of {1 << log}.* set max_document_bytes={1 << log}"
            with pytest.raises(gm.ShardError, match=message):
                texts(encoder, tmp_path / "a.jsonl.zst")
    with pytest.raises(gm.ShardError, match=r"window of at most 2147483648 bytes, found one of 4294967296.*; compress"):
        texts(encoder, tmp_path / "a.jsonl.zst", frame(32), max_document_bytes=2**40)


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
