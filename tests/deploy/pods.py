"""Pods of a StatefulSet as plain processes: what the manifest says, done as a kubelet does it.

Strategy: command, arguments, environment, probes, lifecycle hook, signals and grace period are read from the manifest;
only what a container would have of its own is mapped: paths of volumes to folders, and the address of `[health]` to a
free port on loopback. Periods and thresholds of probes count as in Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consumerd.demo.children import Child
from consumerd.demo.ports import LOOPBACK, free_port
from consumerd.demo.processes import clean_environment, consumerd_command
from tests.deploy.manifests import ROOT, Manifest, container


def entry_point() -> list[str]:
    """ENTRYPOINT of the image."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    found: list[str] = json.loads(line.removeprefix("ENTRYPOINT "))
    return found


class Pod:
    """One pod. `volumes` are folders by the paths at which the manifest mounts them."""

    def __init__(self, name: str, spec: Manifest, directory: Path, volumes: Mapping[str, Path]) -> None:
        self.name = name
        self.directory = directory
        self.restarts = 0
        self.exit_codes: list[int | None] = []
        self.stop_times: list[float] = []
        self._spec = spec
        self._container = container(spec)
        self._volumes = volumes
        self._child: Child | None = None
        self._prober: asyncio.Task[None] | None = None
        self._port = 0
        self._running = asyncio.Event()
        self.ready = asyncio.Event()
        self.failed: str | None = None

    # -- from the manifest

    def environment(self) -> dict[str, str]:
        """The container's environment."""
        fields = {"metadata.name": self.name, "status.podIP": LOOPBACK}
        declared = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self._container["env"]
        }
        return {**clean_environment(), **declared, "CONSUMERD_HEALTH__LISTEN": f"{LOOPBACK}:{self._port}"}

    def command(self) -> list[str]:
        """The container's command, with paths of volumes as they are here."""
        words: list[str] = [*(self._container.get("command") or entry_point()), *self._container["args"]]
        assert words[0] == "consumerd"
        return consumerd_command(*(self._mapped(each) for each in words[1:]))

    def _mapped(self, text: str) -> str:
        for mount in self._container["volumeMounts"]:
            path = mount["mountPath"]
            if text == path or text.startswith(path + "/"):
                return str(self._volumes[path]) + text.removeprefix(path)
        return text

    # -- what a kubelet does

    async def start(self) -> None:
        """Start the container, and its probes. `ready` says when it is ready."""
        self._port = free_port()
        self._running.clear()
        log = self.directory / f"{self.name}.log"
        self._child = Child(self.command(), log=log, name=self.name, env=self.environment(), cwd=self.directory)
        self._child.start()
        self._prober = asyncio.create_task(self._probe())

    async def delete(self) -> int | None:
        """End the container as a kubelet does; its exit code, negative where SIGKILL had to end it."""
        assert self._child is not None
        began = time.monotonic()
        self.ready.clear()
        await self._end_probes()
        left = float(self._spec["terminationGracePeriodSeconds"])
        command = self._container["lifecycle"]["preStop"]["exec"]["command"]
        async with asyncio.timeout(left):  # the hook's time is part of the grace period
            hook = await asyncio.create_subprocess_exec(*command)
            assert await hook.wait() == 0
        code = await self._child.stop(left - (time.monotonic() - began))
        self.stop_times.append(time.monotonic() - began)
        self.exit_codes.append(code)
        return code

    async def close(self) -> None:
        """End everything at once."""
        await self._end_probes()
        if self._child is not None:
            self._child.end_now()

    def output(self) -> str:
        """The log of the present container."""
        assert self._child is not None
        return self._child.output()

    async def _end_probes(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._prober

    async def _probe(self) -> None:
        await self._until("startupProbe", succeeds=True)
        self._running.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._until("livenessProbe", succeeds=None))
            group.create_task(self._follow_readiness())

    async def _until(self, name: str, *, succeeds: bool | None) -> None:
        """Probe until the first success, or without end; `failed` is set where a kubelet would kill the container."""
        probe, failures = self._container[name], 0
        while True:
            if await self._ask(probe):
                failures = 0
                if succeeds:
                    return
            else:
                failures += 1
                if failures >= probe["failureThreshold"]:
                    self.failed = name
            await asyncio.sleep(probe["periodSeconds"])

    async def _follow_readiness(self) -> None:
        probe, failures = self._container["readinessProbe"], 0
        while True:
            if await self._ask(probe):
                failures = 0
                self.ready.set()
            else:
                failures += 1
                if failures >= probe["failureThreshold"]:
                    self.ready.clear()
            await asyncio.sleep(probe["periodSeconds"])

    async def _ask(self, probe: dict[str, Any]) -> bool:
        url = f"http://{LOOPBACK}:{self._port}{probe['httpGet']['path']}"

        def get() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
                    return 200 <= int(answer.status) < 400
            except (urllib.error.URLError, OSError):
                return False

        return await asyncio.to_thread(get)


class StatefulSet:
    """The pods of one StatefulSet, as its controller starts and updates them."""

    def __init__(self, manifest: Manifest, directory: Path, volumes: Mapping[str, Path]) -> None:
        spec = manifest["spec"]
        assert spec["podManagementPolicy"] == "Parallel"
        name = manifest["metadata"]["name"]
        pod = spec["template"]["spec"]
        self.pods = [Pod(f"{name}-{ordinal}", pod, directory, volumes) for ordinal in range(spec["replicas"])]

    async def start(self, patience: float) -> None:
        """Start all pods, and wait until they are ready."""
        for pod in self.pods:
            await pod.start()
        await self.wait_ready(patience)

    async def wait_ready(self, patience: float) -> None:
        """Return when all pods are ready."""
        async with asyncio.timeout(patience):
            for pod in self.pods:
                await pod.ready.wait()

    async def roll(self, patience: float) -> None:
        """A rolling update: the last pod first, each when all others are ready.

        The controller waits `minReadySeconds` more for each, which only gives a group more time.
        """
        for pod in reversed(self.pods):
            await self.wait_ready(patience)
            await pod.delete()
            await pod.start()
            await self.wait_ready(patience)

    async def close(self) -> None:
        """End everything at once."""
        for pod in self.pods:
            await pod.close()
