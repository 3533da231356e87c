"""Draws JSON files of `onehead bench` as one HTML file that needs no network:

    python3 report.py [--print-name] OUT.html BENCH.json...

Started by `onehead report`. Errors are one line on stderr; exit codes are the command's."""

import html
import io
import json
import math
import os
import signal
import sys
import tempfile

USAGE, BAD_INPUT, RESOURCE = 2, 3, 5
POLICIES = ("naive", "recompute", "cached")
PRODUCTS = ("project_draft", "project_target", "grad", "head_grad")
PASSES = ("statistics", "second_read", "tile_grad", "stats_grad")

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
svg { max-width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } .note { color: #555; } dt { color: #555; } dd { margin: 0 0 .4rem 0; }
"""


class Failure(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# ------------------------------------------------------------------------------------------------------- input ----


class Run:
    """One bench file."""

    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as why:
            reason = why.strerror if isinstance(why, OSError) else why
            raise Failure(BAD_INPUT, f"{path}: can't read it as JSON: {reason}") from None
        if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
            raise Failure(BAD_INPUT, f"{path}: no list 'benchmarks', expected a JSON file of 'onehead bench'")
        self.context = data.get("context") or {}
        self.memory = data.get("memory") or []
        self.failed = [b for b in data["benchmarks"] if b.get("error_occurred")]
        self.benchmarks = [b for b in data["benchmarks"] if not b.get("error_occurred")]
        needed = ("policy", "tile", "rows", "hidden", "vocab", "chunk", "step_ms", "gemms_ms", "ratio_to_gemms",
                  "workspace_bytes")
        for b in self.benchmarks:
            for key in needed:
                if key not in b:
                    raise Failure(BAD_INPUT, f"{path}: benchmark '{b.get('name')}' has no '{key}', expected a JSON file "
                                             "of 'onehead bench'")
        self.full = self._largest()

    def _largest(self):
        """Of a series, the points at its full size."""
        if not self.benchmarks:
            return []
        def size(b):
            return b["rows"], b["vocab"], b.get("threads", 0), b["chunk"]
        largest = max(map(size, self.benchmarks))
        return [b for b in self.benchmarks if size(b) == largest]

    def series(self):
        return next((b["series"] for b in self.benchmarks if b.get("series")), "")

    def shape(self):
        b = self.full[0]
        return f"T = {b['rows']:,}, H = {b['hidden']:,}, V = {b['vocab']:,}, {self.context.get('dtype', '')}"


# ------------------------------------------------------------------------------------------------------- plots ----


def begin(plt, rows=1, columns=1, size=(9.6, 4.2), **more):
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **more)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg_of(plt, figure, salt, label):
    plt.rcParams["svg.hashsalt"] = salt  # ids differ from figure to figure of the page
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg"):]
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def label_of(b, with_tile):
    return f"{b['policy']}, {b['tile']}" if with_tile else b["policy"]


def ordered(benchmarks):
    return sorted(benchmarks, key=lambda b: (POLICIES.index(b["policy"]) if b["policy"] in POLICIES else 9, b["tile"]))


def plot_steps(plt, runs):
    counts = [len(run.full) for run in runs]
    figure, axes = begin(plt, len(runs), 1, (9.6, 1.1 * len(runs) + 0.42 * sum(counts)),
                         gridspec_kw={"height_ratios": [n + 1 for n in counts]})
    for axis, run in zip(axes.flat, runs):
        bars = ordered(run.full)
        tiles = len({b["tile"] for b in bars}) > 1
        for i, b in enumerate(bars):
            low, high = b.get("step_ms_low", b["step_ms"]), b.get("step_ms_high", b["step_ms"])
            first = i == 0 and run is runs[0]
            axis.barh(i, b["step_ms"], 0.62, color="#8fb3d9", label="step, with quartiles" if first else None,
                      xerr=[[max(b["step_ms"] - low, 0)], [max(high - b["step_ms"], 0)]], ecolor="#555555", capsize=2)
            axis.plot([b["gemms_ms"]] * 2, [i - 0.42, i + 0.42], color="#c44e38", linewidth=2.5,
                      label="its matrix products alone" if first else None)
            axis.annotate(f"{b['ratio_to_gemms']:.2f} ×", (max(high, b["gemms_ms"]), i), xytext=(6, 0),
                          textcoords="offset points", va="center", fontsize=9)
        axis.set_yticks(range(len(bars)), [label_of(b, tiles) for b in bars])
        axis.invert_yaxis()
        axis.set_xlabel("ms a step")
        axis.set_title(f"{run.name}: {run.shape()}" if len(runs) > 1 else run.shape(), fontsize=10)
        axis.margins(x=0.12)
        axis.set_xlim(left=0)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    axes.flat[-1].legend(handles, labels, frameon=False, fontsize=8, loc="lower right")
    return svg_of(plt, figure, "steps", "Time of a step by policy, with the time of its matrix products as a line")


def plot_nodes(plt, runs):
    bars = [(run, b) for run in runs for b in ordered(run.full) if b.get("passes")]
    if not bars:
        return None
    names = []
    for _, b in bars:
        for p in b["passes"]:
            if (p.get("share") or 0) >= 0.005 and p["name"] not in names:
                names.append(p["name"])
    names.sort(key=lambda n: (n not in PRODUCTS, n not in PASSES))
    reds, rest = iter(plt.cm.Blues([0.85, 0.68, 0.5, 0.35])), iter(plt.cm.Set2(range(8)))
    colors = {n: next(reds) if n in PRODUCTS else next(rest, "#999999") for n in names}
    colors["everything else"] = "#dddddd"
    figure, axes = begin(plt, size=(9.6, 1.4 + 0.42 * len(bars)))
    axis = axes[0][0]
    tiles, many = len({b["tile"] for _, b in bars}) > 1, len(runs) > 1
    for i, (run, b) in enumerate(bars):
        left, by_name = 0.0, {p["name"]: p["ms"] or 0 for p in b["passes"]}
        by_name["everything else"] = max(b.get("traced_ms", b["step_ms"]) - sum(by_name.get(n, 0) for n in names), 0)
        for name in [*names, "everything else"]:
            axis.barh(i, by_name.get(name, 0), 0.66, left=left, color=colors[name], label=name if i == 0 else None)
            left += by_name.get(name, 0)
    axis.set_yticks(range(len(bars)), [(f"{r.name}: " if many else "") + label_of(b, tiles)
                                       for r, b in bars])
    axis.invert_yaxis()
    axis.set_xlabel("ms a step")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg_of(plt, figure, "nodes", "Time by operation for each policy")


def plot_memory(plt, runs):
    lines = {}
    for run in runs:
        for m in [*run.memory, *run.benchmarks]:
            key = (run.name, m["policy"], m["tile"])
            lines.setdefault(key, {})[m["chunk"]] = m["workspace_bytes"] + m.get("weight_bytes", 0)
    lines = {k: v for k, v in lines.items() if len(v) > 1}
    if not lines:
        return None
    figure, axes = begin(plt)
    axis = axes[0][0]
    same = {}  # runs, policies and formats that take the same share a line
    for case, points in lines.items():
        same.setdefault(tuple(sorted(points.items())), []).append(case if len(runs) > 1 else case[1:])
    for points, cases in same.items():
        axis.plot([c for c, _ in points], [m / 2**20 for _, m in points], marker="o", markersize=4,
                  label="; ".join(", ".join(dict.fromkeys(part)) for part in zip(*cases)))
    axis.set_xscale("log", base=2)
    amounts = [m for points in same for _, m in points]
    if max(amounts) > 8 * min(amounts):
        axis.set_yscale("log", base=2)
    else:
        axis.set_ylim(bottom=0)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xlabel("rows a chunk")
    axis.set_ylabel("MiB")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return svg_of(plt, figure, "memory", "Memory by chunk size")


def plot_accuracy(plt, runs):
    points = {}
    for run in runs:
        for b in run.full:
            if b.get("grad_error") is not None and b["policy"] == run.full[0]["policy"]:
                points.setdefault(run.name, {})[b["tile"]] = b["grad_error"]
    points = {name: tiles for name, tiles in points.items() if len(tiles) > 1}
    if not points:
        return None
    tiles = [t for t in ("f32", "diff", "f16", "bf16") if any(t in p for p in points.values())]
    figure, axes = begin(plt, size=(9.6, 3.6))
    axis = axes[0][0]
    width = 0.7 / len(points)
    for i, (name, by_tile) in enumerate(points.items()):
        for j, tile in enumerate(tiles):
            value = by_tile.get(tile)
            if not value:
                continue  # the reference itself
            at = j + (i - (len(points) - 1) / 2) * width
            axis.bar(at, value, width * 0.9, color=plt.cm.tab10(i), label=name if j == len(tiles) - 1 else None)
            axis.annotate(f"{value:.1e}", (at, value), xytext=(0, 3), textcoords="offset points", ha="center",
                          fontsize=9)
    axis.set_xticks(range(len(tiles)), [t + ("\n(reference)" if t == "f32" else "") for t in tiles])
    axis.set_xlim(-0.6, len(tiles) - 0.4)
    axis.set_yscale("log")
    axis.set_ylabel("relative error of the gradient")
    axis.margins(y=0.2)
    if len(points) > 1:
        axis.legend(frameon=False, fontsize=8)
    return svg_of(plt, figure, "accuracy", "Gradient's error by tile format")


def plot_series(plt, run):
    key = run.series()
    lines = {}
    for b in run.benchmarks:
        lines.setdefault((b["policy"], b["tile"]), []).append((b[key], b["step_ms"], b["gemms_ms"]))
    figure, axes = begin(plt)
    axis = axes[0][0]
    for i, ((policy, tile), points) in enumerate(lines.items()):
        points.sort()
        axis.plot([p[0] for p in points], [p[1] for p in points], marker="o", color=plt.cm.tab10(i),
                  label=f"{policy}, {tile}")
        axis.plot([p[0] for p in points], [p[2] for p in points], linestyle="--", color=plt.cm.tab10(i), alpha=0.6,
                  label="its products alone" if i == 0 else None)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_locator(plt.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.yaxis.set_minor_formatter(lambda value, _: "")
    axis.set_xlabel(key)
    axis.set_ylabel("ms a step")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return svg_of(plt, figure, f"series {run.name}", f"Time of a step by {key}")


# -------------------------------------------------------------------------------------------------------- page ----


def number(value, form="{:,.1f}"):
    return "–" if value is None or not math.isfinite(value) else form.format(value)


def table(runs):
    head = ("run", "policy", "tile", "chunk", "step, ms", "products, ms", "ratio", "projections", "GEMMs", "GFLOP/s",
            "memory, MiB", "gradient's error")
    rows = []
    for run in runs:
        for b in run.benchmarks:
            projections = b.get("projections") or {}
            rate = b.get("flops_per_second")
            error = b.get("grad_error")
            rows.append((run.name, b["policy"], b["tile"], f"{b['chunk']:,}", number(b["step_ms"]),
                         number(b["gemms_ms"]), number(b["ratio_to_gemms"], "{:.3f} ×"),
                         f"{projections.get('draft', 0) + projections.get('target', 0):,}", f"{b.get('gemms', 0):,}",
                         number(rate / 1e9 if rate else None),
                         number((b["workspace_bytes"] + b.get("weight_bytes", 0)) / 2**20),
                         number(error, "{:.1e}")))
    lines = ["<div class=wide><table><tr>", *(f"<th>{h}</th>" for h in head), "</tr>"]
    for row in rows:
        lines += ["<tr>", *(f"<td>{html.escape(str(cell))}</td>" for cell in row), "</tr>"]
    return "".join([*lines, "</table></div>"])


def limit_of(b):
    if not b.get("passes"):
        return ""
    whole = b.get("traced_ms") or b["step_ms"]
    products = sum(p["ms"] or 0 for p in b["passes"] if p["name"] in PRODUCTS) / whole
    tiles = sum(p["ms"] or 0 for p in b["passes"] if p["name"] in PASSES) / whole
    rest = max(1 - products - tiles, 0)
    what = ("matrix products" if products >= max(tiles, rest) else "passes over tiles" if tiles >= rest else
            "everything but products and tiles")
    return (f"the largest part of a {b['policy']} step with {b['tile']} tiles: {what}. Products take {products:.0%} of it, "
            f"passes over tiles {tiles:.0%}, the rest {rest:.0%}")


def summary(run):
    best = next((b for b in run.full if b["policy"] == "cached"), run.full[0])
    lines = [f"A {best['policy']} step takes {number(best['step_ms'])} ms, "
             f"{best['ratio_to_gemms']:.3f} times its matrix products."]
    for b in run.full:
        if b["tile"] == best["tile"] and b["policy"] != best["policy"]:
            lines.append(f"{b['policy'].capitalize()} takes {b['step_ms'] / best['step_ms']:.2f} times as long.")
    if best.get("passes"):
        limit = limit_of(best)
        lines.append(limit[0].upper() + limit[1:] + ".")
    return html.escape(" ".join(lines))


def clock_note(runs):
    """How operations were timed; what waited for each of them can't overlap."""
    waits = any(b.get("pass_clock") == "waits" for run in runs for b in run.full)
    return "Of steps with an observer." + (
        " The device has no events: each operation was waited for, and nothing overlaps." if waits else "")


def facts(run):
    c = run.context
    load = c.get("load_avg") or [0]
    rows = [("step", run.shape()), ("backend", f"{c.get('backend')}: {c.get('device')}; {c.get('kernel')}"),
            ("CPU", f"{c.get('cpu')}, {c.get('num_cpus')} CPUs, load {load[0]:.2f} before and "
                    f"{c.get('load_avg_after') or 0:.2f} after"),
            ("objective", f"terms {', '.join(c.get('terms') or {})}; metrics {c.get('metrics')}; top-K "
                          f"{', '.join(map(str, c.get('topk') or []))}"),
            ("build", f"onehead {c.get('library_version')} {c.get('commit')}, {c.get('compiler')}, "
                      f"{c.get('library_build_type')}"),
            ("measured", f"{c.get('date')}, seed {c.get('seed')}")]
    if c.get("copy_bytes_per_second"):
        rows.append(("copy", f"{c['copy_bytes_per_second'] / 1e9:.1f} GB/s"))
    if c.get("peak_memory_bytes"):
        rows.append(("peak memory", f"{c['peak_memory_bytes'] / 2**20:,.0f} MiB"))
    if c.get("note"):
        rows.append(("note", c["note"]))
    rows += [("left out", f"{b.get('name')}: {b.get('error_message')}") for b in run.failed]
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in rows) + "</dl>"


