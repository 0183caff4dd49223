#!/usr/bin/env python3
"""Write vectors.txt: small inputs of every op with what numpy makes of them in float64. Penalties
are what transformers makes of them, in float32, to the bit; it is needed for those alone.

Each op is written here from its mathematics, not from the C code: test_vectors.c checks the
references (and the fast variants) against it. Inputs are values of their stored type (f32, bf16,
int4), so that only the arithmetic can differ. Run it again only to add cases:

    python3 make_vectors.py > vectors.txt
"""
import math
import sys

import numpy as np
import torch
from transformers import RepetitionPenaltyLogitsProcessor

RNG = np.random.default_rng(20240607)
MASK = (1 << 64) - 1


def f32(*shape, spread=1.0):
    return (RNG.standard_normal(shape) * spread).astype(np.float32)


def to_bf16(values):
    """Bits of the nearest bf16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write(op, label, **arrays):
    print("case", op, label)
    for name, value in arrays.items():
        value = np.asarray(value)
        if value.dtype.kind == "f":
            text = [f"{float(v):.9g}" for v in value.astype(np.float32).ravel()]
            kind = "f32"
        else:
            text = [str(int(v)) for v in value.ravel()]
            kind = "u64"
        print(name, kind, len(text), *text)
    print("end")


# ---- weights -------------------------------------------------------------------------------


def pack_int4(q):
    """compressed-tensors pack-quantized: q + 8, eight to a little-endian word, lowest first."""
    u = (q + 8).astype(np.uint8)
    return (u[:, 0::2] | (u[:, 1::2] << 4)).astype(np.uint8)


def make_weight(fmt, n, k):
    """(what the checkpoint holds, scales or nothing, the real values)"""
    if fmt == 0:
        w = f32(n, k)
        return {"w_f32": w}, w.astype(np.float64)
    if fmt == 1:
        bits = to_bf16(f32(n, k))
        return {"w": bits}, from_bf16(bits).astype(np.float64)
    q = RNG.integers(-8, 8, (n, k))
    scale = to_bf16(np.abs(f32(n, k // 32)) * 0.1)
    real = q * np.repeat(from_bf16(scale).astype(np.float64), 32, axis=1)
    return {"w": pack_int4(q), "scale": scale}, real


def linear():
    # The example of the format: these eight values are the bytes 10 87 F9 4B.
    q = np.zeros((1, 32), int)
    q[0, :8] = [-8, -7, -1, 0, 1, 7, 3, -4]
    assert list(pack_int4(q)[0, :4]) == [0x10, 0x87, 0xF9, 0x4B]
    write("linear", "int4_example", format=2, n=1, k=32, rows=8, segments=1,
          x=np.eye(8, 32, dtype=np.float32), w=np.array([0x10, 0x87, 0xF9, 0x4B] + [0x88] * 12),
          scale=to_bf16([[1.0]]), y=q[0, :8].astype(float))
    for fmt, n, k, rows, segments, with_add in [(0, 33, 24, 3, 1, 0), (1, 40, 48, 2, 8, 1),
                                                (1, 5, 7, 4, 1, 0), (2, 35, 64, 3, 2, 1),
                                                (2, 64, 96, 1, 1, 0)]:
        stored, real = make_weight(fmt, n, k)
        x = f32(rows, k)
        y = x.astype(np.float64) @ real.T
        if with_add:
            stored["add"] = f32(segments, rows, n)
            y = y + stored["add"].astype(np.float64).sum(axis=0)
        write("linear", f"format_{fmt}", format=fmt, n=n, k=k, rows=rows, segments=segments, x=x,
              **stored, y=y)


# ---- small ones ----------------------------------------------------------------------------


def silu(x):
    return x / (1 + np.exp(-x))


def norms_and_gates():
    x, w = f32(3, 48, spread=3), f32(48)
    r = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    write("rms_norm", "plain", rows=3, dim=48, eps=np.float32(1e-5), x=x, w=w, y=x * r * w)

    gate_up = f32(2, 2 * 21, spread=6)
    g, u = gate_up[:, :21].astype(np.float64), gate_up[:, 21:].astype(np.float64)
    write("swiglu", "plain", rows=2, dim=21, x=gate_up, y=silu(g) * u)

    bits = to_bf16(f32(6, 20))
    ids = np.array([7, 3, 8, 2, 12])
    y = np.array([from_bf16(bits[i - 3]) if 3 <= i < 9 else np.zeros(20) for i in ids])
    write("embed", "part", rows=5, dim=20, begin=3, count=6, id=ids, table=bits, y=y)


def rope():
    dim, rows, heads, theta = 16, 3, 2, 50000.0
    position = np.array([0, 17, 200000])
    x = f32(rows, heads, dim)
    freq = theta ** (-np.arange(0, dim, 2) / dim)
    angle = position[:, None] * freq
    pair = x.astype(np.float64).reshape(rows, heads, dim // 2, 2)
    turned = (pair[..., 0] + 1j * pair[..., 1]) * np.exp(1j * angle)[:, None, :]
    y = np.stack([turned.real, turned.imag], axis=-1)
    write("rope", "interleaved", rows=rows, heads=heads, dim=dim, position=position,
          theta=np.float32(theta), x=x, y=y)


# ---- mixture of experts --------------------------------------------------------------------


def best(values, count):
    """Indices of the greatest values, best first, ties to the lower index."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


