/** Sizes as settings of the server are written: `8GB`, `8GiB`, `8589934592`. */
const unitBytes: Readonly<Record<string, number>> = {
  ...{ "": 1, b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
  ...{ kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 },
};

/** Bytes; null for an empty text; what is no size as it is, for the API to refuse. */
export function sizeOf(text: string): number | string | null {
  if (text.trim() === "") return null;
  const [, value = "", unit = ""] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  const factor = unitBytes[unit.toLowerCase()];
  return value === "" || factor === undefined ? text : Math.round(Number(value) * factor);
}

/** The shortest way to write so many bytes exactly: `8GiB`, `8GB`, `8589934593`. */
export function sizeText(bytes: number | null): string {
  if (bytes === null) return "";
  const names = ["TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"];
  const fits = names.filter((name) => bytes > 0 && bytes % (unitBytes[name.toLowerCase()] ?? 1) === 0);
  const written = fits.map((name) => `${bytes / (unitBytes[name.toLowerCase()] ?? 1)}${name}`);
  return [...written, String(bytes)].reduce((best, each) => (each.length < best.length ? each : best));
}