def page(plt, runs):
    body = ["<h1>onehead: how long a step takes, and why</h1>"]
    for run in runs:
        prefix = f"<b>{html.escape(run.name)}.</b> " if len(runs) > 1 else ""
        body.append(f"<p>{prefix}{summary(run)}</p>")
    sections = [("A step by policy", "The line is the floor: the matrix products of that policy's plan, alone, measured "
                 "in turns with the step.", plot_steps(plt, runs)),
                ("Time by operation", clock_note(runs), plot_nodes(plt, runs)),
                ("Memory by chunk size", "Workspace and converted weights; the tensors of the caller come on top.",
                 plot_memory(plt, runs)),
                ("Accuracy by tile format", "Gradient of the first policy against the one with f32 tiles, 2-norms. The "
                 "random drafter is a good one: its hidden states are within 10 % of the target's.",
                 plot_accuracy(plt, runs))]
    sections += [(f"By {run.series()}: {run.name}", "", plot_series(plt, run)) for run in runs if run.series()]
    for title, note, svg in sections:
        if svg:
            body.append(f"<h2>{html.escape(title)}</h2><p class=note>{html.escape(note)}</p>{svg}")
    body.append(f"<h2>Figures</h2>{table(runs)}<h2>Where it was measured</h2>")
    for run in runs:
        body.append((f"<h3>{html.escape(run.name)}</h3>" if len(runs) > 1 else "") + facts(run))
    return ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>onehead bench</title><style>{STYLE}</style><body>" + "\n".join(body) + "</body></html>\n")


