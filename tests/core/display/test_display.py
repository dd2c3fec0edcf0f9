"""What notebooks show: escaped, bounded, never raising; and `tail` on a page and on a terminal."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import signal
import subprocess
import sys
import threading
import types
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import nbformat
import pytest
from helpers.logs import written
from helpers.waiting import until
from IPython.core.formatters import PlainTextFormatter
from nbclient import NotebookClient

import dlspark
from dlspark import DLSN, DLSNRange, Namespace, Runtime
from dlspark.core.codec.records import LogRecord, Records, records_html
from dlspark.core.display import status, tail
from dlspark.core.display.lag_picture import LagPicture
from dlspark.core.display.picture import MAX_DRAWN, bars, svg
from dlspark.core.display.status import LogPicture, LogStatus, Overview
from dlspark.core.markup import preview
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError

SCRIPT = "<script>alert(1)</script>"


def segment(lssn, records=10, **values):
    known = {"record_count": records, "last_entry": records - 1, "last_slot": 0, **values}
    return SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=0, last_txid=records, **known)


def status_of(*segments, name="orders", owner=None):
    return LogStatus(name, segments, DLSN.INITIAL, len(segments), 0, owner, ())


def record(payload=b"x", number=0):
    return LogRecord(txid=number, payload=payload, dlsn=DLSN(1, number, 0), position=1, flags=0, sequence_id=number)


def images(html):
    """The drawings of a page's images, each of which says in words what it shows."""
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="[^"]+"', html)
    assert len(found) == html.count("<img")
    return [base64.b64decode(one).decode() for one in found]


def tooltips(picture):
    root = ElementTree.fromstring(picture)
    return [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]


# ---------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"plain", "plain"),
        ("Z\u00fcrich".encode(), "Z\u00fcrich"),
        (b"", ""),
        (b"two\nlines \x1b[31mred", r"two\nlines \x1b[31mred"),
        ("turn \u202e around".encode(), r"turn \u202e around"),
        (b"\xff\x00", r"b'\xff\x00'"),
    ],
)
def test_a_payload_is_shown_as_one_line_of_printable_text(payload, shown):
    assert preview(payload) == shown


def test_a_long_payload_is_cut_off_wherever_its_characters_end():
    for size in (101, 399, 400, 401, 1_000_000):
        text = preview("€".encode() * size)
        assert text == f"{'€' * 100}… ({3 * size:,} bytes)"
    assert len(preview(b"\xff" * 1_000_000)) < 130


def test_nothing_that_was_stored_becomes_html():
    shown = [
        records_html([record(SCRIPT.encode())]),
        LogPicture(status_of(segment(1), name=SCRIPT, owner=SCRIPT))._repr_html_(),
        Overview(SCRIPT, [(SCRIPT, SCRIPT), (SCRIPT, status_of(segment(1), owner=SCRIPT))])._repr_html_(),
        status.failure(SCRIPT, ValueError(SCRIPT)),
    ]
    for html in shown:
        assert "<script" not in html
        assert "&lt;script&gt;" in html


# ---------------------------------------------------------------------- positions and records


def test_a_position_says_what_its_numbers_mean():
    assert DLSN(3, 1200, 0)._repr_html_() == "<code>3:1200:0</code> <small>segment 3, entry 1,200, slot 0</small>"
    assert "no record's position" in DLSN.INVALID._repr_html_()


def test_a_range_contains_its_start_and_not_its_end():
    span = DLSNRange.parse("1:5:0..3:0:0")
    assert (span, str(span)) == (DLSNRange(DLSN(1, 5, 0), DLSN(3, 0, 0)), "1:5:0..3:0:0")
    assert DLSN(1, 5, 0) in span
    assert DLSN(3, 0, 0) not in span
    assert "1:5:0" not in span
    assert span._repr_html_() == "<code>1:5:0</code> to before <code>3:0:0</code> <small>over 2 segments</small>"
    assert "in one segment" in DLSNRange.parse("1:5:0..2:0:0")._repr_html_()
    assert "empty range" in DLSNRange.parse("1:5:0..1:5:0")._repr_html_()


