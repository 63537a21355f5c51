import { expect, test } from "bun:test";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { loadModel } from "../../worker/model/load.ts";
import { temporaryFolder, tinyConfig, writeModelFolder } from "./folder.ts";

const digestOf = (folder: string, numericMode = "float32") => loadModel(folder, numericMode).digest;

/** A copy of the folder with one file changed. */
function changed(folder: string, name: string, change: (bytes: Buffer) => Buffer): string {
  const copy = temporaryFolder();
  for (const file of ["config.json", "model.safetensors"]) copyFileSync(join(folder, file), join(copy, file));
  writeFileSync(join(copy, name), change(readFileSync(join(copy, name))));
  return copy;
}

test("the digest is the model's numbers: weights, configuration and numeric mode, not the folder", () => {
  const folder = writeModelFolder(tinyConfig);
  const digest = digestOf(folder);
  expect(digestOf(changed(folder, "config.json", (bytes) => bytes))).toBe(digest);
  expect(digestOf(folder, "int8")).not.toBe(digest);
  const weights = changed(folder, "model.safetensors", (bytes) => {
    bytes[bytes.length - 1] ^= 1;
    return bytes;
  });
  expect(digestOf(weights)).not.toBe(digest);
  const otherTheta = changed(folder, "config.json", (bytes) => Buffer.from(bytes.toString().replace("10000", "20000")));
  expect(digestOf(otherTheta)).not.toBe(digest);
});
