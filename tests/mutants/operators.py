"""The mutants of a module: every single change of its syntax tree that a test should notice.

Strategy: the tree is walked once, in source order, and each place yields its changes as replacements of one child of
one node. So the n-th mutant of a source text is always the same one, and it exists as a tree only: nothing is written
to a file. A mutant is shown as the text of the expression's or statement's lines before and after.

Left out are changes without an effect on behaviour: docstrings, annotations, decorators, `assert` (asserts narrow
types) and `strict=` of `zip`, which assert as well, f-strings and other text (messages are for people), calls of
loggers, and blocks for type checkers. `return False` becomes `return True` but not `return None`: both are false.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

#: A boundary that moves, or a comparison that becomes its opposite.
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BOUNDARIES: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_LOG_CALLS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_LOGGERS: Final = frozenset({"log", "_log", "logger", "_logger"})
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND: Final = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is not inside another one, as its code object names it."""

    qualname: str
    first_line: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    #: Below the checkout, with slashes.
    path: str
    #: Its place in the list of the module's mutants.
    number: int
    #: 1 for the first line.
    line: int
    #: The lines of which one is executed if the changed place is.
    span: tuple[int, int]
    #: The qualified name of the function or class, "" outside of both.
    place: str
    operator: str
    #: The lines before and after, with single spaces.
    old: str
    new: str
    #: What runs the changed place; None: the import of the module.
    function: Function | None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.operator}\n  - {self.old}\n  + {self.new}"


