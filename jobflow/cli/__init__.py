"""The command line: `jobflow COMMAND ...`; command_table.py lists the commands.

The module of a command is imported on use, so `jobflow --help` and `jobflow COMMAND --help` are fast. `main` maps exceptions to the exit codes
in `CODES`.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from jobflow.cli.command_table import COMMANDS, GROUPS, Command
from jobflow.core.errors import ConfigError, JobflowError, did_you_mean, did_you_mean_or, is_installed, is_ours, is_users
from jobflow.core.extras import package_of
from jobflow.core.version import __version__
from jobflow.distributed.output import drop_output
from jobflow.runtime.interrupts import INTERRUPTED, TRACEBACK, forget_interrupt, is_interrupt, shows_traceback
from jobflow.runtime.world.launched import end_job, guarded, say_once

CODES = {
    0: "done",
    1: "an error, which is printed; or a failed check (verify, doctor, ckpt verify)",
    2: "an invalid command line or configuration; nothing was started",
    3: "the loss was not finite",
    75: "stopped by SIGTERM or a time limit, and saved; run the same command again",
    130: "stopped by Ctrl-C; training was saved if it had begun",
    141: "the reader of the output closed the pipe",
}
DESCRIPTION = "Distributed deep learning that one person can read."
EXAMPLES = """\
examples:
  jobflow train configs/lenet_digits.yaml
  mpiexec -n 2 jobflow train configs/lenet_digits.yaml --set optimizer.lr=0.01
  jobflow explain examples/hybrid_mlp.py:train_job --devices 2
  jobflow run --devices 2 examples/lenet_digits.py
  jobflow doctor"""


class Top(argparse.ArgumentParser):
    """The parser of the program `jobflow`, with a help text that groups the commands."""

    def format_help(self) -> str:
        """Return the help text: usage, commands by group, options, examples and exit codes."""
        width = max(map(len, COMMANDS))
        groups = [f"{title}:\n" + "".join(f"  {c.name:<{width}}  {c.help}\n" for c in group) for title, group in GROUPS.items()]
        options = "options:\n  -h, --help     show this; `jobflow COMMAND --help` shows the options of a command\n"
        options += f"  --version      print the version\n  --traceback    show where an error was raised; {TRACEBACK}=1 does so too\n"
        codes = "exit codes:\n" + "".join(f"  {code:<4} {meaning}\n" for code, meaning in CODES.items())
        return "\n".join(["usage: jobflow COMMAND ...\n", f"{DESCRIPTION}\n", *groups, options, f"{EXAMPLES}\n", codes])


def parser(filled: Iterable[Command]) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the commands in `filled` get their options, which imports their modules."""
    top = Top(prog="jobflow", usage="jobflow COMMAND ...", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"jobflow {__version__}")
    _add_traceback(top)
    of_commands = top.add_subparsers(prog="jobflow", dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)
    filled = set(filled)
    for command in COMMANDS.values():
        into = of_commands.add_parser(command.name, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter)
        if command in filled:
            module = command.load()
            module.fill(into)
            _add_traceback(into)
            into.set_defaults(run=module.run, parser=into)
    return top


def _add_traceback(into: argparse.ArgumentParser) -> None:
    into.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help="show where an error was raised")


