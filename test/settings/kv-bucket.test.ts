/** The settings of KV's bucket: what is taken, and sentences that name what is wrong. */
import { expect, test } from "bun:test";
import { parseConfig, SettingError } from "../../gateway/config.ts";

const env = {
  SPANGATE_KV_DISK_BYTES: "auto",
  SPANGATE_KV_S3: "s3://papers/kv",
  AWS_ACCESS_KEY_ID: "reader",
  AWS_SECRET_ACCESS_KEY: "secret",
};
const access = { accessKeyId: "reader", secretAccessKey: "secret" };

test.each([
  ["s3://papers", ""],
  ["s3://papers/", ""],
  ["s3://papers/kv", "kv/"],
  ["s3://papers//a//b/", "a/b/"],
  ["s3://papers/it's_(a).b!*-c", "it's_(a).b!*-c/"],
])("%s", (address, prefix) => {
  const { kvBucket } = parseConfig({ ...env, SPANGATE_KV_S3: address });
  expect(kvBucket).toEqual({ bucket: "papers", prefix, mostBytes: 2 ** 40, access });
});

test("server, region, session and size; without an address all of it is left alone", () => {
  const others = {
    SPANGATE_KV_S3_ENDPOINT: "https://s3.example:9000/",
    SPANGATE_KV_S3_BYTES: "2GB",
    AWS_REGION: "eu-west-1",
    AWS_SESSION_TOKEN: "token",
  };
  const { kvBucket } = parseConfig({ ...env, ...others });
  const more = { endpoint: "https://s3.example:9000", region: "eu-west-1", sessionToken: "token" };
  expect(kvBucket).toEqual({ bucket: "papers", prefix: "kv/", mostBytes: 2e9, access: { ...access, ...more } });
  expect(parseConfig({ AWS_REGION: "no region", AWS_SECRET_ACCESS_KEY: "a b" }).kvBucket).toBeUndefined();
});

test.each([
  ["SPANGATE_KV_S3", "http://papers/kv", "must be s3://bucket or s3://bucket/prefix"],
  ["SPANGATE_KV_S3", "s3://Papers/kv", "must be s3://bucket or s3://bucket/prefix"],
  ["SPANGATE_KV_S3", "s3://papers/a b", "must be s3://bucket or s3://bucket/prefix"],
  ["SPANGATE_KV_S3", `s3://papers/${"a".repeat(600)}`, "must be s3://bucket or s3://bucket/prefix"],
  ["SPANGATE_KV_S3", "s3://papers/../kv", 'must have no part "." or ".."'],
  ["SPANGATE_KV_S3_ENDPOINT", "papers.example", "must be http://HOST"],
  ["SPANGATE_KV_S3_ENDPOINT", "https://user:word@papers.example", "must be http://HOST"],
  ["SPANGATE_KV_S3_ENDPOINT", "https://papers.example/?a=b", "must be http://HOST"],
  ["SPANGATE_KV_S3_BYTES", "1e99", "must be a size"],
  ["SPANGATE_KV_S3_BYTES", "0", "must be from 1 MiB to "],
  ["SPANGATE_KV_DISK_BYTES", "5TiB", "must be from 0 bytes to 4 TiB"],
  ["SPANGATE_KV_DISK_BYTES", "0", "must not be 0 with SPANGATE_KV_S3"],
  ["AWS_ACCESS_KEY_ID", "", "must be set with SPANGATE_KV_S3"],
  ["AWS_SECRET_ACCESS_KEY", "", "must be set with SPANGATE_KV_S3"],
  ["AWS_REGION", "eu west", "must be printable ASCII"],
  ["AWS_SESSION_TOKEN", "x".repeat(9_000), "must be printable ASCII"],
])("%s=%s is refused with a sentence that names it", (name, value, sentence) => {
  expect(() => parseConfig({ ...env, [name]: value })).toThrow(new SettingError(name, "").message + sentence);
});
