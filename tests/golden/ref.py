#!/usr/bin/env python3
"""Independent numpy forward pass (no torch, own reading of safetensors, INT4 and FP8): of the exported model, and of every
kind of checkpoint that is loaded.

  ref.py ppl      [--f64]      held-out perplexity of data/heldout.txt (windows of 1024 tokens)
  ref.py golden                writes data/golden.json
  ref.py windows               writes data/perplexity.json: the loss of each held-out window
  ref.py gen TEXT [--chat]     greedy continuation
  ref.py check [NAME ...]      checkpoints/NAME: own logits, in float64, against the stored ones of transformers
Weights are exactly those of the files; activations are float32 (float64 with --f64), no bf16 rounding.
"""
import json, math, os, sys
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")   # has no effect without OpenBLAS; remove on CPUs without AVX-512
import numpy as np
HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
MODEL = os.path.join(DEPLOY, "model")
sys.path.insert(0, os.path.join(DEPLOY, "model-scripts"))


def tensors(path):
    raw = np.fromfile(path, np.uint8)
    n = int(raw[:8].view(np.uint64)[0])
    head = json.loads(raw[8:8 + n].tobytes())
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            d = raw[8 + n + a:8 + n + b].tobytes()
            if t["dtype"] == "BF16":
                v = (np.frombuffer(d, "<u2").astype(np.uint32) << 16).view(np.float32)
            elif t["dtype"] == "F8_E4M3":
                # Moved up by 20, the digits are those of a float with a bias of 127 instead of 7.
                q = np.frombuffer(d, np.uint8).astype(np.uint32)
                v = ((q & 128) << 24 | (q & 127) << 20).view(np.float32) * np.float32(2.0**120)
            else:
                v = np.frombuffer(d, {"F32": "<f4", "F16": "<f2", "I32": "<i4"}[t["dtype"]])
            yield name, v.reshape(t["shape"])


