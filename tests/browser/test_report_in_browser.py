"""The report's page in a real browser: no overflow, no external resources; light, dark and print."""

import html
import json
import os
import shutil
import subprocess

import pytest

from unisono.callbacks.report.page import render
from unisono.callbacks.report.runs import read_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium in PATH (apt-get install chromium)"),
    pytest.mark.process,
]

FACTS = {
    "title": "Digits with a rather long title that has to wrap on a phone",
    "model": {"name": "digits", "trainable parameters": 1234567, "outputs": ["left", "right"]},
    "strategy": {
        "strategy": "MirroredStrategy",
        "replicas": 4,
        "devices": ["CPU:0", "CPU:1", "CPU:2", "CPU:3"],
    },
    "configuration": {"epochs": 3, "optimizer": "Adam", "optimizer.a_rather_long_name_of_an_option": 0.1},
    "versions": {"python": "3.11"},
    "machine": {"host": "h", "program": "train.py --with=" + 80 * "x"},
    "summary": "Model: digits\n" + 96 * "-",
}
NUMBERS = {"steps_per_epoch": 10, "learning_rate": 0.1}
WORKERS = [{"steps": 10, "seconds": {"compute": 1.0, "input": 0.5}, "memory": {"host": 10**8}}]

METRICS = [f"{side}_a_very_long_name_of_metric_{i}" for side in ("left", "right") for i in range(12)]

PROBE = """<script>addEventListener('load',function(){
var over=[].filter.call(document.querySelectorAll('body *'),function(e){
 return !e.closest('pre,svg,.scroll')
  &&e.getBoundingClientRect().right>document.documentElement.getBoundingClientRect().right+1});
var out=document.createElement('script');out.type='application/json';out.id='answer';
out.textContent=JSON.stringify({over:over.map(function(e){return e.tagName+'.'+e.className}),
 background:getComputedStyle(document.body).backgroundColor,width:innerWidth,
 text:getComputedStyle(document.querySelector('svg text')).fill,
 under:[].map.call(document.querySelectorAll('svg'),function(e){e.scrollIntoView();
  var b=e.getBoundingClientRect(),f=document.elementFromPoint(b.left+b.width*.6,b.top+b.height*.4);
  return f&&f.querySelector('title')?f.querySelector('title').textContent:''}),
 holes:[].filter.call(document.querySelectorAll('.cards,.tiles'),function(e){var ends={};
  [].forEach.call(e.children,function(c){var b=c.getBoundingClientRect();ends[b.top]=Math.max(ends[b.top]||0,b.right)});
  return Object.values(ends).some(function(x){return x<e.getBoundingClientRect().right-1})}).length,
 tall:[].map.call(document.querySelectorAll('.shares td+td'),function(e){return e.getClientRects()[0].height
  >2*parseFloat(getComputedStyle(e).fontSize)+8}),
 gap:Math.min.apply(0,[].map.call(document.querySelectorAll('details'),function(e){
  return e.getBoundingClientRect().top-e.previousElementSibling.getBoundingClientRect().bottom})),
 loaded:performance.getEntriesByType('resource').length,charts:document.querySelectorAll('svg').length});
parent.document.body.appendChild(out)})</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    lines = [{"event": "begin", "time": 100.0, **FACTS}]
    for epoch in range(3):
        losses = {"loss": 1.0 / (epoch + 1), "val_loss": 1.1 / (epoch + 1), "accuracy": 0.5}
        logs = {**losses, "loss_scale": 2.0**15, **dict.fromkeys(METRICS, 0.5 + epoch)}
        where = {
            "epoch": epoch,
            "step": 10,
            "time": 101.0 + epoch,
            "logs": logs,
            "gradient_norm": 1.0 + epoch,
            **NUMBERS,
        }
        extra = {"steps": 10, "rows_per_step": 32, "elapsed": 2.0, "workers": WORKERS}
        lines.append({"event": "epoch", **where, **extra})
    lines.append({"event": "end", "time": 105.0, "how": "finished"})
    path = tmp_path_factory.mktemp("report") / "report.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return render([read_run(path)])


def browse(folder, *arguments):
    command = [CHROMIUM, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium does not run as root otherwise; the page is ours
    command += [f"--user-data-dir={folder / 'profile'}", *arguments, (folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


def ask(page, folder, width=0, *arguments):
    """The probe's result in a window 1280 pixels wide, or in a frame of any other `width`."""
    page = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    page = page.replace("</head>", PROBE + "</head>")
    if width:
        size = f"width:{width}px;height:900px"
        page = f'<html><body><iframe style="{size}" srcdoc="{html.escape(page)}"></iframe></body></html>'
    (folder / "page.html").write_text(page)
    dom = browse(folder, "--window-size=1280,900", "--dump-dom", "--virtual-time-budget=2000", *arguments)
    return json.loads(dom.split('id="answer">')[1].split("</script>")[0])


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_page_at_any_width_has_no_part_beyond_the_edge(page, tmp_path, width):
    answer = ask(page, tmp_path, width)
    assert answer["over"] == []
    assert answer["loaded"] == 0 and answer["charts"] >= 5 and answer["width"] == width


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_lines_of_cards_have_no_hole(page, tmp_path, width):
    answer = ask(page, tmp_path, width)
    assert answer["holes"] == 0 and answer["gap"] >= 10


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_shows_its_values_under_the_pointer_and_times_stay_in_one_line(page, tmp_path, width):
    answer = ask(page, tmp_path, width)
    assert len(answer["under"]) >= 5 and not [each for each in answer["under"] if ", step " not in each]
    assert any("training: " in each and "validation: " in each for each in answer["under"])
    assert len(answer["tall"]) >= 4 and not any(answer["tall"])


def test_page_follows_the_reader_into_the_dark(page, tmp_path):
    light = ask(page, tmp_path)
    dark = ask(page, tmp_path, 0, "--blink-settings=preferredColorScheme=0")
    assert (light["background"], light["text"]) == ("rgb(255, 255, 255)", "rgb(93, 103, 114)")
    assert (dark["background"], dark["text"]) == ("rgb(20, 23, 27)", "rgb(154, 165, 177)")


def test_page_can_be_printed_and_photographed(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    browse(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    browse(tmp_path, f"--screenshot={tmp_path / 'page.png'}", "--window-size=1280,900")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and len(pdf) > 10_000
    assert (tmp_path / "page.png").stat().st_size > 20_000
