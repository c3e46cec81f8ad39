"""The public surface: its names, what it imports, and a stub that tells the truth."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import adaspark
from adaspark import _engine, errors

PACKAGE = Path(adaspark.__file__).parent


def test_public_names() -> None:
    assert sorted(adaspark.__all__) == [
        "AdaSparkError",
        "BackendError",
        "ContextFullError",
        "DrafterError",
        "Engine",
        "Generation",
        "ModelError",
        "OptionError",
        "OutOfMemoryError",
        "Result",
        "Scheduler",
        "__version__",
    ]
    for name in adaspark.__all__:
        assert getattr(adaspark, name) is not None


def test_errors_are_one_family() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.AdaSparkError)
    assert errors.AdaSparkError is _engine.AdaSparkError
    assert issubclass(errors.DrafterError, errors.ModelError)
    assert issubclass(errors.OptionError, ValueError)


WITHOUT_ENGINE = """
import sys
sys.modules["adaspark._engine"] = None
import adaspark
try:
    adaspark.Engine(sys.executable)
except adaspark.BackendError as error:
    print(error)
"""


def test_without_the_engine_the_package_imports_and_says_what_to_do() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_ENGINE], capture_output=True, text=True, check=True)
    assert "compiled engine cannot be imported" in run.stdout
    assert "pip install" in run.stdout


def test_import_is_quiet_and_light() -> None:
    """The package itself loads at once, so that the program catches Ctrl-C from its start; its engine, nothing of the program's."""
    code = "import adaspark, sys; print([m for m in {} if m in sys.modules]); adaspark.Engine; print([m for m in {} if m in sys.modules])"
    code = code.format(("numpy", "adaspark._engine", "jinja2"), ("rich", "click", "huggingface_hub", "pip"))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout.split(), run.stderr) == (["[]", "[]"], "")


def test_the_stub_names_what_is_there() -> None:
    """Every class, method and function of the stub exists. Typed dictionaries and aliases have no counterpart."""
    tree = ast.parse((PACKAGE / "_engine.pyi").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(_engine, node.name)), node.name
        if not isinstance(node, ast.ClassDef) or any(ast.unparse(base) == "TypedDict" for base in node.bases):
            continue
        kind = getattr(_engine, node.name)
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                assert hasattr(kind, member.name), f"{node.name}.{member.name}"
            elif isinstance(member, ast.AnnAssign):
                assert hasattr(kind, ast.unparse(member.target)), f"{node.name}.{ast.unparse(member.target)}"


def test_the_module_has_nothing_the_stub_hides() -> None:
    tree = ast.parse((PACKAGE / "_engine.pyi").read_text(encoding="utf-8"))
    stubbed = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, value in vars(_engine).items():
        if isinstance(value, type) and not name.startswith("_"):
            assert name in stubbed
            members = {
                member.name if isinstance(member, ast.FunctionDef) else ast.unparse(member.target)
                for member in stubbed[name].body
                if isinstance(member, (ast.FunctionDef, ast.AnnAssign))
            }
            public = {member for member in vars(value) if not member.startswith("_")}
            assert public <= members, f"{name}: {public - members}"


def test_the_library_does_not_print() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), path


def test_files_stay_small() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path
