#!/usr/bin/env python3
"""Measure the engine and llama.cpp in turns, on the same weights, and print the ratios.

    peer.py --bench BENCH_MODEL --model FOLDER --gguf FILE [--threads N] [--pairs N] [--only NAME...]
            [--csv FILE] [--state FILE]

Both run the same points: so many steps of so many rows after a context, on the same tokens. Each
pair is one run of llama.cpp and one of ours, in alternating order, so that what else the machine
does meets both; the ratio of a figure is the median of the pairs' ratios. llama.cpp gets the better
of flash attention on and off, chosen anew for each figure. Beside the ratio of times stands that of
processor time, which other programs disturb less, but which counts threads that spin.

Contexts are not computed each time. The engine's is made up by bench_model; llama.cpp's is computed
once in pieces that do not see each other and kept in a file.
"""
import argparse
import csv
import ctypes
import os
import statistics
import struct
import subprocess
import sys
import time

import llama_cpp
import numpy as np

CONTEXT_MAX = 16384
OWN_ROWS_MAX = 2048
CHUNK_ROWS = 512
MASK = (1 << 64) - 1
TRIES, TRY_SECONDS = 4, 3.0

# (name, rows of a step, context, steps, ratio wanted for BF16, ratio wanted for INT4)
FIGURES = [
    ("decode", 1, 0, 32, 1.4, 1.5),
    ("prefill_512", 512, 0, 1, 2.5, 2.5),
    ("prefill_2048", 512, 0, 4, 2.5, 2.5),
    ("decode_after_4096", 1, 4096, 8, 3.0, 3.0),
    ("prefill_512_after_4096", 512, 4096, 1, 2.0, 2.0),
    ("decode_after_16384", 1, 16384, 4, 5.0, 5.0),
    ("rows_8_after_16384", 8, 16384, 1, 3.5, 3.5),
]


def token_at(position, vocab):
    """The token that bench_rank puts at a position."""
    x = position + 1
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return (x ^ x >> 31) % vocab


