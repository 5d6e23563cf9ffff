"""One engine, in a process and an environment of its own: a first and a second pass over the same documents.

    python engines.py ENGINE [--strings] tokenizer.json documents.bin

Documents are length-prefixed: a little-endian u32, then so many bytes of UTF-8. The last line on stdout is a JSON
object with the keys of `measure`; any program that prints the same can take part. Nothing but the standard library
and the engine is imported: the peers' environments hold nothing else.

Each engine gets its fastest public call, and texts as UTF-8 if it takes that, unless strings are asked for: of one that
is not ASCII CPython makes UTF-8 first, when it is encoded for the first time. The step that turns its result into
numbers that can be compared is not measured.
"""

import json
import os
import struct
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Iterator

# Texts go to an engine in calls of about so many bytes, as a program would that reads them from somewhere.
CALL_BYTES = 1 << 20

# An engine is two functions: from texts to its own result, and from that to the ids as u32, concatenated.
Texts = list[str] | list[bytes]
Encode = Callable[[Texts], object]
Ids = Callable[[object], bytes]


def gristmill(path: str) -> tuple[Encode, Ids]:
    """This package."""
    import gristmill as gm

    encoder = gm.Encoder.from_file(path)
    return lambda texts: encoder.encode_batch(texts, threads=1), lambda result: result[0].tobytes()


def tokenizers(path: str) -> tuple[Encode, Ids]:
    """Hugging Face `tokenizers`: the call that computes no offsets. From 1.0 on that is `encode_batch`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    if hasattr(tokenizer, "no_truncation"):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    else:
        tokenizer.truncation = tokenizer.padding = None
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return (
        lambda texts: encode(texts, add_special_tokens=False),
        lambda result: b"".join(array("I", encoding.ids).tobytes() for encoding in result),
    )


def gigatoken(path: str) -> tuple[Encode, Ids]:
    """`gigatoken`: one flat buffer and offsets, on the calling thread."""
    import awkward
    import numpy
    from gigatoken import Tokenizer

    tokenizer = Tokenizer(path)
    return (
        lambda texts: tokenizer.encode_batch(texts, parallel=False),
        lambda result: numpy.asarray(awkward.flatten(result)).astype("<u4").tobytes(),
    )


def fastokens(path: str) -> tuple[Encode, Ids]:
    """`fastokens`: one flat buffer and offsets."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return tokenizer.encode_batch_flat, lambda result: result[0]


def snaptokens(path: str) -> tuple[Encode, Ids]:
    """`snaptokens`: one flat buffer and offsets."""
    from snaptokens import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    return tokenizer.encode_batch_flat, lambda result: result[0]


ENGINES = {engine.__name__: engine for engine in (gristmill, tokenizers, gigatoken, fastokens, snaptokens)}
TAKES_UTF8 = (gristmill, gigatoken)


def measure(
    load: Callable[[str], tuple[Encode, Ids]], path: str, documents: bytes, *, as_utf8: bool
) -> dict[str, float | int | str]:
    """Loads an engine and lets it encode all documents twice, as UTF-8 or as strings.

    Returns:
      Seconds of processor time, of all threads together, of loading (`load_seconds`), the first pass
      (`cold_seconds`) and the second (`warm_seconds`); and of the ids of the first pass, all documents' one behind
      the other as little-endian u32, the CRC-32 (`crc`) and how many they are (`ids`).
    """
    began = time.process_time()
    encode, ids = load(path)
    result: dict[str, float | int | str] = {"load_seconds": time.process_time() - began}
    calls = list(_calls(documents, as_utf8=as_utf8))
    crc = count = 0
    for name in ("cold_seconds", "warm_seconds"):
        seconds = 0.0
        for texts in calls:
            began = time.process_time()
            encoded = encode(texts)
            seconds += time.process_time() - began
            if name == "cold_seconds":
                raw = ids(encoded)
                crc = zlib.crc32(raw, crc)
                count += len(raw) // 4
            del encoded
        result[name] = seconds
    return {**result, "crc": f"{crc:08x}", "ids": count}


def _calls(documents: bytes, as_utf8: bool) -> Iterator[Texts]:
    call: list[bytes] = []
    offset = length = 0
    while offset < len(documents):
        (size,) = struct.unpack_from("<I", documents, offset)
        call.append(documents[offset + 4 : offset + 4 + size])
        offset += 4 + size
        length += size
        if length >= CALL_BYTES or offset == len(documents):
            yield call if as_utf8 else [text.decode() for text in call]
            call, length = [], 0


def _main() -> None:
    name, *strings, tokenizer, documents = sys.argv[1:]
    load = ENGINES[name]
    # One thread, whatever the engine would like; idle threads of NumPy's would take processor time, too.
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with open(documents, "rb") as file:  # noqa: PTH123 - the same call in every environment
        print(json.dumps(measure(load, tokenizer, file.read(), as_utf8=load in TAKES_UTF8 and not strings)))


if __name__ == "__main__":
    _main()
