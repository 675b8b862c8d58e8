"""`trainmark explain`: what a number, a phase or another word of the tables means."""

from __future__ import annotations

import argparse
import json

from trainmark.cli.terminal import open_console, screen_options
from trainmark.record.language import LANGUAGES, locale_language
from trainmark.view.glossary import draw_all, draw_one, find_by_translated_name, find_meaning, list_meanings
from trainmark.view.terminal import TerminalWriter

NAME = "explain"
GROUP = "Read"
HELP = "Explain what a number, a phase or another word means."
EXAMPLES = """\
  trainmark explain                       every word, one line each
  trainmark explain p_core                one of them in full
  trainmark explain data_wait
  trainmark explain p_core --lang zh      in Chinese, which a Chinese locale chooses by itself
  trainmark explain 计算吞吐量            by its Chinese name
  trainmark explain p_train --json        for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="?", metavar="WORD", help="a metric, a phase, a doubt's code, or a word such as fix_hp"
    )
    parser.add_argument("--lang", choices=LANGUAGES, help="English or Chinese; by default what the locale asks for")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    named = find_by_translated_name(args.word or "")
    language = args.lang or (named[1] if named else locale_language())
    found = list(list_meanings(language)) if args.word is None else [find_meaning(args.word, language)]
    screen = open_console()
    if args.json:
        documents = [{field: value for field, value in entry._asdict().items() if value} for entry in found]
        document = documents if args.word is None else documents[0]
        screen.file.write(json.dumps(document, indent=2) + "\n")
        return 0
    writer = TerminalWriter(**screen_options(screen))
    if args.word is None:
        draw_all(writer, found, language)
    else:
        draw_one(writer, found[0], language)
    screen.file.write(writer.getvalue())
    return 0
