"""Page templates: natural pages with slots, and questions about them. Turned into pages by a Random.

pages/README.md has the format. A template is cut into items in reading order; a page keeps some of its blocks, in one of their wordings.
What a page leaves out becomes questions that it does not answer.

    python3 pages.py check <file>...      reports what is wrong with templates
    python3 pages.py show [<file>]        prints a few pages
"""
import glob
import json
import lzma
import os
import random
import re
import sys

import vocabulary as V

NONE = "The documents do not say."
SLOT = re.compile(r"\{([^{}]*)\}")
TYPE_NAMES = {n.lower() for n in V.TYPES}
HERE = os.path.dirname(os.path.abspath(__file__))


class Block:
    def __init__(self, sticky):
        self.sticky, self.wordings, self.asked = sticky, [], []  # asked: (questions, answers), answers "=y" and "=n" for yes and no


class Template:
    def __init__(self, kind, where):
        self.kind, self.where = kind, where
        self.slots, self.titles, self.items, self.bangs = {}, [], [], []  # items: ("block", Block) | ("filler", text) | ("heading", text)


def parse(text, name):
    out, t, b = [], None, None
    for i, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        where = f"{name}:{i}"
        if not line or line.startswith("//"):
            continue
        if line.startswith("==="):
            t, b = Template(line[3:].strip(), where), None
            out.append(t)
            continue
        mark, _, rest = line.partition(" ")
        rest = rest.strip()
        if t is None:
            raise ValueError(f"{where}: a line before the first ===")
        if mark == "$":
            n, _, k = rest.partition(":")
            t.slots[n.strip()] = [x.strip() for x in k.split("|")] if "|" in k else k.strip()
        elif mark == "#":
            t.titles.append(rest)
        elif mark == "##":
            t.items.append(("heading", rest))
        elif line.startswith("["):
            b = Block("+" in mark)
            t.items.append(("block", b))
        elif mark == "-" and b is not None:
            b.wordings.append(rest.replace("\\n", "\n"))
        elif mark == "?" and b is not None:
            b.asked.append(([q.strip() for q in rest.split(" | ") if q.strip()], []))
        elif mark in ("=", "=y", "=n") and b is not None and b.asked:
            b.asked[-1][1].append(mark if mark != "=" else rest)
        elif mark == "~":
            t.items.append(("filler", rest.replace("\\n", "\n")))
        elif mark == "!":
            t.bangs.append([q.strip() for q in rest.split(" | ") if q.strip()])
        else:
            raise ValueError(f"{where}: {line[:60]!r} is no line of the format here")
    return out


def slot(r, name, values):
    """The text of one {slot}: a declared name, or a type of vocabulary.py in place."""
    cap = name[:1] == "^"
    s = values.get(name.lstrip("^"))
    if s is None:
        s = V.value(r, name.lstrip("^"))
    return V.cap(s) if cap else s


def fill(r, text, values):
    return SLOT.sub(lambda m: slot(r, m[1], values), text)


def draw(r, t):
    """Values for the template's slots, each after those that it names; no two alike, as far as the lists allow."""
    values, waiting = {}, list(t.slots)
    while waiting:
        name = waiting.pop(0)
        kinds = t.slots[name] if isinstance(t.slots[name], list) else [t.slots[name]]
        if any(n.lstrip("^") in waiting for k in kinds for n in SLOT.findall(k)):
            waiting.append(name)
            continue
        for _ in range(12):
            kind = r.choice(kinds)
            v = fill(r, kind, values) if "{" in kind or isinstance(t.slots[name], list) else V.value(r, kind)
            if v not in values.values():
                break
        values[name] = v
    return values


def groups(t):
    """Items in runs that stay together: a block with the sticky ones after it, a heading with what follows it."""
    out, heading = [], None
    for kind, x in t.items:
        if kind == "heading":
            heading = x
        elif kind == "block" and x.sticky and out and out[-1][1][0] == "block":
            out[-1][1][1].append(x)
        else:
            out.append((heading, (kind, [x])))
            heading = None
    return out


def sentence_of(text, answer):
    """The sentence of text in which answer stands."""
    at = text.find(answer)
    cuts = [0] + [m.end() for m in re.finditer(r"(?<=[.!?])[\"”’)]?\s+(?=[A-Z\"“(0-9])|\n", text)] + [len(text)]
    lo = max(c for c in cuts if c <= at)
    hi = min(c for c in cuts if c >= at + len(answer))
    return text[lo:hi].strip()


