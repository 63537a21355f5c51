/**
 * Runs a program that reads a document, confined to the files that Bun and the program need to start. It cannot reach
 * the server's data, memory or environment. Arguments: the program, then its own arguments. Exits with 1 if it cannot
 * be confined.
 */
import { dirname, join } from "node:path";
import { root } from "../../places/places.ts";
import { executeConfined, type Opened } from "../process/confine.ts";

const [program = "", ...rest] = process.argv.slice(2);
const at = (to: Opened["to"], ...paths: readonly string[]): Opened[] => paths.map((path) => ({ path, to }));

executeConfined(
  [process.execPath, program, ...rest],
  [
    ...at("execute", process.execPath, join(dirname(process.execPath), "..", "lib")),
    ...at("execute", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store"),
    ...at("read", "/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/dev/urandom", "/dev/null", "/sys/fs/cgroup"),
    // Needed to find packages: folders can be listed, but none of their files opened.
    ...at("list", root),
    ...at(
      "read",
      dirname(program),
      join(root, "node_modules"),
      join(root, "package.json"),
      join(root, "tsconfig.json"),
    ),
    ...at("write", "/proc/self"),
  ],
);
process.exit(1);
