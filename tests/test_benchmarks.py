"""The benchmarks' own arithmetic, tables and picture. Their measurements are not checked here."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import draw, wire
from benchmarks.__main__ import main
from benchmarks.clients import CLIENTS, load, works_of
from benchmarks.figures import Summary, quantile, ratio, summarize
from benchmarks.job import HEADERS, Job, Meter, WorkSkippedError, job_of
from benchmarks.objects.__main__ import report as object_report
from benchmarks.report import FORMAT, across, between, overview, report
from benchmarks.stage import steps
from benchmarks.topics import report as topic_report
from benchmarks.topics import works as topic_works
from benchmarks.topics.child import RUNS
from benchmarks.usage import cpu_of
from benchmarks.works import GROUPS, WORKS, select

JOB = Job("jsclient", "ordered", 1000, 100, "BENCH", "bench.data", "127.0.0.1", 4222, last=5000)


# --- arithmetic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100)])
def test_quantile_one_of_values(fraction, value):
    assert quantile(range(1, 101), fraction) == value


def test_quantile_edge_cases():
    assert quantile([7], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def run(work, client, number=1, **figures):
    return {"work": work, "client": client, "round": number, "figures": figures}


def test_medians_without_failed():
    runs = [run("ordered", "raw", n, rate=rate, cpu_us=1.0) for n, rate in enumerate((90.0, 100.0, 130.0), 1)]
    runs.append({"work": "ordered", "client": "raw", "round": 4, "error": "it broke"})
    actual = summarize(runs)["ordered"]["raw"]
    assert actual["rate"] == Summary(100.0, 90.0, 130.0)
    assert actual["rate"].spread == pytest.approx(0.2)
    assert actual["cpu_us"].spread == 0.0


def test_a_ratio_needs_both_sides():
    clients = {"raw": {"rate": Summary(10.0, 9.0, 11.0)}, "jsclient": {"rate": Summary(6.0, 6.0, 6.0)}}
    assert ratio(clients, "rate", "jsclient", "raw") == pytest.approx(0.6)
    assert ratio(clients, "rate", "jsclient", "nats-py") is None
    assert ratio(clients, "cpu_us", "jsclient", "raw") is None


# --- works -------------------------------------------------------------------------------------------------------


def test_works_unique_and_callable():
    assert len({work.name for work in WORKS}) == len(WORKS)
    for client in ("raw", "jsclient", "nats-py"):
        kinds = works_of(client)
        expected = {work.kind for work in WORKS if client in work.counts and work.kind != "import"}
        assert expected <= set(kinds), client


def test_works_chosen_once():
    assert [work.name for work in select(["fetch-10", "fetch-*"])] == ["fetch-10", "fetch-500"]
    assert {work.group for work in select(["latency"])} == {"latency"}
    assert select(["all"]) == WORKS
    assert {work.group for work in WORKS} == set(GROUPS)
    with pytest.raises(ValueError, match="no work is called 'fast'"):
        select(["fast"])


@pytest.mark.parametrize("scale", [1.0, 0.37, 0.0001])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_every_fetch_full_whatever_scale(work, scale):
    for count in work.counts.values():
        warm, measured = steps(work, count, scale)
        step = max(work.batch, work.subscriptions)
        assert warm % step == measured % step == 0
        assert 0 < warm <= measured


def test_job_survives_command_line():
    job = replace(JOB, consumers=("warm", "measured"), headers=True)
    assert job_of(json.dumps(job.as_dict())) == job


def test_job_over_tls():
    assert (JOB.url, JOB.tls()) == ("nats://127.0.0.1:4222", None)
    assert replace(JOB, ca="ca.pem").url == "tls://127.0.0.1:4222"


# --- measuring ---------------------------------------------------------------------------------------------------


def test_run_warms_up_first():
    meter = Meter(replace(JOB, consumers=("warm", "measured")))
    seen = []
    for part in meter.parts():
        seen.append((part.start, part.count, part.last, part.consumer))
        part.latencies += [1000 * n for n in range(part.count)]
        part.done(part.count, 5000)
    assert seen == [(4901, 100, 5000, "warm"), (4001, 1000, 5000, "measured")]
    figures = meter.figures()
    assert figures["count"] == 1000
    assert figures["p50_us"] == pytest.approx(499.5, abs=1)
    assert figures["rss_mb"] >= figures["base_mb"] > 0


def test_cpu_of_server_measured(monkeypatch):
    seconds = iter([1.0, 2.0, 2.0, 2.5])  # before and after each part
    monkeypatch.setattr("benchmarks.job.cpu_of", lambda pid: next(seconds))
    meter = Meter(replace(JOB, server=77))
    for part in meter.parts():
        part.done(part.count, 5000)
    assert meter.figures()["server_us"] == pytest.approx(500)


def test_cpu_of_other_process():
    assert cpu_of(os.getpid()) > 0
    assert cpu_of(2**31) == 0.0


def test_published_from_warm_up():
    meter = Meter(replace(JOB, last=0, subscriptions=10))
    lasts = []
    for part in meter.parts():
        lasts.append(part.last)
        part.done(part.count, part.last)
    assert lasts == [10, 110]


@pytest.mark.parametrize(("moved", "last"), [(99, 5000), (101, 5000), (100, 4999)])
def test_run_skips_work_no_figures(moved, last):
    part = next(Meter(JOB).parts())
    with pytest.raises(WorkSkippedError, match="not 100 up to 5000"):
        part.done(moved, last)


def test_run_never_ends_part_no_figures():
    with pytest.raises(WorkSkippedError, match="did not come to its end"):
        list(Meter(JOB).parts())


def test_run_of_little_measured_no_figures():
    meter = Meter(JOB)
    for part in meter.parts():
        part.begin(part.count - 1)
        part.done(part.count, 5000)
    with pytest.raises(WorkSkippedError, match="only 1 of 1000"):
        meter.figures()


def test_figures_of_other_process(tmp_path, monkeypatch):
    program = tmp_path / "program"
    answer = [{"moved": n, "last": 5000, "count": n, "cpu_us": 1.5} for n in (100, 1000)]
    about = {"version": "1.2", "kinds": ["ordered"]}
    lines = f"case $1 in --version) echo '{json.dumps(about)}';; *) echo '{json.dumps(answer)}';; esac"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JSCLIENT_BENCH_GO", str(program))
    monkeypatch.delitem(sys.modules, "benchmarks.clients.on_natsgo", raising=False)
    client = load("nats.go")
    assert client.VERSION == "1.2"
    meter = Meter(JOB)
    client.WORKS["ordered"](JOB, meter)
    assert meter.figures() == {"count": 1000, "cpu_us": 1.5}
    with pytest.raises(WorkSkippedError, match="not 1001 up to 5000"):
        client.WORKS["ordered"](replace(JOB, count=1001), Meter(replace(JOB, count=1001)))


def test_go_program_does_its_works():
    folder = Path(__file__).resolve().parent.parent / "benchmarks" / "clients" / "natsgo"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.go"))
    table = text.partition("var works = map[string]work{")[2].partition("}")[0]
    kinds = set(re.findall(r'"([^"]+)":', table))
    assert kinds == {work.kind for work in WORKS if "nats.go" in work.counts}
    for name, value in HEADERS.items():
        assert f'"{name}":' in text
        assert f'{{"{value}"}}' in text
    fields = set(
        re.findall(r'`json:"(\w+)"` *(?://.*)?\n', text.partition("type Job struct {")[2].partition("}")[0])
    )
    assert fields < JOB.as_dict().keys()


def test_go_program_checksums():
    folder = Path(__file__).resolve().parent.parent / "benchmarks" / "clients" / "natsgo"
    needed = re.findall(r"([\w./-]+\.\w+/\S+) (v\S+)", (folder / "go.mod").read_text(encoding="utf-8"))
    sums = (folder / "go.sum").read_text(encoding="utf-8")
    assert len(needed) == 6
    for name, version in needed:
        assert f"{name} {version} h1:" in sums
        assert f"{name} {version}/go.mod h1:" in sums


def test_nats_go_without_program(monkeypatch):
    monkeypatch.setenv("JSCLIENT_BENCH_GO", "")
    monkeypatch.delitem(sys.modules, "benchmarks.clients.on_natsgo", raising=False)
    with pytest.raises(ImportError, match="JSCLIENT_BENCH_GO"):
        load("nats.go")


# --- the raw socket ----------------------------------------------------------------------------------------------


def delivered(numbers):
    return b"".join(
        b"MSG bench.data 1 $JS.ACK.BENCH.measured.1.%d.%d.1750000000000000000.0 128\r\n%b\r\n"
        % (70 + n, n, b"x" * 128)
        for n in numbers
    )


@pytest.mark.parametrize("size", [1, 2, 7, 64, 203, 1000])
def test_tail_reads_last_control_line(size):
    data = delivered(range(1, 12))
    tail = wire.Tail(1000)
    results = []
    for at in range(0, len(data), size):
        chunk = data[at : at + size]
        tail.room()[: len(chunk)] = chunk
        results.append(tail.filled(len(chunk)))
    assert results[-1] == (81, 11)
    known = [pair for pair in results if pair != (0, 0)]
    assert all(before <= after for before, after in pairwise(known))
    if size < 64:
        assert {consumer for _, consumer in known} == set(range(1, 12))


def test_messages_with_headers():
    job = replace(JOB, size=3)
    assert wire.message(job, b"acks") == b"PUB bench.data acks 3\r\nxxx\r\n"
    line, _, remainder = wire.message(replace(job, headers=True), b"acks").partition(b"\r\n")
    *words, block, total = line.split()
    assert words == [b"HPUB", b"bench.data", b"acks"]
    assert int(total) == int(block) + 3 == len(remainder) - 2
    assert remainder[: int(block)].startswith(b"NATS/1.0\r\nContent-Type: application/json\r\n")


def test_publish_acks_counted():
    acks = b'MSG acks 1 31\r\n{"stream":"OUT", "seq":41}\r\nMSG acks 1 31\r\n{"stream":"OUT","seq":42,"domain":"x"}\r\n'
    assert wire.acks(acks) == 2
    assert wire.sequence(acks) == 42
    with pytest.raises(RuntimeError, match="10077"):
        wire.acks(b'{"error":{"code":400,"err_code":10077},"stream":"OUT","seq":0}')


@pytest.mark.parametrize(("size", "sends"), [(128, 1), (512 * 1024, 5)])
def test_bursts_of_large_messages_not_joined(size, sends):
    job = replace(JOB, size=size, window=10)
    sent = []

    class Acking:
        def send(self, data):
            sent.append(data)

        def read(self):
            return b'{"seq":5}' * 5

    assert wire.publish_many(Acking(), job, 5) == 5
    assert b"".join(sent) == wire.message(job, b"acks") * 5
    assert len(sent) == sends


# --- tables ------------------------------------------------------------------------------------------------------

ABOUT = {
    "date": "2026-01-02",
    "python": "3.11.7",
    "system": "Linux x86_64",
    "cores": 2,
    "server": "2.15.1",
    "clients": {"raw": "", "jsclient": "1.0", "nats-py": "2.16.0"},
    "loop": "asyncio",
    "storage": "memory",
    "size": 128,
    "headers": False,
    "rounds": 2,
    "scale": 1.0,
    "works": ["table"],
}


def stored(**about):
    runs = []
    for number in (1, 2):
        runs += [
            run("ordered", "raw", number, rate=1_000_000.0, cpu_us=0.06, rss_mb=20.0, base_mb=20.0),
            run(
                "ordered",
                "jsclient",
                number,
                rate=620_000.0,
                cpu_us=1.0 + number / 10,
                rss_mb=30.0,
                base_mb=25.0,
            ),
            run("ordered", "nats-py", number, rate=47_000.0, cpu_us=20.0, rss_mb=60.0, base_mb=25.0),
            run("publish", "jsclient", number, rate=9_000.0, cpu_us=70.0, p50_us=100.4, p99_us=1200.0),
            run("publish", "nats-py", number, rate=5_000.0, cpu_us=126.0, p50_us=150.0, p99_us=2000.0),
            run("slow callback", "jsclient", number, rate=1.0, cpu_us=1.0, rss_mb=35.0, base_mb=32.0),
            run("import", "jsclient", number, cpu_ms=120.4),
            run("import", "raw", number, cpu_ms=9.0),
        ]
    return {"format": FORMAT, "about": {**ABOUT, **about}, "runs": runs}


def cells(text, start):
    """The cells of the line that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_report_has_all_tables():
    text = report(stored())
    head, *tables = text.split("### ")
    assert head.startswith(
        "2026-01-02: Python 3.11.7 (asyncio), nats-server 2.15.1, jsclient 1.0, nats-py 2.16.0;"
    )
    assert head.strip().endswith("medians of 2 rounds.")
    titles = [table.splitlines()[0] for table in tables]
    assert titles == [
        "Rate and CPU",
        "Against nats-py and the limit",
        "Latency, one by one",
        "Memory with a slow handler",
        "Import",
    ]
    assert cells(tables[0], "push, ordered")[1:] == ["1,000k · 0.06", "620k · 1.15", "47k · 20.0"]
    assert cells(tables[0], "`publish`")[1:] == ["", "9.0k · 70.0", "5.0k · 126"]
    assert cells(tables[2], "`publish`")[1:] == ["100 · 1,200 · 70.0", "150 · 2,000 · 126"]
    assert cells(tables[3], "500,000 wait")[1:] == ["35 · 3"]
    assert cells(tables[4], "Python alone")[1:] == ["9"]


