"""`gristmill inspect`: the content of a tokenizer, a shard, a saved state or packed files."""

import json
import re
import time
import zlib
from collections import Counter
from glob import has_magic
from pathlib import Path
from typing import Any

from gristmill._core import Records
from gristmill._files import overview, units
from gristmill._inspect import prepared_folder, prompt_states
from gristmill._mixture import fingerprint as mixtures
from gristmill._sample.image_fields import guess, is_image
from gristmill._shards import listing, stores
from gristmill._shards.address import Address
from gristmill._shards.manifest import manifest_at
from gristmill._spec.arguments import ARGUMENTS
from gristmill._spec.fingerprints import values_of
from gristmill._spec.kinds import Steps
from gristmill._spec.stages import Stages
from gristmill._state import commits, states
from gristmill._state.checkpoint_files import read_merged
from gristmill._state.prompt_states import PromptState
from gristmill._state.prompt_states import is_one as is_of_prompts
from gristmill._tokenizer import config_changes, diagnosis
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill._tokenizer.load import tokenizer_file
from gristmill._tokenizer.sibling_files import SiblingFiles
from gristmill._util.local_files import open_inflated, utf8_path
from gristmill._util.text import counted, format_columns, format_fields, shortened
from gristmill.errors import MissingShardError, ShardError, StateError, TokenizerError

# A shard's records are lines; a tokenizer or a state is one value, and none is larger than this.
_LARGEST_VALUE = 2**28
# The bytes that are read to tell the kinds apart, and how many at once.
_START = 2**20
_PIECE = 2**12
# Where shards may lie in a folder.
_SHARDS = tuple(
    folder + shape for folder in ("", "*/") for shape in ("*.gz", "*.zst", "*.jsonl", "*.parquet", "*.arrow", "*.tar")
)
_KEYS_SHOWN = 100
_MESSAGES = ("messages", "conversation", "conversations")
_KEY_SHOWN = 80
_DAMAGED = (EOFError, OSError, zlib.error)
_HAS_STATE_KEY = re.compile(rb'"fingerprint":\s*"manifest=')
_HAS_TOKENIZER_KEY = re.compile(rb'"(added_tokens|model)"\s*:\s*[\[{]')
# As the `tokenizers` library writes them, and no record does.
_WRITTEN_BY_TOKENIZERS = re.compile(rb'\{\s*"version"\s*:\s*"[0-9.]+"\s*,\s*"truncation"\s*:')


def inspect(
    path: Path,
    *,
    records: int = 1000,
    max_document_bytes: int = ARGUMENTS["max_document_bytes"].default,
    text: str | None = None,
) -> dict[str, Any]:
    """The content of a file.

    Args:
      path: a tokenizer.json or a folder with one, a shard, a state saved as JSON (gzipped or not), a checkpoint's
        folder with those of all processes, packed files, or a folder that Energon has prepared.
      records: number of records of a shard to read.
      max_document_bytes: longest accepted line of a shard, inflated.
      text: text for a tokenizer to encode.

    Returns:
      A dict whose `kind` is "tokenizer", "shard", "state", "prompt state", "packed", "megatron" or "energon".

    Raises:
      GristmillError: there is no such file, or it is damaged.
    """
    if overview.is_packed(path):
        return overview.inspect(path)
    units.check_joined(path)
    if prepared_folder.is_one(at := Address.of(str(path))):
        return prepared_folder.inspect(at, max_document_bytes)
    if path.is_dir() and any(path.glob("process_*-of-*.json")):
        merged = read_merged(path)
        return prompt_states.inspect(path, merged) if is_of_prompts(merged) else _summary(path, merged)
    folder, path = path, tokenizer_file(path)
    if not path.is_file():
        here = "not a file" if path.exists() else "no such file"
        what = "found nothing to inspect in the folder" if folder.is_dir() else here
        raise MissingShardError(f"{what}: {str(folder)!r}{_hint(folder)}")
    if diagnosis.is_of_tokenizer(path.name):
        Encoder.from_file(path)  # whose error names the kind of file
    if path.suffix == ".bin" and path.with_suffix(".idx").is_file():
        return overview.inspect(path.with_suffix(".idx"))
    value = _whole_value(path)
    if value is not None and isinstance(model := value.get("model"), dict) and "vocab" in model:
        return _tokenizer(path, value, text)
    if value is not None and is_of_prompts(value) and "fingerprint" in value:
        return prompt_states.inspect(path, value)
    state = _as_state(path, value)
    if state is not None:
        return _summary(path, state)
    return _shard(Address.of(str(path)), path.stat().st_size, records, max_document_bytes)


