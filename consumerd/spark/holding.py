"""One run of a step at a time, for each checkpoint.

Strategy: a lock of the kernel's on a file in the checkpoint's folder, which ends with the process that holds it, so
nothing is left behind by a kill. Spark itself notices a second run only when both want to note the same batch; by then
each may have removed what the other one was writing. Where locks are not to be had (other file systems than local ones
and mounts) that is how it is noticed.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConsumerdError, ExitCode
from consumerd.spark.tables.files import LocalFiles, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

FILE: Final = "_run.lock"


class CheckpointHeldError(ConsumerdError):
    """Another run works with the same checkpoint; nothing was written."""

    exit_code = ExitCode.REFUSED


@contextmanager
def held(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Keep other runs away from the checkpoint. Raises CheckpointHeldError, and OSError where it cannot be written."""
    path, files = locate(spark, checkpoint, renames=False)
    if not isinstance(files, LocalFiles):
        yield
        return
    files.make_folder(path)
    with Path(path, FILE).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(200).decode(errors="replace").strip() or "another process"
            raise CheckpointHeldError(
                f"{holder} works with the checkpoint {path}: let it end, or stop it; two pipelines need a name or a "
                "root of their own."
            ) from None
        except OSError:
            yield  # a mount without locks
            return
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
        yield
