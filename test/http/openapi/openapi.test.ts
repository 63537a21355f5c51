import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { z } from "zod";
import { errorCodes } from "../../../gateway/base/errors.ts";
import { parseConfig } from "../../../gateway/config.ts";
import { fileAnswer } from "../../../gateway/http/openai/files.ts";
import { parameterTexts } from "../../../gateway/http/openapi/field-texts.ts";
import type { JsonObject } from "../../../gateway/http/openapi/json.ts";
import { type OpenApiDocument, openApiDocument } from "../../../gateway/http/openapi/openapi.ts";
import * as answers from "../../../gateway/http/transport/answer-schemas.ts";
import { routes as listedRoutes } from "../../../gateway/http/transport/routes.ts";
import { type RunningServer, startServer } from "../../../gateway/server.ts";
import { yieldsDuring } from "../../support/yields.ts";
import { call, createStoreApp, upload } from "../store-app.ts";

const fakeWorker = join(import.meta.dir, "..", "..", "dispatch", "fake-worker.ts");
const dataDir = mkdtempSync(join(tmpdir(), "spangate-openapi-"));
const context = { server: undefined as RunningServer | undefined };
const routes = () => context.server?.routes ?? [];
const fetchText = async (path: string) => await fetch(`${context.server?.url}${path}`);
const fetchDocument = async () => (await (await fetchText("/openapi.json")).json()) as OpenApiDocument;

beforeAll(async () => {
  const env = { ...process.env, SPANGATE_PORT: "0", SPANGATE_DATA: dataDir, SPANGATE_LOG: "silent" };
  context.server = await startServer(parseConfig(env), { env, workerArgv: [process.execPath, fakeWorker] });
});
afterAll(async () => {
  await context.server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

/** Every `$ref` in the document. */
function referencesIn(value: unknown): string[] {
  if (typeof value !== "object" || value === null) return [];
  return Object.entries(value).flatMap(([key, item]) =>
    key === "$ref" && typeof item === "string" ? [item] : referencesIn(item),
  );
}

describe("the whole server's description", () => {
  test("names every declared route, with its scopes, and nothing else", async () => {
    const document = await fetchDocument();
    const described = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, { security }]) => {
        const scopes = new Set(security.flatMap((entry) => Object.values(entry).flat() as string[]));
        return `${method.toUpperCase()} ${path} ${[...scopes].sort().join(",")}`;
      }),
    );
    const declared = routes().map(({ method, path, scope }) => {
      const scopes = scope === "public" ? [] : [scope].flat();
      return `${method} ${path.replace(/:(\w+)(\{[^}]*\})?/g, "{$1}")} ${scopes.toSorted().join(",")}`;
    });
    expect(declared.length).toBeGreaterThan(40);
    expect(described.sort()).toEqual(declared.sort());
  });

  test("every route says something of itself", async () => {
    const document = await fetchDocument();
    const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
    for (const { summary, responses } of operations) {
      expect(summary.length).toBeGreaterThan(5);
      expect(Object.keys(responses).filter((status) => status.startsWith("2"))).toHaveLength(1);
    }
  });

  test("every route of the list is there", () => {
    const declared = routes().map(({ method, path }) => `${method} ${path}`);
    expect(declared.toSorted()).toEqual(Object.keys(listedRoutes).toSorted());
  });

  test("every route says what it does", () => {
    const undescribed = routes().filter(({ about }) => about === undefined);
    expect(undescribed.map(({ method, path }) => `${method} ${path}`)).toEqual([]);
  });

  test("every reference leads somewhere, every path parameter is described, and ids are distinct", async () => {
    const document = await fetchDocument();
    for (const reference of referencesIn(document)) {
      const [, kind = "", name = ""] = /^#\/components\/(\w+)\/(.+)$/.exec(reference) ?? [];
      expect(document.components[kind]?.[name], reference).toBeDefined();
    }
    const ids: string[] = [];
    for (const [path, methods] of Object.entries(document.paths)) {
      for (const { operationId, parameters } of Object.values(methods)) {
        ids.push(operationId);
        const named = parameters.filter((parameter) => parameter.in === "path").map(({ name }) => `{${name}}`);
        expect(named).toEqual(path.match(/\{\w+\}/g) ?? []);
      }
    }
    expect(new Set(ids).size).toBe(ids.length);
  });

  test("request schemas are those of the handlers, and errors name every code", async () => {
    const document = await fetchDocument();
    const chat = document.components.schemas?.["post_v1_chat_completions.body"] as JsonObject;
    expect(chat.additionalProperties).toBe(false);
    expect(Object.keys(chat.properties as JsonObject)).toContain("file_search");
    expect(chat.required).toEqual(["model", "messages"]);
    const uploadBody = document.components.schemas?.["post_v1_files.body"] as { properties: { file: JsonObject } };
    expect(uploadBody.properties.file).toMatchObject({ type: "string", format: "binary" });
    const errors = Object.values(document.components.responses ?? {}) as { description: string }[];
    const text = errors.map(({ description }) => description).join("\n");
    expect(errorCodes.filter((code) => !text.includes(`${code}: `))).toEqual([]);
  });

  test("every field of every schema and every parameter says what it is", async () => {
    const document = await fetchDocument();
    const bare: string[] = [];
    const seen = { fields: 0 };
    const visit = (value: unknown, at: string): void => {
      if (typeof value !== "object" || value === null) return;
      for (const [key, item] of Object.entries(value)) {
        if (key === "const" || key === "enum" || key === "default") continue;
        if (key !== "properties") visit(item, at);
        else
          for (const [name, field] of Object.entries(item as Record<string, { description?: string }>)) {
            seen.fields += 1;
            if ((field.description ?? "").length < 6) bare.push(`${at}.${name}`);
            visit(field, `${at}.${name}`);
          }
      }
    };
    for (const [name, schema] of Object.entries(document.components.schemas ?? {})) visit(schema, name);
    for (const [path, methods] of Object.entries(document.paths)) {
      for (const [method, { parameters }] of Object.entries(methods)) {
        for (const { name, description } of parameters) if (!description) bare.push(`${method} ${path}: ${name}`);
      }
    }
    expect(seen.fields).toBeGreaterThan(1_800);
    expect(bare).toEqual([]);
  });

  test("a stream of events is described by the name of each and by its data, field by field", async () => {
    const { paths, components } = await fetchDocument();
    const content = paths["/admin/v1/cache/events"]?.get?.responses["200"]?.content as JsonObject;
    expect(content).toEqual({ "text/event-stream": { schema: { $ref: expect.any(String) } } });
    const events = components.schemas?.["get_admin_v1_cache_events.events"];
    expect(events).toMatchObject({
      oneOf: [
        { properties: { event: { const: "change" }, data: { contentMediaType: "application/json" } } },
        { properties: { event: { const: "current" } } },
      ],
    });
    const change = components.schemas?.["get_admin_v1_cache_events.events.change"] as { properties: JsonObject };
    expect(referencesIn(events)).toContain("#/components/schemas/get_admin_v1_cache_events.events.change");
    expect(Object.keys(change.properties)).toEqual(["at", "blocks", "pins", "others"]);
  });

  test("no text stands in the table that no field has", async () => {
    const said = new Set<string>();
    const visit = (value: unknown): void => {
      if (typeof value !== "object" || value === null) return;
      if ("description" in value && typeof value.description === "string") said.add(value.description);
      for (const item of Object.values(value)) visit(item);
    };
    visit(await fetchDocument());
    expect(Object.entries(parameterTexts).filter(([, text]) => !said.has(text))).toEqual([]);
  });

  test("every route has a resource", async () => {
    const document = await fetchDocument();
    const names = new Set(document.tags.map(({ name }) => name));
    const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
    expect(new Set(operations.flatMap(({ tags }) => tags))).toEqual(names as Set<string>);
  });
});

