"""A name has one meaning: no class name occurs in two modules."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

FILES = sorted((Path(__file__).parents[1] / "ray_atr").rglob("*.py"))


def test_a_class_name_occurs_in_one_module() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in FILES]
    count = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert count, "the package has classes"
    assert [name for name, number in count.items() if number > 1] == []
