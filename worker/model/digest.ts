/**
 * Identifies a model's numbers: KV computed under one digest is never reused under another. Headers and configuration
 * are hashed whole; of large tensor data only samples from every shard, so that a start does not read 16 GB twice.
 */
import { closeSync, fstatSync, openSync, readFileSync, readSync } from "node:fs";
import { basename, join } from "node:path";

const sampleBytes = 64 * 1024;
const maxSamplesPerFile = 1_024;

/**
 * @param weightFiles the safetensors files in use, in any order
 * @param numericMode what else decides the numbers: weight type and KV type
 */
export function modelDigest(folder: string, weightFiles: readonly string[], numericMode: string): string {
  const hasher = new Bun.CryptoHasher("sha256");
  hasher.update(`spangate-model/1\n${numericMode}\n`);
  hasher.update(readFileSync(join(folder, "config.json")));
  for (const file of weightFiles.toSorted()) {
    hasher.update(`\n${basename(file)}\n`);
    hashSamples(hasher, file);
  }
  return hasher.digest("hex");
}

/** The whole safetensors header: names, types and places of the tensors. */
function readHeader(fd: number, fileBytes: number): Uint8Array {
  const length = new BigUint64Array(1);
  readSync(fd, length, 0, 8, 0);
  const header = new Uint8Array(Math.min(Number(length[0]), fileBytes - 8));
  readSync(fd, header, 0, header.length, 8);
  return header;
}

/** Evenly spaced samples from the first byte to the last; a file of up to 64 MiB is hashed whole. */
function hashSamples(hasher: Bun.CryptoHasher, file: string): void {
  const fd = openSync(file, "r");
  try {
    const fileBytes = fstatSync(fd).size;
    hasher.update(readHeader(fd, fileBytes));
    const sampleCount = Math.min(Math.ceil(fileBytes / sampleBytes), maxSamplesPerFile);
    const stride = sampleCount > 1 ? (fileBytes - sampleBytes) / (sampleCount - 1) : 0;
    const buffer = new Uint8Array(sampleBytes);
    hasher.update(`${fileBytes}\n`);
    for (let i = 0; i < sampleCount; i++) {
      const count = readSync(fd, buffer, 0, sampleBytes, Math.max(0, Math.floor(i * stride)));
      hasher.update(buffer.subarray(0, count));
    }
  } finally {
    closeSync(fd);
  }
}
