/** The OpenAPI 3.1 document of the declared routes, made from the schemas that the handlers read requests with. */

import { z } from "zod";
import { errorCodes, errorEntry } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import type { EventAbout, RouteAbout, RouteDeclaration } from "../transport/route.ts";
import type { RouteScope } from "../transport/routes.ts";
import { FieldDescriber } from "./describe-fields.ts";
import { parameterTexts } from "./field-texts.ts";
import type { Json, JsonObject } from "./json.ts";
import { resourceOf, resources } from "./resources.ts";

export interface OpenApiDocument {
  readonly openapi: "3.1.0";
  readonly info: { readonly title: string; readonly version: string; readonly description: string };
  readonly tags: readonly JsonObject[];
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: Readonly<Record<string, Readonly<Record<string, Json>>>>;
}

export interface Operation {
  readonly operationId: string;
  readonly summary: string;
  readonly tags: readonly string[];
  readonly security: readonly JsonObject[];
  readonly parameters: readonly JsonObject[];
  readonly requestBody?: JsonObject;
  readonly responses: Readonly<Record<string, JsonObject>>;
}

/** @param version of the server */
export async function openApiDocument(routes: readonly RouteDeclaration[], version: string): Promise<OpenApiDocument> {
  const schemas = new SchemaTable();
  const paths: Record<string, Record<string, Operation>> = {};
  for (const route of routes) {
    const path = pathTemplate(route.path);
    const operations = paths[path] ?? {};
    operations[route.method.toLowerCase()] = operationOf(route, schemas);
    paths[path] = operations;
    // Making the schemas of a hundred routes takes a tenth of a second, so other work runs in between.
    await yieldToOthers();
  }
  const description = "Errors have the shape of the schema Error. Each route names the scopes that an API key needs.";
  return {
    openapi: "3.1.0",
    info: { title: "Spangate", version, description },
    tags: resources.map(({ slug, about }) => ({ name: slug, description: about })),
    paths,
    components: {
      schemas: { Error: schemas.describer.described(errorSchema(), "Error"), ...schemas.components },
      responses: errorResponses(),
      securitySchemes: {
        bearer: { type: "http", scheme: "bearer" },
        apiKey: { type: "apiKey", in: "header", name: "x-api-key" },
      },
    },
  };
}

/** A route's default description, until it has one of its own. */
function summaryOf({ method, path, about }: RouteDeclaration): string {
  return about?.summary ?? `${method} ${pathTemplate(path)}`;
}

function operationOf(route: RouteDeclaration, schemas: SchemaTable): Operation {
  const { path, scope, about } = route;
  const operationId = operationIdOf(route);
  const body = requestBody(about, operationId, schemas);
  return {
    operationId,
    summary: summaryOf(route),
    tags: [resourceOf(path)],
    security: securityOf(scope),
    parameters: [...pathParameters(path), ...queryParameters(about, operationId, schemas)],
    ...(body === undefined ? {} : { requestBody: body }),
    responses: { ...successResponse(about, operationId, schemas), ...errorReferences(route, body !== undefined) },
  };
}

/** Hono's `:id` and `:id{pattern}` as `{id}`. */
const pathTemplate = (path: string): string => path.replace(/:(\w+)(?:\{[^}]*\})?\??/g, "{$1}");

const parameterNames = (path: string): string[] => [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => name);

function operationIdOf({ method, path }: RouteDeclaration): string {
  const words = pathTemplate(path)
    .split(/[^A-Za-z0-9]+/)
    .filter((word) => word !== "");
  return [method.toLowerCase(), ...words].join("_");
}

/** One entry is enough; within the list each scope is an alternative. */
function securityOf(scope: RouteScope): readonly JsonObject[] {
  if (scope === "public") return [];
  const scopes = typeof scope === "string" ? [scope] : scope;
  return scopes.flatMap((name): JsonObject[] => [{ bearer: [name] }, { apiKey: [name] }]);
}

function pathParameters(path: string): readonly JsonObject[] {
  return parameterNames(path).map((name) => ({
    ...{ name, in: "path", required: true },
    ...describedAs(parameterTexts[`path:${name}`] ?? parameterTexts[name]),
    schema: { type: "string" },
  }));
}

function queryParameters(about: RouteAbout | undefined, operationId: string, schemas: SchemaTable): JsonObject[] {
  return Object.entries(about?.query?.shape ?? {}).map(([name, schema]) => ({
    name,
    in: "query",
    required: !z.safeParse(schema as z.ZodType, undefined).success,
    ...describedAs((schema as z.ZodType).description ?? parameterTexts[name]),
    schema: schemas.reference(schema as z.ZodType, `${operationId}.query.${name}`),
  }));
}

const describedAs = (description: string | undefined): JsonObject => (description === undefined ? {} : { description });

function requestBody(about: RouteAbout | undefined, operationId: string, schemas: SchemaTable): JsonObject | undefined {
  if (about?.body === undefined && about?.bodyTypes === undefined) return undefined;
  const schema = about.body === undefined ? {} : schemas.reference(about.body, `${operationId}.body`);
  return { required: true, content: contentOf(about.bodyTypes ?? ["application/json"], schema) };
}