def inspect_remote(
    address: Address,
    *,
    records: int = 1000,
    max_document_bytes: int = ARGUMENTS["max_document_bytes"].default,
) -> dict[str, Any]:
    """The content of a shard in a store, of which no more is fetched than is looked at, or of a folder.

    Args:
      address: that of it, of packed files, or of a folder that Energon has prepared.
      records: number of records to read.
      max_document_bytes: longest accepted line, inflated.

    Returns:
      As `inspect`.

    Raises:
      GristmillError: there is no such object, it is damaged, or the store cannot be reached.
    """
    url = address.name
    try:
        manifest = manifest_at(address)
    except MissingShardError:
        if stores.is_glob(url):
            raise
        if packed := overview.inspect_remote(address):
            return packed
        if prepared_folder.is_one(address):
            return prepared_folder.inspect(address, max_document_bytes)
        raise
    if stores.is_glob(url):
        raise MissingShardError(
            f"{url!r}: a glob needs --keep or --row; to inspect a shard, name it, such as {manifest.paths[0]!r}"
        )
    return _shard(address.at(manifest.paths[0]), manifest.sizes[0], records, max_document_bytes)


def _hint(path: Path) -> str:
    """A hint for a path that is not a file."""
    if path.is_dir():
        found = next((shard for shape in _SHARDS for shard in sorted(path.glob(shape))), None)
        one = f"; to inspect a shard, name it, such as {str(found)!r}" if found else ""
        return f": expected tokenizer.json, packed files or saved states in this folder{one}"
    if not has_magic(str(path)):
        return ""
    shard = min(listing.matches(str(path)), default=None)
    one = f", such as {shard!r}" if shard else ""
    return f": a glob needs --row; to inspect a shard, name it{one}"


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    describers = {
        "tokenizer": _describe_tokenizer,
        "shard": _describe_shard,
        "state": _describe_state,
        "prompt state": prompt_states.describe,
        "energon": prepared_folder.describe,
    }
    return describers.get(found["kind"], overview.describe)(found)


def saved_state(path: Path) -> states.State | None:
    """The state in a file of any name, gzipped or not, or in a checkpoint's folder; None if another thing is there.

    Raises:
      StateError: it is damaged.
    """
    value = read_merged(path) if path.is_dir() else _whole_value(path) if path.is_file() else None
    if value is not None and is_of_prompts(value) and "fingerprint" in value:
        raise StateError(f"{path} is a state of prompts: add --prompt")
    return value if path.is_dir() else _as_state(path, value)


def saved_prompt_state(path: Path) -> "PromptState | None":
    """The state of prompts in a file of any name, or in a checkpoint's folder; None if another thing is there.

    Raises:
      StateError: it is damaged.
    """
    if path.is_dir():
        value = read_merged(path) if any(path.glob("process_*-of-*.json")) else None
    else:
        value = _whole_value(path) if path.is_file() else None
    return value if value is not None and is_of_prompts(value) and "fingerprint" in value else None


def _as_state(path: Path, value: dict[str, Any] | None) -> states.State | None:
    if value is None or not {"fingerprint", "lanes"} <= value.keys():
        return None
    try:
        return states.check(value)
    except StateError as error:
        raise StateError(f"{path}: {error}") from None


def _whole_value(path: Path) -> dict[str, Any] | None:
    """The file as one JSON object, if it is one."""
    start, seen = b"", 0
    try:
        with open_inflated(path) as file:
            # Bytes that are there at once, so that the start of a truncated file is known.
            while seen < _START and (piece := file.read1(_PIECE)):
                start, seen = (start + piece).lstrip(), seen + len(piece)
            if start[:1] != b"{" or _is_record(start):
                return None
            value = json.loads(start + file.read(_LARGEST_VALUE))
    except PermissionError:
        raise
    except (*_DAMAGED, ValueError, RecursionError) as error:
        if _HAS_STATE_KEY.search(start):
            raise StateError(
                f"{path} is a damaged saved state: it cannot be read to its end: {error}; use another one"
            ) from None
        if _WRITTEN_BY_TOKENIZERS.match(start):
            raise TokenizerError(
                f"{path} is a damaged tokenizer.json: it cannot be read to its end: {error}; download it again"
            ) from None
        return None
    return value if isinstance(value, dict) else None


