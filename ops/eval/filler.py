"""The ordinary work between the turns that matter: looking around, reading, testing, small talk.

It is what most of a real session consists of, and what a search has to see past. Everything is
drawn from the project's vocabulary by a generator with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ops.eval.material import Turn

Vocabulary = Mapping[str, Any]

_SAID = (
    "Let me read {file} before I change anything.",
    "{symbol} is used in more than one place, so I look at all of them.",
    "First the tests of {tests}, so that we know where we start from.",
    "That looks fine. Next I check who else touches the {noun}.",
    "I want to see what changed here lately.",
    "Nothing unusual in there. I go on with {file}.",
    "The name {symbol} promises more than it does; I leave it for now.",
    "Same pattern as in {file}, good.",
    "Tests are green before the change.",
    "I note {symbol} for later, it is not what we are after.",
    "A quick look at the log, in case the {noun} shows up there.",
    "This part has no tests. I write one for the {noun} when we are done.",
    "Two callers of {symbol}, both harmless.",
    "I keep the change small and leave {file} as it is.",
    "Checking that I did not break {tests}.",
    "The working tree is clean apart from our files.",
    "{file} is older than the rest, and it shows.",
    "Let me make sure that the {noun} is not empty in this case.",
    "Good, the {noun} arrives as expected.",
    "I would have expected {symbol} to be called here, and it is not.",
    "Formatting and linting once more.",
    "One more place to look at: {file}.",
    "The {noun} has a default, so old callers are not affected.",
    "That was a wrong turn, {symbol} has nothing to do with it.",
    "I read the history of {file} to see why it was written that way.",
    "Everything that depends on {symbol} still passes.",
    "No surprise here.",
    "I run the whole of {tests} again to be sure.",
    "The comment above {symbol} is out of date; I correct it on the way.",
    "Let me compare with what is on main.",
)
_ANSWERED = (
    "ok", "yes please", "go on", "sounds good", "👍", "do it", "fine with me", "makes sense",
    "sure, continue", "yes", "and the tests?", "thanks", "push it", "great, next one",
    "wait, run the tests first", "can you also update the changelog", "looks good to me",
    "leave {file} alone please, someone else is on it", "what does {symbol} do again?",
    "not now, after lunch", "commit this",
)  # fmt: skip
_CODE: dict[str, tuple[str, ...]] = {
    "python": (
        "def {symbol}({noun}, *, limit=None):",
        "    if not {noun}:\n        return None",
        "    for {noun} in {noun}s:\n        yield {symbol}({noun})",
        "    {noun}.{symbol}()",
        "    log.info(\"{symbol}\", extra={{\"{noun}\": {noun}.id}})",
        "    return [{noun} for {noun} in found if {noun}.is_active]",
        "    {noun} = {symbol}(source, limit={n})",
        "class {Noun}View(BaseView):",
        "    total = sum(item.{noun}_count for item in rows)",
    ),
    "yaml": (
        "{symbol}:",
        "  {noun}: {n}",
        "  - name: {noun}-{m}",
        "    {symbol}: true",
        "    # {noun} of the second zone",
        "  {symbol}: \"{{{{ {noun}_{symbol} }}}}\"",
        "    when: {noun} is defined",
    ),
    "sql": (
        "select {noun}.{symbol},",
        "    sum({symbol}) as {symbol}_total,",
        "from {{{{ ref('stg_{noun}s') }}}} {noun}",
        "left join {noun}_history h using ({symbol})",
        "where {symbol} is not null",
        "group by {symbol}",
        "-- one row for each {noun}",
        "    case when {symbol} > {n} then '{noun}' else 'other' end as kind,",
    ),
    "kotlin": (
        "fun {symbol}({noun}: {Noun}): Result<{Noun}> {{",
        "    val {noun} = repository.{symbol}(id) ?: return",
        "    {noun}s.filter {{ it.isOpen }}.forEach(::{symbol})",
        "    viewModel.{symbol}({noun}.id)",
        "data class {Noun}(val id: Long, val {noun}Name: String)",
        "    Text(stringResource(R.string.{noun}_title))",
        "}}",
    ),
    "rust": (
        "pub fn {symbol}(&mut self, {noun}: {Noun}Id) -> Option<{Noun}Id> {{",
        "    let {noun} = self.{symbol}({noun})?;",
        "    match self.{noun}s.get({noun}) {{",
        "        Some({noun}) => self.{symbol}({noun}),",
        "        None => return None,",
        "    self.{noun}s.extend(other.{noun}s);",
        "#[derive(Clone, Copy, Debug, PartialEq)]\npub struct {Noun}Id(u32);",
        "}}",
    ),
    "markdown": (
        "## {symbol}",
        "Every {noun} has an owner, and the owner is named at its end.",
        "- [ ] the {noun} was read by somebody else",
        "See [{symbol}]({file}#{noun}) for how it came about.",
        "> A {noun} without a date is out of date.",
        "| {noun} | {n} | {symbol} |",
    ),
    "c": (
        "static esp_err_t {symbol}({noun}_t *{noun})",
        "{{\n    if ({noun} == NULL) return ESP_ERR_INVALID_ARG;",
        "    {noun}->count += {m};",
        "    ESP_LOGD(TAG, \"{symbol} %u\", (unsigned){noun}->count);",
        "    return {symbol}(&{noun}->next);\n}}",
        "#define {NOUN}_MAX {n}",
    ),
}  # fmt: skip
_RUN_TESTS = {
    "rust": ("cargo test -q {tests}", "running {n} tests\ntest result: ok. {n} passed; 0 failed"),
    "kotlin": ("./gradlew {tests}", "{m} actionable tasks: {m} executed\nBUILD SUCCESSFUL in {m}s"),
    "sql": ("dbt test --select {tests}", "Done. PASS={m} WARN=0 ERROR=0 SKIP=0 TOTAL={m}"),
    "yaml": ("conftest test {tests}", "{n} tests, {n} passed, 0 warnings, 0 failures"),
    "c": ("idf.py build && ./run {tests}", "{n} Tests 0 Failures 0 Ignored\nOK"),
}
_PYTEST = ("pytest {tests} -q", "{dots} [100%]\n{n} passed in {m}.{m}s")


class Filler:
    """Steps of ordinary work in one session."""

    def __init__(self, seed: str, words: Vocabulary) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._words = words
        self._language: str = words["language"]
        self._steps: list[Callable[[], tuple[Turn, str]]] = [
            self._search, self._read, self._read, self._test, self._history, self._changes,
            self._logs, self._count,
        ]  # fmt: skip

    def turns(self, steps: int) -> Iterator[Turn]:
        """So many commands with what they print, and some words between them."""
        for _ in range(steps):
            if self._chance.random() < 0.3:
                yield Turn("A", self._fill(self._chance.choice(_SAID)))
            call, output = self._chance.choice(self._steps)()
            yield call
            yield Turn(">", output)
            if self._chance.random() < 0.1:
                yield Turn("U", self._fill(self._chance.choice(_ANSWERED)))

    def _pick(self, name: str) -> str:
        return str(self._chance.choice(self._words[name]))

    def _number(self, least: int = 2, most: int = 4000) -> int:
        return self._chance.randint(least, most)

    def _fill(self, template: str) -> str:
        noun = self._pick("nouns")
        return template.format(
            file=self._pick("files"),
            symbol=self._pick("symbols"),
            tests=self._pick("tests"),
            noun=noun,
            Noun=noun.capitalize(),
            NOUN=noun.upper(),
            n=self._number(),
            m=self._number(2, 90),
            dots="." * self._number(8, 40),
        )

    def _code(self, least: int, most: int) -> list[str]:
        templates = _CODE[self._language]
        texts = [
            self._fill(self._chance.choice(templates)) for _ in range(self._number(least, most))
        ]
        return "\n".join(texts).split("\n")

    def _search(self) -> tuple[Turn, str]:
        symbol = self._pick("symbols")
        lines = [
            f"{self._pick('files')}:{self._number(3, 400)}:{line}"
            for line in self._code(2, 6)
            if line.strip(" {}")
        ]
        return Turn("$", f'grep -rn "{symbol}" .'), "\n".join(lines)

    def _read(self) -> tuple[Turn, str]:
        first = self._number(1, 300)
        lines = [f"{first + place:>5}→{line}" for place, line in enumerate(self._code(7, 15))]
        return Turn("R", f"{self._words['cwd']}/{self._pick('files')}"), "\n".join(lines)

    def _test(self) -> tuple[Turn, str]:
        command, output = _RUN_TESTS.get(self._language, _PYTEST)
        return Turn("$", self._fill(command)), self._fill(output)

    def _hash(self) -> str:
        return f"{self._chance.getrandbits(28):07x}"

    def _history(self) -> tuple[Turn, str]:
        chosen = self._chance.sample(self._words["commits"], self._number(3, 6))
        lines = [f"{self._hash()} {text}" for text in chosen]
        return Turn("$", f"git log --oneline -{len(lines)} -- {self._pick('files')}"), "\n".join(
            lines
        )

    def _changes(self) -> tuple[Turn, str]:
        old, new = self._code(1, 3), self._code(1, 4)
        lines = [f"@@ -{self._number(1, 300)},{len(old)} +{self._number(1, 300)},{len(new)} @@"]
        lines += [f"-{line}" for line in old] + [f"+{line}" for line in new]
        return Turn("$", f"git diff main -- {self._pick('files')}"), "\n".join(lines)

    def _logs(self) -> tuple[Turn, str]:
        lines = [self._fill(self._pick("log")) for _ in range(self._number(3, 8))]
        return Turn("$", f"tail -n {len(lines)} log/current.log"), "\n".join(lines)

    def _count(self) -> tuple[Turn, str]:
        files = sorted(set(self._chance.sample(self._words["files"], 4)))
        lines = [f"{self._number(20, 900):>5} {file}" for file in files]
        return Turn("$", f"wc -l {' '.join(files)}"), "\n".join(lines)
