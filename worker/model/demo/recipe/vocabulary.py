"""Values for the slots of page templates: names of many cultures, invented words, numbers, dates, codes. Deterministic by the given Random.

Words of the world (animals, plants, food, jobs, things) come from WordNet (Debian's package wordnet-base), so that the vocabulary is open.
"""
import functools
import os
import re

import words as W

WORDNET = os.environ.get("WORDNET", "/usr/share/wordnet")

WOMEN = """Abena Adaeze Aiko Aisha Alma Amara Anjali Anneke Aoife Ayesha Beatriz Birgit Bronwyn Carys Catalina Chiamaka Deepa Delphine Dina Efua
Eilidh Elske Emine Esra Fatima Fatou Fernanda Françoise Gaia Giulia Grace Guadalupe Hadiza Hatice Helga Hiroko Imani Ines Ingrid Isabel Jamila
Jasmine Joanna Kalpana Katarzyna Keiko Khadija Lakshmi Leila Linh Lotte Lucía Lwazi Mai Malgorzata Mariam Marisol Meera Mei-Ling Milena Moana
Naledi Naomi Nneka Noor Nuria Odile Orla Padma Parvati Perpetua Philippa Rania Rebecca Rosalind Ruta Sakura Saoirse Shirin Siobhan Solveig Soraya
Sunita Svetlana Tamar Thandiwe Thuy Valentina Wairimu Wren Yasmin Yewande Zahra Zanele Zofia Margaret Dorothy Eleanor Harriet Mabel Edith Joyce
Sheila Patricia Linda Susan Karen Donna Carol Sharon Michelle Kimberly Amanda Jessica Ashley Brenda Emily Olivia Charlotte Sophie""".split()
MEN = """Abdul Adebayo Akira Alasdair Alejandro Amadou Anand Angus Aron Arjun Babak Bartosz Bilal Bjarne Bogdan Callum Cheng Chidi Cormac Dagfinn
Dai Dimitri Dmitri Eamon Eduardo Ekow Emeka Emre Faisal Farid Femi Fergus Gareth Giorgos Goran Hamza Haruki Hiroshi Huw Ibrahim Idris Ikenna Ismail
Istvan Jabari Jamal Javier Joaquín Jorge József Kamal Kaveh Kofi Kwame Lachlan László Lorcan Luca Mahmoud Mandla Manoj Mateusz Mehmet Mihai Minh
Mohammed Murat Musa Mustafa Naveed Niall Nikhil Nuno Obinna Oleg Omari Osman Paolo Pedro Radek Rajesh Rashid Reza Rhys Rohan Ruairi Sanjay Sbusiso
Sergei Sione Sipho Stavros Sunil Tadeusz Takeshi Tendai Thabo Tiago Tunde Umut Vikram Wei Yannick Yaw Zoltán Zubair George Harold Ernest Walter
Norman Raymond Kenneth Douglas Gerald Keith Brian Kevin Gary Jeffrey Scott Steven Larry Justin Tyler Brandon Logan Ethan Jack Harry Oliver""".split()
SURNAMES = """Abara Achebe Adeyemi Afolabi Ahmed Akintola Al-Rashid Anand Andersson Asante Banerjee Barzani Bello Bhatt Boateng Botha Bui
Calloway Castellanos Chaudhry Chen Chikere Choi Cruz Danjuma Das De Wit Delacroix Demir Desai Diallo Dlamini Dubois Ebadi Eze Fernandes Fitzgerald
Fonseca Fujimoto Galanis Ganguly Goldberg Gonzalez Gunnarsson Gutierrez Hakimi Haugen Herrera Hernandez Hossain Hwang Ibarra Ismailov Iyer Jimenez
Joshi Juarez Kamau Kamara Karimi Katz Kaminski Kowalczyk Koroma Kruger Kuznetsov Lacroix Larbi Le Goff Lim Lindgren MacDonald MacLeod Mahlangu Malik
Mbeki McAllister McCarthy Mehta Mensah Mohamud Mokoena Morales Moyo Mukherjee Murphy Mwangi Nakamura Ndlovu Ngata Nguyen Nkosi Nwosu O'Brien
O'Connell O'Leary Obi Okonkwo Onyango Oyelaran Özdemir Papadopoulos Pham Pillay Popescu Rao Rasmussen Rezaei Rosenthal Rousseau Saito Salazar Sandhu
Schneider Shapiro Sharma Siddiqui Sithole Sokolov Sørensen Stavridis Suleiman Suzuki Tan Taufa Teixeira Tembo Tran Tshabalala van Dijk Vargas
Vasquez Virtanen Vo Wanjiru Watanabe Whitfield Wójcik Wong Yamamoto Yeo Zhao Zulu Ashworth Blackwood Braithwaite Cartwright Chandler Dawson Fairbairn
Goodwin Hargreaves Hartley Higgins Hobbs Jennings Kirkpatrick Lambert Middleton Ogden Pemberton Rafferty Sutcliffe Tennant Underwood Wakefield""".split()
COUNTRIES = """Portugal Norway Kenya Chile Japan Iceland Morocco Vietnam Peru Finland Ghana Ireland Poland Greece Nepal Canada Egypt Brazil Spain
Turkey Latvia Jordan Cuba Malta Uruguay Mongolia Estonia Senegal Denmark India Fiji Austria Belgium Hungary Romania Croatia Ecuador Bolivia""".split()
LANGUAGES = """English French Spanish German Portuguese Italian Polish Turkish Arabic Swahili Hindi Bengali Tamil Japanese Korean Mandarin Vietnamese
Dutch Danish Swedish Finnish Norwegian Greek Welsh Irish Latin Hungarian Czech Romanian Yoruba Zulu Persian Hebrew Thai""".split()
COLORS = """red blue green yellow orange purple white black brown grey pink turquoise beige maroon violet crimson navy gold silver ivory
olive teal scarlet lilac cream dark-green pale-blue""".replace("-", " ").split()
COLORS += ["dark green", "pale blue", "light grey", "bright red", "sky blue", "sea green"]
MATERIALS = """oak pine steel copper brass glass wool cotton linen leather granite marble slate concrete bamboo silk rubber plastic aluminium
ceramic clay cardboard paper felt iron bronze walnut ash beech titanium nylon cork wicker tin limestone sandstone""".split()
STREETS = "Street Road Lane Avenue Square Close Hill Way Row Terrace Drive Court Gate Walk Crescent Quay Park Place".split()
COMPANY = """Ltd,Inc.,GmbH,& Sons,Group,Partners,Works,Systems,Labs,Electric,Foods,Tools,Outdoor,Energy,Water,Insurance,Bank,Software,Logistics,Home,
Appliances,Books,Instruments,Textiles,Bikes,Optics,Media,Robotics,Ceramics,Travel""".replace("\n", "").split(",")
ORGS = """Association,Society,Foundation,Council,Institute,Trust,Club,Union,Committee,Library,Museum,Centre,Alliance,Federation,Cooperative,
Academy,School,Hospital,Agency,Office,Network""".replace("\n", "").split(",")
PRODUCTS = """kettle,lamp,drill,scanner,heater,mixer,printer,camera,router,speaker,vacuum cleaner,toaster,tent,stove,monitor,keyboard,freezer,fan,
lawn mower,thermostat,sewing machine,headset,backpack,projector,scale,iron,dehumidifier,bike light,water filter,blender""".replace("\n", "").split(",")
ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sc sh sk sl sm sn sp st str t th tr v w wh y z".split()
NUCLEI = "a e i o u a e i o u a e i o ai ea oo ou y".split()
CODAS = ["", "", "", "n", "r", "l", "s", "t", "d", "m", "ck", "ll", "nd", "nt", "rn", "st", "sh", "th", "x", "mp", "ng", "rt", "lt", "ft", "p", "g", "b"]
TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety"}
SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen""".split()
NOUN_FILES = {"animal": "05", "plant": "20", "food": "13", "thing": "06", "job": "18", "substance": "27"}


@functools.cache
def nouns(kind):
    """Lower-case nouns of one of WordNet's files (wndb(5): the second field of a line is the file's number), of one or two words."""
    out = set()
    with open(os.path.join(WORDNET, "data.noun")) as f:
        for line in f:
            if line.startswith("  "):
                continue
            p = line.split(" ")
            if p[1] != NOUN_FILES[kind]:
                continue
            for i in range(int(p[3], 16)):
                w = p[4 + 2 * i].replace("_", " ")
                if re.fullmatch(r"[a-z]{3,12}( [a-z]{3,10})?", w):
                    out.add(w)
    return sorted(out)


class Markov:
    """Invents names that look like the given ones: each next letter is drawn by the two before it."""

    def __init__(self, names):
        self.next = {}
        for n in names:
            s = "^^" + n + "$"
            for i in range(2, len(s)):
                self.next.setdefault(s[i - 2:i], []).append(s[i])

    def draw(self, r):
        while True:
            s = "^^"
            while len(s) < 16:
                c = r.choice(self.next[s[-2:]])
                if c == "$":
                    break
                s += c
            if 5 <= len(s) < 14:
                return s[2:]


@functools.cache
def markov(kind):
    return Markov({"woman": WOMEN, "man": MEN, "last": SURNAMES + W.LAST, "town": W.TOWNS + SURNAMES}[kind])


def word(r):
    n = r.choice([1, 2, 2, 2, 3])
    w = "".join(r.choice(ONSETS) + r.choice(NUCLEI) + (r.choice(CODAS) if i == n - 1 or r.random() < 0.3 else "") for i in range(n))
    return w if len(w) > 3 else w + r.choice(["an", "or", "el", "is", "um"])


def cap(s):
    return s[:1].upper() + s[1:]


def first(r, kind=None):
    kind = kind or r.choice(["woman", "man"])
    x = r.random()
    if x < 0.2:
        return r.choice(W.FIRST) if x < 0.1 and kind is None else r.choice(WOMEN if kind == "woman" else MEN)
    return r.choice(WOMEN if kind == "woman" else MEN) if x < 0.75 else markov(kind).draw(r)


def last(r):
    x = r.random()
    return r.choice(SURNAMES) if x < 0.45 else r.choice(W.LAST) if x < 0.65 else markov("last").draw(r)


def person(r, kind=None):
    x = r.random()
    f = first(r, kind)
    if x < 0.05:
        f += " " + r.choice("ABCDEFGHJKLMNPRSTW") + "."
    elif x < 0.1:
        return f + " " + last(r) + "-" + last(r)
    elif x < 0.16 and kind is None:
        return r.choice(["Dr", "Dr.", "Prof.", "Professor", "Captain", "Mrs", "Mr", "Ms"]) + " " + (last(r) if r.random() < 0.5 else f + " " + last(r))
    return f + " " + last(r)


def town(r):
    x = r.random()
    if x < 0.3:
        return r.choice(W.TOWNS)
    if x < 0.55:
        return cap(word(r)) + r.choice(W.TOWN_END)
    if x < 0.8:
        return markov("town").draw(r)
    return r.choice(["Port ", "Saint ", "Upper ", "Lower ", "North ", "Mount ", "New ", "Lake ", "Castle ", "San "]) + cap(word(r))


def street(r):
    return r.choice([cap(word(r)), last(r).split("'")[-1], cap(r.choice(nouns("plant")).split(" ")[-1]), r.choice(["Mill", "Church", "Station", "High", "Harbour",
                    "River", "School", "Market", "King's", "Garden", "North", "Old"])]) + " " + r.choice(STREETS)


def company(r):
    x = r.random()
    stem = cap(word(r)) if x < 0.5 else last(r) if x < 0.8 else town(r)
    y = r.random()
    return stem + " " + r.choice(COMPANY) if y < 0.6 else stem + " & " + last(r) if y < 0.75 else stem + r.choice(["ex", "ia", "o", "tec", "soft", "on"]) if y < 0.9 else stem


def org(r):
    return (town(r) if r.random() < 0.6 else cap(word(r))) + " " + r.choice(["", "", "Youth ", "Housing ", "Sailing ", "Garden ", "Music ", "Rescue ", "Heritage ", "Research ", "Nature "]) + r.choice(ORGS)


def product(r):
    p = r.choice(PRODUCTS)
    x = r.random()
    name = cap(word(r))
    return f"{name} {r.randint(2, 900)} {p}" if x < 0.25 else f"{name} {p}" if x < 0.55 else f"{name} {code_tail(r)}" if x < 0.75 else f"{r.choice(COLORS)} {p}" if x < 0.85 else p


def code_tail(r):
    return r.choice(["X", "S", "Pro", "Mini", "Max", "Plus", "II", "Go"]) + (str(r.randint(1, 90)) if r.random() < 0.5 else "")


def ordinal(n):
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def date(r):
    d, m, y = r.randint(1, 28), r.choice(W.MONTHS), r.randint(1890, 2031) if r.random() < 0.25 else r.randint(2012, 2031)
    x = r.random()
    if x < 0.25:
        return f"{d} {m} {y}"
    if x < 0.45:
        return f"{m} {d}, {y}"
    if x < 0.6:
        return f"{d} {m}"
    if x < 0.7:
        return f"{m} {d}"
    if x < 0.78:
        return f"{r.choice(W.DAYS)}, {d} {m}"
    if x < 0.86:
        return f"{ordinal(d)} {m}" + (f" {y}" if r.random() < 0.5 else "")
    if x < 0.93:
        return f"{y}-{W.MONTHS.index(m) + 1:02}-{d:02}"
    return f"{d:02}/{W.MONTHS.index(m) + 1:02}/{y}"


def clock(r):
    h, m = r.randint(0, 23), r.choice([0, 0, 0, 30, 15, 45, r.randint(0, 59)])
    x = r.random()
    if x < 0.5:
        return f"{h}:{m:02}" if h > 9 or r.random() < 0.5 else f"{h:02}:{m:02}"
    twelve = (h - 1) % 12 + 1
    half = r.choice([" am", "am", " a.m."]) if h < 12 else r.choice([" pm", "pm", " p.m."])
    return (f"{twelve}" if m == 0 else f"{twelve}:{m:02}" if x < 0.85 else f"{twelve}.{m:02}") + half


def spelled(n):
    if n < 20:
        return SMALL[n]
    return TENS[n // 10 * 10] + ("-" + SMALL[n % 10] if n % 10 else "")


def number(r, lo, hi):
    lo, hi = int(float(lo)), int(float(hi))
    n = r.randint(lo, max(lo, hi))
    if n < 13 and r.random() < 0.35 or n < 100 and r.random() < 0.06:
        return spelled(n)
    return f"{n:,}" if n > 999 and r.random() < 0.6 else str(n)


def money(r, lo, hi):
    lo, hi = int(float(lo)), int(float(hi))
    v = r.randint(lo, max(lo + 1, hi))
    s = f"{v:,}" if v > 999 else str(v)
    if v < 1000 and r.random() < 0.4:
        s += "." + r.choice(["50", "99", "20", "75", "95", "00", f"{r.randint(0, 99):02}"])
    x = r.random()
    return f"€{s}" if x < 0.22 else f"${s}" if x < 0.44 else f"£{s}" if x < 0.66 else s + r.choice([" euros", " euro", " EUR", " dollars", " pounds", " francs", " crowns", " CHF"])


def code(r):
    big, n = "ABCDEFGHJKLMNPQRSTUVWXYZ", r.randint(2, 5)
    a = "".join(r.choice(big) for _ in range(r.randint(1, 3)))
    d = "".join(r.choice("0123456789") for _ in range(n))
    x = r.random()
    return f"{a}-{d}" if x < 0.5 else a + d if x < 0.7 else f"{a}-{d}-{r.choice(big)}" if x < 0.85 else f"{d}-{a}" if x < 0.93 else f"{a.lower()}{d}{r.choice(big).lower()}"


def phone(r):
    d = lambda n: "".join(r.choice("0123456789") for _ in range(n))  # noqa: E731
    return r.choice([f"0{d(2)} {d(3)} {d(4)}", f"{d(3)}-{d(4)}", f"+{r.randint(30, 99)} {d(2)} {d(7)}", f"0{d(4)} {d(6)}", f"({d(3)}) {d(3)}-{d(4)}", f"555-{d(4)}", d(4)])


def plain(s):
    return re.sub(r"[^a-z0-9]", "", s.lower()) or "info"


def host(r):
    return plain(word(r)) + r.choice(["", "-" + plain(word(r))]) + r.choice([".example", ".com", ".org", ".net", ".io", ".co.uk", ".de"])


def email(r):
    return r.choice(["info", "help", "office", "service", "claims", "orders", plain(first(r)), plain(first(r)) + "." + plain(last(r))]) + "@" + host(r)


def url(r):
    return r.choice(["", "www.", "https://"]) + host(r) + r.choice(["", "/" + plain(word(r)), "/" + plain(word(r)) + "/" + plain(word(r))])


def version(r):
    return r.choice(["", "", "v"]) + f"{r.randint(0, 19)}.{r.randint(0, 30)}" + r.choice(["", f".{r.randint(0, 20)}"])


def room(r):
    return r.choice([f"{r.choice('ABCDEFGH')}{r.randint(1, 499)}", f"{r.randint(1, 9)}.{r.randint(1, 40):02}", str(r.randint(1, 620)), f"{r.choice('ABCDEF')}-{r.randint(1, 60)}"])


def measured(r, units, lo, hi):
    x = r.random()
    v = f"{r.uniform(lo, min(hi, lo + 20)):.1f}" if x < 0.3 else str(r.randint(lo, hi))
    return v + r.choice(units)


def file(r):
    return r.choice(["", "", "/etc/", "src/", "docs/", "~/."]) + plain(word(r)) + r.choice(["_", "-", ""]) + r.choice(["", plain(word(r))]) + r.choice([".txt", ".toml", ".json", ".py", ".md", ".log", ".csv", ".conf", ".yaml", ".pdf", ".ts", ".sh"])


def listed(r, words, invented=0.12):
    return r.choice(words) if r.random() > invented else word(r)


TYPES = {
    "person": lambda r: person(r), "first": lambda r: first(r), "last": last, "woman": lambda r: person(r, "woman"), "man": lambda r: person(r, "man"),
    "company": company, "org": org, "town": town,
    "country": lambda r: r.choice(COUNTRIES) if r.random() < 0.75 else cap(word(r)) + r.choice(["ia", "land", "stan", "a"]),
    "street": street, "address": lambda r: r.choice([f"{r.randint(1, 240)} {street(r)}", f"{r.randint(1, 99)} {street(r)}, {town(r)}"]),
    "product": product, "word": word, "Word": lambda r: cap(word(r)), "date": date, "weekday": lambda r: r.choice(W.DAYS), "month": lambda r: r.choice(W.MONTHS),
    "year": lambda r: str(r.randint(1700, 2035) if r.random() < 0.5 else r.randint(1950, 2030)), "time": clock,
    "money": money, "number": number, "decimal": lambda r, lo, hi: f"{r.uniform(float(lo), float(hi)):.{r.choice([1, 1, 2])}f}",
    "percent": lambda r: r.choice([f"{r.randint(1, 99)}%", f"{r.randint(1, 99)} %", f"{r.randint(1, 99)} percent", f"{r.randint(1, 99)} per cent", f"{r.uniform(0, 50):.1f}%"]),
    "code": code, "digits": lambda r, n: "".join(r.choice("0123456789") for _ in range(int(n))), "phone": phone, "email": email, "url": url,
    "version": version, "room": room,
    "job": lambda r: r.choice(W.JOBS) if r.random() < 0.6 else r.choice(nouns("job")),
    "animal": lambda r: listed(r, nouns("animal")), "plant": lambda r: listed(r, nouns("plant")), "food": lambda r: listed(r, nouns("food")),
    "thing": lambda r: listed(r, nouns("thing")), "color": lambda r: r.choice(COLORS), "material": lambda r: listed(r, MATERIALS, 0.05),
    "language": lambda r: r.choice(LANGUAGES) if r.random() < 0.85 else cap(word(r)),
    "temperature": lambda r: measured(r, ["°C", " °C", " degrees", " degrees Celsius", "°F", " °F"], -20, 250),
    "duration": lambda r: r.choice([number(r, 2, 90), number(r, 2, 12)]) + " " + r.choice(["minutes", "hours", "days", "weeks", "months", "years", "seconds"]),
    "weight": lambda r: measured(r, [" kg", "kg", " g", " grams", " kilograms", " pounds", " tonnes", " ounces"], 2, 900),
    "length": lambda r: measured(r, [" m", " cm", "cm", " mm", " metres", " km", " kilometres", " feet", " inches", " miles"], 2, 900),
    "file": file,
}
TYPES["color"] = TYPES["colour"] = lambda r: r.choice(COLORS)


def value(r, kind):
    """A value of a type with its arguments, such as "number 6..60" or "digits 4"."""
    name, _, rest = kind.strip().partition(" ")
    if name not in TYPES and name.lower() in TYPES:  # {Animal}: the same with a capital letter
        return cap(value(r, name.lower() + " " + rest))
    make = TYPES[name]
    args = rest.replace("..", " ").split()
    if name in ("money", "number", "decimal") and not args:
        args = ["2", "90"]
    if name == "digits" and not args:
        args = ["4"]
    return make(r, *args) if args and name in ("money", "number", "decimal", "digits") else make(r)
