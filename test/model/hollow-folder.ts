/** Model folders of any size that take no room on the disk: what their headers say is told, what stands behind is not. */
import { closeSync, ftruncateSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { parseModelConfig } from "../../worker/model/config.ts";
import { storedShapes, tensorLayout } from "../../worker/model/tensor-layout.ts";
import { folderMaker } from "../support/new-folder.ts";
import { tinyConfig } from "./folder.ts";

const newFolder = folderMaker("spangate hollow ");

/** A model in bfloat16 whose weights' file is a hole behind its header. */
export function hollowModel(fields: object): string {
  const folder = newFolder();
  const config = { ...tinyConfig, ...fields };
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  const header: Record<string, object> = {};
  let end = 0;
  for (const [name, shape] of storedShapes(tensorLayout(parseModelConfig(config, "config.json")))) {
    const start = end;
    end += 2 * shape.reduce((product, extent) => product * extent);
    header[name] = { dtype: "BF16", shape, data_offsets: [start, end] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const file = openSync(join(folder, "model.safetensors"), "w");
  writeSync(file, BigUint64Array.of(BigInt(text.length)));
  writeSync(file, text);
  ftruncateSync(file, 8 + text.length + end);
  closeSync(file);
  return folder;
}
