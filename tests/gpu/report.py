"""Gathers what tools/gpu ran into one JSON file: report.py LOGS FOLDER [PART]. The part is in the file's name."""
import json
import os
import re
import subprocess
import sys


def said_by(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def read(path):
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()


def main():
    logs, folder, *part = sys.argv[1:]
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,ecc.mode.current"
    values = said_by("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").splitlines()[:1]
    gpu = dict(zip(query.split(","), [value.strip() for value in values[0].split(",")])) if values else {}
    commit = os.environ.get("ONEHEAD_COMMIT") or said_by("git", "rev-parse", "HEAD")
    report = {"commit": commit, "gpu": gpu, "nvcc": said_by("nvcc", "--version").split("\n")[-1], "steps": []}
    for line in (read(os.path.join(logs, "steps")) or "").splitlines():
        name, status, seconds, last = line.split("\t", 3)
        report["steps"].append({"name": name, "passed": status == "0", "seconds": int(seconds), "says": last})
    for name in ("streams", "gradient-errors", "torch-last", "package"):
        text = read(os.path.join(logs, name))
        if text:
            report[name] = text.splitlines()
    for name in ("bench", "bench_tuned", "compare"):
        text = read(os.path.join(logs, name + ".json"))
        if text:
            report[name] = json.loads(text)
    for name in ("tune", "bench-tuned"):
        text = read(os.path.join(logs, name))
        if text:
            report[name] = [line for line in text.splitlines() if line.startswith("cuda: ")]
    word = re.sub(r"[^a-z0-9]+", "_", gpu.get("name", "gpu").lower()).strip("_") or "gpu"
    path = os.path.join(folder, "_".join([word, *part]) + ".json")
    with open(path, "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    print(path)


if __name__ == "__main__":
    main()
