"""The tables of docs/formats.md: each row has an example here, which is tried on a shard."""

import base64
import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import tarfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import gristmill as gm
from gristmill._inspect import contents
from helpers import ROOT, tar_of

DOCUMENT = ROOT / "docs" / "formats.md"
MARK = b"\xef\xbb\xbf"

# For the start of each row of "Lines" some examples: a line, with its text, or a pattern of the error, or None for a
# line that is skipped.
LINES = {
    "empty, or only space, tab, carriage return": [(b"", None), (b" \t\r", None)],
    "ends in CRLF": [(b'{"text": "crlf"}\r', "crlf")],
    "the last one, without a newline": [(b'{"text": "last"}', "last")],
    "starts with a byte order mark, at the shard's start": [(MARK + b'{"text": "marked"}', "marked")],
    "a byte order mark anywhere else outside a string": [
        (MARK + b'{"text": "a"}', re.compile(r"byte order mark \(U\+FEFF\), which is allowed only at the start")),
        (b'{"text": "\xef\xbb\xbf in a string"}', "\ufeff in a string"),
    ],
    "longer than `max_document_bytes`": [
        (b'{"text": "' + b"x" * 3000 + b'"}', re.compile(r"at most 2000 bytes, found one of 3012; raise max_document"))
    ],
    "not UTF-8, anywhere in it": [
        (b'{"text": "\xff"}', re.compile("UTF-8")),
        (b'{"text": "a", "x": "\xed\xa0\x80"}', re.compile("UTF-8")),
        (b'{"text": "a", "x": "\xc0\xaf"}', re.compile("UTF-8")),
    ],
    "only the start of an object": [(b"{", re.compile("found the end of the line .* jq -c [.]$"))],
    "not an object": [(line, re.compile(r"expected a JSON object \('{'\)")) for line in (b"[]", b'"a"', b"1", b"true")],
    "not JSON": [
        (line, re.compile("expected .* found"))
        for line in (
            b'{"text": "a",}',
            b'{"text": "a" /* no */}',
            b"{'text': 'a'}",
            *(b'{"text": "a", "x": ' + number + b"}" for number in (b"01", b"+1", b".5", b"1.")),
        )
    ],
    "`NaN`, `Infinity`, `-Infinity`": [
        (b'{"text": "a", "x": %b}' % word, re.compile(f"found {word.decode().lstrip('-')}, which is not JSON"))
        for word in (b"NaN", b"Infinity", b"-Infinity")
    ],
    "bytes after the object": [(b'{"text": "a"} x', re.compile("expected the end of the line after the object"))],
    "a raw control character in a string, NUL too": [
        (b'{"text": "%c"}' % code, re.compile("expected control characters in a string to be escaped"))
        for code in (0, 9, 31)
    ],
    "NUL as `\\u0000`": [(b'{"text": "a\\u0000b"}', "a\0b")],
    "the key is missing": [(b'{"other": 1, "more": 2}', re.compile(r'"text".*"other", "more".*text_field='))],
    "the key is written with escapes": [(b'{"te\\u0078t": "escaped"}', "escaped")],
    "the key only inside a nested object": [(b'{"x": {"text": "a"}}', re.compile(r'"text".*"x"'))],
    "the key several times": [(b'{"text": 1, "text": "one", "text": "two"}', "two")],
    "`null`, a number, `true`, `false`, an array or an object under the key": [
        (b'{"text": %b}' % value, re.compile('expected a string under the key "text", found .* at byte 9'))
        for value in (b"null", b"1", b"true", b"false", b"[]", b"{}")
    ],
    "the empty string under the key": [(b'{"text": ""}', "")],
    'a lone surrogate (`"\\ud800"`) in the text': [(b'{"text": "\\ud800"}', re.compile(r"surrogate.*byte 10"))],
    "a lone surrogate in another value, another key or an earlier duplicate": [
        (b'{"text": "\\udc00", "\\ud800": "\\ud800", "text": "fine"}', "fine")
    ],
    'a surrogate pair (`"\\ud83d\\ude00"`)': [(b'{"text": "\\ud83d\\ude00"}', "\U0001f600")],
    "numbers of any size and length": [(b'{"text": "n", "x": -%b.5e%b}' % (b"1" * 900, b"9" * 900), "n")],
    "nesting of any depth": [(b'{"x": ' + b"[" * 900 + b"]" * 900 + b', "text": "deep"}', "deep")],
}


