r"""Our reading of topic filters against the real java.util.regex and RE2J, which brokers have, over random patterns.

Left out of the alphabet: `&&` (a defect of Java's own throws on some) and `\b` beside letters that are not ASCII, which
changed in Java 19. A pattern that only we refuse is outside of the documented subset; the reverse is never allowed.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.regex import matches, parse, require_re2
from tests.support.jafka_clients import compile_java
from tests.support.kafka import RELEASES, kafka_jars

ALPHABET = r"""a b c 0 - _ . | | ( ) ) (?: (?= (?! (?<= (?<! (?> (?<n> (?i) (?s) (?i: (?-i) * + ? *? +? ?? *+ ++ ?+ {2}
{1,2} {0,} {2}+ {1,2}? [ab] [^a] [a-c] [a- [ ] ^ $ \d \w \W \s \A \z \Z \Q \E \p{Alnum} \P{Upper} \p{Punct} \x61 \u0062
\0141 \x{63} \. \- [\d-z] []a] [^]a] [a-z-9] [+--] [\p{Lower}_] { } \ A B [[a]b] \1 \cA # (?x) \h [-a] [a-] [\w--z]
[a\]b] [\Qa-z\E] [a-\x63] ~"""
ATOMS = [*ALPHABET.split(), "\u00e9", "\U0001d4b3", "[\u00e9-\U0001d4b3]", " "]
LETTERS = "aabbccAB01-_.]}&#\u00e9\U0001d4b3\u2028~"
CASES = 20_000


def java_answers(
    java: JavaRuntime, program: str, jars: Sequence[Path], directory: Path, cases: Iterable[tuple[str, list[str]]]
) -> list[str]:
    """What a program of `java/` says: a 1 or 0 per name, or ! for a pattern that it does not have."""
    sources = [Path(__file__).with_name("java") / f"{name}.java" for name in dict.fromkeys(["TopicMatches", program])]
    compile_java(java, sources, jars, directory)
    return subprocess.run(
        [java.executable, "-cp", ":".join(map(str, [directory, *jars])), program],
        input="".join("\t".join([pattern, *names]) + "\n" for pattern, names in cases),
        capture_output=True, encoding="utf-8", timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip


@pytest.mark.interop
def test_topic_filters_match_like_java(java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]) -> None:
    rng = random.Random(20261121)
    cases = []
    for _ in range(CASES):
        pattern = "".join(rng.choices(ATOMS, k=rng.randint(1, 8)))
        names = ["".join(rng.choices(LETTERS, k=rng.randint(0, 6))) for _ in range(8)]
        cases.append((pattern, [*names, "", "a", "aa", "ab", "abc"]))
    try:
        answers = java_answers(java, "TopicMatches", [], tmp_path, cases)
    except MissingRuntimeError as error:
        missing(str(error))
    assert len(answers) == CASES
    outcomes: Counter[str] = Counter()
    for (pattern, names), answer in zip(cases, answers, strict=True):
        try:
            program = parse(pattern)
        except RegistryError:
            outcomes["refused by both" if answer == "!" else "refused by us"] += 1
            continue
        ours = "".join("1" if matches(program, name) else "0" for name in names)
        assert ours == answer, (pattern, names)
        outcomes["agreed"] += 1
    assert outcomes["agreed"] > CASES / 5
    assert outcomes["refused by us"] < CASES / 5


@pytest.mark.interop
def test_filters_that_a_broker_matches_have_the_same_meaning(
    java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    """A pattern that only we refuse is allowed, the reverse never."""
    rng = random.Random(20261129)
    atoms = [atom for atom in ATOMS if atom.isascii()] + [r"\e", "(?-)", "{30}", "{1001}", r"\Qa.b\E", "(", ")", "(?:"]
    cases = []
    for _ in range(CASES):
        pattern = "".join(rng.choices(atoms, k=rng.randint(1, 8)))
        names = ["".join(rng.choices("aabbccAB01-_.", k=rng.randint(1, 6))) for _ in range(8)]
        cases.append((pattern, [*names, "a", "aa", "ab", "abc"]))
    try:
        jars = [jar for jar in kafka_jars(RELEASES["4.3.1"]) if jar.name.startswith("re2j-")]
        answers = java_answers(java, "Re2Matches", jars, tmp_path, cases)
    except MissingRuntimeError as error:
        missing(str(error))
    agreed = 0
    for (pattern, names), answer in zip(cases, answers, strict=True):
        try:
            require_re2(pattern)
        except RegistryError:
            continue
        program = parse(pattern)
        assert "".join("1" if matches(program, name) else "0" for name in names) == answer, (pattern, names)
        agreed += 1
    assert agreed > CASES / 10
