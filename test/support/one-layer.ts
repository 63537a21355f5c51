/**
 * The demo model cut off after its first layer, for tests of a server that do not ask what the model knows: its
 * tokenizer, template and token vectors are the demo model's, it starts in half the time, and a token takes a quarter.
 */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { cacheFolder, demoModelFolder } from "../../places/places.ts";
import { readSafetensorsHeader } from "../../worker/model/safetensors.ts";

const weightFiles = /\.safetensors(?:\.index\.json)?$/;
const isOfLaterLayer = (tensor: string): boolean => !/^model\.layers\.0\./.test(tensor) && /\.layers\./.test(tensor);

/** Made once, in `.build`: its path says what it was made of. */
export function oneLayerFolder(): string {
  const files = readdirSync(demoModelFolder, { withFileTypes: true }).filter((entry) => entry.isFile());
  const names = files.map(({ name }) => name);
  const hasher = new Bun.CryptoHasher("sha256").update(readFileSync(import.meta.path));
  for (const name of names) hasher.update(name).update(readFileSync(join(demoModelFolder, name)));
  const parent = join(cacheFolder(), `one-layer-${hasher.digest("hex").slice(0, 16)}`);
  const folder = join(parent, "one-layer");
  if (existsSync(folder)) return folder;
  mkdirSync(parent, { recursive: true });
  // Tests run beside each other: what is made is there at once or not at all.
  const scratch = mkdtempSync(join(parent, "new-"));
  write(scratch, names);
  try {
    renameSync(scratch, folder);
  } catch (error) {
    if (!existsSync(folder)) throw error;
    rmSync(scratch, { recursive: true });
  }
  return folder;
}

function write(folder: string, names: readonly string[]): void {
  const config = JSON.parse(readFileSync(join(demoModelFolder, "config.json"), "utf8"));
  const cut = { ...config, num_hidden_layers: 1, max_window_layers: 1, layer_types: config.layer_types.slice(0, 1) };
  writeFileSync(join(folder, "config.json"), JSON.stringify(cut));
  for (const name of names.filter((each) => each !== "config.json" && !weightFiles.test(each))) {
    writeFileSync(join(folder, name), readFileSync(join(demoModelFolder, name)));
  }
  const header: Record<string, unknown> = {};
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const name of names.filter((each) => each.endsWith(".safetensors"))) {
    const path = join(demoModelFolder, name);
    const bytes = readFileSync(path);
    for (const [tensor, { dtype, shape, start, end }] of readSafetensorsHeader(path)) {
      if (isOfLaterLayer(tensor)) continue;
      header[tensor] = { dtype, shape, data_offsets: [at, at + end - start] };
      parts.push(bytes.subarray(start, end));
      at += end - start;
    }
  }
  const headerBytes = Buffer.from(JSON.stringify(header));
  const length = new Uint8Array(BigUint64Array.of(BigInt(headerBytes.length)).buffer);
  writeFileSync(join(folder, "model.safetensors"), Buffer.concat([length, headerBytes, ...parts]));
}
