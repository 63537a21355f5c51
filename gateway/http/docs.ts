/** GET /openapi.json and GET /docs: the API described by itself. Public, since it holds nothing of any tenant. */
import type { Hono } from "hono";
import type { AppEnv } from "./auth.ts";
import { descriptions } from "./descriptions.ts";
import { docsPage } from "./docs-page.ts";
import { type OpenApiDocument, openApiDocument } from "./openapi.ts";
import { declare, declaredRoutes, type RouteAbout, type RouteDeclaration } from "./route.ts";

/** Nothing is loaded from anywhere, and nothing runs: the page has no script. */
const contentSecurityPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

export interface DocsDeps {
  /** Of the server. */
  readonly version: string;
}

export function addDocsRoutes(app: Hono<AppEnv>, { version }: DocsDeps): void {
  let made: { readonly document: OpenApiDocument; readonly page: string } | undefined;
  // Made by the first call, when every route has been added.
  const docs = () => {
    if (made === undefined) {
      const document = openApiDocument(describedRoutes(app), version);
      made = { document, page: docsPage(document) };
    }
    return made;
  };
  declare(app, "GET", "/openapi.json", "public", (c) => c.json(docs().document), {
    summary: "This description, as OpenAPI 3.1.",
  });
  declare(
    app,
    "GET",
    "/docs",
    "public",
    (c) => c.html(docs().page, 200, { "content-security-policy": contentSecurityPolicy }),
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
