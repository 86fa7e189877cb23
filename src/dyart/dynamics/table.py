"""Measured dynamics as a table for a terminal."""

from typing import Any


def table(summary: dict[str, Any]) -> str:
    """Return counts, one row per range of margins with each method's share of negative speed, and paired tests.

    Args:
        summary: as ``summarize`` returns it; a ``radius_text`` of ``8/255`` has margins written so.
    """
    counts, methods = summary["counts"], summary["methods"]
    first = next(iter(methods.values()))
    head = ["margin", "examples", *methods]
    written = _in_255ths if "/255" in summary.get("radius_text", "") else _decimal
    rows = [[f"below {written(summary['radius'])}", str(first["below_radius"]["count"])]]
    rows[0] += [_share(entry["below_radius"]) for entry in methods.values()]
    for number, part in enumerate(first["intervals"]):
        cells = [_share(entry["intervals"][number]) for entry in methods.values()]
        low, high = written(part["from"]), None if part["to"] is None else written(part["to"])
        rows.append([f"{low} and more" if high is None else f"{low} to {high}", str(part["count"]), *cells])
    rows.append(["all", str(first["all"]["count"]), *(_share(entry["all"]) for entry in methods.values())])
    lines = [
        f"{counts['examples']} examples: {counts['wrong']} classified wrongly, {counts['not_found']} without a "
        f"boundary point, {counts['not_optimal']} whose point is not locally optimal; {counts['counted']} counted",
        "share of negative speed (the boundary comes closer), with 95 % Wilson intervals:",
        *_aligned([head, *rows]),
        *(_verdict(test) for test in summary["tests"]),
    ]
    return "\n".join(lines)


def _share(part: dict[str, Any]) -> str:
    if part["share"] is None:
        return "-"
    return f"{100 * part['share']:.1f} % [{100 * part['low']:.1f}, {100 * part['high']:.1f}]"


def _decimal(value: float) -> str:
    return f"{value:.4g}"


def _in_255ths(value: float) -> str:
    return f"{255 * value:.4g}/255" if value else "0"


def _verdict(test: dict[str, Any]) -> str:
    if test["difference"] is None:
        return f"{test['second']} against {test['first']}: no vulnerable examples to compare on"
    first, second = test["first"], test["second"]
    return (
        f"{second} against {first}, below the radius: {100 * test['difference']:+.1f} points\n"
        f"  negative only under {first} {test['only_first']}, only under {second} {test['only_second']} examples, "
        f"p = {test['p_value']:.2g} (exact McNemar, as if examples were independent)\n"
        f"  more of them under {first} in {test['batches_first']}, under {second} in {test['batches_second']} "
        f"{'batch' if test['batches_second'] == 1 else 'batches'}, "
        f"p = {test['p_value_by_batch']:.2g} (sign test: the examples of a batch share one update)"
    )


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
