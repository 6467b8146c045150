"""The launcher of several ranks: `python -m jobflow.distributed.launch --nproc_per_node 2 script.py`, or `jobflow launch ...`.

Each rank is a process with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK in its environment.  Ranks connect by these variables, so a
program may run on several nodes with one launcher on each.  No mpiexec is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from jobflow.core.command_line import whole
from jobflow.core.errors import ConfigError, JobflowError
from jobflow.distributed.output import Screen
from jobflow.distributed.processes import Processes, end_service, say
from jobflow.runtime.world.environment import LAUNCHER, LOCAL_SIZE, inherited
from jobflow.runtime.world.rank_authentication import job_secret
from jobflow.runtime.world.rendezvous import listen, start_service
from jobflow.runtime.world.service.authentication import SECRET, new_secret

DESCRIPTION = """\
Start a program as several ranks on this node, and end all of them when one fails.

Every line of output is prefixed with the rank.  The first rank that fails ends all others, its traceback is
shown last, and its exit code is passed on (128 + n for signal n)."""

EXAMPLES = """\
examples:
  jobflow launch --nproc_per_node 2 train.py --epochs 3
  jobflow launch --nproc_per_node 2 -m package.train --epochs 3

  two nodes with two ranks each; 192.168.1.1 is node 0:
    jobflow launch --nnodes 2 --node_rank 0 --nproc_per_node 2 --master_addr 192.168.1.1 --master_port 7788 train.py   # on node 0
    jobflow launch --nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr 192.168.1.1 --master_port 7788 train.py   # on node 1

  and in both terminals the same secret, by which the ranks authenticate each other:
    export JOBFLOW_SECRET=$(cat secret)      # written by: python -c "import secrets; print(secrets.token_hex())" > secret

  python -m jobflow.distributed.launch takes the same options."""

ADDRESS, ADDRESS_6, PORT = "127.0.0.1", "::1", 29500
#: seconds between SIGTERM and SIGKILL
GRACE = 1.0


def fill(into: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the launcher's options to a parser."""
    into.description, into.epilog = DESCRIPTION, EXAMPLES
    into.formatter_class = argparse.RawDescriptionHelpFormatter
    many = whole(1)
    _add(into, "--nproc_per_node", type=many, default=1, metavar="N", help="ranks on this node (default 1)")
    _add(into, "--nnodes", type=many, default=1, metavar="N", help="nodes; a launcher runs on each (default 1)")
    _add(into, "--node_rank", type=whole(0), default=0, metavar="R", help="number of this node, from 0 (default 0)")
    _add(into, "--master_addr", metavar="A", help=f"address of node 0 (default {ADDRESS}, or {ADDRESS_6} without IPv4; needed for several nodes)")
    _add(into, "--master_port", type=whole(1, 65535), metavar="P", help=f"a free port there (default: any on one node, {PORT} on several)")
    _add(into, "--no_python", action="store_true", help='"script" is any program, run without python')
    _add(into, "--logdir", type=Path, metavar="DIR", help="also write the output of rank N to DIR/rank_N/stdout and stderr")
    _add(into, "--redirect_stdout_and_stderr", action="store_true", help='write the output to these files only (DIR is "log" without --logdir)')
    into.set_defaults(foreign=dict.fromkeys(("-n", "-np", "--np", "--ranks", "--nproc"), "--nproc_per_node"))
    _explain_missing_program(into)
    into.add_argument("--grace", type=float, default=GRACE, metavar="S", help=f"seconds between SIGTERM and SIGKILL (default {GRACE:g})")
    add_program(into)
    return into


def _explain_missing_program(into: argparse.ArgumentParser) -> None:
    """Add a hint to the error of a command line without a program."""
    fail = into.error

    def error(message: str) -> NoReturn:
        missing = "arguments are required: script" in message
        fail(f"there is no program; write it after the options, such as: {into.prog} --nproc_per_node 2 train.py" if missing else message)

    into.error = error  # type: ignore[method-assign]


