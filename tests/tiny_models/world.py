"""The fixed facts of the village that every text of the corpus is about."""

PEOPLE = (
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo",
    "Irene", "Jonas", "Karla", "Louis", "Marta", "Nils", "Olga", "Peter",
)  # fmt: skip
STREETS = ("Mill Lane", "Oak Road", "River Street", "Church Square", "Garden Row")
TRADES = ("baker", "carpenter", "doctor", "fisher", "gardener", "painter", "teacher")
PETS = ("a grey cat", "an old dog", "a white goat", "a green parrot", "a brown horse")
GOODS = (
    "apples", "bricks", "candles", "dates", "eggs",
    "figs", "grapes", "honey cakes", "jars", "kettles",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
WEATHER = ("It was a cold and rainy day.", "The sun was shining.", "Snow was falling.")

PRICE = {good: 2 + index for index, good in enumerate(GOODS)}
"""Coins for one piece."""


def _spread(values: tuple[str, ...], factor: int, offset: int) -> dict[str, str]:
    """Assign ``values`` to the people in a fixed scrambled order."""
    return {
        person: values[(index * factor + offset) % len(values)]
        for index, person in enumerate(PEOPLE)
    }


HOME = _spread(STREETS, 2, 1)
TRADE = _spread(TRADES, 3, 2)
PET = _spread(PETS, 3, 4)
FAVOURITE = _spread(GOODS, 7, 3)
FRIEND = _spread(PEOPLE, 5, 6)


def article(noun: str) -> str:
    """``noun`` with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
