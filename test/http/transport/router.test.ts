/** A route without parameters is looked for once, and found as the router that it is looked for in finds it. */
import { expect, test } from "bun:test";
import { TrieRouter } from "hono/router/trie-router";
import { RememberingRouter } from "../../../gateway/http/transport/route.ts";

const added: readonly (readonly [method: string, path: string])[] = [
  ["ALL", "*"],
  ["GET", "/v1/files"],
  ["POST", "/v1/files"],
  ["GET", "/v1/files/:file_id"],
  ["GET", "/v1/files/content"],
  ["ALL", "/v1/*"],
];
const asked = ["/v1/files", "/v1/files/file-1", "/v1/files/content", "/v1/other", "/", "/v1/files/"].flatMap((path) =>
  ["GET", "POST", "HEAD"].map((method) => [method, path] as const),
);

test("finds what the router that it asks finds, however often it is asked", () => {
  const [ours, theirs] = [new RememberingRouter<string>(), new TrieRouter<string>()];
  for (const [method, path] of added) {
    for (const router of [ours, theirs]) router.add(method, path, `${method} ${path}`);
    // A route that is added later counts for what was found before.
    for (const [name, at] of [...asked, ...asked]) expect(ours.match(name, at)).toEqual(theirs.match(name, at));
  }
});

test("keeps what it found for a route without parameters, and nothing of what callers choose", () => {
  const router = new RememberingRouter<string>();
  for (const [method, path] of added) router.add(method, path, `${method} ${path}`);
  const found = router.match("GET", "/v1/files");
  expect(router.match("GET", "/v1/files")).toBe(found);
  for (const path of ["/v1/files/file-1", "/v1/unknown"]) {
    const first = router.match("GET", path);
    expect(router.match("GET", path)).not.toBe(first);
  }
});
