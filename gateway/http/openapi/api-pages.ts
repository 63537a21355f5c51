/** The API as HTML for /docs: a page for each resource, with an example, schemas that are folded away, and errors. */
import { escaped } from "../../docs/html.ts";
import type { RouteName } from "../transport/routes.ts";
import answers from "./example-answers.json";
import { curlLine, examples, shownIds, withIds } from "./examples.ts";
import type { Json, JsonObject } from "./json.ts";
import type { OpenApiDocument, Operation } from "./openapi.ts";
import type { Resource } from "./resources.ts";

export interface ApiEntry {
  readonly path: string;
  readonly method: string;
  readonly operation: Operation;
}

/** Every route of a resource, in the order in which they are declared. */
export function entriesOf({ paths }: OpenApiDocument, { slug }: Resource): readonly ApiEntry[] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, { tags }]) => tags.includes(slug))
      .map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })),
  );
}

/** Schemas are shown so deep; a deeper one is named. */
const shownLevels = 7;

export function resourcePage(document: OpenApiDocument, resource: Resource): string {
  const entries = entriesOf(document, resource);
  const writer = new ApiWriter(document);
  const list = entries.map(
    ({ method, path, operation }) =>
      `<tr><td><a href="#${escaped(operation.operationId)}"><code>${method} ${escaped(path)}</code></a></td><td>${escaped(operation.summary)}</td></tr>`,
  );
  return `<h1>${escaped(resource.title)}</h1><p>${escaped(resource.about)}</p>
<div class="table" tabindex="0" role="region" aria-label="Routes"><table><tbody>${list.join("")}</tbody></table></div>
${entries.map((entry) => writer.operation(entry)).join("\n")}`;
}

export function errorsPage({ components }: OpenApiDocument): string {
  const rows = Object.entries(components.responses ?? {}).flatMap(([status, response]) => {
    const { description = "" } = response as { readonly description?: string };
    return description.split("\n").map((line) => {
      const [code = "", ...text] = line.split(": ");
      return `<tr><td>${escaped(status)}</td><td><code>${escaped(code)}</code></td><td>${escaped(text.join(": "))}</td></tr>`;
    });
  });
  return `<h1>Errors</h1><p>Every error is <code>{"error": {"message", "type", "param", "code"}}</code>; <code>param</code> names the field that is wrong. Messages of Anthropic's API have that API's shape.</p>
<div class="table" tabindex="0" role="region" aria-label="Errors"><table><thead><tr><th scope="col">Status</th><th scope="col">Code</th><th scope="col">What it says</th></tr></thead><tbody>${rows.join("")}</tbody></table></div>`;
}

class ApiWriter {
  readonly #document: OpenApiDocument;

  constructor(document: OpenApiDocument) {
    this.#document = document;
  }

  operation({ method, path, operation }: ApiEntry): string {
    const scopes = [...new Set(operation.security.flatMap((entry) => Object.values(entry).flat()))].map(String);
    const access = scopes.length === 0 ? "Needs no key." : `Needs a key with the scope ${scopes.join(" or ")}.`;
    const id = escaped(operation.operationId);
    return `<article><h2 id="${id}"><code><span class="method">${method}</span>${escaped(path)}</code></h2>
<p>${escaped(operation.summary)} <span class="soft">${escaped(access)}</span></p>
${exampleHtml({ method, path, operation })}
${this.#parameters(operation.parameters)}
${this.#content("Request body", operation.requestBody)}
${Object.entries(operation.responses)
  .filter(([status]) => status.startsWith("2"))
  .map(([status, response]) => this.#content(`Answer (${status})`, response))
  .join("")}
${errorsOf(operation)}</article>`;
  }

