"""The `consumerd` command: finds the sub-command, turns every outcome into one sentence and a documented exit code.

Strategy: commands are named here and imported when called, so that `consumerd --help` and `consumerd log dump` pay for
nothing they do not use. A command raises `ConsumerdError` for an error that its user can correct; only this module
prints it. Tracebacks appear with `--debug`, and for defects of consumerd itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from consumerd import __version__
from consumerd.base import native
from consumerd.base.errors import ConsumerdError, ExitCode, leaves
from consumerd.base.frames import current_frames
from consumerd.cli.lazy_commands import LazyCommands
from consumerd.cli.tables import printable

#: command -> (module, what the list of commands says about it)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("consumerd.cli.run", "Run the daemon: join the group and deliver messages to the handler."),
    "check": ("consumerd.cli.check", "Check a configuration, the handler included, without joining."),
    "demo": ("consumerd.cli.demo", "Run a whole cluster on loopback, kill parts of it, and count every message."),
    "broker": ("consumerd.cli.broker", "Run a Kafka 0.7 broker."),
    "produce": ("consumerd.cli.produce", "Send the lines of standard input to a topic."),
    "consume": ("consumerd.cli.consume", "Print the messages of topics, as a member of a group or without one."),
    "mirror": ("consumerd.cli.mirror", "Copy topics from one cluster to another."),
    "topics": ("consumerd.cli.topics", "Show, create and delete the topics of a cluster."),
    "group": ("consumerd.cli.group", "Show a consumer group, plan its assignment, find and fix what is wrong."),
    "offsets": ("consumerd.cli.offsets", "Show, change, export and import the committed offsets of groups."),
    "migrate": ("consumerd.cli.migrate", "Leave an old cluster: verify what was copied, move committed offsets."),
    "config": (
        "consumerd.cli.config",
        "Print an example, a schema or the effective values; convert 0.7 property files.",
    ),
    "log": ("consumerd.cli.log", "Read segment files of any Kafka without a broker."),
    "handlers": ("consumerd.cli.handlers", "List handlers, and try one with messages from a file."),
    "dead-letters": (
        "consumerd.cli.dead_letters",
        "Show messages that a handler rejected, and deliver them again.",
    ),
    "wire": ("consumerd.cli.wire", "Read requests and responses that were recorded on the wire."),
    "spark": ("consumerd.cli.spark", "Turn partitions and archives into clean tables, with Spark."),
    "lake": ("consumerd.cli.lake", "Turn partitions and archives into clean tables, on this machine alone."),
}

#: Seconds after which a Ctrl-C that was dropped may be sent again.
_MOMENT = 0.01

EXAMPLES = """\b
Examples:
  consumerd demo
  consumerd run -c /etc/consumerd/events.toml
  consumerd broker --port 9092 --log-dir /var/lib/kafka --zookeeper 127.0.0.1:2181/kafka
  gzip -dc old.gz | consumerd produce --broker 127.0.0.1:9092 --topic events --codec gzip
  consumerd log dump --json /archive/events-0 | jq .offset
"""


class _ReaderGone(Exception):  # noqa: N818  # not an error of anybody's
    """Standard output has no reader any more. No OSError, because click makes exit code 1 of a broken pipe."""


@contextlib.contextmanager
def _noticing_closed_pipes() -> Iterator[None]:
    """Raise _ReaderGone for a broken pipe, and where rich made exit code 1 of one."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise _ReaderGone from error
        raise


