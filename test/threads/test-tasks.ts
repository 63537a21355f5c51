/** A thread's program for tests: tasks that end, fail, hold the thread or fill its heap. */
import { getPriority } from "node:os";
import { giveWay, serveTasks } from "../../gateway/threads/serve.ts";

const kept: unknown[] = [];

const tasks = {
  double: (value: number) => value * 2,
  later: async (value: number) => {
    await Bun.sleep(1);
    return value;
  },
  fail: (_: null): number => {
    throw new TypeError("a fault of ours");
  },
  spin: (_: null): number => {
    for (;;);
  },
  giveWay: (_: null): number => {
    giveWay();
    return getPriority();
  },
  quit: (_: null): number => process.exit(3),
  keep: (count: number) => {
    kept.push(Array.from({ length: count }, (_, i) => ({ i })));
    return kept.length;
  },
};
export type TestTasks = typeof tasks;

serveTasks(tasks);
