/** The frame around every page of /docs: menu, search, content. It has no script. */
import { escaped } from "./html.ts";
import { searchLimits } from "./search.ts";

export interface MenuEntry {
  readonly address: string;
  readonly title: string;
}
export interface MenuGroup {
  readonly title: string;
  readonly entries: readonly MenuEntry[];
}

export interface Frame {
  /** The server's version. */
  readonly version: string;
  readonly menu: readonly MenuGroup[];
  /** The address of the page that is shown. */
  readonly address: string;
  readonly title: string;
  /** HTML. */
  readonly content: string;
  readonly parts?: readonly MenuEntry[];
  /** What was searched for. */
  readonly question?: string;
}

export function framed({ version, menu, address, title, content, parts = [], question = "" }: Frame): string {
  const entryOf = (entry: MenuEntry): string => {
    const current = entry.address === address ? ' aria-current="page"' : "";
    return `<li><a href="${escaped(entry.address)}"${current}>${escaped(entry.title)}</a></li>`;
  };
  const groups = menu.map(
    ({ title: heading, entries }) => `<h2>${escaped(heading)}</h2><ul>${entries.map(entryOf).join("")}</ul>`,
  );
  const contents =
    parts.length < 2
      ? ""
      : `<details class="parts"><summary>On this page</summary><ul>${parts.map(entryOf).join("")}</ul></details>`;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${escaped(title)} · Spangate</title><link rel="stylesheet" href="/docs/style.css"></head><body>
<a class="skip" href="#content">Skip to the content</a>
<header><a class="name" href="/docs">Spangate <span>${escaped(version)}</span></a>
<form action="/docs/search" role="search"><input type="search" name="q" aria-label="Search the documents" placeholder="Search" maxlength="${searchLimits.chars}" value="${escaped(question)}"><button>Search</button></form>
<a href="/">Console</a></header>
<div class="frame"><nav aria-label="Documents"><details open><summary>Menu</summary>${groups.join("")}</details></nav>
<main id="content" tabindex="-1">${contents}${content}</main></div>
</body></html>
`;
}

export const stylesheet = `
:root {
  color-scheme: light dark;
  --text: light-dark(#1c2330, #dfe4ec); --soft-text: light-dark(#4b5566, #a9b3c3); --back: light-dark(#fff, #14181f);
  --soft: light-dark(#f3f5f8, #1c222b); --line: light-dark(#d8dde5, #303947); --link: light-dark(#0b57a8, #8ec2ff);
}
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; color: var(--text); background: var(--back); }
a { color: var(--link); }
a:focus-visible, input:focus-visible, button:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--back); padding: .3rem .6rem; z-index: 1; }
header { display: flex; gap: 1rem; align-items: center; padding: .7rem 1.2rem; border-bottom: 1px solid var(--line); }
header .name { font-weight: 650; color: var(--text); text-decoration: none; }
header .name span { font-weight: 400; color: var(--soft-text); font-size: .85rem; }
header form { display: flex; flex: 1; gap: .4rem; max-width: 32rem; margin-left: auto; }
input { flex: 1; min-width: 4rem; } input, button { font: inherit; padding: .3rem .6rem; color: inherit; background: var(--soft); border: 1px solid var(--line); border-radius: .3rem; }
.frame { display: grid; grid-template-columns: 15rem minmax(0, 1fr); max-width: 80rem; margin: 0 auto; }
nav { padding: 1rem 1.2rem; border-right: 1px solid var(--line); }
nav summary { display: none; } nav h2 { font-size: .8rem; text-transform: uppercase; letter-spacing: .05em; color: var(--soft-text); margin: 1.1rem 0 .3rem; }
nav ul { list-style: none; margin: 0; padding: 0; } nav li a { display: block; padding: .12rem .5rem; text-decoration: none; border-radius: .3rem; }
nav a[aria-current] { background: var(--soft); font-weight: 600; color: var(--text); box-shadow: inset 3px 0 var(--link); }
main { padding: 1rem 2rem 4rem; min-width: 0; } main > :is(p, ul, ol, h1, h2, h3) { max-width: 52rem; }
h1 { font-size: 1.8rem; line-height: 1.25; } h2 { font-size: 1.35rem; margin-top: 2.2rem; } h3 { font-size: 1.1rem; margin-top: 1.6rem; }
.anchor { text-decoration: none; opacity: .45; font-weight: 400; } .anchor:is(:hover, :focus) { opacity: 1; }
code, pre { font: .86em/1.5 ui-monospace, monospace; } :not(pre) > code { background: var(--soft); padding: .1em .3em; border-radius: .25em; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .8rem 1rem; background: var(--soft); border: 1px solid var(--line); border-radius: .4rem; }
.table { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; font-size: .93em; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); } .number { text-align: right; }
details.parts, article > details { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .8rem; margin: .8rem 0; } summary { cursor: pointer; }
article { border-top: 1px solid var(--line); padding-top: .4rem; margin-top: 1.8rem; } article h2 { margin-top: .8rem; font-size: 1.1rem; }
.method { display: inline-block; min-width: 4rem; font-weight: 700; } .soft { color: var(--soft-text); }
dl { margin: .3rem 0 .3rem .2rem; } dt { margin-top: .5rem; } dd { margin: 0 0 0 1.2rem; } dd dl { border-left: 2px solid var(--line); padding-left: .8rem; }
.found { margin: 1.2rem 0; } .found p { margin: .1rem 0; } img { max-width: 100%; background: #fff; border-radius: .4rem; }
@media (max-width: 50rem) { .frame { display: block; } nav { border: 0; padding-bottom: 0; } header { flex-wrap: wrap; } main { padding: 1rem 1.2rem 3rem; } nav summary { display: list-item; } }
`;
