"""The address of a cluster by options and a configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

from consumerd.base.errors import ConfigError
from consumerd.cli.session import ClusterAddress, cluster_address, run_tool

GROUP = '[group]\nid = "g"\ntopics = { t = 1 }\n'


@pytest.mark.parametrize("on_interrupt", [signal.default_int_handler, signal.SIG_IGN], ids=["default", "ignored"])
def test_sigterm_interrupts_a_tool_which_ends_in_order(on_interrupt: Any) -> None:
    ended = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    former, before = signal.signal(signal.SIGINT, on_interrupt), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tool(work())
    finally:
        signal.signal(signal.SIGINT, former)
    assert ended == ["in order"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_before_the_first_step_leaves_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        raise AssertionError

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_tool(work())
    assert found == []


def side_address(side: str, *given: Any) -> ClusterAddress:
    return cluster_address(*given, prefix=f"--{side}-", config_flag=f"--{side}-config")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(GROUP + text)
    return path


def test_takes_servers_from_options_or_a_configuration(tmp_path: Path) -> None:
    assert side_address("from", "z:1/c", (), None, 1.0).connect == "z:1/c"
    assert side_address("to", None, ("a:1,b:2", "[::1]:3"), None, 1.0).bootstrap == (("a", 1), ("b", 2), ("::1", 3))
    path = written(tmp_path, '[zookeeper]\nconnect = "zk:1"\n[kafka]\nbootstrap = ["k:1"]\n')
    cluster = side_address("from", None, (), path, 1.0)
    assert (cluster.connect, cluster.bootstrap, cluster.group) == ("zk:1", (), "g")
    # The option takes precedence; credentials are still those of the file.
    cluster = side_address("to", None, ("new:9",), path, 1.0)
    assert (cluster.connect, cluster.bootstrap, cluster.config is None) == ("", (("new", 9),), False)
    path = written(tmp_path, 'coordination = "kafka"\n[kafka]\nbootstrap = ["k:1"]\n')
    assert side_address("to", None, (), path, 1.0).bootstrap == (("k", 1),)
    assert side_address("to", "z:1", (), path, 1.0).connect == "z:1"


def test_rejects_missing_or_wrong_sides(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="give --to-zookeeper, --to-bootstrap-server, or --to-config"):
        side_address("to", None, (), None, 1.0)
    with pytest.raises(click.UsageError, match="either --from-zookeeper or --from-bootstrap-server"):
        side_address("from", "z:1", ("k:1",), None, 1.0)
    with pytest.raises(click.BadParameter, match="'nowhere' is not of the form host:port"):
        side_address("from", None, ("nowhere",), None, 1.0)
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        side_address("from", None, (), tmp_path / "none.toml", 1.0)
