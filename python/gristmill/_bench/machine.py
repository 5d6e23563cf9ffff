"""The machine of a benchmark."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import gristmill._core as _core

_PACKAGES = (
    "gristmill", "grain", "array_record", "datasets", "tokenizers", "transformers", "renderers", "gigatoken", "numpy",
    "pyarrow",
)  # fmt: skip


def facts() -> dict[str, str | int]:
    """The processor, how much of it this process may use, memory, and system."""
    return {
        "processor": _processor(),
        "usable_cores": _core.usable_cores(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python and of all packages that take part."""
    found = {"python": platform.python_version(), "tokenizers crate": _core.TOKENIZERS_VERSION}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())
