"""Synthetic texts: village documents and chat dialogues about the same facts.

A text is a pure function of the random generator that is passed in.  Later
sentences repeat names, numbers and goods of earlier ones, and the facts of
``world`` never change, so predicting well needs memory as well as context.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tiny_models.world import (
    DAYS,
    FAVOURITE,
    FRIEND,
    GOODS,
    HOME,
    PEOPLE,
    PET,
    PRICE,
    STREETS,
    TRADE,
    WEATHER,
    article,
)

Message = dict[str, str]
"""``{"role": ..., "content": ...}``"""


@dataclass(frozen=True)
class Dialogue:
    """Alternating user and assistant messages, perhaps after a system message."""

    messages: tuple[Message, ...]


Text = str | Dialogue


def portrait(person: str) -> str:
    """All facts about a person."""
    return (
        f"{person} is {article(TRADE[person])} and lives in {HOME[person]} with "
        f"{PET[person]}. The best friend of {person} is {FRIEND[person]}, "
        f"{article(TRADE[FRIEND[person]])} from {HOME[FRIEND[person]]}. "
        f"{person} likes {FAVOURITE[person]} more than anything else in the shop."
    )


def _purchase(rng: Random, person: str) -> tuple[int, str]:
    good = FAVOURITE[person] if rng.random() < 0.5 else rng.choice(GOODS)
    return rng.randint(2, 9), good


def visit(rng: Random) -> str:
    """A story of one customer in the shop."""
    who, day = rng.choice(PEOPLE), rng.choice(DAYS)
    count, good = _purchase(rng, who)
    total = count * PRICE[good]
    liking = "is" if good == FAVOURITE[who] else "is not"
    lines = [
        f"On {day} {who} the {TRADE[who]} left {HOME[who]}, came to the shop and "
        f"asked for {count} {good}.",
        rng.choice(WEATHER),
        f"The shop asks {PRICE[good]} coins for one of the {good}, so {who} paid "
        f"{total} coins for all {count}.",
        f"Buying {good} {liking} what {who} likes best.",
        f"Then {who} carried the {count} {good} home to {HOME[who]}, where {PET[who]} was waiting.",
        f"In the evening {FRIEND[who]} came by from {HOME[FRIEND[who]]}, and the "
        f"two friends looked at the {count} {good}.",
    ]
    return " ".join(line for line in lines if rng.random() < 0.9)


def ledger(rng: Random) -> str:
    """The shop's book of one day: a line per customer, then the sums."""
    day, people = rng.choice(DAYS), rng.sample(PEOPLE, rng.randint(2, 5))
    lines, total = [f"Book of the shop, {day}."], 0
    for who in people:
        count, good = _purchase(rng, who)
        total += count * PRICE[good]
        lines.append(
            f"{who}, {HOME[who]}: {count} {good} at {PRICE[good]}, makes "
            f"{count * PRICE[good]} coins, total {total} coins."
        )
    lines.append(f"Customers on {day}: {', '.join(people)}.")
    lines.append(f"Coins on {day}: {total}.")
    return "\n".join(lines)


def letter(rng: Random) -> str:
    """A letter between friends that asks for a purchase."""
    writer = rng.choice(PEOPLE)
    reader, day = FRIEND[writer], rng.choice(DAYS)
    count, good = _purchase(rng, writer)
    lines = [
        f"Dear {reader},",
        f"on {day} I will come from {HOME[writer]} to visit you in {HOME[reader]}. "
        f"Please buy {count} {good} for me. They cost {PRICE[good]} coins each, so I "
        f"will bring you {count * PRICE[good]} coins for the {count} {good}.",
        rng.choice(
            (
                f"I hope that {PET[reader]} is well. Here {PET[writer]} sends greetings.",
                f"As {article(TRADE[writer])} I have much work until {day}.",
            )
        ),
        f"Your friend {writer}",
    ]
    return "\n".join(lines)


def register(rng: Random) -> str:
    """The portraits of some people, or of all the people of a street."""
    if rng.random() < 0.4:
        street = rng.choice(STREETS)
        people = [person for person in PEOPLE if HOME[person] == street]
        rows = [
            f"{person} the {TRADE[person]}, with {PET[person]}, friend of {FRIEND[person]}."
            for person in people
        ]
        return "\n".join([f"People of {street}: {', '.join(people)}.", *rows])
    return "\n".join(portrait(person) for person in rng.sample(PEOPLE, 2))


DocumentMaker = Callable[[Random], str]
DOCUMENTS: tuple[DocumentMaker, ...] = (visit, ledger, letter, register)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You know everyone in the village.",
    "You help in the village shop.",
)


def _question(rng: Random) -> tuple[str, str]:
    """One question and its answer."""
    who, other = rng.sample(PEOPLE, 2)
    count, good = rng.randint(2, 9), rng.choice(GOODS)
    total = count * PRICE[good]
    return rng.choice(
        (
            (f"Where does {who} live?", f"{who} lives in {HOME[who]}."),
            (
                f"What is the work of {who}?",
                f"{who} is {article(TRADE[who])} in {HOME[who]}.",
            ),
            (
                f"Who is the best friend of {who}?",
                f"The best friend of {who} is {FRIEND[who]}, "
                f"{article(TRADE[FRIEND[who]])} from {HOME[FRIEND[who]]}.",
            ),
            (f"Tell me about {who}.", portrait(who)),
            (
                f"Tell me about {who} and {other}.",
                f"{portrait(who)}\n{portrait(other)}",
            ),
            (
                f"What do {count} {good} cost?",
                f"One of the {good} costs {PRICE[good]} coins, so {count} {good} "
                f"cost {total} coins.",
            ),
            (
                f"{who} wants {count} {good}. Write it in the book of the shop.",
                f"{who}, {HOME[who]}: {count} {good} at {PRICE[good]}, makes {total} coins.",
            ),
            (
                f"Please write a letter from {who} about {count} {good}.",
                f"Dear {FRIEND[who]},\nplease buy {count} {good} for me. They cost "
                f"{PRICE[good]} coins each, so I will bring you {total} coins for the "
                f"{count} {good}. Come to {HOME[who]} soon.\nYour friend {who}",
            ),
            (
                "What does the shop sell?",
                f"The shop sells {', '.join(GOODS[:-1])} and {GOODS[-1]}.",
            ),
            (
                "Hello!",
                "Hello! Ask me about the people of the village or about the shop.",
            ),
        )
    )


def dialogue(rng: Random) -> Dialogue:
    """One to three questions with their answers."""
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        question, answer = _question(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return Dialogue(tuple(messages))


def text(rng: Random) -> Text:
    """A random text: three documents for two dialogues."""
    return dialogue(rng) if rng.random() < 0.4 else rng.choice(DOCUMENTS)(rng)


def texts(count: int, seed: int) -> list[Text]:
    """``count`` texts; another seed gives other ones."""
    rng = Random(seed)
    return [text(rng) for _ in range(count)]
