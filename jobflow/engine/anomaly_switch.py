"""The switch of anomaly detection, `flow.autograd.set_detect_anomaly`."""

from __future__ import annotations

import threading


class Anomalies(threading.local):
    """The anomaly detection of a Python thread, for eager operations and for programs that the thread runs.

    Eager operations record the user's line.  An error for NaN names the line.
    """

    enabled = False
    check_nan = True


anomalies = Anomalies()
