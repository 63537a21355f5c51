/**
 * What the server and the program that reads a source for it say to each other, a line of JSON each. The server writes
 * the job, and then the files that the store has; the program answers with what has to be done, and last how it ended.
 */
import { z } from "zod";
import type { S3Access } from "./s3.ts";

export interface GatherJob {
  readonly label: string;
  readonly url: string;
  readonly maxPages: number;
  readonly maxDepth: number;
  readonly maxObjects: number;
  readonly maxBytes: number;
  readonly maxMs: number;
  readonly s3: S3Access | undefined;
  /** Networks beside the public internet, in CIDR notation. */
  readonly networks: readonly string[];
  /** Where the server keeps uploads, by their ids. */
  readonly uploads: string;
  /** An empty folder for what is fetched. */
  readonly folder: string;
}

const storedFile = z.strictObject({
  id: z.string(),
  status: z.enum(["in_progress", "completed", "failed", "cancelled"]),
  attributes: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  chunking_strategy: z
    .strictObject({
      type: z.literal("static"),
      static: z.strictObject({ max_chunk_size_tokens: z.int(), chunk_overlap_tokens: z.int() }),
    })
    .optional(),
  spangate: z.strictObject({ filename: z.string(), sha256: z.string() }).optional(),
});

const localFile = z.strictObject({
  label: z.string(),
  name: z.string(),
  path: z.string(),
  // A name in the job's folder: a page that takes the program over must not name another file.
  bytesAt: z
    .string()
    .regex(/^\d+(?:\.[a-z0-9]{1,10})?$/i)
    .optional(),
  sha256: z.string().optional(),
  attributes: z.record(z.string(), z.string()).optional(),
});

export const gatherMessage = z.discriminatedUnion("is", [
  z.strictObject({
    is: z.literal("work"),
    file: localFile,
    present: storedFile.optional(),
    older: z.array(storedFile),
  }),
  z.strictObject({ is: z.literal("relabelled"), stored: storedFile, attributes: storedFile.shape.attributes }),
  z.strictObject({ is: z.literal("gone"), stored: storedFile }),
  z.strictObject({ is: z.literal("failed"), path: z.string(), reason: z.string() }),
  z.strictObject({ is: z.literal("planned"), isWhole: z.boolean(), unchanged: z.int() }),
  z.strictObject({ is: z.literal("refused"), reason: z.string() }),
]);
export type GatherMessage = z.infer<typeof gatherMessage>;
