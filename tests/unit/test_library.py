"""The names of the library: there, documented, and imported only when asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import consumerd
import consumerd.net.client
import consumerd.producer
import consumerd.storage
import consumerd.testing
import consumerd.wire.v07
from consumerd.net.client import errors

ROOT = Path(__file__).resolve().parents[2]


def test_import_of_the_package_imports_nothing_else_but_its_version_and_lazy_names() -> None:
    code = (
        "import sys; before = set(sys.modules); import consumerd; consumerd.__version__; "
        "new = set(sys.modules) - before; print(sorted(m for m in new if m.partition('.')[0] not in "
        "('importlib', 'typing', 'warnings', '_frozen_importlib')), 'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                          capture_output=True, text=True, check=True, timeout=30)  # fmt: skip
    ours = re.findall(r"consumerd\.[\w.]+", done.stdout)
    assert ours == ["consumerd.base", "consumerd.base.lazy", "consumerd.base.version"]
    assert done.stdout.strip().endswith("False")


def test_one_name_imports_no_more_than_it_needs() -> None:
    code = "import sys, consumerd; consumerd.TopicPartition; print([m for m in sys.modules if 'consumerd.' in m])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    imported = [f"consumerd.base{each}" for each in ("", ".lazy", ".version", ".partition")]
    assert done.stdout.strip() == str(imported)


def test_has_every_documented_name() -> None:
    for name in consumerd.__all__:
        assert getattr(consumerd, name) is not None
    assert set(consumerd.__all__) <= set(dir(consumerd))
    assert len(set(consumerd.__all__)) == len(consumerd.__all__)


def test_modules_are_found_by_their_former_names() -> None:
    for name in ("errors", "ports"):
        with pytest.warns(DeprecationWarning, match=rf"use consumerd\.base\.{name}\.") as warned:
            assert import_module(f"consumerd.{name}") is import_module(f"consumerd.base.{name}")
        assert len(warned) == 1
        found = sys.modules.pop(f"consumerd.{name}")  # for others who have no warning yet
        assert found.__spec__ is not None
        assert found.__spec__.name == f"consumerd.base.{name}"


def test_rejects_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SimpleConsumr'"):
        _ = consumerd.SimpleConsumr  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from consumerd import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_deprecated_names_are_aliases_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"use consumerd\.V08ProducerSettings"):
        assert consumerd.LogicalProducerSettings is consumerd.V08ProducerSettings  # type: ignore[attr-defined]
    for old, new in (("LogicalProducer", "V08Producer"), ("LogicalProducerSettings", "V08ProducerSettings")):
        with pytest.warns(DeprecationWarning, match=rf"use consumerd\.producer\.{new}\.") as warned:
            assert getattr(consumerd.producer, old) is getattr(consumerd.producer, new)
        assert [each.filename for each in warned] == [__file__]  # the line to change
        assert old not in consumerd.producer.__all__
    with pytest.raises(AttributeError, match="has no attribute 'LogicalProducr'"):
        _ = consumerd.producer.LogicalProducr  # type: ignore[attr-defined]
    for former, present in (("Run", "CoroutineRunner"), ("Member", "MemoryMember"), ("Delivery", "DeliveredBatch")):
        with pytest.warns(DeprecationWarning, match=rf"use consumerd\.testing\.{present}"):
            assert getattr(consumerd.testing, former) is getattr(consumerd.testing, present)
    for module, former, present in (
        (errors, "NoBrokerError", "NoBrokerReachedError"),
        (consumerd.storage, "OffsetOutOfRangeError", "OffsetOutOfLogError"),
        (consumerd.wire.v07, "Message", "MessageLeaf"),
    ):
        with pytest.warns(DeprecationWarning, match=f"use {module.__name__}.{present}"):
            assert getattr(module, former) is getattr(module, present)