def measured(work, client, **figures):
    return run(work, client, rate=50_000.0, cpu_us=10.0, **figures)


def test_workers_beside_nats_py_and_server():
    runs = [
        measured("run/1", "jsclient", server_us=4.0),
        run("run/1", "nats-py", rate=700.0, cpu_us=45.0, server_us=12.5),
        measured("by-hand", "jsclient", server_us=3.0),
        measured("run/1/request", "jsclient", server_us=3.0, p50_us=120.0, p99_us=300.0),
        measured("by-hand/request", "jsclient", server_us=3.0, p50_us=110.0, p99_us=280.0),
    ]
    text = report({"format": FORMAT, "about": ABOUT, "runs": runs})
    assert text.count("### ") == 1
    rates, answers = text.split("From a request to its ack at the server, one by one:")
    assert cells(rates, "`run()`, 1 handler")[1:] == [
        "50k · 10.0 · 4.00",
        "700 · 45.0 · 12.5",
        "4.50x less",
    ]
    assert cells(rates, "`messages()`")[1:] == ["50k · 10.0 · 3.00", "", "–"]
    assert cells(answers, "`run()`, 1 handler")[1:] == ["120 · 300 · 10.0"]
    assert cells(answers, "`messages()`")[1:] == ["110 · 280 · 10.0"]


