"""Makes a page strange: some of its content words become other words or invented ones, in the page and in its questions alike.

A small model learns a few thousand questions by heart sooner than it learns to read. When "postage" is "frindle" here and "walnut" there, what is left
to learn is where the question's words stand and what kind of thing is asked for.
"""
import functools
import os
import re

import vocabulary as V

WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?")
KEPT = set("""about above after again against almost alone along already also although always among another answer anybody anyone anything around because been before
behind being below beside between both cannot come could does doing done down during each either else enough even ever every everybody everyone everything except few
first from given have having here hers herself himself how however into itself just last least less like little made make many more most much must near need never next
nobody none nothing often once only other others ours over please quite rather really same shall should since some somebody someone something sometimes soon still such
than that their them then there these they this those though through till together too toward towards twice under until upon used very want well were what when where
whether which while who whole whom whose why will with within without would year years yes yet your month months week weeks day days hour hours minute minutes second
seconds time times today tomorrow yesterday monday tuesday wednesday thursday friday saturday sunday january february march april june july august september october
november december morning evening afternoon night noon midnight three four five seven eight nine eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million half quarter third dozen euros euro dollars pounds francs crowns percent
kilometres metres miles grams degrees price cost number name names people person place kind long high deep wide heavy large tall called named colour color
document documents page question sentence tell know find happens happen reason long fill complete stands said speaks mentioned""".split())
ENDINGS = ("ies", "ing", "ed", "es", "s", "ly", "er")


@functools.cache
def lexicon():
    """Common stems of WordNet: nouns and verbs of one word."""
    out = set()
    for f in ("index.noun", "index.verb", "index.adj"):
        path = os.path.join(V.WORDNET, f)
        if os.path.exists(path):
            with open(path) as h:
                for line in h:
                    p = line.split(" ")
                    if re.fullmatch("[a-z]{4,9}", p[0]) and int(p[2]) > 1:
                        out.add(p[0])
    return sorted(out)


@functools.lru_cache(100000)
def stem(w):
    """(stem, ending): "replies" and "reply" share a stem, so that both change alike."""
    for e in ENDINGS:
        if w.endswith(e) and len(w) - len(e) >= 3:
            s = w[:-len(e)]
            return (s + "y" if e == "ies" else s), ("s" if e == "ies" else e)
    if w.endswith("e") and len(w) > 4:
        return w[:-1], "e"
    return w, ""


def invented(r):
    """A short word that does not exist: three to seven letters, so that it costs few tokens."""
    one = lambda: r.choice("bcdfghjklmnprstvwz") + r.choice("aeiou")  # noqa: E731
    return one() + (one() if r.random() < 0.7 else "") + r.choice(["n", "r", "l", "t", "m", "sk", "nd", "p", "x", "g", "rd", "ck"])


def changes(r, texts, share, fixed):
    """stem -> new stem, for a share of the content words in texts. fixed: lower-case words that stay."""
    stems = {}
    for t in texts:
        for w in WORD.findall(t):
            low = w.lower()
            if len(low) > 3 and low not in KEPT and low not in fixed and w[1:].islower() and "'" not in w and "’" not in w:
                stems[stem(low)[0]] = None
    strange = r.random()
    for s in sorted(stems):
        if r.random() < share:
            stems[s] = invented(r) if r.random() < strange else r.choice(lexicon())
    return {s: n for s, n in stems.items() if n}


def applied(text, new):
    def one(m):
        w = m[0]
        s, e = stem(w.lower())
        n = new.get(s)
        if n is None or "'" in w or "’" in w or (len(w) > 1 and not w[1:].islower()):
            return w
        if e == "e":
            e = ""
        n = n[:-1] if e in ("ing", "ed", "er") and n.endswith("e") else n
        return V.cap(n + e) if w[0].isupper() else n + e
    return WORD.sub(one, text)


@functools.cache
def mates():
    """word -> the other one-word members of its most frequent sense, nouns and verbs (wndb(5): an index line ends in the senses' offsets)."""
    out = {}
    for kind in ("verb", "noun"):
        first, members = {}, {}
        with open(os.path.join(V.WORDNET, f"index.{kind}")) as f:
            for line in f:
                p = line.split()
                if re.fullmatch("[a-z]{3,}", p[0]):
                    first[p[0]] = p[-int(p[2])] if p[2].isdigit() else None
        with open(os.path.join(V.WORDNET, f"data.{kind}")) as f:
            for line in f:
                if not line.startswith("  "):
                    p = line.split(" ")
                    members[p[0]] = [p[4 + 2 * i] for i in range(int(p[3], 16))]
        for w, offset in first.items():
            same = [x for x in members.get(offset, ()) if x != w and re.fullmatch("[a-z]{3,12}", x) and first.get(x)]
            if same:
                out[w] = same
    return out


@functools.cache
def kinds():
    """noun -> names of what it is a kind of, one and two steps up in its most frequent sense ("violin": "bowed stringed instrument" is left out, "stringed" too: one word only)."""
    first, up, named, field, out = {}, {}, {}, {}, {}
    with open(os.path.join(V.WORDNET, "index.noun")) as f:
        for line in f:
            p = line.split()
            if re.fullmatch("[a-z]{3,}", p[0]) and p[2].isdigit():
                first[p[0]] = p[-int(p[2])]
    with open(os.path.join(V.WORDNET, "data.noun")) as f:
        for line in f:
            if line.startswith("  "):
                continue
            p = line.partition(" | ")[0].split()
            n = int(p[3], 16)
            named[p[0]], field[p[0]] = [p[4 + 2 * i] for i in range(n)], FIELDS.get(p[1])
            rest = p[5 + 2 * n:]
            up[p[0]] = next((rest[i + 1] for i in range(0, len(rest) - 3, 4) if rest[i] in ("@", "@i")), None)
    for w, at in first.items():
        names, above = [field[at]] * 2 if field[at] else [], up.get(at)
        for _ in range(4):
            if above is None or len(names) >= 4:
                break
            names += [x for x in named[above] if re.fullmatch("[a-z]{3,12}", x) and x not in VAST]
            above = up.get(above)
        if names:
            out[w] = names
    return out


FIELDS = {"05": "animal", "13": "food", "15": "place", "18": "person", "20": "plant", "27": "substance", "28": "time", "08": "part"}  # lexicographer files, lexnames(5)
# What everything is a kind of says nothing.
VAST = set("entity object whole unit abstraction artifact artefact matter physical relation attribute group grouping psychological instrumentality causal cause agent organism being".split())


def kind_of(r, w):
    """A word for what w is a kind of, or None; a plural's is plural."""
    k = kinds().get(w)
    if k:
        return r.choice(k)
    if w.endswith("s") and (k := kinds().get(w[:-1])):
        return r.choice(k) + "s"
    return None


def reworded(r, q):
    """The question with one of its words replaced by a synonym of its commonest sense."""
    words = [w for w in WORD.findall(q) if len(w) > 3 and w.islower() and w not in KEPT]
    r.shuffle(words)
    for w in words:
        s, end = (w, "") if w in mates() else (w[:-1], "s") if w.endswith("s") and w[:-1] in mates() else (None, None)
        if s:
            return re.sub(rf"\b{w}\b", r.choice(mates()[s]) + end, q, count=1)
    return q
