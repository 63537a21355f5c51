/** The documents that a server shows at /docs, in the order of its menu, and which link of one leads to which other. */
import { readdirSync } from "node:fs";
import { join, posix } from "node:path";
import { root } from "../../places/places.ts";

export interface DocsPage {
  /** Last part of its address, as in `/docs/operations`. */
  readonly slug: string;
  readonly title: string;
  /** What it is for, in a sentence. */
  readonly about: string;
  /** Its Markdown, from the root of the repository or the package. */
  readonly file: string;
  /** Heading in the menu; absent: it is reached by links and search alone. */
  readonly group?: string;
}

const page = (group: string, slug: string, title: string, about: string, file = `docs/${slug}.md`): DocsPage => ({
  ...{ group, slug, title, about, file },
});

const menuPages: readonly DocsPage[] = [
  page("Start", "quickstart-cpu", "On a CPU", "From nothing to an answer with its source, without a GPU."),
  page("Start", "quickstart-gpu", "On a GPU", "The same with a model of billions of parameters on NVIDIA GPUs."),
  page("Start", "models", "Your own model", "A model of the Hugging Face hub, or a folder of yours."),
  page("Use", "api", "The API by example", "Documents, vector stores, span queries, citations, and every route."),
  page("Use", "span-queries", "Span queries", "The language: trees in place of prompts.", "gateway/query/README.md"),
  page("Use", "cli", "The command line", "Every command, web sites and buckets as sources, backups."),
  page("Use", "console", "The console", "The page for browsers: who signs in how, and what is on it."),
  page("Run", "operations", "Operations", "Installing, every setting, memory, watching, data, buckets, GPUs."),
  page("Run", "sparse", "Sparse decoding", "Long answers over long contexts that read what they choose."),
  page("Run", "promises", "Promises", "What holds whatever happens, and which test holds it."),
  page("Run", "limits", "Limits", "What Spangate does not do, and where it stops."),
  page("Understand", "measurements", "Measurements", "Every figure, with its command, hardware and what was sent."),
  page("Understand", "architecture", "Architecture", "The map of the code, and the words it uses."),
];

/** Decisions are pages too, one for each file of the folder. */
const decisionsFolder = "docs/adr";

function decisionPages(): readonly DocsPage[] {
  const names = readdirSync(join(root, decisionsFolder)).filter((name) => name.endsWith(".md"));
  return names.sort().map((name) => {
    const words = name.replace(/^\d+-|\.md$/g, "").replaceAll("-", " ");
    const title = `Decision ${Number.parseInt(name, 10)}: ${words}`;
    return { slug: `adr-${name.slice(0, -3)}`, title, about: title, file: posix.join(decisionsFolder, name) };
  });
}

export class DocsPages {
  readonly all: readonly DocsPage[] = [...menuPages, ...decisionPages()];
  readonly #bySlug = new Map(this.all.map((entry) => [entry.slug, entry]));
  readonly #byFile = new Map(this.all.map((entry) => [entry.file, entry]));

  find(slug: string): DocsPage | undefined {
    return this.#bySlug.get(slug);
  }

  /**
   * Where a link of a page leads on a server.
   * @returns undefined: it leads to nothing that a server shows, such as a source file, or is of a scheme that no document needs
   */
  linkFrom({ file }: DocsPage, href: string): string | undefined {
    if (/^https?:\/\//i.test(href)) return href;
    if (href.startsWith("#")) return href;
    // A scheme, or the address of a host without one.
    if (/^[a-z][a-z0-9+.-]*:|^\/\//i.test(href)) return undefined;
    const [path = "", anchor] = href.split("#");
    const found = this.#byFile.get(posix.join(posix.dirname(file), path));
    if (found === undefined) return undefined;
    return `/docs/${found.slug}${anchor === undefined ? "" : `#${anchor}`}`;
  }

  /** Name of the picture that an image of a page shows; undefined: it is none of ours. */
  pictureFrom({ file }: DocsPage, href: string): string | undefined {
    const path = posix.join(posix.dirname(file), href);
    const [, name] = /^docs\/pictures\/([\w-]+\.svg)$/.exec(path) ?? [];
    return name;
  }
}