def add_program(into: argparse.ArgumentParser) -> None:
    """Add a Python program and its arguments to a parser."""
    into.add_argument("-m", "--module", action="store_true", help='"script" is the name of a module, as in python -m')
    into.add_argument("script", help="the program")
    into.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def _add(into: argparse.ArgumentParser, name: str, **options: object) -> None:
    """Add an option under both names, --some_thing and --some-thing."""
    into.add_argument(*dict.fromkeys((name, name.replace("_", "-"))), **options)  # type: ignore[arg-type]


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError if options contradict each other or the program does not exist."""
    if options.node_rank >= options.nnodes:
        raise ConfigError(
            f"--node_rank {options.node_rank} is not a node of --nnodes {options.nnodes}; pass --node_rank from 0 to {options.nnodes - 1}"
        )
    if options.nnodes > 1 and options.master_addr is None:
        raise ConfigError(f"--nnodes {options.nnodes} needs --master_addr; pass the address of node 0 on all nodes")
    if options.module and options.no_python:
        raise ConfigError("-m and --no_python exclude each other, because Python runs a module; omit one of them")
    if options.no_python and shutil.which(options.script) is None:
        raise ConfigError(f"program {options.script!r} was not found in PATH; check its name, or pass its path")
    if not options.no_python:
        check_script(options)


def check_script(options: argparse.Namespace) -> None:
    """Raise ConfigError if the script does not exist, or is a YAML configuration."""
    script, is_command = Path(options.script), options.script == "jobflow"  # in its repository, jobflow is a folder too
    if not options.module and script.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{options.script} is a configuration, not a Python program; to train it on each rank: -m jobflow train {options.script}")
    if options.module or (not is_command and (script.is_file() or (script / "__main__.py").is_file())):
        return
    program, hint = shutil.which(options.script), ""
    if is_command:
        hint = f"; to run a jobflow command on each rank: {' '.join(['-m jobflow', *options.arguments[:1]])}"
    elif program is not None:
        hint = f"; {program} is a program: write --no_python before it"
    elif "/" not in options.script and not options.script.endswith(".py"):
        hint = "; write -m before the name of a module"
    raise ConfigError(f"there is no script {options.script!r} in {Path.cwd()}{hint}")


def command_line(options: argparse.Namespace) -> list[str]:
    """Return the command that each rank runs."""
    python = [] if options.no_python else [sys.executable, "-u", *(["-m"] if options.module else [])]
    return [*python, options.script, *options.arguments]


def environments(options: argparse.Namespace, host: str, port: int, common: dict[str, str]) -> dict[int, dict[str, str]]:
    """Return the environment of each rank of this node, by rank."""
    here = options.nproc_per_node
    fixed = {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(options.nnodes * here),
        LOCAL_SIZE: str(here),
        LAUNCHER: f"{host}:{port}",
    }
    first = options.node_rank * here
    return {first + local: {**common, **fixed, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(here)}


def common_environment(ranks: int) -> dict[str, str]:
    """Return the environment that ranks inherit, without the variables by which another launcher numbers its ranks.

    With several ranks on this node, OMP_NUM_THREADS is 1 unless it is set.
    """
    environment = inherited(os.environ)
    if ranks > 1 and "OMP_NUM_THREADS" not in environment:
        say(f"OMP_NUM_THREADS was not set and is 1 for each of the {ranks} processes; set it to let each use more threads")
        environment["OMP_NUM_THREADS"] = "1"
    return environment


def run(options: argparse.Namespace) -> int:
    """Run the program on the ranks of this node until all have ended, and return the exit code.

    A single rank without log files replaces this process instead.
    """
    check(options)
    host = options.master_addr or loopback()
    size = options.nnodes * options.nproc_per_node
    logdir = options.logdir or (Path("log") if options.redirect_stdout_and_stderr else None)
    common = common_environment(options.nproc_per_node)
    if size == 1 and logdir is None:
        return _alone(command_line(options), environments(options, host, options.master_port or PORT, common)[0])
    secret = new_secret().encode() if options.nnodes == 1 else job_secret()
    common[SECRET] = secret.decode(errors="surrogateescape")
    port, listener = _place(options, host, size, secret)
    # connect to the service last: closing this connection ends the ranks
    screen = Screen(
        [options.node_rank * options.nproc_per_node + i for i in range(options.nproc_per_node)], logdir, options.redirect_stdout_and_stderr
    )
    service, connection = start_service(listener, size, secret) if listener is not None else (None, None)
    processes = Processes(screen, options.grace, connection)
    try:
        return processes.run(command_line(options), environments(options, host, port, common))
    finally:
        screen.close()
        if connection is not None:
            connection.close()
        if service is not None:
            end_service(service)


def loopback() -> str:
    """Return the loopback address of this machine: the IPv4 address if there is one, or else the IPv6 address."""
    for family, address in ((socket.AF_INET, ADDRESS), (socket.AF_INET6, ADDRESS_6)):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return address
    return ADDRESS


def _place(options: argparse.Namespace, host: str, size: int, secret: bytes) -> tuple[int, socket.socket | None]:
    """Return the port at which ranks connect, and a socket that listens there.

    The socket is None if no other rank connects to this node: for a single rank, and on nodes other than node 0.
    """
    port = options.master_port or (PORT if options.nnodes > 1 else 0)
    if size == 1 or options.node_rank > 0:
        return port or PORT, None
    listener = listen(f"{host}:{port}", secret)
    return int(listener.getsockname()[1]), listener


def _alone(words: list[str], environment: dict[str, str]) -> int:
    """Replace this process by the command `words` with this environment, for a job of one rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher and return the exit code; `arguments` defaults to the arguments of the process."""
    options = fill(argparse.ArgumentParser(prog="python -m jobflow.distributed.launch")).parse_args(arguments)
    try:
        return run(options)
    except JobflowError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