  #parameters(parameters: readonly JsonObject[]): string {
    if (parameters.length === 0) return "";
    const fields = parameters.map(({ name, required, description, schema, in: place }) => {
      const kind = `${typeText(this.#resolved(schema as JsonObject))}, ${String(place)}${required === true ? ", required" : ""}`;
      return fieldHtml(String(name), kind, String(description ?? ""), "");
    });
    return folded("Parameters", `<dl>${fields.join("")}</dl>`);
  }

  #content(title: string, holder: JsonObject | undefined): string {
    const entries = Object.entries((holder?.content ?? {}) as Record<string, { readonly schema?: JsonObject }>);
    return entries
      .map(([mediaType, { schema = {} }]) => {
        const heading = `${escaped(title)} <code>${escaped(mediaType)}</code>`;
        const fields = this.#fields(schema, 0, new Set());
        return fields === "" ? "" : folded(heading, fields);
      })
      .join("");
  }

  /** @param open schemas that this one stands in, so that one that holds itself ends */
  #fields(schema: JsonObject, level: number, open: ReadonlySet<JsonObject>): string {
    const whole = this.#resolved(schema);
    if (level >= shownLevels || open.has(whole)) return "";
    const inside = new Set([...open, whole]);
    const required = new Set(Array.isArray(whole.required) ? whole.required : []);
    const fields = Object.entries((whole.properties ?? {}) as Record<string, JsonObject>).map(([name, field]) => {
      const own = this.#resolved(field);
      const kind = `${typeText(own)}${required.has(name) ? ", required" : ""}`;
      return fieldHtml(name, kind, String(field.description ?? ""), this.#fields(field, level + 1, inside));
    });
    const own = fields.length === 0 ? "" : `<dl>${fields.join("")}</dl>`;
    const kinds = ["anyOf", "oneOf", "allOf"].flatMap((key) => (Array.isArray(whole[key]) ? whole[key] : []));
    const parts = [...kinds, whole.items, whole.contentSchema].filter(
      (part) => typeof part === "object" && part !== null,
    ) as JsonObject[];
    // Each kind of object has its fields; those without are told by the type alone.
    return own + parts.map((part) => this.#fields(part, level, inside)).join("");
  }

  #resolved(schema: JsonObject): JsonObject {
    const name = typeof schema.$ref === "string" ? schema.$ref.split("/").at(-1) : undefined;
    return name === undefined ? schema : ((this.#document.components.schemas?.[name] ?? {}) as JsonObject);
  }
}

function exampleHtml({ method, path, operation }: ApiEntry): string {
  const name = `${method} ${path.replace(/\{(\w+)\}/g, ":$1")}` as RouteName;
  const [answer] = Object.keys((operation.responses["200"]?.content ?? {}) as object);
  const route = {
    ...{ method, path: withIds(path, shownIds), needsKey: operation.security.length > 0 },
    streams: answer === "text/event-stream",
  };
  const line = `<pre tabindex="0"><code>${escaped(curlLine(route, examples[name] ?? {}))}</code></pre>`;
  const answered = (answers as Readonly<Record<string, unknown>>)[name];
  if (answered === undefined) return line;
  const shown = escaped(route.streams ? eventLines(answered) : JSON.stringify(answered, null, 2));
  return (
    line + folded("What it answered (long texts and lists are cut)", `<pre tabindex="0"><code>${shown}</code></pre>`)
  );
}

interface ShownEvent {
  readonly event: string;
  readonly id?: string;
  readonly data: unknown;
}

/** Server-sent events as they are sent. */
const eventLines = (events: unknown): string =>
  (events as readonly ShownEvent[])
    .map(({ event, id, data }) => {
      const name = id === undefined ? "" : `id: ${id}\n`;
      return `event: ${event}\n${name}data: ${JSON.stringify(data)}\n`;
    })
    .join("\n");

function errorsOf({ responses }: Operation): string {
  const statuses = Object.keys(responses).filter((status) => !status.startsWith("2"));
  return `<p class="soft">Errors: ${statuses.join(", ")} (<a href="/docs/api/errors">codes</a>).</p>`;
}

const folded = (summary: string, content: string): string =>
  `<details><summary>${summary}</summary>${content}</details>`;

const fieldHtml = (name: string, kind: string, text: string, inside: string): string =>
  `<dt><code>${escaped(name)}</code> <span class="soft">${escaped(kind)}</span></dt><dd>${escaped(text)}${inside}</dd>`;

/** A schema's type in a few words. */
function typeText(schema: JsonObject): string {
  const { type, enum: choices, const: constant } = schema;
  if (constant !== undefined) return JSON.stringify(constant);
  if (Array.isArray(choices)) return choices.map((choice) => JSON.stringify(choice)).join(" | ");
  const kinds = [schema.anyOf, schema.oneOf].flatMap((list) => (Array.isArray(list) ? (list as Json[]) : []));
  if (kinds.length > 0) return [...new Set(kinds.map((kind) => typeText(kind as JsonObject)))].join(" | ");
  const name = Array.isArray(type) ? type.join(" | ") : String(type ?? "any");
  const bounds = [boundText(schema, "minimum", "at least"), boundText(schema, "maximum", "at most")];
  const preset = schema.default === undefined ? "" : `default ${JSON.stringify(schema.default)}`;
  return [name, ...bounds, boundText(schema, "maxLength", "characters up to"), preset].filter(Boolean).join(", ");
}

function boundText(schema: JsonObject, key: string, words: string): string {
  const bound = schema[key];
  return typeof bound === "number" && Math.abs(bound) < Number.MAX_SAFE_INTEGER ? `${words} ${bound}` : "";
}
