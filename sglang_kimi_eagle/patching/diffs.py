"""Unified diffs in git's form: made, read, and applied to the letter or not at all.

Every file's ``index`` line holds the full blob ids before and after, so that a patch can tell
whether a file is the one it was made for, and whether the result is the one that was meant.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PREFIX = "python/sglang/"
"""Where the package lies in SGLang's repository; the paths here are relative to the package."""
ABSENT = "0" * 40
"""The blob id of a file that does not exist."""

_FILE = re.compile(rf"^diff --git a/{PREFIX}(\S+) b/{PREFIX}\1$")
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: 100644)?$")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Mismatch(ValueError):
    """A hunk does not stand at its line, word for word."""


def blob_id(content: bytes | None) -> str:
    """Return git's id of a file's content; `ABSENT` for None."""
    if content is None:
        return ABSENT
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Hunk:
    """One run of changed lines with its context."""

    old_start: int
    """0-based index of the first line in the file before."""
    new_start: int
    lines: tuple[str, ...]
    """Each begins with a space, ``-`` or ``+`` and ends with a newline."""

    def side(self, *, after: bool) -> list[str]:
        """Return the lines of the hunk before or after the change."""
        dropped = "-" if after else "+"
        return [line[1:] for line in self.lines if line[0] != dropped]


@dataclass(frozen=True)
class FilePatch:
    """The change of one file."""

    path: str
    before: str
    """The blob id of the file that it is for."""
    after: str
    hunks: tuple[Hunk, ...]
    root: str = PREFIX
    """What ``path`` is relative to, in SGLang's repository."""

    def apply(self, content: bytes | None, *, reverse: bool = False) -> bytes | None:
        """Return the changed content; None for a file that is not there afterwards.

        Raises:
            Mismatch: ``content`` is not the file that the patch is for, or the result is not
                the file that was meant.
        """
        before, after = (self.after, self.before) if reverse else (self.before, self.after)
        if blob_id(content) != before:
            raise Mismatch(f"{self.path} is not the file that the patch is for")
        lines = _lines((content or b"").decode())
        result: list[str] = []
        done = 0
        for hunk in self.hunks:
            start = hunk.new_start if reverse else hunk.old_start
            old = hunk.side(after=reverse)
            if start < done or lines[start : start + len(old)] != old:
                raise Mismatch(f"{self.path}, line {start + 1} differs from the patch")
            result += lines[done:start] + hunk.side(after=not reverse)
            done = start + len(old)
        result += lines[done:]
        changed = None if after == ABSENT else "".join(result).encode()
        if blob_id(changed) != after:
            raise Mismatch(f"{self.path} would not become the file that was meant")
        return changed

    def render(self) -> str:
        """Format the change as git does."""
        a, b = f"a/{self.root}{self.path}", f"b/{self.root}{self.path}"
        header = [f"diff --git {a} {b}"]
        if self.before == ABSENT:
            header += ["new file mode 100644", f"index {self.before}..{self.after}"]
            header += ["--- /dev/null", f"+++ {b}"]
        else:
            header += [f"index {self.before}..{self.after} 100644", f"--- {a}", f"+++ {b}"]
        text = "".join(f"{line}\n" for line in header)
        for hunk in self.hunks:
            old = _span(hunk.old_start, len(hunk.side(after=False)))
            new = _span(hunk.new_start, len(hunk.side(after=True)))
            text += f"@@ -{old} +{new} @@\n" + "".join(hunk.lines)
        return text


@dataclass(frozen=True)
class Patch:
    """The changes of all files, with what is said above them."""

    files: tuple[FilePatch, ...]
    preamble: str = ""

    def render(self) -> str:
        """Format the patch as ``git apply`` and ``patch`` read it."""
        return self.preamble + "".join(file.render() for file in self.files)


def diff(path: str, before: str | None, after: str, root: str = PREFIX) -> FilePatch:
    """Compare two versions of a file; None for one that does not exist."""
    old, new = _lines(before or ""), _lines(after)
    assert all(line.endswith("\n") for line in (*old[-1:], *new[-1:])), path
    hunks: list[Hunk] = []
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3)
    for group in groups:
        lines: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [f" {line}" for line in old[i1:i2]]
                continue
            lines += [f"-{line}" for line in old[i1:i2]]
            lines += [f"+{line}" for line in new[j1:j2]]
        hunks.append(Hunk(group[0][1], group[0][3], tuple(lines)))
    return FilePatch(
        path,
        blob_id(None if before is None else before.encode()),
        blob_id(after.encode()),
        tuple(hunks),
        root,
    )


def parse(text: str) -> Patch:
    """Read the changes to SGLang's package in a patch that `Patch.render` wrote.

    Raises:
        ValueError: there are none, or they have another form.
    """
    lines = _lines(text)
    starts = [number for number, line in enumerate(lines) if line.startswith("diff --git ")]
    files = [
        _parse_file(lines[start:end])
        for start, end in zip(starts, [*starts, len(lines)][1:], strict=True)
        if _FILE.match(lines[start])
    ]
    if not files:
        raise ValueError("no file of SGLang is changed")
    return Patch(tuple(files), "".join(lines[: starts[0]]))


def _parse_file(lines: Sequence[str]) -> FilePatch:
    name = _FILE.match(lines[0])
    index = next((found for line in lines if (found := _INDEX.match(line))), None)
    if name is None or index is None:
        raise ValueError(f"no index line with full ids below {lines[0].strip()!r}")
    return FilePatch(name[1], index[1], index[2], tuple(_parse_hunks(lines)))


def _parse_hunks(lines: Sequence[str]) -> Iterator[Hunk]:
    number = 0
    while number < len(lines):
        head = _HUNK.match(lines[number])
        number += 1
        if head is None:
            continue
        old, new = int(head[2] or 1), int(head[4] or 1)
        body: list[str] = []
        while old > 0 or new > 0:
            line = lines[number]
            number += 1
            old -= line[0] != "+"
            new -= line[0] != "-"
            body.append(line)
        yield Hunk(_start(head[1], head[2]), _start(head[3], head[4]), tuple(body))


def _start(line: str, count: str | None) -> int:
    # An empty side names the line before it.
    return int(line) if count == "0" else int(line) - 1


def _span(start: int, count: int) -> str:
    if count == 0:
        return f"{start},0"
    return f"{start + 1}" if count == 1 else f"{start + 1},{count}"


def _lines(text: str) -> list[str]:
    """Split at newlines only; ``str.splitlines`` also splits at form feeds and others."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