class Engine:
    """Ours, in a process of its own that answers points."""

    def __init__(self, bench, model, threads):
        self.process = subprocess.Popen(
            [bench, model, "--threads", str(threads), "--serve"], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        word, self.isa = self.process.stdout.readline().split()
        assert word == "ready"

    def run(self, rows, context, steps):
        self.process.stdin.write(f"{rows} {context} {steps}\n")
        wall_ns, cpu_ns, drawn = self.process.stdout.readline().split()
        return int(wall_ns) * 1e-9, int(cpu_ns) * 1e-9, int(drawn)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Batch:
    def __init__(self):
        self.batch = llama_cpp.llama_batch_init(CHUNK_ROWS, 0, 1)

    def fill(self, tokens, position, sequence=0):
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i + 1 == len(tokens)
        return batch


class LlamaContext:
    """A cache of one sequence, with flash attention or without."""

    def __init__(self, model, threads, flash, sequences=1):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT_MAX + OWN_ROWS_MAX
        params.n_batch = params.n_ubatch = CHUNK_ROWS
        params.n_seq_max = sequences
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        self.flash = flash
        self.context = llama_cpp.llama_init_from_model(model, params)
        assert self.context, "llama.cpp made no context"
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = Batch()
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self.held = 0

    def decode(self, begin, count, sequence=0):
        tokens = [token_at(begin + i, self.vocab) for i in range(count)]
        batch = self.batch.fill(tokens, begin, sequence)
        code = llama_cpp.llama_decode(self.context, batch)
        assert code == 0, f"llama_decode gave {code}"
        llama_cpp.llama_synchronize(self.context)

    def run(self, rows, context, steps, state):
        """Seconds of wall clock and of processor, and the likeliest token after the last row."""
        if self.held < context:
            self.load(state)
        llama_cpp.llama_memory_seq_rm(self.memory, 0, context, -1)
        self.held = context
        wall, cpu = time.perf_counter(), time.process_time()
        for step in range(steps):
            self.decode(context + step * rows, rows)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        drawn = int(np.argmax(np.ctypeslib.as_array(logits, (self.vocab,))))
        return wall, cpu, drawn

    def load(self, state):
        tokens, count = (llama_cpp.llama_token * CONTEXT_MAX)(), ctypes.c_size_t()
        llama_cpp.llama_memory_clear(self.memory, True)
        path = state + (".flash" if self.flash else ".plain")
        size = llama_cpp.llama_state_seq_load_file(
            self.context, path.encode(), 0, tokens, CONTEXT_MAX, ctypes.byref(count))
        assert size and count.value == CONTEXT_MAX, f"{path} does not fit this build or model"
        self.held = CONTEXT_MAX

    def close(self):
        llama_cpp.llama_free(self.context)


def make_state(model, path):
    """Chunks that are sequences of their own see only themselves, so a long context costs no more
    than its chunks; in the end one sequence is given all of them."""
    chunks = CONTEXT_MAX // CHUNK_ROWS
    print(f"computing a context for llama.cpp, {path}", file=sys.stderr)
    context = LlamaContext(model, os.cpu_count(), flash=True, sequences=chunks)
    for chunk in range(chunks):
        context.decode(chunk * CHUNK_ROWS, CHUNK_ROWS, sequence=chunk)
        if chunk > 0:
            llama_cpp.llama_memory_seq_cp(context.memory, chunk, 0, -1, -1)
    tokens, part = (llama_cpp.llama_token * CONTEXT_MAX)(), path + ".part"
    size = llama_cpp.llama_state_seq_save_file(context.context, part.encode(), 0, tokens,
                                               CONTEXT_MAX)
    assert size, "the state was not saved"
    context.close()
    with open(part, "rb") as file:
        data = file.read()
    with open(path + ".plain", "wb") as file:
        file.write(as_plain(data, model))
    os.rename(part, path + ".flash")


def as_plain(data, model):
    """The state as a context without flash attention wants it: such a one keeps values transposed
    and says so in front of the first layer. Latent attention has keys alone, so it is all."""
    layers = llama_cpp.llama_model_n_layer(model)
    metadata = ctypes.create_string_buffer(64)
    rank, rope = (int(read_metadata(model, f"deepseek2.{key}", metadata))
                  for key in ("attention.kv_lora_rank", "rope.dimension_count"))
    row_bytes = (rank + rope) * 2
    rest = struct.pack("<IiQ", layers, llama_cpp.GGML_TYPE_F16, row_bytes)
    normal, transposed = struct.pack("<I", 0) + rest, struct.pack("<I", 1) + rest
    assert data.count(normal) == 1, "another layout of states than this script knows"
    return data.replace(normal, transposed)


def read_metadata(model, key, buffer):
    size = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    assert size > 0, f"no {key}"
    return buffer.value


def report(model, threads, isa, figure, pairs, flash, alike, log):
    wanted = figure[5 if "int4" in model else 4]
    theirs, ours, their_cpu, our_cpu = (statistics.median(column) * 1e3 for column in zip(*pairs))
    ratios = sorted(pair[0] / pair[1] for pair in pairs)
    ratio, cpu = statistics.median(ratios), statistics.median(pair[2] / pair[3] for pair in pairs)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    print(f"{figure[0]:23} {theirs:8.1f} ms {ours:8.1f} ms  {ratio:6.2f} ({low:.2f} to {high:.2f})"
          f"   {cpu:6.2f}  {wanted:6.1f}  {flash:>5}  {alike}", flush=True)
    if log:
        numbers = (theirs, ours, ratio, low, high, their_cpu, our_cpu, cpu)
        log.writerow([model, threads, isa, figure[0], len(pairs),
                      *(f"{number:.3f}" for number in numbers), wanted, flash])


def open_csv(path):
    file = open(path, "a", buffering=1)
    log = csv.writer(file)
    if file.tell() == 0:
        log.writerow(["model", "threads", "isa", "figure", "pairs", "peer_ms", "ours_ms", "ratio",
                      "quartile_low", "quartile_high", "peer_cpu_ms", "ours_cpu_ms", "ratio_cpu",
                      "wanted", "flash"])
    return log


def load_llama(path):
    silent = llama_cpp.llama_log_callback(
        lambda level, text, _: sys.stderr.write(text.decode()) if level >= 4 else None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(),
                                                 llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {path}"
    return model, silent  # the callback must live as long as the library


def quickest(context, point, state):
    """Seconds of processor time of the best of a few tries, or of one where it takes long: its
    threads spin while they wait, so that on a quiet machine it is the clock's time."""
    tries = [context.run(*point, state)[1]]
    while len(tries) < TRIES and sum(tries) < TRY_SECONDS:
        tries.append(context.run(*point, state)[1])
    return min(tries)


def measure(figure, engine, contexts, pairs, state):
    """Rows of (their wall, our wall, their cpu, our cpu) a step, whether llama.cpp had flash
    attention on, and how often both drew the same token: contexts that were made up differ."""
    name, rows, context, steps = figure[:4]
    point = (rows, context, steps)
    best = min(contexts, key=lambda c: quickest(c, point, state))
    out, alike = [], 0
    for pair in range(pairs):
        if pair % 2 == 0:
            theirs, ours = best.run(*point, state), engine.run(*point)
        else:
            ours, theirs = engine.run(*point), best.run(*point, state)
        out.append((theirs[0] / steps, ours[0] / steps, theirs[1] / steps, ours[1] / steps))
        alike += theirs[2] == ours[2]
    return out, "on" if best.flash else "off", f"{alike}/{pairs}" if context == 0 else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--state", required=True, help="files of a context, made if absent")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=[figure[0] for figure in FIGURES])
    parser.add_argument("--csv")
    args = parser.parse_args()

    model, silent = load_llama(args.gguf)
    if not os.path.exists(args.state + ".flash"):
        make_state(model, args.state)
    contexts = [LlamaContext(model, args.threads, flash) for flash in (False, True)]
    engine = Engine(args.bench, args.model, args.threads)
    engine.run(1, 0, 8)
    for context in contexts:
        context.run(1, 0, 8, args.state)
    name = os.path.basename(args.model.rstrip("/"))
    print(f"{name}, {args.threads} threads, {engine.isa}; {args.pairs} pairs a figure, "
          "times of a step\n"
          "figure                   llama.cpp        ours     ratio (quartiles)   of cpu  wanted  "
          "flash  same token", flush=True)
    log = open_csv(args.csv) if args.csv else None
    for figure in FIGURES:
        if args.only and figure[0] not in args.only:
            continue
        report(name, args.threads, engine.isa, figure,
               *measure(figure, engine, contexts, args.pairs, args.state), log)
    engine.close()
    for context in contexts:
        context.close()
    llama_cpp.llama_model_free(model)
    del silent


if __name__ == "__main__":
    main()
