r"""Our reading of topic filters against the real java.util.regex, over random patterns.

Left out of the alphabet: `&&` (a defect of Java's own throws on some) and `\b` beside letters that are not ASCII, which
changed in Java 19. A pattern that only we refuse is outside of the documented subset; the reverse is never allowed.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.regex import matches, parse
from tests.support.jafka_clients import compile_java

ALPHABET = r"""a b c 0 - _ . | | ( ) ) (?: (?= (?! (?<= (?<! (?> (?<n> (?i) (?s) (?i: (?-i) * + ? *? +? ?? *+ ++ ?+ {2}
{1,2} {0,} {2}+ {1,2}? [ab] [^a] [a-c] [a- [ ] ^ $ \d \w \W \s \A \z \Z \Q \E \p{Alnum} \P{Upper} \p{Punct} \x61 \u0062
\0141 \x{63} \. \- [\d-z] []a] [^]a] [a-z-9] [+--] [\p{Lower}_] { } \ A B [[a]b] \1 \cA # (?x) \h [-a] [a-] [\w--z]
[a\]b] [\Qa-z\E] [a-\x63] ~"""
ATOMS = [*ALPHABET.split(), "\u00e9", "\U0001d4b3", "[\u00e9-\U0001d4b3]", " "]
LETTERS = "aabbccAB01-_.]}&#\u00e9\U0001d4b3\u2028~"
CASES = 20_000


@pytest.mark.interop
def test_topic_filters_match_like_java(java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]) -> None:
    try:
        compile_java(java, [Path(__file__).with_name("java") / "TopicMatches.java"], [], tmp_path)
    except MissingRuntimeError as error:
        missing(str(error))
    rng = random.Random(20261121)
    cases = []
    for _ in range(CASES):
        pattern = "".join(rng.choices(ATOMS, k=rng.randint(1, 8)))
        names = ["".join(rng.choices(LETTERS, k=rng.randint(0, 6))) for _ in range(8)]
        cases.append((pattern, [*names, "", "a", "aa", "ab", "abc"]))
    answers = subprocess.run(
        [java.executable, "-cp", tmp_path, "TopicMatches"],
        input="".join("\t".join([pattern, *names]) + "\n" for pattern, names in cases),
        capture_output=True, encoding="utf-8", timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip
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
