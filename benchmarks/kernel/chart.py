"""A bar chart of ratios by mask and length, as SVG."""

from __future__ import annotations

from kernel.masks import MASKS
from kernel.peers import Rates
from kernel.table import length_name

COLOURS = ("#9ecae9", "#4c8cbf", "#1f4e79")
LEFT, TOP, HEIGHT, BAR, GAP = 44, 46, 190, 16, 16
FOOT = 118
STEP = 0.25


def ratio_chart(ratios: Rates, title: str) -> str:
    """Return an SVG picture: a group of bars for each mask, a bar for each length, a line at 1.

    Args:
        ratios: by (mask, tokens).
        title: above the bars.
    """
    lengths = sorted({tokens for _, tokens in ratios})
    masks = [mask for mask in MASKS if any((mask, tokens) in ratios for tokens in lengths)]
    top = STEP * (int(max(ratios.values()) / STEP) + 1)
    group = BAR * len(lengths) + GAP
    width = LEFT + group * len(masks) + GAP

    def y(ratio: float) -> float:
        return TOP + HEIGHT * (1 - ratio / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + FOOT}" '
        f'font-family="sans-serif" font-size="11" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{TOP + HEIGHT + FOOT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="13" fill="#222222">{title}</text>',
    ]
    for step in range(round(top / STEP) + 1):
        at, one = y(step * STEP), step * STEP == 1
        stroke = 'stroke="#222222" stroke-width="1.5"' if one else 'stroke="#dddddd"'
        parts.append(f'<line x1="{LEFT}" x2="{width - GAP}" y1="{at:.1f}" y2="{at:.1f}" {stroke}/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#222222">{step * STEP:.2f}</text>'
        )
    for i, mask in enumerate(masks):
        start = LEFT + GAP / 2 + i * group
        for j, tokens in enumerate(lengths):
            if (mask, tokens) not in ratios:
                continue
            at = y(ratios[mask, tokens])
            parts.append(
                f'<rect x="{start + j * BAR:.1f}" y="{at:.1f}" width="{BAR - 2}" '
                f'height="{TOP + HEIGHT - at:.1f}" fill="{COLOURS[j % len(COLOURS)]}">'
                f"<title>{mask} {length_name(tokens)}: {ratios[mask, tokens]:.2f}</title></rect>"
            )
        x, below = start + BAR * len(lengths) / 2, TOP + HEIGHT + 12
        parts.append(
            f'<text x="{x:.1f}" y="{below}" text-anchor="end" fill="#222222" '
            f'transform="rotate(-40 {x:.1f} {below})">{mask}</text>'
        )
    for j, tokens in enumerate(lengths):
        x = width - GAP - 56 * (len(lengths) - j)
        parts.append(f'<rect x="{x}" y="26" width="11" height="11" fill="{COLOURS[j % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 15}" y="36" fill="#222222">{length_name(tokens)}</text>')
    return "\n".join([*parts, "</svg>", ""])
