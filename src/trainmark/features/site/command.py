"""`trainmark site`: a folder of results as a static web site."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path

from trainmark.analysis.price_list import load_price_list
from trainmark.cli.terminal import mark_result_saved, print_status, show
from trainmark.features.site import contents
from trainmark.features.site.build import build
from trainmark.record.language import LANGUAGES, locale_language

NAME = "site"
GROUP = "Publish"
HELP = "Make a static web site of a folder of records and pages."
EXAMPLES = """\
  trainmark site results --out public              records, imported pages, pages in Markdown and MLPerf results
  trainmark site ~/.local/share/trainmark --out public --publish
  trainmark site results --out public --title "Our machines" --without-library --lang zh
  python -m http.server --directory public         or open public/index.html as it is"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="records, pages and MLPerf results, in any folders below it")
    add("--out", type=Path, required=True, metavar="DIR", help="the site's folder; an existing site is replaced")
    add("--title", default="", metavar="TEXT", help="heading of the first page (default: Training results)")
    add("--without-library", action="store_true", help="leave out the published rows that come with trainmark")
    add("--price-file", type=Path, metavar="FILE", help="TOML with the price of a device-hour by device: adds costs")
    add("--publish", action="store_true", help="replace hosts, users, paths and serials, and list what was replaced")
    add("--lang", choices=LANGUAGES, metavar="L", help="en or zh (default: by the locale)")


def run(args: argparse.Namespace) -> int:
    prices = load_price_list(args.price_file) if args.price_file else None
    found = contents.find_contents(args.folder, out=args.out, with_library=not args.without_library)
    for sentence in found.left_out:
        print_status(sentence)
    if args.publish:
        found, replaced = contents.publish_contents(found)
        for sentence in replaced:
            print_status(f"replaced {sentence}")
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    build(found, args.out, heading=args.title, made=made, language=args.lang or locale_language(), prices=prices)
    mark_result_saved()
    show(f"{args.out / 'index.html'}: {len(found.runs)} runs, {len(found.rows)} published rows")
    return 0
