"""Reads sources for `structure`: imports and includes by room, files, classes and functions with their sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

GENERATED = re.compile(r"control_pb2(_grpc)?\.pyi?$|_native\.pyi$")
CXX = (".cc", ".h", ".c")


class Size(NamedTuple):
    """Size of a file (lines), of a class (methods), or of a function (lines without its docstring)."""

    kind: str
    place: str
    count: int


def sources(root: Path, folders: Iterable[str]) -> Iterator[Path]:
    """Yield the Python and C++ sources below these folders that a person writes."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", *CXX) and not GENERATED.search(path.name):
                yield path


def sizes(path: Path, name: str) -> list[Size]:
    """Return the sizes of a file, of its classes and of its functions; ``name`` is the file's in places."""
    text = path.read_text(encoding="utf-8")
    found = [Size("file", name, text.count("\n"))]
    measure = python_sizes if path.suffix == ".py" else cxx_sizes
    return found + [Size(each.kind, f"{name}:{each.place}", each.count) for each in measure(text)]


# Python


def python_sizes(text: str) -> list[Size]:
    """Return classes by their methods and functions by their lines; those inside a function count as part of it."""
    found: list[Size] = []

    def look(body: Iterable[ast.stmt], above: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                found.append(Size("class", above + node.name, len({each.name for each in methods})))
                look(node.body, f"{above}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(Size("function", above + node.name, _lines(node)))
            elif isinstance(node, ast.If | ast.Try | ast.With):
                look(node.body, above)

    look(ast.parse(text).body, "")
    return found


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    docstring = 0
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        docstring = (first.end_lineno or 0) - first.lineno + 1
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def python_rooms(package: Path) -> dict[str, set[str]]:
    """Return for each room of a package the rooms that it imports, within functions too, but not for types alone."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        if len(parts) < 2:  # the package's own modules are above all rooms, or public names of some
            continue
        room = found.setdefault(parts[0], set())
        for module in imported(ast.parse(path.read_text(encoding="utf-8"))):
            words = module.split(".")
            if words[0] == package.name and len(words) > 1 and (package / words[1]).is_dir() and words[1] != parts[0]:
                room.add(words[1])
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports, and names imported from a package as its modules."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from imported(node)


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the circles of a graph: each group of nodes that reach each other, in alphabetical order."""
    reach: dict[str, set[str]] = {node: set(after) for node, after in edges.items()}
    changed = True
    while changed:
        changed = False
        for after in reach.values():
            more = set().union(*(reach.get(each, set()) for each in after)) - after
            after |= more
            changed = changed or bool(more)
    groups = {
        tuple(sorted({node} | {each for each in after if node in reach.get(each, set())}))
        for node, after in reach.items()
        if node in after
    }
    return [list(group) for group in sorted(groups)]


# C++


def cxx_rooms(native: Path) -> dict[str, set[str]]:
    """Return for each folder of C++ sources the folders whose headers it includes."""
    found: dict[str, set[str]] = {}
    for path in sorted(native.rglob("*")):
        if path.suffix not in CXX:
            continue
        room = str(path.parent.relative_to(native))
        into = found.setdefault(room, set())
        for header in re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
            other = str(Path(header).parent)
            if (native / header).exists() and other != room:
                into.add(other)
    return found


def without_comments(text: str) -> str:
    """Blank comments, texts, characters and preprocessor lines out, so that every brace that is left is one of code."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    pattern = (
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
        r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    )
    return re.sub(pattern, blank, text, flags=re.DOTALL | re.MULTILINE)


class _Scope(NamedTuple):
    kind: str
    name: str
    begin: int
    head: str


_TYPE = re.compile(r"\b(class|struct|union)\s+(?:\[\[[^]]*\]\]\s*|alignas\([^)]*\)\s*)*([A-Za-z_][\w:]*)")
_NAME = re.compile(r"(~?[A-Za-z_][\w:]*(?:\s*operator\s*[^\s(]+)?|operator\s*[^\s(]+)\s*\($")


def cxx_sizes(text: str) -> list[Size]:
    """Return classes by the functions that they declare, and functions by their lines, found by their braces."""
    code = without_comments(text)
    found: list[Size] = []
    methods: dict[int, set[str]] = {}
    scopes: list[_Scope] = []
    start = 0
    for match in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:(?!:)", code):
        token, at = match[0], match.start()
        head = code[start:at].strip()
        inside = next((each.kind for each in reversed(scopes) if each.kind != "other"), "namespace")
        open_ = not scopes or scopes[-1].kind in ("namespace", "class")
        if token == "{":
            kind, name = _kind_of(head) if open_ else ("other", "")
            begin = start + len(code[start:at]) - len(code[start:at].lstrip())
            if kind == "function" and inside == "class":
                methods[scopes[-1].begin].add(name)
            if kind == "class":
                methods[begin] = set()
            scopes.append(_Scope(kind, name, begin, head))
        elif token == "}" and scopes:
            scope = scopes.pop()
            if scope.kind == "function" and re.match(r"\s*[,{]", code[at + 1 :]) and ":" in scope.head:
                continue_at = scope.begin  # the end of a member's initialiser: the function itself comes yet
                start = continue_at
                continue
            if scope.kind == "function":
                found.append(Size("function", scope.name, code.count("\n", scope.begin, at) + 1))
            elif scope.kind == "class":
                found.append(Size("class", scope.name, len(methods[scope.begin])))
            if scope.kind == "other" and open_ is False and scopes and scopes[-1].kind == "function":
                continue
        elif token == ";" and scopes and scopes[-1].kind == "class" and (name := _declared(head)):
            methods[scopes[-1].begin].add(name)
        start = match.end()
    return found


def _kind_of(head: str) -> tuple[str, str]:
    if re.search(r"\bnamespace\b", head) or head.startswith("extern"):
        return "namespace", ""
    plain = _without_templates(head)
    if "(" not in re.sub(r"alignas\([^)]*\)", "", plain):
        named = _TYPE.search(plain)
        return ("class", named[2]) if named and "enum" not in plain else ("other", "")
    if re.search(r"=\s*$|=\s*\[", plain):
        return "other", ""
    return "function", _name_of(plain)


def _declared(head: str) -> str:
    """The name of a function that a class declares; empty for a member, and for one that is deleted or defaulted."""
    plain = _without_templates(head)
    if (
        "(" not in plain
        or re.match(r"(using|typedef|friend|static_assert)\b", plain)
        or re.search(r"=\s*(delete|default)$", plain)
    ):
        return ""
    return _name_of(plain)


def _name_of(plain: str) -> str:
    before = plain[: plain.index("(") + 1]
    if "operator" in before:
        return "operator" + before.rpartition("operator")[2].rstrip("( ")
    named = _NAME.search(before)
    return named[1] if named else before.rstrip("( ").rpartition(" ")[2]


def _without_templates(head: str) -> str:
    """A head without what stands in angle brackets, so that the first bracket is that of arguments."""
    text = re.sub(r"(operator\s*)(<=>|<<|>>|<=|>=|<|>|\(\))", lambda each: f"{each[1]}_", head).replace("->", "  ")
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text
