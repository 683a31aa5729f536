"""The public names, and the tree of exceptions that the documentation shows."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import minfer
import minfer.errors

SOURCE = Path(minfer.__file__).parent


def test_every_public_name_exists() -> None:
    assert sorted(minfer.__all__, key=str.lower) == sorted(set(minfer.__all__), key=str.lower)
    for name in minfer.__all__:
        assert getattr(minfer, name) is not None


def test_all_packages_export_what_they_say() -> None:
    for path in SOURCE.rglob("__init__.py"):
        tree = ast.parse(path.read_text())
        exported = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        bound = {alias.asname or alias.name for node in ast.walk(tree) for alias in getattr(node, "names", [])}
        bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        bound |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        for names in exported:
            assert set(names) <= bound, path


def test_the_documented_tree_is_the_tree() -> None:
    documented = set(re.findall(r"─ (\w+)", minfer.errors.__doc__ or ""))
    classes = [item for item in vars(minfer.errors).values() if inspect.isclass(item)]
    errors = {item.__name__ for item in classes if issubclass(item, minfer.MinferError)}
    assert documented == errors - {"MinferError"}


def test_load_keeps_its_signature() -> None:
    parameters = inspect.signature(minfer.load).parameters
    assert list(parameters)[:5] == ["path_or_name", "n_ctx", "threads", "backend", "cache_type"]
    assert (parameters["n_ctx"].default, parameters["cache_type"].default) == (None, None)
