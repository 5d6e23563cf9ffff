"""The `main` of programs of `run_hosts.run_hosts` in which processes of torch meet."""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run(programs: Mapping[str, Any], among: Callable[[int, int, int], AbstractContextManager[None]]) -> None:
    """Calls the program that the command line names, and leaves what it returns for the test.

    Args:
      programs: functions by name.
      among: makes of this process one of several: its rank, their number, and the port where they meet.
    """
    name, path, *numbers = sys.argv[1:]
    rank, ranks, port = map(int, numbers)
    folder = Path(path)
    try:
        arguments = pickle.loads((folder / "arguments.pickle").read_bytes())
        with among(rank, ranks, port):
            result = programs[name](**arguments)
            (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


@contextmanager
def group(rank: int, ranks: int, port: int) -> Iterator[None]:
    """A process of `torch.distributed`'s group."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    yield
    dist.destroy_process_group()


@contextmanager
def variables(rank: int, ranks: int, port: int) -> Iterator[None]:
    """A process that finds the others by the variables that `torchrun` sets."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    yield
