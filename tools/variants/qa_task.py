"""Training questions for `qa`: SQuAD and Natural Questions among distractors, and forms derived from them.

HotpotQA asks over ten paragraphs, often for a choice between two things or for yes or no. SQuAD and Natural Questions
hold neither form, so both are derived from their questions and paragraphs by templates. No HotpotQA, 2WikiMultihopQA or
MuSiQue row is used.
"""

import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from .layout import Example, read_rows

Document = tuple[str, str]

# kind of example -> share of the training mix
MIX = {"squad": 0.52, "natural": 0.22, "choice": 0.09, "yes_no": 0.07, "title_choice": 0.05, "both": 0.05}
LONG_SHARE = 0.05          # of the examples get a context of LONG_TOKENS
LONG_TOKENS = (3000, 7500)
TOKENS = (500, 1700)       # the other contexts
CHARACTERS_PER_TOKEN = 4.2
DISTRACTORS = 9            # beside the gold paragraph of a row that is measured
MOST_OF_ARTICLE = 200      # questions of one article among the rows that are measured
FIT_ROWS = 1500            # training questions whose contexts may serve the fit of maps; they measure nothing
# fold -> articles and rows that are tested on, by the remainder of their number divided by five. The family is of fold 0
TEST_REMAINDERS = {0: (4,), 1: (0, 2)}


def part_of(number: int, fold: int = 0) -> str:
    """Every twentieth article or row serves profiles, others are tested on; nothing is trained on those."""
    return "profile" if number % 20 == 7 else "test" if number % 5 in TEST_REMAINDERS[fold] else "train"


@dataclass
class Asked:
    question: str
    answers: list[str]
    gold: Document
    article: int | None  # of SQuAD

    @property
    def answer(self) -> str:
        return min(self.answers, key=len)

    @property
    def kind(self) -> str:
        return self.question.split(" ")[0].lower()


def _sentence_case(question: str, rng: random.Random) -> str:
    question = question.strip() + "?"
    return question[0].upper() + question[1:] if rng.random() < 0.5 else question