def chosen(words: Sequence[str]) -> str | None:
    """Return the name of the command, which is the first word that is not an option; None if there is no such word."""
    return next((word for word in words if not word.startswith("-")), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, one of `CODES`.

    `arguments` defaults to the arguments of the process. SystemExit of argparse is not caught.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    shown = "--traceback" in words or shows_traceback()
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        return _interrupted(error, shown)
    except BrokenPipeError:
        drop_output()
        return 141
    except JobflowError as error:
        return _failed(error, f"{_of_cause(error)}{error.told}", 2 if isinstance(error, ConfigError) else 1, shown)
    except ModuleNotFoundError as error:
        package = package_of(error.name or "")
        text = _of_users(error) if package is None else f"{package.name} is not installed: {package.command}"
        if text is None:
            raise
        return _failed(error, text, 1, shown)
    except OSError as error:
        if error.filename is None or _lines(error.__traceback__):
            return _others(error, shown)
        return _failed(error, f"{error.filename}: {error.strerror} (--traceback shows where)", 1, shown)
    except Exception as error:  # noqa: BLE001 - errors of jobflow are raised again
        return _others(error, shown)


def _interrupted(error: BaseException, shown: bool) -> int:
    forget_interrupt()
    return _failed(error, "interrupted", INTERRUPTED, shown)


def _others(error: Exception, shown: bool) -> int:
    """Print an error raised by user code, or an interrupt, and return the exit code; re-raise an error of jobflow.

    With `shown`, print the whole traceback of the error.
    """
    if is_interrupt(error):
        return _interrupted(error, shown)
    text = _of_users(error)
    if text is None:
        raise error
    return _failed(error, text, 1, shown)


def _run(words: Sequence[str]) -> int:
    name = chosen(words)
    if name is None:
        top = parser(())
        top.parse_args(words)
        top.print_help()
        return 2
    if name not in COMMANDS:
        raise ConfigError(f'unknown command "{name}"{did_you_mean_or(name, COMMANDS, "`jobflow --help` lists all commands")}')
    options, unknown = parser([COMMANDS[name]]).parse_known_args(words)
    if unknown:
        legal = [option for below in parsers(options.parser) for action in below._actions for option in action.option_strings]
        if "--set" in legal and (misplaced := setting_as_file(options, unknown[0])):
            options.parser.error(misplaced)
        exact, close = (setting_for(unknown[0], words, exactly) if "--set" in legal else "" for exactly in (True, False))
        foreign = getattr(options, "foreign", {}).get(unknown[0].partition("=")[0])
        near = (
            f"; did you mean {foreign}?"
            if foreign
            else exact or did_you_mean(unknown[0].partition("=")[0], legal) or close or "; --help lists the options"
        )
        options.parser.error(f"unknown argument {unknown[0]}{near}")
    return int(options.run(options))


#: attributes of commands that read a configuration, and their names in the usage
FILES = {"config": "FILE", "file": "FILE", "job": "job"}


def setting_as_file(options: argparse.Namespace, following: str) -> str:
    """Return the message for a setting such as `optimizer.lr=0.1` that precedes the file and was read as the file, or "".

    `following` is the first unknown argument, usually the file itself.
    """
    from jobflow.trainer.config.keys import setting_meant

    label, word = next(((label, vars(options)[name]) for name, label in FILES.items() if name in options), ("", ""))
    meant = "" if following.startswith("-") or os.path.exists(word) else setting_meant(word)
    return f"{word} is read as {label}{meant.replace('mean ', f'mean {following} ', 1)}" if meant else ""


def setting_for(unknown: str, words: Sequence[str], exactly: bool) -> str:
    """Suggest `; did you mean --set optimizer.lr=3?` for the unknown argument `--lr 3` or `optimizer.lr=3`; "" without a matching key.

    `words` are all arguments. With `exactly`, only an equal key or synonym matches.
    """
    from jobflow.trainer.config.keys import place_meant, setting_meant

    if not unknown.startswith("--"):
        return setting_meant(unknown) if exactly else ""
    option, sign, value = unknown.partition("=")
    if not sign:
        after = words[words.index(unknown) + 1 :][:1]
        value = next((word for word in after if not word.startswith("--")), "...")
    place = place_meant(option.lstrip("-"), exactly)
    return f"; did you mean --set {place}={value}?" if place else ""


def parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and, recursively, its subparsers."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def _failed(error: BaseException, message: str, code: int, shown: bool) -> int:
    """Print `message`, or with `shown` the whole traceback of the error, and return the exit code.

    Only the first of several ranks prints. An error on one rank ends all ranks; after a wrong command line, each rank exits with the code.
    """
    text = "".join(traceback.format_exception(error)).rstrip() if shown else message
    started = guarded()
    if started is None:
        print(text, file=sys.stderr)
    elif code in (1, INTERRUPTED):
        end_job(error, started, text)
    else:
        say_once(text, started)
    return code


# Errors show the lines of user code. Lines of jobflow are added with --traceback.

_HEAD = "Traceback of your code (--traceback adds jobflow's lines):\n"


def _of_users(error: BaseException) -> str | None:
    """Format an error with the traceback lines of user code only; return None for an error of jobflow."""
    frames = _lines(error.__traceback__)
    if not frames:
        return None
    return f"{_HEAD}{''.join(frames)}{''.join(traceback.format_exception_only(error)).rstrip()}"


def _of_cause(error: BaseException) -> str:
    """Return the traceback lines of user code that caused an error, as a prefix of the message; "" without such lines."""
    cause = error.__cause__
    frames = _lines(cause.__traceback__) if cause is not None else []
    return f"{_HEAD}{''.join(frames)}" if frames else ""


def _lines(trace: TracebackType | None) -> list[str]:
    """Format the frames of user code in a traceback, with the frames of other packages that user code calls.

    Frames of jobflow are omitted, and so are frames of the packages that jobflow calls.
    """
    theirs, called_by_user = [], False
    for frame, line in traceback.walk_tb(trace):
        called_by_user = not is_ours(frame) and (called_by_user or (is_users(frame) and not is_installed(frame)))
        if called_by_user:
            theirs.append((frame, line))
    return traceback.StackSummary.extract(theirs).format()