def write(path, text):
    """Whole or not at all."""
    temporary = None
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".onehead-")
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(handle, 0o666 & ~mask)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as why:
        raise Failure(RESOURCE, f"{path}: can't write: {why.strerror}") from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def load_matplotlib():
    try:
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError as why:
        raise Failure(RESOURCE, f"matplotlib: can't be loaded by {sys.executable} ({why}), expected Debian's "
                                "python3-matplotlib or the like") from None
    plt.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10})
    return plt


def main(arguments):
    print_name = arguments[:1] == ["--print-name"]
    arguments = arguments[print_name:]
    if len(arguments) < 2:
        raise Failure(USAGE, "expected OUT.html BENCH.json...")
    runs = [Run(path) for path in arguments[1:]]
    for run, path in zip(runs, arguments[1:]):
        if not run.benchmarks:
            raise Failure(BAD_INPUT, f"{path}: no measurement in 'benchmarks'")
    with tempfile.TemporaryDirectory(prefix="onehead-") as folder:
        os.environ.setdefault("MPLCONFIGDIR", folder)
        write(arguments[0], page(load_matplotlib(), runs))
    if print_name:
        try:
            os.write(1, os.fsencode(arguments[0]) + b"\n")
        except OSError as why:
            raise Failure(RESOURCE, f"standard output: can't write: {why.strerror}") from None


class Ended(BaseException):
    """A signal that ends the process, when what it was writing is removed."""


def end(number, _frame):
    raise Ended(number)


if __name__ == "__main__":
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, end)
    try:
        main(sys.argv[1:])
    except Failure as failure:
        print(f"onehead: report: {failure}", file=sys.stderr)
        sys.exit(failure.code)
    except Ended as ended:
        sys.exit(128 + ended.args[0])
