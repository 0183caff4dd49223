#!/usr/bin/env python3
"""Independent numpy DFlash drafter and DDTree; measures acceptance with the greedy target.

  draft_ref.py [N_DOC N_CHAT NEW_TOKENS]      writes data/acceptance.json and data/drafter_golden.json
"""
import heapq, json, math, os, sys
import numpy as np
from ref import DATA, DEPLOY, MODEL, Ref, tensors
from tok import ID, Tok

DIR = os.path.join(DEPLOY, "drafter")


class Draft:
    def __init__(self, target, dtype=np.float32):
        self.c = c = json.load(open(os.path.join(DIR, "config.json")))
        self.w = {k: v.astype(dtype) for k, v in tensors(os.path.join(DIR, "model.safetensors"))}
        self.t, self.E, self.head = dtype, target.w["model.embed_tokens.weight"], target.w["lm_head.weight"]
        r, d, th = c["rope_scaling"], c["head_dim"], c["rope_theta"]

        def find(b):
            return d * math.log(r["original_max_position_embeddings"] / (2 * math.pi * b)) / (2 * math.log(th))
        lo, hi = max(math.floor(find(r["beta_fast"])), 0), min(math.ceil(find(r["beta_slow"])), d - 1)
        i = np.arange(d // 2)
        ramp = np.clip((i - lo) / max(hi - lo, 0.001), 0, 1)
        self.inv = th ** (-2.0 * i / d) * ((1 - ramp) + ramp / r["factor"])
        self.taps, self.mask, self.bk = c["dflash_config"]["target_layer_ids"], c["dflash_config"]["mask_token_id"], c["block_size"]

    def rms(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.t(self.c["rms_norm_eps"])) * self.w[name]

    def rope(self, x, pos):
        """half-split over the whole head; x [n, heads, hd]"""
        a = (pos[:, None] * self.inv[None])[:, None]
        co, si = np.cos(a).astype(self.t), np.sin(a).astype(self.t)
        h = x.shape[-1] // 2
        return np.concatenate([x[..., :h] * co - x[..., h:] * si, x[..., h:] * co + x[..., :h] * si], -1)

    def context(self, taps, pos):
        """taps: list of [n,256] target residuals -> per-layer (K, V) of those tokens"""
        c, w = self.c, self.w
        f = self.rms(np.concatenate(taps, -1) @ w["fc.weight"].T, "hidden_norm.weight")
        out = []
        for i in range(c["num_hidden_layers"]):
            a = f"layers.{i}.self_attn."
            k = (f @ w[a + "k_proj.weight"].T).reshape(len(pos), -1, c["head_dim"])
            v = (f @ w[a + "v_proj.weight"].T).reshape(len(pos), -1, c["head_dim"])
            out.append((self.rope(self.rms(k, a + "k_norm.weight"), pos), v))
        return out

    def logits(self, ctx, s, root):
        """ctx from context() for positions >= 0, cut to s; returns logits [block-1, vocab] for positions s+1.."""
        c, w = self.c, self.w
        hd, KV = c["head_dim"], c["num_key_value_heads"]
        rep = c["num_attention_heads"] // KV
        pos = np.arange(s, s + self.bk)
        x = self.E[[root] + [self.mask] * (self.bk - 1)]
        for i in range(c["num_hidden_layers"]):
            n = f"layers.{i}."
            a = n + "self_attn."
            h = self.rms(x, n + "input_layernorm.weight")
            q = self.rope(self.rms((h @ w[a + "q_proj.weight"].T).reshape(self.bk, -1, hd), a + "q_norm.weight"), pos)
            k = self.rope(self.rms((h @ w[a + "k_proj.weight"].T).reshape(self.bk, -1, hd), a + "k_norm.weight"), pos)
            v = (h @ w[a + "v_proj.weight"].T).reshape(self.bk, -1, hd)
            k, v = np.concatenate([ctx[i][0][:s], k]), np.concatenate([ctx[i][1][:s], v])
            k, v = np.repeat(k, rep, 1), np.repeat(v, rep, 1)
            sc = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)) * self.t(hd ** -0.5)
            sc = np.exp(sc - sc.max(-1, keepdims=True))
            sc /= sc.sum(-1, keepdims=True)
            o = np.matmul(sc, v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(self.bk, -1)
            x = x + o @ w[a + "o_proj.weight"].T
            h = self.rms(x, n + "post_attention_layernorm.weight")
            g = h @ w[n + "mlp.gate_proj.weight"].T
            x = x + (g / (1 + np.exp(-g)) * (h @ w[n + "mlp.up_proj.weight"].T)) @ w[n + "mlp.down_proj.weight"].T
        return (self.rms(x, "norm.weight") @ self.head.T)[1:]


def tree(z, budget):
    """best-first DDTree over per-position marginals; returns tokens, parents (0 = root), depths of nodes 1.."""
    L, V = z.shape
    K = min(budget, V)
    m = z.max(-1, keepdims=True)
    lp = z - m - np.log(np.exp(z - m).sum(-1, keepdims=True))
    top = np.argsort(-lp, axis=1, kind="stable")[:, :K]
    lps = np.take_along_axis(lp, top, 1)
    heap = [(-float(lps[0, 0]), (0,), 0, 1, 0)]
    tok, par, dep = [], [], []
    while heap and len(tok) < budget:
        w, ranks, parent, d, r = heapq.heappop(heap)
        tok.append(int(top[d - 1, r]))
        par.append(parent)
        dep.append(d)
        me = len(tok)
        if r + 1 < K:
            heapq.heappush(heap, (w + float(lps[d - 1, r]) - float(lps[d - 1, r + 1]), ranks[:-1] + (r + 1,), parent, d, r + 1))
        if d < L:
            heapq.heappush(heap, (w - float(lps[d, 0]), ranks + (0,), me, d + 1, 0))
    return tok, par, dep


def accepted_tree(t, truth):
    tok, par, _ = t
    kids = {(p, k): i + 1 for i, (p, k) in enumerate(zip(par, tok))}
    cur, a = 0, 0
    while a < len(truth) and (cur, truth[a]) in kids:
        cur = kids[cur, truth[a]]
        a += 1
    return a


def simulate(d, seq, ctx, start, mode, stats=None):
    """seq: prompt + greedy continuation; returns rounds, emitted tokens"""
    s, rounds, emitted = start, 0, 0
    while s + 1 < len(seq):
        z = d.logits(ctx, s, seq[s])
        truth = seq[s + 1:s + d.bk]
        if mode == 0:
            y = z.argmax(-1)
            a = 0
            while a < len(truth) and int(y[a]) == truth[a]:
                a += 1
            if stats is not None:
                for k in range(min(a + 1, len(truth))):
                    stats["tried"][k] += 1
                    stats["hit"][k] += k < a
                for k in range(len(truth)):
                    stats["n"][k] += 1
                    stats["marg"][k] += int(y[k]) == truth[k]
                if a < len(truth):
                    r = int((z[a] > z[a, truth[a]]).sum())
                    stats["rank"][min(r, 4)] += 1
        else:
            a = accepted_tree(tree(z, mode), truth)
        e = min(a + 1, len(seq) - 1 - s)
        rounds, emitted, s = rounds + 1, emitted + e, s + e
    return rounds, emitted


def main():
    n_doc, n_chat, new = (int(x) for x in (sys.argv[1:4] if len(sys.argv) > 3 else (24, 40, 128)))
    tok, m = Tok(os.path.join(MODEL, "tiktoken.model")), Ref()
    d = Draft(m)
    held = json.load(open(os.path.join(DATA, "heldout_tokens.json")))
    qs = json.load(open(os.path.join(DATA, "heldout_questions.json")))
    res, gold = {}, []
    for kind in ("text", "chat"):
        cases = []
        if kind == "text":
            step = (len(held) - 64) // n_doc
            P = [held[i * step:i * step + 64] for i in range(n_doc)]
        else:
            P = [tok.chat(q) for q in qs[:n_chat]]
        for p in P:
            g, _, _ = m.greedy(p, new, (ID["<|im_end|>"],) if kind == "chat" else ())
            seq = list(p) + g
            _, taps = m.forward(seq, taps=d.taps)
            cases.append((seq, d.context(taps, np.arange(len(seq))), len(p)))
        st = dict(tried=[0] * 7, hit=[0] * 7, n=[0] * 7, marg=[0] * 7, rank=[0] * 5)
        out = {}
        for mode in (0, 8, 16, 32):
            r = e = 0
            for seq, ctx, n in cases:
                a, b = simulate(d, seq, ctx, n, mode, st if mode == 0 else None)
                r, e = r + a, e + b
            out["chain" if mode == 0 else f"ddtree_{mode}"] = round(e / r, 3)
        out["conditional_by_depth"] = [round(h / max(t, 1), 3) for h, t in zip(st["hit"], st["tried"])]
        out["marginal_by_depth"] = [round(h / max(t, 1), 3) for h, t in zip(st["marg"], st["n"])]
        out["rank_of_target_at_first_mismatch_1_2_3_4plus"] = [round(x / max(1, sum(st["rank"][1:])), 3) for x in st["rank"][1:]]
        out["prompts"], out["tokens"] = len(cases), sum(len(q) - 1 - n for q, _, n in cases)
        res[kind] = out
        print(kind, json.dumps(out), flush=True)
        for seq, ctx, n in cases[:3]:
            z = d.logits(ctx, n, seq[n])
            top = np.argsort(-z, axis=1, kind="stable")[:, :8]
            best = np.take_along_axis(z, top, 1)
            lse = z.max(-1) + np.log(np.exp(z.astype(np.float64) - z.max(-1, keepdims=True)).sum(-1))
            gold.append(dict(draft_top=top.tolist(), draft_top_logit=np.round(best.astype(float), 5).tolist(),
                             draft_lse=np.round(lse, 5).tolist(), ids=seq[:n + 1], root_position=n, draft_argmax=[int(x) for x in z.argmax(-1)],
                             draft_max_logit=[round(float(x), 4) for x in z.max(-1)], target_greedy=seq[n + 1:n + 8],
                             tree8=dict(zip(("token", "parent", "depth"), tree(z, 8)))))
    json.dump(res, open(os.path.join(DATA, "acceptance.json"), "w"), indent=1)
    json.dump(dict(note="ids[:root_position] are the tokens with target features, ids[root_position] is the root; draft_* are for the next 7 positions",
                   cases=gold), open(os.path.join(DATA, "drafter_golden.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