def _is_record(start: bytes) -> bool:
    """Whether the first line is a JSON object with more after it: then the file holds records."""
    line, _, rest = start.partition(b"\n")
    if not rest.strip():
        # A long first line is a record, unless it starts as a state or a tokenizer.
        return len(start) >= _START and not (_HAS_STATE_KEY.search(start) or _HAS_TOKENIZER_KEY.search(start))
    try:
        json.loads(line, parse_int=float)
    except ValueError:
        return False
    except RecursionError:
        return True  # neither a tokenizer nor a state is nested so deep
    return True


def _tokenizer(path: Path, value: dict[str, Any], text: str | None) -> dict[str, Any]:
    began = time.perf_counter()
    encoder = Encoder.from_file(path, config="ignore")
    load_seconds = time.perf_counter() - began
    found: dict[str, Any] = {
        "kind": "tokenizer",
        "path": str(path),
        "model": core_of(encoder).model,
        "vocab_size": encoder.vocab_size,
        "merges": len(value["model"].get("merges") or []),
        "added_tokens": len(value.get("added_tokens") or []),
        "normalizer": _parts(value.get("normalizer"), "normalizers"),
        "pre_tokenizer": _parts(value.get("pre_tokenizer"), "pretokenizers"),
        "eos": _token(encoder, encoder.eos_id),
        "bos": _token(encoder, encoder.bos_id),
        "engine": encoder.engine,
        "engine_reason": encoder.engine_reason,
        "load_seconds": load_seconds,
        "memory": encoder.memory,
        "fingerprint": encoder.fingerprint,
        "differs_from_auto_tokenizer": config_changes.differences(encoder._core.json, SiblingFiles.read(path)),
    }
    if text is not None:
        ids = encoder.encode(text).tolist()
        found["encoded"] = [
            {"id": token_id, "token": encoder.id_to_token(token_id), "text": encoder.decode([token_id])}
            for token_id in ids
        ]
    return found


def _parts(value: dict[str, Any] | None, list_name: str) -> list[str]:
    if not value:
        return []
    return [part["type"] for part in value.get(list_name, [value])]


def _token(encoder: Encoder, token_id: int | None) -> dict[str, Any] | None:
    return None if token_id is None else {"id": token_id, "token": encoder.id_to_token(token_id)}


def _describe_tokenizer(found: dict[str, Any]) -> str:
    def token(name: str) -> str:
        return f"{found[name]['token']!r} = {found[name]['id']}" if found[name] else "not named by its files"

    pairs: list[tuple[str, object]] = [
        ("tokenizer", found["path"]),
        ("model", f"{found['model']}, {counted(found['vocab_size'], 'token')}, {counted(found['merges'], 'merge')}"),
        ("added tokens", found["added_tokens"]),
        ("normalizer", ", ".join(found["normalizer"]) or "none"),
        ("pre-tokenizer", ", ".join(found["pre_tokenizer"]) or "none"),
        ("eos", token("eos")),
        ("bos", token("bos")),
        ("engine", f"{found['engine']}: {found['engine_reason']}"),
        ("loaded in", f"{found['load_seconds'] * 1e3:.0f} ms"),
        ("memory", _describe_memory(found)),
        ("fingerprint", found["fingerprint"]),
        *(("AutoTokenizer", f"other ids: {what}") for what in found["differs_from_auto_tokenizer"]),
    ]
    if "encoded" in found:
        pairs.append(("encoded", " ".join(f"{part['text']!r}={part['id']}" for part in found["encoded"])))
    return format_fields(pairs)


def _describe_memory(found: dict[str, Any]) -> str:
    if found["engine"] != "fast":
        return "that of the tokenizers library"
    megabytes = {name: f"{count / 1e6:.1f} MB" for name, count in found["memory"].items()}
    return (
        f"{megabytes['shared']}, and for each thread {megabytes['thread']} growing to at most "
        f"{megabytes['thread_bound']} (cache_bytes)"
    )


