/**
 * What the routes take and give, for /openapi.json: by method and path, beside the handlers instead of within
 * them. Request schemas are the ones that the handlers read with. A route may bring its own to `declare` instead.
 */
import { z } from "zod";
import { attributeFilterSchema } from "../../corpus/search/filters.ts";
import { fragmentsQuery } from "../admin/prepare.ts";
import * as tenants from "../admin/tenants.ts";
import { chatSchema } from "../openai/chat-schema.ts";
import * as fileBatches from "../openai/file-batches.ts";
import * as files from "../openai/files.ts";
import * as storeFiles from "../openai/vector-store-files.ts";
import { attachSchema } from "../openai/vector-store-schemas.ts";
import * as stores from "../openai/vector-stores.ts";
import { queryBodyTypes } from "../query/body.ts";
import { bulkQuery } from "../query/bulk.ts";
import { executeParams } from "../query/query.ts";
import { pageQuery } from "../transport/paging.ts";
import type { RouteAbout } from "../transport/route.ts";
import type { Method } from "../transport/routes.ts";
import * as answers from "./answer-schemas.ts";

const { listOf } = answers;
const jsonOrStream = ["application/json", "text/event-stream"];
const tenant = answers.tenantAnswer;
const store = answers.vectorStoreAnswer;
const storeFile = answers.vectorStoreFileAnswer;
const storeFileList = listOf(storeFile);
const batch = answers.fileBatchAnswer;
const job = answers.jobAnswer;
const deleted = answers.deletedAnswer;
/** A file is bytes in the form; the handler sees an object. */
const uploadBody = files.uploadFields.extend({ file: z.file() });

type Descriptions = Readonly<Partial<Record<`${Method} /${string}`, RouteAbout>>>;

const generation: Descriptions = {
  "POST /v1/chat/completions": {
    summary: "A chat completion; documents and vector stores are spans of its prompt.",
    body: chatSchema(attributeFilterSchema),
    answerTypes: jsonOrStream,
  },
  "POST /v1/query/execute": {
    summary: "Runs a span query.",
    query: executeParams,
    bodyTypes: queryBodyTypes,
    answerTypes: jsonOrStream,
  },
  "POST /v1/query/prepare": { summary: "Computes a query's spans, generates nothing.", bodyTypes: queryBodyTypes },
  "POST /v1/query/explain": {
    summary: "A query before and after each rule, and its plan; runs nothing.",
    bodyTypes: queryBodyTypes,
  },
  "POST /v1/query/bulk": {
    summary: "Runs many span queries, a JSON line each.",
    query: bulkQuery,
    bodyTypes: ["application/x-ndjson"],
    answerTypes: ["application/x-ndjson"],
  },
  "GET /v1/query/bulk/:bulk_id": { summary: "How far a bulk request is." },
  "GET /v1/query/bulk/:bulk_id/results/:result_id": { summary: "One result of a bulk request." },
  "GET /v1/models": { summary: "The model that is served.", answer: answers.modelsAnswer },
  "GET /v1/models/:id": { summary: "Describes a model.", answer: answers.modelAnswer },
};

