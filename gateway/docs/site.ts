/** The pages of /docs, each made when it is first asked for and kept. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { root } from "../../places/places.ts";
import { escaped } from "./html.ts";
import { framed, type MenuEntry, type MenuGroup, stylesheet } from "./layout.ts";
import { type RenderedPage, renderMarkdown } from "./markdown.ts";
import { type DocsPage, DocsPages } from "./pages.ts";
import { DocsIndex, type SearchEntry } from "./search.ts";

/** A page of the API's reference. */
export interface ReferencePage {
  /** End of its address, `/docs/api/<slug>`. */
  readonly slug: string;
  readonly title: string;
  readonly about: string;
  html(): string;
  /** Its parts, as a search finds them. */
  readonly parts: readonly { readonly anchor: string; readonly title: string; readonly text: string }[];
}

export interface DocsSiteDeps {
  /** The server's version. */
  readonly version: string;
  readonly reference: () => Promise<readonly ReferencePage[]>;
  /** Awaited in long work, so that other work runs meanwhile. */
  readonly rest: () => Promise<void>;
}

export class DocsSite {
  readonly stylesheet = stylesheet;
  readonly #deps: DocsSiteDeps;
  readonly #pages = new DocsPages();
  readonly #rendered = new Map<string, Promise<RenderedPage>>();
  /** Whole pages by address; there are as many as there are documents and resources. */
  readonly #whole = new Map<string, Promise<string>>();
  #index: Promise<DocsIndex> | undefined;

  constructor(deps: DocsSiteDeps) {
    this.#deps = deps;
  }

  home(): Promise<string> {
    return this.#kept("/docs", async () => {
      const groups = Map.groupBy(
        this.#pages.all.filter(({ group }) => group !== undefined),
        ({ group = "" }) => group,
      );
      const reference = await this.#deps.reference();
      const linked = (address: string, title: string, about: string): string =>
        `<li><a href="${escaped(address)}">${escaped(title)}</a>: ${escaped(about)}</li>`;
      const lists = [...groups].map(([group, pages]) => {
        const items = pages.map(({ slug, title, about }) => linked(`/docs/${slug}`, title, about));
        return `<h2>${escaped(group)}</h2><ul>${items.join("")}</ul>`;
      });
      const routes = reference.map(({ slug, title, about }) => linked(`/docs/api/${slug}`, title, about));
      const machines = '<p>For machines: <a href="/openapi.json">openapi.json</a></p>';
      const intro =
        "<p>A server that answers questions over many tenants' documents, and never computes the same text twice.</p>";
      const content = `<h1>Spangate</h1>${intro}${lists.join("")}<h2>Reference</h2><ul>${routes.join("")}</ul>${machines}`;
      return this.#frame({ address: "/docs", title: "Documents", content });
    });
  }

  /** undefined: there is no such page. */
  async page(slug: string): Promise<string | undefined> {
    const page = this.#pages.find(slug);
    if (page === undefined) return undefined;
    return await this.#kept(`/docs/${slug}`, async () => {
      const { html, sections } = await this.#markdown(page);
      const parts = sections
        .filter(({ depth }) => depth === 2)
        .map(({ anchor, title }) => ({ address: `#${anchor}`, title }));
      return await this.#frame({ address: `/docs/${slug}`, title: page.title, content: html, parts });
    });
  }

  /** A page of the API's reference; undefined: there is no such page. */
  async reference(slug: string): Promise<string | undefined> {
    const found = (await this.#deps.reference()).find((page) => page.slug === slug);
    if (found === undefined) return undefined;
    const address = `/docs/api/${slug}`;
    return await this.#kept(address, () => this.#frame({ address, title: found.title, content: found.html() }));
  }

  async search(question: string): Promise<string> {
    this.#index ??= this.#indexed();
    const found = (await this.#index).find(question);
    const shown = found.map(
      ({ address, page, title, excerpt }) =>
        `<div class="found"><p><a href="${escaped(address)}">${escaped(title)}</a> <span class="soft">${escaped(page)}</span></p><p>${escaped(excerpt)}</p></div>`,
    );
    const none = "<p>Nothing was found. Fewer words find more.</p>";
    const content = `<h1>Search</h1>${question.trim() === "" ? "<p>Words to look for go into the field above.</p>" : shown.join("") || none}`;
    return await this.#frame({ address: "/docs/search", title: "Search", content, question });
  }

  /** An SVG that lies beside the documents; undefined: there is none of that name. */
  async picture(name: string): Promise<string | undefined> {
    if (!/^[\w-]{1,64}\.svg$/.test(name)) return undefined;
    return await readFile(join(root, "docs", "pictures", name), "utf8").catch(() => undefined);
  }

  #markdown(page: DocsPage): Promise<RenderedPage> {
    return this.#rendered.getOrInsertComputed(page.slug, async () => {
      const picture = (href: string): string | undefined => {
        const name = this.#pages.pictureFrom(page, href);
        return name === undefined ? undefined : `/docs/pictures/${name}`;
      };
      const source = await readFile(join(root, page.file), "utf8");
      return renderMarkdown(source, { link: (href) => this.#pages.linkFrom(page, href), picture });
    });
  }

  #kept(address: string, make: () => Promise<string>): Promise<string> {
    return this.#whole.getOrInsertComputed(address, make);
  }

  async #indexed(): Promise<DocsIndex> {
    const entries: SearchEntry[] = [];
    for (const page of this.#pages.all) {
      const { sections } = await this.#markdown(page);
      for (const { anchor, title, text } of sections) {
        entries.push({ address: `/docs/${page.slug}#${anchor}`, page: page.title, title, text });
      }
      await this.#deps.rest();
    }
    for (const { slug, title: page, parts } of await this.#deps.reference()) {
      for (const { anchor, title, text } of parts) {
        entries.push({ address: `/docs/api/${slug}#${anchor}`, page, title, text });
      }
    }
    return await DocsIndex.of(entries, this.#deps.rest);
  }

  async #frame(frame: {
    readonly address: string;
    readonly title: string;
    readonly content: string;
    readonly parts?: readonly MenuEntry[];
    readonly question?: string;
  }): Promise<string> {
    const groups = Map.groupBy(
      this.#pages.all.filter(({ group }) => group !== undefined),
      ({ group = "" }) => group,
    );
    const menu: MenuGroup[] = [...groups].map(([title, pages]) => ({
      title,
      entries: pages.map((page) => ({ address: `/docs/${page.slug}`, title: page.title })),
    }));
    const reference = await this.#deps.reference();
    const entries = reference.map(({ slug, title }) => ({ address: `/docs/api/${slug}`, title }));
    return framed({ version: this.#deps.version, menu: [...menu, { title: "Reference", entries }], ...frame });
  }
}
