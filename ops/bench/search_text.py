"""The text of the messages of the search benchmark: prose, code, logs, listings and traces."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import accumulate

#: The head of the vocabulary, most frequent first.
HEAD = """
the to a of and in is it for this that with on be as not file we are if from an test by can code
so error use line add was all but have will run now function or new value need data check return
get there set name do type at one only which when should path same change list let it's read call
import build no up more string first then case make default request id out look work index key time
has other fix class result update write user output server config also already after field what how
where why match state empty some than start each number before current option would command module
version object two message into these missing branch main over any because could was table query
step still response create load cache without log handle used even part directory size find method
client root second session text support next since between remove end both instead just model
point model local most see parse count actual expected column null token port page memory worker
queue process thread lock timeout retry failed failure debug deploy release commit merge review
pool connection database schema migration search ranking vector segment shared resize borrow
""".split()  # noqa: SIM905 - a list of one word a line would fill pages

BOILERPLATE = (
    "The file has been updated successfully.",
    "[Request interrupted by user]",
    "No files found",
    "Todos have been modified. Continue with the list and keep one item in progress.",
    "(the command finished without output)",
    "This session is being continued from an earlier one that ran out of context.",
    "File has not been read yet. Read it first before writing to it.",
    "Command running in background with id 1",
    "continue",
    "yes, go ahead",
    "Permission to use this tool was denied. Stop and wait for the user.",
    "<system-reminder>The list of tasks is empty. Do not mention this.</system-reminder>",
    "Error: String to replace not found in file.",
    "Caveat: the messages below were generated while local commands ran.",
    "Warning: the file exists but is shorter than the offset that was given.",
)  # fmt: skip

#: Rare strings that somebody looks for, and about one log or trace in how many has each.
_ERRORS = (
    "could not resize shared memory segment \"/PostgreSQL.{n}\": No space left on device",
    "error[E0382]: borrow of moved value: `{snake}`",
    "error[E0499]: cannot borrow `{snake}` as mutable more than once at a time",
    "ModuleNotFoundError: No module named '{word}'",
    "TypeError: {camel}() missing 1 required positional argument: '{snake}'",
    "npm ERR! code ELIFECYCLE",
    "fatal: refusing to merge unrelated histories",
    "psycopg.errors.DeadlockDetected: deadlock detected",
    "KeyError: '{snake}'",
    "AssertionError: expected {n}, got {m}",
)  # fmt: skip
_ERROR_ONE_IN = 40

_CODE = (
    "import os",
    "import {word}",
    "from {word}.{word2} import {Camel}",
    "class {Camel}({Camel2}):",
    "    def __init__(self, {snake}: int) -> None:",
    "    def {snake}(self, {word}, {word2}=None):",
    "        self.{snake} = {word}",
    "        return self.{snake}({word}, {word2})",
    "        return value",
    "    if {word} is None or {snake} != {n}:",
    "        raise {Camel}(f\"{word} {word2} {{{snake}}}\")",
    "    for {word} in {snake}({word2}):",
    "    # {word} {word2} {word3} {word4}",
    "const {camel} = await {camel2}({word}, {{ {word2}: {n} }});",
    "export function {camel}({word}: string): {Camel} {{",
    "  return {camel}.{word}({word2}) ?? null;",
    "}}",
    "fn {snake}(&mut self, {word}: &{Camel}) -> Result<{Camel2}> {{",
    "    let {word} = self.{snake}.{word2}()?;",
    "assert {snake}({word}) == {n}",
)  # fmt: skip
_LOG = (
    "{ts} INFO [{word}] {uuid} GET /v{d}/{word2}/{word3}/{n} 200 {m}ms",
    "{ts} INFO [{word}] get request {uuid} for {snake}",
    "{ts} DEBUG {snake}: {word} {word2} {word3} id={uuid}",
    "{ts} WARN  {path}:{n} {word} {word2} took {m} ms",
    "{ts} ERROR {Camel}.{camel} failed with status:{s} after {d} retries",
    "{ts} INFO worker-{d} {word} {word2} {word3} sha={sha}",
)
_LISTING = (
    "{path}:{n}:    def {snake}(self, {word}):",
    "{path}:{n}: {word} {word2} {word3}",
    "-rw-r--r-- 1 dev dev {n} Jan 12 10:{t} {path}",
    "{path}",
    " {path} | {d} ++--",
    "{sha} {word} {word2} {word3} {word4}",
)
_TRACE = (
    "  File \"/home/dev/{path}\", line {n}, in {snake}",
    "    {snake} = self.{snake2}({word}, {word2})",
)  # fmt: skip
_COMMANDS = (
    "{{\"command\":\"rg -n {snake} {path}\",\"description\":\"Search for {word} in the {word2}\"}}",
    "{{\"command\":\"python -m pytest {path} -k {snake} -x\",\"timeout\":{n}}}",
    "{{\"command\":\"git log --oneline -{d} -- {path}\"}}",
    "{{\"file_path\":\"/home/dev/{path}\",\"offset\":{n},\"limit\":{m}}}",
    "{{\"command\":\"docker run --shm-size {d}g --rm {word} {snake}\"}}",
)  # fmt: skip

#: Phrases for each word in prose.
_PHRASE_SHARE = 0.4
_CONSONANTS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "st",
    "tr",
    "pl",
    "ch",
)
_SYLLABLES = [a + b for a in _CONSONANTS for b in "aeiou"]
_ENDINGS = ("", "", "", "n", "r", "t", "l", "x", "s", "ing", "ed", "er", "ion")


class Vocabulary:
    """Words with their weights: the head, and behind it words that were made up.

    Prose also repeats phrases of two to four words, as people do: in text of independent words
    hardly any phrase of common words would be common itself.
    """

    def __init__(self, chance: random.Random, size: int) -> None:
        words = dict.fromkeys(HEAD)
        while len(words) < size:
            stem = "".join(chance.choices(_SYLLABLES, k=chance.choice((2, 2, 3, 3, 4))))
            words[stem + chance.choice(_ENDINGS)] = None
        self.words = list(words)
        weights = [1 / (rank + 3.5) ** 1.02 for rank in range(size)]
        self._word_weights = list(accumulate(weights))
        phrases = [
            " ".join(self.draw(chance, chance.choice((2, 2, 3, 4)))) for _ in range(size // 4)
        ]
        share = _PHRASE_SHARE * sum(weights) / sum(weights[: len(phrases)])
        self._units = phrases + self.words
        self._unit_weights = list(
            accumulate([share * w for w in weights[: len(phrases)]] + weights)
        )

    def draw(self, chance: random.Random, count: int) -> list[str]:
        """Words by their weight."""
        return chance.choices(self.words, cum_weights=self._word_weights, k=count)

    def draw_prose(self, chance: random.Random, count: int) -> list[str]:
        """Words and phrases by their weight."""
        return chance.choices(self._units, cum_weights=self._unit_weights, k=count)


class Names:
    """Identifiers and paths that a project uses again and again."""

    def __init__(self, chance: random.Random, vocabulary: Vocabulary) -> None:
        count = 260
        drawn = iter(chance.choices(vocabulary.words[40:20_000], k=12 * count))
        self.snake = [f"{next(drawn)}_{next(drawn)}" for _ in range(count)]
        self.camel = [next(drawn) + next(drawn).title() for _ in range(count)]
        self.title = [next(drawn).title() + next(drawn).title() for _ in range(count)]
        self.path = [
            f"src/{next(drawn)}/{next(drawn)}_{next(drawn)}.{chance.choice(('py', 'ts', 'rs'))}"
            for _ in range(count)
        ]


class Voice:
    """Writes the messages of one session."""

    def __init__(self, chance: random.Random, vocabulary: Vocabulary, names: Names) -> None:
        self._chance = chance
        self._vocabulary = vocabulary
        self._names = names
        self._topic = chance.choices(vocabulary.words[60:30_000], k=30)
        self._ahead: list[str] = []

    def write(self, kind: str, size: int, ts: datetime) -> str:
        """A message of about this many characters."""
        draw = self._chance.random()
        if kind in {"text", "thinking"}:
            text = self._prose(size if draw < 0.6 else size // 2)
            if draw >= 0.6:
                text += "\n\n```\n" + self._lines(_CODE, size // 2, ts) + "\n```"
        elif kind == "tool_call":
            text = self._lines(_COMMANDS, 60, ts) if draw < 0.5 else self._lines(_CODE, size, ts)
        else:
            text = self._output(draw, size, ts)
        return text[: max(size, 12)].strip() or "ok"

    def _output(self, draw: float, size: int, ts: datetime) -> str:
        if self._chance.randrange(_ERROR_ONE_IN) == 0:
            error = self._lines((self._chance.choice(_ERRORS),), 1, ts)
            return error + "\n" + self._lines(_LOG, size, ts)
        if draw < 0.3:
            return self._lines(_LOG, size, ts)
        if draw < 0.55:
            return self._lines(_CODE, size, ts)
        if draw < 0.75:
            return self._lines(_LISTING, size, ts)
        if draw < 0.8:
            head = "Traceback (most recent call last):\n"
            return head + self._lines(_TRACE, min(size, 1_500), ts)
        return self._prose(size)

    def _with_topic(self, words: list[str]) -> list[str]:
        for place in range(self._chance.randrange(9), len(words), 9):
            words[place] = self._chance.choice(self._topic)
        return words

    def _prose(self, size: int) -> str:
        words = self._with_topic(self._vocabulary.draw_prose(self._chance, size // 6 + 4))
        for place in range(11, len(words), 12):
            words[place] += "."
        for place in range(7, len(words), 60):
            words[place] = f"`{self._chance.choice(self._names.snake)}`"
        return " ".join(words)

    def _next(self) -> str:
        if not self._ahead:
            self._ahead = self._with_topic(self._vocabulary.draw(self._chance, 200))
        return self._ahead.pop()

    def _lines(self, templates: tuple[str, ...], size: int, ts: datetime) -> str:
        chance, names = self._chance, self._names
        lines: list[str] = []
        length = 0
        while length < size:
            number = chance.getrandbits(30)
            line = chance.choice(templates).format_map(
                {
                    "word": self._next(),
                    "word2": self._next(),
                    "word3": self._next(),
                    "word4": self._next(),
                    "snake": names.snake[number % 251],
                    "snake2": names.snake[number % 83],
                    "camel": names.camel[number % 257],
                    "camel2": names.camel[number % 91],
                    "Camel": names.title[number % 241],
                    "Camel2": names.title[number % 79],
                    "path": names.path[number % 239],
                    "n": number % 1_400,
                    "m": number % 977,
                    "d": number % 9,
                    "s": (200, 401, 404, 500, 503)[number % 5],
                    "t": 10 + number % 50,
                    "ts": (ts + timedelta(milliseconds=37 * len(lines))).isoformat(" "),
                    "uuid": _LazyUuid(chance),
                    "sha": f"{number:08x}"[:8],
                }
            )
            lines.append(line)
            length += len(line) + 1
        return "\n".join(lines)


class _LazyUuid:
    """Draws a UUID only where a template has one."""

    __slots__ = ("_chance",)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __format__(self, spec: str) -> str:
        return uuid(self._chance)


def uuid(chance: random.Random) -> str:
    """A UUID of version 4."""
    h = f"{chance.getrandbits(128):032x}"
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-8{h[17:20]}-{h[20:]}"
