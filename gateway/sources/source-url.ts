/**
 * What can be said of a source by its URL alone: whether it is a web site or a bucket, and what it is called. Apart from
 * what reads sources, which a server loads in a process of its own and would take a tenth of its start.
 */
import { basename, resolve } from "node:path";

/** Why a page or a source cannot be had; a sentence for the person who asked for it. */
export class FetchError extends Error {}

export interface S3Source {
  readonly bucket: string;
  readonly prefix: string;
}

export const isRemote = (source: string): boolean => /^(?:https?|s3):\/\//i.test(source);

export const isS3 = (source: string): boolean => /^s3:/i.test(source);

/** What a source is called unless a name is given: a folder's name, what a web site's pages are below, a bucket's URL. */
export function defaultLabel(source: string): string {
  if (!isRemote(source)) return basename(resolve(source));
  return isS3(source) || !URL.canParse(source) ? source : folderOf(new URL(source));
}

/** The folder that a source's pages are below: what stands before the last slash of its path. */
export function folderOf(url: URL): string {
  return new URL(".", url).href;
}

/** @throws FetchError unless it is s3://bucket or s3://bucket/prefix */
export function s3SourceOf(text: string): S3Source {
  const [, bucket, prefix = ""] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*))?$/.exec(text) ?? [];
  if (bucket === undefined) throw new FetchError(`${text} is not s3://bucket/prefix`);
  return { bucket, prefix };
}