def _shard(address: Address, size: int, records: int, max_document_bytes: int) -> dict[str, Any]:
    kinds: dict[str, Counter[str]] = {}
    characters: Counter[str] = Counter()
    path = address.name
    reader = Records(utf8_path(path), size, max_document_bytes, storage=address.options)
    seen = 0
    while seen < records and (members := _next(reader, seen)) is not None:
        # The last one of equal keys counts.
        for key, (kind, length) in {key: (kind, length) for key, kind, length in members}.items():
            kinds.setdefault(key, Counter())[kind] += 1
            characters[key] += length
        seen += 1
    lines, inflated = reader.position()
    return {
        "kind": "shard",
        "path": path,
        "bytes": size,
        "format": reader.format,
        "compression": reader.compression,
        "columns": [{"name": name, "type": type_name} for name, type_name in reader.columns or []],
        "row_groups": reader.row_groups or [],
        "records_read": seen,
        "blank_lines": lines - seen if reader.format == "jsonl" else 0,
        "inflated_bytes_read": inflated,
        "whole_file_read": _is_at_end(reader),
        "keys": {
            key: {"types": dict(types), "characters": characters[key]}
            for key, types in sorted(kinds.items(), key=lambda item: -characters[item[0]])
        },
    }


def _next(reader: Records, seen: int) -> "list[tuple[str, str, int]] | None":
    """The next record's members; None at the end. If the first record is bad, the file may not be a shard."""
    try:
        return reader.next()
    except ShardError as error:
        if seen:
            raise
        reason = error.reason + "; it was read as a shard, since it is not a tokenizer, saved state or packed file"
        raise ShardError(error.shard, error.record, error.byte, reason) from None


def _is_at_end(reader: Records) -> bool:
    try:
        return reader.next() is None
    except ShardError:
        return False  # there is a record beyond the requested ones


def _describe_shard(found: dict[str, Any]) -> str:
    read = "all" if found["whole_file_read"] else "the first"
    looked_at = f"{read} {counted(found['records_read'], 'record')}"
    # Formats with columns are not inflated as a whole: their pages are compressed.
    kind = found["format"]
    if kind in ("jsonl", "tar"):
        kind += f", compression {found['compression']}"
        looked_at += f", {counted(found['inflated_bytes_read'], 'byte')} inflated"
    if groups := found["row_groups"]:
        kind += f", {counted(sum(groups), 'row')} in {counted(len(groups), 'row group')} of at most {max(groups):,}"
    pairs: list[tuple[str, object]] = [
        ("shard", found["path"]),
        ("size", counted(found["bytes"], "byte")),
        ("format", kind),
        ("looked at", looked_at),
    ]
    summary = format_fields(pairs)
    if not found["keys"]:
        return summary
    columns = {column["name"]: column["type"] for column in found["columns"]}
    is_tar = found["format"] == "tar"
    amount = "characters, or bytes," if is_tar else "characters"
    rows = [("member" if is_tar else "key", "in records", "types", f"{amount} a record")]
    for key, seen in list(found["keys"].items())[:_KEYS_SHOWN]:
        count = sum(seen["types"].values())
        # It may hold control characters, which move a terminal's cursor.
        shown = key if key.isprintable() else repr(key)
        if len(shown) > _KEY_SHOWN:
            shown = shown[:_KEY_SHOWN] + "..."
        types = columns.get(key) or ", ".join(seen["types"])
        rows.append((shown, f"{count:,}", types, f"{seen['characters'] / count:,.0f}"))
    if len(found["keys"]) > _KEYS_SHOWN:
        rows.append((f"and {len(found['keys']) - _KEYS_SHOWN:,} more", "", "", ""))
    described = f"{summary}\n\n{format_columns(rows, right=(1, 3))}"
    # They are in the order of how much text they hold.
    longest = next((key for key, seen in found["keys"].items() if "string" in seen["types"]), None)
    if longest is not None:
        described += f"\n\nMost text is under text_field={shortened(longest)}."
    messages = next((key for key in found["keys"] if key.rpartition(".")[2] in _MESSAGES), None)
    if is_tar and messages is not None and "array" in found["keys"][messages]["types"]:
        described += f"\n\nConversations may be under sample=gm.Chat({shortened(messages)})."
    kinds = {key: next(iter(seen["types"]), "") for key, seen in found["keys"].items()}
    has_images = any(kind == "binary" and is_image(key) for key, kind in kinds.items())
    if is_tar and has_images and (beside := guess(kinds)):
        text = f"gm.{type(beside).__name__}({shortened(beside.field)})"
        described += f"\n\nImages with it may be under sample=gm.ImageText(model, text={text})."
    return described