@pytest.mark.parametrize("text", ["1:0:0", "1:0:0..", "2:0:0..1:0:0", "a..b"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(CallerError):
        DLSNRange.parse(text)


def test_records_are_a_list_with_a_table_of_its_two_ends():
    records = Records(record(b"%d" % number, number) for number in range(1000))
    assert records[:2] == [record(b"0", 0), record(b"1", 1)]
    assert "2 records" in records[:2]._repr_html_()
    assert records[-1].payload == b"999"
    html = records._repr_html_()
    assert html.count("<tr>") == 52  # head, 25, what is left out, 25
    assert "950 more" in html
    assert ">24<" in html
    assert ">25<" not in html
    assert ">975<" in html
    assert Records()._repr_html_() == "<div><b>0 records</b></div>"
    assert "1 record<" in record()._repr_html_()


# ---------------------------------------------------------------------- the picture


def test_bars_are_as_long_as_segments_have_records():
    placed = bars([segment(1, 100), segment(2, 300), segment(3, 0)], {1: 100, 2: 300, 3: 0})
    widths = [bar.width for bar in placed]
    assert widths[1] - widths[2] == pytest.approx(3 * (widths[0] - widths[2]))
    assert widths[2] > 0
    assert placed[-1].x + widths[-1] == pytest.approx(960)


def test_the_picture_tells_every_state_in_words():
    open_one = SegmentMetadata(ledger_id=104, lssn=4, first_txid=40, in_progress=True)
    partly = segment(2, 10, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=5, min_slot=0)
    picture = svg(
        [segment(1, truncation=TruncationStatus.TRUNCATED), partly, segment(3), open_one], {1: 10, 2: 10, 3: 10}
    )
    assert tooltips(picture) == [
        "4 segments in proportion to their records: 2 completed, 1 in progress, 1 truncated",
        "segment 1, truncated: 10 records, ledger 101",
        "segment 2, truncated in part (50%): 10 records, ledger 102",
        "segment 3, completed: 10 records, ledger 103",
        "segment 4, in progress: still growing, ledger 104",
    ]
    for words in ("1 truncated", "2 completed", "1 in progress", "hatched: hidden by truncation"):
        assert words in picture


def test_a_page_has_the_picture_as_an_image_and_its_numbers_as_a_table():
    html = LogPicture(status_of(segment(1, 100), segment(2, 300)))._repr_html_()
    assert "<svg" not in html
    (drawn,) = images(html)
    assert drawn == LogPicture(status_of(segment(1, 100), segment(2, 300))).svg
    assert 'alt="2 segments in proportion to their records: 2 completed"' in html
    assert "<details><summary>numbers of the segments</summary>" in html
    assert ">300 records</td>" in html


def contrast(one, other):
    """The contrast ratio of two colours (#rrggbb), as accessibility guidelines define it: 1 to 21."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_a_drawing_reads_on_its_own_ground_whatever_the_page():
    """An image sees no colour of the page it is in, nor whether that page is dark."""
    drawn = LogPicture(status_of(segment(1))).svg
    root = ElementTree.fromstring(drawn)
    ground = root.find("{http://www.w3.org/2000/svg}rect")
    left, top, width, height = (float(number) for number in root.get("viewBox").split())
    assert (float(root.get("width")), float(root.get("height"))) == (width, height)
    assert (float(ground.get("x")), float(ground.get("y"))) == (left + 0.5, top + 0.5)
    assert (float(ground.get("width")), float(ground.get("height"))) == (width - 1, height - 1)
    assert contrast(root.get("fill"), ground.get("fill")) >= 7
    assert "currentColor" not in drawn
    assert all(
        contrast(colour, ground.get("fill")) >= 2.9 for colour in re.findall(r'<rect[^>]*fill="(#\w+)"', drawn)[1:]
    )


def test_shown_objects_are_the_same_in_text():
    """IPython's own formatter is asked: a class's `repr` goes before what it inherits for IPython."""
    shown = PlainTextFormatter()
    seen = status_of(segment(1), segment(2))
    assert shown(seen) == shown(LogPicture(seen)) == str(seen)
    assert shown(Overview("dl://x", [("orders", seen), ("sub", "holds other logs")], 3)).splitlines() == [
        "namespace dl://x: 5 names",
        "  orders: 2 segments, 20 records, begins at 1:0:0; no writer",
        "  sub: holds other logs",
        "  and 3 more: namespace.logs() names all",
    ]
    assert shown(LagPicture("query q", "ended", ())) == "query q: ended"


def test_the_hatching_of_a_part_ends_where_the_part_ends():
    partly = segment(1, 100, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=25)
    picture = svg([partly], {1: 100})
    (strokes,) = re.findall(r'<path d="(M[^"]+)"', picture)
    ends = [float(x) for x in re.findall(r"[ML]([\d.]+) ", strokes)]
    assert 230 < max(ends) <= 240
    assert min(ends) >= 0


def test_only_so_many_segments_are_drawn():
    many = [segment(number) for number in range(1, 10_001)]
    picture = svg(many, {one.lssn: 10 for one in many})
    assert len(picture) < 40_000
    assert f"{10_000 - MAX_DRAWN:,} earlier segments" in tooltips(picture)
    assert len(tooltips(picture)) == MAX_DRAWN + 2


def test_a_range_is_pointed_out_above_the_bars():
    segments = [segment(1, 100), segment(2, 100)]
    place = re.compile(r'<path d="M([\d.]+) 13V7H([\d.]+)V13"')

    def marked(text):
        span = DLSNRange.parse(text)
        found = place.search(svg(segments, {1: 100, 2: 100}, mark=(span.start, span.end)))
        return tuple(float(x) for x in found.groups())

    assert marked("1:50:0..2:50:0") == (pytest.approx(240), pytest.approx(720))
    assert marked("1:0:0..9:0:0") == (0, 960)
    assert marked("0:0:0..1:0:0")[0] == 0


def test_sizes_that_are_not_known_are_said_to_be_so():
    picture = LogPicture(status_of(segment(1), segment(2)), "bytes", {2: 4096})
    assert "segment 1, completed: bytes not known, ledger 101" in tooltips(picture.svg)
    assert "segment 2, completed: 4,096 bytes, ledger 102" in tooltips(picture.svg)
    assert "no segments yet" in LogPicture(status_of())._repr_html_()
    assert "1 in progress" in status_of(replace(segment(1), in_progress=True))._repr_html_()


# ---------------------------------------------------------------------- of a cluster


async def test_a_picture_in_bytes_asks_the_ledgers(namespace):
    log = await written(namespace, "sizes", [[b"x" * 1000], [b"y" * 5000]])
    picture = await log.picture("bytes", mark=DLSNRange.parse("1:0:0..2:0:0"))
    assert 1000 < picture.sizes[1] < 2000
    assert 5000 < picture.sizes[2] < 6000
    assert "1:0:0 to before 2:0:0" in tooltips(picture.svg)
    assert str(picture) == str(await log.status())
    with pytest.raises(CallerError, match="no scale of 'inches'"):
        await log.picture("inches")
    with pytest.raises(LogNotFoundError):
        await (await namespace.open_log("missing")).picture()
    assert (repr(log), repr(namespace)) == ("AsyncLog('sizes')", "AsyncNamespace('distributedlog://memory:2181/dl')")


async def test_an_overview_has_logs_with_their_sizes_and_states(namespace):
    await written(namespace, "idle", [[b"1", b"2"], [b"3"]])
    log = await written(namespace, "busy", [[b"1"]])
    async with await log.open_writer("alice"):
        await namespace.create_log("folder/inner")
        found = dict((await namespace.overview()).logs)
        html = (await namespace.overview())._repr_html_()
    assert (found["idle"].records, len(found["idle"].segments)) == (3, 2)
    assert "written by alice" in html
    assert "no writer" in html
    assert found["folder"] == "holds other logs"


async def test_an_overview_ends_in_time_and_says_what_it_did_not_see(namespace, monkeypatch):
    for number in range(status.MAX_LOGS + 5):
        await namespace.create_log(f"log-{number:03d}")
    look, waiting = status.log_status, asyncio.Event()

    async def slow(services, name):
        if name != "log-000":
            await waiting.wait()
        return await look(services, name)

    monkeypatch.setattr(status, "log_status", slow)
    seen = await namespace.overview(0.2)
    assert isinstance(seen.logs[0][1], LogStatus)
    assert {why for _, why in seen.logs[1:]} == {"not seen within 0.2 s"}
    assert (len(seen.logs), seen.more) == (status.MAX_LOGS, 5)
    assert "and 5 more" in seen._repr_html_()


# ---------------------------------------------------------------------- synchronously


@pytest.fixture
def orders(runtime, background_cluster):
    """A log of 30 records in three segments."""
    with Namespace(runtime, runtime.run(background_cluster.connect())) as namespace:
        log = namespace.open_log("orders")
        for part in range(3):
            with log.open_writer() as writer:
                for number in range(10):
                    writer.write(10 * part + number, b"record %d" % (10 * part + number))
        log.namespace = namespace
        yield log


def test_synchronous_objects_show_themselves_by_asking(orders):
    assert "3 segments, 30 records, begins at 1:0:0" in orders._repr_html_()
    assert ">orders</td>" in orders.namespace._repr_html_()
    assert repr(orders) == "Log('orders')"
    assert re.fullmatch(r"Namespace\('distributedlog://.*'\)", repr(orders.namespace))
    with orders.open_reader() as reader:
        assert "record 4" in reader.read_bulk(5)._repr_html_()


def test_what_cannot_be_asked_is_shown_as_the_reason_and_not_raised(orders, monkeypatch):
    missing = orders.namespace.open_log("missing")
    assert "cannot be shown: LogNotFoundError" in missing._repr_html_()

    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(status, "log_status", never)
    html = status.shown(orders._runtime, "log orders", orders._inner.picture, 0.1)
    assert "it took longer than 0.1 s" in html
    orders.namespace.close()
    assert "cannot be shown: AlreadyClosedError" in orders.namespace._repr_html_()
    assert "cannot be shown: AlreadyClosedError" in orders._repr_html_()


def test_a_closed_runtime_is_a_reason_too():
    runtime = Runtime("ended")
    runtime.close()

    async def question():
        raise AssertionError

    assert "AlreadyClosedError" in status.shown(runtime, "log x", question)


# ---------------------------------------------------------------------- tail


def test_in_a_terminal_a_tail_is_a_line_a_record(orders, capsys):
    orders.tail(3)
    assert capsys.readouterr().out.splitlines() == [
        "log orders: DLSN, transaction id, sequence id, bytes, payload",
        "3:0:7  27  27  9  record 27",
        "3:0:8  28  28  9  record 28",
        "3:0:9  29  29  9  record 29",
        "the next record will be at or behind 3:0:10",
    ]


def test_a_tail_follows_until_enough_records_have_come(orders, capsys):
    with orders.open_writer() as writer:
        thread = threading.Thread(target=lambda: orders.tail(0, records=2))
        thread.start()
        txid = 100
        while thread.is_alive():  # it begins at the end, wherever that is by then
            writer.write(txid, b"more")
            writer.commit()
            txid += 1
        thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.endswith("more")]) == 2
    assert lines[-1].startswith("followed as long as asked for; goes on at 4:")


def test_a_tail_ends_when_its_time_is_over_or_the_log_is_sealed(orders, capsys):
    orders.tail(1, seconds=0.05)
    assert "followed as long as asked for; goes on at 3:0:10" in capsys.readouterr().out
    with orders.open_writer() as writer:
        writer.mark_end_of_stream()
    orders.tail(1, records=1000)
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "the log is sealed: nothing more can come"
    assert "record 29" in out[-2]


def test_an_interrupt_ends_a_tail_without_an_error_and_closes_its_reader(orders, capsys, monkeypatch):
    opened = []
    begin = tail.TailReader.open.__func__

    async def remembered(cls, *args):
        opened.append(await begin(cls, *args))
        return opened[-1]

    def stop(self, records):
        """What Ctrl-C does: a signal to the main thread, which soon waits for records that do not come."""
        threading.Thread(target=signal.pthread_kill, args=(threading.main_thread().ident, signal.SIGINT)).start()

    monkeypatch.setattr(tail.TailReader, "open", classmethod(remembered))
    monkeypatch.setattr(tail.TerminalScreen, "add", stop)
    orders.tail(1, seconds=60)
    assert capsys.readouterr().out.splitlines()[-1] == "interrupted"
    assert opened[0]._reader.closed


def test_more_than_a_page_or_less_than_nothing_cannot_be_followed(orders):
    for arguments in ({"last": -1}, {"last": 1001}, {"last": True}, {"seconds": -1}, {"seconds": float("nan")}):
        with pytest.raises(CallerError):
            orders.tail(**arguments)
    with pytest.raises(CallerError):
        orders.tail(records=-1)
    with pytest.raises(LogNotFoundError):
        orders.namespace.open_log("missing").tail()


async def test_an_asynchronous_tail_of_an_empty_log_begins_with_what_comes(namespace, capsys):
    await namespace.create_log("empty")
    log = await namespace.open_log("empty")
    following = asyncio.ensure_future(log.tail(5, records=1))
    async with await log.open_writer() as writer:
        writer.write(1, b"first")
        await writer.commit()
        await following
    assert "1:0:0  1  0  5  first" in capsys.readouterr().out


async def test_a_cancelled_tail_says_so_and_closes_its_reader(namespace, capsys):
    log = await written(namespace, "waits", [[b"only"]])
    following = asyncio.ensure_future(log.tail(1, seconds=60))
    seen = []
    await until(lambda: seen.append(capsys.readouterr().out) or "only" in "".join(seen))
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert capsys.readouterr().out.splitlines()[-1] == "interrupted"
    assert all(one.closed for one in log._open)


def test_control_sequences_do_not_reach_a_terminal():
    out = io.StringIO()
    screen = tail.TerminalScreen("log\x1b[2J", out)
    screen.add([record(b"\x1b]0;title\x07")])
    assert "\x1b" not in out.getvalue()


class Page:
    """A notebook's kernel, as far as `tail` looks at it."""

    def __init__(self, monkeypatch):
        self.pages = []
        display = types.ModuleType("IPython.display")
        display.display = self.display
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, shown, *, display_id):
        assert display_id is True
        self.pages.append(shown)
        return types.SimpleNamespace(update=self.pages.append)


def test_in_a_notebook_a_tail_is_one_table_that_changes(orders, monkeypatch, capsys):
    page = Page(monkeypatch)
    orders.tail(3)
    first, last = page.pages[0], page.pages[-1]
    assert "0 records seen; reading" in first._repr_html_()
    for shown in (last._repr_html_(), str(last)):
        assert "3 records seen; the next record will be at or behind 3:0:10" in shown
        assert "record 29" in shown
        assert "record 26" not in shown
    assert capsys.readouterr().out == ""


def test_a_page_is_not_drawn_more_often_than_eyes_can_follow(monkeypatch):
    page, now = Page(monkeypatch), [0.0]
    screen = tail.NotebookScreen("orders", 3, lambda: now[0])
    for number in range(1000):
        screen.add([record(b"%d" % number, number)])
    assert len(page.pages) == 2
    now[0] = 0.3
    screen.add([])  # nothing new, but what came meanwhile is shown now
    assert "1,000 records seen; following" in page.pages[2]._repr_html_()
    screen.add([])
    assert len(page.pages) == 3
    screen.end("over")
    assert page.pages[3]._repr_html_().count("<tr>") == 1 + 10


def test_ipython_is_not_imported_by_anything_here():
    code = (
        "import sys, dlspark; dlspark.Namespace, dlspark.AsyncNamespace\n"
        "from dlspark.core.display.tail import in_notebook\n"
        "assert not in_notebook() and 'IPython' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert dlspark.Log.tail.__doc__


NOTEBOOK = """
from pathlib import Path
from dlspark import Namespace, Runtime
from dlspark.testing.cluster import InProcessCluster
runtime = Runtime()
cluster = InProcessCluster(Path("nodes"), nodes=3)
runtime.run(cluster.start())
namespace = Namespace(runtime, runtime.run(cluster.connect()))
log = namespace.open_log("orders")
with log.open_writer() as writer:
    writer.write(1, b"<b>one</b>").result()
"""


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_a_real_kernel_shows_the_picture_and_the_tail(tmp_path):
    cells = [
        NOTEBOOK,
        "log",
        "log.tail(seconds=0.1)",
        "namespace.close(); runtime.run(cluster.stop()); runtime.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (picture,), (page,) = notebook.cells[1].outputs, notebook.cells[2].outputs
    (drawn,) = images(picture["data"]["text/html"])
    assert "segment 1, completed: 1 record, ledger 0" in tooltips(drawn)
    assert "1 record seen; followed as long as asked for" in page["data"]["text/html"]
    assert page["data"]["text/plain"].startswith("log orders: 1 record seen; followed as long as asked for")
    assert "&lt;b&gt;one&lt;/b&gt;" in page["data"]["text/html"]