class Ref:
    def __init__(self, path=MODEL, dtype=np.float32):
        c = json.load(open(os.path.join(path, "config.json")))
        self.c = c = c.get("text_config", c)
        w = self.read(path)
        for k in [k for k in w if k.endswith(".weight_packed")]:
            base = k[:-len("_packed")]
            p = w.pop(k).view(np.uint32)
            s = w.pop(base + "_scale")
            w.pop(base + "_shape")
            nib = (p[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
            q = nib.astype(np.int32).reshape(p.shape[0], -1) - 8
            w[base] = (q * np.repeat(s, 32, axis=1)).astype(np.float32)
        for k in [k for k in w if k.endswith(".weight_scale_inv")]:
            base = k[:-len("_scale_inv")]
            s, q = w.pop(k), w[base]
            r, col = np.arange(q.shape[0]) // 128, np.arange(q.shape[1]) // 128
            w[base] = (q * s[r][:, col]).astype(np.float32)
        self.w = {k: v.astype(dtype) for k, v in w.items()}
        self.t = dtype
        r = c["rope_scaling"]
        d, th = c["qk_rope_head_dim"], c["rope_theta"]
        self.scale = (c["qk_nope_head_dim"] + d) ** -0.5
        self.inv = th ** (-2.0 * np.arange(d // 2) / d)
        if not r:
            return

        def find(b):
            return d * math.log(r["original_max_position_embeddings"] / (2 * math.pi * b)) / (2 * math.log(th))
        lo, hi = max(math.floor(find(r["beta_fast"])), 0), min(math.ceil(find(r["beta_slow"])), d - 1)
        if lo == hi:
            hi += 0.001
        i = np.arange(d // 2)
        ramp = np.clip((i - lo) / (hi - lo), 0, 1)
        self.inv = th ** (-2.0 * i / d) * ((1 - ramp) + ramp / r["factor"])
        ms = 0.1 * r["mscale_all_dim"] * math.log(r["factor"]) + 1
        self.scale *= ms * ms

    @staticmethod
    def read(path):
        """name -> values, without what is beside the text model"""
        index = os.path.join(path, "model.safetensors.index.json")
        files = ["model.safetensors"]
        if os.path.exists(index):
            files = sorted(set(json.load(open(index))["weight_map"].values()))
        w = {}
        for f in files:
            for name, v in tensors(os.path.join(path, f)):
                name = name.removeprefix("language_model.")
                if not name.startswith(("vision_tower.", "mm_projector.")) and ".rotary_emb." not in name:
                    w[name] = v
        return w

    def rms(self, x, name, eps):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.t(eps)) * self.w[name]

    def rope(self, x, pos):
        a = pos[:, None] * self.inv[None]
        sh = (len(pos),) + (1,) * (x.ndim - 2) + (a.shape[1],)
        co, si = np.cos(a).astype(self.t).reshape(sh), np.sin(a).astype(self.t).reshape(sh)
        y = np.empty_like(x)
        y[..., 0::2] = x[..., 0::2] * co - x[..., 1::2] * si
        y[..., 1::2] = x[..., 0::2] * si + x[..., 1::2] * co
        return y

    def mlp(self, x, n):
        w = self.w
        g = x @ w[n + "gate_proj.weight"].T
        return (g / (1 + np.exp(-g)) * (x @ w[n + "up_proj.weight"].T)) @ w[n + "down_proj.weight"].T

    def moe(self, x, n):
        c, w = self.c, self.w
        z = x @ w[n + "gate.weight"].T
        if c["scoring_func"] == "softmax":
            s = np.exp(z - z.max(1, keepdims=True))
            choice = s = s / s.sum(1, keepdims=True)
        else:
            s = 1 / (1 + np.exp(-z))
            choice = s + w[n + "gate.e_score_correction_bias"]
        G = c.get("n_group") or 1
        if G > 1:
            best = np.sort(choice.reshape(len(x), G, -1), axis=2)[:, :, -2:].sum(2)
            kept = np.argsort(-best, axis=1, kind="stable")[:, :c["topk_group"]]
            open_ = np.zeros((len(x), G), bool)
            np.put_along_axis(open_, kept, True, 1)
            choice = np.where(np.repeat(open_, choice.shape[1] // G, axis=1), choice, -np.inf)
        sel = np.argsort(-choice, axis=1, kind="stable")[:, :c["num_experts_per_tok"]]
        g = np.take_along_axis(s, sel, 1)
        if c["norm_topk_prob"]:
            g = g / (g.sum(1, keepdims=True) + self.t(1e-20))
        g = g * self.t(c["routed_scaling_factor"])
        y = np.zeros_like(x)
        for e in range(c["n_routed_experts"]):
            row, col = np.nonzero(sel == e)
            if len(row):
                y[row] += g[row, col][:, None] * self.mlp(x[row], f"{n}experts.{e}.")
        return y + self.mlp(x, n + "shared_experts.")

    def forward(self, ids, cache=None, taps=None):
        """logits for every new position; cache: list of per-layer [K, V] or None entries, extended in place"""
        c, w = self.c, self.w
        H, N, R, V, KR = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        past = 0 if cache is None or cache[0] is None else cache[0][0].shape[0]
        T = len(ids)
        pos = np.arange(past, past + T)
        x = w["model.embed_tokens.weight"][np.asarray(ids)]
        mask = np.where(np.arange(past + T)[None] <= pos[:, None], 0, -np.inf).astype(self.t)
        got = []
        for i in range(c["num_hidden_layers"]):
            n = f"model.layers.{i}."
            a = n + "self_attn."
            h = self.rms(x, n + "input_layernorm.weight", c["rms_norm_eps"])
            if c["q_lora_rank"]:
                q = self.rms(h @ w[a + "q_a_proj.weight"].T, a + "q_a_layernorm.weight", 1e-6) @ w[a + "q_b_proj.weight"].T
            else:
                q = h @ w[a + "q_proj.weight"].T
            q = q.reshape(T, H, N + R)
            q = np.concatenate([q[..., :N], self.rope(q[..., N:], pos)], -1)
            kv = h @ w[a + "kv_a_proj_with_mqa.weight"].T
            kb = (self.rms(kv[:, :KR], a + "kv_a_layernorm.weight", 1e-6) @ w[a + "kv_b_proj.weight"].T).reshape(T, H, N + V)
            pe = self.rope(kv[:, KR:], pos)
            K = np.concatenate([kb[..., :N], np.broadcast_to(pe[:, None], (T, H, R))], -1)
            Vv = kb[..., N:]
            if cache is not None:
                if cache[i] is not None:
                    K, Vv = np.concatenate([cache[i][0], K]), np.concatenate([cache[i][1], Vv])
                cache[i] = [K, Vv]
            s = np.matmul(q.transpose(1, 0, 2), K.transpose(1, 2, 0)) * self.t(self.scale) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            s /= s.sum(-1, keepdims=True)
            o = np.matmul(s, Vv.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(T, H * V)
            x = x + o @ w[a + "o_proj.weight"].T
            h = self.rms(x, n + "post_attention_layernorm.weight", c["rms_norm_eps"])
            x = x + (self.mlp(h, n + "mlp.") if i < c["first_k_dense_replace"] else self.moe(h, n + "mlp."))
            if taps is not None and i in taps:
                got.append(x)
        z = self.rms(x, "model.norm.weight", c["rms_norm_eps"]) @ w["lm_head.weight"].T
        return (z, got) if taps is not None else z

    def greedy(self, ids, n, stop=()):
        cache = [None] * self.c["num_hidden_layers"]
        z = self.forward(ids, cache)[-1]
        first, out, gap = z, [], 1e9
        for _ in range(n):
            t = np.partition(z, -2)[-2:]
            gap = min(gap, float(t[1] - t[0]))
            k = int(z.argmax())
            out.append(k)
            if k in stop or len(out) == n:
                break
            z = self.forward([k], cache)[-1]
        return out, first, gap


def windows(m, ids, win=1024):
    """negative log-likelihood, summed, of each window of win predicted tokens"""
    out = []
    for a in range(0, len(ids) - 1, win):
        x = ids[a:a + win + 1]
        z = m.forward(x[:-1])
        z = z - z.max(-1, keepdims=True)
        lp = z - np.log(np.exp(z).sum(-1, keepdims=True))
        out.append(dict(begin=a, tokens=len(x) - 1, nll=round(-float(lp[np.arange(len(x) - 1), x[1:]].astype(np.float64).sum()), 4)))
    return out


def ppl(m, ids, nbytes):
    w = windows(m, ids)
    nll, n = sum(x["nll"] for x in w), sum(x["tokens"] for x in w)
    return math.exp(nll / n), nll / n, nll / math.log(2) / nbytes * (len(ids) / max(n, 1)), n


RAW = ["The sqlite3_open() function", "Python is a programming language that", "CREATE TABLE", "The following example shows how to",
       "PostgreSQL is", "def main():\n    "]
CHAT = ["What does os.path.join do?", "Hello!", "What does the SQL command CREATE TABLE do?", "Which module has OrderedDict?",
        "Write the signature of str.replace.", "What is a generator?"]


def check(names):
    root = os.path.join(HERE, "checkpoints")
    for name in names or sorted(e.name for e in os.scandir(root) if e.is_dir()):
        folder = os.path.join(root, name)
        m = Ref(folder, np.float64)
        prompts = json.load(open(os.path.join(folder, "golden.json")))["prompts"]
        own = np.concatenate([m.forward(ids) for ids in prompts])
        stored = np.fromfile(os.path.join(folder, "logits.f32"), "<f4").reshape(own.shape)
        error = (np.abs(own - stored).max(1) / stored.std(1)).max()
        print(f"{name}: greatest difference {error:.2e} of the logits' deviation")
        assert error < 1e-5


def main():
    if sys.argv[1] == "check":
        check(sys.argv[2:])
        return
    from tok import Tok
    tok = Tok(os.path.join(MODEL, "tiktoken.model"))
    dt = np.float64 if "--f64" in sys.argv else np.float32
    m = Ref(dtype=dt)
    what = sys.argv[1]
    if what == "ppl":
        text = open(os.path.join(DATA, "heldout.txt")).read()
        ids = json.load(open(os.path.join(DATA, "heldout_tokens.json")))
        assert ids == tok.encode(text)
        p, l, bpb, n = ppl(m, ids, len(text.encode()))
        print(f"held-out: {n} tokens, loss {l:.4f} nats, perplexity {p:.3f}, bits per byte {bpb:.4f} ({dt.__name__})")
    elif what == "windows":
        ids = json.load(open(os.path.join(DATA, "heldout_tokens.json")))
        w = windows(m, ids)
        json.dump(dict(note="made by ref.py windows: tokens predicted and their summed negative log-likelihood (nats), "
                            "windows without overlap, float32 activations",
                       window_tokens=1024, windows=w), open(os.path.join(DATA, "perplexity.json"), "w"), indent=1)
        print(f"perplexity {math.exp(sum(x['nll'] for x in w) / sum(x['tokens'] for x in w)):.4f}")
    elif what == "gen":
        ids = tok.chat(sys.argv[2]) if "--chat" in sys.argv else tok.encode(sys.argv[2])
        print(tok.decode(m.greedy(ids, 96, (3842, 3841))[0]))
    elif what == "golden":
        out = []
        for kind, ps in (("raw", RAW), ("chat", CHAT)):
            for p in ps:
                ids = tok.encode(p) if kind == "raw" else tok.chat(p)
                g, z, gap = m.greedy(ids, 64)
                top = np.argsort(-z, kind="stable")[:5]
                cut = next((i for i, t in enumerate(g) if t in (3841, 3842)), len(g))
                out.append(dict(kind=kind, prompt=p, prompt_ids=ids, top5=[[int(t), round(float(z[t]), 5)] for t in top],
                                greedy_ids=g, greedy_text=tok.decode(g), text_to_stop=tok.decode(g[:cut]),
                                smallest_top2_gap=round(gap, 5)))
        json.dump(dict(note="float32 numpy activations, exported weights; 64 greedy tokens, not stopped at <|im_end|>; "
                            "smallest_top2_gap is the least logit distance between first and second choice over the 64 steps",
                       prompts=out), open(os.path.join(DATA, "golden.json"), "w"), indent=1, ensure_ascii=False)
        for o in out:
            print(repr(o["prompt"]), "->", repr(o["text_to_stop"][:200]), o["smallest_top2_gap"])


if __name__ == "__main__":
    main()
