/** Pages of a list, walked from either end, in either order. */
import { expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import type { PageRange } from "../../db/page.ts";
import { insertTenant, listTenants } from "../../db/tenants.ts";

test("pages before a cursor end right before it, and more are there as long as there are", () => {
  const db = openDb(":memory:");
  for (let i = 0; i < 10; i++) insertTenant(db, { id: newId("tenant"), name: `${i}`, createdAt: 0 });
  const list = (range: Pick<PageRange, "order" | "afterSeq" | "beforeSeq">) => {
    const { rows, hasMore } = listTenants(db, { limit: 3, ...range });
    return { names: rows.map(({ name }) => name).join(""), first: rows[0]?.seq, last: rows.at(-1)?.seq, hasMore };
  };
  for (const order of ["asc", "desc"] as const) {
    const whole = order === "asc" ? "0123456789" : "9876543210";
    const forward: (ReturnType<typeof list> | undefined)[] = [list({ order })];
    for (let page = forward[0]; page?.hasMore; page = forward.at(-1))
      forward.push(list({ order, afterSeq: page.last }));
    expect(forward.map((page) => page?.names)).toEqual([
      whole.slice(0, 3),
      whole.slice(3, 6),
      whole.slice(6, 9),
      whole[9] ?? "",
    ]);
    const back: typeof forward = [list({ order, beforeSeq: forward.at(-1)?.first })];
    for (let page = back[0]; page?.hasMore; page = back.at(-1)) back.push(list({ order, beforeSeq: page.first }));
    expect(back.map((page) => page?.names)).toEqual([whole.slice(6, 9), whole.slice(3, 6), whole.slice(0, 3)]);
    const [first, , third] = forward;
    expect(list({ order, afterSeq: first?.first, beforeSeq: third?.last }).names).toBe(whole.slice(1, 4));
  }
});
