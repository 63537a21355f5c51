/** Runs in a thread: serves one task after the other, as they come. */
import { getPriority, setPriority } from "node:os";
import type { TaskAnswer, TaskMessage, TaskTable } from "./protocol.ts";

declare const self: Worker;

/** How much "nicer" than the server a thread is that gives way. The model's workers are 2 nicer. */
const niceness = 5;

/**
 * Call at a thread's start where its tasks may be long: one tenant's searches then do not take the cores from everybody's
 * answers. On Linux, where each thread has a priority of its own.
 */
export function giveWay(): void {
  if (process.platform === "linux") setPriority(Math.min(getPriority() + niceness, 19));
}

export function serveTasks(tasks: TaskTable): void {
  self.onmessage = async ({ data: { name, input } }: MessageEvent<TaskMessage>) => {
    const answer = await answerOf(tasks, name, input);
    // In a thread, `heapUsed` is the size of that thread's own heap.
    self.postMessage({ ...answer, heapBytes: process.memoryUsage().heapUsed } satisfies TaskAnswer);
  };
}

async function answerOf(tasks: TaskTable, name: string, input: unknown): Promise<Omit<TaskAnswer, "heapBytes">> {
  try {
    const task = tasks[name];
    if (task === undefined) throw new Error(`there is no task '${name}'`);
    return { output: await task(input) };
  } catch (error) {
    return { failure: error instanceof Error ? (error.stack ?? error.message) : String(error) };
  }
}