# Good JSON that a run refuses for its arguments; inspect, which has none, accepts it.
REFUSED_BY_RUNS_ONLY = (
    "longer than `max_document_bytes`", "the key is missing", "the key only inside a nested object",
    "`null`, a number, `true`, `false`, an array or an object under the key", "a lone surrogate (`",
)  # fmt: skip


def assert_inspect_agrees(path, entries):
    """Asserts that `gristmill inspect` refuses a shard at the run's first entry, with the same words."""
    refused = []
    try:
        assert contents.inspect(path)["whole_file_read"]
    except gm.ShardError as error:
        refused = [(error.record, error.byte, error.reason.split("; it was read as a shard")[0])]
    assert refused == [(entry["record"], entry["byte"], entry["reason"]) for entry in entries[:1]]


def rows(heading):
    section = DOCUMENT.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    return [row for row in found[1:] if not set(row) <= {"-"}]


def line_of(row):
    """The whole line of a table whose first column is this."""
    return next(line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {row} |"))


def read(path, encoder, **arguments):
    """The rows of ids, the quarantine entries and the stats of a shard."""
    iterator = iter(
        gm.PackedDataset(
            path,
            tokenizer=encoder,
            packing="pad",
            sequence_length=64,
            layout="grain",
            eos=False,
            max_document_bytes=2000,
            on_error="quarantine",
            max_error_rate=1.0,
            **arguments,
        )
    )
    ids = [row["tokens"][row["tokens_segment_ids"] > 0].tolist() for row in iterator]
    return ids, iterator.quarantine(), iterator.stats()


# Rows that need other arguments have tests of their own below; the last one would need hundreds of MB.
ELSEWHERE = (
    '`text_field="a.b"`', "columns of the filter longer", "a string in a column of the filter",
    "a row whose lists lie in pages of more", "another column, or a field of the same struct",
    "written by pyarrow before 3.0", "rows of the footer that are neither", "rows of a row group, or values of",
)  # fmt: skip


def examples_of(row, examples):
    """The examples of a row, of which one key is the beginning."""
    named = [start for start in examples if row.startswith(start)]
    assert len(named) == 1, f"no example for the row {row!r}"
    return examples[named[0]]


@pytest.mark.parametrize("row", [row for row in rows("Lines") if not row.startswith(ELSEWHERE)])
def test_each_row_about_lines(tmp_path, encoder, row):
    for line, verdict in examples_of(row, LINES):
        before = b"" if line.startswith(MARK) and isinstance(verdict, str) else b'{"text": "before"}\n'
        shard = tmp_path / "a.jsonl"
        shard.write_bytes(before + line)
        ids, entries, stats = read(shard, encoder)
        texts = ["before"] if before else []
        if isinstance(verdict, re.Pattern):
            (entry,) = entries
            assert (entry["record"], entry["byte"]) == (1, len(before))
            assert verdict.search(entry["reason"]), entry["reason"]
        else:
            assert not entries
            texts += [] if verdict is None else [verdict]
            if verdict is not None and not line.startswith(MARK):
                assert json.loads(line.decode().strip(), strict=True)["text"] == verdict
        assert stats["documents"] == len(texts)
        assert_inspect_agrees(shard, [] if row.startswith(REFUSED_BY_RUNS_ONLY) else entries)
        assert ids == [encoder.encode(text).tolist() for text in texts if text]


UNCOMPRESSED = {
    "compression": "none",
    "use_dictionary": False,
    "write_statistics": False,
    "write_page_checksum": True,
}


class Keys(encryption.KmsClient):
    """Keys that are not secret."""

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


def encrypted(*, plaintext_footer):
    settings = encryption.EncryptionConfiguration(
        "footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    return parquet(
        ["a"], encryption_properties=factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    )


def parquet(values, **options):
    """A Parquet file with a column "text"."""
    file = io.BytesIO()
    pq.write_table(pa.table({"text": values}), file, **options)
    return file.getvalue()


def without_row_groups():
    """A Parquet file that has none."""
    file = io.BytesIO()
    pq.ParquetWriter(file, pa.schema({"text": pa.string()})).close()
    return file.getvalue()


def of_other_file(name):
    """A Parquet file with the footer of another one."""
    other, file = pq.read_metadata(io.BytesIO(parquet(["a"]))), io.BytesIO()
    other.set_file_path(name)
    other.write_metadata_file(file)
    return file.getvalue()


def with_codec(number, values):
    """A Parquet file whose footer says that its pages are compressed with the codec of this number."""
    snappy = b"text\x15\x02"  # the column's path and its codec, 1
    data = parquet(values, compression="snappy")
    assert data.count(snappy) == 1
    return data.replace(snappy, snappy[:-1] + bytes([2 * number]))


def arrow(values, make):
    """An Arrow file or stream with a column "text"."""
    file = io.BytesIO()
    table = pa.table({"text": values})
    with make(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


ANY_STRING = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string()))
# As above, for rows: a column, and what its first value gives.
ROWS = {
    "the column is of type string": [(pa.array(["typed"]).cast(kind), "typed") for kind in ANY_STRING],
    "the column is missing, of another type, or inside a list": [
        (pa.array([1]), re.compile('a column of strings named "text", found one of INT64 values; set text_field=$')),
        (pa.array([["a"]]), re.compile('found the columns "text.list.element"; set text_field=$')),
        (pa.array([{"other": "a"}]), re.compile('found the columns "text.other"; set text_field=$')),
    ],
    "the column holds JSON (below)": [
        (pa.array(['"a"'], pa.json_()), "a"),
        (pa.array(['{"b": 1}'], pa.json_()), re.compile("expected .*found")),
    ],
    "a column of JSON that is wanted holds something else": [
        (pa.array([value], pa.json_()), re.compile('expected JSON in the column "text"')) for value in ("", "{", "NaN")
    ],
    "null in the column": [
        (pa.array([None], pa.string()), re.compile('expected a string in the column "text", found null'))
    ],
    "the empty string": [(pa.array([""]), "")],
    "not UTF-8": [(pa.array([b"a\xff"]), re.compile("expected UTF-8 .* found byte 0xff at byte 1 of the text"))],
    "longer than `max_document_bytes`": [
        (
            pa.array(["x" * 2001]),
            re.compile("a text of at most 2000 bytes, found one of 2001; raise max_document_bytes="),
        )
    ],
}


