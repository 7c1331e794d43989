"""Parts of tables and of the source, which tasks read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from consumerd.spark.lake.batch_files import BatchFile, LakeFiles
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.lake.worker import WorkFunction

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

#: Bytes of a table's files, and of the source's log, that one task reads, about.
TASK_BYTES: Final = 64 << 20
#: Runs a function for each of some tasks, as `WorkerPool.run`.
Runner: TypeAlias = "Callable[[WorkFunction, Sequence[tuple[Any, ...]]], list[Any]]"


class TablePart(NamedTuple):
    """Some row groups of a file of a table: `share` as for `read_file`."""

    files: LakeFiles
    file: BatchFile
    share: tuple[int, int] = (0, 1)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self.file.size // self.share[1]

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows with these columns. Raises as `read_file`."""
        file = self.file
        return read_file(self.files, file.path, schema, after=file.first - 1, to=file.last, share=self.share)


#: What a task reads, one after the other.
Part: TypeAlias = "TablePart | Split"


def size_of(part: Part) -> int:
    """Bytes, or messages where the source's offsets count those."""
    return part.size if isinstance(part, TablePart) else part.end - part.start


def grouped(parts: Iterable[Part], most: int) -> list[tuple[Part, ...]]:
    """Neighbours together up to `most`: a task costs more than a small part."""
    tasks: list[list[Part]] = []
    held = most
    for part in parts:
        size = size_of(part)
        if held + size > most:
            tasks.append([])
            held = 0
        tasks[-1].append(part)
        held += size
    return [tuple(task) for task in tasks]


def file_tasks(files: LakeFiles, found: Iterable[BatchFile]) -> list[tuple[Part, ...]]:
    """All of these files, in their order, for tasks of about `TASK_BYTES`; a large file is for several."""
    parts: list[Part] = []
    for file in found:
        of = max(1, round(file.size / TASK_BYTES))
        parts += [TablePart(files, file, (share, of)) for share in range(of)]
    return grouped(parts, TASK_BYTES)


class ReadTable(NamedTuple):
    """A table, and how tasks open its files."""

    table: LakeTable
    format: str
    store: Mapping[str, str] | None = None

    def tasks(self, to: int | None = None) -> list[tuple[Part, ...]]:
        """The parts of the batches up to `to`, in the order of the log, for a task each. Raises NotFoundError."""
        last = (1 << 62) if to is None else to
        found = [BatchFile(file.path, file.size, 0, last) for file in self.table.files(to=to)]
        return file_tasks(LakeFiles(self.table.path, self.format, self.store), found)


class RowScan(Protocol):
    """Rows in parts, each of which is read by a task."""

    def map(self, function: Callable[..., Any], columns: Sequence[str], *arguments: Any) -> list[Any]:
        """`function(batches, *arguments)` for each part. `batches`: an iterator of Arrow batches with these columns.

        A column that the rows do not have is left out.
        """
        ...


class TableScan:
    """The rows of a table, up to a batch."""

    def __init__(self, table: ReadTable, run: Runner) -> None:
        self._tasks = table.tasks()
        self._schema = table.table.schema()
        self._run = run

    def map(self, function: Callable[..., Any], columns: Sequence[str], *arguments: Any) -> list[Any]:
        """See RowScan. `function` and `arguments` are pickled."""
        schema = pa.schema([self._schema.field(name) for name in columns if name in self._schema.names])
        return self._run(_map_parts, [(parts, schema, function, arguments) for parts in self._tasks])


def _map_parts(
    parts: Sequence[TablePart], schema: pa.Schema, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Generator[None, None, Any]:
    """In a worker: what the function makes of the rows."""
    yield
    return function((rows for part in parts for rows in part.read(schema)), *arguments)
