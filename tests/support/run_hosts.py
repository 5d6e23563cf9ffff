"""Runs a function of `host_programs` in several JAX processes on this machine, each standing for a host.

`rank_programs` has those of ranks of `torch.distributed`.
"""

import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from helpers import PATIENCE

HERE = Path(__file__).parent


class HostFailedError(AssertionError):
    """A process ended with an error, or did not end in time. The message has its output."""


def run_hosts(
    folder: Path,
    program: str,
    arguments: dict[str, Any],
    *,
    hosts: int,
    devices: int = 8,
    programs: str = "host_programs.py",
) -> list[Any]:
    """Returns the results of `host_programs.<program>(**arguments)` on `hosts` processes that share `devices`.

    When one fails, or time is up, all are killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arguments.pickle").write_bytes(pickle.dumps(arguments))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // hosts}",
    }
    processes = []
    for host in range(hosts):
        with (folder / f"log-{host}").open("wb") as log:
            command = [
                sys.executable,
                str(HERE / programs),
                program,
                str(folder),
                str(host),
                str(hosts),
                str(port),
            ]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    is_late = True
    try:
        is_late = not _wait(processes, time.monotonic() + PATIENCE)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    if any(codes):
        logs = [
            f"host {host}, exit {codes[host]}:\n{(folder / f'log-{host}').read_text()[-3000:]}" for host in range(hosts)
        ]
        late = [f"killed after {PATIENCE} s"] if is_late else []
        raise HostFailedError("\n".join([*late, *logs]))
    return [pickle.loads((folder / f"result-{host}").read_bytes()) for host in range(hosts)]


def _wait(processes: list[subprocess.Popen[bytes]], until: float) -> bool:
    """Whether all processes, or one with an error, ended in time."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            # The others would wait for it in a collective; half a second suffices for their error messages.
            time.sleep(0.5)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True
