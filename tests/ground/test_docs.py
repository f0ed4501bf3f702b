"""What is printed for people: commands that exist as printed, links that lead somewhere, a README that is read."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer
import typer.main

from lossbench import __version__, api
from lossbench.cli.app import app
from lossbench.cli.screen import manual
from lossbench.proof.covers import rows
from lossbench.report.tables.words import heading, in_words
from lossbench.runs.summary import MEASURES
from lossbench.spec import profile
from lossbench.spec.asking import points
from tests.bench import pictures
from tests.shared import ROOT, python_files

PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "examples/README.md")
]
PAGES += sorted((ROOT / "docs").glob("*.md"))
MENTION = re.compile(r"^(?:sudo )?(?:\.venv/bin/)?lossbench (\S.*)$")
COMMAND = typer.main.get_command(app)
OURS = ("lossbench", "lb")
ACTS = ("--install-completion",)  # as soon as it is read
START = re.compile(r"^(?:\$ |- run: )?(?:sudo )?(?:\.venv/bin/)?lossbench (.*)$")


def commands(page: Path) -> list[str]:
    """Lines of its code blocks that call lossbench, without what is said beside them."""
    out, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        for part in line.strip().split("; ") if inside or line.startswith("    ") else ():
            found = START.match(part.strip())
            if found:
                said = re.split(r"\s{2,}|\s#", found[1])[0].strip()
                out.append(said.split(" | ")[0])
    return out


def mentioned(page: Path) -> list[str]:
    """What calls lossbench between backticks, in sentences and in tables."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    parts = [part for code in re.findall(r"`([^`]+)`", prose) for part in " ".join(code.split()).split(" && ")]
    found = [found[1].replace("\\|", "|").split(" > ")[0] for part in parts if (found := MENTION.match(part))]
    return [line for line in found if line not in ACTS]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


PRINTED = [(page, line) for page in PAGES for line in dict.fromkeys(commands(page))]
MENTIONED = [(page, line) for page in PAGES for line in dict.fromkeys(mentioned(page))]


def test_there_are_commands_to_look_at() -> None:
    """As it was: of commands between backticks, all of examples/README.md among them, none was looked at."""
    assert len(PRINTED) > 50 and len(MENTIONED) > 50
    assert sum(page.parent.name == "examples" for page, _ in MENTIONED) >= 5
    assert any(line.startswith("net up") for page, line in MENTIONED if page.name == "README.md")


def taken(line: str) -> typer.Context:
    """As the command line reads it, without doing it."""
    words = [word for word in shlex.split(line) if word not in ("...", "&&")]
    if "run" in words[:1] and "--" in words:
        words = words[: words.index("--")]  # what is behind it is the user's own
    command = COMMAND
    context = command.make_context("lossbench", words)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return context  # a verb alone shows its help
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None, line
        context = command.make_context(name, rest, parent=context)
    return context


def names_exist(line: str, context: typer.Context) -> None:
    """A suite, a condition and a script that a line names."""
    given = context.params if context.info_name == "run" else {}
    if (suite := given.get("suite")) and re.fullmatch(r"[a-z][a-z0-9-]*", suite):
        assert suite in points.suite_names(), line
    conditions = [given.get("profile"), *re.findall(r"impair\.\d\.profile=([\w-]+)", line)]
    assert {name for name in conditions if name} <= set(profile.names()), line
    for script in re.findall(r"(?:examples|tests)/[\w/]+\.(?:py|sh|toml)", line):
        assert (ROOT / script).exists(), line


@pytest.mark.parametrize(("page", "line"), PRINTED, ids=[f"{page.name}: {line[:60]}" for page, line in PRINTED])
def test_a_printed_command_is_one_that_the_command_line_takes(page: Path, line: str) -> None:
    names_exist(line, taken(line))


@pytest.mark.parametrize(("page", "line"), MENTIONED, ids=[f"{page.name}: {line[:60]}" for page, line in MENTIONED])
def test_a_command_between_backticks_is_one_that_the_command_line_takes(page: Path, line: str) -> None:
    """A verb alone may be spoken of without what it needs."""
    try:
        names_exist(line, taken(line))
    except Exception as error:
        assert type(error).__name__ in ("NoArgsIsHelpError", "MissingParameter") and " -" not in line, error


def is_there(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_blocks_of_python_are_python_and_take_from_lossbench_what_is_there(page: Path) -> None:
    """What they do is seen in tests/cli/test_as_printed.py and tests/runs/test_notebook.py."""
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OURS:
                assert is_there("lossbench", node.attr), node.attr
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lossbench"):
                assert all(is_there(str(node.module), one.name) for one in node.names), ast.unparse(node)


def test_scripts_that_pages_speak_of_are_there() -> None:
    for page in PAGES:
        for path in re.findall(
            r"`(?:python |bash )?((?:tests|examples)/[\w/]+\.\w+)", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_one_version_is_named_everywhere() -> None:
    """As it was: two wheels that don't understand each other were both 0.2.0."""
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    wheels = [
        name for page in PAGES for name in re.findall(r"lossbench-(\d[\d.]+)-py3", page.read_text(encoding="utf-8"))
    ]
    assert f"\nversion: {__version__}\n" in cited and set(wheels) == {__version__}


