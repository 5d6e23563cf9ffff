"""The compared pipelines: each yields batches of packed rows from the same shards.

The others are written as their users write them, with the fastest public call wherever there is a choice:
`encode_batch_fast`, which computes no offsets; threads inside `tokenizers`, or Grain's own. They make less than
gristmill does: no targets, and the one over `datasets` no segments and positions either. Like gristmill, they
keep the last, partly filled row. Some do only a part of the work, and say so: they are limits, or known for speed.

The work of a contender before it returns its generator (imports, loading the tokenizer, listing the shards) is not
measured.
"""

import glob
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gristmill._core as _core
from gristmill._bench import conversations
from gristmill._bench.job import Batches, Job, Tokens
from gristmill._sample import named
from gristmill._util.local_files import inflated, open_inflated

if TYPE_CHECKING:  # Loads Grain, which a contender may do without.
    from gristmill._dataset.packed import PackedDataset
    from gristmill._tokenizer.encoder import Encoder

_ROWS_A_GROUP = 1000  # As the default of `datasets` when it writes Parquet.
_DOCUMENTS_A_CALL = 256  # For `datasets`: its default of 1000 keeps a gigabyte of encodings.


def own_dataset(job: Job, encoder: "Encoder | None" = None) -> "PackedDataset":
    """The dataset of a job; `encoder` is that of its tokenizer, if it is loaded already."""
    from gristmill._dataset.packed import PackedDataset
    from gristmill._spec.arguments import ARGUMENTS

    return PackedDataset(
        job.shards,
        tokenizer=encoder or job.tokenizer,
        text_field=job.text_field if job.sample is None else ARGUMENTS["text_field"].default,
        sample=named.make(job.sample),
        eos=False if job.eos is None else job.eos,
        batch_size=job.batch_size,
        sequence_length=job.sequence_length,
        threads=job.threads,
        lanes=job.lanes,
        on_error=job.on_error,
        storage_options=job.storage_options,
        max_error_rate=1.0 if job.on_error == "quarantine" else ARGUMENTS["max_error_rate"].default,
    )


def template_of(dataset: "PackedDataset") -> str | None:
    """The chat template of a dataset's conversations."""
    from gristmill._dataset.packed import spec_of
    from gristmill._sample.plans import ChatPlan

    plan = spec_of(dataset).sources[0].sample
    return plan.chat_template.source if isinstance(plan, ChatPlan) else None


def gristmill(job: Job) -> Batches:
    """This package."""
    dataset = own_dataset(job)

    def batches() -> Batches:
        iterator = iter(dataset)
        for batch in iterator:
            yield batch["inputs"], batch["inputs_segmentation"]
        return iterator.stats()

    return batches()


def zstandard(job: Job) -> Batches:
    """This package over the same lines, compressed with Zstandard."""
    return gristmill(_converted(job, "jsonl.zst", _write_zstandard))


def parquet(job: Job) -> Batches:
    """This package over the same texts in Parquet."""
    return gristmill(_converted(job, "parquet", _write_parquet))


def datasets(job: Job) -> Batches:
    """`datasets` streams the JSON, `tokenizers` encodes batches on its threads, NumPy packs."""
    return _datasets(job, "json")


def datasets_parquet(job: Job) -> Batches:
    """The same over Parquet."""
    return _datasets(_converted(job, "parquet", _write_parquet), "parquet")


def _datasets(job: Job, builder: str) -> Batches:
    from datasets import load_dataset

    encode = _batch_encoder(job)
    stream = (
        load_dataset(builder, data_files=[*map(glob.escape, job.shards)], split="train", streaming=True)
        .select_columns([job.text_field])
        .map(
            lambda records: {"ids": encode(records[job.text_field])},
            batched=True,
            batch_size=_DOCUMENTS_A_CALL,
            remove_columns=[job.text_field],
        )
    )
    return _packed((record["ids"] for record in stream), job)


def grain(job: Job) -> Batches:
    """Grain reads the shards side by side, `tokenizers` encodes on as many threads, Grain packs and batches."""
    import grain as library

    encode = _batch_encoder(job)

    def encoded(path: str) -> Any:
        # A list of one text: unlike `encode`, this call lets other threads run.
        return _shard_texts(path, job.text_field).map(lambda text: {"tokens": np.asarray(encode([text])[0], np.int32)})

    shards = library.MapDataset.source(job.shards).map(encoded)
    documents = library.experimental.InterleaveIterDataset(shards, cycle_length=job.threads, iter_buffer_size=16)
    return _packed_by_grain(documents, job)