function successResponse(
  about: RouteAbout | undefined,
  operationId: string,
  schemas: SchemaTable,
): Readonly<Record<string, JsonObject>> {
  const json =
    about?.answer === undefined && (about?.answerTypes ?? about?.events) !== undefined
      ? {}
      : contentOf(
          ["application/json"],
          about?.answer === undefined ? {} : schemas.reference(about.answer, `${operationId}.answer`),
        );
  const other = contentOf(about?.answerTypes ?? [], { type: "string" });
  const events =
    about?.events === undefined
      ? {}
      : contentOf(["text/event-stream"], schemas.events(about.events, `${operationId}.events`));
  const headers = { "x-request-id": { schema: { type: "string" } } };
  return {
    [String(about?.status ?? 200)]: { description: "Done.", headers, content: { ...json, ...other, ...events } },
  };
}

const contentOf = (mediaTypes: readonly string[], schema: Json): JsonObject =>
  Object.fromEntries(mediaTypes.map((mediaType) => [mediaType, { schema }]));

function errorReferences({ path, scope }: RouteDeclaration, hasBody: boolean) {
  const statuses = new Set([400, 500, 503]);
  if (scope !== "public") for (const status of [401, 403, 429]) statuses.add(status);
  if (path.includes("/:")) statuses.add(404);
  if (hasBody) for (const status of [408, 413, 415]) statuses.add(status);
  const entries = [...statuses].sort().map((status) => [status, { $ref: `#/components/responses/${status}` }] as const);
  return Object.fromEntries(entries.map(([status, reference]) => [String(status), reference]));
}

function errorResponses(): Readonly<Record<string, Json>> {
  const byStatus = Map.groupBy(errorCodes, (code) => errorEntry(code).status);
  const response = (codes: readonly (typeof errorCodes)[number][]): Json => ({
    description: codes.map((code) => `${code}: ${errorEntry(code).text}`).join("\n"),
    content: contentOf(["application/json"], { $ref: "#/components/schemas/Error" }),
  });
  return Object.fromEntries([...byStatus].map(([status, codes]) => [String(status), response(codes)]));
}

function errorSchema(): Json {
  const types = [...new Set(errorCodes.map((code) => errorEntry(code).type))];
  const properties = {
    message: { type: "string" },
    type: { enum: types },
    param: { type: ["string", "null"] },
    code: { enum: errorCodes },
  };
  const error = { type: "object", properties, required: Object.keys(properties) };
  return { type: "object", properties: { error }, required: ["error"] };
}

/** Schemas by name; one that is used twice stands there once, and references point into the document. */
class SchemaTable {
  readonly components: Record<string, Json> = {};
  readonly describer = new FieldDescriber();
  readonly #names = new Map<z.ZodType, string>();

  reference(schema: z.ZodType, name: string): JsonObject {
    const known = this.#names.get(schema);
    const used = known ?? name;
    if (known === undefined) {
      this.#names.set(schema, name);
      this.#add(schema, name);
    }
    return { $ref: `#/components/schemas/${used}` };
  }

  /** One event of a stream, as a choice of its kinds: version 3.1 of the format has no words for a stream of them. */
  events(events: Readonly<Record<string, EventAbout>>, name: string): JsonObject {
    const kinds = Object.entries(events).map(([event, { data, id }]): Json => {
      const contentSchema = this.reference(data, `${name}.${event}`);
      const properties = {
        event: { const: event, description: "The event's name." },
        ...(id !== undefined && { id: { type: "string", description: id } }),
        data: {
          type: "string",
          contentMediaType: "application/json",
          contentSchema,
          description: "What it tells, as JSON.",
        },
      };
      return { type: "object", properties, required: ["event", "data"] };
    });
    this.components[name] = { oneOf: kinds };
    return { $ref: `#/components/schemas/${name}` };
  }

  #add(schema: z.ZodType, name: string): void {
    // What a client sends, before it is transformed; a check written as code has no schema and stands as anything.
    const made = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" });
    const { $schema: _, $defs = {}, ...own } = made as { $schema?: string; $defs?: Record<string, Json> };
    const add = (component: string, value: Json): void => {
      this.components[component] = this.describer.described(relocated(value, name), component);
    };
    add(name, own as Json);
    for (const [key, value] of Object.entries($defs)) add(`${name}.${key}`, value);
  }
}

/** The schema with its references to itself and its definitions turned into references to components. */
function relocated(value: Json, name: string): Json {
  if (Array.isArray(value)) return value.map((item) => relocated(item, name));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, item]): [string, Json] => {
    if (key !== "$ref" || typeof item !== "string") return [key, relocated(item, name)];
    if (item === "#") return [key, `#/components/schemas/${name}`];
    return [key, item.replace(/^#\/\$defs\//, `#/components/schemas/${name}.`)];
  });
  return Object.fromEntries(entries);
}
