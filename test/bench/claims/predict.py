"""The next query from those before it: equations 2 to 5 of AsyncSpade (arXiv 2510.07486), its Algorithm 1, and what is simpler.

A ring is [..., 17, dim], float64: the newest bare query (normed, not rotated) first. A prediction is [..., dim].

Equations: for each window k = 2 to 16, weights p = softmax(w) under which the k queries before the newest give the newest,
with w small: the least of |x_t - sum p_i x_(t-i)|^2 / (2 sigma) + epsilon |w|^2 / 2, by four Newton steps from w = 0.
sigma is the mean square length of the ring's queries, so epsilon has no unit. For k = 1 the weight is 1. The same weights,
one place later (the *shift*), give the query after the newest; the 16 predictions are averaged.
"""
import numpy as np

WINDOWS = 16
EPSILON = 0.03
STEPS = 4


def softmax(w):
    e = np.exp(w - w.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def objective(w, gram, products, epsilon):
    """Less |x_t|^2 / (2 sigma), which no weight changes."""
    p = softmax(w)
    return 0.5 * np.einsum("...i,...ij,...j", p, gram, p) - (p * products).sum(-1) + 0.5 * epsilon * (w * w).sum(-1)


def newton(gram, products, epsilon=EPSILON, steps=STEPS):
    """w [..., k] for gram [..., k, k] and products [..., k] of the queries before the newest, both over sigma."""
    w = np.zeros_like(products)
    for _ in range(steps):
        p = softmax(w)
        u = np.einsum("...ij,...j", gram, p)
        s, beta = (p * u).sum(-1), (p * products).sum(-1)
        g = p * (u - products - (s - beta)[..., None]) + epsilon * w
        h = p[..., :, None] * p[..., None, :] * (gram - u[..., :, None] - u[..., None, :] + s[..., None, None])
        h += epsilon * np.eye(w.shape[-1])
        w = w - np.linalg.solve(h, g[..., None])[..., 0]
    # Should the objective rise, the weights are all alike.
    return np.where((objective(w, gram, products, epsilon) > objective(np.zeros_like(w), gram, products, epsilon))[..., None], 0, w)


def window_weights(ring, epsilon=EPSILON, steps=STEPS):
    """w of every window: {k: [..., k]}."""
    gram = np.einsum("...id,...jd->...ij", ring, ring)
    gram = gram / np.einsum("...ii->...", gram)[..., None, None] * ring.shape[-2]
    return {k: newton(gram[..., 1 : k + 1, 1 : k + 1], gram[..., 1 : k + 1, 0], epsilon, steps) if k > 1 else np.zeros((*ring.shape[:-2], 1))
            for k in range(1, WINDOWS + 1)}


def combined(ring, weights, shift=True):
    """One window's prediction. shift: the newest query has the first weight, else the one before it."""
    first = 0 if shift else 1
    return np.einsum("...i,...id->...d", weights, ring[..., first : first + weights.shape[-1], :])


def averaged(ring, ws, windows, shift=True, of=softmax):
    return sum(combined(ring, of(ws[k]), shift) for k in windows) / len(windows)


EVERY = range(1, WINDOWS + 1)
# Where Algorithm 1 differs from the equations, one at a time and together.
DIFFERENCES = {
    "minus sign": lambda ring, ws: averaged(ring, ws, EVERY, of=lambda w: softmax(-w)),
    "one regression": lambda ring, ws: averaged(ring, {k: ws[WINDOWS][..., :k] for k in EVERY}, EVERY),
    "without the newest": lambda ring, ws: averaged(ring, ws, EVERY, shift=False),
    "second softmax": lambda ring, ws: averaged(ring, ws, EVERY, of=lambda w: softmax(softmax(w))),
    "all (Algorithm 1)": lambda ring, ws: averaged(ring, {k: ws[WINDOWS][..., :k] for k in EVERY}, EVERY, shift=False,
                                                   of=lambda w: softmax(softmax(-w))),
}


def predictions(ring):
    """name -> [..., dim], of all that is compared."""
    ws = window_weights(ring)
    out = {"last query": ring[..., 0, :], "mean of 16": ring[..., :WINDOWS, :].mean(-2), "equations": averaged(ring, ws, EVERY),
           "equations, no shift": averaged(ring, ws, EVERY, shift=False)}
    out |= {f"window {k}": combined(ring, softmax(ws[k])) for k in (2, 4, 8, 16)}
    out |= {f"windows 1-{k}": averaged(ring, ws, range(1, k + 1)) for k in (2, 4, 8)}
    return out | {name: make(ring, ws) for name, make in DIFFERENCES.items()}


def check(seed=0):
    """Newton against plain gradient descent, by rings that go on smoothly and ones that do not."""
    random = np.random.default_rng(seed)
    for smooth in (0.0, 0.9):
        x = np.zeros((50, 17, 64))
        x[:, 16] = random.normal(size=(50, 64))
        for i in range(15, -1, -1):
            x[:, i] = smooth * x[:, i + 1] + random.normal(size=(50, 64))
        gram = np.einsum("nid,njd->nij", x, x)
        gram /= np.einsum("nii->n", gram)[:, None, None] / 17
        g, b = gram[:, 1:, 1:], gram[:, 1:, 0]
        w = np.zeros((50, 16))
        for _ in range(20000):
            p = softmax(w)
            u = np.einsum("nij,nj->ni", g, p)
            w = w - 0.5 * (p * (u - b - (p * (u - b)).sum(-1, keepdims=True)) + EPSILON * w)
        start, least = objective(np.zeros_like(w), g, b, EPSILON), objective(w, g, b, EPSILON)
        got = objective(newton(g, b), g, b, EPSILON)
        left = (got - least) / (start - least)
        print(f"smooth {smooth}: of the gap to the optimum is left {np.median(left):.2%} (median), {np.quantile(left, 0.95):.2%} (95 %)")
        assert (got >= least - 1e-9).all() and np.median(left) < 0.01


if __name__ == "__main__":
    check()
