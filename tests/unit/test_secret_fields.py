"""No class of the package shows a secret in its repr(), which is what tracebacks, logs and debuggers print.

Found by name, in the source: a field of a dataclass, a NamedTuple or a model that is called like a secret has to be of
a secret type, or kept out of the repr(). A new one that is not fails here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd import ConsumerConfig, DigestMd5
from consumerd.net.client.sasl import Plain, Scram
from consumerd.spark.source.option_values import Login

ROOT = Path(__file__).parents[2]
SECRET = re.compile(r"(?:^|_)(?:password|passwd|passphrase|secret|token|credentials?|auth|dsn)$")
MARKER = "hush-hush-hush"


def fields(tree: ast.AST) -> Iterator[tuple[str, ast.AnnAssign]]:
    """Annotated fields of classes whose repr() shows all of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            how = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
            if any(re.search(r"dataclass|NamedTuple|Section|BaseModel|BaseSettings", each) for each in how):
                yield from (
                    (f"{node.name}.{line.target.id}", line)
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                )


def is_hidden(line: ast.AnnAssign) -> bool:
    kind = ast.unparse(line.annotation)
    if "SecretStr" in kind or "Secret[" in kind or kind == "bool":
        return True
    value = line.value
    return isinstance(value, ast.Call) and any(
        each.arg == "repr" and isinstance(each.value, ast.Constant) and each.value.value is False
        for each in value.keywords
    )


def test_fields_that_are_called_like_a_secret_are_not_shown() -> None:
    found, shown = 0, []
    for path in sorted((ROOT / "consumerd").rglob("*.py")):
        for name, line in fields(ast.parse(path.read_text("utf-8"))):
            if SECRET.search(name.rpartition(".")[2]):
                found += 1
                if not is_hidden(line):
                    shown.append(f"{path.relative_to(ROOT)}:{line.lineno}: {name}")
    assert found > 5
    assert shown == []


def test_the_rule_finds_a_secret_that_is_shown() -> None:
    planted = "@dataclass\nclass C:\n    password: str\n    token: str = field(repr=False)\n    key_password: SecretStr"
    assert [(name, is_hidden(line)) for name, line in fields(ast.parse(planted))] == [
        ("C.password", False),
        ("C.token", True),
        ("C.key_password", True),
    ]


@pytest.mark.parametrize(
    "made",
    [
        ConsumerConfig(group="g", auth=[("digest", f"user:{MARKER}")]),
        Plain("user", MARKER),
        Scram("SCRAM-SHA-256", "user", MARKER),
        DigestMd5("user", MARKER),
        Login("user", password=MARKER),
    ],
    ids=lambda made: type(made).__name__,
)
def test_objects_of_the_library_show_no_secret(made: object) -> None:
    assert MARKER not in repr(made)
    assert MARKER not in str(made)
