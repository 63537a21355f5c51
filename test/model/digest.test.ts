import { expect, test } from "bun:test";
import { copyFileSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { modelDigest } from "../../worker/model/digest.ts";
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
  const otherScaling = changed(folder, "config.json", (bytes) =>
    Buffer.from(bytes.toString().replace('"default"', '"linear","factor":2')),
  );
  expect(digestOf(otherScaling)).not.toBe(digest);
  const otherTheta = changed(folder, "config.json", (bytes) => Buffer.from(bytes.toString().replace("10000", "20000")));
  expect(digestOf(otherTheta)).not.toBe(digest);
});

test("every byte of a long header counts, in a file too large to be hashed whole", () => {
  const pad = " ".repeat(200_000);
  const digests = ["a", "b"].map((name) => {
    const header = JSON.stringify({ [name]: { dtype: "U8", shape: [1], data_offsets: [0, 1] } });
    const text = Buffer.from(`${pad.slice(0, 100_000)}${header}${pad}`);
    const folder = temporaryFolder();
    writeFileSync(join(folder, "config.json"), "{}");
    const file = join(folder, "model.safetensors");
    writeFileSync(file, Buffer.concat([Buffer.from(BigUint64Array.of(BigInt(text.length)).buffer), text]));
    truncateSync(file, 1 << 30);
    return modelDigest(folder, [file], "float32");
  });
  expect(digests[0]).not.toBe(digests[1]);
});