class QaTask:
    def __init__(self, folder: Path, fold: int = 0, most_of_article: int = MOST_OF_ARTICLE):
        articles = read_rows(folder, "squad.articles.train")
        natural = read_rows(folder, "nq-open.train")
        self.article_documents: dict[int, list[Document]] = {}
        squad, asked = defaultdict(list), defaultdict(list)
        for number, article in enumerate(articles):
            title = article["title"].replace("_", " ")
            self.article_documents[number] = [(title, p["text"]) for p in article["paragraphs"]]
            questions = [Asked(q["question"].strip(), q["answers"], (title, p["text"]), number)
                         for p in article["paragraphs"] for q in p["questions"]]
            part = part_of(number, fold)
            if part != "train" and len(questions) > most_of_article:
                questions = random.Random(number).sample(questions, most_of_article)
            squad[part] += questions
        for number, row in enumerate(natural):
            document = row["documents"][0]
            asked[part_of(number, fold)].append(Asked(row["question"], row["answers"], (document["title"], document["text"]), None))
        self.squad, self.natural = squad["train"], asked["train"]
        pages = {a.gold[0] for a in self.natural}  # what is asked of a page that is trained on is not measured
        self.measured = {part: squad[part] + [a for a in asked[part] if a.gold[0] not in pages] for part in ("profile", "test")}
        self.measured["fit"] = self._fit_questions()

        self.natural_documents = [a.gold for a in self.natural]
        self.documents = self.natural_documents + [d for n, docs in self.article_documents.items()
                                                   if part_of(n, fold) == "train" for d in docs]
        self.answers_by_kind = defaultdict(list)
        for a in self.squad:
            self.answers_by_kind[a.article, a.kind].append(a.answer)
        self.documents_by_name = defaultdict(list)
        for document in self.natural_documents:
            for name in self._names(document):
                self.documents_by_name[name].append(document)
        self.shared_names = [name for name, docs in self.documents_by_name.items() if 2 <= len(docs) <= 40]
        self.makers = {"squad": self._squad, "natural": self._natural, "choice": self._choice,
                       "yes_no": self._yes_no, "title_choice": self._title_choice, "both": self._both}

    def _fit_questions(self) -> list[Asked]:
        trained = self.squad + self.natural
        return random.Random(11).sample(trained, min(FIT_ROWS, len(trained)))

    # ---- training stream

    def draw(self, rng: random.Random) -> Example:
        while True:
            maker = self.makers[rng.choices(list(MIX), list(MIX.values()))[0]]
            if (made := maker(rng)) is not None:
                return made

    def _squad(self, rng):
        asked = rng.choice(self.squad)
        return self._among_distractors(rng, asked.question, asked.answer, [asked.gold], asked.article)

    def _natural(self, rng):
        asked = rng.choice(self.natural)
        return self._among_distractors(rng, _sentence_case(asked.question, rng), asked.answer, [asked.gold])

    def _wrong_answer(self, rng, asked: Asked) -> str | None:
        others = [a for a in self.answers_by_kind[asked.article, asked.kind] if a.lower() != asked.answer.lower()]
        return rng.choice(others) if others else None

    def _choice(self, rng):
        """`Who won, A or B?`"""
        asked = rng.choice(self.squad)
        wrong = self._wrong_answer(rng, asked)
        if wrong is None or len(asked.answer) > 60 or len(wrong) > 60 or not asked.question.endswith("?"):
            return None
        first, second = rng.sample([asked.answer, wrong], 2)
        head = asked.question[:-1].strip()
        question = f"{head}, {first} or {second}?"
        if rng.random() < 0.3:
            question = f"{first} or {second}: {head[0].lower() + head[1:]}?"
        return self._among_distractors(rng, question, asked.answer, [asked.gold], asked.article)

    def _yes_no(self, rng):
        """A question with its answer, or a wrong one, put into it."""
        asked = rng.choice(self.squad)
        right = rng.random() < 0.5
        candidate = asked.answer if right else self._wrong_answer(rng, asked)
        if candidate is None or len(candidate) > 60:
            return None
        question = None
        if found := re.match(r"(?:What|Who|Which) (is|was|are|were) (.+)\?$", asked.question):
            question = f"{found[1].capitalize()} {candidate} {found[2]}?"
        elif found := re.match(r"(?:When|Where) (did|was|were|is|does|do|are) (.+)\?$", asked.question):
            place = re.sub(r"^(in|at|on) ", "", candidate)
            question = f"{found[1].capitalize()} {found[2]} in {place}?"
        elif found := re.match(r"Who (.+)\?$", asked.question):
            question = f"Was it {candidate} who {found[1]}?"
        if question is None:
            return None
        return self._among_distractors(rng, question, "yes" if right else "no", [asked.gold], asked.article)

    @staticmethod
    def _names(document: Document) -> set[str]:
        """Capitalised words and years of a paragraph that are not in its title."""
        found = re.findall(r"(?<=[a-z,] )(?:[A-Z][a-z]{3,}(?: [A-Z][a-z]{2,})*|1[5-9]\d\d|20\d\d)\b", document[1])
        return {name for name in found if name not in document[0]}

    def _two_titles(self, rng) -> tuple[Document, Document] | None:
        first, second = rng.sample(self.natural_documents, 2)
        return (first, second) if first[0] and second[0] and first[0] != second[0] else None

    def _title_choice(self, rng):
        """Which of two documents a name belongs to, or which has the earlier year: the answer is a title."""
        if (pair := self._two_titles(rng)) is None:
            return None
        (first, second), answer = pair, rng.choice(pair)
        other = second if answer is first else first
        years = [re.findall(r"\b(1[0-9]\d\d|20[012]\d)\b", document[1]) for document in pair]
        if all(years) and rng.random() < 0.5:
            earliest = [min(map(int, found)) for found in years]
            if earliest[0] == earliest[1]:
                return None
            answer = pair[0] if earliest[0] < earliest[1] else pair[1]
            question = rng.choice(["Which came first, {} or {}?", "Which is older, {} or {}?", "Which was earlier, {} or {}?",
                                   "Which happened first, {} or {}?"])
        else:
            names = sorted(name for name in self._names(answer) if name not in other[1])
            if not names:
                return None
            name = rng.choice(names)
            question = rng.choice(["Which is connected with " + name + ", {} or {}?",
                                   "Which one is about " + name + ", {} or {}?",
                                   "Between {} and {}, which has to do with " + name + "?",
                                   "Which of the two, {} or {}, involves " + name + "?"])
        return self._among_distractors(rng, question.format(first[0], second[0]), answer[0], [first, second])

    def _both(self, rng):
        """Whether two documents share a name: yes or no."""
        name = rng.choice(self.shared_names)
        first = rng.choice(self.documents_by_name[name])
        right = rng.random() < 0.55
        second = rng.choice(self.documents_by_name[name] if right else self.natural_documents)
        if first[0] == second[0] or (name in second[1]) != right:
            return None
        question = rng.choice(["Are {} and {} both connected with {}?", "Are both {} and {} related to {}?",
                               "Were {} and {} both linked to {}?", "Do {} and {} both have to do with {}?",
                               "Did {} and {} both involve {}?", "Is {} like {} connected with {}?"])
        titles = rng.sample([first[0], second[0]], 2)
        return self._among_distractors(rng, question.format(*titles, name), "yes" if right else "no", [first, second])

    def _among_distractors(self, rng, question, answer, gold: list[Document], article: int | None = None) -> Example:
        """Gold paragraphs among others up to a random length; for SQuAD some are of the same article (hard ones)."""
        wanted = rng.uniform(*(LONG_TOKENS if rng.random() < LONG_SHARE else TOKENS)) * CHARACTERS_PER_TOKEN
        hard_share = rng.choice([0.0, 0.3, 0.7]) if article is not None else 0.0
        documents, size = list(gold), sum(len(text) for _, text in gold)
        while size < wanted:
            pool = self.article_documents[article] if rng.random() < hard_share else self.documents
            document = rng.choice(pool)
            if hard_share and article is not None and size + len(document[1]) > wanted and len(documents) > 2:
                break
            size += len(document[1]) + len(document[0]) + 4
            if document not in documents:
                documents.append(document)
        rng.shuffle(documents)
        return Example(documents, question, [answer])

    # ---- rows that are measured

    def rows(self, part: str) -> list[Example]:
        """Each question once, its paragraph among others: half of them of the same article, where there is one."""
        rng = random.Random(11)
        rows = [self._measured_row(rng, a) for a in self.measured[part]]
        rng.shuffle(rows)
        return rows

    def drawn_rows(self, part: str, draws: list[int]) -> list[tuple[str, Example]]:
        """Each question once for each draw, among paragraphs of that draw. Its number, part and draw make the row's name."""
        rows = [(f"{number}-{draw}", self._measured_row(random.Random(f"{part} {number} {draw}"), a))
                for draw in draws for number, a in enumerate(self.measured[part])]
        random.Random(11).shuffle(rows)
        return rows

    def _measured_row(self, rng: random.Random, a: Asked) -> Example:
        near = [d for d in self.article_documents.get(a.article, []) if d != a.gold]
        near = rng.sample(near, min(len(near), DISTRACTORS // 2))
        documents = [a.gold, *near, *rng.sample(self.documents, DISTRACTORS - len(near))]
        rng.shuffle(documents)
        return Example(documents, a.question if a.question.endswith("?") else a.question + "?", a.answers)
