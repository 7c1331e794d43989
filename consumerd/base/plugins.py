"""From a name in the configuration to the object of a plugin, of any kind: handlers, partitioners, delete policies.

Strategy: three steps, each with its own errors: find the attribute (entry points of the kind's group, or
`module:attribute`), import it, call it with its options. Options are compared with the signature before the call, so
that a misspelt one is named with its nearest neighbour. Callers check the result.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from consumerd.base.errors import ConsumerdError, HandlerLoadError, did_you_mean

log = structlog.get_logger(__name__)


class PluginKind(NamedTuple):
    """A kind of plugin: what errors call it, the group of its entry points, and the class of its errors."""

    noun: str
    group: str
    error: type[ConsumerdError] = HandlerLoadError


HANDLER: Final = PluginKind("handler", "consumerd.handlers")
DECODER: Final = PluginKind("decoder", "consumerd.decoders")
MIDDLEWARE: Final = PluginKind("middleware", "consumerd.middleware")
TOKEN_PROVIDER: Final = PluginKind("token provider", "consumerd.token_providers")
KINDS: Final = (HANDLER, DECODER, MIDDLEWARE, TOKEN_PROVIDER)
#: The directories of the installed packages' metadata.
_INFOS: Final = ("*.dist-info", "*.egg-info")


class EntryPoint(NamedTuple):
    """The name of a plugin, and its object: `module:attribute`, with extras of its package as `[extra]`."""

    name: str
    value: str


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of a group in the installed packages: of a name that is there twice, the first package's.

    As `importlib.metadata` says, whose import takes 2 MiB; it is used only where packages are in archives.
    """
    places = [Path(place or ".") for place in sys.path]
    if any(place.is_file() for place in places):
        from importlib import metadata  # noqa: PLC0415

        return [EntryPoint(each.name, each.value) for each in metadata.entry_points(group=group)]
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for info in (each for place in places for pattern in _INFOS for each in sorted(place.glob(pattern))):
        package = re.sub(r"[-_.]+", "-", info.stem.partition("-")[0]).lower()
        if package not in seen:
            seen.add(package)
            found += _points_in(info / "entry_points.txt", group)
    return found


def _points_in(file: Path, group: str) -> Iterator[EntryPoint]:
    section = ""
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        name, equals, value = (part.strip() for part in line.partition("="))
        if name.startswith("["):
            section = name.strip("[]")
        elif section == group and equals and not name.startswith(("#", ";")):
            yield EntryPoint(name, value)


def find(kind: PluginKind, name: str) -> object:
    """Return the object that `name` stands for, imported and not called. Raises the error of its kind."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not all(part.isidentifier() for part in parts):
            raise kind.error(f"{kind.noun} {name!r} is not of the form module:attribute.")
        return _import(kind, name, module, attribute)
    point = _entry_point(kind, name)
    module, _, attribute = (part.strip() for part in point.value.partition("[")[0].partition(":"))
    if not attribute:
        raise kind.error(f"{kind.noun} {name!r}: its package names {point.value!r}, which is not module:attribute.")
    return _import(kind, name, module, attribute)


def call(kind: PluginKind, name: str, factory: Callable[..., object], options: Mapping[str, Any]) -> object:
    """Call a class or factory with its options. Raises the error of its kind for options that do not fit."""
    called = f"{kind.noun} {name!r}"
    _check_options(kind, name, factory, options)
    try:
        return factory(**options)
    except HandlerLoadError:  # a missing extra, which has its sentence
        raise
    except SystemExit as error:
        raise kind.error(f"{called} called sys.exit({error.code!r}) in its constructor.") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        problem = "refused its options" if options else "cannot be created"
        told = error_line(error)
        if options and type(error) is ValueError:  # the sentence about an option needs no type before it
            told = told.removeprefix("ValueError: ")
        raise kind.error(f"{called} {problem}: {told}") from error


def find_instance(kind: PluginKind, name: str) -> object:
    """Return what `find` does, or if that is a class, an instance of it. Raises the error of its kind."""
    found = find(kind, name)
    return call(kind, name, found, {}) if isinstance(found, type) else found


def _entry_point(kind: PluginKind, name: str) -> EntryPoint:
    installed = entry_points(kind.group)
    found = {point.value: point for point in installed if point.name == name}
    if len(found) > 1:
        raise kind.error(
            f"{kind.noun} {name!r} is provided by several packages ({listing(found)}): "
            "uninstall all but one, or name yours as module:attribute."
        )
    if not found:
        raise kind.error(f"unknown {kind.noun} {name!r}{_instead(name, {point.name for point in installed})}")
    return next(iter(found.values()))


def _import(kind: PluginKind, name: str, module: str, attribute: str) -> object:
    called = f"{kind.noun} {name!r}"
    try:
        found: object = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as above
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise kind.error(
                f"{called}: no module named {error.name!r}; is its package installed, or on PYTHONPATH?"
            ) from error
        raise kind.error(f"{called}: importing {module!r} failed: {error_line(error)}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise kind.error(
                f"{called}: {module!r} has no attribute {part!r}{_instead(part, dir(found), shown=False)}"
            ) from error
    return found


def _check_options(kind: PluginKind, name: str, factory: Callable[..., object], options: Mapping[str, Any]) -> None:
    called = f"{kind.noun} {name!r}"
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some factories written in C have no signature; the call itself will tell
        log.debug("handler_signature_unavailable", plugin=called)
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in named:
                raise kind.error(f"{called} has no option {option!r}{_instead(option, named)}")
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise kind.error(f"{called} requires the option {missing[0]!r}.")


def _instead(wrong: str, known: Iterable[str], *, shown: bool = True) -> str:
    """The end of a sentence about an unknown name."""
    names = sorted(known)
    hint = did_you_mean(wrong, names)
    if not shown:
        return hint
    return f"{hint} There {'are' if len(names) > 1 else 'is'} {listing(names) or 'none'}."


def listing(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(sorted(names))


def error_line(error: BaseException) -> str:
    """An error of foreign code on one line, with its type."""
    problems = getattr(error, "errors", None)
    if callable(problems):  # pydantic's ValidationError, whose text has many lines
        first = problems()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}."
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}".rstrip(": .") + "."