const documents: Descriptions = {
  "POST /v1/files": {
    summary: "Uploads a file. The same content under the same name and purpose is the same file.",
    body: uploadBody,
    bodyTypes: ["multipart/form-data"],
    answer: files.fileAnswer,
  },
  "GET /v1/files": { summary: "Lists files.", query: files.listQuery, answer: listOf(files.fileAnswer) },
  "GET /v1/files/:file_id": { summary: "Describes a file.", answer: files.fileAnswer },
  "DELETE /v1/files/:file_id": { summary: "Deletes a file, out of every vector store too.", answer: deleted },
  "GET /v1/files/:file_id/content": { summary: "A file's bytes.", answerTypes: ["application/octet-stream"] },
  "POST /v1/vector_stores": {
    summary: "Makes a vector store, which is a corpus.",
    body: stores.createSchema,
    answer: store,
  },
  "GET /v1/vector_stores": { summary: "Lists vector stores.", query: pageQuery, answer: listOf(store) },
  "GET /v1/vector_stores/:vector_store_id": { summary: "Describes a vector store.", answer: store },
  "POST /v1/vector_stores/:vector_store_id": {
    summary: "Changes a vector store's name and metadata.",
    body: stores.updateSchema,
    answer: store,
  },
  "DELETE /v1/vector_stores/:vector_store_id": { summary: "Deletes a vector store; its files stay.", answer: deleted },
  "POST /v1/vector_stores/:vector_store_id/search": {
    summary: "Searches a vector store.",
    body: stores.searchSchema,
    answer: answers.searchAnswer,
  },
  "POST /v1/vector_stores/:vector_store_id/files": {
    summary: "Attaches a file, to be ingested.",
    body: attachSchema,
    answer: storeFile,
  },
  "GET /v1/vector_stores/:vector_store_id/files": {
    summary: "Lists a vector store's files.",
    query: storeFiles.corpusFilesQuery,
    answer: storeFileList,
  },
  "GET /v1/vector_stores/:vector_store_id/files/:file_id": {
    summary: "Describes an attached file; last_error says why one could not be read.",
    answer: storeFile,
  },
  "POST /v1/vector_stores/:vector_store_id/files/:file_id": {
    summary: "Replaces an attached file's attributes.",
    body: storeFiles.updateSchema,
    answer: storeFile,
  },
  "DELETE /v1/vector_stores/:vector_store_id/files/:file_id": {
    summary: "Takes a file out of a vector store.",
    answer: deleted,
  },
  "GET /v1/vector_stores/:vector_store_id/files/:file_id/content": {
    summary: "An attached file's text, fragment by fragment.",
    answer: answers.fileContentAnswer,
  },
  "POST /v1/vector_stores/:vector_store_id/file_batches": {
    summary: "Attaches many files in one call.",
    body: fileBatches.createSchema,
    answer: batch,
  },
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id": { summary: "Describes a batch.", answer: batch },
  "POST /v1/vector_stores/:vector_store_id/file_batches/:batch_id/cancel": {
    summary: "Cancels what of a batch is still to be ingested.",
    answer: batch,
  },
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id/files": {
    summary: "Lists a batch's files.",
    query: storeFiles.corpusFilesQuery,
    answer: storeFileList,
  },
};

const administration: Descriptions = {
  "POST /admin/v1/tenants": { summary: "Makes a tenant.", body: tenants.createSchema, answer: tenant, status: 201 },
  "GET /admin/v1/tenants": { summary: "Lists tenants.", query: pageQuery, answer: listOf(tenant) },
  "GET /admin/v1/tenants/:tenant_id": { summary: "Describes a tenant.", answer: tenant },
  "PATCH /admin/v1/tenants/:tenant_id": {
    summary: "Renames, disables or enables a tenant.",
    body: tenants.updateSchema,
    answer: tenant,
  },
  "DELETE /admin/v1/tenants/:tenant_id": { summary: "Deletes a tenant with all it owns.", answer: deleted },
  "POST /admin/v1/tenants/:tenant_id/salt/rotate": {
    summary: "Makes the KV of the tenant's own text unreachable.",
    answer: answers.saltAnswer,
  },
  "POST /admin/v1/tenants/:tenant_id/keys": {
    summary: "Makes an API key, shown this once.",
    body: tenants.mintSchema,
    answer: answers.mintedKeyAnswer,
    status: 201,
  },
  "GET /admin/v1/tenants/:tenant_id/keys": {
    summary: "Lists a tenant's API keys.",
    query: pageQuery,
    answer: listOf(answers.apiKeyAnswer),
  },
  "DELETE /admin/v1/keys/:key_id": { summary: "Revokes an API key.", answer: deleted },
  "POST /admin/v1/vector_stores/:vector_store_id/salt/rotate": {
    summary: "Makes the KV of a vector store's fragments unreachable.",
    answer: answers.saltAnswer,
  },
  "POST /admin/v1/vector_stores/:vector_store_id/prepare": {
    summary: "Starts a job that computes the KV of every fragment ahead of questions.",
    answer: job,
    status: 202,
  },
  "GET /admin/v1/vector_stores/:vector_store_id/fragments": {
    summary: "Facts of a vector store's fragments: tokens, blocks, span key, where they are resident.",
    query: fragmentsQuery,
  },
  "GET /admin/v1/jobs/:job_id": { summary: "Describes a job.", answer: job },
  "GET /admin/v1/jobs/:job_id/events": {
    summary: "Progress of a job; each event is the whole job.",
    answerTypes: ["text/event-stream"],
  },
  "POST /admin/v1/jobs/:job_id/cancel": { summary: "Cancels a job.", answer: job },
  "GET /admin/v1/cache": { summary: "Whose KV the workers hold, by tenant." },
  "GET /admin/v1/workers": { summary: "The workers and what they do." },
  "GET /health": { summary: "This process answers." },
  "GET /ready": {
    summary: "Whether requests can be served: 503 without a ready worker and while the server drains.",
    answer: answers.readyAnswer,
  },
  "GET /metrics": { summary: "Metrics in Prometheus' text form.", answerTypes: ["text/plain"] },
};

export const descriptions: Descriptions = { ...generation, ...documents, ...administration };
