"""Paragraphs of natural English out of free documentation, for samples that copy from text nobody generated.

    python3 natural.py <folder of unpacked Debian packages> <file.txt>      one paragraph a line

Packages (their licences allow use and adaptation): postgresql-doc-15 (PostgreSQL), python3.11-doc (PSF), apache2-doc (Apache 2.0),
sqlite3-doc (public domain), libreoffice-help-en-us (MPL 2.0). WordNet's glosses are read by vocabulary.py.
"""
import glob
import html
import os
import re
import sys

PARAGRAPH = re.compile(r"<(?:p|dd|li|td)\b[^>]*>(.*?)(?=</?(?:p|dd|li|td|ul|ol|dl|table|div|pre)\b)", re.S | re.I)
TAG = re.compile(r"<[^>]+>")


def plain(fragment):
    return re.sub(r"\s+", " ", html.unescape(TAG.sub("", fragment))).replace("¶", "").strip()


def good(p):
    letters = sum(c.isalpha() or c == " " for c in p)
    return 90 <= len(p) <= 1200 and letters > 0.88 * len(p) and p[0].isupper() and p[-1] in ".:!?)" and p.count(" ") > 12 and p.isascii() and re.search(r"\b(the|a|an|to|of)\b", p)


def main(folder, out):
    seen = set()
    for f in sorted(glob.glob(os.path.join(folder, "**", "*.html"), recursive=True) + glob.glob(os.path.join(folder, "**", "*.html.en"), recursive=True)):
        with open(f, encoding="utf-8", errors="replace") as h:
            seen.update(p for p in map(plain, PARAGRAPH.findall(h.read())) if good(p))
    with open(out, "w", encoding="utf-8") as h:
        h.writelines(p + "\n" for p in sorted(seen))
    print(len(seen), "paragraphs,", sum(map(len, seen)), "characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
