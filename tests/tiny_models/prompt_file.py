"""The shipped ``prompts.json``: held-out prompts, read without tokenizers or torch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

Message = dict[str, str]
FILE = "prompts.json"


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as token ids; a chat also as messages."""

    kind: str
    text: str
    ids: list[int]
    messages: list[Message]


def save_prompts(prompts: list[Prompt], folder: Path) -> None:
    """Write ``prompts.json``."""
    content = json.dumps([asdict(prompt) for prompt in prompts], indent=1)
    (folder / FILE).write_text(content + "\n")


def load_prompts(folder: Path) -> list[Prompt]:
    """Read ``prompts.json``."""
    return [Prompt(**prompt) for prompt in json.loads((folder / FILE).read_text())]