def test_overview_names_ways_of_go():
    names = ["ordered", "callback", "ordered/headers", "ordered/header", "ordered/512KiB", "ordered/tls"]
    runs = [measured(name, "jsclient") for name in names]
    runs += [measured(name, "nats.go") for name in names if name != "ordered/header"]
    main, *sections = overview({"format": FORMAT, "about": ABOUT, "runs": runs}).split("### ")
    assert cells(main, "msg/s")[-1] == "nats.go by"
    assert cells(main, "push, ordered, `async for`  ")[-1] == "`NextMsg`"
    assert cells(main, "push, callback")[-1] == "callback"
    assert cells(main, "push, ordered, `async for`, `msg.headers[…]`")[-1] == "`NextMsg`, `Header.Get`"
    assert cells(main, "push, ordered, `async for`, `msg.header(…)`")[-2:] == ["50k · 10.0", ""]
    assert [section.splitlines()[0] for section in sections] == ["Payload sizes", "TLS"]
    assert cells(sections[0], "push, ordered, `async for`, 512 KiB")[-1] == "`NextMsg`"
    assert cells(sections[1], "push, ordered, `async for`, TLS")[-1] == "`NextMsg`"


def test_every_row_of_go_says_how():
    assert [work.name for work in WORKS if "nats.go" in work.counts and not work.go] == []


