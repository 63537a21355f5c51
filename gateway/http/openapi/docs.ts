/**
 * GET /openapi.json and /docs: the API described by itself, and the documents. Public, since they hold nothing of any
 * tenant; nothing is loaded from anywhere else, and nothing runs: no page has a script.
 */
import type { Context, Hono } from "hono";
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { DocsSite } from "../../docs/site.ts";
import type { AppEnv } from "../transport/context.ts";
import { readQuery } from "../transport/paging.ts";
import { declare, declaredRoutes } from "../transport/route.ts";
import { entriesOf, errorsPage, resourcePage } from "./api-pages.ts";
import { type OpenApiDocument, openApiDocument } from "./openapi.ts";
import { resources } from "./resources.ts";

const headers = {
  "content-security-policy":
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
};
/** A picture that is opened by itself has its own styles, and nothing else. */
const pictureHeaders = {
  ...headers,
  "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
};

export interface DocsDeps {
  /** The server's version. */
  readonly version: string;
}

const searchQuery = z.strictObject({
  q: z.string().max(1_000).default("").describe("The words to look for; the first 100 characters and 8 words count."),
});

export function addDocsRoutes(app: Hono<AppEnv>, { version }: DocsDeps): void {
  // Made by the first call, when every route has been added, in slices between which other work runs.
  let document: Promise<OpenApiDocument> | undefined;
  let json: Promise<string> | undefined;
  const made = (): Promise<OpenApiDocument> => {
    document ??= openApiDocument(declaredRoutes(app), version);
    return document;
  };
  declare(app, "GET /openapi.json", { summary: "This description, as OpenAPI 3.1." }, async (c) => {
    json ??= made().then((known) => JSON.stringify(known));
    return c.body(await json, 200, { "content-type": "application/json" });
  });
  const site = new DocsSite({ version, reference: () => made().then(referenceOf), rest: yieldToOthers });
  addPageRoutes(app, site);
}

function addPageRoutes(app: Hono<AppEnv>, site: DocsSite): void {
  const page = async (c: Context<AppEnv>, html: Promise<string | undefined>): Promise<Response> => {
    const found = await html;
    if (found === undefined)
      throw new ApiError("not_found", { message: "There is no such page. GET /docs lists them." });
    return c.html(found, 200, headers);
  };
  const about = (summary: string) => ({ summary, answerTypes: ["text/html"] });
  declare(app, "GET /docs", about("The documents and this description, as pages that work offline."), (c) =>
    page(c, site.home()),
  );
  declare(app, "GET /docs/search", { ...about("Searches the documents."), query: searchQuery }, (c) =>
    page(c, site.search(readQuery(c, searchQuery).q)),
  );
  declare(app, "GET /docs/style.css", { summary: "The pages' style.", answerTypes: ["text/css"] }, (c) =>
    c.body(site.stylesheet, 200, {
      ...headers,
      "content-type": "text/css; charset=utf-8",
      "cache-control": "max-age=300",
    }),
  );
  const picture = { summary: "A picture of the documents.", answerTypes: ["image/svg+xml"] };
  declare(app, "GET /docs/pictures/:picture", picture, async (c) => {
    const found = await site.picture(c.req.param("picture"));
    if (found === undefined) throw new ApiError("not_found");
    return c.body(found, 200, { ...pictureHeaders, "content-type": "image/svg+xml" });
  });
  declare(app, "GET /docs/api/:resource", about("The routes of a resource."), (c) =>
    page(c, site.reference(c.req.param("resource"))),
  );
  declare(app, "GET /docs/:page", about("A document."), (c) => page(c, site.page(c.req.param("page"))));
}

/** The reference's pages, with what a search finds of them. */
function referenceOf(document: OpenApiDocument) {
  const pages = resources.map((resource) => ({
    ...{ slug: resource.slug, title: resource.title, about: resource.about },
    html: () => resourcePage(document, resource),
    parts: entriesOf(document, resource).map(({ method, path, operation }) => ({
      ...{ anchor: operation.operationId, title: `${method} ${path}`, text: operation.summary },
    })),
  }));
  const about = "Every error: its status, its code and what it says.";
  return [...pages, { slug: "errors", title: "Errors", about, html: () => errorsPage(document), parts: [] }];
}
