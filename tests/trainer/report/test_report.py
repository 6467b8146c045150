"""The page: self-contained HTML with the configuration and the course of a run, also after failures."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from watched_run import PLAIN, drive, end, evaluation_of, info, step_of

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.job import job_of
from jobflow.engine.session import current_session
from jobflow.trainer.chrome_trace import Tracing
from jobflow.trainer.figures import figures_of
from jobflow.trainer.history import History
from jobflow.trainer.report import Report, leaves, where_time_went
from jobflow.trainer.units import size_text

#: tags that hold nothing: in HTML they are not closed, in a picture they close themselves
VOID, CLOSED = {"meta", "input"}, {"path", "use", "rect", "g"}


class Reader(HTMLParser):
    """A parser of a page's text by section; AssertionError for unbalanced tags, external references, and scripts that the policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.sections: dict[str, list[str]] = {}
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.policy = ""
        self.data: list[Any] = []
        self._is_data = False
        self._here = ""
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert tag not in ("link", "iframe", "img") and "src" not in attributes and not any(name.startswith("on") for name in attributes)
        if tag == "a":
            target = str(attributes["href"])
            assert not urlsplit(target).scheme and not urlsplit(target).netloc, target
            self.anchors.append(target[1:]) if target.startswith("#") else self.links.append(target)
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(attributes["content"])
        if tag == "script":
            self._is_data = attributes.get("type") == "application/json"
        if tag == "section":
            self._here = str(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in CLOSED, tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag
        if tag == "section":
            self._here = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self._is_data:
                self.data.append(json.loads(data))
            else:
                assert f"'sha256-{base64.b64encode(hashlib.sha256(data.encode()).digest()).decode()}'" in self.policy
            return
        self.sections.setdefault(self._here, []).append(data)

    def words(self, section: str) -> str:
        return " ".join(" ".join(self.sections.get(section, [])).split())


@pytest.fixture(scope="module")
def page_of_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reader]:
    """Return the page of a successful run."""
    notices: list[str] = []
    folder = tmp_path_factory.mktemp("run")
    report, run = Report(announce=notices.append), info(folder / "out")
    drive(report, run)
    saved = folder / "out" / "checkpoints" / "step-00000080"
    saved.mkdir(parents=True)
    (saved / "data").write_bytes(bytes(2048))
    report.on_checkpoint(run, folder / "out" / "checkpoints" / "step-00000040")
    report.on_checkpoint(run, saved)
    end(report, run)
    assert notices == [f"report: {folder / 'out' / 'report.html'}"]
    text = (folder / "out" / "report.html").read_text(encoding="utf-8")
    return text, Reader(text)


def test_a_page_stands_alone_and_is_whole(page_of_run: tuple[str, Reader]) -> None:
    text, page = page_of_run
    assert (
        page.anchors
        == [name for name in page.sections if name]
        == [
            "result",
            "curves",
            "time",
            "checkpoints",
            "files",
            "configuration",
            "environment",
        ]
    )
    assert not re.search(r"(?:src|url|@import|href)\s*[=(]\s*[\"']?\s*(?:https?:)?//", text), "nothing is fetched"
    assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text and "overflow-x:auto" in text
    assert "digits & <letters> done" in page.words("") and "<letters>" not in text
    assert "default-src 'none'" in page.policy and not re.search(r"\bnan\b|\binf\b|None", text.split("</style>")[1].split("/*! uPlot")[0])


def test_result_time_and_checkpoints(page_of_run: tuple[str, Reader]) -> None:
    _, page = page_of_run
    result, time = page.words("result"), page.words("time")
    assert "steps 120 of 120; 3 epochs" in result and "1,600 samples/s" in result
    assert "validation accuracy 96.5 % best 96.5 % at step 120" in result
    assert "median 10.0 ms" in time and "waiting for data" in time
    assert "40 checkpoints/step-00000040 removed by retention 80 checkpoints/step-00000080 2.0 KiB" in page.words("checkpoints")


def test_every_value_of_the_configuration_has_its_place(page_of_run: tuple[str, Reader]) -> None:
    _, page = page_of_run
    words = page.words("configuration")
    for key, _ in leaves(PLAIN):
        assert key in words
    for expected in ("optimizer.lr 0.001 --set optimizer.lr=0.001", "model.builder models:lenet run.yaml:4", "name digits & <letters> base.yaml:2"):
        assert expected in words
    assert (
        "model.layers.1.dense.units 4 run.yaml:9" in words and "model.layers.0.dense.units 8 default" in words and "optimizer.clip_norm null" in words
    )


def test_pictures_show_what_was_measured(page_of_run: tuple[str, Reader]) -> None:
    text, page = page_of_run
    assert all(name in page.words("curves") for name in ("loss", "accuracy", "learning rate", "samples per second", "train", "validation"))
    assert text.count("<svg") == 6 and len(re.findall(r"<title>step \d+: [\d.]+</title>", text)) == 6, (
        "five charts and the times of steps; three evaluations of two metrics"
    )
    (data,) = page.data
    charts = {chart["title"]: chart for chart in data["charts"]}
    assert [*charts] == ["loss", "accuracy", "learning rate", "samples per second", "step time (ms)"]
    assert [(one["name"], len(one["x"])) for one in charts["loss"]["series"]] == [("train", 120), ("validation", 3)]
    assert charts["loss"]["log"] and charts["accuracy"]["share"] and charts["learning rate"]["zero"]
    assert charts["step time (ms)"]["series"][0]["x"][:2] == [2, 3] and set(charts["step time (ms)"]["series"][0]["y"]) == {10}