test("a schema that holds itself is described by references", async () => {
  const tree: z.ZodType = z.strictObject({ value: z.string(), left: z.lazy(() => tree).optional() });
  const about = { summary: "Grows <b>trees</b>.", body: tree, answer: tree };
  const document = await openApiDocument(
    [{ method: "POST", path: "/trees/:id{[0-9]+}", scope: "inference", count: "request", about }],
    "1",
  );
  expect(Object.keys(document.paths)).toEqual(["/trees/{id}"]);
  expect(Object.keys(document.components.schemas ?? {})).toEqual(["Error", "post_trees_id.body"]);
  const references = new Set(referencesIn(document));
  expect(references).toContain("#/components/schemas/post_trees_id.body");
});

test("the description of all routes is made in slices with other work", async () => {
  const about = { summary: "", body: z.strictObject({ value: z.string() }) };
  const route = { method: "POST", scope: "inference", count: "request", about } as const;
  const routes = Array.from({ length: 20 }, (_, index) => ({ ...route, path: `/r${index}` as const }));
  const { yields } = await yieldsDuring(() => openApiDocument(routes, "1"));
  expect(yields).toBeGreaterThan(15);
});

test("answers are as described", async () => {
  const { app, world, adminKey, tenant } = createStoreApp();
  const { id, key } = tenant("acme");
  const check = async (schema: z.ZodType, who: string, method: string, path: string, body?: unknown) => {
    const { status, body: answer } = await call(app, who, method, path, body);
    expect(status).toBeLessThan(300);
    const result = schema.safeParse(answer);
    expect(result.error?.issues ?? [], `${method} ${path}`).toEqual([]);
    return answer as { readonly id: string };
  };
  const { listOf } = answers;
  const admin = "/admin/v1/tenants";
  const made = await check(answers.tenantAnswer, adminKey, "POST", admin, { name: "b" });
  await check(listOf(answers.tenantAnswer), adminKey, "GET", admin);
  const minted = { scopes: ["inference"] };
  const apiKey = await check(answers.mintedKeyAnswer, adminKey, "POST", `${admin}/${id}/keys`, minted);
  await check(listOf(answers.apiKeyAnswer), adminKey, "GET", `${admin}/${id}/keys`);
  await check(answers.deletedAnswer, adminKey, "DELETE", `/admin/v1/keys/${apiKey.id}`);
  await check(answers.saltAnswer, adminKey, "POST", `${admin}/${id}/salt/rotate`);
  await check(answers.deletedAnswer, adminKey, "DELETE", `${admin}/${made.id}`);

  const fileId = await upload(app, key, "a.txt", "Anna has a cat. Tom has a dog.");
  await check(fileAnswer, key, "GET", `/v1/files/${fileId}`);
  const store = await check(answers.vectorStoreAnswer, key, "POST", "/v1/vector_stores", { file_ids: [fileId] });
  const path = `/v1/vector_stores/${store.id}`;
  await world.corpus.idle();
  await check(listOf(answers.vectorStoreFileAnswer), key, "GET", `${path}/files`);
  await check(answers.fileContentAnswer, key, "GET", `${path}/files/${fileId}/content`);
  await check(answers.searchAnswer, key, "POST", `${path}/search`, { query: "cat" });
  await check(answers.fileBatchAnswer, key, "POST", `${path}/file_batches`, { file_ids: [fileId] });
  await check(answers.jobAnswer, key, "POST", `/admin/v1/vector_stores/${store.id}/prepare`);
  await world.remove();
});
