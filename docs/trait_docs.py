"""Griffe extension: gives each trait its help text as docstring, so that the API reference describes it."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import griffe

__all__ = ["TraitDocs"]


def trait(node: ast.AST) -> tuple[str, str] | None:
    """Return a trait's kind with its default, and its help, of ``Int(0, help="…").tag(config=True)``; None for what is no trait."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
                    others = [one for one in call.keywords if one is not keyword]
                    short = ast.Call(func=call.func, args=call.args, keywords=others)
                    return ast.unparse(short), inspect.cleandoc(str(keyword.value.value))
    return None


class TraitDocs(griffe.Extension):
    """An extension of Griffe; `mkdocs.yml` names it."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Set the docstring of an attribute that is a trait and has none, and leave the help out of its value."""
        if attr.docstring is None and isinstance(node, ast.AST) and (found := trait(node)):
            value, text = found
            attr.value = value
            attr.docstring = griffe.Docstring(text, parent=attr)
