"""Draw what the documentation explains, and the logo: `make drawings` writes the drawings in docs/assets."""

from __future__ import annotations

import pathlib

from boxes import BOLD, DIM, FILLS, MONO, Drawing

from unisono.distribute.pipeline.schedule import SCHEDULES, peak_activations, time_jobs

ASSETS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "assets"


def draw_batch(samples: int = 10, replicas: int = 3) -> Drawing:
    """Draw the way of a batch of `samples` through a step, from the input to the logs."""
    label = f"A batch of {samples} samples is cut for {replicas} replicas, sums and counts come back, and are divided once"
    drawing = Drawing(560, 470, label)
    source = drawing.box(
        "data", 130, 12, 300, "input: arrays, files, tf.data, ...", "read a few batches ahead"
    )
    batch = drawing.box("data", 130, 88, 300, f"global batch: samples 0 to {samples - 1}")
    drawing.arrow(source, batch)
    total = drawing.box(
        "sum", 100, 290, 360, "all-reduce over replicas", "gradients; sums and counts of loss and metrics"
    )
    for replica in range(replicas):
        first, end = (number * samples // replicas for number in (replica, replica + 1))
        lines = (
            f"replica {replica}",
            f"samples {first} to {end - 1}",
            "forward, backward",
            f"loss sum / {samples}",
        )
        each = drawing.box("data", 14 + 180 * replica, 160, 170, *lines)
        drawing.arrow(batch, each)
        drawing.arrow(each, total)
    update = drawing.box("state", 30, 380, 240, "clip, update", "the same on each replica")
    logs = drawing.box("state", 290, 380, 240, "logs = sums / counts", "bar, callbacks, History")
    drawing.arrow(total, update)
    drawing.arrow(total, logs)
    drawing.text(280, 456, "Each sample counts once, however uneven the parts are.", DIM)
    return drawing


def draw_tensor() -> Drawing:
    """Draw a mesh of two replicas times two parts of the model, and a pair of dense layers in one replica."""
    label = "A mesh of 2 x 2 devices: the axis batch divides the samples, the axis model divides the units of a layer"
    drawing = Drawing(640, 560, label)
    drawing.text(345, 24, "axis 'model': which units")
    drawing.text(70, 96, "axis 'batch':")
    drawing.text(70, 115, "which samples")
    for device in range(4):
        batch, model = divmod(device, 2)
        lines = (
            f"device {device}",
            f"samples {8 * batch} to {8 * batch + 7}",
            f"units {128 * model} to {128 * model + 127}",
        )
        drawing.box("data", 150 + 240 * model, 38 + 82 * batch, 210, *lines)
    drawing.frame(140, 32, 470, 84)
    whole = drawing.box("data", 220, 222, 250, "input: 8 x 64, whole on both")
    total = drawing.box("sum", 200, 424, 290, "all-reduce over 'model': sum")
    for part in range(2):
        units = f"{128 * part} to {128 * part + 127}"
        up = drawing.box(
            "state", 40 + 320 * part, 288, 240, f"up, columns {units}", "bias, activation: 8 x 128"
        )
        down = drawing.box("state", 40 + 320 * part, 362, 240, f"down, rows {units}: 8 x 64")
        drawing.arrow(whole, up)
        drawing.arrow(up, down)
        drawing.arrow(down, total)
    output = drawing.box("data", 220, 488, 250, "output: 8 x 64, whole on both")
    drawing.arrow(total, output)
    drawing.text(
        320, 548, "Inside the dashed frame: one replica. It exchanges one sum for each pair of layers.", DIM
    )
    return drawing


def draw_step() -> Drawing:
    """Draw a step on two GPUs."""
    label = (
        "A step on two GPUs: a batch of 128 samples is divided, each GPU computes 64, an all-reduce sums the "
    )
    drawing = Drawing(380, 392, label + "gradients, and both apply the same update")
    batch = drawing.box("data", 98, 10, 184, "batch of 128 samples")
    total = drawing.box("sum", 110, 212, 160, "all-reduce: sum")
    for gpu in range(2):
        x = 14 + 184 * gpu
        forward = drawing.box("data", x, 72, 168, f"GPU {gpu}: 64 samples", "forward, loss")
        gradients = drawing.box("data", x, 152, 168, "gradients")
        update = drawing.box("state", x, 276, 168, "clip, update", "same weights")
        for above, below in ((batch, forward), (forward, gradients), (gradients, total), (total, update)):
            drawing.arrow(above, below)
    drawing.text(190, 356, "The loss is divided by the samples of the whole batch,", DIM)
    drawing.text(190, 374, "so the sum of the gradients is that of one device.", DIM)
    return drawing


def draw_decision() -> Drawing:
    """Draw how `jit_compile="auto"` chooses."""
    label = (
        "How jit_compile auto chooses: the plain graph for layers without XLA, communication with the host, "
    )
    label += "deterministic operations, RematScope, ZeRO-3 or a pipeline; else XLA on a GPU; on a CPU XLA for one replica "
    label += "and at least 5,000 steps without random numbers, convolutions or a callback after every step; else the graph"
    drawing = Drawing(380, 450, label)
    questions = """Does one of these hold?|a layer without XLA, a step that communicates|\
with the host, deterministic operations,|keras.RematScope, ZeRO-3, a pipeline
Is it a GPU?|several replicas: not from tf.data,|and not in evaluate
Is it one CPU replica, for 5,000 steps or more?|from arrays or tf.data, without random|\
numbers or convolutions, and without a|callback after every step"""
    y = bottom = 0
    for number, question in enumerate(questions.splitlines()):
        if number:
            drawing.line(f"M80 {bottom}V{y - 2}")
            drawing.text(90, bottom + 38, "no", DIM, "start")
        _, _, bottom = drawing.box("data", 10, y or 10, 360, *question.split("|"), look=BOLD, left=True)
        y = bottom + 66
        drawing.line(f"M280 {bottom}V{bottom + 16}")
        kind, answer = ("state", "yes: XLA") if number else ("end", "yes: plain graph")
        drawing.box(kind, 196, bottom + 18, 168, answer, look=BOLD)
    drawing.line(f"M98 {bottom}V{bottom + 16}")
    drawing.box("end", 14, bottom + 18, 168, "no: plain graph", look=BOLD)
    return drawing


def draw_backup() -> Drawing:
    """Draw which process writes which file of a backup."""
    label = "Where a backup is: the chief writes one file with weights, random numbers and the positions of all workers; "
    label += "with sharded state every other worker writes a part with its shards first, and the chief's file names them"
    drawing = Drawing(760, 270, f"{label} with their checksums")
    drawing.frame(300, 16, 444, 238)
    drawing.text(312, 36, "a directory that all workers see, or a bucket", DIM, "start")
    drawing.box("data", 16, 54, 150, "worker 0", "the chief", look=BOLD)
    drawing.box("data", 16, 164, 150, "worker 1", "and others", look=BOLD)
    whole = (
        "weights, metrics, callbacks, shards of worker 0,",
        "random numbers and positions in the data of all workers",
    )
    drawing.box("state", 318, 46, 408, "backup-000007.unisono", *whole, look=MONO, left=True)
    part = "shards of worker 1: optimizer state, with ZeRO-3 weights"
    drawing.box("sum", 318, 164, 408, "backup-000007.part-1.unisono", part, look=MONO, left=True)
    for y, notes in ((80, ["2. last"]), (190, ["1. first", "only if sharded"])):
        drawing.line(f"M166 {y}H314")
        for number, note in enumerate(notes):
            drawing.text(236, y - 8 + 28 * number, note, DIM)
    drawing.line("M522 117V160")
    drawing.text(534, 144, "names it, with its checksum", DIM, "start")
    drawing.text(330, 242, "owner.json", MONO, "start")
    drawing.text(424, 242, "which run writes here, and since when", DIM, "start")
    return drawing


def draw_labels() -> Drawing:
    """Draw the labels that the analysis of a step finds."""
    label = "Labels of a training step: tensors with samples are sharded, the mean and the gradient are partial sums, and "
    drawing = Drawing(880, 250, f"{label}an all-reduce makes them replicated")
    names = {"data": "sharded", "sum": "partial sum", "state": "replicated"}
    for kind, x, y, width, code in (
        ("data", 16, 30, 90, "x, y"),
        ("data", 146, 30, 110, "self(x)"),
        ("data", 296, 30, 130, "square(y - p)"),
        ("sum", 466, 30, 120, "reduce_mean"),
        ("state", 716, 30, 148, 'log "loss"'),
        ("state", 146, 140, 110, "weights"),
        ("sum", 446, 140, 160, "tape.gradient"),
        ("state", 716, 140, 148, "apply_gradients"),
    ):
        drawing.box(kind, x, y, width, code, names[kind], look=MONO)
    for path in ("M106 56H143", "M256 56H293", "M426 56H463", "M586 56H713", "M201 140V85", "M526 82V137"):
        drawing.line(path)
    drawing.line("M606 166H713")
    drawing.line("M790 192V208H201V195")
    drawing.text(650, 48, "all-reduce", BOLD)
    drawing.text(660, 158, "all-reduce", BOLD)
    blue, orange, green = (FILLS[kind][0] for kind in names)
    meanings = (
        (16, blue, "sharded: the samples of the replica"),
        (316, orange, "partial sum: the parts add up to the value"),
    )
    drawing.legend(224, *meanings, (630, green, "replicated: equal on all replicas"))
    return drawing


def draw_zero(replicas: int = 4) -> Drawing:
    """Draw what each replica stores of weights, gradients and optimizer state, without and with sharding."""
    label = "What each of four replicas stores: without sharding everything; ZeRO-2 all weights and a quarter of gradients "
    drawing = Drawing(760, 300, f"{label}and optimizer state; ZeRO-3 a quarter of everything")
    blue, orange, green = (FILLS[kind][0] for kind in ("data", "sum", "state"))
    stored = (0, 30, blue), (32, 30, orange), (64, 60, green)
    lines = (
        ("everything", "16 bytes a parameter", 0),
        ('"optimizer"', "7 bytes", 2),
        ('"weights"', "4 bytes", 3),
    )
    for number, (level, size, sharded) in enumerate(lines):
        y = 34 + 82 * number
        drawing.text(16, y + 20, level, anchor="start")
        drawing.text(16, y + 39, size, DIM, "start")
        for replica in range(replicas):
            x = 174 + 142 * replica
            for place, (left, width, color) in enumerate(stored):
                divided = place >= len(stored) - sharded
                drawing.cell("" if divided else color, x + left, y, width, 48)
                if divided:
                    drawing.cell(color, x + left, y + 48 // replicas * replica, width, 48 // replicas)
    for replica in range(replicas):
        drawing.text(236 + 142 * replica, 22, f"replica {replica}", DIM)
    drawing.legend(
        270, (174, blue, "weights"), (280, orange, "gradients"), (396, green, "optimizer state of Adam")
    )
    return drawing


def draw_schedules(stages: int = 4, micro_batches: int = 8) -> Drawing:
    """Draw the two schedules of a `Pipeline`, whose backward passes take twice as long as the forward passes."""
    label = "Schedules of a pipeline of four stages and eight micro-batches: GPipe runs all forward passes before the "
    label += "backward passes, 1F1B alternates them and keeps fewer activations, in the same time"
    drawing = Drawing(680, 360, label)
    colors = {"forward": FILLS["data"][0], "backward": FILLS["sum"][0]}
    costs = {"forward": [1.0] * stages, "backward": [2.0] * stages}
    notes = {"gpipe": "all forward passes first", "1f1b": "a backward pass as soon as there is one"}
    for name, top in zip(notes, (26, 182), strict=True):
        order = SCHEDULES[name](stages, micro_batches)
        jobs = time_jobs(
            [[(job.kind, job.micro_batch) for job in order if job.stage == k] for k in range(stages)], costs
        )
        first, *_, last = peak_activations(jobs)
        kept = f"stage 0 keeps the activations of {first} micro-batches, stage {stages - 1} of {last}"
        drawing.text(16, top, f'"{name}"', BOLD, "start")
        drawing.text(92, top, f"{notes[name]}: {kept}", DIM, "start")
        for stage in range(stages):
            y = top + 14 + 30 * stage
            drawing.text(16, y + 18, f"stage {stage}", anchor="start")
            drawing.cell("#eee", 92, y, round(17 * max(job.stop for job in jobs)), 26)
        for job in jobs:
            width = round(17 * (job.stop - job.start)) - 1
            place = 92 + round(17 * job.start), top + 14 + 30 * job.stage, width, 26
            drawing.cell(colors[job.kind], *place, str(job.micro_batch + 1))
    bubble = f"bubble: {stages - 1} of {micro_batches + stages - 1} parts of the time"
    drawing.legend(
        330,
        *((x, colors[kind], kind) for kind, x in (("forward", 92), ("backward", 190))),
        (300, "#eee", bubble),
    )
    return drawing


def draw_logo() -> str:
    """Draw three waves that become one note, in white on the colour of the site's header."""
    waves = "".join(f'<path d="M7 {y}c3 6 8 6 11 0s8 -6 11 0S36 47 44 47"/>' for y in (19, 31, 43))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="96" height="96" role="img" '
        'aria-label="Unisono">\n<rect width="64" height="64" rx="12" fill="#4051b5"/>\n'
        f'<g fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round">{waves}<path d="M53 45V12"/></g>\n'
        '<ellipse cx="46" cy="47" rx="8.5" ry="6.5" fill="#fff" transform="rotate(-20 46 47)"/>\n</svg>\n'
    )


PICTURES = {
    "backup.svg": draw_backup,
    "batch.svg": draw_batch,
    "decision.svg": draw_decision,
    "labels.svg": draw_labels,
    "logo.svg": draw_logo,
    "schedules.svg": draw_schedules,
    "step.svg": draw_step,
    "tensor.svg": draw_tensor,
    "zero.svg": draw_zero,
}


def main() -> None:
    """Write the pictures."""
    for name, draw in PICTURES.items():
        (ASSETS / name).write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
