/** GET /openapi.json and GET /docs: the API described by itself. Public, since it holds nothing of any tenant. */
import type { Hono } from "hono";
import type { AppEnv } from "../transport/context.ts";
import { declare, declaredRoutes } from "../transport/route.ts";
import { type JsonObject, type OpenApiDocument, type Operation, openApiDocument } from "./openapi.ts";

/** Nothing is loaded from anywhere, and nothing runs: the page has no script. */
const contentSecurityPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

export interface DocsDeps {
  /** Of the server. */
  readonly version: string;
}

export function addDocsRoutes(app: Hono<AppEnv>, { version }: DocsDeps): void {
  // Made by the first call, when every route has been added, in slices between which other work runs.
  let document: Promise<OpenApiDocument> | undefined;
  let json: Promise<string> | undefined;
  let page: Promise<string> | undefined;
  const made = (): Promise<OpenApiDocument> => {
    document ??= openApiDocument(declaredRoutes(app), version);
    return document;
  };
  declare(app, "GET /openapi.json", { summary: "This description, as OpenAPI 3.1." }, async (c) => {
    json ??= made().then((known) => JSON.stringify(known));
    return c.body(await json, 200, { "content-type": "application/json" });
  });
  declare(
    app,
    "GET /docs",
    { summary: "This description, as a page that works offline.", answerTypes: ["text/html"] },
    async (c) => {
      page ??= made().then(docsPage);
      return c.html(await page, 200, { "content-security-policy": contentSecurityPolicy });
    },
  );
}

const style = `
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; background: var(--soft); border-radius: .3rem; }
details { border: 1px solid var(--line); border-radius: .3rem; margin: .4rem 0; padding: .4rem .7rem; }
summary { cursor: pointer; }
.method { display: inline-block; min-width: 4.5em; font-weight: 600; }
.about { opacity: .75; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; }
`;

export function docsPage(document: OpenApiDocument): string {
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
  );
  const sections = [...Map.groupBy(operations, ({ operation }) => operation.tags[0] ?? "")].map(
    ([tag, entries]) => `<h2>${escaped(tag)}</h2>${entries.map((entry) => operationHtml(entry, document)).join("")}`,
  );
  const { title, version, description } = document.info;
  const heading = `${escaped(title)} ${escaped(version)}`;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${heading}</title><style>${style}</style></head><body>
<h1>${heading}</h1><p>${escaped(description)}</p>
<p>For machines: <a href="openapi.json">openapi.json</a></p>
${sections.join("\n")}
<h2>errors</h2>${errorsHtml(document)}
</body></html>
`;
}

interface OperationEntry {
  readonly path: string;
  readonly method: string;
  readonly operation: Operation;
}

function operationHtml({ path, method, operation }: OperationEntry, document: OpenApiDocument): string {
  const scopes = [...new Set(operation.security.flatMap((entry) => Object.values(entry).flat()))].map(String);
  const access = scopes.length === 0 ? "no key needed" : `scope ${scopes.join(" or ")}`;
  const contents = [
    `<p>${escaped(access)}</p>`,
    parametersHtml(operation.parameters),
    contentHtml("Request", operation.requestBody, document),
    ...Object.entries(operation.responses)
      .filter(([status]) => status.startsWith("2"))
      .map(([status, response]) => contentHtml(`Answer ${status}`, response, document)),
  ];
  const title = `<code><span class="method">${escaped(method.toUpperCase())}</span>${escaped(path)}</code>`;
  const about = `<span class="about">${escaped(operation.summary)}</span>`;
  const id = escaped(operation.operationId);
  return `<details id="${id}"><summary>${title} ${about}</summary>${contents.join("")}</details>\n`;
}

function parametersHtml(parameters: readonly JsonObject[]): string {
  if (parameters.length === 0) return "";
  const rows = parameters.map(
    ({ name, in: place, required }) =>
      `<tr><td><code>${escaped(String(name))}</code></td><td>${escaped(String(place))}</td><td>${required ? "required" : ""}</td></tr>`,
  );
  return `<table>${rows.join("")}</table>`;
}

function contentHtml(title: string, holder: JsonObject | undefined, document: OpenApiDocument): string {
  const entries = Object.entries((holder?.content ?? {}) as Record<string, { readonly schema?: JsonObject }>);
  return entries
    .map(([mediaType, { schema = {} }]) => {
      const heading = `<h4>${escaped(title)} <code>${escaped(mediaType)}</code></h4>`;
      const shown = resolved(schema, document);
      const isEmpty = Object.keys(shown).length === 0;
      return isEmpty ? heading : `${heading}<pre>${escaped(JSON.stringify(shown, null, 2))}</pre>`;
    })
    .join("");
}

/** The component that a reference names; references within it stay, by their names. */
function resolved(schema: JsonObject, { components }: OpenApiDocument): JsonObject {
  const name = typeof schema.$ref === "string" ? schema.$ref.split("/").at(-1) : undefined;
  return name === undefined ? schema : ((components.schemas?.[name] ?? {}) as JsonObject);
}

function errorsHtml({ components }: OpenApiDocument): string {
  const rows = Object.entries(components.responses ?? {}).map(([status, response]) => {
    const { description = "" } = response as { readonly description?: string };
    return `<tr><td>${escaped(status)}</td><td>${escaped(description).replaceAll("\n", "<br>")}</td></tr>`;
  });
  return `<table>${rows.join("")}</table>`;
}

const escaped = (text: string): string => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
