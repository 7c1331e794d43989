"""The snippets of docs/handlers.md about Arrow, decoders, context and middleware run as they stand there."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from consumerd.handlers.decoding.api import load_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.handlers.processes import ProcessHandler
from consumerd.service.config.build_handlers import build_plugin, build_stages
from consumerd.service.config.model import parse
from consumerd.testing import HandlerHarness
from tests.support.schema_registry import SchemaRegistryServer

TEXT = (Path(__file__).parents[3] / "docs" / "handlers.md").read_text("utf-8")


def section(title: str) -> tuple[list[str], list[str]]:
    """The Python and the TOML of a section."""
    text = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for kind, code in blocks if kind == "python"], [code for kind, code in blocks if kind == "toml"]


def stages_of(toml: str) -> Stages:
    document = {"group": {"id": "g", "topics": {"t": 1}}, **tomllib.loads(toml)}
    return build_stages(parse(document, "docs/handlers.md", environment=False).handler)


@pytest.fixture
def my_package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with that name, made of a snippet."""

    def make(code: str) -> ModuleType:
        module = ModuleType("my_package")
        monkeypatch.setitem(sys.modules, "my_package", module)
        exec(compile(code, "docs/handlers.md", "exec"), module.__dict__)
        return module

    return make


async def test_decoding(my_package: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (handlers, decoder), (configuration,) = section("Decoding")
    module, stages = my_package(handlers), stages_of(configuration)
    async with HandlerHarness(module.store, stages=stages) as harness:
        await harness.deliver([b'{"id":5,"name":"x"}'])
    assert capsys.readouterr().out == "5\n"
    async with HandlerHarness(module.store_batch, stages=stages) as harness:
        await harness.deliver([b'{"id":5,"name":"x"}'])
    my_package(decoder)
    csv = load_decoder("my_package:decode_csv")
    seen = []

    async def handle(batch: Any) -> None:
        seen.extend(batch.values)

    async with HandlerHarness(handle, stages=Stages(decoder=csv)) as harness:
        await harness.deliver([b"a,b,c"])
    assert seen == [["a", "b", "c"]]


async def test_arrow(my_package: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (code,), _ = section("Arrow")
    async with HandlerHarness(my_package(code).handle) as harness:
        await harness.deliver([b"one", b"three"])
    assert capsys.readouterr().out == "2 messages, 8 bytes, up to offset 28\n"


async def test_the_context(my_package: Any) -> None:
    (code,), _ = section("The context")
    async with HandlerHarness(my_package(code).Sink) as harness:
        await harness.deliver([b"a", b"end of day"])
        rows = [reading.value for reading in harness.handler.rows.readings("g")]
    assert rows == [2]


async def test_middleware(my_package: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (code,), (configuration,) = section("Middleware")
    module = my_package(code)
    stages = stages_of(configuration)
    assert [each.name for each in stages.middleware] == ["slow_calls", "my_package:Tenant"]
    async with HandlerHarness(module.handle, stages=stages) as harness:
        await harness.deliver([b"a"])
        harness.fail()
        await harness.deliver([b"b"])
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "handler_failed" not in line] == [
        "1 messages of t/0-0 for acme",
        "0 messages were handled before OSError('a failure that the test injected')",
        "1 messages of t/0-0 for acme",
    ]


def test_worker_processes(my_package: Any) -> None:
    (code,), (configuration,) = section("Worker processes")
    classify = my_package(code).classify
    classify([])
    document = {"group": {"id": "g", "topics": {"t": 1}}, **tomllib.loads(configuration)}
    plugin = build_plugin(parse(document, "docs/handlers.md", environment=False).handler)
    assert isinstance(plugin, ProcessHandler)


async def test_schema_registries(tmp_path: Path) -> None:
    (password := tmp_path / "registry").write_text("secret\n")
    _, (configuration,) = section("Schema registries")
    seen: list[Any] = []

    async def store(batch: Any) -> None:
        seen.extend(batch.values)

    with SchemaRegistryServer() as registry:
        registry.add({"type": "string"})
        toml = configuration.replace("https://registry.example.org", registry.url)
        stages = stages_of(toml.replace("/run/credentials/registry", str(password)))
        async with HandlerHarness(store, stages=stages) as harness:
            await harness.deliver([b"\x00\x00\x00\x00\x01\x06abc"])
        assert registry.headers[0]["Authorization"] == "Basic ZXZlbnRzOnNlY3JldA=="
    assert seen == ["abc"]
