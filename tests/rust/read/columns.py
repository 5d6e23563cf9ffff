"""Writes the files that the tests of columns start from: `python tests/rust/read/columns.py`."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent / "columns"
ROWS = 40


def texts() -> list[str | None]:
    """The same texts as those of the tests of Parquet."""

    def text(i: int) -> str | None:
        return {3: None, 5: "", 7: "again and again"}.get(i % 11, f"text {i}: " + "\u00e9" * (i % 40))

    return [text(i) for i in range(ROWS)]


def main() -> None:
    """Writes each file."""
    FOLDER.mkdir(exist_ok=True)
    text = pa.array(texts())
    others = {
        "id": pa.array(range(ROWS)),
        "messages": pa.array([[{"role": "user", "content": t}][: i % 3] for i, t in enumerate(texts())]),
        "map": pa.array([[("k", float(i))] for i in range(ROWS)], pa.map_(pa.string(), pa.float32())),
        "fixed": pa.array([[i, None] if i % 5 else None for i in range(ROWS)], pa.list_(pa.int8(), 2)),
        "flag": pa.array([i % 2 == 0 if i % 3 else None for i in range(ROWS)]),
        "time": pa.array(range(ROWS), pa.timestamp("ms", tz="UTC")),
        "none": pa.nulls(ROWS),
    }
    encoded = text.dictionary_encode()
    tables = {
        "plain": ({**others, "text": text}, pa.ipc.new_stream, None),
        "zstd": ({"text": text.cast(pa.large_string()), **others}, pa.ipc.new_stream, "zstd"),
        "lz4": ({**others, "text": text.cast(pa.binary())}, pa.ipc.new_file, "lz4"),
        "views": ({"id": others["id"], "text": text.cast(pa.string_view())}, pa.ipc.new_file, None),
        "dictionary": ({"other": encoded, "text": encoded}, pa.ipc.new_stream, None),
    }
    for name, (columns, new, compression) in tables.items():
        table = pa.table(columns)
        options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
        with new(FOLDER / f"{name}.arrow", table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=7)
    for version in ("1.0", "2.0"):
        table = pa.table({"text": text, **others})
        options = {"row_group_size": 17, "write_batch_size": 3, "data_page_size": 60, "compression": "zstd"}
        path = FOLDER / f"v{version[0]}.parquet"
        pq.write_table(table, path, data_page_version=version, use_dictionary=["text"], **options)


if __name__ == "__main__":
    main()