def test_files_are_links_relative_to_the_page(tmp_path: Path) -> None:
    odd = 'metrics <b>"&# javascript:.txt'
    for path, folder in ((None, ""), (tmp_path / "pages" / "page.html", "../out/")):
        report, run = Report(path), info(tmp_path / "out")
        run.output.mkdir(exist_ok=True)
        for name in (odd, "curves.png", ".hidden"):
            (run.output / name).touch()
        report.on_start(run)
        end(report, run)
        page = Reader((path or run.output / "report.html").read_text())
        assert [unquote(link) for link in page.links[1:]][:2] == [f"{folder}curves.png", f"{folder}{odd}"], page.links
        assert all((report_folder(path, run) / unquote(link)).exists() for link in page.links) and odd in page.words("files")


def report_folder(path: Path | None, run: Any) -> Path:
    return run.output if path is None else path.parent


def test_names_from_users_are_text(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><!--"
    report, run = Report(tmp_path / "page.html"), info(tmp_path)
    run = replace(run, name=name)
    report.on_start(run)
    report.on_step(run, step_of(1, metrics={name: 1.0}))
    report.on_evaluation(
        run, replace(evaluation_of(1), metrics={f"validation/{name}": 0.5}, tables={name: np.eye(2, dtype=int)}, classes=[name, "<i>"])
    )
    end(report, run, message=name)
    page = Reader((tmp_path / "page.html").read_text())
    assert any(name.rpartition("/")[2] in chart["title"] for chart in page.data[0]["charts"]) and page.words("result").count(name) > 2


@pytest.mark.parametrize(
    ("stopped", "word"), [("early", "stopped early"), ("interrupt", "interrupted"), ("terminated", "terminated"), ("nan", "not finite")]
)
def test_other_endings_are_named(tmp_path: Path, stopped: str, word: str) -> None:
    report, run = Report(tmp_path / "page.html"), info(tmp_path, first=45)
    report.on_start(run)
    end(report, run, stopped=stopped, message="because of this & that")
    page = Reader((tmp_path / "page.html").read_text())
    assert word in page.words("") and "because of this & that" in page.words("result") and "45 of 120" in page.words("result")


@pytest.mark.parametrize("last", [0, 2])
def test_the_page_of_a_failed_run_has_the_reason(tmp_path: Path, last: int) -> None:
    report, run = Report(tmp_path / "page.html"), info(tmp_path)
    report.on_start(run)
    for number in range(1, last + 1):
        report.on_step(run, step_of(number))
    report.on_exception(run, ValueError("the <disk> is full"))
    report.on_exception(run, ValueError("another"))
    page = Reader((tmp_path / "page.html").read_text())
    assert "failed" in page.words("") and "ValueError: the <disk> is full" in page.words("result")
    assert ("time" in page.sections) == (last > 0)


def test_the_parts_of_the_time_add_up(tmp_path: Path) -> None:
    history, run = History(), info(tmp_path)
    history.on_start(run)
    history.began, clock = 100.0, 107.0
    for number in range(1, 11):
        history.on_step(run, step_of(number, seconds=0.5, waited=0.1))
        history.first = clock
    history.on_evaluation(run, evaluation_of(10))
    history.latest = clock + 9 * 0.5 + 0.05 + 2.0
    parts = dict(where_time_went(history))
    assert sum(parts.values()) == pytest.approx(history.latest - 100.0)
    assert parts["start and first step"] == 7.0 and parts["waiting for data"] == pytest.approx(1.0)
    assert parts["saving and other"] == pytest.approx(2.0) and parts["evaluation"] == 0.05


def test_an_unwritable_page_does_not_fail_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("no folder")
    notices: list[str] = []
    run = info(tmp_path / "file" / "out")
    report = Report(announce=notices.append)
    drive(report, run, last=3)
    end(report, run)
    assert notices == []
    output = capsys.readouterr().err
    assert f"jobflow: {tmp_path / 'file' / 'out' / 'report.html'} could not be written: " in output and "curves.png could not be written: " in output


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Any, Tracing]]:
    flow.config.cpu_device_num(2)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 6)), labels: tp.Numpy.Placeholder((8,), dtype=flow.int64)) -> tp.Numpy:
        first = flow.layers.dense(x, 16, activation=flow.nn.relu, name="first")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.layers.dense(first, 4, name="second"))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    tracing = Tracing(tmp_path / "trace.json", first=2, steps=2)
    for step in range(1, 5):
        tracing.before(step)
        train(np.ones((8, 6), np.float32), np.zeros(8, np.int64))
        tracing.after(step)
    yield train, tracing


def test_memory_communication_and_profile_are_of_the_job(tmp_path: Path, traced: tuple[Any, Tracing]) -> None:
    train, tracing = traced
    session, job = current_session(), job_of(train)
    compiled = session.compiled(job, job.declared_shapes(session))
    report, run = Report(tmp_path / "page.html", traced=lambda: tracing.traced), info(tmp_path, compiled=lambda: compiled)
    drive(report, run)
    end(report, run)
    page = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    figures = figures_of(compiled.programs, io_buffers=True, target=session.target())
    assert size_text(figures.largest) in page.words("memory") and "optimizer state" in page.words("memory")
    assert figures.ranks[0].sent > 0 and size_text(figures.ranks[0].sent) in page.words("communication")
    assert all(change.route in page.words("communication") and change.tensors in page.words("communication") for change in figures.changes)
    assert "Slowest ops" in page.words("time") and "matmul" in page.words("time") and "trace.json" in page.words("time")
    assert f"parameters {6 * 16 + 16 + 16 * 4 + 4}" in page.words("result")