def test_behind_goal_bold():
    tables = report(stored()).split("### ")
    assert cells(tables[2], "push, ordered")[1:] == ["1.15 ±4%", "1.3", "17.4x less", "15x", "0.62", "0.6"]
    assert cells(tables[2], "`publish`")[1:] == ["**70.0 ±0%**", "58", "**1.80x less**", "2.1x", "–", "–"]


def test_other_settings_have_no_goals():
    tables = report(stored(storage="file")).split("### ")
    assert cells(tables[2], "push, ordered")[1:] == ["1.15 ±4%", "17.4x less", "0.62"]
    assert cells(tables[2], "`publish`")[1:] == ["70.0 ±0%", "1.80x less", "–"]


def test_files_compared_by_they_run_with():
    text = across([stored(), stored(python="3.13.0", loop="uvloop")])
    header = cells(text, "CPU µs/msg: jsclient · nats-py")
    assert header[1:] == ["3.11.7, asyncio, memory, 128 B", "3.13.0, uvloop, memory, 128 B"]
    assert cells(text, "push, ordered")[1:] == ["1.15 · 20.0"] * 2


def test_page_refilled():
    page = "before\n<!-- begin tables -->\nold\n<!-- end tables -->\nafter\n"
    once = between(page, "tables", "new\n")
    assert once == "before\n<!-- begin tables -->\n\nnew\n\n<!-- end tables -->\nafter\n"
    assert between(once, "tables", "new") == once
    with pytest.raises(ValueError, match="begin figures"):
        between(page, "figures", "new")


