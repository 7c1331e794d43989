"""A machine with systemd, and an image of consumerd: made by debootstrap and buildah, run without a container engine.

Strategy: one root file system of Debian is the base of the image that deploy/Dockerfile builds, so the image has
systemd, too. The image then runs twice: its entry point alone, as its user, on a root that is mounted read-only; and
booted, with systemd as process 1, the unit of the repository, and a script that drives `systemctl` as an operator
would. Both share the network of this machine, where ZooKeeper and a broker listen on loopback.

`CONSUMERD_ROOTFS` names a directory that debootstrap has filled before; else that is done here, in some minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.deploy.manifests import ROOT

TOOLS = ("debootstrap", "buildah", "systemd-nspawn", "unshare", "chroot")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,python3-pip"
#: The configuration of pip on this machine, for pip in the image.
PIP_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
#: Mounts a root read-only with a writable /tmp, and becomes the user of the image in it.
ENTER = """
set -e
mount --bind "$ROOT" "$ROOT"
mount --bind "$ETC" "$ROOT/etc/consumerd"
mount --bind "$STATE" "$ROOT/var/lib/consumerd"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec="$IDS" "$ROOT" /usr/bin/env -i $ENVIRONMENT "$@"
"""


def missing_tools() -> str:
    """The requirements of these tests that this machine lacks; empty if none."""
    if os.geteuid() != 0:
        return "only root can mount and boot a root file system"
    lacking = [name for name in TOOLS if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed" if lacking else ""


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, (
        f"{command[:3]}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def _mirror() -> str:
    """The source from which apt of this machine gets Debian's packages."""
    for path in [*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")]:
        found = re.search(
            r"^(?:URIs: *|deb (?:\[.*?\] )?)(\S+)", path.read_text() if path.exists() else "", re.MULTILINE
        )
        if found:
            return found[1]
    raise AssertionError("apt has no source on this machine")


class Image:
    """The image of deploy/Dockerfile, built in `directory` and mounted at `root` until `close`."""

    def __init__(self, directory: Path) -> None:
        self._buildah = (
            "buildah",
            *("--storage-driver", "vfs"),
            *("--root", str(directory / "store"), "--runroot", str(directory / "run")),
        )
        self._build(directory)
        self.config = self._config()
        self._container = _run(*self._buildah, "from", "localhost/consumerd").strip()
        self.root = Path(_run(*self._buildah, "mount", self._container).strip())
        (self.root / "etc/consumerd").mkdir()  # where the runtime mounts the configuration

    def _build(self, directory: Path) -> None:
        rootfs = os.environ.get("CONSUMERD_ROOTFS")
        if rootfs is None:
            rootfs = str(directory / "rootfs")
            _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", rootfs, _mirror())
        context = directory / "base"
        context.mkdir()
        _run("tar", "-C", rootfs, "-cf", context / "rootfs.tar", ".")
        (context / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
        build = (*self._buildah, "bud", "--isolation", "chroot")
        _run(*build, "-t", "localhost/base", "-f", context / "Dockerfile", context)
        shutil.rmtree(context)
        volumes = [word for path in PIP_FILES if Path(path).exists() for word in ("-v", f"{path}:{path}:ro")]
        base = ("--build-arg", "BASE=localhost/base")
        # Only what is in the repository: as of a clean checkout.
        source = directory / "source"
        _run("git", "clone", "-q", ROOT, source)
        _run(*build, *volumes, *base, "-t", "localhost/consumerd", "-f", source / "deploy/Dockerfile", source)

    def _config(self) -> dict[str, str]:
        keys = ("User", "WorkingDir", "StopSignal", "Entrypoint", "Env")
        form = "\n".join(f"{{{{.OCIv1.Config.{key}}}}}" for key in keys)
        lines = _run(*self._buildah, "inspect", "--type", "image", "--format", form, "localhost/consumerd").splitlines()
        return {key: line.strip("[]") for key, line in zip(keys, lines, strict=True)}

    def close(self) -> None:
        """Unmount and remove what is not in `directory`."""
        _run(*self._buildah, "umount", self._container)

    def enter(self, arguments: Sequence[str], *, etc: Path, state: Path) -> subprocess.Popen[str]:
        """Start the entry point as the image's user on a read-only root, with these folders for what is mounted."""
        environment = {"ROOT": self.root, "ETC": etc, "STATE": state}
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", ENTER, "enter", self.config["Entrypoint"], *arguments],
            env={
                **os.environ,
                **{name: str(path) for name, path in environment.items()},
                "IDS": self.config["User"],
                "ENVIRONMENT": self.config["Env"],
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def boot(self, unit: str, *, binds: dict[Path, str], seconds: float) -> str:
        """Boot it on a writable copy in memory, with this unit enabled, until it powers itself off; its output."""
        mounts = [f"--bind={path}:{target}" for path, target in binds.items()]
        options = ("--register=no", "--keep-unit", "--volatile=overlay", "--console=pipe")
        done = subprocess.run(
            ["systemd-nspawn", "-D", self.root, *options, *mounts, "--boot", f"systemd.wants={unit}"],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout + done.stderr
