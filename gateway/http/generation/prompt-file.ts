/** Files that stand in a prompt: an upload that is named, or bytes that come with the request. */
import { z } from "zod";
import { limits } from "../../config.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { RequestFile } from "../../generate/plan-documents.ts";
import { optional, shortString } from "../transport/fields.ts";
import { paramOf } from "../transport/schema-check.ts";
import type { Path, Refuse } from "./tool-schemas.ts";

export const promptFilename = z
  .string()
  .min(1)
  .max(corpusLimits.maxFilenameChars)
  .refine((name) => !/\p{Cc}/u.test(name), "must have no control characters");

/** The fields of OpenAI's APIs. */
export const promptFileFields = {
  file_id: optional(shortString),
  // Base64, or a data URL of it. It is decoded when it is read.
  file_data: optional(z.string().min(1)),
  filename: optional(promptFilename),
};

interface OpenAiFile {
  readonly file_id?: string | undefined;
  readonly file_data?: string | undefined;
  readonly filename?: string | undefined;
}

/** A file is said in one of two ways. */
export function checkPromptFile(file: OpenAiFile, context: z.RefinementCtx): void {
  const refuse = (field: string, message: string): void =>
    context.addIssue({ code: "custom", path: [field], message, input: file });
  if (file.file_id === undefined && file.file_data === undefined) refuse("file_data", "is missing, and so is file_id");
  if (file.file_id !== undefined && file.file_data !== undefined) refuse("file_data", "cannot stand beside file_id");
}

/** @param path where the file's fields stand in the request */
export function promptFileAt(path: Path, { file_id, file_data = "", filename }: OpenAiFile): RequestFile {
  const id = paramOf(path);
  return file_id === undefined
    ? { id, file: { param: `${id}.file_data`, source: { base64: file_data }, filename } }
    : { id, file: { param: `${id}.file_id`, source: { fileId: file_id }, filename } };
}

/** @param documentCount the request's other documents */
export function checkPromptFiles(files: readonly RequestFile[], documentCount: number, refuse: Refuse): void {
  if (files.length > limits.promptFiles) refuse([], `have more than ${limits.promptFiles} files`);
  else if (files.length + documentCount > limits.documents)
    refuse([], `have more than ${limits.documents} documents and files`);
}
