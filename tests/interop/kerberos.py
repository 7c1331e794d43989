"""A key distribution centre of MIT Kerberos on loopback, with a realm of its own, for one test.

Strategy: everything (configuration, database, keys) is in one folder, and the environment that programs need to find it
is `environ`; nothing of the machine's own Kerberos is read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

from consumerd.demo.children import Child
from consumerd.demo.ports import LOOPBACK, free_port

REALM = "CONSUMERD.TEST"
_NEEDED = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def missing_programs() -> list[str]:
    """The programs of Kerberos's server that are missing on this machine."""
    return [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]


class KeyDistributionCentre:
    """`start` it, make principals with `keytab`, and `stop` it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.port = free_port()
        self.krb5_conf = directory / "krb5.conf"
        self.environ = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(directory / "kdc.conf")}
        self.krb5_conf.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_realm = false\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f" default_ccache_name = FILE:{directory / 'cache'}\n"
            f"[realms]\n {REALM} = {{\n  kdc = {LOOPBACK}:{self.port}\n }}\n"
            f"[domain_realm]\n {LOOPBACK} = {REALM}\n"
        )
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {LOOPBACK}:{self.port}\n kdc_tcp_listen = {LOOPBACK}:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory / 'principal'}\n"
            f"  key_stash_file = {directory / 'stash'}\n  acl_file = {directory / 'acl'}\n }}\n"
        )
        self._child: Child | None = None

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
            env={**os.environ, **self.environ, "PATH": _PATH},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")

    async def start(self) -> None:
        """Make the realm, when there is none yet, and serve it."""
        if not (self.directory / "stash").exists():
            await asyncio.to_thread(self._run, "kdb5_util", "create", "-s", "-r", REALM, "-P", "a test's")
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        self._child = Child(
            [program, "-n", "-r", REALM],
            log=self.directory / "kdc.log",
            name="krb5kdc",
            env={**os.environ, **self.environ},
        )
        self._child.start()
        async with asyncio.timeout(120):
            while True:
                try:
                    _, writer = await asyncio.open_connection(LOOPBACK, self.port)
                except OSError:
                    assert self._child.running, self._child.output()
                    await asyncio.sleep(0.05)  # it does not tell when it listens
                else:
                    writer.transport.abort()
                    return

    def keytab(self, principal: str) -> Path:
        """A file with the keys of a new principal. Blocks."""
        path = self.directory / f"{principal.replace('/', '_')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path

    def sign_in(self, keytab: Path, principal: str) -> None:
        """Put a ticket into the cache that $KRB5CCNAME names, by one of our files. Blocks."""
        self._run("kinit", "-k", "-t", str(keytab), principal)

    def stop(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.end_now()
