"""The reference pages of the documentation site, generated from the code: they cannot fall behind it.

Strategy: configuration from its declarations, commands from click, the library from its signatures and docstrings;
log events and exit codes from the syntax trees, since an event is a call and the meaning of a code is a comment. What
docs/operations.md says of an event stands under its heading. Each function returns one page as Markdown. Metrics are
a page of the repository: `python docs/reference.py` writes it.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

import click

import consumerd
from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.metrics.catalogue import (
    BROKER_METRICS,
    EXPORTER_METRICS,
    MEMBER_METRICS,
    MIRROR_METRICS,
    PROCESS_METRICS,
    Metric,
)
from consumerd.base.settings.setting import SecretStr, Section
from consumerd.cli.main import COMMANDS, cli
from consumerd.service.config.model import Config
from consumerd.service.config.reloading import RELOADS
from consumerd.service.config.toml_text import toml_value

ROOT: Final = Path(__file__).resolve().parents[1]
LEVELS: Final = ("debug", "info", "warning", "error", "critical", "exception")
_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*")


def inline(text: str) -> str:
    """Plain text as one line of Markdown or a cell of a table: nothing but its backticks is markup."""
    parts = re.split(r"(`+)(.+?)\1", " ".join(text.split()))
    shown = []
    for index in range(0, len(parts), 3):
        shown.append(_plain(parts[index]))
        if index + 2 < len(parts):
            shown.append(code(parts[index + 2]))
    return "".join(shown)


def _plain(text: str) -> str:
    return re.sub(r"[*_\[\]\\|`#~]", lambda found: f"&#{ord(found[0])};", html.escape(text, quote=False))


def code(text: str) -> str:
    """Text in code font, also in a cell of a table."""
    return f"<code>{_plain(text)}</code>"


def prose(text: str) -> str:
    """A docstring or the help of a command: paragraphs, and those that are indented or marked as they stand."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.startswith("\b"):
            blocks.append(f"```text\n{block[1:].strip(chr(10))}\n```")
        elif block.startswith("  "):
            blocks.append(f"```text\n{block}\n```")
        else:
            blocks.append(inline(block))
    return "\n\n".join(blocks)


# Configuration


