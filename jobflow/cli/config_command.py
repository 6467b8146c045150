"""`jobflow config`: show, check and describe configurations."""

from __future__ import annotations

import argparse
import json

from jobflow.cli.shared_options import add_settings

EXAMPLES = """\
examples:
  jobflow config show configs/lenet_digits.yaml
  jobflow config show configs/lenet_digits.yaml --set optimizer.lr=0.1 --json
  jobflow config check configs/*.yaml
  jobflow config schema > jobflow.schema.json     # and in a file: # yaml-language-server: $schema=jobflow.schema.json"""


def fill(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = "Show, check and describe configurations; nothing runs.", EXAMPLES
    what = parser.add_subparsers(dest="what", required=True, metavar="what")
    show = what.add_parser("show", help="print a configuration after merging all files and settings, with the origin of every value")
    show.add_argument("file", metavar="FILE", help="a configuration, such as configs/lenet_digits.yaml")
    show.add_argument("--json", action="store_true", help="print JSON with the configuration and the origins")
    check = what.add_parser("check", help="list the problems of configurations")
    check.add_argument("files", metavar="FILE", nargs="+", help="configurations, such as configs/*.yaml")
    for command in (show, check):
        add_settings(command)
    what.add_parser("schema", help="print the JSON Schema of configurations for completion in editors")


def run(options: argparse.Namespace) -> int:
    if options.what == "schema":
        from jobflow.trainer.config.showing import schema

        print(json.dumps(schema(), indent=2))
        return 0
    return _check(options.files, options.settings) if options.what == "check" else _show(options.file, options.settings, options.json)


def _show(file: str, settings: list[str], as_json: bool) -> int:
    from jobflow.trainer.config.loading import load
    from jobflow.trainer.config.showing import show, show_json

    loaded = load(file, settings)
    print((show_json if as_json else show)(loaded), end="")
    return 0


def _check(files: list[str], settings: list[str]) -> int:
    """Check all files and print the valid ones; raise ConfigErrors with the problems of all others at the end."""
    from jobflow.trainer.config import ConfigErrors, Problem, load

    problems: list[Problem] = []
    for file in files:
        try:
            load(file, settings)
            print(f"{file}: valid")
        except ConfigErrors as errors:
            problems += (problem for problem in errors.problems if problem not in problems)
    if problems:
        raise ConfigErrors(problems)
    return 0