def _summary(path: Path, state: states.State) -> dict[str, Any]:
    # In a mixture, a lane has a line for each source.
    cursors = {
        f"{lane} {name}".strip(): numbers
        for lane, cursor in sorted(state["lanes"].items(), key=lambda item: int(item[0]))
        for name, numbers in states.lane_numbers(cursor).items()
    }
    names = list(states.cursor_numbers(""))
    totals = names[names.index("records") :]
    fingerprint = state["fingerprint"]
    return {
        "kind": "state",
        "path": str(path),
        "version": state["version"],
        "step": state["step"],
        "row": state["row"],
        "stream": mixtures.describe(fingerprint),
        **({commits.KEY: state[commits.KEY]} if commits.KEY in state else {}),
        **_stepwise(state),
        "lanes": cursors,
        "counts_records_by_window": states.has_windows(state),
        "totals": {name: sum(cursor[name] for cursor in cursors.values()) for name in totals},
    }


def _stepwise(state: states.State) -> dict[str, Any]:
    """Skipped steps, stages and edits of the stream of a state, before and after it; empty if there are none."""
    values, step = values_of(state["fingerprint"]), state["step"] + (state["row"] > 0)
    found: dict[str, Any] = {}
    if isinstance(skip := values["skip"], Steps):
        found["skip"] = {"past": skip.within(0, step), "future": skip.within(step, skip[-1][1])}
    stages = [vars(stage) for stage in values["stages"]] if isinstance(values["stages"], Stages) else []
    edits = values["edits"] if isinstance(values["edits"], list) else []
    for name, listed in (("stages", stages), ("edits", edits)):
        if listed:
            past = [one for one in listed if one["step"] < step]
            found[name] = {"past": past, "future": [one for one in listed if one["step"] >= step]}
    return found


def _stepwise_lines(found: dict[str, Any]) -> list[tuple[str, object]]:
    words = {"skip": "skipped", "stages": "stages", "edits": "edits"}
    return [
        (f"{word}, {when}", str(steps) if name == "skip" and steps else "; ".join(map(_of_step, steps)) or "none")
        for name, word in words.items()
        for when, steps in found.get(name, {}).items()
    ]


def _of_step(said: dict[str, Any]) -> str:
    """A stage or an edit, for people."""
    values = [f"{name}={value}" for name, value in said.items() if name != "step" and value is not None]
    return f"from step {said['step']:,} on {', '.join(values)}"


def _describe_state(found: dict[str, Any]) -> str:
    row = f" and {counted(found['row'], 'row')} of the next" if found["row"] else ""
    position = f"after step {found['step']:,}{row}"
    summary = format_fields(
        [
            ("state", f"{found['path']} (version {found['version']})"),
            ("position", position),
            *([("committed", found["committed"] or "none behind it")] if "committed" in found else []),
            *_stepwise_lines(found),
        ]
    )
    totals = format_fields((f"  {name}", f"{count:,}") for name, count in found["totals"].items())
    stream = format_fields((f"  {name}", value) for name, value in found["stream"].items())
    names = ["epoch", "shard", "record", "byte", "delivered", "offset", "documents", "tokens"]
    rows = [["lane", *names]]
    rows += [[lane, *(f"{cursor[name]:,}" for name in names)] for lane, cursor in found["lanes"].items()]
    lanes = format_columns(rows, right=range(len(rows[0])))
    so_far = "So far"
    if found["counts_records_by_window"]:
        so_far += " (records, filtered, quarantined and lost_shards: up to the window that each lane is in)"
    return f"{summary}\n\n{so_far}\n{totals}\n\nOf the stream\n{stream}\n\nCursors of the lanes\n{lanes}"
