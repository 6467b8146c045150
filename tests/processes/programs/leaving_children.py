"""Forked children of every rank that exit by HOW; then the ranks continue.  Print the exit code of each child, and a sum after it.

leaving_children.py exit|raise|end
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings

import jobflow as flow

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 says of every fork that threads may hang
HOW = sys.argv[1]
P = flow.placement.all("cpu")
x = flow.ones(4, placement=P, sbp=flow.sbp.split(0))
assert x.sum().item() == 4.0
rank = os.getpid()
atexit.register(lambda: os.getpid() != rank and os.write(1, b"what atexit has\n"))  # is called in children too
if os.fork() == 0:
    if HOW == "raise":
        raise SystemExit(5)
    if HOW == "exit":
        sys.exit("7 is not the code of this")
    sys.exit()
print("child", os.waitstatus_to_exitcode(os.wait()[1]), (x * 2).sum().item(), flush=True)