def test_a_release_is_cited_with_the_date_that_the_changelog_has() -> None:
    """As it was: cited as released on a day, and "not released yet"."""
    top = re.search(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert top is not None and top[1] == __version__
    cited = re.findall(r'^date-released: "(.*)"$', (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited == ([] if top[2] == "not released yet" else [top[2]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """Of its headings, as the site makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_heading_and_stay_on_the_site(page: Path) -> None:
    """As it was: three links left the folder that the site is made of, and were dead there."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        there = (page.parent / target).resolve() if target else page
        if page.parent.name == "docs":
            assert there.is_relative_to(page.parent), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}"


def test_the_page_of_commands_names_choices_and_defaults_and_explains_every_word() -> None:
    """As it was: `--format FORMAT_` without its choices, no default at all, and options of which nothing was said."""
    made = manual.page(COMMAND)
    assert "| `--format FORMAT` |" in made and "One of terminal, markdown, csv, latex, nccl-tests." in made
    assert "| `--time-limit 10m` | Stop the command after this long; off: never. Default: 10m. |" in made
    assert not re.findall(r"^\| `[^|]*\|\s*\|$", made, re.MULTILINE)
    assert not re.findall(r"^\| `[^|]*\| (?:One of|Default)", made, re.MULTILINE)


def test_the_page_of_commands_says_what_help_says() -> None:
    made = manual.page(COMMAND)
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == made, (
        "lossbench schema commands --markdown > docs/commands.md"
    )


def test_the_columns_of_any_program_are_explained_as_they_are_shown() -> None:
    """As it was: "sent mb" and "lost percent", which stand nowhere, without the names that --fail-if wants."""
    told = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([^|]+) \| ((?:`\w+`(?:, )?)+) \|", told, re.MULTILINE)
    named = [name for _, names in lines for name in re.findall(r"`(\w+)`", names)]
    assert [shown for line, _ in lines for shown in line.split(", ")] == [heading(name) for name in named]
    assert named == list(MEASURES)
    assert f"`{in_words('sent_mb')}`" in told


def test_every_variable_of_ours_is_explained() -> None:
    told = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    files = python_files("harness", "workloads", "tests")
    used = {name for path in files for name in re.findall(r"LOSSBENCH_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))}
    assert {name for name in used if name not in told} == set()


def test_every_variable_that_a_rank_gets_is_explained() -> None:
    """As it was: PYTHONUNBUFFERED and PYTHONFAULTHANDLER were not."""
    told = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    source = (ROOT / "harness" / "runs" / "launch" / "environment.py").read_text(encoding="utf-8")
    given = re.findall(r'"([A-Z][A-Z_]+[A-Z])"(?::|\])', source)
    assert len(given) > 20 and [name for name in given if name not in told] == []


def test_every_kind_of_schema_is_named_where_results_are_explained() -> None:
    """As it was: without `campaign`."""
    told = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"`lossbench schema {'|'.join(api.KINDS)}`" in told


def test_the_tutorial_compares_like_with_like() -> None:
    """As it was: a sweep on two hosts with three seeds against four hosts, 5 % and one seed."""
    lines = [re.sub(r" --html \S+", "", line) for line in commands(ROOT / "docs" / "tutorial.md")]
    at = lines.index("compare ddp lossy_ddp")
    last = {name: [line for line in lines[:at] if f"/{name}.py" in line][-1] for name in ("ddp", "lossy_ddp")}
    assert last["ddp"] == last["lossy_ddp"].replace("/lossy_ddp.py", "/ddp.py")


def test_every_picture_is_shown_and_can_be_made_again() -> None:
    """As it was: one was shown nowhere, and of the others nobody knew how they were made."""
    there = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert there == {name for text in texts for name in re.findall(r"\]\((?:docs/)?pictures/([^)]+)\)", text)}
    assert {name for name in there if not name.startswith("notebook-")} == pictures.names()


def test_every_page_is_in_the_sites_contents() -> None:
    listed = set(re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_readme_is_short_and_names_the_papers() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 900 and "arxiv.org/abs/2507.07114" in text and "arxiv.org/abs/1810.07766" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 125


def test_the_table_of_what_is_judged_is_the_one_that_verdicts_carry() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- covers -->\n")[2].partition("<!-- end of covers -->")[0]
    assert shown == rows.tables(), "lossbench schema covers --markdown, between the marks in docs/fidelity.md"
