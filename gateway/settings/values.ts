/** How values of settings are written. */
import { isAbsolute, resolve } from "node:path";
import { z } from "zod";

export const wholeNumber = (min: number, max: number) =>
  z
    .string()
    .regex(/^\d+$/, "must be a whole number")
    .transform(Number)
    .refine((value) => value >= min && value <= max, `must be from ${min} to ${max}`);

/** Decimal units are powers of 1000 and binary ones of 1024, as the SI and IEC have them. */
const unitBytes: Readonly<Record<string, number>> = {
  "": 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

const sizePattern = /^(\d+(?:\.\d+)?) *([kmgt]i?b|b|)$/i;

/** Bytes, as in `8589934592`, `8GB`, `8GiB` or `1.5 GiB`. */
export const byteSize = (min: number, max: number) =>
  z
    .string()
    .regex(sizePattern, "must be a size in bytes, as in 8GB, 8GiB or 8589934592")
    .transform((text) => {
      const [, count = "", unit = ""] = sizePattern.exec(text) ?? [];
      return Math.round(Number(count) * (unitBytes[unit.toLowerCase()] ?? Number.NaN));
    })
    .refine((value) => value >= min && value <= max, `must be from ${sizeText(min)} to ${sizeText(max)}`);

/** The size as one would write it: in the largest binary unit of which it is a whole number. */
function sizeText(bytes: number): string {
  const unit = ["TiB", "GiB", "MiB", "KiB"].find(
    (name) => bytes > 0 && bytes % (unitBytes[name.toLowerCase()] ?? 1) === 0,
  );
  return unit === undefined ? `${bytes} bytes` : `${bytes / (unitBytes[unit.toLowerCase()] ?? 1)} ${unit}`;
}

/** A size, or `auto`: undefined, the server chooses. */
export const byteSizeOrAuto = (min: number, max: number) =>
  z
    .string()
    .transform((text) => (text === "auto" ? undefined : text))
    .pipe(byteSize(min, max).optional());

/**
 * A bucket and what its objects' names begin with, as in `s3://bucket/prefix`. Bucket names are Amazon's, and prefixes
 * have the characters that it calls safe, so that no server and no URL needs them written otherwise.
 */
export const bucketAddress = () =>
  z
    .string()
    .regex(
      /^s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:\/[\w!.*'()/-]{0,512})?$/,
      "must be s3://bucket or s3://bucket/prefix, the prefix of letters, digits and !-_.*'()/",
    )
    .refine((address) => !/\/\.{1,2}(?:\/|$)/.test(address.slice(5)), 'must have no part "." or ".."')
    .transform((address) => {
      const [bucket = "", ...steps] = address.slice("s3://".length).split("/").filter(Boolean);
      return { bucket, prefix: steps.map((step) => `${step}/`).join("") };
    });

/** Where a server is: without a path, a user or a query. */
export const serverUrl = () =>
  z
    .string()
    .refine(
      (text) => URL.canParse(text) && /^https?:\/\/[^/?#@]+\/?$/i.test(text),
      "must be http://HOST, https://HOST or one with a port",
    )
    .transform((text) => text.replace(/\/+$/, ""));

/** Where browsers find the server: a cookie that signs in goes over TLS alone. */
export const publicUrl = () =>
  serverUrl()
    .refine(
      (text) => text.startsWith("https://"),
      "must begin with https://: a proxy in front of the server has the TLS",
    )
    .transform((text) => new URL(text).origin);

/** A path, made absolute from where the server was started. */
export const folder = () =>
  z
    .string()
    .min(1)
    .transform((path) => (isAbsolute(path) ? path : resolve(path)));

const deviceName = z.string().regex(/^(?:cpu|cuda:(?:0|[1-9]\d?))$/, 'names devices as "cpu" or "cuda:0", "cuda:1", …');

/** All workers serve one model with the same arithmetic, and a GPU has one worker. */
export const devices = (most: number) =>
  z
    .string()
    .default("cpu")
    .transform((list) => list.split(",").map((name) => name.trim()))
    .pipe(
      z
        .array(deviceName)
        .min(1)
        .max(most, `takes at most ${most} devices`)
        .refine(
          (names) => new Set(names.map((name) => name.startsWith("cuda:"))).size === 1,
          "mixes cpu and cuda devices: their arithmetic differs, and all workers must give the same answers",
        )
        .refine((names) => {
          const cuda = names.filter((name) => name !== "cpu");
          return new Set(cuda).size === cuda.length;
        }, "names a cuda device twice: one worker owns it"),
    );

const corsOrigin = z
  .string()
  .regex(
    /^(?:\*|https?:\/\/[^\s/,]+)$/,
    'must be origins such as "https://chat.example.com", with commas between, or *',
  );

export const corsOrigins = () =>
  z
    .string()
    .transform((list) => list.split(",").map((origin) => origin.trim()))
    .pipe(z.array(corsOrigin).max(64, "must have at most 64 origins"))
    .default([]);

const network = z.union([z.cidrv4(), z.cidrv6()], {
  error: 'must be networks such as "10.1.0.0/16", with commas between',
});

export const networks = () =>
  z
    .string()
    .transform((list) => list.split(",").map((one) => one.trim()))
    .pipe(z.array(network).max(64, "must have at most 64 networks"))
    .default([]);

/** `1` switches it on. */
export const onOrOff = () =>
  z
    .enum(["0", "1"], { error: "must be 0 or 1" })
    .default("0")
    .transform((given) => given === "1");