def type_name(annotation: Any) -> str:
    """The type of a key as its user writes it in TOML."""
    if annotation is type(None):
        return "none"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(toml_value(each) for each in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not type(None))
    if origin is dict:
        return f"table of {type_name(arguments[1])}"
    if origin in (list, tuple, set, frozenset):
        return f"list of {type_name(arguments[0])}"
    if origin is not None:
        return type_name(origin.__value__ if hasattr(origin, "__value__") else arguments[0])
    names = {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path", SecretStr: "secret text"}
    if annotation in names:
        return names[annotation]
    return "table" if isinstance(annotation, type) and issubclass(annotation, Section) else "value"


def _tables(path: str, table: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    yield path, table
    for name, hint in table.hints().items():
        if (nested := table.inner(name)) is not None:
            place = f"{path}.{name}" if path else name
            yield from _tables(f"{place}.NAME" if get_origin(hint) is dict else place, nested)


def configuration() -> str:
    """Every key of the configuration: type, default, description."""
    lines = [
        "# Configuration",
        "",
        "Every key of the file that `consumerd run -c FILE` reads. An environment variable overrides a key:",
        "`CONSUMERD_GROUP__ID=x` sets `id` in `[group]`. How a running daemon takes a change over is described in",
        "[Reloading](../operations.md#reloading-the-configuration). The table `[spark]` is described in",
        "[Spark](../spark.md).",
    ]
    for path, section in _tables("", Config):
        hints = section.hints()
        keys = {
            name: each
            for name, each in section.fields.items()
            if path and not (isinstance(hints[name], type) and issubclass(hints[name], Section))
        }
        if not keys:
            continue
        is_array = path == "subscriptions"
        heading = f"## [[{path}]]" if is_array else f"## [{path}]"
        lines += ["", heading.replace("[", "\\["), "", prose(inspect.getdoc(section) or ""), ""]
        lines += ["| key | type | default | a change takes effect | since | description |", "|---|---|---|---|---|---|"]
        for name, each in keys.items():
            default = None if each.required else each.value()
            shown = "required" if each.required else "none" if default is None else code(_default(default))
            about = inline(each.about)
            table = path.replace("subscriptions.handler", "handler")
            reload = RELOADS[".".join(f"{table}.{name}".split(".")[:2])].value
            kind = _plain(type_name(hints[name]))
            lines.append(f"| {code(name)} | {kind} | {shown} | {reload} | {each.since} | {about} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    return '""' if isinstance(value, SecretStr) else toml_value(value)


# Commands


def commands(command: click.Command | None = None, path: str = "consumerd") -> Iterator[tuple[str, click.Command]]:
    """Each command with its full name, in the order of `--help`."""
    command = command or cli
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            if each is not None and not each.hidden:
                yield from commands(each, f"{path} {name}")


def command_line() -> str:
    """Every command with its arguments and options."""
    lines = ["# Command line", "", "Every command and option. `consumerd COMMAND --help` prints the same."]
    for path, command in commands():
        if path == "consumerd":
            lines += ["", "| command | |", "|---|---|"]
            lines += [
                f"| [`{path} {name}`](#{path}-{name}) | {inline(about)} |" for name, (_, about) in COMMANDS.items()
            ]
            continue
        context = click.Context(command, info_name=path)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["", f"## {path}", "", f"```text\n{path} {usage}\n```", "", prose(command.help or ""), ""]
        records = [
            (record, each.required)
            for each in command.get_params(context)
            if isinstance(each, click.Option) and (record := each.get_help_record(context))
        ]
        lines += ["| option | description |", "|---|---|"]
        lines += [f"| {code(names)} | {inline(about)} |" for (names, about), _ in records]
        if command.epilog:
            lines += ["", prose(command.epilog)]
    return "\n".join(lines) + "\n"


# Log events


@dataclass
class Event:
    """What is known of a log event: levels, keys, and the modules that log it."""

    levels: set[str] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def _constants(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return _constants(node.body) + _constants(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _named_by_callers(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, trees: list[ast.Module]
) -> list[str]:
    """What calls hand to the parameter `name` of a method."""
    parameters = [each.arg for each in function.args.args]
    if name not in parameters:
        return []
    place = parameters.index(name) - (parameters[0] == "self")
    return [
        event
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == function.name
        for given in [*node.args[place : place + 1], *(each.value for each in node.keywords if each.arg == name)]
        for event in _constants(given)
    ]


def log_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, ast.FunctionDef | ast.AsyncFunctionDef | None]]:
    """Calls that log, their level, and the function around each."""
    waiting: list[tuple[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef | None]] = [(tree, None)]
    while waiting:
        node, around = waiting.pop()
        around = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else around
        waiting += [(child, around) for child in ast.iter_child_nodes(node)]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and re.search(r"log(ger)?$", ast.unparse(node.func.value))
            and node.args
        ):
            yield node, node.func.attr, around


def log_events() -> dict[str, Event]:
    """The log events of the package, sorted by name."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "consumerd").rglob("*.py"))}
    found: dict[str, Event] = {}
    for path, tree in trees.items():
        for call, level, around in log_calls(tree):
            names = _constants(call.args[0])
            if isinstance(call.args[0], ast.Name) and around is not None:
                names = _named_by_callers(around, call.args[0].id, list(trees.values()))
            for name in filter(_EVENT.fullmatch, names):
                event = found.setdefault(name, Event())
                event.levels.add("error" if level == "exception" else level)
                event.keys.update(
                    dict.fromkeys(each.arg for each in call.keywords if each.arg and each.arg != "exc_info")
                )
                event.modules.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return dict(sorted(found.items()))


def meanings() -> dict[str, str]:
    """What the table "Log events" of docs/operations.md says of an event, as Markdown of a page in reference/."""
    section = (
        (ROOT / "docs" / "operations.md").read_text("utf-8").partition("\n## Log events\n")[2].partition("\n## ")[0]
    )
    found = {}
    for cell, about in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE):
        text = re.sub(r"\]\(#", "](../operations.md#", about)
        text = re.sub(r"\]\((?!\.\.)([\w.-]+\.md)", r"](../\1", text)
        found.update(dict.fromkeys(re.findall(r"`([a-z][a-z0-9_]*)`", cell), text))
    return found


def events_page() -> str:
    """One heading per log event."""
    lines = [
        "# Log events",
        "",
        "Every event that consumerd logs, with its level and keys. Each also has `timestamp` and `level`, and events",
        "of a partition have its topic and number. Where [Operations](../operations.md#log-events) explains an event,",
        "its explanation is repeated here. Messages of Spark's tasks are sentences, and are not listed.",
    ]
    about = meanings()
    for name, event in log_events().items():
        keys = ", ".join(f"`{key}`" for key in event.keys) or "none"
        lines += ["", f"## `{name}`", ""]
        if name in about:
            lines += [f"{about[name][0].upper()}{about[name][1:].rstrip('.')}.", ""]
        lines += [
            f"Level: {', '.join(sorted(event.levels, key=LEVELS.index))}. Keys: {keys}.",
            f"Logged by {', '.join(f'`{module}`' for module in sorted(event.modules))}.",
        ]
    return "\n".join(lines) + "\n"


# Exit codes


def exit_code_comments() -> dict[str, str]:
    """What the comment above each member of ExitCode says."""
    source = inspect.getsource(ExitCode)
    return {name: about for about, name in re.findall(r"#: (.+)\n +(\w+) = \d+", source)}


def _errors(base: type[ConsumerdError]) -> Iterator[type[ConsumerdError]]:
    for each in base.__subclasses__():
        yield each
        yield from _errors(each)


def exit_codes() -> str:
    """One heading per exit code."""
    for name in consumerd.__all__:
        getattr(consumerd, name)  # imports the rooms whose errors are public
    lines = [
        "# Exit codes",
        "",
        "Every command ends with one of these codes. [Operations](../operations.md#exit-codes) describes what to do.",
    ]
    comments = exit_code_comments()
    for each in ExitCode:
        lines += ["", f"## {each.value} {each.name}", "", inline(comments[each.name])]
        public = sorted(
            f"`consumerd.{error.__name__}`"
            for error in set(_errors(ConsumerdError))
            if error.exit_code == each and error.__name__ in consumerd.__all__
        )
        if public:
            lines += ["", f"Errors of the library with this code: {', '.join(public)}."]
    return "\n".join(lines) + "\n"


# Library


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "()"
    return re.sub(r"<factory>|<object object at 0x\w+>", "...", text).replace("'", "")


def _block(head: str, signature: str) -> str:
    if len(head) + len(signature) > 100:
        signature = re.sub(r", (?=\**\w+(?::|=|,|\)|$)|\*,|/)", ",\n    ", signature)
        signature = re.sub(r"^\(", "(\n    ", signature)
    return f"```python\n{head}{signature}\n```"


def _doc(value: Any, name: str) -> str:
    text = inspect.getdoc(value) or ""
    return "" if text.startswith(f"{name}(") else prose(text)  # which a dataclass has made itself


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("consumerd"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value):
                yield name, value


def library() -> str:
    """The names of `consumerd` with signatures and docstrings."""
    lines = [
        "# Library",
        "",
        "The names that `import consumerd` offers. [Consumer library](../library.md) and [Producers](../producer.md)",
        "show how to use them.",
    ]
    for name in consumerd.__all__:
        value = getattr(consumerd, name)
        lines += ["", f"## {name}", ""]
        if not isinstance(value, type):
            shown = f"`{name} = {value!r}`" if isinstance(value, int) else _block(name, _signature(value))
            lines += [shown, "", "" if isinstance(value, int) else _doc(value, name)]
            continue
        is_error = issubclass(value, Exception)
        if is_error:
            bases = [base.__name__ for base in value.__bases__]
            lines += [f"Exception; base: {', '.join(f'`{base}`' for base in bases)}.", ""]
        else:
            lines += [_block(f"class {name}", _signature(value)), ""]
        lines.append(_doc(value, name))
        if value is consumerd.ConsumerConfig:
            lines += ["", "| keyword | key of the configuration | meaning |", "|---|---|---|", *_keywords()]
        for member, attribute in _members(value):
            function: Any = attribute.fget if isinstance(attribute, property) else getattr(value, member)
            lines += ["", f"### {name}.{member}".replace("_", r"\_"), ""]
            if isinstance(attribute, property):
                returns = inspect.signature(function).return_annotation
                lines += [_block(f"{member}: ", str(returns).replace("'", "")), ""]
            else:
                prefix = "async def " if inspect.iscoroutinefunction(function) else "def "
                lines += [_block(f"{prefix}{member}", _signature(function)), ""]
            lines.append(_doc(attribute, member))
    return "\n".join(lines) + "\n"


def _keywords() -> Iterator[str]:
    """The keywords of `ConsumerConfig` that are keys of the configuration, too."""
    for table, section in Config.tables().items():
        for key, setting in section.fields.items():
            if setting.names.keyword is not None:
                yield f"| {code(setting.names.keyword)} | {code(f'{table}.{key}')} | {inline(setting.about)} |"


# Metrics

_UNITS: Final = {"1": "", "s": "seconds", "By": "bytes"}


def _unit(metric: Metric) -> str:
    return _UNITS.get(metric.unit, f"{metric.unit.strip('{}')}s")


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | type | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind.value} | {_unit(metric)} | {labels} | {metric.help} |"


_METRICS: Final = """# Metrics

Every metric of `/metrics`, generated from the code. [Monitoring](monitoring.md) describes how to enable them, the
dashboard and the alerts. A histogram has the samples `_bucket`, `_sum` and `_count`. OpenTelemetry has the same metrics
without `_total`, with these units in its own notation (`s`, `By`, `{message}`).

Beside these, `/metrics` has `process_*`, `python_info` and `python_gc_*` of prometheus-client.
"""
_MEMBERS: Final = """`consumerd run` and `consumerd mirror`. `broker` is empty on brokers since 0.8, whose partitions
move. With `metrics.partition_labels = false` the metrics of partitions are summed up by topic: `broker` and `partition`
are empty, the lag is absent while that of any partition is unknown, the largest of `consumerd_lag_seconds`,
`consumerd_since_handled_seconds` and `consumerd_last_handled_timestamp_seconds` counts, and offsets are left out."""
_BROKERS: Final = """`consumerd broker`; `broker` is its id. With the property `metrics.partition.labels=false` the
metrics of logs are summed up by topic: `partition` is empty, and offsets are left out."""
_EXPORTER: Final = """`consumerd group exporter`, which has no member in the groups: names and labels are those of
kafka-lag-exporter. What could not be read in the last round is absent, and so is each sum with it."""


def metrics() -> str:
    """The page of docs/metrics.md, which stands in the repository so that links to it work on code hosts, too."""
    lines = [_METRICS]
    of_members = [metric for metric in MEMBER_METRICS if metric not in PROCESS_METRICS]
    for title, about, listed in (
        ("Every process", "", PROCESS_METRICS),
        ("Members", _MEMBERS, of_members),
        ("Mirrors", "`consumerd mirror`, beside those of a member. `topic` is that of the source.", MIRROR_METRICS),
        ("Broker", _BROKERS, BROKER_METRICS),
        ("Exporter", _EXPORTER, EXPORTER_METRICS),
    ):
        lines += [f"## {title}", "", *([about, ""] if about else []), *_rows(listed), ""]
    return "\n".join(lines[:-1]) + "\n"


def pages() -> dict[str, str]:
    """Each page by its place on the site."""
    return {
        "reference/configuration.md": configuration(),
        "reference/command-line.md": command_line(),
        "reference/log-events.md": events_page(),
        "reference/exit-codes.md": exit_codes(),
        "reference/library.md": library(),
    }


if __name__ == "__main__":
    (ROOT / "docs" / "metrics.md").write_text(metrics(), "utf-8")
