"""Which model files of a release could not serve an EAGLE-3 drafter: read from the sources.

The text ``upstream_pr/other_models.md`` lists them; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SETTER = "set_eagle3_layers_to_capture"
GETTER = "get_embed_and_head"
"""The two methods of a target that SGLang's EAGLE workers call."""
DRAFTS = ("_mtp.py", "_nextn.py", "_eagle3.py", "_eagle.py")

Key = tuple[str, str]
"""A file's name without suffix, and a class in it."""


@dataclass
class Models:
    """The classes of ``srt/models``, with what they inherit and import."""

    classes: dict[Key, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, dict[str, Key]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, package: Path) -> Models:
        """Parse every model file of SGLang's package."""
        models = cls()
        for path in sorted((package / "srt/models").glob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ClassDef):
                    models.classes[path.stem, node.name] = node
                elif isinstance(node, ast.ImportFrom) and node.module:
                    package_name, _, source = node.module.rpartition(".")
                    if node.level or package_name == "sglang.srt.models":
                        for name in node.names:
                            known = models.imports[path.stem]
                            known[name.asname or name.name] = source, name.name
        return models

    def find(self, file: str, name: str) -> Key | None:
        """Return the class that a name in a file stands for."""
        seen: set[Key] = set()
        key: Key | None = (file, name)
        while key is not None and key not in self.classes:
            if key in seen:
                return None
            seen.add(key)
            key = self.imports[key[0]].get(key[1])
        return key

    def family(self, key: Key) -> Iterator[Key]:
        """Yield a class and what it inherits from."""
        yield key
        for base in self.classes[key].bases:
            found = self.find(key[0], base.id) if isinstance(base, ast.Name) else None
            # A base of the same name comes from elsewhere.
            if found not in (None, key):
                yield from self.family(found)

    def methods(self, key: Key) -> list[tuple[str, ast.FunctionDef]]:
        """Return the methods of a class, inherited ones included, with the file of each."""
        return [
            (file, node)
            for file, name in self.family(key)
            for node in self.classes[file, name].body
            if isinstance(node, ast.FunctionDef)
        ]

    def has(self, key: Key, name: str) -> bool:
        """Tell whether a class defines or inherits a method."""
        return any(method.name == name for _, method in self.methods(key))

    def builds(self, key: Key) -> set[Key]:
        """Return the classes that a class instantiates."""
        return {
            found
            for file, method in self.methods(key)
            for node in ast.walk(method)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if (found := self.find(file, node.func.id)) is not None
        }


def wrappers_without_setter(package: Path) -> dict[Key, list[str]]:
    """Map each wrapper whose language model has the setter to the methods that it lacks itself."""
    models = Models.read(package)
    able = {key for key in models.classes if models.has(key, SETTER)}
    return {
        key: [name for name in (SETTER, GETTER) if not models.has(key, name)]
        for key in models.classes
        if key not in able and not f"{key[0]}.py".endswith(DRAFTS)
        if models.builds(key) & able
    }


def rules_on_ids(package: Path) -> dict[str, list[str]]:
    """Map each test on the ids, by which a setter chooses their meaning, to the files with it."""
    rules: dict[str, list[str]] = defaultdict(list)
    for (file, _), node in Models.read(package).classes.items():
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == SETTER:
                for choice in ast.walk(method):
                    if isinstance(choice, ast.If) and isinstance(choice.test, ast.BoolOp):
                        test = ast.unparse(choice.test)
                        if "layer_ids" in test:
                            rules[test].append(f"{file}.py")
    return rules


def with_table(text: str, package: Path) -> str:
    """Return the text of ``other_models.md`` with the table of wrappers as the sources have it."""
    marks = re.compile(r"(<!-- wrappers -->\n).*?(<!-- /wrappers -->)", re.DOTALL)
    return marks.sub(lambda mark: f"{mark[1]}{_table(package)}{mark[2]}", text)


def _table(package: Path) -> str:
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (file, name), missing in wrappers_without_setter(package).items():
        lacks = "both" if len(missing) == 2 else f"`{missing[0]}`"
        rows[f"{file}.py", lacks].append(f"`{name}`")
    lines = ["| file | class | lacks |", "|---|---|---|"]
    for (file, lacks), names in sorted(rows.items()):
        lines.append(f"| `{file}` | {', '.join(sorted(names))} | {lacks} |")
    return "\n".join(lines) + "\n"
