"""Files and commands of the project that documents and workflows name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", ".github/**/*.md", ".github/**/*.yml", "examples/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as code hosts make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add(words.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_existing_make_targets(document: str) -> None:
    text = (ROOT / document).read_text()
    named = {
        target
        for line in re.findall(r"(?:`|^    |run: )make ([a-z -]+)", text, flags=re.MULTILINE)
        for target in re.split(r" {2,}", line)[0].split()
        if not target.startswith("-")
    }
    assert named <= TARGETS


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name.endswith(".md") and name != "CHANGELOG.md"])
def test_links_to_existing_pages(document: str) -> None:
    path, broken = ROOT / document, []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_what_make_test_leaves_out_exists_and_ci_runs_everything_once() -> None:
    listed = re.search(r"^_SLOW = \((.*?)^\)", (ROOT / "tests" / "conftest.py").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    slow = re.findall(r'"([^"]+)"', listed[1])
    assert len(slow) > 10
    assert [each for each in slow if not list(ROOT.glob(f"{each}*"))] == []
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    recipes = dict(re.findall(r"^(test|test-all):.*\n\t(.+)$", makefile, re.MULTILINE))
    assert '-m "not slow and not long"' in recipes["test"]
    assert " -m " not in recipes["test-all"].replace("-m pytest", "")  # what pyproject.toml selects
    assert re.findall(r"^make (test[\w-]*)", ci, re.MULTILINE) == ["test-all"]


def test_hooks_call_what_make_check_calls() -> None:
    hooks = set(re.findall(r"entry: \.venv/bin/([\w-]+)", (ROOT / ".pre-commit-config.yaml").read_text()))
    _, _, rest = (ROOT / "Makefile").read_text().partition("\ncheck:")
    assert hooks == set(re.findall(r"\$\(BIN\)/([\w-]+)", rest.partition("\n\n")[0]))


@pytest.mark.parametrize("workflow", [name for name in DOCUMENTS if name.startswith(".github/workflows/")])
def test_workflows_use_actions_by_their_commit_and_keep_no_token_in_the_checkout(workflow: str) -> None:
    """A tag may be moved to other code, and later steps, or artifacts, must not have the token of the checkout."""
    text = (ROOT / workflow).read_text()
    used = re.findall(r"^ *- uses: (.+)$", text, flags=re.MULTILINE)
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action)] == []
    checkouts = [step for step in text.split("- uses: ") if step.startswith("actions/checkout@")]
    assert checkouts
    assert all("persist-credentials: false" in step for step in checkouts)
