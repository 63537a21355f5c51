/** What the gateway and its mover say to each other. The gateway opens the mover once, and then gives it jobs. */
import type { S3Access } from "../sources/s3.ts";

export interface MoverSettings {
  readonly bucket: string;
  /** What this server's objects are called in the bucket begins with it; it ends with a slash. */
  readonly prefix: string;
  readonly access: S3Access;
  /** The folder of KV files. */
  readonly folder: string;
}

export type MoverJob =
  /** The file of the folder goes into the bucket. */
  | { readonly is: "put"; readonly id: string; readonly bytes: number }
  /** The object comes into the folder, with so many bytes; until it is whole its file has the name `aside`. */
  | { readonly is: "get"; readonly id: string; readonly bytes: number; readonly aside: string }
  | { readonly is: "delete"; readonly id: string }
  /** A page of what is there. @param after what the page before gave as `next` */
  | { readonly is: "list"; readonly after: string | undefined };

export interface ListedPage {
  readonly ids: readonly string[];
  /** undefined: there is no further page. */
  readonly next: string | undefined;
}

/**
 * Why a job failed. `missing`: the bucket is there, and the object is not. `damaged`: the object has another size.
 * `file`: the folder's file cannot be read or written. `bucket`: all else.
 */
export type MoverFailure = "missing" | "damaged" | "file" | "bucket";

export class MoverError extends Error {
  readonly failure: MoverFailure;

  constructor(failure: MoverFailure, message: string) {
    super(message);
    this.failure = failure;
  }
}

/** The first message. */
export interface OpenMessage {
  readonly settings: MoverSettings;
}

/** Every other message. */
export interface JobMessage {
  readonly number: number;
  readonly job: MoverJob;
}

export type MoverAnswer =
  | { readonly is: "done"; readonly number: number; readonly page?: ListedPage }
  | { readonly is: "failed"; readonly number: number; readonly failure: MoverFailure; readonly reason: string };
