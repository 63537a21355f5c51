/**
 * Ids are parsed types: a prefix and 24 characters of [0-9a-z] (124 random bits). A string that does not parse never
 * reaches a statement or a path.
 */
import { randomInt } from "node:crypto";

export const idPrefixes = {
  tenant: "tenant_",
  apiKey: "key_",
  corpus: "vs_",
  file: "file-",
  fileBatch: "vsfb_",
  fragment: "frag_",
  job: "job_",
  response: "resp_",
  batch: "batch_",
  batchRequest: "batch_req_",
  messageBatch: "msgbatch_",
  upload: "upload_",
  uploadPart: "part_",
  auditEvent: "audit_",
  source: "source_",
} as const;

export type IdKind = keyof typeof idPrefixes;
export type Id<Kind extends IdKind> = `${(typeof idPrefixes)[Kind]}${string}`;
export type TenantId = Id<"tenant">;
export type ApiKeyId = Id<"apiKey">;
export type CorpusId = Id<"corpus">;
export type FileId = Id<"file">;
export type FileBatchId = Id<"fileBatch">;
export type FragmentId = Id<"fragment">;
export type JobId = Id<"job">;
export type AuditEventId = Id<"auditEvent">;
export type ResponseId = Id<"response">;
export type BatchId = Id<"batch">;
export type MessageBatchId = Id<"messageBatch">;
export type UploadId = Id<"upload">;
export type SourceId = Id<"source">;
export type UploadPartId = Id<"uploadPart">;

const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz";
const randomChars = 24;

export function newId<Kind extends IdKind>(kind: Kind): Id<Kind> {
  let random = "";
  for (let i = 0; i < randomChars; i++) random += alphabet[randomInt(alphabet.length)];
  return `${idPrefixes[kind]}${random}` as Id<Kind>;
}

/** Parses an id. undefined: the string is no id of this kind, so no object has it. */
export function parseId<Kind extends IdKind>(kind: Kind, raw: string): Id<Kind> | undefined {
  const prefix = idPrefixes[kind];
  if (raw.length !== prefix.length + randomChars || !raw.startsWith(prefix)) return undefined;
  return /^[0-9a-z]+$/.test(raw.slice(prefix.length)) ? (raw as Id<Kind>) : undefined;
}
