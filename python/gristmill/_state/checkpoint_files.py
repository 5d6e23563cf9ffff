"""States in a checkpoint's folder: one file for each process that saved, merged when they are read.

Names and content of the files are those of Grain's own checkpointing (`process_0-of-4.json`), so that either can read
the files of the other; but here the number of processes may change in between.
"""

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gristmill._state import prompt_states
from gristmill._state.states import State, check, merged
from gristmill.errors import StateError

_READERS = 16
_NAME = re.compile(r"process_(\d+)-of-([1-9]\d*)\.json")


def file_name(process: int, processes: int) -> str:
    """The name of the file that a process writes."""
    return f"process_{process}-of-{processes}.json"


def read_merged(folder: Any) -> State:
    """The states of all processes that saved into `folder` (an `etils.epath.Path`), as one.

    Raises:
      StateError: files are missing, come from different savings, or hold no states that belong together.
    """
    found = {path.name: path for path in folder.iterdir() if _NAME.fullmatch(path.name)}
    counts = {int(name.rsplit("-", 1)[1].removesuffix(".json")) for name in found}
    if len(counts) != 1:
        raise StateError(
            f"{folder}: expected the states of one save, process_0-of-N.json and so on, got "
            + (", ".join(sorted(found)) or "none")
        )
    (count,) = counts
    missing = (name for process in range(count) if (name := file_name(process, count)) not in found)
    # Not all of them: a stray name may promise any number.
    if named := list(itertools.islice(missing, 4)):
        raise StateError(
            f"{folder}: {', '.join(named)} {'is' if len(named) == 1 else 'are'} missing from the {count} states "
            "of this save: the save did not finish, or the folder is not shared by all hosts"
        )
    # Together: on a shared file system each takes its time, and a thousand hosts each read all of them.
    with ThreadPoolExecutor(_READERS) as readers:
        states = list(readers.map(_read, (found[file_name(process, count)] for process in range(count))))
    # A single state may also have been saved between the rows of a step.
    join = prompt_states.merged if prompt_states.is_one(states[0]) else merged
    return join(states, str(folder)) if count > 1 else states[0]


def _read(path: Any) -> State:
    try:
        state = json.loads(path.read_text())
        return prompt_states.check(state) if prompt_states.is_one(state) else check(state)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: not a saved state: {error}") from error
