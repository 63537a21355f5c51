/**
 * Reads and checks a multipart form piece by piece, as it comes: its file goes to the disk, and no more than some pieces
 * of it are ever in memory.
 */
import Busboy, { type BusboyFileStream, type BusboyInstance } from "@fastify/busboy";
import type { Context } from "hono";
import { z } from "zod";
import type { IdKind } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { StagedFile } from "../../corpus/files/staged-file.ts";
import { readPieces } from "./body.ts";
import type { AppEnv } from "./context.ts";
import { checked } from "./schema-check.ts";

/** Larger than the number of supported fields, so that an unsupported one is refused by name. */
const maxFormFields = 16;
/** Most bytes of one part's headers. */
const maxHeaderBytes = 8 * 1024;
const maxHeaderPairs = 16;
/** Bytes that are parsed between two turns of the event loop. */
const sliceBytes = 256 * 1024;
/**
 * Bytes of a part that may wait for whoever reads it. More than come in one turn, since the parser waits for ever when the
 * form ends in the same piece in which a part that it leaves out has filled its buffer.
 */
const partBytes = 2 * sliceBytes;

/** A file of a form, its bytes on the disk. */
export class FormFile<Kind extends IdKind> {
  readonly name: string;
  readonly type: string;
  readonly content: StagedFile<Kind>;

  constructor(name: string, type: string, content: StagedFile<Kind>) {
    this.name = name;
    this.type = type;
    this.content = content;
  }
}

/** Schema of a form's file. */
export const formFile = <Kind extends IdKind>() =>
  z.custom<FormFile<Kind>>((value) => value instanceof FormFile, "must be a file");

export interface FormOptions<Kind extends IdKind> {
  /** Largest file, in bytes. */
  readonly maxBytes: number;
  /** Name of the file's field; a file in any other field reads as null. */
  readonly fileField: string;
  readonly stage: () => Promise<StagedFile<Kind>>;
  readonly unsupported?: ReadonlySet<string>;
}

/**
 * The caller keeps or drops the file that it gets; the file of a form that is refused is dropped here.
 * @throws ApiError 413, 415, 429, 503, 507, 400 with `param`
 */
export async function readForm<Schema extends z.ZodType, Kind extends IdKind>(
  context: Context<AppEnv>,
  schema: Schema,
  options: FormOptions<Kind>,
): Promise<z.infer<Schema>> {
  const contentType = context.req.header("content-type") ?? "";
  if (!/^multipart\/form-data\s*;/i.test(contentType)) {
    throw new ApiError("unsupported_media_type", { message: "Send the file as multipart/form-data." });
  }
  const reader = new FormReader(contentType, options);
  try {
    const maxBytes = options.maxBytes + corpusLimits.maxUploadOverheadBytes;
    await readPieces(context, { maxBytes, kept: false }, (piece) => reader.write(piece));
    const entries = await reader.end();
    return checked(schema, Object.fromEntries(entries), options.unsupported);
  } catch (error) {
    await reader.drop();
    throw error;
  }
}

class FormReader<Kind extends IdKind> {
  readonly #options: FormOptions<Kind>;
  readonly #parser: BusboyInstance;
  readonly #entries = new Map<string, unknown>();
  readonly #finished = Promise.withResolvers<void>();
  #staged: StagedFile<Kind> | undefined;
  #stream: BusboyFileStream | undefined;
  /** Ends when the file is on the disk. */
  #staging: Promise<void> = Promise.resolve();
  /** The first error that the form is refused for. */
  #fault: unknown;

  constructor(contentType: string, options: FormOptions<Kind>) {
    this.#options = options;
    this.#parser = parserOf(contentType);
    this.#parser.on("field", (name, value) => this.#add(name, value));
    this.#parser.on("file", (name, stream, filename, _encoding, type) => this.#file(name, stream, filename, type));
    this.#parser.on("error", (error) => this.#fail(malformed(error)));
    this.#parser.on("finish", () => this.#finished.resolve());
    // The promise is awaited only at the end.
    this.#finished.promise.catch(() => undefined);
  }

  /** Resolves when the bytes are parsed and those of the file are taken. @throws ApiError */
  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.byteLength; at += sliceBytes) {
      const taken = new Promise<void>((resolve) => {
        this.#parser.write(bytes.subarray(at, at + sliceBytes), () => resolve());
      });
      await Promise.race([taken, this.#finished.promise]);
      if (this.#fault !== undefined) throw this.#fault;
      // Parts that are left out pass their bytes on in the next turn.
      if (at + sliceBytes < bytes.byteLength) await yieldToOthers();
    }
  }

  /** @throws ApiError */
  async end(): Promise<ReadonlyMap<string, unknown>> {
    this.#parser.end();
    await this.#finished.promise;
    await this.#staging;
    if (this.#fault !== undefined) throw this.#fault;
    return this.#entries;
  }

  async drop(): Promise<void> {
    this.#fault ??= malformed(undefined);
    this.#parser.destroy();
    // Whoever reads it waits for no more.
    this.#stream?.destroy();
    await this.#staging;
    await this.#staged?.drop();
  }

  /** Each field once; ends at the first that is too many, since a form of 32 MiB can hold half a million. */
  #add(name: string, value: unknown): void {
    if (this.#entries.has(name)) {
      const message = "A field was given more than once.";
      return this.#fail(new ApiError("invalid_value", { param: name.slice(0, 64), message }));
    }
    if (this.#entries.size === maxFormFields) {
      return this.#fail(
        new ApiError("invalid_request", { message: `The form may have at most ${maxFormFields} fields.` }),
      );
    }
    this.#entries.set(name, value);
  }

  #file(name: string, stream: BusboyFileStream, filename: string, type: string): void {
    stream.on("error", (error) => this.#fail(malformed(error)));
    if (name !== this.#options.fileField || this.#entries.has(name)) {
      this.#add(name, null);
      stream.resume();
      return;
    }
    // The entry takes its place among the fields before the file's bytes have come.
    this.#add(name, undefined);
    this.#stream = stream;
    this.#staging = this.#stage(name, stream, filename, type).catch((error: unknown) => this.#fail(error));
  }

  async #stage(name: string, stream: BusboyFileStream, filename: string, type: string): Promise<void> {
    const staged = await this.#options.stage();
    this.#staged = staged;
    for await (const bytes of stream as AsyncIterable<Uint8Array>) {
      if (this.#fault !== undefined) return;
      await staged.add(bytes);
    }
    this.#entries.set(name, new FormFile(filename, type, staged));
  }

  #fail(error: unknown): void {
    this.#fault ??= error;
    this.#finished.reject(error);
  }
}

function parserOf(contentType: string): BusboyInstance {
  try {
    return new Busboy({
      headers: { "content-type": contentType },
      preservePath: true,
      fileHwm: partBytes,
      isPartAFile: (_name, _type, filename) => filename !== undefined,
      limits: {
        fieldSize: corpusLimits.maxUploadOverheadBytes,
        headerSize: maxHeaderBytes,
        headerPairs: maxHeaderPairs,
      },
    });
  } catch (error) {
    throw malformed(error);
  }
}

const malformed = (cause: unknown): ApiError =>
  new ApiError("invalid_request", { message: "The body is not valid multipart/form-data.", cause });