def test_the_pages_have_their_marks():
    root = Path(__file__).resolve().parent.parent
    for page in ("benchmarks/README.md", "docs/explanation/performance.md"):
        assert "x" in between((root / page).read_text(encoding="utf-8"), "tables", "x"), page


# --- topics ------------------------------------------------------------------------------------------------------


def test_topic_works_unique():
    assert len({work.name for work in topic_works.WORKS}) == len(topic_works.WORKS)
    assert {work.kind for work in topic_works.WORKS} == set(RUNS) == set(topic_works.KINDS)


def test_topic_works_chosen():
    assert topic_works.select(["all"]) == topic_works.WORKS
    assert [work.size for work in topic_works.select(["catch-up"])] == [128, 1024]
    assert [work.name for work in topic_works.select(["live", "catch-up/128"])] == ["catch-up/128", "live"]
    with pytest.raises(ValueError, match="no work is called 'fast'"):
        topic_works.select(["fast"])


@pytest.mark.parametrize("scale", [1.0, 0.37, 0.0001])
@pytest.mark.parametrize("work", topic_works.WORKS, ids=lambda work: work.name)
def test_topic_run_has_enough(work, scale):
    for client in work.rows:
        job = topic_works.job(work, client, scale, port=4222)
        assert job_of(json.dumps(job.as_dict())) == job
        if work.stored:
            assert job.warm + job.count <= job.last == topic_works.stored_in(work, scale)


