"""Two panels of curves as an SVG file, with no library."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 300, 64, 34, 90
COLOURS = ("#0b6e99", "#d9541e")


def _panel(x0, title, curves):
    values = [y for _, ys in curves for y in ys]
    low, high = min(values), max(values)
    high = high if high > low else low + 1
    parts = [
        f'<text x="{x0 + WIDTH / 2}" y="20" text-anchor="middle">{escape(title)}</text>',
        f'<rect x="{x0}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for i in range(5):
        y = TOP + HEIGHT * i / 4
        parts.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{high - (high - low) * i / 4:.3g}</text>')
        parts.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y}" y2="{y}" stroke="#e5e5e5"/>')
    for i, (name, ys) in enumerate(curves):
        step = WIDTH / max(1, len(ys) - 1)
        points = " ".join(f"{x0 + k * step:.1f},{TOP + HEIGHT * (high - y) / (high - low):.1f}" for k, y in enumerate(ys))
        # The second curve is dashed and wide, so that the first shows through where they coincide.
        style = 'stroke-width="1.5"' if i == 0 else 'stroke-width="3" stroke-dasharray="2 7"'
        parts.append(f'<polyline fill="none" stroke="{COLOURS[i % 2]}" {style} points="{points}"/>')
        y = TOP + 18 + 16 * i
        parts.append(f'<text x="{x0 + WIDTH - 8}" y="{y}" text-anchor="end" fill="{COLOURS[i % 2]}">{escape(name)}</text>')
    parts.append(f'<text x="{x0 + WIDTH / 2}" y="{TOP + HEIGHT + 24}" text-anchor="middle">step (0 to {len(ys) - 1})</text>')
    return parts


def write(path, panels):
    """panels: [(title, [(name, values), ...]), ...]"""
    width = LEFT + len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 40}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (title, curves) in enumerate(panels):
        parts += _panel(LEFT + i * (WIDTH + GAP), title, curves)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts + ["</svg>"]) + "\n")
