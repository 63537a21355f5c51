/** Tables for records of what tenants did: stored responses, audit events, usage. */
import { integer, sqliteTable, text } from "drizzle-orm/sqlite-core";
import type { AuditEventId, ResponseId, TenantId } from "./ids.ts";

const seq = () => integer("seq").primaryKey({ autoIncrement: true });
const createdAt = () => integer("created_at").notNull();

/** JSON in the form in which it is sent. The code that writes it knows its type. */
export type JsonObject = Readonly<Record<string, unknown>>;

export const responses = sqliteTable("responses", {
  seq: seq(),
  id: text("id").$type<ResponseId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  /** JSON in the form in which it is sent. */
  body: text("body").notNull(),
  inputItems: text("input_items").notNull(),
  createdAt: createdAt(),
});

export const responseHeads = sqliteTable("response_heads", {
  seq: integer("seq").primaryKey(),
  id: text("id").$type<ResponseId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  state: text("state").$type<"kept" | "retired" | "deleted">().notNull(),
  previousId: text("previous_id").$type<ResponseId>(),
  byteCount: integer("byte_count").notNull(),
  createdAt: createdAt(),
});

export const auditEvents = sqliteTable("audit_events", {
  seq: seq(),
  id: text("id").$type<AuditEventId>().notNull(),
  at: integer("at").notNull(),
  requestId: text("request_id").notNull(),
  keyId: text("key_id").notNull(),
  actorTenantId: text("actor_tenant_id"),
  tenantId: text("tenant_id"),
  action: text("action").notNull(),
  objectIds: text("object_ids", { mode: "json" }).$type<Readonly<Record<string, string>>>().notNull(),
});

/** Triggers keep these counts. `actor` is a tenant's id, or empty for the platform. */
export const auditCounts = sqliteTable("audit_counts", {
  actor: text("actor").primaryKey(),
  rowCount: integer("row_count").notNull(),
});

export const usageDays = sqliteTable("usage_days", {
  day: text("day").notNull(),
  tenantId: text("tenant_id").notNull(),
  requests: integer("requests").notNull(),
  promptTokens: integer("prompt_tokens").notNull(),
  cachedTokens: integer("cached_tokens").notNull(),
  cacheWriteTokens: integer("cache_write_tokens").notNull(),
  completionTokens: integer("completion_tokens").notNull(),
  embeddingTokens: integer("embedding_tokens").notNull(),
});
