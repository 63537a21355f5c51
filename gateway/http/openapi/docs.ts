/** GET /openapi.json and GET /docs: the API described by itself. Public, since it holds nothing of any tenant. */
import type { Hono } from "hono";
import type { AppEnv } from "../transport/context.ts";
import { declare, declaredRoutes, type RouteAbout, type RouteDeclaration } from "../transport/route.ts";
import { descriptions } from "./descriptions.ts";
import { docsPage } from "./docs-page.ts";
import { type OpenApiDocument, openApiDocument } from "./openapi.ts";

/** Nothing is loaded from anywhere, and nothing runs: the page has no script. */
const contentSecurityPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

export interface DocsDeps {
  /** Of the server. */
  readonly version: string;
}

export function addDocsRoutes(app: Hono<AppEnv>, { version }: DocsDeps): void {
  // Made by the first call, when every route has been added, in turns with other work.
  let document: Promise<OpenApiDocument> | undefined;
  let json: Promise<string> | undefined;
  let page: Promise<string> | undefined;
  const made = (): Promise<OpenApiDocument> => {
    document ??= openApiDocument(describedRoutes(app), version);
    return document;
  };
  declare(
    app,
    "GET /openapi.json",
    async (c) => {
      json ??= made().then((known) => JSON.stringify(known));
      return c.body(await json, 200, { "content-type": "application/json" });
    },
    { summary: "This description, as OpenAPI 3.1." },
  );
  declare(
    app,
    "GET /docs",
    async (c) => {
      page ??= made().then(docsPage);
      return c.html(await page, 200, { "content-security-policy": contentSecurityPolicy });
    },
    { summary: "This description, as a page that works offline.", answerTypes: ["text/html"] },
  );
}

/** Every declared route, with its description where it has one. */
export function describedRoutes(app: Hono<AppEnv>): readonly RouteDeclaration[] {
  return declaredRoutes(app).map((route) => {
    const about = route.about ?? (descriptions as Record<string, RouteAbout>)[`${route.method} ${route.path}`];
    return { ...route, about };
  });
}
