"""Generator of fictional documents with questions and answers. Standard library only, deterministic by seed.

sample(r, chars, ...) gives {"kind", "system", "role", "documents": [text], "turns": [{"question", "answer", "kind"}]}.
Every turn can be asked on its own: no question depends on an earlier one.

    python3 generate.py                    prints a few samples
    python3 generate.py eval ../eval       writes the evaluation sets
    python3 generate.py eval <folder> 1000 writes sets of at least 1000 questions, by the same seeds and those that follow
"""
import gzip
import json
import os
import random
import re
import sys

import words as W

NONE = "The documents do not say."


def a_an(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ---------------------------------------------------------------- names and values

def first_name(r):
    if r.random() < 0.7:
        return r.choice(W.FIRST)
    mid = r.choice(W.SYL_B) if r.random() < 0.4 else ""
    return r.choice(W.SYL_A) + mid + r.choice(W.END_FIRST)


def last_name(r):
    if r.random() < 0.55:
        return r.choice(W.LAST)
    mid = r.choice(W.SYL_B) if r.random() < 0.5 else ""
    return r.choice(W.SYL_A) + mid + r.choice(W.END_LAST)


def full_name(r):
    return first_name(r) + " " + last_name(r)


def town(r):
    if r.random() < 0.7:
        return r.choice(W.TOWNS)
    return r.choice(W.SYL_A) + r.choice(W.SYL_B) + r.choice(W.TOWN_END)


def made_up(r):
    return (r.choice(W.SYL_A) + r.choice(W.SYL_B) + r.choice(W.SYL_B + [""])).lower()


def word(r, words):
    """Mostly a listed word, at times a made-up one: values are to be copied, not remembered."""
    return r.choice(words) if r.random() < 0.92 else made_up(r)


def job(r):
    x = r.random()
    return (r.choice(["head ", "senior ", "junior ", "assistant ", "night ", "chief ", "second "]) if x < 0.12 else "") + word(r, W.JOBS)


def near_name(r, name):
    """A name that is easily mistaken for the given one."""
    f, l = name.split(" ", 1)
    x = r.random()
    if x < 0.25:
        return f + " " + last_name(r)
    if x < 0.45:
        return first_name(r) + " " + l
    if x < 0.85:
        stem = l[:-2] if len(l) > 5 else l
        y = stem + r.choice(["s", "er", "ton", "son", "man", "ley", "ing", "en", "ard", "well"])
        return f + " " + y
    stem = f[:-1] if len(f) > 3 else f
    return stem + r.choice(["a", "ia", "o", "e", "ina", "la", "us", "ie"]) + " " + l


def price(r):
    return str(r.randint(2, 60)) if r.random() < 0.5 else f"{r.randint(1, 19)}.{r.choice(['20', '40', '50', '60', '80', '90'])}"


def clock(r):
    return f"{r.randint(5, 22)}:{r.choice(['00', '15', '30', '45'])}"


def company(r):
    stem = town(r) if r.random() < 0.5 else r.choice(W.SYL_A) + r.choice(W.SYL_B) + r.choice(["a", "o", "ex", "ia", "on", "us"])
    return stem + " " + r.choice(W.COMPANY_END)


# ---------------------------------------------------------------- facts about people
# kind: (value, statements, verb phrase, questions, answer, question about "the manager of X", reverse questions)
FACTS = {
    "town": (town,
             ["{n} lives in {v}.", "The home town of {n} is {v}.", "{n} has a home in {v}.", "{n}'s home town is {v}."],
             "lives in {v}",
             ["Where does {n} live?", "In which town does {n} live?", "What is the home town of {n}?", "What is {n}'s home town?"],
             "{n} lives in {v}.",
             ["Where does the manager of {n} live?", "Where does {n}'s manager live?", "In which town does the manager of {n} live?"],
             ["Who lives in {v}?"]),
    "job": (lambda r: a_an(job(r)),
            ["{n} works as {v}.", "{n} is employed as {v}.", "{n} is {v}.", "{n} has a job as {v}."],
            "works as {v}",
            ["What is the job of {n}?", "What does {n} do for a living?", "What is {n}'s job?", "What does {n} work as?"],
            "{n} works as {v}.",
            ["What is the job of the manager of {n}?", "What is the job of {n}'s manager?", "What does the manager of {n} work as?"],
            ["Who works as {v}?", "Who is {v}?"]),
    "extension": (lambda r: str(r.randint(1000, 9999)),
                  ["{n} can be reached at extension {v}.", "The extension of {n} is {v}.", "{n} has extension {v}.", "{n}'s extension is {v}.",
                   "Call {n} at extension {v}."],
                  "has extension {v}",
                  ["What is the extension of {n}?", "What is {n}'s extension?", "At which extension can {n} be reached?", "How can I reach {n} by phone?"],
                  "The extension of {n} is {v}.",
                  ["What is the extension of the manager of {n}?", "What is the extension of {n}'s manager?",
                   "At which extension can the manager of {n} be reached?"],
                  ["Who has extension {v}?", "Whose extension is {v}?"]),
    "manager": (None,
                ["{n} reports to {v}.", "The manager of {n} is {v}.", "{n}'s manager is {v}.", "{v} is the manager of {n}.", "{v} manages {n}."],
                "reports to {v}",
                ["Who is the manager of {n}?", "Who is {n}'s manager?", "Who does {n} report to?", "Who manages {n}?"],
                "The manager of {n} is {v}.",
                None, None),
    "possession": (lambda r: a_an(r.choice(W.COLORS) + " " + word(r, W.THINGS)),
                   ["{n} owns {v}.", "{n} has {v}.", "{v!c} belongs to {n}.", "{n} bought {v}."],
                   "owns {v}",
                   ["What does {n} own?", "Which thing does {n} own?", "What belongs to {n}?"],
                   "{n} owns {v}.",
                   ["What does the manager of {n} own?", "What does {n}'s manager own?"],
                   ["Who owns {v}?"]),
    "birth": (lambda r: str(r.randint(1948, 2004)),
              ["{n} was born in {v}.", "The birth year of {n} is {v}.", "{n} was born in the year {v}.", "{n}'s birth year is {v}."],
              "was born in {v}",
              ["When was {n} born?", "In which year was {n} born?", "What is the birth year of {n}?", "What is {n}'s birth year?"],
              "{n} was born in {v}.",
              ["When was the manager of {n} born?", "In which year was {n}'s manager born?"],
              ["Who was born in {v}?"]),
    "room": (lambda r: r.choice("ABCDEFGHKLMNPRST") + str(r.randint(1, 499)),
             ["{n} sits in room {v}.", "The room of {n} is {v}.", "{n} works in room {v}.", "{n}'s desk is in room {v}.", "You find {n} in room {v}."],
             "sits in room {v}",
             ["In which room does {n} sit?", "Where does {n} sit?", "What is the room of {n}?", "Which room is {n} in?"],
             "{n} sits in room {v}.",
             ["In which room does the manager of {n} sit?", "In which room does {n}'s manager sit?"],
             ["Who sits in room {v}?"]),
    "hobby": (lambda r: word(r, W.HOBBIES),
              ["{n} enjoys {v}.", "The hobby of {n} is {v}.", "{n} likes {v}.", "In the free time, {n} enjoys {v}.", "{n} spends weekends with {v}."],
              "enjoys {v}",
              ["What does {n} enjoy?", "What is the hobby of {n}?", "What is {n}'s hobby?", "What does {n} like?"],
              "{n} enjoys {v}.",
              ["What is the hobby of the manager of {n}?", "What does {n}'s manager enjoy?"],
              ["Who enjoys {v}?"]),
    "team": (lambda r: word(r, W.TEAMS),
             ["{n} belongs to the {v} team.", "{n} is part of the {v} team.", "{n} is in the {v} team.", "The team of {n} is {v}."],
             "belongs to the {v} team",
             ["Which team does {n} belong to?", "What is the team of {n}?", "What is {n}'s team?", "In which team is {n}?"],
             "{n} belongs to the {v} team.",
             ["Which team does the manager of {n} belong to?", "In which team is {n}'s manager?"],
             ["Who belongs to the {v} team?", "Who is in the {v} team?"]),
    "joined": (lambda r: str(r.randint(1985, 2025)),
               ["{n} joined in {v}.", "{n} joined the company in {v}.", "{n} has been with the company since {v}.", "{n} started here in {v}."],
               "joined the company in {v}",
               ["When did {n} join?", "When did {n} join the company?", "In which year did {n} join?", "Since when has {n} been with the company?"],
               "{n} joined in {v}.",
               ["When did the manager of {n} join?", "In which year did {n}'s manager join the company?"],
               ["Who joined in {v}?"]),
}
KINDS = list(FACTS)
# the first wording of a list over a shared value; answered with names in the order of their statements
LISTS = {
    "town": ["List every person who lives in {v}.", "Which people live in {v}?", "Name everyone who lives in {v}."],
    "team": ["List every person who belongs to the {v} team.", "Which people belong to the {v} team?", "Name everyone in the {v} team."],
    "hobby": ["List every person who enjoys {v}.", "Which people enjoy {v}?", "Name everyone who enjoys {v}."],
    "job": ["List every person who works as {v}.", "Which people work as {v}?", "Name everyone who works as {v}."],
}
LIST_ALL = ["List every person named in the documents.", "List all names in the documents.", "List every name in the documents.",
            "Name every person mentioned in the documents.", "Which people are named in the documents?",
            "List every person in the documents.", "List every person mentioned in the documents, in order.",
            "What are the names of the people in the documents?"]

# ---------------------------------------------------------------- facts about the house: (subject, value, statements, questions, answer)
ORG = [
    (lambda r: r.choice(W.WIFI), lambda r: f"{word(r, W.PASSWORD)}-{word(r, W.PASSWORD)}-{r.randint(10, 99)}",
     ["The {s} wifi password is {v}.", "The password of the {s} wifi is {v}.", "For the {s} wifi, use the password {v}."],
     ["What is the {s} wifi password?", "What is the password of the {s} wifi?"], "The {s} wifi password is {v}."),
    (lambda r: word(r, W.PRODUCTS), price,
     ["The {s} costs {v} euros.", "The price of the {s} is {v} euros.", "We sell the {s} for {v} euros."],
     ["How much does the {s} cost?", "What is the price of the {s}?", "What does the {s} cost?"], "The {s} costs {v} euros."),
    (lambda r: word(r, W.PLACES), clock,
     ["The {s} opens at {v}.", "The {s} is open from {v}."],
     ["When does the {s} open?", "At what time does the {s} open?"], "The {s} opens at {v}."),
    (lambda r: word(r, W.PLACES), clock,
     ["The {s} closes at {v}.", "The {s} is closed from {v}."],
     ["When does the {s} close?", "At what time does the {s} close?"], "The {s} closes at {v}."),
    (lambda r: r.choice(W.ROOMS), lambda r: str(r.randint(4, 60)),
     ["The meeting room {s} seats {v} people.", "The meeting room {s} has room for {v} people.", "Up to {v} people fit into the meeting room {s}."],
     ["How many people does the meeting room {s} seat?", "For how many people is the meeting room {s}?"], "The meeting room {s} seats {v} people."),
    (lambda r: word(r, W.PLACES), lambda r: str(r.randint(1000, 9999)),
     ["The door code of the {s} is {v}.", "The code {v} opens the door of the {s}.", "To enter the {s}, type the door code {v}."],
     ["What is the door code of the {s}?", "Which code opens the door of the {s}?"], "The door code of the {s} is {v}."),
    (lambda r: word(r, W.OBJECTS), lambda r: r.choice(W.PLACES),
     ["The {s} can be found in the {v}.", "The place of the {s} is the {v}.", "We keep the {s} in the {v}."],
     ["Where can I find the {s}?", "What is the place of the {s}?", "Where do we keep the {s}?"], "The place of the {s} is the {v}."),
    (lambda r: word(r, W.EVENTS), lambda r: r.choice(W.DAYS) if r.random() < 0.5 else f"{r.choice(W.MONTHS)} {r.randint(1, 28)}",
     ["The {s} takes place on {v}.", "The {s} is planned for {v}.", "The date of the {s} is {v}."],
     ["When does the {s} take place?", "When is the {s}?", "On which day is the {s}?"], "The {s} takes place on {v}."),
    (lambda r: word(r, W.ROLES), None,
     ["The {s} is {v}.", "{v} is the {s}.", "{v} serves as the {s}."],
     ["Who is the {s}?", "What is the name of the {s}?"], "The {s} is {v}."),
    (lambda r: word(r, W.GOODS), company,
     ["The {s} comes from {v}.", "We buy the {s} from {v}.", "The supplier of the {s} is {v}.", "{v} delivers the {s}."],
     ["Where does the {s} come from?", "Who is the supplier of the {s}?", "Who delivers the {s}?"], "The supplier of the {s} is {v}."),
    (company, lambda r: str(r.randint(1880, 2020)),
     ["{s} was founded in {v}.", "{s} has been in business since {v}."],
     ["When was {s} founded?", "In which year was {s} founded?"], "{s} was founded in {v}."),
    (lambda r: word(r, W.MACHINES), lambda r: str(r.randint(2, 90)),
     ["The {s} must be cleaned every {v} days.", "Clean the {s} every {v} days.", "The {s} is cleaned every {v} days."],
     ["How often must the {s} be cleaned?", "How often is the {s} cleaned?"], "The {s} must be cleaned every {v} days."),
    (town, lambda r: str(r.randint(2, 21)),
     ["Delivery to {s} takes {v} days.", "A delivery to {s} needs {v} days."],
     ["How long does delivery to {s} take?", "How many days does delivery to {s} take?"], "Delivery to {s} takes {v} days."),
    (lambda r: word(r, W.DESKS), lambda r: str(r.randint(1000, 9999)),
     ["The {s} can be reached at extension {v}.", "The extension of the {s} is {v}.", "Call the {s} at extension {v}."],
     ["What is the extension of the {s}?", "At which extension can the {s} be reached?"], "The extension of the {s} is {v}."),
    (lambda r: r.choice(["Refunds", "Returns", "Complaints", "Exchanges", "Cancellations", "Claims"]), lambda r: str(r.randint(3, 90)),
     ["{s} are possible within {v} days.", "{s} are accepted within {v} days.", "Customers have {v} days for {s!l}."],
     ["Within how many days are {s!l} possible?", "How long are {s!l} possible?"], "{s} are possible within {v} days."),
    (lambda r: r.choice(["full-time", "part-time", "new", "temporary", "senior", "night shift", "office", "warehouse"]) + " employee",
     lambda r: str(r.randint(10, 40)),
     ["Every {s} has {v} days of vacation.", "Each {s} gets {v} vacation days a year."],
     ["How many days of vacation does every {s} have?", "How many vacation days does every {s} get?"], "Every {s} has {v} days of vacation."),
]

TOPIC = ["likes tea", "likes coffee with milk", "walked along the river", "wrote a short letter", "arrived by train", "asked for a new chair",
         "was seen near the old mill", "signed the visitor book", "brought a cake", "took the notes", "painted the fence", "sang in the choir"]
MENTION = ["{n} {x}.", "{n} {x} on {d}.", "On {d}, {n} {x}.", "In {m}, {n} {x}.", "It is said that {n} {x}.", "As always, {n} {x}."]


def fill(t, **v):
    """str.format with two extra forms: {v!c} capitalises the first letter, {s!l} lowers it."""
    for k in ("v", "s"):
        if "{" + k + "!" in t:
            t = t.replace("{" + k + "!c}", v[k][0].upper() + v[k][1:]).replace("{" + k + "!l}", v[k][0].lower() + v[k][1:])
    return t.format(**v)


def prose(r):
    if r.random() < 0.2:
        return r.choice(W.FIXED)
    if r.random() < 0.08:  # confusable words in sentences that state no fact
        return r.choice([f"Every {r.choice(W.JOBS)} knows this problem.", f"The {r.choice(W.TEAMS)} team meets twice a month.",
                         f"Room {r.choice('ABCDEF')}{r.randint(1, 499)} is empty at the moment.", f"The year {r.randint(1950, 2025)} was a good one for {r.choice(W.HOBBIES)}.",
                         f"Nobody asked for {a_an(r.choice(W.COLORS) + ' ' + r.choice(W.THINGS))}.", f"{company(r)} sent a friendly letter.",
                         f"The bus from {town(r)} stops at the {r.choice(W.PLACES)}."])
    s = r.choice(W.SUBJ) + " " + r.choice(W.VERB) + r.choice(W.ADJ)
    if r.random() < 0.25:
        s += ", and " + (x := r.choice(W.SUBJ))[0].lower() + x[1:] + " " + r.choice(W.VERB)
    if "{" in s:
        s = s.format(t=town(r), m=r.choice(W.MONTHS), d=r.choice(W.DAYS))
    return s + "."


# ---------------------------------------------------------------- the world of one sample

class World:
    """People and house facts, and the sentences that state them: groups of (text, [(person, kind)])."""

    def __init__(self, r, near=0.0):
        self.r, self.near = r, near
        self.names, self.people, self.org, self.groups, self.chars = [], {}, {}, [], 0
        self.hot = {k: FACTS[k][0](r) for k in LISTS} if r.random() < 0.5 else {}

    def new_name(self):
        r = self.r
        for _ in range(50):
            n = near_name(r, r.choice(self.names)) if self.names and r.random() < self.near else full_name(r)
            if n not in self.names:
                break
        self.names.append(n)
        return n

    def add_group(self, sentences):
        self.groups.append(sentences)
        self.chars += sum(len(s[0]) + 1 for s in sentences)

    def add_person(self, n=None, low=1, high=7):
        r = self.r
        n = n or self.new_name()
        facts = {}
        for k in r.sample(KINDS, min(len(KINDS), r.randint(low, high))):
            if k == "manager":
                known = [m for m in self.names if m != n]
                v = r.choice(known) if known and r.random() < 0.7 else self.new_name()
            elif k in self.hot and r.random() < 0.4:
                v = self.hot[k]
            else:
                v = FACTS[k][0](r)
            facts[k] = v
        self.people[n] = facts
        ks, out, i = list(facts), [], 0
        style = r.random()
        if style < 0.1 and len(ks) >= 2:  # directory line
            parts = [{"town": "{v}", "job": "{v}", "extension": "extension {v}", "manager": "reports to {v}", "possession": "owns {v}", "birth": "born in {v}",
                      "room": "room {v}", "hobby": "hobby {v}", "team": "{v} team", "joined": "joined in {v}"}[k].format(v=facts[k]) for k in ks
                     if k != "town"]
            if "town" in facts:
                parts.insert(0, "lives in " + facts["town"])
            self.add_group([(n + r.choice([": ", ", "]) + ", ".join(parts) + ".", [(n, k) for k in ks])])
            return n
        while i < len(ks):
            m = 1 if style < 0.55 else min(len(ks) - i, r.choice([1, 2, 2, 3]))
            part = ks[i:i + m]
            i += m
            if m == 1:
                t = fill(r.choice(FACTS[part[0]][1]), n=n, v=facts[part[0]])
            else:
                vp = [FACTS[k][2].format(v=facts[k]) for k in part]
                if r.random() < 0.25 and m == 2:
                    t = f"{n}, who {vp[0]}, {vp[1]}."
                else:
                    t = f"{n} {', '.join(vp[:-1])} and {vp[-1]}."
            out.append((t, [(n, k) for k in part]))
        self.add_group(out)
        return n

    def add_org(self):
        r = self.r
        i = r.randrange(len(ORG))
        subject, value, st, _, _ = ORG[i]
        s = subject(r)
        if (i, s) in self.org:
            return
        if value is None:
            v = r.choice(self.names) if self.names and r.random() < 0.5 else self.new_name()
        else:
            v = value(r)
        self.org[i, s] = v
        self.add_group([(fill(r.choice(st), s=s, v=v), [])])

    def add_prose(self, count=1):
        self.add_group([(prose(self.r), []) for _ in range(count)])

    def add_mention(self):
        r, n = self.r, self.new_name()
        self.people[n] = {}
        self.add_group([(r.choice(MENTION).format(n=n, x=r.choice(TOPIC), d=r.choice(W.DAYS), m=r.choice(W.MONTHS)), [])])


def layout(r, world, pieces):
    """Cuts the groups into fragments. Returns the texts and the statements in reading order."""
    g = world.groups
    order = [f for group in g for s in group for f in s[1]]
    whole = r.random() < 0.6 and len(g) >= pieces
    units = g if whole else [[s] for group in g for s in group]
    pieces = max(1, min(pieces, len(units)))
    cuts = sorted(r.sample(range(1, len(units)), pieces - 1)) if pieces > 1 else []
    texts, gap_all = [], r.choice(["\n", "\n\n", " ", " ", "\n- "])
    for lo, hi in zip([0] + cuts, cuts + [len(units)]):
        gap = gap_all if r.random() < 0.8 else " "
        t = (" " if not whole and gap == "\n- " else gap).join(" ".join(s[0] for s in u) for u in units[lo:hi])
        if gap == "\n- " and whole:
            t = "- " + t
        x = r.random()
        if x < 0.2:
            t = "Title: " + r.choice(W.TITLES) + "\n" + t
        elif x < 0.27:
            t = "# " + r.choice(W.TITLES) + (" of " + company(r) if r.random() < 0.3 else "") + "\n" + r.choice(["", "\n"]) + t
        texts.append(t)
    return texts, order


def names_in_order(names, texts):
    """The names that occur, in order of first appearance, nothing inside a longer name."""
    text = "\n".join(texts)
    at = []
    for n in names:
        if m := re.search(r"\b" + re.escape(n) + r"\b(?!-)", text):
            at.append((m.start(), n))
    return [n for _, n in sorted(at)]


def name_list(names):
    return ", ".join(names) + "." if names else NONE


# ---------------------------------------------------------------- questions

def ask_fact(r, w, k, n):
    f = FACTS[k]
    return {"question": fill(r.choice(f[3]), n=n), "answer": fill(f[4], n=n, v=w.people[n][k]), "kind": "fact"}


def ask_org(r, w):
    (i, s), v = r.choice(list(w.org.items()))
    return {"question": fill(r.choice(ORG[i][3]), s=s), "answer": fill(ORG[i][4], s=s, v=v), "kind": "house"}


def ask_unanswerable(r, w):
    x = r.random()
    if x < 0.35 and w.names:  # a known person, a fact that is not stated
        n = r.choice(w.names)
        known = w.people.get(n, {})
        missing = [k for k in KINDS if k not in known]
        if missing:
            k = r.choice(missing)
            if not (k == "hobby" and not known):
                return {"question": fill(r.choice(FACTS[k][3][:3]), n=n), "answer": NONE, "kind": "unanswerable"}
    if x < 0.45:
        i = r.randrange(len(ORG))
        s = ORG[i][0](r)
        if (i, s) not in w.org:
            return {"question": fill(r.choice(ORG[i][3]), s=s), "answer": NONE, "kind": "unanswerable"}
    for _ in range(20):
        if w.names and r.random() < 0.5:
            y = r.random()
            n = near_name(r, r.choice(w.names)) if y < 0.5 else \
                r.choice(w.names).split(" ")[0] + " " + r.choice(w.names).split(" ", 1)[1]
        else:
            n = full_name(r)
        if n not in w.names:
            break
    else:
        return None
    return {"question": fill(r.choice(FACTS[r.choice(KINDS)][3]), n=n), "answer": NONE, "kind": "unanswerable"}


def ask_two_hop(r, w):
    c = [(n, f["manager"]) for n, f in w.people.items() if "manager" in f and any(k != "manager" for k in w.people.get(f["manager"], {}))]
    if not c:
        return None
    n, m = r.choice(c)
    k = r.choice([k for k in w.people[m] if k != "manager"])
    f = FACTS[k]
    return {"question": fill(r.choice(f[5]), n=n), "answer": f"The manager of {n} is {m}. " + fill(f[4], n=m, v=w.people[m][k]), "kind": "two-hop"}


def ask_reverse(r, w, order):
    for _ in range(6):
        if not order:
            return None
        n, k = r.choice(order)
        if FACTS[k][6] is None:
            continue
        v = w.people[n][k]
        if [p for p, f in w.people.items() if f.get(k) == v] == [n]:
            return {"question": fill(r.choice(FACTS[k][6]), v=v), "answer": fill(FACTS[k][4], n=n, v=v), "kind": "reverse"}
    return None


def ask_list(r, w, order):
    k = r.choice(list(LISTS))
    v = w.hot.get(k)
    if v is None:
        c = [w.people[n][q] for n, q in order if q == k]
        if not c:
            return None
        v = r.choice(c)
    who = [n for n, q in order if q == k and w.people[n][q] == v]
    if len(who) > 12:
        return None
    return {"question": r.choice(LISTS[k]).format(v=v), "answer": name_list(who), "kind": "list"}


def ask_all(r, w, texts, limit=18):
    names = names_in_order(w.names, texts)
    if len(names) > limit:
        return None
    return {"question": r.choice(LIST_ALL), "answer": name_list(names), "kind": "names"}


def noisy(r, turn):
    """Small changes of wording, in training only."""
    x, q = r.random(), turn["question"]
    if x < 0.04:
        q = q.rstrip("?.")
    elif x < 0.08:
        q = q[0].lower() + q[1:]
    elif x < 0.12:
        q = r.choice(["Please tell me: ", "Question: ", "Hello! ", "Using the documents, answer this question: ", "I have a question. "]) + q
    elif x < 0.16:
        q += r.choice([" Answer briefly.", " Use the documents.", " Answer in one sentence.", " Thank you.", " Answer from the documents only."])
    turn["question"] = q
    return turn


def system_message(r):
    x = r.random()
    if x < 0.25:
        return None
    if x < 0.75:
        return r.choice(W.SYSTEMS)
    if x < 0.85:
        return r.choice([f"You are the assistant of {company(r)}.", f"You work for {company(r)}. Answer the questions of the staff.",
                         f"You are {first_name(r)}, a friendly assistant.", "Be polite. " + r.choice(W.SYSTEMS)])
    return " ".join(prose(r) for _ in range(r.randint(1, 4)))


# ---------------------------------------------------------------- samples

def facts_sample(r, chars, pieces, turns, near=0.0, share=None, only=None):
    """only: restrict the turns to one kind of question (evaluation sets)."""
    w = World(r, near)
    share = r.choice([0, 0, 0.15, 0.4, 0.7]) if share is None else share  # how much is not about people
    house = r.random()
    while w.chars < chars:
        if r.random() < share:
            w.add_org() if r.random() < house * 0.8 else w.add_prose(r.randint(1, 4))
        else:
            n = None
            if only == "two-hop" or r.random() < 0.3:  # a manager who was only named gets facts too
                named = [m for m in w.names if m not in w.people]
                n = r.choice(named) if named else None
            w.add_person(n, high=4 if r.random() < 0.3 else 8)
    r.shuffle(w.groups)
    texts, order = layout(r, w, pieces)
    out, tries, seen = [], 0, set()
    while len(out) < turns and tries < 6 * turns:
        tries += 1
        x = r.random()
        if only == "fact" or (only is None and x < 0.54):
            t = ask_fact(r, w, *r.choice(order)[::-1]) if order else None
        elif only == "house" or (only is None and x < 0.63):
            t = ask_org(r, w) if w.org else None
        elif only == "unanswerable" or (only is None and x < 0.75):
            t = ask_unanswerable(r, w)
        elif only == "two-hop" or (only is None and x < 0.84):
            t = ask_two_hop(r, w)
        elif only == "reverse" or (only is None and x < 0.88):
            t = ask_reverse(r, w, order)
        elif only == "list" or (only is None and x < 0.97):
            t = ask_list(r, w, order)
        else:
            t = ask_all(r, w, texts)
        if t and t["question"] not in seen:
            seen.add(t["question"])
            out.append(t)
    return {"kind": "facts", "documents": texts, "turns": out}


def needles_sample(r, chars, pieces, count, turns=2):
    """Names scattered in hay; the question asks for all of them."""
    w = World(r, 0.15 if r.random() < 0.5 else 0)
    w.hot = {}
    groups = []
    for _ in range(count):
        x = r.random()
        w.add_mention() if x < 0.5 else w.add_person(high=2) if x < 0.9 else w.add_org()
    while w.chars < chars:
        w.add_prose(1)
    r.shuffle(w.groups)
    texts, order = layout(r, w, pieces)
    out = []
    t = ask_all(r, w, texts, 40)
    out.append(t)
    for _ in range(turns - 1):
        u = ask_fact(r, w, *r.choice(order)[::-1]) if order and r.random() < 0.6 else ask_unanswerable(r, w)
        if u:
            out.append(u)
    return {"kind": "needles", "documents": texts, "turns": out}


def merge_sample(r, pieces):
    """The fragments are earlier answers with lists of names; the question asks for all of them."""
    names, lists = [], []
    style = r.random()
    for _ in range(pieces):
        part = []
        for _ in range(0 if r.random() < 0.15 else r.randint(1, 6)):
            n = r.choice(names) if names and r.random() < 0.08 else full_name(r)
            if n not in part:
                part.append(n)
            if n not in names:
                names.append(n)
        lists.append(name_list(part) if style < 0.8 or not part else "\n".join("- " + n for n in part))
    return {"kind": "merge", "documents": lists, "turns": [{"question": r.choice(LIST_ALL), "answer": name_list(names), "kind": "merge"}]}


CHAT = [("Hello", "Hello! Ask me about the documents."), ("Hi", "Hello! Ask me about the documents."), ("Hello!", "Hello! Ask me about the documents."),
        ("Who are you?", "I am a small demo model. I answer questions about documents."),
        ("What can you do?", "I am a small demo model. I answer questions about documents."),
        ("Thank you", "You are welcome."), ("Thanks!", "You are welcome.")]


def sample(r, chars=1200, pieces=None, turns=8, noise=True, stage=1.0):
    """One training sample of about `chars` characters of documents. stage 0..1 brings in the harder kinds."""
    if pieces is None:
        size = 70 * (1800 / 70) ** r.random()  # 20 to 500 tokens, log-uniform
        pieces = max(1, min(48, round(chars / size)))
    x = r.random() if stage > 0.1 else 0.0
    if x < 0.34:
        s = facts_sample(r, chars, pieces, turns)
    elif x < 0.46:
        s = facts_sample(r, chars, pieces, turns, near=0.6)
    elif x < 0.80:
        most = max(1, min(24, chars // 150))
        s = needles_sample(r, chars, pieces, 0 if r.random() < 0.06 else r.randint(1, most), min(turns, 3))
    elif x < 0.98:
        s = merge_sample(r, r.randint(1, 8))
    elif x < 0.99:
        s = {"kind": "chat", "documents": [], "turns": [{"question": q, "answer": a, "kind": "chat"} for q, a in r.sample(CHAT, 3)]}
    else:
        s = facts_sample(r, 200, 1, 4)
        s = {"kind": "empty", "documents": [], "turns": [{**t, "answer": NONE} for t in s["turns"]]}
    s["system"] = system_message(r)
    roles = ["document"] * 8 + ["user"] * 2 if s["kind"] != "merge" else ["document"] * 5 + ["user"] * 2 + ["assistant"] * 3
    s["role"] = r.choice(roles)
    r.shuffle(s["turns"])
    if noise:
        s["turns"] = [noisy(r, t) if s["kind"] != "chat" else t for t in s["turns"]]
    return s


# ---------------------------------------------------------------- evaluation sets: seeds "eval-…" never occur in training ("train-…")

SYSTEM = W.SYSTEMS[0]


def people_sample(r, pieces, only, near=0.0, questions=4, share=0.15):
    """`pieces` fragments of one to three people each, with some prose between."""
    for _ in range(400):
        s = facts_sample(r, 330 * pieces, pieces, questions, near, share=share, only=only)
        if len(s["turns"]) == questions and len(s["documents"]) == pieces:
            return s
    raise RuntimeError("no sample of this form")


def eval_sets():
    for n in (1, 3, 6, 12):
        yield f"facts-{n}", 50, lambda r, n=n: people_sample(r, n, "fact")
    yield "two-hop", 40, lambda r: people_sample(r, 6, "two-hop", questions=3)
    yield "near-duplicates", 40, lambda r: people_sample(r, 6, "fact", near=0.7)
    yield "unanswerable", 40, lambda r: people_sample(r, 6, "unanswerable")
    yield "house", 30, lambda r: people_sample(r, 6, "house", share=0.6)
    yield "reverse", 30, lambda r: people_sample(r, 6, "reverse")
    yield "list", 30, lambda r: people_sample(r, 6, "list", questions=2)
    yield "mixed-long", 12, lambda r: facts_sample(r, 13500, 30, 8, share=0.4)
    for name, tokens, names, count in (("256", 256, 3, 40), ("512", 512, 4, 40), ("1k", 1024, 6, 40), ("2k", 2048, 8, 24), ("4k", 4096, 12, 16),
                                       ("8k", 8192, 16, 8), ("16k", 16384, 24, 8)):
        yield f"needles-{name}", count, lambda r, t=tokens, k=names: needles_sample(r, int(t * CHARS_PER_TOKEN), max(1, t // 170), k, 1)
    yield "merge", 40, lambda r: merge_sample(r, r.randint(2, 6))


CHARS_PER_TOKEN = 4.6  # of prose with names, under this tokenizer


def write_eval(folder, questions=0):
    """Each set has `count` samples, or more up to so many questions."""
    os.makedirs(folder, exist_ok=True)
    for name, count, make in eval_sets():
        out = []
        while len(out) < count or sum(len(s["turns"]) for s in out) < questions:
            r = random.Random(f"eval-{name}-{len(out)}")
            s = make(r)
            out.append({"system": SYSTEM, "documents": s["documents"],
                        "turns": [{"question": t["question"], "answer": t["answer"]} for t in s["turns"]]})
        text = json.dumps({"name": name, "seed": f"eval-{name}", "samples": out}, ensure_ascii=False, separators=(",", ":")) + "\n"
        with open(os.path.join(folder, name + ".json.gz"), "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as g:  # no name, no time: the same bytes again
            g.write(text.encode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["eval"]:
        write_eval(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    else:
        for i in range(int(sys.argv[1]) if len(sys.argv) > 1 else 6):
            print(json.dumps(sample(random.Random(f"show-{i}"), 700), indent=1, ensure_ascii=False))
