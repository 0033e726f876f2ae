"""Held-out prompts: beginnings of texts, which the training leaves out."""

from random import Random

from tokenizers import Tokenizer

from tiny_models.corpus import DOCUMENTS, DocumentMaker, dialogue
from tiny_models.prompt_file import Prompt
from tiny_models.tokenizer import encode, render_chat

SEED = 99
PER_DOCUMENT_KIND = 2
PER_ANSWER_LENGTH = 4
LONG_DOCUMENT = 100
LONG_ANSWER = 50


def _document(tokenizer: Tokenizer, rng: Random, make: DocumentMaker) -> Prompt:
    """The first third of a long document."""
    ids: list[int] = []
    while len(ids) < LONG_DOCUMENT:
        ids = encode(tokenizer, make(rng))
    ids = ids[: len(ids) // 3]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return Prompt("document", text, ids, [])


def _chat(tokenizer: Tokenizer, rng: Random, long: bool) -> Prompt:
    """A dialogue without its last answer, which is a long or a short one."""
    while True:
        *messages, answer = dialogue(rng).messages
        if (len(encode(tokenizer, answer["content"])) >= LONG_ANSWER) == long:
            text = render_chat(messages, add_generation_prompt=True)
            return Prompt("chat", text, encode(tokenizer, text), messages)


def make_prompts(tokenizer: Tokenizer) -> list[Prompt]:
    """Documents of each kind, then chats with long and with short answers."""
    rng = Random(SEED)
    documents = [
        _document(tokenizer, rng, make) for make in DOCUMENTS for _ in range(PER_DOCUMENT_KIND)
    ]
    chats = [
        _chat(tokenizer, rng, long) for long in (True, False) for _ in range(PER_ANSWER_LENGTH)
    ]
    return documents + chats


def texts_of(prompts: list[Prompt]) -> tuple[str, ...]:
    """The texts of the prompts, to be left out of the training."""
    return tuple(prompt.text for prompt in prompts)
