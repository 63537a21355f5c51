import type { Db } from "../../db/open.ts";

/**
 * The names of the statements and transactions from now on that change rows and are synced: while SQLite syncs, the
 * event loop stands still for as long as the disk takes.
 */
export function syncedChanges(db: Db): readonly string[] {
  const names: string[] = [];
  let depth = 0;
  const noted = <T>(name: string, work: () => T): T => {
    const before = db.client.query<{ n: number }, []>("select total_changes() as n").get()?.n;
    depth += 1;
    try {
      return work();
    } finally {
      depth -= 1;
      const after = db.client.query<{ n: number }, []>("select total_changes() as n").get()?.n;
      const level = db.client.query<{ synchronous: number }, []>("pragma synchronous").get()?.synchronous;
      if (depth === 0 && before !== after && level !== 1) names.push(name);
    }
  };
  const [statement, transaction] = [db.statement.bind(db), db.transaction.bind(db)];
  db.statement = (name, work) => noted(name, () => statement(name, work));
  db.transaction = (name, work) => noted(name, () => transaction(name, work));
  return names;
}