def pretokenized(job: Job) -> Batches:
    """Grain over ArrayRecords of token ids, in one process; the round that is not measured makes them."""
    import grain as library

    if job.scratch is None:
        raise ValueError("no folder for token ids")
    folder = Path(job.scratch, "array_records")
    if not folder.exists():
        _write_array_records(job, folder)
    files = sorted(map(str, folder.iterdir()))
    documents = library.MapDataset.source(library.sources.ArrayRecordDataSource(files))
    documents = documents.map(lambda record: {"tokens": np.frombuffer(record, np.int32)})
    options = library.ReadOptions(num_threads=job.threads, prefetch_buffer_size=500)
    return _packed_by_grain(documents.to_iter_dataset(options), job)


def _packed_by_grain(documents: Any, job: Job) -> Batches:
    from grain.experimental import ConcatThenSplitIterDataset

    rows = ConcatThenSplitIterDataset(documents, length_struct={"tokens": job.sequence_length})
    for batch in rows.batch(job.batch_size, drop_remainder=False):
        yield batch["tokens"], batch["tokens_segment_ids"]
    return None


def gigatoken(job: Job) -> Batches:
    """`gigatoken` reads and encodes all shards in one call; nothing is packed, and no EOS put in."""
    import awkward
    from gigatoken import JsonlFileSource, Tokenizer

    tokenizer = Tokenizer(job.tokenizer)
    source = JsonlFileSource([Path(shard) for shard in job.shards], field=job.text_field)

    def batches() -> Batches:
        ids = tokenizer.encode_files(source, parallel=job.threads > 1)
        yield np.asarray(awkward.flatten(ids)).view(np.int32), None
        return None

    return batches()


def inflate(job: Job) -> Batches:
    """Inflating alone, with gristmill's reader; the bytes are dropped."""
    return _each_shard(job, lambda path: _core.inflate(path, Path(path).stat().st_size))


def copy(job: Job) -> Batches:
    """Reading the files as they are on disk (or in the system's cache), without inflating."""
    return _each_shard(job, lambda path: len(Path(path).read_bytes()))


class Work(Enum):
    """How far a contender goes."""

    ROWS = "packed rows"
    IDS = "token ids"
    BYTES = "bytes"


@dataclass(frozen=True)
class Contender:
    """A pipeline to be compared.

    Attributes:
      title: its name in tables.
      run: starts it.
      work: how far it goes.
      needs: packages without which it is left out.
      converts: whether it reads the shards in another format, into which the round that is not measured converts them.
      kinds: the samples that it makes, see `Job.kind`.
    """

    title: str
    run: Callable[[Job], Batches]
    work: Work = Work.ROWS
    needs: tuple[str, ...] = ()
    converts: bool = False
    kinds: tuple[str, ...] = ("text",)


_ALL_KINDS = ("text", "chat", "completion")

CONTENDERS = {
    "gristmill": Contender("gristmill", gristmill, kinds=_ALL_KINDS),
    "datasets": Contender("datasets + tokenizers + NumPy", datasets, needs=("datasets", "tokenizers")),
    "grain": Contender("Grain + tokenizers", grain, needs=("tokenizers",)),
    "pretokenized": Contender("Grain over pre-tokenized ArrayRecord", pretokenized, needs=("array_record",)),
    "gigatoken": Contender("gigatoken (no packing)", gigatoken, Work.IDS, ("gigatoken",)),
    "transformers": Contender(
        "transformers in datasets.map",
        conversations.transformers,
        Work.IDS,
        ("transformers", "datasets"),
        kinds=("chat",),
    ),
    "renderers": Contender(
        "renderers in datasets.map",
        conversations.renderers,
        Work.IDS,
        ("renderers", "transformers", "datasets"),
        kinds=("chat",),
    ),
    "inflate": Contender("decompression only", inflate, Work.BYTES, kinds=_ALL_KINDS),
    "copy": Contender("reading the files only", copy, Work.BYTES, kinds=_ALL_KINDS),
    "zstandard": Contender("gristmill over Zstandard", zstandard, needs=("pyarrow",), converts=True),
    "parquet": Contender("gristmill over Parquet", parquet, needs=("pyarrow",), converts=True),
    "datasets-parquet": Contender(
        "datasets over Parquet", datasets_parquet, needs=("datasets", "tokenizers", "pyarrow"), converts=True
    ),
}


