/**
 * Runs a program that reads a document, confined to what Bun and the program need to start: the server's data, its memory
 * and its environment are not among it. Arguments: the program, then its own. Ends with 1 where it cannot be confined.
 */
import { dirname, join } from "node:path";
import { executeConfined, type Opened } from "../process/confine.ts";

const root = join(import.meta.dir, "..", "..");
const [program = "", ...rest] = process.argv.slice(2);
const at = (to: Opened["to"], ...paths: readonly string[]): Opened[] => paths.map((path) => ({ path, to }));

executeConfined(
  [process.execPath, program, ...rest],
  [
    ...at("execute", process.execPath, join(dirname(process.execPath), "..", "lib")),
    ...at("execute", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store"),
    ...at("read", "/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/dev/urandom", "/dev/null", "/sys/fs/cgroup"),
    // To find packages. Names of files can be listed, none of them opened.
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
