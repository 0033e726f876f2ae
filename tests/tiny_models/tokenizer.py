"""A byte-level BPE tokenizer with Kimi's special tokens and chat roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_models.corpus import Dialogue, Message, Text, texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_SIZE = 1024
BOS, EOS, IM_END, MEDIA_PAD = "[BOS]", "[EOS]", "<|im_end|>", "<|media_pad|>"
SPECIALS = (
    BOS,
    EOS,
    IM_END,
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    MEDIA_PAD,
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|kimi_k25_video_placeholder|>",
)
"""The id of a special token is its index."""

BOS_ID, EOS_ID, IM_END_ID, MEDIA_PAD_ID = (
    SPECIALS.index(token) for token in (BOS, EOS, IM_END, MEDIA_PAD)
)

CHAT_TEMPLATE = """\
{%- macro render(content) -%}
{%- if content is string -%}
{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part['type'] in ['image', 'image_url'] -%}
<|media_begin|>image<|media_content|><|media_pad|><|media_end|>
{%- else -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{%- set role = message['role'] if message['role'] in ['user', 'assistant'] else 'system' -%}
<|im_{{ role }}|>{{ message['role'] }}<|im_middle|>{{ render(message['content']) }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_assistant|>assistant<|im_middle|>
{%- endif -%}
"""


def render_chat(messages: list[Message], add_generation_prompt: bool = False) -> str:
    """The same text as ``CHAT_TEMPLATE``, for plain string contents."""
    roles = [(m["role"], m["content"] + IM_END) for m in messages]
    if add_generation_prompt:
        roles.append(("assistant", ""))
    return "".join(f"<|im_{role}|>{role}<|im_middle|>{rest}" for role, rest in roles)


def render(text: Text) -> str:
    """The training text: a document, or a dialogue in the template's format."""
    return render_chat(list(text.messages)) if isinstance(text, Dialogue) else text


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE of the corpus, filled up with reserved tokens to ``VOCAB_SIZE``.

    Pieces have at most four bytes, so that most words are several tokens long.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=4,
        show_progress=False,
    )
    bpe.train_from_iterator(map(_plain_text, texts(2000, seed=1)), trainer)
    bpe.add_special_tokens(
        [f"<|reserved_token_{i}|>" for i in range(bpe.get_vocab_size(), VOCAB_SIZE)]
    )
    return bpe


def _plain_text(text: Text) -> str:
    """A text without special tokens, for learning the merges."""
    if isinstance(text, Dialogue):
        return "\n".join(f"{m['role']} {m['content']}" for m in text.messages)
    return text


def encode(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """Token ids; no BOS is added, as in Kimi-K2.5."""
    return tokenizer.encode(rendered, add_special_tokens=False).ids


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """Contents of ``tokenizer_config.json``.

    The class name is one that every transformers release from 4.57 to 5.x knows.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": list(SPECIALS[IM_END_ID:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(tokenizer_config(max_length), indent=2)
    (folder / "tokenizer_config.json").write_text(config + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of an exported target."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))
