"""Draw the README's picture from the records of `make demo`.

python docs/picture.py runs/demo docs/demo.png
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gradveil.report import load_run, summarize

SIDE, GAP, LEFT, SHOWN = 56, 4, 250, 10


def draw(run: Path) -> Image.Image:
    """Lay out the private digits above what was rebuilt from each cell's gradients."""
    cells = load_run(run)
    rows = summarize([found for _, found, _ in cells])
    lines = [("private", cells[0][2]["private"])]
    for row, (_, found, images) in zip(rows, cells, strict=True):
        view, who = row.identification["correlation"], ", known" if found.threat.adaptive else ""
        lines.append((f"{row.defense}{who}\n{view.identified} of {view.total} identified", images["guess"]))
    sheet = Image.new("L", (LEFT + SHOWN * (SIDE + GAP), len(lines) * (SIDE + GAP)), 255)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for line, (words, images) in enumerate(lines):
        pen.multiline_text((4, line * (SIDE + GAP) + 10), words, fill=0, font=font, spacing=4)
        for number in range(SHOWN):
            tile = Image.fromarray(np.asarray(images[number, 0, 0])).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            sheet.paste(tile, (LEFT + number * (SIDE + GAP), line * (SIDE + GAP)))
    return sheet


if __name__ == "__main__":
    draw(Path(sys.argv[1])).save(sys.argv[2], optimize=True)