def route(logits, bias, topk, groups, topk_groups, softmax, renormalize, scale):
    logits = logits.astype(np.float64)
    if softmax:
        s = np.exp(logits - logits.max())
        s = s / s.sum()
    else:
        s = 1 / (1 + np.exp(-logits))
    selection = s + (bias if bias is not None else 0)
    size = len(s) // groups
    if groups > 1:
        group = [sum(sorted(selection[g * size:(g + 1) * size])[-2:]) for g in range(groups)]
        kept = best(group, topk_groups)
        selection = np.where(np.isin(np.arange(len(s)) // size, kept), selection, -np.inf)
    chosen = best(selection, topk)
    weight = s[chosen]
    if renormalize:
        weight = weight / (weight.sum() + 1e-20)
    order = np.argsort(chosen)
    return np.array(chosen)[order], (weight * scale)[order]


def routes():
    for label, experts, topk, groups, topk_groups, softmax, renorm, scale, with_bias in [
            ("sigmoid_bias", 24, 4, 1, 1, 0, 1, 2.827, 1),
            ("groups", 32, 4, 8, 3, 0, 1, 2.5, 1),
            ("softmax", 16, 6, 1, 1, 1, 0, 1.0, 0)]:
        logits = f32(4, experts, spread=1.5)
        bias = f32(experts, spread=0.3) if with_bias else None
        picked = [route(row, bias, topk, groups, topk_groups, softmax, renorm, np.float32(scale))
                  for row in logits]
        write("moe_route", label, rows=4, experts=experts, topk=topk, groups=groups,
              topk_groups=topk_groups, softmax=softmax, renormalize=renorm,
              scale=np.float32(scale), logits=logits,
              **({"bias": bias} if with_bias else {}),
              expert=np.array([e for e, _ in picked]), weight=np.array([w for _, w in picked]))


def experts():
    rows, topk, count, dim, width, segments = 3, 2, 3, 32, 64, 2
    x = f32(rows, dim)
    stored, real = [], []
    for _ in range(count):
        stored_gu, gu = make_weight(2, 2 * width, dim)
        stored_d, down = make_weight(2, dim, width)
        stored.append((stored_gu, stored_d))
        real.append((gu, down))
    expert = np.array([[0, 2], [0, 2], [0, 2]])  # expert 1 has no rows
    weight = f32(rows, topk)
    y = np.zeros((segments, rows, dim))
    for t in range(rows):
        for k in range(topk):
            gu, down = real[expert[t, k]]
            h = gu @ x[t].astype(np.float64)
            a = silu(h[:width]) * h[width:]
            for s in range(segments):
                part = slice(s * width // segments, (s + 1) * width // segments)
                y[s, t] += weight[t, k] * (down[:, part] @ a[part])
    write("moe_experts", "int4", rows=rows, topk=topk, experts=count, dim=dim, width=width,
          segments=segments, x=x, expert=expert, weight=weight,
          gate_up=np.stack([s[0]["w"] for s in stored]),
          gate_up_scale=np.stack([s[0]["scale"] for s in stored]),
          down=np.stack([s[1]["w"] for s in stored]),
          down_scale=np.stack([s[1]["scale"] for s in stored]), y=y)


# ---- attention -----------------------------------------------------------------------------


def attention():
    heads, latent, rope_dim, page_tok, scale = 2, 16, 16, 4, np.float32(0.21)
    # A tree of five rows behind 66 tokens: 0 - 1 - 3 and 0 - 2, 2 - 4.
    parent = [-1, 0, 0, 1, 2]
    for label, committed, rows, tree in [("chain", 62, 4, None), ("tree", 66, 5, parent)]:
        tokens = committed + rows
        pages = (tokens + page_tok - 1) // page_tok
        page = RNG.permutation(pages)
        kv = f32(pages * page_tok, latent + rope_dim)
        q_latent, q_rope = f32(rows, heads, latent), f32(rows, heads, rope_dim)
        out, masks = np.zeros((rows, heads, latent)), []
        for i in range(rows):
            seen = list(range(committed))
            if tree is None:
                seen += [committed + j for j in range(i + 1)]
            else:
                path, j = [], i
                while j >= 0:
                    path.append(j)
                    j = tree[j]
                masks.append(sum(1 << j for j in path))
                seen += [committed + j for j in path]
            slots = [page[s // page_tok] * page_tok + s % page_tok for s in seen]
            c = kv[slots, :latent].astype(np.float64)
            r = kv[slots, latent:].astype(np.float64)
            for h in range(heads):
                score = (c @ q_latent[i, h] + r @ q_rope[i, h]) * scale
                p = np.exp(score - score.max())
                out[i, h] = (p / p.sum()) @ c
        write("mla_tree", label, rows=rows, committed=committed, heads=heads, latent=latent,
              rope=rope_dim, page_tok=page_tok, scale=scale, page=page, kv=kv, q_latent=q_latent,
              q_rope=q_rope, **({"mask": np.array(masks, dtype=np.uint64)} if tree else {}),
              out=out)


# ---- sampling ------------------------------------------------------------------------------


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def gumbel(seed, choice, position, token):
    c = 0x9E3779B97F4A7C15
    row = mix(((mix(((mix((seed + c) & MASK) ^ choice) + c) & MASK) ^ position) + c) & MASK)
    bits = mix((row + (token + 1) * c) & MASK)
    u = (2 * (bits >> 12) + 1) / 2**53
    assert 0 < u < 1
    return -math.log(-math.log(u))


def draw(logits, temperature, top_k, top_p, seed, choice, position, min_p=0.0):
    logits = [float(v) for v in logits]
    order = best(logits, len(logits))
    if temperature == 0:
        return order[0]
    z = [v / float(np.float32(temperature)) for v in logits]
    keep = order[:top_k] if top_k else order
    if top_p < 1:
        p = {i: math.exp(z[i] - z[order[0]]) for i in keep}
        total, mass, count = sum(p[i] for i in sorted(keep)), 0.0, 0
        for i in keep:
            mass, count = mass + p[i], count + 1
            if mass >= float(np.float32(top_p)) * total:
                break
        keep = keep[:count]
    keep = [i for i in keep if math.exp(z[i] - z[order[0]]) >= min_p]
    return max(keep, key=lambda i: (z[i] + gumbel(seed, choice, position, i), -i))


def samples():
    for case in range(16):
        vocab = 40 + 7 * case
        logits = f32(vocab, spread=2)
        if case % 4 == 3:
            logits = np.round(logits)  # ties
        temperature = [0.0, 1.0, 0.6, 1.7][case % 4]
        top_k, top_p = [0, 5, 20][case % 3], [1.0, 0.9, 0.5][case // 2 % 3]
        seed, choice, position = int(RNG.integers(1 << 63)) * 2 + 1, case % 5, case * 1000
        token = draw(logits, temperature, top_k, top_p, seed, choice, position)
        lse = math.log(sum(math.exp(float(v)) for v in logits))
        top = best([float(v) for v in logits], 4)
        write("sample", f"case_{case}", vocab=vocab, temperature=np.float32(temperature),
              top_p=np.float32(top_p), top_k=top_k, seed=np.uint64(seed), choice=choice,
              position=position, logits=logits, token=token,
              logprob=np.float64(logits[token] - lse), top_token=top,
              top_logprob=np.array([float(logits[i]) - lse for i in top]))


# ---- FP8, and INT4 in segments that cut groups -----------------------------------------------


def e4m3(code):
    """Sign, four bits of exponent, three of mantissa; the exponent's bias is 7."""
    sign, e, m = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    return sign * (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))


def fp8():
    codes = np.array([c for c in range(256) if c & 127 != 127])
    values = np.array([e4m3(int(c)) for c in codes])
    assert values.max() == 448 and np.abs(values[values != 0]).min() == 2.0**-9
    write("linear", "every_code", format=3, n=len(codes), k=1, rows=1, segments=1, block_begin=0,
          row_begin=0, x=np.ones((1, 1), np.float32), w=codes,
          scale_f32=np.ones((2, 1), np.float32), y=values)
    for n, k, rows, segments, block_begin, row_begin in [(34, 72, 3, 8, 100, 110),
                                                         (9, 130, 2, 1, 127, 0),
                                                         (17, 256, 1, 4, 0, 120)]:
        w = RNG.choice(codes, (n, k))
        blocks = (block_begin + k + 127) // 128
        scale = np.abs(f32((row_begin + n + 127) // 128, blocks)) * np.float32(0.01)
        spread = scale[(row_begin + np.arange(n)) // 128][:, (block_begin + np.arange(k)) // 128]
        real = (values[np.searchsorted(codes, w)] * spread.astype(np.float64)).astype(np.float32)
        x = f32(rows, k)
        write("linear", "format_3", format=3, n=n, k=k, rows=rows, segments=segments,
              block_begin=block_begin, row_begin=row_begin, x=x, w=w, scale_f32=scale,
              y=x.astype(np.float64) @ real.astype(np.float64).T)
    stored, real = make_weight(2, 5, 352)
    x = f32(2, 352)
    write("linear", "cut_groups", format=2, n=5, k=352, rows=2, segments=8, x=x, **stored,
          y=x.astype(np.float64) @ real.T)


def min_p():
    for case in range(6):
        vocab, least = 50 + case, np.float32([0.02, 0.1, 0.3, 0.7, 1.0, 0.05][case])
        logits = f32(vocab, spread=1.5)
        temperature, top_k, top_p = [1.0, 0.6, 2.5][case % 3], [0, 12][case % 2], [1.0, 0.8][case // 3]
        seed = int(RNG.integers(1 << 63))
        token = draw(logits, temperature, top_k, top_p, seed, case, 7, float(least))
        lse = math.log(sum(math.exp(float(v)) for v in logits))
        top = best([float(v) for v in logits], 1)
        write("sample", f"min_p_{case}", vocab=vocab, temperature=np.float32(temperature),
              top_p=np.float32(top_p), top_k=top_k, min_p=least, seed=np.uint64(seed), choice=case,
              position=7, logits=logits, token=token, logprob=np.float64(logits[token] - lse),
              top_token=top, top_logprob=np.array([float(logits[i]) - lse for i in top]))


def drafter():
    """What a block-diffusion drafter adds: rope of halves, a block over its context, likeliest tokens."""
    dim, rows, heads, theta = 16, 3, 2, 10000.0
    position = np.array([3, 40, 7000])
    x = f32(rows, heads, dim)
    angle = position[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
    turned = (x[..., :8].astype(np.float64) + 1j * x[..., 8:]) * np.exp(1j * angle)[:, None, :]
    write("rope", "halves", halves=1, rows=rows, heads=heads, dim=dim, position=position,
          theta=np.float32(theta), x=x, y=np.concatenate([turned.real, turned.imag], axis=-1))

    for label, heads, groups, committed, begin, rows, window, causal in [
            ("full", 2, 1, 70, 0, 3, 0, 0), ("sliding", 1, 1, 62, 0, 4, 9, 1),
            ("late", 4, 2, 20, 11, 3, 0, 0)]:
        dim, page_tok, scale = 16, 8, np.float32(0.3)
        pages = committed // page_tok + 1
        page = RNG.permutation(pages)
        kv = f32(pages * page_tok, 2, groups, dim)
        q, k, v = f32(rows, heads, dim), f32(rows, groups, dim), f32(rows, groups, dim)
        slots = [int(page[t // page_tok]) * page_tok + t % page_tok for t in range(committed)]
        keys = np.concatenate([kv[slots, 0], k]).astype(np.float64)
        values = np.concatenate([kv[slots, 1], v]).astype(np.float64)
        at = np.arange(committed + rows)
        out = np.zeros((rows, heads, dim))
        for i in range(rows):
            seen = at >= begin
            if causal:
                seen &= at <= committed + i
            if window:
                seen &= at > committed + i - window
            for h in range(heads):
                g = h // (heads // groups)
                score = keys[seen, g] @ q[i, h] * float(scale)
                p = np.exp(score - score.max())
                out[i, h] = p / p.sum() @ values[seen, g]
        write("gqa_block", label, heads=heads, groups=groups, dim=dim, page_tok=page_tok,
              committed=committed, begin=begin, rows=rows, window=window, causal=causal,
              scale=scale, page=page, kv=kv, q=q, k=k, v=v, out=out)

    rows, width, count, segments, first = 2, 83, 5, 4, 1000
    logits = f32(rows, width, spread=3)
    logits[:, 40] = logits[:, 41]
    top = np.array([best([float(v) for v in row], count) for row in logits])
    cut = [s * width // segments for s in range(segments + 1)]
    part = [[row[a:b].astype(np.float64) for a, b in zip(cut, cut[1:])] for row in logits]
    write("top_tokens", "plain", rows=rows, width=width, count=count, segments=segments,
          first=first, logits=logits, token=top + first,
          logit=np.take_along_axis(logits, top, 1), max=np.array([[p.max() for p in r] for r in part]),
          sum=np.array([[np.exp(p - p.max()).sum() for p in r] for r in part]))


# ---- penalties -------------------------------------------------------------------------------


def penalized(logits, prompt, reply, bias, repetition, presence, frequency):
    """In f32 as vLLM's sampler has it: bias, then repetition (by transformers), then the rest."""
    x = torch.from_numpy(logits.copy())[None]
    for token, value in bias.items():
        x[0, token] += np.float32(value)
    if prompt + reply:
        process = RepetitionPenaltyLogitsProcessor(penalty=float(repetition))
        x = process(torch.tensor([prompt + reply]), x)
    n = torch.bincount(torch.tensor(reply, dtype=torch.long), minlength=len(logits))
    x = x - torch.tensor(frequency) * n[None].to(torch.float32)
    return (x - torch.tensor(presence) * (n > 0)[None]).numpy()[0]


def penalties():
    for case in range(8):
        vocab = 30 + 5 * case
        logits = f32(vocab, spread=4)
        prompt = [int(t) for t in RNG.integers(0, vocab, [0, 12, 40][case % 3])]
        reply = [int(t) for t in RNG.integers(0, vocab // 2, [9, 30, 1, 0][case % 4])]
        tail_count = min(case, len(reply))
        tokens = sorted(int(t) for t in RNG.choice(vocab, case, replace=False))
        bias = {t: v for t, v in zip(tokens, f32(case, spread=8))}
        strengths = [np.float32(v) for v in ([1.1, 0.7, 2.5, 1.0][case % 4],
                                             [0.0, 0.3, -2.0][case % 3],
                                             [0.7, -1.3, 0.0][case % 3])]
        count = [2 * reply[:len(reply) - tail_count].count(t) + (t in prompt) for t in range(vocab)]
        write("penalize", f"case_{case}", vocab=vocab, logits=logits, count=np.array(count),
              tail_count=tail_count, tail=np.array(reply[len(reply) - tail_count:] + [0]),
              bias_count=case, bias_token=np.array(tokens + [0]),
              bias_value=np.array(list(bias.values()) + [0], np.float32), repetition=strengths[0],
              presence=strengths[1], frequency=strengths[2],
              out=penalized(logits, prompt, reply, bias, *strengths))


# ---- the cache, and the smallest -------------------------------------------------------------


def moves():
    x, y = f32(37), f32(37)
    write("add", "plain", x=x, y=y, out=x.astype(np.float64) + y)

    rows, latent, rope_dim, slots = 5, 16, 16, 12
    token_dim = latent + rope_dim
    parts = f32(rows, latent), f32(rows, rope_dim)
    slot = np.array([3, 11, 0, 7, 4])
    kv = to_bf16(f32(slots, token_dim))
    stored = kv.copy()
    stored[slot] = to_bf16(np.concatenate(parts, axis=1))
    write("kv_store", "bf16", rows=rows, latent_dim=latent, rope_dim=rope_dim, slot=slot,
          latent=parts[0], rope=parts[1], kv=kv, out=stored)

    page_tok, copies = 4, [(0, 2, 3), (2, 1, 2), (1, 0, 4)]  # each sees the one before
    copied = kv.copy()
    for source, target, count in copies:
        copied[target * page_tok:target * page_tok + count] = copied[source * page_tok:source * page_tok + count]
    write("kv_copy", "chained", page_tok=page_tok, token_dim=token_dim, kv=kv,
          copies=np.array(copies), out=copied)

    steps, moved = [(5, 2), (2, 9), (7, 7), (9, 5)], kv.copy()
    for source, target in steps:
        moved[target] = moved[source]
    write("kv_move", "chained", token_dim=token_dim, kv=kv, moves=np.array(steps), out=moved)


def rounded_activations():
    for fmt, segments in (1, 4), (2, 2):
        stored, real = make_weight(fmt, 35, 64)
        x = f32(3, 64)
        y = from_bf16(to_bf16(x)).astype(np.float64) @ real.T
        write("linear", f"rounded_{fmt}", format=fmt, n=35, k=64, rows=3, segments=segments,
              activation=1, x=x, **stored, y=y)
    # Groups of 32 integers with a scale each; the steps are those of float32.
    stored, real = make_weight(2, 35, 96)
    x = f32(3, 96, spread=4)
    x[1, 32:64] = 0
    group = x.reshape(3, 3, 32)
    greatest = np.abs(group).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        steps = np.where(greatest > 0, np.float32(127) / greatest, np.float32(0))
    q = np.rint(group * steps) * (greatest / 127).astype(np.float64)
    write("linear", "integers", format=2, n=35, k=96, rows=3, segments=1, activation=2, x=x,
          **stored, y=q.reshape(3, 96) @ real.T)


def expanded():
    heads, latent, rope_dim, nope, width, page_tok, scale = 2, 16, 16, 6, 10, 4, np.float32(0.3)
    committed, rows = 125, 9
    tokens = committed + rows
    page = RNG.permutation((tokens + page_tok - 1) // page_tok)
    kv = f32(len(page) * page_tok, latent + rope_dim)
    w_uk, w_uv = f32(heads, latent, nope), f32(heads, width, latent)
    q = f32(rows, heads, nope + rope_dim)
    out = np.zeros((rows, heads, width))
    slots = np.array([page[s // page_tok] * page_tok + s % page_tok for s in range(tokens)])
    c, r = kv[slots, :latent].astype(np.float64), kv[slots, latent:].astype(np.float64)
    for h in range(heads):
        key = np.concatenate([c @ w_uk[h], r], axis=1)
        value = c @ w_uv[h].T
        for i in range(rows):
            seen = committed + i + 1
            score = key[:seen] @ q[i, h] * scale
            p = np.exp(score - score.max())
            out[i, h] = (p / p.sum()) @ value[:seen]
    write("mla_expanded", "chunk", rows=rows, committed=committed, heads=heads, latent=latent,
          rope=rope_dim, nope=nope, value=width, page_tok=page_tok, scale=scale, page=page, kv=kv,
          w_uk=w_uk, w_uv=w_uv, q=q, out=out)


def record(latent, rope):
    """FlashMLA's: codes, a scale for each 128 of them (a power of two), the rotated key in bf16."""
    sizes = np.array([e4m3(c) for c in range(127)])
    codes, scales, read = [], [], []
    for begin in range(0, len(latent), 128):
        group, scale = latent[begin:begin + 128].astype(np.float64), 2.0**-117
        if not np.isfinite(group).all():
            codes += [0] * len(group)
            scales.append(np.float32(np.nan))
            read += [np.nan] * len(group)
            continue
        while np.abs(group).max() > 448 * scale:
            scale *= 2
        for value in group:
            distance = np.abs(sizes - abs(value) / scale)
            nearest = np.flatnonzero(distance == distance.min())
            code = int(nearest[0] if len(nearest) == 1 else nearest[nearest % 2 == 0][0])
            read.append(math.copysign(sizes[code] * scale, value))
            codes.append(code | (128 if math.copysign(1, value) < 0 else 0))
        scales.append(np.float32(scale))
    out = bytes(codes) + np.array(scales, "<f4").tobytes() + to_bf16(rope).astype("<u2").tobytes()
    return out + bytes(-len(out) % 16), np.array(read)


def records():
    rng = np.random.default_rng(656)
    for latent, rope, rows, slots in (144, 16, 8, 11), (512, 64, 2, 3):
        c = (rng.standard_normal((rows, latent)) * 2.0 ** rng.integers(-9, 9, (rows, 1))).astype(np.float32)
        key = rng.standard_normal((rows, rope)).astype(np.float32)
        if rows == 8:
            c[1] = np.copysign(0, c[1])
            c[2, 77], c[3, 143] = np.inf, np.nan
            c[4, :128] *= 3584 / np.abs(c[4, :128]).max()  # 448 * 8, and the next number above it
            c[4, 60], c[4, 140] = -3584, np.nextafter(np.float32(3584), np.float32(4000))
            ties = [448, 17, 19, -27, 0.5**10, 1.5 * 0.5**9, -2.5 * 0.5**9, 7.5 * 0.5**9, 15.5 * 0.5**10, 432]
            c[5] = np.resize(np.array(ties, np.float32), latent)
            c[6] *= np.float32(2.0**-140)
            c[7, 5] = np.finfo(np.float32).max
        slot = rng.permutation(slots)[:rows]
        made = [record(*row) for row in zip(c, key)]
        kv = rng.integers(0, 256, (slots, len(made[0][0])))
        stored = kv.copy()
        stored[slot] = [list(out) for out, _ in made]
        write("kv_record", f"{latent}_{rope}", rows=rows, latent_dim=latent, rope_dim=rope, slot=slot,
              latent=c, rope=key, kv=kv, out=stored, read=np.array([read for _, read in made]))


def residuals():
    rng = np.random.default_rng(20261130)
    x, add = (3 * rng.standard_normal((2, 3, 48))).astype(np.float32)
    w = rng.standard_normal(48).astype(np.float32)
    s = x.astype(np.float64) + add
    r = 1 / np.sqrt((s**2).mean(axis=1, keepdims=True) + 1e-5)
    write("rms_norm", "residual", rows=3, dim=48, eps=np.float32(1e-5), x=x, add=add, w=w, sum=s,
          y=s * r * w)


def rounded_fp8():
    rng = np.random.default_rng(128128)
    codes = np.array([c for c in range(256) if c & 127 != 127])
    values = np.array([e4m3(int(c)) for c in codes])
    for n, k, rows, segments, block_begin, row_begin in [(34, 72, 3, 8, 101, 110),
                                                         (9, 131, 2, 1, 127, 0),
                                                         (17, 256, 1, 4, 0, 120)]:
        w = rng.choice(codes, (n, k))
        scale = np.abs(rng.standard_normal(((row_begin + n + 127) // 128, (block_begin + k + 127) // 128)) * 0.01)
        scale = scale.astype(np.float32)
        spread = scale[(row_begin + np.arange(n)) // 128][:, (block_begin + np.arange(k)) // 128]
        x = rng.standard_normal((rows, k)).astype(np.float32)
        real = values[np.searchsorted(codes, w)] * spread.astype(np.float64)
        write("linear", "rounded_fp8", format=3, n=n, k=k, rows=rows, segments=segments,
              block_begin=block_begin, row_begin=row_begin, activation=1, x=x, w=w, scale_f32=scale,
              y=from_bf16(to_bf16(x)).astype(np.float64) @ real.T)


def main():
    linear()
    norms_and_gates()
    rope()
    routes()
    experts()
    attention()
    samples()
    fp8()
    min_p()
    drafter()
    penalties()
    moves()
    rounded_activations()
    expanded()
    records()
    residuals()
    rounded_fp8()


if __name__ == "__main__":
    sys.exit(main())
