#!/usr/bin/env python3
"""Memory as planned, as the kernel counts it, and what is left unexplained: a table.

    memory.py BIN_DIR MODEL [--device-memory 4G] [--tp 1,2,8]

Starts `espalier serve` for each TP size, waits until it is ready, and reads of every rank: the
plan's figures (espalier plan --json), the ledger that the worker measured line by line (mincore),
and the resident size of the whole process (smaps_rollup). MODEL needs a tokenizer beside its
weights: for the folders of make_model.py copy tiktoken.model and tokenizer_config.json of
deploy/model, whose vocabulary has the same size.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 300


def plan(args, tp):
    """What the plan says of a rank."""
    out = subprocess.run([os.path.join(args.bin, "espalier"), "plan", "--model-path", args.model,
                          "--tp", str(tp), "--threads", "1", "--json",
                          "--device-memory", args.device_memory], stdout=subprocess.PIPE, text=True)
    return json.loads(out.stdout)


def resident(run_dir, rank):
    """Bytes of a worker that are in memory."""
    ready = open(f"{run_dir}/worker-{rank}.ready", encoding="ascii").read()
    pid = re.search(r"pid=(\d+)", ready)[1]
    rollup = open(f"/proc/{pid}/smaps_rollup", encoding="ascii").read()
    return int(re.search(r"Rss:\s+(\d+) kB", rollup)[1]) * 1024


def ledger(log, rank):
    """What a rank measured: line -> (predicted, measured), and its total."""
    lines = {}
    for name, predicted, measured in re.findall(
            rf" rank={rank} .* event=memory line=(\w+) predicted_bytes=(\d+) measured_bytes=(\d+)",
            log):
        lines[name] = int(predicted), int(measured)
    total = re.search(rf" rank={rank} .* event=memory_total pool_tokens=(\d+) ", log)
    return lines, int(total[1])


def serve(args, tp):
    """Start a group, yield its log and run directory once it is ready, end it."""
    with tempfile.TemporaryDirectory() as run_dir:
        path = f"{run_dir}.log"
        with open(path, "w", encoding="ascii") as log:
            group = subprocess.Popen([os.path.join(args.bin, "espalier"), "serve", "--run-dir",
                                      run_dir, "--model-path", args.model, "--tp", str(tp),
                                      "--threads", "1", "--device-memory", args.device_memory],
                                     stderr=log)
        try:
            for _ in range(PATIENCE_S * 10):
                text = open(path, encoding="ascii").read()
                if "espalier: ready" in text:
                    break
                if group.poll() is not None:
                    sys.exit(text)
                time.sleep(0.1)
            yield text, run_dir
        finally:
            group.send_signal(signal.SIGTERM)
            group.wait()
            os.remove(path)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("model")
    parser.add_argument("--device-memory", default="4G")
    parser.add_argument("--tp", default="1,2,8")
    args = parser.parse_args()
    print("| TP | rank | pool, tokens | planned MiB | measured MiB | off | worst line | "
          "resident MiB | unexplained MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for tp in map(int, args.tp.split(",")):
        wanted = plan(args, tp)
        for log, run_dir in serve(args, tp):
            for rank in sorted({0, tp - 1}):
                lines, tokens = ledger(log, rank)
                assert tokens == wanted["pool_tokens"], (tokens, wanted["pool_tokens"])
                fixed = {name: line for name, line in lines.items()
                         if name not in ("page_table", "comm")}
                planned = sum(wanted["line_bytes"][name] for name in fixed)
                measured = sum(line[1] for line in fixed.values())
                worst = max(fixed, key=lambda name: abs(fixed[name][1] / fixed[name][0] - 1))
                worst_off = 100 * (fixed[worst][1] / fixed[worst][0] - 1)
                rss = resident(run_dir, rank)
                print(f"| {tp} | {rank} | {tokens:,} | {planned / 2**20:.2f} | "
                      f"{measured / 2**20:.2f} | {100 * (measured / planned - 1):+.2f} % | "
                      f"{worst} {worst_off:+.2f} % | {rss / 2**20:.2f} | "
                      f"{(rss - measured) / 2**20:.2f} |", flush=True)


if __name__ == "__main__":
    main()