def _each_shard(job: Job, use: Callable[[str], int]) -> Batches:
    with ThreadPoolExecutor(job.threads) as threads:
        total = sum(threads.map(use, job.shards))
    yield np.zeros((0, 0), np.int32), None
    return {"bytes": total}


def _converted(job: Job, extension: str, write: Callable[[Job, str, str], None]) -> Job:
    """The job over shards in another format, which the first call writes: one for each of the job's."""
    if job.scratch is None:
        raise ValueError("no folder for converted shards")
    folder = Path(job.scratch, extension)
    shards = [str(folder / f"{number:05}.{extension}") for number in range(len(job.shards))]
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir()
        for shard, converted in zip(job.shards, shards, strict=True):
            write(job, shard, str(unfinished / Path(converted).name))
        unfinished.rename(folder)
    return replace(job, shards=shards)


def _write_zstandard(_: Job, shard: str, converted: str) -> None:
    import pyarrow

    with open_inflated(Path(shard)) as lines, pyarrow.CompressedOutputStream(converted, "zstd") as out:
        shutil.copyfileobj(lines, out, 1 << 20)


def _write_parquet(job: Job, shard: str, converted: str) -> None:
    import pyarrow
    from pyarrow import parquet

    texts = _texts(shard, job.text_field)
    with parquet.ParquetWriter(converted, pyarrow.schema([(job.text_field, pyarrow.string())])) as writer:
        while some := list(itertools.islice(texts, _ROWS_A_GROUP)):
            writer.write_table(pyarrow.table({job.text_field: some}, writer.schema))


def _write_array_records(job: Job, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    encode = _batch_encoder(job)
    folder.mkdir()
    for number, shard in enumerate(job.shards):
        writer = ArrayRecordWriter(str(folder / f"{number:05}.array_record"), "group_size:1")
        texts = _texts(shard, job.text_field)
        while some := list(itertools.islice(texts, _DOCUMENTS_A_CALL)):
            for ids in encode(some):
                writer.write(np.asarray(ids, np.int32).tobytes())
        writer.close()


def _batch_encoder(job: Job) -> Callable[[list[str]], list[list[int]]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(inflated(Path(job.tokenizer).read_bytes()))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end = [] if job.eos is None else [job.eos]

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids + end for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def _shard_texts(path: str, text_field: str) -> Any:
    """A Grain dataset of a shard's texts."""
    import grain as library

    class Texts(library.DatasetIterator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._texts = _texts(path, text_field)
            self._given = 0

        def __next__(self) -> str:
            text = next(self._texts)
            self._given += 1
            return text

        def get_state(self) -> dict[str, int]:
            return {"given": self._given}

        def set_state(self, state: dict[str, int]) -> None:
            self._given = state["given"]
            self._texts = itertools.islice(_texts(path, text_field), self._given, None)

    class Shard(library.IterDataset):  # type: ignore[misc]
        def __iter__(self) -> Texts:
            return Texts()

    return Shard()


def _texts(path: str, text_field: str) -> Iterator[str]:
    with open_inflated(Path(path)) as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)[text_field]


def _packed(documents: Iterator[list[int]], job: Job) -> Batches:
    """Documents joined and cut into rows, and rows into batches; the last batch is as long as it comes out."""
    size = job.batch_size * job.sequence_length
    pending: list[Tokens] = []
    count = 0
    for ids in documents:
        pending.append(np.asarray(ids, np.int32))
        count += len(ids)
        if count >= size:
            joined = np.concatenate(pending)
            whole = len(joined) // size * size
            for start in range(0, whole, size):
                yield joined[start : start + size].reshape(job.batch_size, -1), None
            pending = [joined[whole:]]
            count = len(joined) - whole
    if count:
        rows = -(-count // job.sequence_length)
        last = np.zeros(rows * job.sequence_length, np.int32)
        last[:count] = np.concatenate(pending)
        valid = np.arange(len(last)) < count
        yield last.reshape(rows, -1), valid.reshape(rows, -1)
    return None
