"""Files that are odd as those of real writers are: old, joined, padded, with equal names, or inside of others."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import sqlite3
import uuid
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
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


def test_batches_of_other_lengths_than_their_columns_are_refused(tmp_path, encoder):
    data = stream()
    # The metadata of the first batch, behind those of the schema, have its two rows twice: its own and its column's.
    start = 16 + int.from_bytes(data[4:8], "little")
    end = start + int.from_bytes(data[start - 4 : start], "little")
    two, one = (number.to_bytes(8, "little") for number in (2, 1))
    places = [at for at in range(start, end, 8) if data[at : at + 8] == two]
    assert len(places) == 2
    for at in places:
        with pytest.raises(gm.ShardError, match=r"record 0, .*a column has another number of rows than its batch"):
            texts(encoder, tmp_path / "a.arrow", data[:at] + one + data[at + 8 :])


def zipped(name):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr(name, b"content")
    return sink.getvalue()


def written(write, *values):
    sink = io.BytesIO()
    write(sink, *values)
    return sink.getvalue()


def orc_file():
    sink = io.BytesIO()
    orc.write_table(TABLE, sink)
    return sink.getvalue()


def database():
    connection = sqlite3.connect(":memory:")
    connection.execute("create table texts (text)")
    return connection.serialize()


def crc_32c(data):
    """The remainder of long division by the polynomial, bit by bit, on reflected bits."""
    bits = int.from_bytes(bytes(int(f"{byte:08b}"[::-1], 2) for byte in data), "big") << 32
    bits ^= 0xFFFFFFFF << (8 * len(data))
    while bits.bit_length() > 32:
        bits ^= 0x11EDC6F41 << (bits.bit_length() - 33)
    return int(f"{bits ^ 0xFFFFFFFF:032b}"[::-1], 2)


def tf_record(data=b"an example"):
    assert crc_32c(b"123456789") == 0xE3069283, "the value that RFC 3720 and others give"

    def with_sum(part):
        turned = crc_32c(part)
        return part + ((turned >> 15 | turned << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")

    return with_sum(len(data).to_bytes(8, "little")) + with_sum(data)


def safetensors():
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"a"


TORCH = "a file of torch.save, which is never loaded; convert it to JSON lines"
OFFICE = "a document of Excel or Word; export it to Parquet or JSON lines"
IMAGE, MEDIA = "an image; put images into tars", "a video or a recording; put videos into tars"
ZEROS = bytes(30)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (orc_file, "ORC; convert it to Parquet"),
        (tf_record, "TFRecord; convert it to Parquet or JSON lines"),
        (safetensors, "safetensors, which hold weights"),
        (database, "a database of SQLite; export its table to Parquet"),
        (lambda: lzma.compress(b"a"), "xz; convert it to gzip"),
        (lambda: lzma.compress(b"a", lzma.FORMAT_ALONE), "LZMA; convert it to gzip"),
        (lambda: bz2.compress(b"a"), "bzip2; convert it to gzip"),
        (lambda: pa.compress(b"a", codec="lz4", asbytes=True), "LZ4; convert it to gzip"),
        (lambda: b"\x02\x21\x4c\x18" + ZEROS, "LZ4; convert it to gzip"),
        (lambda: b"\xff\x06\0\0sNaPpY" + ZEROS, "Snappy; convert it to gzip"),
        (lambda: b"\x1f\x9d\x90" + ZEROS, "data of compress; convert it to gzip"),
        (lambda: b"\x89LZO\0\r\n\x1a\n", "lzop; convert it to gzip"),
        (lambda: b"LZIP\x01" + ZEROS, "lzip; convert it to gzip"),
        *((lambda protocol=protocol: pickle.dumps(["a"], protocol), "a pickle, which is") for protocol in range(2, 6)),
        (lambda: zipped("model/data.pkl"), TORCH),
        (lambda: zipped("archive/.format_version"), TORCH),
        (lambda: written(np.savez, np.arange(3)), "an .npz of NumPy; save each array as .npy"),
        (lambda: zipped("[Content_Types].xml"), OFFICE),
        (lambda: zipped("_rels/.rels"), OFFICE),
        (lambda: zipped("a.jsonl"), "a zip archive; pass the files that it holds"),
        (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + ZEROS, OFFICE),
        (lambda: b"7z\xbc\xaf\x27\x1c" + ZEROS, "a 7z archive"),
        (lambda: b"Rar!\x1a\x07\x01\0", "a RAR archive"),
        (lambda: b"Obj\x01\x04\x14avro.codec", "Avro; convert it to Parquet"),
        (lambda: b"\x89HDF\r\n\x1a\n", "HDF5; convert it to Parquet"),
        (lambda: bytes(8) + b"DUCK" + b"\x40" + bytes(7) + b"\x01", "a database of DuckDB"),
        (lambda: bytes(16) + b"\xde\xc0\xef\xbe\x01" + ZEROS, "a database of LMDB"),
        (lambda: b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f" + ZEROS, "Riegeli or ArrayRecord"),
        (lambda: b"GGUF\x03\0\0\0" + ZEROS, "GGUF, which holds weights"),
        (lambda: b"%PDF-1.7\n%\xe2\xe3", "a PDF; extract its text"),
        (lambda: b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", "WARC; extract its texts"),
        (lambda: b"\xff\xd8\xff\xe0\0\x10JFIF", IMAGE),
        (lambda: b"\x89PNG\r\n\x1a\n", IMAGE),
        (lambda: b"GIF89a\x01\0\x01\0", IMAGE),
        (lambda: b"\0\0\0\x20ftypisom", MEDIA),
        (lambda: b"\x1aE\xdf\xa3\x9f", MEDIA),
        (lambda: b"RIFF\x24\x01\0\0WAVEfmt ", MEDIA),
        (lambda: b"ID3\x03\0\0", MEDIA),
        (lambda: b"HTTP/1.1 502 Bad Gateway\r\n", "an answer of a web server; download"),
        (lambda: b"<html>\r\n<head><title>502 Bad Gateway", "a web page; download"),
        (lambda: b"\n<HEAD><TITLE>Error", "a web page; download"),
        (lambda: b"<Error><Code>NoSuchKey</Code></Error>", "XML, in which object stores report errors"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.bin", "a.gz", "inside.jsonl.gz"])
def test_formats_that_are_known_and_not_read_are_named(tmp_path, encoder, data, found, name):
    data = data()
    expected = "gzip data" if name == "a.gz" else "JSON lines .plain, gzip or Zstandard., Parquet, Arrow or tar"
    if name.startswith("inside"):
        data, expected = gzip.compress(data), "JSON lines in the compressed file"
    with pytest.raises(gm.ShardError, match=f"record 0, byte 0: expected {expected}, found {re.escape(found)}"):
        texts(encoder, tmp_path / name, data)


def test_parquet_without_row_groups_is_read(tmp_path, encoder):
    sink = io.BytesIO()
    pq.ParquetWriter(sink, TABLE.schema).close()
    data = sink.getvalue()
    assert texts(encoder, tmp_path / "a.parquet", data) == []
    # As fastparquet writes it: the empty list names no kind of elements.
    old = data.replace(b"\x16\0\x19\x0c", b"\x16\0\x19\0")
    assert old != data
    assert pq.read_table(io.BytesIO(old)).num_rows == 0
    assert texts(encoder, tmp_path / "a.parquet", old) == []


def test_parquet_of_later_writers_is_not_called_damaged(tmp_path, encoder):
    plain = parquet(use_dictionary=False, compression="none")
    # The encoding of a page, before those of its levels, becomes one that no version has yet.
    page = plain.replace(b"\x15\0\x15\x06\x15\x06", b"\x15\x28\x15\x06\x15\x06", 1)
    footer = plain.replace(b"\x15\0\x16\x06", b"\x15\x28\x16\x06", 1)  # the codec, before the number of values
    for data, found in ((page, "encoding 20 of the page at byte 4"), (footer, "a footer that cannot be decoded")):
        assert data != plain
        with pytest.raises(gm.ShardError, match=f"found {found}.*; if pyarrow reads the file, write it again"):
            texts(encoder, tmp_path / "a.parquet", data)


def test_summary_of_other_parquet_files_is_named(tmp_path, encoder):
    sink = []
    pq.write_to_dataset(TABLE, tmp_path / "d", metadata_collector=sink)
    pq.write_metadata(TABLE.schema, tmp_path / "d" / "_metadata", sink)
    with pytest.raises(gm.ShardError, match=r"found one about .*\.parquet. and perhaps others; leave it out"):
        texts(encoder, tmp_path / "d" / "_metadata")


def test_arrow_of_a_few_bytes_is_truncated(tmp_path, encoder):
    for data in (stream()[:4], stream()[:5], random_access()[:6], stream()[:7]):
        with pytest.raises(gm.ShardError, match="the file is truncated"):
            texts(encoder, tmp_path / "a.arrow", data)


@pytest.mark.parametrize("line", [b"id,text", b"1,one", b'"id","text"', b"id\ttext", "名,文".encode()])
def test_tables_of_text_are_advised(tmp_path, encoder, line):
    with pytest.raises(
        gm.ShardError, match=r"expected a JSON object .* if the file is CSV or TSV, convert it to Parquet"
    ):
        texts(encoder, tmp_path / "a.csv", line + b"\n")
    with pytest.raises(gm.ShardError) as raised:
        texts(encoder, tmp_path / "a.csv", b"one text\n")
    assert "CSV" not in str(raised.value)


def test_names_in_tars_and_row_lists_are_no_signatures(tmp_path, encoder):
    names = ["ORC", "RIFF", "GIF8", "ID3", "OggS", "GGUF", "LZIP", "itemftyp"]
    path = tmp_path / "a.tar"
    given = {"text_field": "txt"}
    for name in names:
        assert texts(encoder, path, tar_of([(name, {"txt": b"one"})]), **given) == ["one"]
        old = tar_of([(name, {"txt": b"one"})]).replace(b"ustar", bytes(5))
        assert texts(encoder, path, old[:148] + old_sum(old) + old[156:], **given) == ["one"]
    lines = [json.dumps({"text": name, "id": f"{name}-1"}) for name in names]
    (tmp_path / "ids.txt").write_text("\n".join(f"{name}-1" for name in names[1:]))
    drop = gm.RowList(str(tmp_path / "ids.txt"), key="id")
    assert texts(encoder, tmp_path / "a.jsonl", "\n".join(lines).encode(), drop=drop) == names[:1]


def old_sum(data):
    """The checksum of the first header, whose own field counts as spaces."""
    return b"%06o\0 " % sum(data[:148] + b" " * 8 + data[156:512])
