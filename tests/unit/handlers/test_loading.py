from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode, HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, load_handler, make_handler, plain_handler
from consumerd.handlers.builtin.null import NullHandler
from consumerd.handlers.builtin.print import PrintHandler

MakeBatch = Callable[..., Batch]


PLUGIN = '''
import functools
from consumerd.handlers import message_handler
from pydantic import BaseModel, ConfigDict

seen = []
number = 7
lambda_ = lambda batch: None

async def batches(batch):
    seen.append(list(batch))

@message_handler
async def messages(message):
    seen.append(message.payload)

class Plain:
    """Has nothing but handle."""
    def __init__(self, word="w", *, times: int):
        if times < 0:
            raise ValueError("times must not be negative")
        self.word = word * times
    async def handle(self, batch):
        seen.append(self.word)

class Full(Plain):
    async def start(self, context):
        seen.append(("start", context))
    async def stop(self):
        seen.append("stop")
    async def position(self, partition):
        return 42

class Blocking:
    def handle(self, batch):
        pass

class HalfBlocking(Plain):
    def stop(self):
        pass

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    limit: int

class Validated:
    def __init__(self, **options):
        self.options = Options(**options)
    async def handle(self, batch):
        pass

def factory(text: str = "f"):
    return Plain(text, times=2)

def plain(batch):
    return None

def nothing():
    return None

def exits(code=0):
    raise SystemExit(code)

def panics():
    raise BaseException("no")

def broken():
    raise OSError(2, "No such file or directory", "/nowhere")

instance = Plain(times=1)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules that can be imported in this test alone."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))

    write("plug_in", PLUGIN)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(name: str, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(HandlerLoadError) as caught:
        load_handler(name, options)
    assert caught.value.exit_code is ExitCode.HANDLER
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def test_built_in_handlers_are_entry_points(tmp_path: Path) -> None:
    assert isinstance(load_handler("null"), NullHandler)
    assert isinstance(load_handler("print"), PrintHandler)
    assert isinstance(load_handler("print", {"descriptor": 2}), PrintHandler)


async def test_accepts_every_form_of_a_handler(plugin: object, make_batch: MakeBatch, clock: Any) -> None:
    forms: list[tuple[str, dict[str, Any], Any]] = [
        ("plug_in:batches", {}, [b"a", b"b"]),
        ("plug_in:instance", {}, "w"),
        ("plug_in:Plain", {"word": "x", "times": 3}, "xxx"),
        ("plug_in:factory", {}, "ff"),
        ("plug_in:factory", {"text": "g"}, "gg"),
        ("plug_in:Full", {"times": 1}, "w"),
    ]
    messages = load_handler("plug_in:messages")
    seen = sys.modules["plug_in"].seen
    for name, options, outcome in forms:
        handler = load_handler(name, options)
        assert isinstance(handler, Handler)
        await handler.handle(make_batch(b"a", b"b"))
        assert seen == [outcome]
        seen.clear()
    await messages.handle(make_batch(b"a", b"b"))
    assert seen == [b"a", b"b"]


async def test_uses_existing_methods_and_adds_the_others(plugin: object, clock: Any) -> None:
    partition = TopicPartition("t", 0, 0)
    full = load_handler("plug_in:Full", {"times": 1})
    plain = load_handler("plug_in:Plain", {"times": 1})
    for handler in (plain, full):
        await handler.start(clock)
        await handler.stop()
    assert sys.modules["plug_in"].seen == [("start", clock), "stop"]
    assert await full.position(partition) == 42
    assert await plain.position(partition) is None


def test_suggests_the_nearest_name_and_lists_all() -> None:
    text = refused("flies")
    assert "unknown handler 'flies', did you mean 'files'? There are delta, exec, files" in text
    assert "print" in text
    assert "did you mean" not in refused("zzzzzz")


def test_reports_modules_that_cannot_be_imported(plugin: Callable[[str, str], None]) -> None:
    assert "no module named 'no_such_plugin'" in refused("no_such_plugin:handle")
    assert "no module named 'plug_in.sub'" in refused("plug_in.sub:handle")
    assert "has no attribute 'batchs', did you mean 'batches'?" in refused("plug_in:batchs")
    plugin("needs_other", "import not_installed_at_all\n")
    assert "importing 'needs_other' failed: ModuleNotFoundError: No module named 'not_installed_at_all'" in refused(
        "needs_other:handle"
    )
    plugin("bad_syntax", "def f(:\n")
    assert "importing 'bad_syntax' failed: SyntaxError" in refused("bad_syntax:f")
    plugin("exits", "import sys\nsys.exit('go away')\n")
    assert "importing 'exits' failed: SystemExit: go away" in refused("exits:f")
    plugin("panics", "raise BaseException('at once')\n")
    assert "importing 'panics' failed: BaseException: at once." in refused("panics:f")
    plugin("raises", "raise RuntimeError('two\\nlines')\n")
    assert "RuntimeError: two lines" in refused("raises:f")


@pytest.mark.parametrize("name", [":", "a:", ":b", "a b:c", "a:b:c", "../x:y"])
def test_rejects_texts_that_are_not_names(name: str) -> None:
    assert "module:attribute" in refused(name)


def test_rejects_objects_that_are_not_handlers(plugin: object) -> None:
    assert "is of type int" in refused("plug_in:number")
    assert "returned a NoneType, which has no method `handle`" in refused("plug_in:nothing")
    assert "`handle` must be an `async def`" in refused("plug_in:Blocking")
    assert "`stop` must be an `async def`" in refused("plug_in:HalfBlocking", {"times": 1})


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("async def handle(self): ...", "method `handle` must take one argument: too many positional arguments."),
        (
            "async def handle(self, batch, more): ...",
            "method `handle` must take one argument: missing a required argument: 'more'.",
        ),
        (
            "@message_handler\n    def handle(self, message, more): ...",
            "method `handle` must take one argument: missing a required argument: 'more'.",
        ),
        (
            "async def handle(self, batch): ...\n    async def start(self): ...",
            "method `start` must take one argument: too many positional arguments.",
        ),
        (
            "async def handle(self, batch): ...\n    async def stop(self, why): ...",
            "method `stop` must take no argument: missing a required argument: 'why'.",
        ),
    ],
)
def test_rejects_methods_that_cannot_be_called(plugin: Callable[[str, str], None], signature: str, words: str) -> None:
    plugin("odd", f"from consumerd.handlers import message_handler\nclass Odd:\n    {signature}\n")
    assert words in refused("odd:Odd")
    plugin("fits", "class Fits:\n    async def handle(self, *batches, times=1): ...\n")
    load_handler("fits:Fits")


def test_rejects_functions_that_cannot_be_called(plugin: Callable[[str, str], None]) -> None:
    plugin(
        "odd_functions",
        "from consumerd.handlers import message_handler\nasync def none(): ...\n@message_handler\ndef two(a, b): ...\n",
    )
    assert "'odd_functions:none' must take one argument: too many" in refused("odd_functions:none")
    assert "must take one argument: missing a required argument: 'b'" in refused("odd_functions:two")


def test_checks_options_before_and_in_the_factory(plugin: object) -> None:
    assert "has no option 'tims', did you mean 'times'? There are times, word." in refused("plug_in:Plain", {"tims": 1})
    assert "requires the option 'times'" in refused("plug_in:Plain")
    assert "refused its options: times must not be negative." in refused("plug_in:Plain", {"times": -1})
    assert "refused its options: TypeError" in refused("plug_in:Plain", {"times": "x"})
    assert "is a plain function: one that takes batches must be an `async def`" in refused("plug_in:plain")
    assert "is a plain function" in refused("plug_in:lambda_")
    assert "'plug_in:exits' called sys.exit(0) in its constructor." in refused("plug_in:exits")
    assert "'plug_in:panics' cannot be created: BaseException: no." in refused("plug_in:panics")
    assert "takes no options" in refused("plug_in:batches", {"a": 1})
    assert "takes no options" in refused("plug_in:instance", {"a": 1})
    assert "takes no options" in refused("plug_in:messages", {"a": 1})
    assert "limit: Field required" in refused("plug_in:Validated")
    assert "extra: Extra inputs are not permitted" in refused("plug_in:Validated", {"limit": 1, "extra": 2})
    assert "No such file or directory" in refused("plug_in:broken")
    assert "must be the number of a file descriptor" in refused("print", {"descriptor": "one"})
    assert "has no option 'a'" in refused("null", {"a": 1})


def test_distinguishes_two_packages_with_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: object
) -> None:
    info = tmp_path / "rival-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    points = "null = rival:Null\nbroken = rival\nspaced = plug_in : instance [extra]\n"
    (info / "entry_points.txt").write_text(f"[consumerd.handlers]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = refused("null")
    assert "several packages" in text
    assert "rival:Null" in text
    assert "did you mean 'broken'" in refused("brken")
    assert "names 'rival', which is not module:attribute" in refused("broken")
    assert plain_handler(load_handler("spaced")) is sys.modules["plug_in"].instance


async def test_accepts_the_object_of_a_name(plugin: object, make_batch: MakeBatch) -> None:
    plug_in = importlib.import_module("plug_in")
    for found, options in [(plug_in.batches, None), (plug_in.Plain, {"times": 1}), (plug_in.instance, None)]:
        await make_handler(found, options).handle(make_batch(b"a"))
    assert plug_in.seen == [[b"a"], "w", "w"]
    with pytest.raises(HandlerLoadError, match=r"^handler 'mine' has no option 'time', did you mean 'times'"):
        make_handler(plug_in.Plain, {"time": 1}, name="mine")


def test_returns_the_object_of_the_plugin(plugin: object) -> None:
    instance = load_handler("plug_in:instance")
    plug_in = sys.modules["plug_in"]
    assert not isinstance(plug_in.instance, Handler)
    assert plain_handler(instance) is plug_in.instance
    assert plain_handler(load_handler("plug_in:batches")) is plug_in.batches
    null = load_handler("null")
    assert plain_handler(null) is null
