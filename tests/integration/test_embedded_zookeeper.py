from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from consumerd.base.java import JavaRuntime
from consumerd.demo.children import Child
from consumerd.demo.errors import ZooKeeperStartError
from consumerd.demo.ports import free_port
from consumerd.demo.zookeeper import ZooKeeperServer, four_letter_word
from tests.conftest import TlsFiles, ZooKeeperFactory
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

pytestmark = pytest.mark.zookeeper


async def test_shared_server_serves_on_any_loop(zookeeper: ZooKeeperServer, zk_root: str) -> None:
    assert await zookeeper.mode() == "standalone"
    assert zk_root.startswith(f"{zookeeper.connect}/t-")


async def test_shared_server_serves_on_the_next_loop_too(zookeeper: ZooKeeperServer) -> None:
    assert "minSessionTimeout=1000" in await four_letter_word(zookeeper.port, "conf")


async def test_keeps_data_and_port_after_a_kill(zookeeper_factory: ZooKeeperFactory) -> None:
    server = await zookeeper_factory(tick_ms=200)
    port, pid = server.port, server.pid
    assert "maxSessionTimeout=4000" in await four_letter_word(port, "conf")
    server.kill()
    assert not server.running
    assert not psutil.pid_exists(pid)
    assert await server.mode() is None
    await server.restart()
    assert (server.port, await server.mode()) == (port, "standalone")


async def test_paused_server_is_silent_until_resumed(zookeeper_factory: ZooKeeperFactory) -> None:
    server = await zookeeper_factory()
    server.pause()
    assert await server.mode(timeout=0.3) is None
    assert server.running
    server.resume()
    assert await server.mode() == "standalone"
    server.pause()
    await server.stop()  # also from a pause
    assert not server.running


async def test_reports_a_port_in_use(java: JavaRuntime, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    second = ZooKeeperServer(tmp_path, zookeeper.port, java=java)
    with pytest.raises(ZooKeeperStartError, match="Address already in use") as failure:
        await second.start()
    assert "\n" not in str(failure.value)
    assert str(second.log_path) in str(failure.value)
    assert await zookeeper.mode() == "standalone"


async def test_takes_another_port_if_the_free_one_was_taken_meanwhile(
    java: JavaRuntime, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    second = ZooKeeperServer(tmp_path, java=java)
    second.port = zookeeper.port  # as if another process had been faster
    async with second:
        assert second.port != zookeeper.port
        assert await second.mode() == "standalone"


async def test_shows_the_end_of_the_log_for_an_invalid_configuration(java: JavaRuntime, tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperStartError, match=r"Error processing .*zoo\.cfg"):
        await ZooKeeperServer(tmp_path, java=java, config={"tickTime": "soon"}).start()


async def test_accepts_a_folder_with_blanks_and_accents(java: JavaRuntime, tmp_path: Path) -> None:
    async with ZooKeeperServer(tmp_path / "un été #1", java=java) as server:
        assert await server.mode() == "standalone"
        assert (server.data_directory / "version-2").is_dir()


async def test_cancelled_start_leaves_no_process(java: JavaRuntime, tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, java=java)
    starting = asyncio.create_task(server.start())
    while not server.running:
        await asyncio.sleep(0.005)
    pid = server.pid
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert not psutil.pid_exists(pid)


async def test_ensemble_elects_a_leader_after_each_stop(java: JavaRuntime, tmp_path: Path) -> None:
    async with ZooKeeperEnsemble(tmp_path, java=java, tick_ms=200) as ensemble:
        assert len(ensemble.connect.split(",")) == 3
        first = await ensemble.leader()
        ensemble.kill(first)
        second = await ensemble.leader()
        assert second != first
        await ensemble.start()
        assert sorted([await server.mode() or "" for server in ensemble.servers]) == ["follower", "follower", "leader"]
    assert not any(server.running for server in ensemble.servers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_server_ends_with_its_parent(java: JavaRuntime, tmp_path: Path, number: signal.Signals) -> None:
    program = textwrap.dedent("""
        import asyncio, pathlib, sys
        from consumerd.demo.zookeeper import ZooKeeperServer
        async def main():
            server = ZooKeeperServer(pathlib.Path(sys.argv[1]))
            await server.start()
            print("server", server.pid, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """)
    parent = Child([sys.executable, "-c", program, tmp_path / "zk"], log=tmp_path / "parent.log", env=dict(os.environ))
    async with parent:
        line = await parent.wait_for_line(lambda text: text.startswith("server "), 60)
        server = psutil.Process(int(line.split()[1]))
        assert server.is_running()
        # Only the parent itself: its group would be the server's only if it had not led its own.
        parent.signal(number)
        await parent.wait(10)
        await asyncio.to_thread(server.wait, 10)


def test_takes_different_ports() -> None:
    assert free_port() != free_port()


async def test_serves_tls_on_a_second_port(zookeeper_factory: ZooKeeperFactory, tls_files: TlsFiles) -> None:
    server = await zookeeper_factory(tls=tls_files.zookeeper)
    context = ssl.create_default_context(cafile=str(tls_files.authority))
    assert server.secure_port is not None
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.secure_port, ssl=context)
        writer.write(b"srvr")
        answer = await reader.read(-1)
        writer.transport.abort()
    assert b"Mode: standalone" in answer
    assert await server.mode() == "standalone"


async def test_requires_a_client_certificate_if_configured(
    zookeeper_factory: ZooKeeperFactory, tls_files: TlsFiles
) -> None:
    server = await zookeeper_factory(tls=replace(tls_files.zookeeper, client_certificate=True))
    context = ssl.create_default_context(cafile=str(tls_files.authority))

    async def ask() -> bytes:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.secure_port, ssl=context)
            try:
                writer.write(b"srvr")
                return await reader.read(-1)
            except (ssl.SSLError, ConnectionError):
                return b"refused"
            finally:
                writer.transport.abort()

    assert await ask() == b"refused"
    context.load_cert_chain(tls_files.client)
    assert b"Mode: standalone" in await ask()
