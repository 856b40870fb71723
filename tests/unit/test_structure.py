"""The house's order, and that `benchmarks/structure.py` notices what breaks it."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import structure
from kit.structure_sources import circles, cxx_rooms, cxx_sizes, imported, python_rooms, python_sizes

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path = path.with_name(path.name.replace("_py", ".py").replace("_h", ".h").replace("_cc", ".cc"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_rooms_have_no_circle_and_nothing_is_too_large_without_a_reason() -> None:
    found = structure.look(ROOT, structure.FOLDERS)
    assert [each for each in found if not each.reason] == []


@pytest.mark.parametrize(("folder", "others"), [("harness", {"tests", "benchmarks", "kit"}), ("benchmarks", {"tests"})])
def test_benchmarks_and_what_they_share_with_tests_import_no_tests(folder: str, others: set[str]) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        modules = {module.split(".")[0] for module in imported(ast.parse(path.read_text()))}
        assert not modules & others, path


def test_a_made_up_circle_is_noticed(tmp_path: Path) -> None:
    write(
        tmp_path,
        src__luwu__one__a_py="from luwu.two import b\n",
        src__luwu__two__b_py="def late():\n    import luwu.three.c\n",
        src__luwu__three__c_py="from luwu.one.a import x\n",
        src__luwu__four__d_py="from luwu.one import a\n",
    )
    [found] = [each for each in structure.look(tmp_path, ("src",), {}) if each.kind == "circle"]
    assert found.place == "Python: one, three, two" and not found.reason


def test_imports_for_types_alone_make_no_circle(tmp_path: Path) -> None:
    write(
        tmp_path,
        src__luwu__one__a_py="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from luwu.two import b\n",
        src__luwu__two__b_py="from luwu.one.a import x\n",
    )
    assert circles(python_rooms(tmp_path / "src/luwu")) == []


def test_folders_of_cxx_that_include_each_other_are_noticed(tmp_path: Path) -> None:
    write(
        tmp_path,
        native__store__a_h='#include "fabric/udp/b.h"\n',
        native__fabric__udp__b_h="",
        native__fabric__udp__b_cc='#include "store/a.h"\n',
    )
    assert circles(cxx_rooms(tmp_path / "native")) == [["fabric/udp", "store"]]


def test_a_long_function_is_noticed_and_its_docstring_does_not_count() -> None:
    body = "".join(f"    x{number} = {number}\n" for number in range(60))
    text = f'class Kind:\n    def short(self):\n        """{"line" + chr(10)}"""\n\n\ndef long():\n{body}'
    found = {each.place: each for each in python_sizes(text)}
    assert found["long"].count == 61 and found["Kind.short"].count == 1 and found["Kind"].count == 1
    [over] = structure.size_findings(found.values(), {})
    assert (over.kind, over.place, over.reason) == ("function", "long", "")
    assert structure.size_findings(found.values(), {"long": "why"})[0].reason == "why"


def test_a_reason_that_is_not_needed_is_noticed() -> None:
    assert [each.kind for each in structure.size_findings([], {"gone": "why"})] == ["reason"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("namespace a {\nint f() {\n    if (x) {\n    }\n    return 1;\n}\n}\n", {("function", "f", 5)}),
        ("class A {\npublic:\n    A();\n    ~A();\n    int b() const { return 1; }\n    int c_ = 0;\n};\n",
         {("class", "A", 3), ("function", "b", 1)}),
        ("A::A(int x) : x_{x}, y_(x) {\n    go();\n}\n", {("function", "A::A", 3)}),
        ("struct B {\n    virtual void f() = 0;\n    std::function<void(int)> g;\n    B(const B&) = delete;\n};\n",
         {("class", "B", 1)}),
        ('void f() {\n    auto text = "}{";  // }\n    g([&] { h(); });\n}\nenum class E { one, two };\n',
         {("function", "f", 4)}),
        ("constexpr int table[] = {1, 2};\nint f(int a = 1) {\n}\n", {("function", "f", 2)}),
    ],
)  # fmt: skip
def test_cxx_is_measured_by_its_braces(text: str, expected: set[tuple[str, str, int]]) -> None:
    assert {tuple(each) for each in cxx_sizes(text)} == expected


@pytest.mark.parametrize("package", ["luwu", "luwu.data", "luwu.errors"])
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_errors_name_the_place_that_programs_import_them_from() -> None:
    from luwu import errors

    assert {getattr(errors, name).__module__ for name in errors.__all__ if name != "error_named"} == {"luwu.errors"}
