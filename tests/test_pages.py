"""Laws of the pages that a reader navigates: short, in plain words, and true when pasted."""

import ast
import inspect
import re
import shlex

import answers
import prose
import pytest

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity.lab.cli import parsing

PAGES = prose.written_pages()
ALL_PAGES = [*PAGES, *prose.evidence_pages()]
WORDS, ALL_WORDS, INTERVALS, COLUMNS = 1_500, 35_000, 15, 8
ANSWERS = {f"explanation/{name}.md" for name in ("adaptation", "scratch", "cost")}
ANSWER_WORDS, ANSWER_ROWS = 900, 10
INTERVAL = re.compile(r"\[[+−-]?\d[\d.]*, [+−-]?\d[\d.]*\]")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")
DURATION = re.compile(r"\b(second|minute|hour)s?\b")
PLACEHOLDERS = {"TABLE": "4", "RECIPE": "quickstart", "RUN...": "RUN", "BUDGET": "1"}
NOT_PARSED = re.compile(r"nsim bench |nsim evaluate runs/(?:fewshot|mini)")
"""Commands of records of 0.2, and those whose options follow from a run."""


def read(page):
    return prose.page_source(page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_named_as_in_the_navigation(page):
    text = read(page)
    label = prose.navigation_labels()[page]
    title = re.search(r"^# (.*)$", text, re.MULTILINE)[1]
    assert title == {"Home": "neural-similarity"}.get(label, label)
    assert len(text.split()) <= WORDS
    assert len(INTERVAL.findall(text)) <= INTERVALS
    for row in re.findall(r"^\|[ :|-]+\|$", text, re.MULTILINE):
        assert row.count("|") - 1 <= COLUMNS
    if page in ANSWERS:
        assert sum(bool(re.search(r"\w", word)) for word in text.split()) <= ANSWER_WORDS
        assert len(re.findall(r"^\| (?!---)", text, re.MULTILINE)) - 1 <= ANSWER_ROWS
    assert not COMMIT.findall(re.sub(r"https?://\S+|\(\S+\)", "", text))
    assert not re.search("not recorded|ran again", text)


def test_the_navigation_is_short():
    assert len(prose.navigation_labels()) <= 30
    assert sum(len(read(page).split()) for page in PAGES) <= ALL_WORDS
    assert len(read("index.md").splitlines()) <= 110
    for version in re.split(r"^## ", read("changelog.md"), flags=re.MULTILINE)[1:]:
        assert len([line for line in version.splitlines()[1:] if line]) <= 30, version


@pytest.mark.parametrize("page", ALL_PAGES)
def test_a_page_is_in_the_words_of_the_field(page):
    assert not prose.stumbling_phrases(page)


def calls(text):
    """Every `ns.name(…)` of a text, as far as its parentheses."""
    for match in re.finditer(r"\bns\.[\w.]+\(", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[match.start() : end]


def binds(call):
    """Whether the library has the name of a call and takes its arguments; dots are any."""
    expression = ast.parse(call, mode="eval").body
    target = eval(ast.unparse(expression.func), {"ns": ns})
    signature = inspect.signature(target)
    if any(isinstance(one, ast.Starred) for one in expression.args):
        return True
    values = [one for one in expression.args if getattr(one, "value", None) is not ...]
    named = {keyword.arg: keyword.value for keyword in expression.keywords}
    whole = values == expression.args and None not in named
    named.pop(None, None)
    (signature.bind if whole else signature.bind_partial)(*values, **named)
    return True


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_call_of_the_library_takes_its_arguments(page):
    for call in calls(read(page)):
        assert binds(call), call


def test_a_call_that_lacks_an_argument_is_seen():
    with pytest.raises(TypeError, match="weight_decay"):
        binds("ns.parameter_groups(model)")


class Parsed(BaseException):
    """A command line is read as far as its options."""


@pytest.fixture
def only_parse(monkeypatch):
    parse = parsing.tyro.cli

    def stop(*args, **options):
        parse(*args, **options)
        raise Parsed

    monkeypatch.setattr(parsing.tyro, "cli", stop)


def commands(text):
    """Lines of `nsim` in blocks and in the text, with the line or paragraph around them."""
    for block in re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("nsim "):
                yield line.partition(" #")[0].partition(" > ")[0].partition(" && ")[0], line
    for paragraph in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
        for line in re.findall(r"`(nsim [^`]*)`", paragraph):
            yield " ".join(line.split()), paragraph


@pytest.mark.usefixtures("only_parse")
@pytest.mark.parametrize("page", ALL_PAGES)
def test_commands_parse_and_those_that_train_have_their_time(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line, around in commands(read(page)):
        if NOT_PARSED.match(line):
            continue
        words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]
        whole = len(words) > 1 and not {"…", "NAME", "--config"} & {*words}
        if whole and "/" not in words[0]:
            for separator in ("|", ">"):
                words = words[: words.index(separator)] if separator in words else words
            try:
                assert cli.main(words) != 2, line
            except Parsed:
                pass
        if page not in PAGES:
            continue
        if words[0] == "reproduce" and len(words) > 2 and "--print" not in words:
            assert DURATION.search(around), line
        if words[0] == "train" and len(words) > 2 and "--data" in words:
            assert DURATION.search(around), line


@pytest.mark.parametrize("page", answers.PAGES, ids=lambda page: page.stem)
def test_tables_are_what_the_records_say(page):
    text = (answers.ROOT / page).read_text("utf-8")
    assert answers.filled_page(text) == text
    assert answers.BLOCK.findall(text)
    assert not re.search(r"^[ \t]+<!--", text, re.MULTILINE)  # would end the item of a list


def test_the_readme_says_what_the_records_say():
    text = " ".join(read("index.md").split())
    times = re.findall(r"^\| static M \| .*\| (.*) \|$", answers.costs_table(), re.MULTILINE)
    low, *_, high = sorted(re.findall(r"[\d.]+", " ".join(times)), key=float)
    assert f"takes {low} to {high} times as long" in text
    points = answers.differences_to_plain(1).values()
    assert {round(change.by_image.mean, 2) for change in points} == {-0.06, -0.11}


@pytest.mark.parametrize("page", PAGES)
def test_pictures_have_both_themes(page):
    shown = re.findall(r"!\[([^\]]+)\]\(([^)#]*assets/[\w-]+)\.svg#([\w-]+)\)", read(page))
    ends = "only-light", "light-mode-only"
    light = {(text, name) for text, name, theme in shown if theme.endswith(ends)}
    dark = {(text, name.removesuffix("-dark")) for text, name, theme in shown if "dark" in theme}
    assert light == dark
    for _, name in light:
        for suffix in ("", "-dark"):
            assert (prose.page_source(page).parent / f"{name}{suffix}.svg").exists()


FUNCTIONS = {
    f"{module.__name__}.{name}": function
    for module in (ns, ns.functional, ns.visualize, ns.testing)
    for name in dir(module)
    if inspect.isfunction(function := getattr(module, name))
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_says_what_it_returns(name):
    function = FUNCTIONS[name]
    if inspect.signature(function).return_annotation is not None:
        assert re.search(r"\bReturns:\n", inspect.getdoc(function)), name
