"""Errors of handlers as text: in one line, and as the short traceback that logs, dead letters and the status page have.

Strategy: what a reader needs first is the line of the handler's own code that failed, so that frame comes first, then
its callers, then the libraries below it. The handler's code is what is neither ours nor the standard library's; of
installed packages only its own. There are no local variables, which may be passwords and messages, and nothing that
grows with the depth of the stack.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType
from typing import Final

from consumerd.base.errors import leaves
from consumerd.base.frames import OURS, installed_package, is_of_python, is_ours

#: Code, and the number of its line.
_Call = tuple[CodeType, int]


#: Frames of the handler and of other code, and errors of a chain of causes, that are shown.
_USER_FRAMES: Final = 5
_OTHER_FRAMES: Final = 3
_CAUSES: Final = 3
#: Characters of one line, and of the text.
_LONGEST_LINE: Final = 200
MAX_TRACEBACK: Final = 2000

#: The attribute of an error from another process that has its short traceback: frames cannot be pickled.
TRACEBACK: Final = "_consumerd_traceback"

#: What calls the handler: frames up to the last of these are the way to it, libraries between them included.
_CALLERS: Final = frozenset(
    f"{OURS}handlers/{name}.py"
    for name in ("api", "decoding/stage", "key_lanes", "loading", "middleware", "processes", "retry", "handler_stages")
)


def text_of(error: BaseException) -> str:
    """The text of an error; of a group, which says only how many there are in it, its first one and how many more."""
    if not isinstance(error, BaseExceptionGroup):
        try:
            return str(error)
        except Exception as failure:  # the handler's own class
            return f"its text cannot be read, str() raised {type(failure).__name__}"
    first, *others = leaves(error)
    return f"{brief(first)}{f', and {len(others)} more' if others else ''}"


def brief(error: BaseException) -> str:
    """An error on one line, with its type."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def short_traceback(error: BaseException) -> str:
    """The frames of an error and of its causes, one a line, the handler's own first; empty if there are none.

    A line is `path:number in function: source`. At most 2,000 characters.
    """
    reported = getattr(error, TRACEBACK, None)
    if isinstance(reported, str):
        return reported[:MAX_TRACEBACK]
    chain = [(each, *_frames(each)) for each in _chain(error)]
    if any(users for _, users, _ in chain):  # a timeout, say, has none: its cause says where the handler waited
        chain = [found for found in chain if found[1]]
    lines: list[str] = []
    for each, users, others in chain:
        if each is not error and (users or others):
            lines.append(_cut(f"from {brief(each)}"))
        lines += [_line(*call) for call in (*users[:_USER_FRAMES], *others[:_OTHER_FRAMES])]
    return "\n".join(lines)[:MAX_TRACEBACK]


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_CAUSES + 1):
        if each is None:
            return
        yield each
        if isinstance(each, BaseExceptionGroup):
            each = each.exceptions[0]
        else:
            each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _frames(error: BaseException) -> tuple[list[_Call], list[_Call]]:
    """The frames of the handler, and the others that are shown, innermost first."""
    calls = [(frame.f_code, number) for frame, number in walk_tb(error.__traceback__)]
    callers = [at for at, (code, _) in enumerate(calls, 1) if code.co_filename in _CALLERS]
    calls = calls[max(callers, default=0) :]
    foreign = [call for call in calls if not is_ours(call[0].co_filename)]
    outside = [code.co_filename for code, _ in foreign if not is_of_python(code.co_filename)]
    users: list[_Call] = []
    others: list[_Call] = []
    for code, number in reversed(calls):
        file = code.co_filename
        is_users = file in outside and installed_package(file) == installed_package(outside[0])
        (users if is_users else others).append((code, number))
    if users:
        others = [call for call in others if call in foreign]
    return users, others


def _line(code: CodeType, number: int) -> str:
    source = linecache.getline(code.co_filename, number).strip()
    return _cut(f"{code.co_filename}:{number} in {code.co_qualname}{f': {source}' if source else ''}")


def _cut(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
