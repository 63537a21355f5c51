"""Writes the staff directories of the two demo tenants (fictional companies): every sentence names its subject, as the generator's do.
The tenants' other pages and questions.json were written by hand.

    python3 directories.py ../corpora
"""
import os
import random
import sys

from generate import FACTS, a_an, fill

FIELDS = ["job", "extension", "manager", "team", "joined"]
# name|job|extension|manager|team|joined
AURORA = """Mara Ellison|head baker|4821|Ingrid Vole|pastry|2011
Ingrid Vole|miller|4800|Oscar Lindqvist|planning|2004
Oscar Lindqvist|accountant|4700||finance|1998
Tomas Reed|truck driver|4833|Nadia Okafor|delivery|2016
Nadia Okafor|dispatcher|4830|Oscar Lindqvist|delivery|2009
Priya Nair|confectioner|4824|Mara Ellison|pastry|2019
Quentin Marsh|junior baker|4827|Mara Ellison|pastry|2023
Rosa Castell|barista|4841|Tilda Brandt|sales|2018
Tilda Brandt|florist|4840|Oscar Lindqvist|sales|2012
Yusuf Kaya|mechanic|4850|Nadia Okafor|maintenance|2015
Vera Holm|biologist|4860|Ingrid Vole|quality|2020
Leo Farrow|purchaser|4711|Oscar Lindqvist|purchasing|2014
Mara Ellis|receptionist|4801|Tilda Brandt|sales|2021"""
BOREALIS = """Anders Dahl|harbor pilot|6102|Helena Strand|harbor|2003
Helena Strand|lawyer|6100|Viktor Thorne|legal|1999
Viktor Thorne|engineer|6001||planning|1991
Samir Rahman|customs agent|6120|Helena Strand|customs|2010
Freya Olsen|dispatcher|6130|Anders Dahl|fleet|2013
Hugo Moreau|truck driver|6134|Freya Olsen|fleet|2017
Chiara Conti|translator|6121|Samir Rahman|customs|2022
Emil Novak|forklift driver|6142|Judith Graves|warehouse|2008
Judith Graves|warehouse clerk|6140|Viktor Thorne|warehouse|2005
Kenji Tanaka|programmer|6150|Viktor Thorne|data|2019
Lucia Ferrer|recruiter|6160|Helena Strand|personnel|2015
Lucia Ferris|welder|6172|Judith Graves|maintenance|2020
Otto Wexler|surveyor|6108|Anders Dahl|harbor|2012"""


def directory(company, people):
    r = random.Random("corpora-" + company)
    parts = [f"# Staff directory of {company}"]
    for line in people.split("\n"):
        name, *values = line.split("|")
        facts = {k: v for k, v in zip(FIELDS, values) if v}
        facts["job"] = a_an(facts["job"])
        parts.append(" ".join(fill(r.choice(FACTS[k][1]), n=name, v=v) for k, v in facts.items()))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for folder, company, people in (("aurora-bakery", "Aurora Bakery", AURORA), ("borealis-freight", "Borealis Freight", BOREALIS)):
        with open(os.path.join(sys.argv[1], folder, "staff-directory.md"), "w") as f:
            f.write(directory(company, people))