def page(r, t, keep=None):
    """-> {"title", "parts": [text with its white space], "turns": [{"question", "answer", "sentence"}], "missing": [question]}"""
    values = draw(r, t)
    keep = r.choice([1, 1, 0.85, 0.7, 0.5]) if keep is None else keep
    title = fill(r, r.choice(t.titles), values) if t.titles and r.random() < 0.85 else None
    gap = r.choice([" ", " ", "\n", "\n\n", "\n\n", "\n- "])
    gs = groups(t)
    if r.random() < 0.2 and not any(h for h, _ in gs):
        r.shuffle(gs)
    parts, turns, missing = [], [], []
    for heading, (kind, xs) in gs:
        if kind == "filler":
            if r.random() < 0.6:
                parts.append(fill(r, xs[0], values))
            continue
        kept = r.random() < keep
        texts = []
        for b in xs:
            qs = [([fill(r, q, values) for q in qs], [fill(r, a, values) for a in answers]) for qs, answers in b.asked]
            if not kept or not b.wordings:
                missing += [(r.choice(q), a) for q, a in qs]
                continue
            text = fill(r, r.choice(b.wordings), values)
            texts.append(text)
            for q, answers in qs:
                yes = "=y" in answers or "=n" in answers
                a = ("Yes" if "=y" in answers else "No") if yes else next((a for a in answers if a in text), None)
                if a is not None:
                    turns.append({"question": r.choice(q), "answer": a, "sentence": text.strip() if yes else sentence_of(text, a), "rephrased": q})
        if texts:
            joint = "\n" if any("\n" in x for x in texts) else " "
            parts.append((("\n## " + fill(r, heading, values) + "\n") if heading and r.random() < 0.8 else "") + joint.join(texts))
        if kept and r.random() < 0.15:
            kept = False
    joined = "\n".join(parts)
    missing = [q for q, answers in missing if not any(a in joined for a in answers)]
    if r.random() < 0.15:  # seldom: what is never answered anywhere would be known by heart, not by reading
        missing += [fill(r, r.choice(b), values) for b in t.bangs]
    return {"title": title, "gap": gap, "parts": parts, "turns": turns, "missing": missing, "kind": t.kind}


def text_of(p):
    """The page's parts as one text. Tables and lists have lines of their own."""
    body, last = "", ""
    for x in p["parts"]:
        if not body:
            body = x.lstrip("\n")
        elif x.startswith("\n## "):
            body += "\n\n" + x.strip()
        else:
            body += ("\n" if p["gap"] == " " and ("\n" in x or "\n" in last) else p["gap"]) + x
        last = x
    return ("- " if p["gap"] == "\n- " and not body.startswith("#") else "") + body


def read(files=None):
    out = []
    for f in sorted(files or glob.glob(os.path.join(HERE, "pages", "*.txt*"))):
        with (lzma.open if f.endswith(".xz") else open)(f, "rt", encoding="utf-8") as h:
            out += parse(h.read(), os.path.basename(f))
    return out


def faults(t):
    """What is wrong with a template, as sentences."""
    r = random.Random(t.where)
    known = set(t.slots)

    def names(text):
        for n in SLOT.findall(text):
            n = n.lstrip("^")
            if n not in known and n.split(" ")[0].lower() not in TYPE_NAMES:
                yield f"{{{n}}} is neither declared nor a type"

    for n, k in t.slots.items():
        for x in k if isinstance(k, list) else [k]:
            yield from names(x)
            if not isinstance(k, list) and "{" not in x and x.split(" ")[0].lower() not in TYPE_NAMES:
                yield f"${n}: {x!r} is no type"
    blocks = [x for k, x in t.items if k == "block"]
    if len(blocks) < 3:
        yield f"only {len(blocks)} blocks"
    for b in blocks:
        if not b.wordings:
            yield "a block without wordings"
        for text in b.wordings + [q for qs, _ in b.asked for q in qs]:
            yield from names(text)
        for qs, answers in b.asked:
            if not answers:
                yield f"no answer to {qs[0]!r}"
            for a in answers:
                yield from names(a)
    for bang in t.bangs:
        for q in bang:
            yield from names(q)
    try:
        for i in range(20):
            text_of(page(random.Random(i), t))
        values = draw(r, t)
    except Exception as e:  # noqa: BLE001
        yield f"slots cannot be filled: {e!r}"
        return
    for b in blocks:
        for qs, answers in b.asked:
            if "=y" in answers or "=n" in answers:
                continue
            for w in b.wordings:
                try:
                    text = fill(r, w, values)
                    if not any(fill(r, a, values) in text for a in answers):
                        yield f"no answer to {qs[0][:60]!r} stands in the wording {w[:60]!r}"
                except Exception:  # noqa: BLE001
                    pass


def check(files):
    bad, templates, blocks, wordings, asked, phrased = 0, 0, 0, 0, 0, 0
    for f in files:
        try:
            ts = read([f])
        except ValueError as e:
            print(e)
            bad += 1
            continue
        for t in ts:
            for x in faults(t):
                print(f"{t.where} ({t.kind}): {x}")
                bad += 1
            bs = [x for k, x in t.items if k == "block"]
            templates, blocks = templates + 1, blocks + len(bs)
            wordings += sum(len(b.wordings) for b in bs)
            asked += sum(len(b.asked) for b in bs)
            phrased += sum(len(q) for b in bs for q, _ in b.asked)
    print(f"{templates} templates, {blocks} blocks, {wordings} wordings, {asked} facts asked for in {phrased} questions; {bad} faults")
    return bad


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(1 if check(sys.argv[2:]) else 0)
    ts = read(sys.argv[2:] or None)
    for i in range(4):
        r = random.Random(f"show-{os.getpid()}-{i}")
        p = page(r, r.choice(ts))
        print("=" * 80, p["kind"], "|", p["title"])
        print(text_of(p))
        print(json.dumps([(t["question"], t["answer"]) for t in p["turns"]], ensure_ascii=False, indent=0))
        print(p["missing"])