class _Commands(LazyCommands):
    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """As click, which prints --help and --version here."""
        with _noticing_closed_pipes():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and flush its output, so that a closed pipe is noticed here."""
        with _noticing_closed_pipes():
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result


@click.command(
    cls=_Commands, modules=COMMANDS, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(
    __version__, "-V", "--version", prog_name="consumerd", message=f"%(prog)s %(version)s ({native.describe()})"
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """A member of Kafka consumer groups that coordinate in ZooKeeper, and the tools around it."""
    ctx.obj = {"debug": debug}


#: The system's limit on the process, or the machine's memory; the kernel may also kill the process without an error.
_NO_MEMORY: Final = (
    "no memory is left: raise the memory limit of the process (of its service, its container, or ulimit -v), or lower "
    "what it may hold (fetch.budget of a daemon). What was not committed is delivered again."
)


#: A full disk of standard output; what writes files itself has errors of its own.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def explain(error: BaseException) -> tuple[ExitCode, str | None]:
    """The exit code of an error and the sentence to print; None where only a traceback helps (a defect of ours).

    Of a group the first declared error is reported, unless something undeclared is among its leaves.
    """
    found = list(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return ExitCode.INTERRUPTED, "interrupted"
    if any(isinstance(leaf, MemoryError) for leaf in found):  # what else failed may be a consequence
        return ExitCode.INTERNAL, _NO_MEMORY
    if found and all(isinstance(leaf, OSError) and leaf.errno in _FULL for leaf in found):
        return ExitCode.INTERNAL, f"the output cannot be written ({found[0]}): make room, or write it to another disk"
    declared = [leaf for leaf in found if isinstance(leaf, ConsumerdError)]
    if declared and len(declared) == len(found):
        return declared[0].exit_code, str(declared[0])
    return ExitCode.INTERNAL, None


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments
    try:
        result: Any = cli.main(args=list(arguments), prog_name="consumerd", standalone_mode=False)
    except click.exceptions.Abort:
        _say("consumerd: interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        with _silent_on_full_disk():
            error.show()
        return error.exit_code
    except _ReaderGone:
        # The reader of our output is gone (`| head`): report nothing. Keep the interpreter's flush quiet, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if all(isinstance(leaf, BrokenPipeError) for leaf in leaves(error)):
            # The pipe of the log, which every task writes to. Unhandled messages are delivered again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            return ExitCode.PIPE
        code, sentence = explain(error)
        if debug or sentence is None:
            sys.excepthook(type(error), error, error.__traceback__)
        if sentence is not None:
            for line in _with_plain_names(sentence, arguments).splitlines():  # a configuration has one for each problem
                _say(f"consumerd: {line}")
        else:
            _say("consumerd: this is a defect in consumerd; please report it with the lines above.")
        return code
    return result if isinstance(result, int) else ExitCode.OK


def _with_plain_names(sentence: str, arguments: Sequence[str]) -> str:
    """The sentence with the names of the command line in one line each, whatever characters they have."""
    for argument in arguments:
        for name in (argument, argument.partition("=")[2]):
            if not name.isprintable():
                sentence = sentence.replace(name, printable(name))
    return sentence


@contextlib.contextmanager
def _silent_on_full_disk() -> Iterator[None]:
    """Print to standard error; where its disk is full, the exit code alone tells."""
    try:
        yield
    except OSError:
        # Keep the interpreter's flush quiet, too: it would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _say(line: str) -> None:
    with _silent_on_full_disk():
        click.echo(line, err=True)


def repeat_lost_interrupt(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came while the interpreter drops exceptions.

    Such moments are frequent while modules are imported: a callback frees the lock of each. The signal comes from a
    thread, when that callback has ended.
    """
    if dropped.exc_type is KeyboardInterrupt:
        threading.Thread(target=_interrupt_again, args=(threading.get_ident(),)).start()
    else:
        sys.__unraisablehook__(dropped)


def _interrupt_again(thread: int) -> None:
    """Wait until `thread` has left `repeat_lost_interrupt`, where the signal would be dropped once more, then send it.

    That takes longer than a moment where other processes want the processor.
    """
    while True:
        time.sleep(_MOMENT)
        frame = current_frames().get(thread)
        while frame is not None and frame.f_code is not repeat_lost_interrupt.__code__:
            frame = frame.f_back
        if frame is None:
            break
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Entry point of the console script."""
    if os.getpid() == 1:
        from consumerd.cli.init import fork_from_init  # noqa: PLC0415 - only in a container

        fork_from_init()
    sys.unraisablehook = repeat_lost_interrupt
    sys.exit(int(run(sys.argv[1:])))