def test_topic_tables_show_goal():
    about = {"date": "2026-11-21", "python": "3.11.7", "system": "Linux", "cores": 2, "server": "2.15.1"}
    about |= {"jsclient": "1", "nats-py": "2", "rounds": 3}
    runs = [
        run("catch-up/128", "pages", rate=400_000.0, cpu_us=2.5),
        run("catch-up/128", "nats-py", rate=60_000.0, cpu_us=12.5),
        run("live", "consumer", rate=100_000.0, cpu_us=5.5, pushed=0.5),
        run("publish", "kit", rate=5_000.0, cpu_us=100.0),
        run("publish", "nats-py", rate=70_000.0, cpu_us=10.0),
        run("publish", "nats-py, linked", rate=5_000.0, cpu_us=150.0),
        {"work": "live", "client": "nats-py", "round": 1, "error": "it broke"},
    ]
    text = topic_report.report({"about": about, "runs": runs})
    assert "jsclient 1, nats-py 2; 2 cores" in text
    assert cells(text, "`pages`") == ["`pages`", "400k", "2.50 (goal 4)", "", "5.00x less"]
    assert cells(text, "`consumer`") == ["`consumer`", "100k", "**5.50** (goal 5)", "50%"]
    assert cells(text, "`kit`")[-1] == "1.50x less", "beside what does the same"


def test_page_marks_of_topics():
    page = Path(__file__).resolve().parent.parent / "benchmarks" / "README.md"
    assert "x" in between(page.read_text(encoding="utf-8"), "topics", "x")


# --- the picture -------------------------------------------------------------------------------------------------


def test_axis_logarithmic_and_holds_values():
    axis = draw.Axis.over([340.0, 1_000_000.0], 100, 300)
    assert axis.low <= 340
    assert axis.high >= 1_000_000
    assert axis.ticks() == [1000, 10_000, 100_000, 1_000_000]
    steps = [b - a for a, b in pairwise(axis.at(tick) for tick in axis.ticks())]
    assert steps == pytest.approx([steps[0]] * 3)
    assert axis.at(1.0) == 100
    assert axis.at(1e9) == 400


@pytest.mark.parametrize("theme", [draw.LIGHT, draw.DARK])
def test_picture_xml_and_says_shows(theme):
    assert set(theme.clients) == set(CLIENTS)
    works = [work for work in WORKS if work.group == "table"]
    image = ET.fromstring(draw.picture(works, summarize(stored()["runs"]), theme, "of <this> & that"))
    texts = [element.text for element in image.iter() if element.text and element.text.strip()]
    assert "of <this> & that" in texts
    for text in ("jsclient", "nats-py", "push, ordered, async for", "620k", "47k", "1.1", "20"):
        assert text in texts, text
    assert "natsrpy" not in texts
    assert "push, callback" not in texts


# --- the program -------------------------------------------------------------------------------------------------


def test_stored_figures_format(tmp_path, capsys):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(stored()))
    assert main(["--report", str(path)]) == 0
    assert "### Rate and CPU" in capsys.readouterr().out
    path.write_text("{}")
    with pytest.raises(SystemExit, match="another format"):
        main(["--report", str(path)])


def test_all_works_are_listed(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        work.group for work in WORKS
    ]


def test_table_of_objects():
    """Large objects by bytes, small ones by their number, and an error in its place."""
    figures = {"mb_s": 250.0, "cpu_ms_mb": 1.5, "us": 700.0, "cpu_us": 300.0, "rss_mb": 44.2}
    runs = [
        {"work": "put", "size": 2**26, "client": "jsclient", **figures},
        {"work": "put", "size": 2**26, "client": "jsclient", **figures, "mb_s": 270.0},
        {"work": "get", "size": 4096, "client": "jsclient", **figures},
        {"work": "get", "size": 4096, "client": "nats-py", "error": "not done"},
    ]
    lines = object_report(runs, 2).splitlines()[4:]
    assert lines == [
        "| put, 64 MiB | jsclient | 260.0 | 1.50 |  |  | 44 |",
        "| get, 4 KiB | jsclient |  |  | 700 | 300 | 44 |",
        "| get, 4 KiB | nats-py | not done | | | | |",
    ]
