/**
 * Keeps compiled kernels on disk, beside the CPU library, under names derived from everything that went into them.
 * Several workers may start at once: each file is written under a name of its own and then renamed, so no reader sees
 * half a file.
 */
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { cacheFolder } from "../../../../places/places.ts";
import type { CudaSource } from "./nvrtc.ts";

export interface CubinTarget {
  /** The target, as `architectureName` returns it. */
  readonly architecture: string;
  readonly driverVersion: number;
  readonly compilerVersion: number;
}

/** A compiler such as Nvrtc. */
export interface CubinCompiler {
  compile(source: CudaSource, architecture: string): Uint8Array;
}

/** File name of the cubin of this source for this target; different contents have different names. */
export function cubinFileName(source: CudaSource, target: CubinTarget): string {
  const headers = Object.entries(source.headers).sort(([a], [b]) => (a < b ? -1 : 1));
  const { architecture, driverVersion, compilerVersion } = target;
  const content = [source.name, source.text, headers, source.options, architecture, driverVersion, compilerVersion];
  const hash = new Bun.CryptoHasher("sha256").update(JSON.stringify(content)).digest("hex").slice(0, 24);
  return `${source.name.replace(/\.cu$/, "").replace(/[^\w-]/g, "_")}-${architecture}-${hash}.cubin`;
}

export class CubinCache {
  readonly #folder: string;

  /** @param folder default: where the CPU library is kept as well */
  constructor(folder = cacheFolder()) {
    this.#folder = folder;
  }

  /**
   * Returns the cubin from the disk, or compiles it and keeps it there.
   * @throws CudaCompileError when the compiler refuses the source
   */
  async load(source: CudaSource, target: CubinTarget, compiler: CubinCompiler): Promise<Uint8Array> {
    const path = join(this.#folder, cubinFileName(source, target));
    const kept = await readFileIfThere(path);
    if (kept !== undefined && isCubin(kept)) return kept;
    const cubin = compiler.compile(source, target.architecture);
    await this.#keep(path, cubin);
    return cubin;
  }

  async #keep(path: string, cubin: Uint8Array): Promise<void> {
    const partPath = `${path}.${crypto.randomUUID()}.part`;
    await mkdir(this.#folder, { recursive: true });
    try {
      await Bun.write(partPath, cubin);
      await rename(partPath, path);
    } finally {
      await rm(partPath, { force: true });
    }
  }
}

async function readFileIfThere(path: string): Promise<Uint8Array | undefined> {
  const file = Bun.file(path);
  return (await file.exists()) ? file.bytes() : undefined;
}

/** Is the cubin whole? It is an ELF file whose header tables come last; a cut or overwritten file is compiled again. */
function isCubin(bytes: Uint8Array): boolean {
  if (bytes.length < 64 || bytes[0] !== 0x7f || String.fromCharCode(...bytes.subarray(1, 4)) !== "ELF") return false;
  const header = new DataView(bytes.buffer, bytes.byteOffset, 64);
  // e_phoff, e_phentsize, e_phnum; then the same for sections.
  const tableEnd = (offsetAt: number, sizeAt: number): number =>
    Number(header.getBigUint64(offsetAt, true)) + header.getUint16(sizeAt, true) * header.getUint16(sizeAt + 2, true);
  return Math.max(tableEnd(32, 54), tableEnd(40, 58)) <= bytes.length;
}
