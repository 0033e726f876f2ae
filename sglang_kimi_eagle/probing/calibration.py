"""The built-in calibration prompts: conversations of several kinds, in this project's own words.

Random tokens would overstate acceptance (a target that loops is easily drafted), and one kind alone
would measure that kind.
"""

from __future__ import annotations

from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """A conversation that ends with the user's turn."""

    kind: str
    messages: tuple[Message, ...]

    @property
    def characters(self) -> int:
        """Its length without the template."""
        return sum(len(message["content"]) for message in self.messages)


def _ask(kind: str, *turns: str, system: str = "") -> Prompt:
    """Make a conversation of alternating turns of user and assistant."""
    roles = [
        {"role": "assistant" if index % 2 else "user", "content": turn}
        for index, turn in enumerate(turns)
    ]
    opening = [{"role": "system", "content": system}] if system else []
    return Prompt(kind, (*opening, *roles))


_STORY = (
    "The ferry to the island left twice a day, and on the morning of the storm only three people "
    "were on it. Marta, who taught the youngest children of the island school, had a basket of "
    "seed potatoes on her knees. Opposite her sat a man with a cello case that was too small for a "
    "cello. The third was the mechanic, who had been sent for because the generator of the "
    "lighthouse had stopped on Sunday and the keeper did not trust the new one. "
    "Halfway across the engine coughed, and the mechanic, without a word, took off his jacket and "
    "went below. Marta asked the man with the case what he played. He opened it a little: inside, "
    "in blue cloth, lay eleven jars of honey. He was not a musician, he said, he was moving his "
    "bees, or at least what they had made; the hives would follow in spring, when the heather on "
    "the north side was ready for them. The island had had bees once. A hard winter in his "
    "grandmother's time had taken all of them, and since then the apple trees behind the school "
    "had given fewer apples every year, until nobody remembered why there was a press in the barn. "
    "The engine came back with a bang. The mechanic returned with black hands and said that "
    "someone had cleaned the filter with soap. By noon they were in the harbour; the generator was "
    "running again by four, and that evening the light went round as it always had. In the school "
    "the children drew bees. Two years later the first jar from the heather stood on the table of "
    "the inn, and the press in the barn was oiled for the first time in sixty years."
)
_CODE = """def merge(left, right):
    result = []
    while left and right:
        if left[0] <= right[0]:
            result.append(left.pop(0))
        else:
            result.append(right.pop(0))
    return result
"""
_LOG = (
    "09:14:02 worker-3 started job 8812 (resize)\n"
    "09:14:02 worker-1 started job 8813 (resize)\n"
    "09:14:09 worker-3 finished job 8812 in 7.1 s\n"
    "09:14:31 worker-1 job 8813: cannot open /mnt/in/8813.tif: no space left on device\n"
    "09:14:31 worker-1 job 8813 put back, attempt 2 of 3\n"
    "09:15:02 worker-2 job 8813: cannot open /mnt/in/8813.tif: no space left on device\n"
    "09:15:02 worker-2 job 8813 put back, attempt 3 of 3\n"
)

PROMPTS: tuple[Prompt, ...] = (
    _ask("chat", "Hello! I have a free afternoon in a town by the sea. What could I do there?"),
    _ask(
        "chat",
        "My neighbour's dog barks every morning at six. How do I bring it up kindly?",
        "You could mention it when you meet by chance, and begin with something friendly.",
        "And if nothing changes after that?",
    ),
    _ask(
        "chat",
        "What should I cook tonight? There are eggs, spinach, half an onion and some rice.",
        system="You are a cook who answers in a few plain sentences.",
    ),
    _ask("writing", "Write a short letter that thanks a colleague for her help with a move."),
    _ask("writing", "Tell a story of about ten sentences about a clockmaker who is always late."),
    _ask("code", "Write a Python function that tells whether a string is a palindrome."),
    _ask("code", f"This function loses elements. Find out why and mend it.\n\n{_CODE}"),
    _ask("code", "Write an SQL query for the three customers with the most orders in 2024."),
    _ask("code", "Explain, with a small example in C, what a dangling pointer is."),
    _ask("maths", "A train covers 150 km in 100 minutes. What is its average speed in km/h?"),
    _ask("maths", "Show that the sum of two odd numbers is even, step by step."),
    _ask(
        "maths",
        "I buy 3 notebooks at 2.40 each and 2 pens at 1.15 each, and pay with a ten. What change "
        "do I get? Show the sums.",
    ),
    _ask(
        "json",
        "Answer with JSON alone: an array of three planets, each with name, radius_km and moons.",
    ),
    _ask(
        "json",
        "Turn this into a JSON object with the keys date, place and people: on 4 May Ana and Tom "
        "met at the old mill.",
        system="You answer with valid JSON and nothing else.",
    ),
    _ask("long text", f"{_STORY}\n\nSum this up in three sentences."),
    _ask("long text", f"{_STORY}\n\nWhy were there fewer apples every year? Quote the sentence."),
    _ask("analysis", f"{_LOG}\nWhat goes wrong here, and what would you look at first?"),
    _ask("analysis", "Compare trains and buses for a town of 50000 people, as a short table."),
    _ask("chinese", "请用三句话介绍一下长城。"),
    _ask("chinese", "把下面这句话翻译成英文：明天下午三点我们在图书馆门口见面。"),
    _ask("german", "Erkläre einem Kind in fünf Sätzen, warum der Himmel blau ist."),
    _ask("french", "Donne-moi une recette simple de soupe aux légumes pour quatre personnes."),
    _ask("spanish", "¿Qué diferencia hay entre el clima y el tiempo? Responde brevemente."),
    _ask("facts", "Name the seven continents, and one country of each where there is one."),
)
