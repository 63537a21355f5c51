"""Writes the two demo corpora (fictional companies) and their questions, in the generator's style: every sentence names its subject.

    python3 corpora.py ../corpora
"""
import json
import os
import random
import sys

from generate import FACTS, NONE, ORG, a_an, fill

AURORA = {
    "name": "Aurora Bakery",
    # name: town, job, extension, manager, team, joined, hobby, possession
    "people": """Mara Ellison|Ashford|head baker|4821|Ingrid Vole|pastry|2011|pottery|green bicycle
Ingrid Vole|Halden|miller|4800|Oscar Lindqvist|planning|2004|choir|silver telescope
Oscar Lindqvist|Redcliff|accountant|4700||finance|1998|sailing|antique clock
Tomas Reed|Larkfield|truck driver|4833|Nadia Okafor|delivery|2016|fishing|red van
Nadia Okafor|Ashford|dispatcher|4830|Oscar Lindqvist|delivery|2009|chess|blue kayak
Priya Nair|Millbrook|confectioner|4824|Mara Ellison|pastry|2019|calligraphy|wooden loom
Quentin Marsh|Fairhaven|junior baker|4827|Mara Ellison|pastry|2023|juggling|yellow surfboard
Rosa Castell|Halden|barista|4841|Tilda Brandt|sales|2018|dancing|small trumpet
Tilda Brandt|Whitby|florist|4840|Oscar Lindqvist|sales|2012|birdwatching|white piano
Yusuf Kaya|Ashford|mechanic|4850|Nadia Okafor|maintenance|2015|running|black motorcycle
Vera Holm|Larkfield|biologist|4860|Ingrid Vole|quality|2020|hiking|old camera
Leo Farrow|Redcliff|purchaser|4711|Oscar Lindqvist|purchasing|2014|photography|striped tent
Mara Ellis|Millbrook|receptionist|4801|Tilda Brandt|sales|2021|origami|orange umbrella""",
    "house": [(0, "guest", "maple-copper-47"), (0, "bakery", "saffron-comet-18"), (1, "rye loaf", "4.80"), (1, "almond cake", "19"), (1, "honey cake", "16.50"),
              (1, "sourdough loaf", "5.60"), (2, "shop", "6:30"), (3, "shop", "18:00"), (2, "canteen", "5:15"), (4, "Cedar", "12"), (5, "cold store", "7731"),
              (6, "first aid kit", "mail room"), (6, "flour scale", "kitchen"), (7, "staff meeting", "Tuesday"), (7, "fire drill", "March 14"),
              (8, "safety officer", "Vera Holm"), (8, "fire warden", "Yusuf Kaya"), (9, "flour", "Calder Mills"), (9, "butter", "Inverly Dairy"),
              (9, "rye grain", "Eskdale Farms"), (11, "oven", "14"), (11, "dough mixer", "3"), (12, "Whitby", "2"), (13, "order desk", "4888"),
              (14, "Refunds", "30"), (14, "Complaints", "10"), (15, "full-time employee", "28"), (15, "part-time employee", "20")],
    "notes": {"news": "Internal newsletter", "guide": "Handbook"},
    "prose": """Aurora Bakery bakes bread and cake for the towns along the bay.
The first ovens are lit at three in the morning, when the streets are still empty.
A good loaf needs time, warmth and patience.
The old mill by the river gave the bakery its sign.
Bread that is left over in the evening goes to the food bank.
The new display in the shop was well received by the customers.
Please wash your hands before you enter the kitchen.
The summer was dry, and the price of grain rose a little.
Flour is stored on the upper floor, away from the ovens.
Aprons are washed in the house and handed out every morning.
The delivery vans are loaded before sunrise.
The recipe book stays in the office and must not be copied.
Customers often ask for bread without salt.
The autumn menu will be tasted by everyone before it is printed.
A small fire in the chimney caused more smoke than damage.
The bench in front of the shop was painted again.
Orders for weddings have to be agreed two weeks in advance.
The bakery takes part in the festival on the market square.
Sugar and spices are counted once a month.
Overtime has to be agreed in advance.""",
}
BOREALIS = {
    "name": "Borealis Freight",
    "people": """Anders Dahl|Kingsbay|harbor pilot|6102|Helena Strand|harbor|2003|rowing|heavy compass
Helena Strand|Norwick|lawyer|6100|Viktor Thorne|legal|1999|fencing|golden violin
Viktor Thorne|Kirkwall|engineer|6001||planning|1991|astronomy|large sailboat
Samir Rahman|Tidewater|customs agent|6120|Helena Strand|customs|2010|cycling|brown suitcase
Freya Olsen|Kingsbay|dispatcher|6130|Anders Dahl|fleet|2013|climbing|grey caravan
Hugo Moreau|Bellport|truck driver|6134|Freya Olsen|fleet|2017|woodcarving|red tractor
Chiara Conti|Portsea|translator|6121|Samir Rahman|customs|2022|singing|black cello
Emil Novak|Norwick|forklift driver|6142|Judith Graves|warehouse|2008|karate|small drum
Judith Graves|Saltmarsh|warehouse clerk|6140|Viktor Thorne|warehouse|2005|knitting|antique lantern
Kenji Tanaka|Tidewater|programmer|6150|Viktor Thorne|data|2019|model trains|silver radio
Lucia Ferrer|Portsea|recruiter|6160|Helena Strand|personnel|2015|yoga|white hammock
Lucia Ferris|Bellport|welder|6172|Judith Graves|maintenance|2020|archery|blue ladder
Otto Wexler|Saltmarsh|surveyor|6108|Anders Dahl|harbor|2012|swimming|old chess set""",
    "house": [(0, "depot", "anchor-granite-62"), (0, "visitor", "river-falcon-35"), (1, "pallet", "14"), (1, "wooden crate", "22.50"), (1, "moving blanket", "9.90"),
              (1, "storage unit", "55"), (2, "harbor depot", "5:00"), (3, "harbor depot", "22:00"), (3, "east gate", "20:30"), (4, "Juniper Hall", "40"), (4, "Rowan", "8"),
              (5, "server room", "9046"), (5, "loading bay", "3317"), (6, "spare keys", "boiler room"), (6, "pallet jack", "loading bay"), (7, "truck inspection", "Friday"),
              (7, "stock count", "June 27"), (8, "data protection officer", "Kenji Tanaka"), (8, "first aider", "Emil Novak"), (9, "diesel", "Tarnside Energy"),
              (9, "stretch film", "Goldcrest Supplies"), (10, "Tarnside Energy", "1962"), (11, "crane", "21"), (11, "air filter", "45"), (12, "Kirkwall", "5"),
              (12, "Upton", "3"), (13, "customs desk", "6199"), (14, "Claims", "60"), (15, "night shift employee", "33"), (15, "new employee", "25")],
    "notes": {"news": "Harbor news", "guide": "Depot notes"},
    "prose": """Borealis Freight moves goods by ship and truck along the northern coast.
Ships wait outside the bay when the wind is strong.
Trucks must not block the gate, not even for a short time.
The weather report hangs next to the gate and is replaced every morning.
Damaged goods are set aside and counted on the next day.
Safety shoes are required in all halls.
The old crane was taken down in the spring, and the new one needs less oil.
Containers without papers stay on the north side of the yard.
The ferry was late for most of the winter.
Drivers rest for at least nine hours between two tours.
Time sheets are due every second Friday.
Empty pallets are stacked no higher than a person can reach.
The canteen serves soup at midnight for the people of the night shift.
Ice on the ramp has to be reported at once.
Visitors are asked to wear a vest while they cross the yard.
The harbor office closes early on the day before a holiday.
The map in the hall shows every lighthouse of the coast.
Radio calls are answered in the order of their arrival.
The insurance pays only when the seal of a container is unbroken.
Lost parcels are searched for on the same day.""",
}
FIELDS = ["town", "job", "extension", "manager", "team", "joined", "hobby", "possession"]