@pytest.mark.parametrize("row", [row for row in rows("Rows") if not row.startswith(ELSEWHERE)])
def test_each_row_about_rows(tmp_path, encoder, row):
    for column, verdict in examples_of(row, ROWS):
        shard = tmp_path / "a.parquet"
        shard.write_bytes(parquet(column))
        ids, entries, stats = read(shard, encoder)
        if isinstance(verdict, re.Pattern):
            (entry,) = entries
            assert verdict.search(entry["reason"]), entry["reason"]
            assert stats["lost_shards"] == int("one record" not in line_of(row))
        else:
            assert not entries
            assert stats["documents"] == 1
            assert ids == ([encoder.encode(verdict).tolist()] if verdict else [])


LINE = b'{"text": "in a file"}\n'
PACKED = gzip.compress(LINE, mtime=0)
FRAME = pa.compress(LINE, codec="zstd", asbytes=True)
SKIPPABLE = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"xyz"
# Headers of frames whose window is 256 MiB, and that name a dictionary.
LARGE_WINDOW = b"\x28\xb5\x2f\xfd\x00" + bytes([18 << 3])
WITH_DICTIONARY = b"\x28\xb5\x2f\xfd\x01\x58\x07"
# The same for whole files: name, bytes, number of documents, and a pattern of the error or None.
FILES = {
    "starts with the bytes `1f 8b`": [("a.jsonl", PACKED, 1, None)],
    "starts with the bytes `28 b5 2f fd`": [("a.jsonl", FRAME, 1, None), ("a.json", SKIPPABLE + FRAME, 1, None)],
    "is named `*.gz`, `*.zst`, `*.parquet` or `*.arrow` and is none of these": [
        ("a.gz", LINE, 0, "expected gzip data .*found 7b 22"),
        ("a.gz", b"", 0, "found an empty file: it is truncated"),
        ("a.jsonl.zst", LINE, 0, "expected Zstandard data .*found 7b 22 74 65"),
        ("a.zst", b"", 0, "found an empty file: it is truncated"),
        ("a.parquet", LINE, 0, "expected a Parquet file .*found 7b 22 74 65"),
        ("a.arrow", LINE, 0, "found 7b 22 74 65"),
    ],
    "is UTF-16 or UTF-32, with a mark or with `{` first, a pointer of Git LFS": [
        ("a.jsonl", LINE.decode().encode("utf-16"), 0, "found UTF-16; convert it"),
        *(
            ("a.jsonl", LINE.decode().encode(name), 0, f"found {name[:6].upper()}; convert it")
            for name in ("utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        ),
        ("a.gz", b"version https://git-lfs.github.com/spec/v1\noid", 0, "found a Git LFS pointer"),
        ("a.gz", b"<!DOCTYPE html>\n", 0, "found a web page; download the shard again"),
        ("a.jsonl", b"<?xml version='1.0'?>", 0, "found XML"),
    ],
    "starts with the bytes `50 41 52 31` (`PAR1`)": [("a.jsonl", parquet(["in a file"]), 1, None)],
    "starts with the bytes `41 52 52 4f 57 31` (`ARROW1`)": [
        ("a.jsonl", arrow(["in a file"], make), 1, None) for make in (pa.ipc.new_file, pa.ipc.new_stream)
    ],
    "is gzip or Zstandard, and holds Parquet": [
        ("a.gz", gzip.compress(arrow(["a"], pa.ipc.new_stream)), 0, "found an Arrow file; inflate it"),
        ("a.json.gz", gzip.compress(PACKED), 0, "found a compressed file again; inflate it once"),
        ("a.zst", pa.compress(parquet(["a"]), codec="zstd", asbytes=True), 0, "found a Parquet file; inflate it"),
        ("a.gz", gzip.compress(tar_of([("a", {"text": b"a"})])), 0, "found a tar; let its name end in .tar.gz"),
    ],
    "is xz, bzip2, LZ4, Snappy, LZMA, zlib without a head of gzip, lzip, lzop": [
        ("a.lz4", pa.compress(LINE, codec="lz4", asbytes=True), 0, "found LZ4; convert it"),
        ("a.jsonl.gz", lzma.compress(LINE), 0, "found xz; convert it"),
        ("a.jsonl", bz2.compress(LINE), 0, "found bzip2; convert it"),
        ("a.bz2", bz2.compress(b""), 0, "found bzip2; convert it"),
        *(("a.jsonl", zlib.compress(LINE, level), 0, "found data of zlib") for level in (0, 6, 9)),
        ("a.br", b"\x1b1\0\xf8\x8d\x93", 0, "found Brotli, by its name"),
        ("a.br", LINE, 1, None),
        ("a.sz", b"\xff\x06\0\0sNaPpY", 0, "found Snappy; convert it"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", 0, "found a 7z archive; pass the files"),
        ("a.rar", b"Rar!\x1a\x07", 0, "found a RAR archive; pass the files"),
        ("a.zip", b"PK\x03\x04" + LINE, 0, "found a zip archive; pass the files"),
    ],
    "is ORC, TFRecord, Avro, HDF5, WARC": [
        ("a.avro", b"Obj\x01", 0, "found Avro; convert it"),
        ("a.h5", b"\x89HDF\r\n", 0, "found HDF5; convert it"),
        ("a.db", b"SQLite format 3\0", 0, "found a database of SQLite; export"),
        ("a.feather", b"FEA1" + bytes(4), 0, "found Feather of version 1; write it again"),
    ],
    "is a pickle, a file of `torch.save`, safetensors": [
        ("a.pkl", pickle.dumps(["a"]), 0, "found a pickle, which is never loaded"),
    ],
    "has `ustar` and a NUL": [("a.jsonl", tar_of([("a", {"text": b"in a file"})]), 1, None)],
    "anything else": [("a.txt", LINE, 1, None), ("a.txt", b"", 0, None)],
    "several gzip members or Zstandard frames": [
        ("a.gz", gzip.compress(LINE[:9]) + gzip.compress(LINE[9:]), 1, None),
        ("a.zst", FRAME * 3, 3, None),
    ],
    "an empty member or frame": [
        ("a.gz", gzip.compress(b"") + PACKED, 1, None),
        ("a.gz", gzip.compress(b""), 0, None),
        ("a.zst", pa.compress(b"", codec="zstd", asbytes=True) + FRAME, 1, None),
    ],
    "a skippable frame of Zstandard": [("a.zst", FRAME + SKIPPABLE + FRAME, 2, None), ("a.zst", SKIPPABLE, 0, None)],
    "zero bytes after or between gzip members": [("a.gz", PACKED + bytes(512) + PACKED + bytes(7), 2, None)],
    "other bytes after a member or frame": [
        ("a.gz", PACKED + b"x", 1, rf"after byte {len(PACKED)} of the file, found byte 0x78"),
        ("a.zst", FRAME + b"x", 1, rf"after byte {len(FRAME)} of the file, found byte 0x78"),
    ],
    "damaged or truncated inside a member or frame": [
        ("a.gz", PACKED + PACKED[:-20], 1, "the file is truncated"),
        ("a.zst", FRAME + FRAME[:-5], 1, "the file is truncated"),
    ],
    "a wrong checksum or length": [("a.gz", PACKED[:-8] + bytes(8), 1, "CRC-32 in the gzip trailer")],
    "a Zstandard window above 128 MiB": [
        ("a.zst", FRAME + LARGE_WINDOW, 1, "at most 134217728 bytes, found one of 268435456")
    ],
    "a Zstandard frame that needs a dictionary": [
        ("a.zst", FRAME + WITH_DICTIONARY + bytes(2), 1, "needs a dictionary")
    ],
}
# Likewise, for Parquet files.
PARQUET_FILES = {
    "no row group, one or thousands": [
        ("a.parquet", without_row_groups(), 0, None),
        ("a.parquet", parquet(["a"] * 3000, row_group_size=1, write_page_index=True), 3000, None),
        ("a.parquet", parquet(["a"] * 3000), 3000, None),
    ],
    "pages compressed with Snappy": [
        ("a.parquet", parquet(["a"] * 9, compression=codec), 9, None)
        for codec in ("snappy", "zstd", "gzip", "brotli", "lz4", "none")
    ],
    "pages compressed with LZO": [("a.parquet", with_codec(3, ["a"]), 0, "found LZO")],
    "a summary of other files, such as `_metadata`": [
        ("_metadata", of_other_file("b.parquet"), 0, 'found one about "b.parquet" and perhaps others; leave it out')
    ],
    "an encoding or compression that is not known": [
        ("a.parquet", with_codec(20, ["a"]), 0, "found a footer that cannot be decoded.*; if pyarrow reads the file")
    ],
    "values plain, in a dictionary or as deltas": [
        ("a.parquet", parquet(["a"] * 9, data_page_version=version, **values), 9, None)
        for version in ("1.0", "2.0")
        for values in (
            {"use_dictionary": True},
            {"use_dictionary": False},
            {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
            {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        )
    ],
    "a page above 129 MiB inflated": [
        (
            "a.parquet",
            parquet(["x" * 2**20] * 140, use_dictionary=False),
            0,
            "expected a page of at most 135266304 bytes, found one of 14680.* write the file again with smaller pages",
        )
    ],
    "a footer above 32 MiB": [
        (
            "a.parquet",
            b"PAR1" + bytes(2**25 + 1) + (2**25 + 1).to_bytes(4, "little") + b"PAR1",
            0,
            "a Parquet footer of at most 33554432 bytes, found one of 33554433",
        )
    ],
    "truncated, so that it does not end in `PAR1`": [("a.parquet", parquet(["a"])[:-1], 0, "the file is truncated")],
    "a page with another CRC-32": [
        (
            "a.parquet",
            parquet(["first", "second"], row_group_size=1, **UNCOMPRESSED).replace(b"second", b"Second"),
            1,
            "its CRC-32 is another than in its header",
        )
    ],
    "any other damage": [
        ("a.parquet", b"PAR1" + bytes(8) + parquet(["a"])[12:], 0, "found a corrupt one: its header is not valid")
    ],
    "encrypted, or with encrypted columns": [
        ("a.parquet", encrypted(plaintext_footer=plain), 0, "found an encrypted one; decrypt it")
        for plain in (False, True)
    ],
}
TAR = tar_of([("a", {"text": b"in a file", "jpg": b"\xff\0"}), ("b", {"text": b"b"})])
LONG = "n" * 200 + "/k"


def entries_of(*members):
    """A tar of members: name, type and content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def with_byte(data, at, byte):
    return data[:at] + byte + data[at + 1 :]


# Likewise, for tars.
TARS = {
    "ustar, also with prefixes": [
        ("a.tar", tar_of([(LONG[150:], {"text": b"a"})], tarfile.USTAR_FORMAT), 1, None),
        ("a.tar", tar_of([("p" * 90 + "/" + "k" * 90, {"text": b"a"})], tarfile.USTAR_FORMAT), 1, None),
        ("a.tar", tar_of([(LONG, {"text": b"a"})], tarfile.GNU_FORMAT), 1, None),
        ("a.tar", tar_of([(LONG + "\u00fc", {"text": b"a"})], tarfile.PAX_FORMAT), 1, None),
    ],
    "`dir/.name`": [("a.tar", tar_of([("dir/", {"text": b"a"})]), 1, None)],
    "a member without a dot": [
        (
            "a.tar",
            entries_of(
                ("d.text", tarfile.DIRTYPE, b""),
                ("l", tarfile.SYMTYPE, b""),
                ("README", tarfile.REGTYPE, b"a"),
                ("__meta__/a.text", tarfile.REGTYPE, b"a"),
            ),
            0,
            None,
        )
    ],
    "a hard or symbolic link": [
        ("a.tar", entries_of((f"l.{part}", kind, b""), ("b.text", tarfile.REGTYPE, b"b")), 1, reason)
        for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE)
        for part, reason in [("text", 'expected a file under "text", found a link'), ("jpg", "expected the key")]
    ],
    "members of one key that are not neighbours": [
        ("a.tar", tar_of([("a", {"text": b"a"}), ("b", {"text": b"b"}), ("a", {"text": b"a"})]), 3, None)
    ],
    "no records": [("a.tar", tar_of([]), 0, None), ("a.tar", bytes(1024), 0, None)],
    "an extension twice": [("a.tar", tar_of([("a", {"text": b"a"}), ("a", {"text": b"b"})]), 0, 'found "text" twice')],
    "the text is missing": [("a.tar", tar_of([("a", {"txt": b"a"})]), 0, 'found an object with the keys "txt"; name')],
    "a text or JSON that is wanted": [("a.tar", tar_of([("a", {"text": b"a\xff"})]), 0, "expected UTF-8 .* byte 1")],
    "wanted text and JSON of more": [
        ("a.tar", tar_of([("a", {"text": b"x" * 2001})]), 0, 'at most 2000 bytes .* "text" of 2001; raise max_document')
    ],
    "more than 10,000 members": [
        (
            "a.tar",
            entries_of(*((f"a.{i}", tarfile.REGTYPE, b"") for i in range(10_001))),
            0,
            "at most 10000 members with one key, found more",
        )
    ],
    "cut in a header or in data": [
        ("a.tar", TAR[:2048], 0, "expected a block of zeros, which ends an archive, found the end of the file"),
        ("a.tar", TAR[:3072], 1, "expected a block of zeros, which ends an archive, found the end of the file"),
        ("a.tar", TAR[:2100], 0, "a header of 512 bytes, found the end of the file after 52"),
        ("a.tar", TAR[:2560], 0, "the data of a member, found the end of the file in it"),
        ("a.tar", b"", 0, "found the end of the file: it was cut"),
    ],
    "a header with another checksum": [("a.tar", with_byte(TAR, 2048, b"c"), 0, "found another checksum")],
    "another tar after its end": [("a.tar", TAR + TAR, 2, "found another member: of several archives in one file")],
    "other bytes than zeros after the block of zeros": [
        ("a.tar", TAR + b"x", 2, "expected only zeros after the block of zeros at byte 3072, .* found other bytes"),
        ("a.tar", bytes(512) + TAR[512:], 0, "after the block of zeros at byte 0, which ends an archive, found other"),
        ("a.tar", TAR + bytes(20_000), 2, None),
    ],
    "a sparse file, a part": [
        ("a.tar", entries_of(("a.text", tarfile.GNUTYPE_SPARSE, b"")), 0, "expected a whole file, found a sparse one")
    ],
    "is named `*.tar.gz`": [
        ("a.tar.gz", gzip.compress(TAR), 2, None),
        ("a.tgz", gzip.compress(TAR), 2, None),
        ("a.tar.zst", pa.compress(TAR, codec="zstd", asbytes=True), 2, None),
    ],
}


@pytest.mark.parametrize("row", rows("Tars"))
def test_each_row_about_tars(tmp_path, encoder, row):
    for name, data, documents, reason in examples_of(row, TARS):
        (tmp_path / name).write_bytes(data)
        _, entries, stats = read(tmp_path / name, encoder)
        assert stats["documents"] == documents
        assert len(entries) == (reason is not None)
        assert stats["lost_shards"] == (reason is not None and "one record" not in line_of(row))
        assert not reason or re.search(reason, entries[0]["reason"]), entries[0]["reason"]


FILES_OF_ALL_TABLES = {"Files": FILES, "Parquet files": PARQUET_FILES}
# Rows about faults while a shard is read: test_faults.py has their examples.
WHILE_READING = (
    "missing, or of another size", "changes its size while it is read",
    "gets another modification time", "the disk fails", "cannot be opened because too many files are open",
)  # fmt: skip


def test_rows_about_files_while_reading_exist():
    assert all(any(row.startswith(start) for row in rows("Files")) for start in WHILE_READING)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (table, row)
        for table in FILES_OF_ALL_TABLES
        for row in rows(table)
        if not row.startswith(WHILE_READING + ELSEWHERE)
    ],
)
def test_each_row_about_files(tmp_path, encoder, table, row):
    for name, data, documents, reason in examples_of(row, FILES_OF_ALL_TABLES[table]):
        (tmp_path / name).write_bytes(data)
        _, entries, stats = read(tmp_path / name, encoder)
        assert stats["documents"] == documents
        if table == "Files":
            assert_inspect_agrees(tmp_path / name, entries)
        assert len(entries) == stats["lost_shards"] == (reason is not None)
        assert not reason or re.search(reason, entries[0]["reason"]), entries[0]["reason"]


def test_missing_or_resized_shard_is_one_entry(tmp_path, encoder):
    for name, change, reason in (
        ("gone.jsonl", Path.unlink, "expected the file of the manifest, found none"),
        ("other.jsonl", lambda path: path.write_bytes(LINE * 2), "expected the 22 bytes of the manifest, found 44"),
    ):
        (tmp_path / name).write_bytes(LINE)
        manifest = gm.Manifest.find(tmp_path / name)
        change(tmp_path / name)
        _, entries, stats = read(manifest, encoder)
        assert (stats["documents"], stats["quarantined"], stats["lost_shards"]) == (0, 1, 1)
        assert (entries[0]["record"], entries[0]["byte"]) == (None, None)
        assert reason in entries[0]["reason"]


def test_text_inside_objects(tmp_path, encoder):
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "inner"}}\n{"a.b": "outer", "a": {"b": "inner"}}\n')
    dataset = gm.PackedDataset(str(tmp_path / "a.jsonl"), tokenizer=encoder, text_field="a.b", packing="pad", eos=False)
    found = [row["inputs"][row["inputs_segmentation"] > 0].tolist() for row in dataset]
    assert found == [encoder.encode(text).tolist() for text in ("inner", "outer")]


@pytest.mark.parametrize(
    ("column", "reason"),
    [(pa.array(["x" * 3000, "x"]), "2000 bytes"), (pa.array([b"\xff", b"x"]).view(pa.string()), "UTF-8")],
)
def test_columns_of_a_filter(tmp_path, encoder, column, reason):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["first", "second"], "kind": column}), path)
    ids, entries, stats = read(path, encoder, keep="len(kind) > 0")
    (entry,) = entries
    assert (entry["record"], stats["lost_shards"]) == (0, 0)
    assert reason in entry["reason"]
    assert ids == [encoder.encode("second").tolist()]