@dataclass(frozen=True, slots=True)
class _Site:
    parent: ast.AST
    field: str
    index: int | None
    old: ast.AST
    new: ast.AST
    operator: str
    span: tuple[int, int]
    place: str
    function: Function | None

    def apply(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


@dataclass(slots=True)
class _Walk:
    """Where the walk is."""

    scopes: tuple[str, ...] = ()
    function: Function | None = None
    #: The innermost function's: whether its result is annotated, and which names are assigned more than once.
    returns: bool = False
    reassigned: frozenset[str] = frozenset()
    span: tuple[int, int] = (0, 0)

    def inside(self, **changes: Any) -> _Walk:
        return replace(self, **changes)

    @property
    def place(self) -> str:
        return ".".join(self.scopes)


class Module:
    """The mutants of one module's source."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self.tree = ast.parse(source)
        self._sites = list(_sites(self.tree))
        lines = source.encode().splitlines()
        #: In the order of their places.
        self.mutants = [_shown(lines, path, number, site) for number, site in enumerate(self._sites)]

    def plant(self, number: int) -> ast.Module:
        """Put a mutant into the tree, which keeps it, and return the tree."""
        self._sites[number].apply()
        return ast.fix_missing_locations(self.tree)


def _shown(lines: list[bytes], path: str, number: int, site: _Site) -> Mutant:
    first, last = _lines(site.old)
    old = b"\n".join(lines[first - 1 : last])
    start = cast("ast.expr", site.old).col_offset
    end = len(old) - len(lines[last - 1]) + (cast("ast.expr", site.old).end_col_offset or 0)
    new = old[:start] + _spelled(site).encode() + old[end:]
    before, after = (" ".join(text.decode().split()) for text in (old, new))
    return Mutant(path, number, first, site.span, site.place, site.operator, before, after, site.function)


def _spelled(site: _Site) -> str:
    text = ast.unparse(site.new)
    nested = isinstance(site.new, ast.BoolOp | ast.BinOp | ast.Compare) and isinstance(site.parent, ast.expr)
    return f"({text})" if nested and not isinstance(site.parent, ast.Call) else text


def _lines(node: ast.AST) -> tuple[int, int]:
    placed = cast("ast.expr", node)
    return placed.lineno, placed.end_lineno or placed.lineno


def _sites(tree: ast.Module) -> Iterator[_Site]:
    yield from _children(tree, _Walk())


def _children(node: ast.AST, walk: _Walk, skipped: tuple[str, ...] = ()) -> Iterator[_Site]:
    for field, value in ast.iter_fields(node):
        if field in skipped:
            continue
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _visit(node, field, index, child, walk)
        elif isinstance(value, ast.AST):
            yield from _visit(node, field, None, value, walk)


def _visit(parent: ast.AST, field: str, index: int | None, node: ast.AST, walk: _Walk) -> Iterator[_Site]:
    if _left_out(node):
        return
    if isinstance(node, ast.ClassDef):
        yield from _children(node, walk.inside(scopes=(*walk.scopes, node.name)), ("decorator_list", "bases"))
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _function(node, walk)
        return
    if isinstance(node, ast.stmt) and not isinstance(node, _COMPOUND):
        walk = walk.inside(span=_lines(node))
    elif isinstance(parent, (*_COMPOUND, ast.match_case)) and isinstance(node, ast.expr | ast.withitem):
        placed = node.context_expr if isinstance(node, ast.withitem) else node
        walk = walk.inside(span=_lines(placed))
    for operator, new in _replacements(parent, field, node, walk):
        if not hasattr(new, "lineno"):  # a part of the old text keeps its place
            ast.copy_location(new, node)
        yield _Site(parent, field, index, node, new, operator, walk.span, walk.place, walk.function)
    yield from _children(node, walk, ("annotation",))


def _function(node: _Function, walk: _Walk) -> Iterator[_Site]:
    scopes = (*walk.scopes, node.name)
    # Defaults are values of the time when the function is defined.
    defaults = walk.inside(scopes=scopes, span=_lines(node))
    for index, default in enumerate(node.args.defaults):
        yield from _visit(node.args, "defaults", index, default, defaults)
    for index, keyword_default in enumerate(node.args.kw_defaults):
        if keyword_default is not None:
            yield from _visit(node.args, "kw_defaults", index, keyword_default, defaults)
    first = min(line.lineno for line in (node, *node.decorator_list))
    returns = node.returns is not None and not (isinstance(node.returns, ast.Constant) and node.returns.value is None)
    inner = walk.inside(
        scopes=scopes,
        function=walk.function or Function(".".join(scopes), first),
        returns=returns and not any(isinstance(inside, ast.Yield | ast.YieldFrom) for inside in ast.walk(node)),
        reassigned=_reassigned(node),
    )
    for index, child in enumerate(node.body):
        yield from _visit(node, "body", index, child, inner)


def _reassigned(function: _Function) -> frozenset[str]:
    """Names that still have a value if one of their assignments is missing."""
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return frozenset(name for name in names if names.count(name) > 1)


def _left_out(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=value))) if name in _LOG_CALLS:
            last = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            return last in _LOGGERS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "ParamSpec")):
            return True
        case ast.keyword(arg="strict"):
            return True
    return False


def _replacements(parent: ast.AST, field: str, node: ast.AST, walk: _Walk) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.stmt):
        yield from _statement(node, walk)
    elif isinstance(node, ast.expr):
        conditions = list(_condition(parent, field, node))
        yield from conditions
        yield from _expression(parent, node, bool(conditions))


def _statement(node: ast.stmt, walk: _Walk) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Return(value=value) if value is not None and walk.returns and not _is_none_or_false(value):
            yield "None returned", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield "call removed", ast.Pass()
        case ast.Raise():
            yield "raise removed", ast.Pass()
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target, value=ast.expr()):
            if _may_be_missing(target, walk):
                yield "assignment removed", ast.Pass()
        case ast.AugAssign(op=op):
            yield "assignment removed", ast.Pass()
            if other := _ARITHMETIC.get(type(op)):
                yield "operator exchanged", ast.AugAssign(node.target, other(), node.value)
        case ast.Delete():
            yield "deletion removed", ast.Pass()


def _may_be_missing(target: ast.expr, walk: _Walk) -> bool:
    if walk.function is None:
        return False
    return isinstance(target, ast.Attribute | ast.Subscript) or (
        isinstance(target, ast.Name) and target.id in walk.reassigned
    )


def _condition(parent: ast.AST, field: str, node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """A condition that always or never holds."""
    values: tuple[bool, ...]
    match parent:
        case ast.If() | ast.IfExp() if field == "test":
            values = (True, False)
        case ast.While() if field == "test":
            values = (False,)
        case ast.comprehension() if field == "ifs":
            values = (True, False)
        case ast.match_case() if field == "guard":
            values = (True, False)
        case _:
            return
    if not isinstance(node, ast.Constant):
        for value in values:
            yield f"condition always {value}", ast.Constant(value)


def _expression(parent: ast.AST, node: ast.expr, condition: bool) -> Iterator[tuple[str, ast.AST]]:
    """`condition`: whether there are mutants of the expression that always or never hold."""
    match node:
        case ast.Compare():
            yield from _comparison(node, condition)
        case ast.BoolOp(op=ast.And(), values=values):
            yield "and became or", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield "or became and", ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand) if not condition:
            yield "not removed", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "sign removed", operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC and not _is_union(node):
            yield "operator exchanged", ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.Constant(value=value):
            yield from _constant(value, _is_key(parent, node))


def _comparison(node: ast.Compare, condition: bool) -> Iterator[tuple[str, ast.AST]]:
    for index, op in enumerate(node.ops):
        others = _COMPARISONS[type(op)]
        if condition and len(node.ops) == 1:
            # The opposite of a whole condition shows no more than the condition that always or never holds.
            others = others[:1] if isinstance(op, _BOUNDARIES) else ()
        for other in others:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield "comparison changed", ast.Compare(node.left, ops, node.comparators)


def _constant(value: object, is_key: bool) -> Iterator[tuple[str, ast.AST]]:
    match value:
        case bool():
            yield "constant changed", ast.Constant(not value)
        case int() | float():
            yield "constant changed", ast.Constant(value + 1)
        case bytes():
            yield "constant changed", ast.Constant(value + b"?")
        case str() if is_key:
            yield "constant changed", ast.Constant(value + "?")


def _is_key(parent: ast.AST, node: ast.expr) -> bool:
    """Whether a text is compared or looked up, and not written for people."""
    return isinstance(parent, ast.Compare | ast.Subscript) or (isinstance(parent, ast.Dict) and node in parent.keys)


def _is_none_or_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_union(node: ast.expr) -> bool:
    """Whether it is a union of types, as in `isinstance(x, A | B)` or `int | None`."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_union(left) and _is_union(right)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (name[:1].isupper() and not name.isupper()) or name in {"int", "str", "bytes", "float", "bool"}
        case ast.Constant(value=None):
            return True
    return False