def company(c, other):
    r = random.Random("corpora-" + c["name"])
    facts = {}
    for line in c["people"].split("\n"):
        name, *values = line.split("|")
        f = dict(zip(FIELDS, values))
        f["job"], f["possession"] = a_an(f["job"]), a_an(f["possession"])
        if f["hobby"] == "choir":
            f["hobby"] = "singing"
        facts[name] = {k: v for k, v in f.items() if v}
    state = lambda n, k: fill(r.choice(FACTS[k][1]), n=n, v=facts[n][k])

    directory = [f"# Staff directory of {c['name']}"]
    for n, f in facts.items():
        parts = [state(n, "job"), state(n, "extension")]
        if "manager" in f:
            parts.append(state(n, "manager"))
        parts += [state(n, "team"), state(n, "joined")]
        directory.append(" ".join(parts))

    prose = c["prose"].split("\n")
    house = list(c["house"])
    r.shuffle(house)
    lines = [fill(r.choice(ORG[i][2]), s=s, v=v) for i, s, v in house]
    guide, left = ["# " + c["notes"]["guide"]], prose[10:]
    while lines:
        guide.append(" ".join([left.pop(0)] * bool(left) + lines[:3]))
        lines = lines[3:]

    news, left = ["# " + c["notes"]["news"]], prose[:10]
    people = list(facts)
    r.shuffle(people)
    while people:
        part = [left.pop(0)] if left else []
        for n in people[:2]:
            part += [state(n, "town"), state(n, "hobby"), state(n, "possession")]
        people = people[2:]
        news.append(" ".join(part))
    files = {"staff-directory.md": directory, "handbook.md" if c is AURORA else "depot-notes.md": guide, "newsletter.md" if c is AURORA else "harbor-news.md": news}

    questions = []
    names = list(facts)
    for j, k in enumerate(FIELDS * 2):
        n = names[(5 * j + j // len(names)) % len(names)]
        if k in facts[n]:
            questions.append((FACTS[k][3][j % 3], FACTS[k][4], {"n": n, "v": facts[n][k]}))
    for i, s, v in house[:10]:
        questions.append((ORG[i][3][0], ORG[i][4], {"s": s, "v": v}))
    out = [{"question": fill(q, **{k: x for k, x in d.items() if k != "v"}), "answer": fill(a, **d)} for q, a, d in questions]
    strangers = [line.split("|")[0] for line in other["people"].split("\n")]
    for j, k in enumerate(["extension", "town", "job", "manager"]):
        out.append({"question": fill(FACTS[k][3][0], n=strangers[2 * j + 1]), "answer": NONE})
    return files, out


if __name__ == "__main__":
    for folder, c, other in (("aurora-bakery", AURORA, BOREALIS), ("borealis-freight", BOREALIS, AURORA)):
        path = os.path.join(sys.argv[1], folder)
        os.makedirs(path, exist_ok=True)
        files, questions = company(c, other)
        for name, parts in files.items():
            with open(os.path.join(path, name), "w") as f:
                f.write("\n\n".join(parts) + "\n")
        with open(os.path.join(path, "questions.json"), "w") as f:
            json.dump(questions, f, indent=1, ensure_ascii=False)
            f.write("\n")
